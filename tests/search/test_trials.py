"""A search run whole: what it tries, stores and chooses, and that nothing but validation data decides."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from transformers import BertModel
from typer.testing import CliRunner

from layerdescent import experiment, tasks
from layerdescent.cli import app
from layerdescent.data import prepare
from layerdescent.errors import InputError, NonFiniteLossError, RunError
from layerdescent.evaluation import descent_profile
from layerdescent.recipes import Recipe, load_recipe
from layerdescent.runs import Run, train_unless_locked
from layerdescent.search import search_recipe, trials
from tests.tiny_recipe import NoTestPart, write_recipe, write_reviews

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers' own saving

GRID = {
    "price": 0.02,
    "seeds": [0, 1],
    "arms": {
        "erm": {"learning_rate": [1e-3, 1e-2]},
        "descent": {"alpha": [0.01, 0.2]},
    },
}


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"), search=GRID)


@pytest.fixture(scope="module")
def searched(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("searched")
    return search_recipe(with_search(recipe_file), folder, progress=False, command="a test"), folder


def with_search(recipe_file: Path, **changes: Any) -> Recipe:
    """The file's own section has its keys in another order: what is written as YAML by a test is sorted."""
    return load_recipe(str(recipe_file), [f"search={json.dumps({**GRID, **changes})}"])


def test_every_trial_is_stored_with_what_it_came_to(searched: tuple[dict[str, Any], Path]) -> None:
    results, folder = searched
    assert json.loads((folder / "search.json").read_text()) == results
    assert [row["name"] for row in results["trials"]] == [
        f"{label}-seed{seed}"
        for label in ("erm@learning_rate=0.001", "erm@learning_rate=0.01", "descent@alpha=0.01", "descent@alpha=0.2")
        for seed in (0, 1)
    ]
    erm, descent = results["trials"][0], results["trials"][-1]
    assert len(erm["layer_losses"]) == 3
    assert (erm["feasible"], erm["multipliers"], erm["max_violation"]) == (None, None, None)
    assert descent["feasible"] in (True, False)
    assert len(descent["multipliers"]) == len(descent["lambda_share"]) == 2
    assert all(row["seconds"] > 0 and row["failed"] is None for row in results["trials"])
    assert results["command"] == "a test"
    assert results["environment"]["torch"]
    assert any("0.02" in line or "2 points" in line for line in results["rule"])


def test_candidates_are_means_over_seeds(searched: tuple[dict[str, Any], Path]) -> None:
    rows = searched[0]["trials"]
    for place, candidate in enumerate(searched[0]["candidates"]):
        pair = rows[2 * place : 2 * place + 2]
        assert candidate["value"] == pytest.approx(sum(row["value"] for row in pair) / 2)
        assert candidate["loss"] == pytest.approx(sum(row["loss"] for row in pair) / 2)
    assert [row["alpha"] for row in searched[0]["candidates"]] == [None, None, 0.01, 0.2]


def test_values_are_those_of_the_kept_model_on_validation_rows(searched: tuple[dict[str, Any], Path]) -> None:
    """By another road: the profile's."""
    results, folder = searched
    recipe = load_recipe(str(folder / "recipe.yaml"))
    tokenizer = experiment.load_data(recipe, folder, False, ("validation",))[1]
    rows = prepare(recipe.data, tokenizer).validation
    for trial in results["trials"]:
        profile = descent_profile(folder / "runs" / trial["name"] / "model", rows, processing_class=tokenizer).to_dict()
        assert trial["value"] == pytest.approx(profile["accuracies"][-1])
        assert trial["layer_losses"] == pytest.approx(profile["layer_losses"], rel=1e-4)


def test_what_was_chosen_is_a_recipe_to_compare(searched: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    results, folder = searched
    chosen, original = load_recipe(folder / "chosen.yaml"), with_search(recipe_file)
    assert chosen.search is None
    for choice in results["choices"]:
        assert chosen.arms[choice["arm"]] == original.arms[choice["arm"]] | choice["settings"]
        assert f"# {choice['arm']}: {choice['reason']}" in (folder / "chosen.yaml").read_text()
    assert chosen.model_copy(update={"arms": original.arms, "search": original.search}) == original


def test_the_choice_is_the_rules_own(searched: tuple[dict[str, Any], Path]) -> None:
    results = searched[0]
    erm, descent = results["choices"]
    rows = [row for row in results["candidates"] if row["arm"] == "erm"]
    assert erm["value"] == max(row["value"] for row in rows)
    assert erm["price"] == 0
    assert descent["of"] == 2
    assert [row["chosen"] for row in results["candidates"]].count(True) == 2


def test_nothing_finished_is_done_again(searched: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    results, folder = searched
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*") if path.is_file()}
    dearer = search_recipe(with_search(recipe_file, price=0.9), folder, progress=False)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert dearer["trials"] == results["trials"]
    assert dearer["price"] == 0.9


def test_the_test_part_is_not_touched(recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "prepare", lambda *args, **kwargs: NoTestPart(prepare(*args, **kwargs)))
    recipe = with_search(recipe_file, seeds=[0])
    results = search_recipe(recipe, tmp_path, progress=False)
    assert len(results["trials"]) == 4
    with pytest.raises(AssertionError, match="the test part was touched"):
        experiment.load_data(recipe, tmp_path / "other", progress=False)


def test_other_test_rows_choose_the_same(searched: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    file = write_recipe(tmp_path, search=GRID)
    write_reviews(tmp_path / "test.csv", 24, seed=123)
    results = search_recipe(with_search(file), tmp_path / "runs", progress=False)
    for ours, theirs in zip(results["candidates"], searched[0]["candidates"], strict=True):
        assert (ours["settings"], ours["value"], ours["chosen"]) == (
            theirs["settings"],
            theirs["value"],
            theirs["chosen"],
        )


# Several processes ----------------------------------------------------------------------------------------------------


def test_jobs_give_what_one_process_gives(
    searched: tuple[dict[str, Any], Path], recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    results = search_recipe(with_search(recipe_file), tmp_path, jobs=2, progress=False)
    assert [{**row, "seconds": None} for row in results["trials"]] == [
        {**row, "seconds": None} for row in searched[0]["trials"]
    ]


def test_a_trial_that_another_process_has_is_skipped_and_waited_for(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is let go when everything else is done, without a record: the other process was killed."""
    recipe, order = with_search(recipe_file, seeds=[0], keep_models=False), []
    locked = tmp_path / "runs" / "erm@learning_rate=0.001-seed0"
    half_saved = locked / "model" / "config.json"
    half_saved.parent.mkdir(parents=True)
    half_saved.touch()
    lock = FileLock(locked / "lock")

    def killed(_: float) -> None:
        assert half_saved.exists()
        lock.release()

    def noted(run: Run, *args: Any, **kwargs: Any) -> bool:
        trained = train_unless_locked(run, *args, **kwargs)
        order.append((run.name, trained))
        return trained

    monkeypatch.setattr(trials, "train_unless_locked", noted)
    monkeypatch.setattr(time, "sleep", killed)
    lock.acquire()
    search_recipe(recipe, tmp_path, progress=False)
    assert order[0] == order[4] == (locked.name, False)
    assert order[-1] == (locked.name, True)
    assert len(order) == 6
    assert not half_saved.parent.exists()


def test_a_worker_that_fails_is_told_in_one_line(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = "import sys; sys.stdin.readline(); sys.stderr.write('noise\\nno space left\\n'); sys.exit({})"
    for code, kind in ((1, RunError), (trials._WRONG_INPUT, InputError)):
        monkeypatch.setattr(trials, "_WORKER", work.format(code))
        with pytest.raises(kind, match=r"^no space left$"):
            search_recipe(with_search(recipe_file), tmp_path, jobs=2, progress=False)
    killed = (
        "import os, sys; sys.stdin.readline(); sys.stderr.write('noise'); sys.stderr.flush(); os.kill(os.getpid(), 9)"
    )
    monkeypatch.setattr(trials, "_WORKER", killed)
    with pytest.raises(RunError, match=r"^a worker was ended by signal 9: .*fewer --jobs"):
        search_recipe(with_search(recipe_file), tmp_path, jobs=2, progress=False)


def test_a_worker_ends_when_its_parent_is_gone(recipe_file: Path, tmp_path: Path) -> None:
    endless = load_recipe(str(recipe_file), ["train.num_train_epochs=100000"])
    task = json.dumps({"recipe": endless.to_dict(), "folder": str(tmp_path), "say": True})
    with subprocess.Popen(
        [sys.executable, "-c", trials._WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        print(task, file=worker.stdin, flush=True)
        assert "] training " in worker.stdout.readline()
    assert worker.returncode == 1


def test_workers_end_with_their_parent(recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    class Noted(subprocess.Popen[str]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    script = (
        "import sys, os, time; sys.stdin.readline(); os.mkdir(r'{0}') if not os.path.isdir(r'{0}') else sys.exit(1)"
    )
    monkeypatch.setattr(trials, "_WORKER", script.format(tmp_path / "first") + "; time.sleep(60)")
    with pytest.raises(RunError):
        search_recipe(with_search(recipe_file), tmp_path / "runs", jobs=2, progress=False)
    assert len(started) == 2
    assert all(worker.poll() is not None for worker in started)


# What goes wrong ------------------------------------------------------------------------------------------------------


def test_a_diverging_trial_counts_and_is_never_chosen(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def diverges(run: Run, *args: Any, **kwargs: Any) -> bool:
        calls.append(run.name)
        if "alpha=0.2" in run.name:
            run.checkpoints.mkdir(parents=True)
            raise NonFiniteLossError("the loss of layer 2 is nan")
        return train_unless_locked(run, *args, **kwargs)

    monkeypatch.setattr(trials, "train_unless_locked", diverges)
    recipe = with_search(recipe_file, seeds=[0])
    for _ in range(2):
        results = search_recipe(recipe, tmp_path, progress=False)
        assert results["trials"][-1]["failed"] == "the loss of layer 2 is nan"
        assert results["choices"][1]["settings"] == {"alpha": 0.01}
        assert "(1 failed)" in results["choices"][1]["reason"]
        assert not list(tmp_path.glob("runs/*/checkpoints"))
    assert len(calls) == len(set(calls)) == 4

    monkeypatch.setattr(trials, "_finished", lambda run: True)
    for run in tmp_path.glob("runs/erm*"):
        (run / "run.json").unlink()
        (run / "failed.json").write_text('{"error": "nan"}')
    with pytest.raises(RunError, match="every trial of erm, descent failed"):
        search_recipe(recipe, tmp_path, progress=False)


@pytest.mark.parametrize(
    ("search", "overrides", "message"),
    [
        (
            {"arms": {"erm": {"weight_decay": [0, 1]}, "descent": {"dual_lr": [0.1, 1], "resilience": [0.5]}}},
            [],
            r"arm descent@dual_lr=1@resilience=0\.5: resilience is 0\.5: give a number above dual_lr \(1\)",
        ),
        ({"arms": {"erm": {"weight_deacy": [0, 1]}}}, [], "no field 'weight_deacy'; did you mean weight_decay"),
        ({"arms": {"erm": {"weight_decay": [0, "1"]}}}, [], "weight_decay is '1'"),
        ({"arms": {"erm": {"weight_decay": [0]}}}, ["train.eval_strategy=no"], "eval_strategy must not be no"),
    ],
)
def test_wrong_settings_are_named_before_anything_trains(
    recipe_file: Path, tmp_path: Path, search: dict[str, Any], overrides: list[str], message: str
) -> None:
    recipe = load_recipe(str(recipe_file), [f"search={json.dumps(search)}", *overrides])
    with pytest.raises(InputError, match=message):
        search_recipe(recipe, tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_recipe_without_the_section_is_told_how_to_write_one(recipe_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no section search: add one, e\.g\. search: \{price"):
        search_recipe(load_recipe(str(recipe_file), ["search=null"]), tmp_path)


def test_a_run_without_the_metric_is_named(searched: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    run = json.loads(next((searched[1] / "runs").glob("erm*/run.json")).read_text())
    del run["validation"]["accuracy"]
    trial = Run(load_recipe(str(searched[1] / "recipe.yaml")), "erm", 0, tmp_path)
    trial.folder.mkdir(parents=True)
    trial.record.write_text(json.dumps(run))
    with pytest.raises(RunError, match=r"run\.json holds no validation accuracy: .* delete its folder"):
        trials._trial(trial, "accuracy")


def test_schedules_are_trials_too(recipe_file: Path, tmp_path: Path) -> None:
    schedule = {"kind": "linear", "first": 0.0, "last": 0.1}
    recipe = with_search(recipe_file, seeds=[0], arms={"erm": {"weight_decay": [0]}, "descent": {"alpha": [schedule]}})
    results = search_recipe(recipe, tmp_path, progress=False)
    assert results["trials"][1]["settings"] == {"alpha": schedule}
    assert results["candidates"][1]["alpha"] == pytest.approx(1 - (1.0 * 0.9) ** 0.5)
    assert load_recipe(tmp_path / "chosen.yaml").arms["descent"]["alpha"] == schedule


def test_a_later_first_layer_asks_for_the_same_alpha(recipe_file: Path, tmp_path: Path) -> None:
    arms = {"erm": {"weight_decay": [0, 0.1]}, "descent": {"alpha": [0.1], "first_layer": [1, 2]}}
    results = search_recipe(with_search(recipe_file, seeds=[0], arms=arms), tmp_path, progress=False)
    assert [row["alpha"] for row in results["candidates"]] == [None, None, 0.1, 0.1]


def test_a_regression_is_chosen_by_its_error(tmp_path: Path) -> None:
    recipe_file = write_recipe(tmp_path)
    BertModel.from_pretrained(tmp_path / "checkpoint").save_pretrained(
        tmp_path / "checkpoint"
    )  # its head has 2 outputs
    search = {"arms": {"erm": {"learning_rate": [1e-3, 1e-2]}, "descent": {"alpha": [0.01, 0.02]}}}
    overrides = [f"search={json.dumps(search)}", "data.task=regression", "metric=rmse"]
    results = search_recipe(load_recipe(str(recipe_file), overrides), tmp_path / "runs", progress=False)
    assert results["price"] == 0.01
    for trial in results["trials"]:
        assert trial["value"] == pytest.approx(trial["loss"] ** 0.5, rel=1e-5)  # the loss is the mean square
    erm = [row for row in results["candidates"] if row["arm"] == "erm"]
    assert results["choices"][0]["value"] == min(row["value"] for row in erm)


def test_models_need_not_be_kept(recipe_file: Path, tmp_path: Path) -> None:
    recipe = with_search(recipe_file, seeds=[0], keep_models=False, arms={"erm": {"weight_decay": [0]}})
    search_recipe(recipe, tmp_path, progress=False)
    assert {path.name for path in tmp_path.glob("runs/*/*")} - {"lock"} == {"run.json"}


def test_the_command_line(searched: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    result = CliRunner().invoke(app, ["search", str(recipe_file), "--folder", str(searched[1]), "--quiet"])
    assert result.exit_code == 0, result.output
    assert "* erm: learning_rate" in result.output
    assert f"chosen: {searched[1] / 'chosen.yaml'}" in result.output
    assert (searched[1] / "search.html").read_text().startswith("<!DOCTYPE html>")
    stored = json.loads((searched[1] / "search.json").read_text())
    assert stored["command"] == f"layerdescent search {recipe_file} --folder {searched[1]} --quiet"
