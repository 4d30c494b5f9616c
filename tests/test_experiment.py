"""Recipes run whole, picked up where they were stopped, and never mixed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import TrainerState

from layerdescent.errors import InputError, RunError
from layerdescent.evaluation import DescentProfile, sweep
from layerdescent.experiment import (
    _yardstick,
    claim_folder,
    compare_recipe,
    lambda_share,
    load_data,
    train_recipe,
)
from layerdescent.recipes import Recipe, load_recipe
from layerdescent.report import write_report
from layerdescent.runs import Run, _KeepWeights, training_config
from layerdescent.tables import comparison_table
from layerdescent.tasks import task_of
from tests.tiny_recipe import save_checkpoint, write_recipe, write_reviews

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers' own saving


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def compared(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("compared")
    return compare_recipe(load_recipe(str(recipe_file)), folder, progress=False, command="a test"), folder


def test_results_hold_what_a_page_needs(compared: tuple[dict[str, Any], Path]) -> None:
    results, folder = compared
    assert json.loads((folder / "results.json").read_text())["experiment"] == "tiny"
    assert [(run["arm"], run["seed"]) for run in results["runs"]] == [("erm", 0), ("descent", 0)]
    erm, descent = results["runs"]
    assert erm["alpha"] is None
    assert descent["alpha"] == [0.05, 0.05]
    assert len(descent["layer_losses"]["test"]) == len(descent["layer_losses"]["validation"]) == 3
    assert len(descent["history"]["multipliers"]) == len(descent["history"]["step"]) == 12
    assert "multipliers" not in erm["history"]
    assert len(descent["history"]["active_share"]) == 12
    assert descent["feasible_checkpoint"] is bool(descent["validation"]["feasible"])
    assert erm["feasible_checkpoint"] is None
    assert [(row["kind"], row["gamma"]) for row in descent["noise"]] == [("none", 0.0), ("gaussian", 1.0)]
    assert {(row["arm"], row["against"]) for row in results["paired"]} == {("descent", "erm")}
    assert results["command"] == "a test"
    assert results["environment"]["torch"]


def test_profile_and_sweep_agree_on_the_same_models(compared: tuple[dict[str, Any], Path]) -> None:
    for run in compared[0]["runs"]:
        np.testing.assert_allclose(run["noise"][0]["layer_losses"], run["layer_losses"]["test"], rtol=1e-5)
        assert run["noise"][0]["value"] == pytest.approx(run["accuracies"]["test"][-1])


def test_arms_start_from_the_same_model_and_differ_afterwards(compared: tuple[dict[str, Any], Path]) -> None:
    erm, descent = compared[0]["runs"]
    assert erm["history"]["layer_losses"][0] == pytest.approx(descent["history"]["layer_losses"][0])
    assert erm["layer_losses"]["test"] != descent["layer_losses"]["test"]


def test_nothing_finished_is_done_again(compared: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    results, folder = compared
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.suffix != ".yaml"}
    before.pop(folder / "results.json")
    started = time.perf_counter()
    again = compare_recipe(load_recipe(str(recipe_file)), folder, progress=False, command="a test")
    assert time.perf_counter() - started < 20
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert again["runs"] == results["runs"]


def test_other_settings_are_refused(compared: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    other = load_recipe(str(recipe_file), ["arms.descent.alpha=0.1"])
    with pytest.raises(InputError, match=r"other settings \(descent\).*another --folder"):
        compare_recipe(other, compared[1], progress=False)


def test_every_kind_of_noise_has_its_own_levels(recipe_file: Path, tmp_path: Path) -> None:
    kinds = "{kind: gaussian, gammas: [0.5]}, {kind: uniform, gammas: [2]}, {kind: gaussian, gammas: [1]}"
    noise = f"evaluation.noise=[{kinds}]"
    run, *_ = compare_recipe(load_recipe(str(recipe_file), [noise]), tmp_path, arms=["erm"], progress=False)["runs"]
    levels = [(row["kind"], row["gamma"]) for row in run["noise"]]
    assert levels == [("none", 0.0), ("gaussian", 0.5), ("gaussian", 1.0), ("uniform", 2.0)]


def test_a_frontier_asked_for_too_late_is_said(
    recipe_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compare_recipe(load_recipe(str(recipe_file)), tmp_path, arms=["erm"], progress=False)
    later = load_recipe(str(recipe_file), ["frontier.checkpoints=3"])
    assert len(compare_recipe(later, tmp_path, arms=["erm"], progress=False)["frontier"]) == 1
    assert "erm-seed0 was trained before frontier.checkpoints was asked for" in caplog.text


def test_other_rows_under_the_same_name_are_refused(tmp_path: Path) -> None:
    recipe = load_recipe(str(write_recipe(tmp_path)))
    train_recipe(recipe, "erm", 0, tmp_path / "runs", progress=False)
    write_reviews(tmp_path / "validation.csv", 16, seed=99)
    with pytest.raises(InputError, match=r"have changed since \(validation\).*another --folder"):
        train_recipe(recipe, "descent", 0, tmp_path / "runs", progress=False)


def test_profiles_follow_the_baseline_and_the_yardstick(recipe_file: Path, tmp_path: Path) -> None:
    """A stored profile is measured again when the call asks for another pair or other constraints."""
    compare_recipe(load_recipe(str(recipe_file)), tmp_path, progress=False)
    asked = [
        "baseline=descent",
        "arms={first: {objective: descent, alpha: 0.3}, erm: {objective: erm}, descent: "
        "{objective: descent, alpha: 0.05, dual_lr: 0.3}}",
    ]
    later = load_recipe(str(recipe_file), asked)
    descent, erm = compare_recipe(later, tmp_path, arms=["erm"], progress=False)["runs"]
    assert (descent["arm"], descent["violations"]["test"]) == ("descent", pytest.approx(violations(descent, 0.05)))
    assert erm["violations"]["test"] == pytest.approx(violations(erm, 0.3))
    stored = DescentProfile.load(tmp_path / "runs/descent-seed0/profile.safetensors")
    assert stored.erm_layer_losses is None


def violations(run: dict[str, Any], alpha: float) -> list[float]:
    losses = run["layer_losses"]["test"]
    return [after - (1 - alpha) * before for before, after in pairwise(losses)]


def test_another_seed_is_added(compared: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    results, folder = compared
    both = compare_recipe(load_recipe(str(recipe_file)), folder, seeds=[0, 1], progress=False)
    assert [run["seed"] for run in both["runs"]] == [0, 0, 1, 1]
    assert both["runs"][0] == results["runs"][0]
    assert {row["n_seeds"] for row in both["paired"]} == {2}


def test_only_what_is_trained_may_be_compared(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe(str(recipe_file), ["seeds=[0, 1, 2]"])
    with pytest.raises(InputError, match="no run of erm, the baseline, is finished"):
        compare_recipe(recipe, tmp_path, trained_only=True, progress=False)
    for arm, seed in (("erm", 0), ("erm", 1), ("descent", 1), ("descent", 2)):
        train_recipe(recipe, arm, seed, tmp_path, progress=False)
    monkeypatch.setattr("layerdescent.experiment.train_run", None)
    results = compare_recipe(recipe, tmp_path, trained_only=True, progress=False)
    assert [(run["arm"], run["seed"]) for run in results["runs"]] == [("erm", 0), ("erm", 1), ("descent", 1)]
    assert results["seeds"] == [0, 1]
    assert {row["n_seeds"] for row in results["paired"]} == {1}
    assert write_report(results, tmp_path).is_file()
    assert "erm" in comparison_table(results)


def test_frontier_has_checkpoints_and_variants(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(recipe_file), ["frontier={checkpoints: 3, weight_decay: [0.1], label_smoothing: [0.2]}"])
    points = compare_recipe(recipe, tmp_path, arms=["erm"], progress=False)["frontier"]
    assert [(point["weight_decay"], point["label_smoothing"], point["step"]) for point in points] == [
        (decay, smoothing, step) for decay, smoothing in ((0, 0), (0.1, 0), (0, 0.2)) for step in (4, 8, 12)
    ]
    assert all(0 <= point["in_distribution"] <= 1 for point in points)
    smoothed = tmp_path / "runs" / "erm@label_smoothing_factor=0.2-seed0"
    assert json.loads((smoothed / "run.json").read_text())["settings"]["label_smoothing_factor"] == 0.2


def test_the_frontier_meets_the_noise_of_the_arms(recipe_file: Path, tmp_path: Path) -> None:
    """Discrete noise is calibrated on one model, whose embeddings training moves."""
    noise = "evaluation.noise=[{kind: discrete, shares: [0.25]}]"
    recipe = load_recipe(str(recipe_file), ["frontier={checkpoints: 3, weight_decay: [0.1]}", noise])
    results = compare_recipe(recipe, tmp_path, arms=["erm"], progress=False)
    assert {point["gamma"] for point in results["frontier"]} == {results["runs"][0]["noise"][1]["gamma"]}


@pytest.fixture(scope="module")
def shifted(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recipe, Path]:
    """The tiny recipe read on its own test part, and on the same texts with the labels turned."""
    folder = tmp_path_factory.mktemp("shifted")
    with (recipe_file.parent / "test.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (folder / "turned.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *((row["text"], 1 - int(row["label"])) for row in rows)])
    sources = f"{{same: {{source: {recipe_file.parent / 'test.csv'}}}, turned: {{source: {folder / 'turned.csv'}}}}}"
    return load_recipe(str(recipe_file), [f"evaluation.shift={sources}", "seeds=[0, 1]"]), folder / "runs"


def test_other_data_is_measured_as_the_test_part_is(shifted: tuple[Recipe, Path]) -> None:
    recipe, folder = shifted
    results = compare_recipe(recipe, folder, progress=False)
    shift = results["shift"]
    assert json.loads((folder / "results.json").read_text())["shift"] == shift
    assert set(shift) == {"runs", "paired", "trivial", "data"}
    own = {(run["arm"], run["seed"]): run["noise"][0] for run in results["runs"]}
    assert len(shift["runs"]) == 2 * len(own)
    for run in shift["runs"]:
        clean = own[run["arm"], run["seed"]]
        same = run["data"] == "same"
        assert run["value"] == pytest.approx(clean["value"] if same else 1 - clean["value"])
        assert (run["layer_losses"] == pytest.approx(clean["layer_losses"])) is same
        assert run["n_units"] == 24
    (paired,) = (row for row in results["paired"] if row["kind"] == "none")
    same, turned = shift["paired"]
    noise = {"kind", "gamma", "share"}
    assert same == {"data": "same", **{name: value for name, value in paired.items() if name not in noise}}
    assert (turned["data"], turned["n_seeds"]) == ("turned", 2)
    assert turned["difference"] == pytest.approx(-same["difference"])
    assert [(row["name"], row["data"], row["value"]) for row in shift["trivial"]] == [
        ("majority", "same", 0.5),
        ("majority", "turned", 0.5),
    ]
    assert [(report["name"], report["rows"], report["in_training"]) for report in shift["data"]] == [
        ("same", 24, 0),
        ("turned", 24, 0),
    ]
    shown = comparison_table(results)
    assert "accuracy on turned" in shown
    assert "descent - erm, turned" in shown


def test_other_data_is_not_read_twice(shifted: tuple[Recipe, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, folder = shifted
    first = compare_recipe(recipe, folder, progress=False)
    monkeypatch.setattr(sweep, "layer_outputs", None)
    assert compare_recipe(recipe, folder, progress=False)["shift"] == first["shift"]


def test_other_data_that_does_not_fit_is_named_before_anything_trains(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(recipe_file), [f"evaluation.shift.own.source={recipe_file.parent / 'train.csv'}"])
    with pytest.raises(InputError, match=r"evaluation\.shift\.own: all texts .* are among the training rows"):
        compare_recipe(recipe, tmp_path, progress=False)
    assert not (tmp_path / "runs").exists()


def test_results_without_other_data_say_so(compared: tuple[dict[str, Any], Path]) -> None:
    assert compared[0]["shift"] is None


@pytest.mark.parametrize(("steps", "count", "kept"), [(12, 3, [4, 8]), (11, 6, [1, 3, 5, 7, 9]), (3, 5, [1, 2])])
def test_weights_are_kept_at_evenly_spaced_steps(steps: int, count: int, kept: list[int], tmp_path: Path) -> None:
    class Saves:
        def save_pretrained(self, folder: Path) -> None:
            folder.mkdir(exist_ok=True)

    callback = _KeepWeights(tmp_path, count)
    for step in range(1, steps + 1):
        state = TrainerState(max_steps=steps, global_step=step)
        callback.on_step_end(None, state, None, model=Saves(), processing_class=Saves())
    assert sorted(int(path.name.removeprefix("step-")) for path in tmp_path.iterdir()) == kept


def test_a_frontier_may_be_measured_under_less_noise_than_the_arms(recipe_file: Path, tmp_path: Path) -> None:
    overrides = [
        "evaluation.noise=[{kind: gaussian, gammas: [1, 2]}, {kind: uniform, gammas: [1]}]",
        "frontier={weight_decay: [0.1], noise: [{kind: gaussian, gammas: [2]}]}",
    ]
    results = compare_recipe(load_recipe(str(recipe_file), overrides), tmp_path, arms=["erm"], progress=False)
    assert {(point["kind"], point["gamma"]) for point in results["frontier"]} == {("gaussian", 2.0)}
    assert len(results["runs"][0]["noise"]) == 4


def test_noise_may_be_measured_on_fewer_rows(recipe_file: Path, tmp_path: Path) -> None:
    overrides = ["evaluation.noise=[{kind: gaussian, gammas: [1]}]", "evaluation.noise_rows=6", "frontier=null"]
    recipe = load_recipe(str(recipe_file), overrides)
    results = compare_recipe(recipe, tmp_path, progress=False)
    clean, noisy = results["paired"]
    assert (clean["kind"], clean["n_units"], noisy["kind"], noisy["n_units"]) == ("none", 24, "gaussian", 6)
    data, _ = load_data(recipe, tmp_path, False)
    units = task_of(recipe).sweep_options(data)["noisy_units"]
    assert units is not None
    assert len(units) == 6
    assert sum(data.test["labels"][unit] for unit in units) == 3  # as many of each class, as in the test part
    fewer, all_rows = (load_recipe(str(recipe_file), [f"evaluation.noise_rows={count}"]) for count in (4, 24))
    assert set(task_of(fewer).sweep_options(data)["noisy_units"]) < set(units)
    assert task_of(all_rows).sweep_options(data)["noisy_units"] is None


def test_a_frontier_may_have_variants_only(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(recipe_file), ["frontier={weight_decay: [0.1]}", "train.num_train_epochs=1"])
    points = compare_recipe(recipe, tmp_path, arms=["erm"], progress=False)["frontier"]
    assert [(point["weight_decay"], point["step"]) for point in points] == [(0.0, 6), (0.1, 6)]


def test_an_arm_and_a_seed_named_twice_are_run_once(compared: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    results, folder = compared
    twice = compare_recipe(
        load_recipe(str(recipe_file)), folder, arms=["descent", "descent"], seeds=[0, 0], progress=False
    )
    assert twice["runs"] == results["runs"]


def test_plain_training_is_measured_by_what_the_constrained_arm_asks(recipe_file: Path, tmp_path: Path) -> None:
    """Descent is the default objective, so an arm need not name it."""
    recipe = load_recipe(str(recipe_file), ["arms={erm: {objective: erm}, descent: {alpha: 0.2}}"])
    for arm in recipe.arms:
        run = Run(recipe, arm, 0, tmp_path)
        save_checkpoint(run.model)
        assert _yardstick(run).alphas == (0.2, 0.2)


def test_the_share_of_steps_with_a_multiplier_counts_every_step() -> None:
    """Log entries show the multipliers at their last step only, and the last window may be short."""
    history = {"step": [10, 20, 25], "multipliers": [[0.0], [0.0], [0.0]], "active_share": [[0.5], [0.0], [1.0]]}
    assert lambda_share({"history": history}) == pytest.approx([(5 + 0 + 5) / 25])
    assert lambda_share({"history": {"step": [10]}}) is None


def test_a_killed_run_goes_on_and_ends_with_the_same_model(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(recipe_file))
    straight = train_recipe(recipe, "descent", 3, tmp_path / "straight", progress=False)
    stopped = tmp_path / "stopped"
    program = (
        "import sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from layerdescent.experiment import train_recipe\n"
        "from layerdescent.recipes import load_recipe\n"
        "train_recipe(load_recipe(sys.argv[1]), 'descent', 3, Path(sys.argv[2]), progress=False)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(recipe_file), str(stopped)])
    checkpoints = stopped / "runs/descent-seed3/checkpoints"
    deadline = time.monotonic() + 120
    # The optimiser's file appears in the middle of a save.
    while not list(checkpoints.glob("*/optimizer.pt")) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (stopped / "runs/descent-seed3/run.json").exists()
    resumed = train_recipe(recipe, "descent", 3, stopped, progress=False)
    expected, found = (load_file(folder / "model.safetensors") for folder in (straight, resumed))
    assert all(np.array_equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.learning_rat=1e-4", r"no field 'learning_rat'; did you mean learning_rate\?"),
        ("arms.descent.alpha=1.5", r"alpha of layer 1 is 1.5.*\[0, 1\)"),
        ("arms.descent.dual_lr=-1", "dual_lr is -1"),
        ("arms.descent.first_layer=9", "first_layer is 9.*layers 1 to 2"),
        ("arms.descent.alpha=[0.1, 0.1, 0.1]", "alpha has 3 values for 2 layers"),
        ("model.source=no/such-model", "no/such-model"),
        ("data.max_length=4000", "max_length is 4000"),
        ("train.learning_rate=abc", "recipe tiny, arm erm: learning_rate is 'abc': .*valid number"),
        ("train.learning_rate=.nan", "learning_rate is nan: .*finite"),
        ("train.learning_rate=-1", "learning_rate is -1: give at least 0"),
        ("train.num_train_epochs=null", "num_train_epochs is None"),
        ("train.per_device_train_batch_size=0", "per_device_train_batch_size is 0: give at least 1"),
        ("train.per_device_train_batch_size=1.5", "per_device_train_batch_size is 1.5"),
        ("train.gradient_accumulation_steps=0", "gradient_accumulation_steps is 0"),
        ("train.label_smoothing_factor=2", "label_smoothing_factor is 2: give at least 0, at most 1"),
        ("train.lr_scheduler_type=foo", "foo is not a valid SchedulerType"),
        ("train.save_strategy=steps", "load_best_model_at_end requires"),
        ("arms.descent.detach_initial=maybe", "recipe tiny, arm descent: detach_initial is 'maybe'"),
        ("arms.descent.dual_lr=true", "dual_lr is True"),
        ("arms.descent.grid=5", "grid is 5"),
        ("data.rows.test=1000", "asks for 1,000 rows"),
    ],
)
def test_wrong_settings_are_named_before_anything_trains(
    recipe_file: Path, tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        compare_recipe(load_recipe(str(recipe_file), [override]), tmp_path, progress=False)
    assert not list(tmp_path.glob("runs/erm*/model"))


def test_no_evaluation_while_training(recipe_file: Path, tmp_path: Path) -> None:
    """`no` is False in YAML; checkpoints are saved all the same, so that the run can go on after a stop."""
    recipe = load_recipe(str(recipe_file), ["train.eval_strategy=no"])
    config = training_config(Run(recipe, "descent", 0, tmp_path), progress=False)
    assert (config.eval_strategy, config.save_strategy, config.load_best_model_at_end) == ("no", "epoch", False)
    assert train_recipe(recipe, "descent", 0, tmp_path, progress=False).is_dir()


@pytest.mark.parametrize(
    ("override", "change", "message"),
    [
        ("data.label_names=[a, b, c]", {}, r"a head of its own .* these data have 3 labels: a, b, c"),
        ("seeds=[0]", {"num_hidden_layers": 3}, r"does not fit its config\.json: 16 of its weights are missing"),
        ("seeds=[0]", {"vocab_size": 30}, r"does not fit its config\.json: 1 of its weights .*word_embeddings"),
    ],
)
def test_a_model_that_does_not_fit(tmp_path: Path, override: str, change: dict[str, Any], message: str) -> None:
    recipe = write_recipe(tmp_path)
    config = tmp_path / "checkpoint/config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    with pytest.raises(InputError, match=message):
        train_recipe(load_recipe(str(recipe), [override]), "erm", 0, tmp_path / "runs", progress=False)


def test_smoothing_needs_classes(recipe_file: Path, tmp_path: Path) -> None:
    overrides = ["train.label_smoothing_factor=0.1", "data.task=regression", "metric=rmse"]
    with pytest.raises(InputError, match=r"label_smoothing_factor needs classes, and data\.task is regression"):
        train_recipe(load_recipe(str(recipe_file), overrides), "erm", 0, tmp_path, progress=False)


@pytest.mark.parametrize("override", ["arms.descent.alpha=1.5", "data.max_length=4000"])
def test_what_never_trained_does_not_hold_the_folder(recipe_file: Path, tmp_path: Path, override: str) -> None:
    with pytest.raises(InputError):
        train_recipe(load_recipe(str(recipe_file), [override]), "descent", 0, tmp_path, progress=False)
    assert train_recipe(load_recipe(str(recipe_file)), "descent", 0, tmp_path, progress=False).is_dir()


def test_an_arm_left_out_in_between_is_still_held(recipe_file: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "descent-seed0").mkdir(parents=True)
    claim_folder(tmp_path, load_recipe(str(recipe_file)))
    claim_folder(tmp_path, load_recipe(str(recipe_file), ["arms={erm: {objective: erm}}"]))
    claim_folder(tmp_path, load_recipe(str(recipe_file)))
    with pytest.raises(InputError, match=r"other settings \(descent\)"):
        claim_folder(tmp_path, load_recipe(str(recipe_file), ["arms.descent.alpha=0.1"]))


def test_unknown_arm(recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no arm 'decent': choose among descent, erm"):
        train_recipe(load_recipe(str(recipe_file)), "decent", 0, tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("recipe.yaml", "name: [broken"),
        ("runs/erm-seed0/run.json", "{"),
        ("runs/erm-seed0/profile.safetensors", "x"),
        ("runs/erm-seed0/model/model.safetensors", "x"),
    ],
)
def test_damaged_files_are_named(
    compared: tuple[dict[str, Any], Path], recipe_file: Path, tmp_path: Path, name: str, content: str
) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(compared[1], folder)
    shutil.rmtree(folder / "sweep")
    (folder / name).write_text(content)
    with pytest.raises(RunError, match=Path(name).name.split(".")[0]):
        compare_recipe(load_recipe(str(recipe_file)), folder, seeds=[0], progress=False)


def test_two_processes_do_not_train_one_run(recipe_file: Path, tmp_path: Path) -> None:
    from filelock import FileLock

    folder = tmp_path / "runs/erm-seed0"
    folder.mkdir(parents=True)
    with FileLock(folder / "lock"), pytest.raises(RunError, match=r"erm-seed0 is being trained by another process"):
        train_recipe(load_recipe(str(recipe_file)), "erm", 0, tmp_path, progress=False)
