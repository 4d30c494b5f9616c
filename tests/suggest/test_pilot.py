"""A suggestion made whole on tiny data: what it stores, what it may look at, and how it goes on and fails."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification
from typer.testing import CliRunner

from layerdescent import experiment, tasks
from layerdescent.cli import app
from layerdescent.data import prepare
from layerdescent.errors import InputError, NonFiniteLossError, RunError
from layerdescent.recipes import Recipe, load_recipe
from layerdescent.runs import Run, train_run, training_config
from layerdescent.suggest import Measured, judge, pilot, propose, suggest_recipe, suggestion_text
from layerdescent.suggest.pilot import descent_arm, layer_spreads, recipe_steps
from layerdescent.suggest.rules import proposed_dual_lr
from layerdescent.suggest.words import cost_sentences
from layerdescent.tables import plain
from tests.tiny_recipe import NoTestPart, write_recipe, write_reviews

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of transformers' own saving

# So that two random layers learn to tell fine from dull in 18 steps.
TRAIN = ["train.learning_rate=0.02", "train.warmup_steps=4", "train.num_train_epochs=10"]
STEPS = 18


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def suggested(recipe_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("suggested")
    recipe = load_recipe(str(recipe_file), TRAIN)
    return suggest_recipe(recipe, folder, steps=STEPS, progress=False, command="a test"), folder


def test_everything_measured_is_stored(suggested: tuple[dict[str, Any], Path]) -> None:
    results, folder = suggested
    stored = json.loads((folder / "suggestion.json").read_text())
    assert stored["proposal"] == results["proposal"]
    assert stored["steps"] == {"recipe": 60, "pilot": 18, "dual": 60}
    assert stored["rows"] == {"train": 48, "validation": 16}
    assert stored["command"] == "a test"
    assert stored["environment"]["torch"]
    assert len(stored["pilot"]["layer_losses"]) == len(stored["pilot"]["spreads"]) == 3
    assert {reason["about"] for reason in stored["reasons"]} == {
        "first_layer",
        "alpha",
        "dual_lr",
        "resilience",
        "clip_weights",
    }
    assert {reason["mark"] for reason in stored["reasons"]} == {"C", "D"}
    check = stored["checks"][-1]
    assert len(check["states"]) == len(check["multipliers"]) == 3 - check["settings"]["first_layer"]


def test_the_proposal_is_the_rules_own_on_the_stored_numbers(suggested: tuple[dict[str, Any], Path]) -> None:
    results, _ = suggested
    measured = Measured(
        layer_losses=tuple(results["pilot"]["layer_losses"]),
        spreads=tuple(results["pilot"]["spreads"]),
        constant_loss=results["pilot"]["constant_loss"],
        dual_steps=results["steps"]["dual"],
    )
    assert measured.constant_loss == pytest.approx(math.log(2))
    assert results["checks"][0]["settings"] == propose(measured, mean_pooling=True).settings
    if len(results["checks"]) == 1:
        assert results["proposal"] == results["checks"][0]["settings"]


def test_the_check_is_the_pilot_under_the_proposal(suggested: tuple[dict[str, Any], Path]) -> None:
    """Same steps, seed and schedule; the multipliers go as far as they would in the whole training."""
    results, folder = suggested
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/run.json"))]
    check, plain = records[0], records[-1]
    assert (plain["arm"], check["arm"]) == ("pilot", "check")
    assert plain["steps"] == check["steps"] == STEPS
    assert plain["seed"] == check["seed"]
    assert "multipliers" not in plain["history"]
    proposal = results["checks"][0]["settings"]
    dual_lr = proposed_dual_lr(proposal["alpha"], STEPS)
    differing = {
        name: value for name, value in check["settings"].items() if plain["settings"].get(name, "absent") != value
    }
    assert differing == {**proposal, "dual_lr": dual_lr, "objective": "descent"}
    assert plain["settings"]["warmup_steps"] == round(4 * STEPS / 60)


def test_cost_is_measured_in_pairs_on_validation_rows(suggested: tuple[dict[str, Any], Path]) -> None:
    results, _ = suggested
    cost = results["cost"]
    assert cost["loss_difference"] == pytest.approx(
        results["checks"][-1]["layer_losses"][-1] - results["pilot"]["layer_losses"][-1], abs=1e-6
    )
    assert cost["price"] == pytest.approx(results["pilot"]["accuracies"][-1] - results["checks"][-1]["accuracies"][-1])
    assert cost["one_process"] is True
    assert cost["step_time_ratio"] == pytest.approx(cost["step_seconds"] / cost["step_seconds_without"])
    assert cost["training_seconds"] == pytest.approx(60 * cost["step_seconds"])


def test_what_was_suggested_is_a_recipe_to_compare(
    suggested: tuple[dict[str, Any], Path], recipe_file: Path, tmp_path: Path
) -> None:
    results, folder = suggested
    recipe, original = load_recipe(folder / "suggested.yaml"), load_recipe(str(recipe_file), TRAIN)
    assert recipe.arms["descent"] == original.arms["descent"] | results["proposal"]
    assert recipe.model_copy(update={"arms": original.arms}) == original
    assert f"# alpha: {results['reasons'][1]['text']}" in (folder / "suggested.yaml").read_text()
    experiment.check_settings([Run(recipe, "descent", 0, tmp_path)])


def test_nothing_finished_is_done_again(
    suggested: tuple[dict[str, Any], Path], recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, folder = suggested
    monkeypatch.setattr(pilot, "train_run", None)
    again = suggest_recipe(load_recipe(str(recipe_file), TRAIN), folder, steps=STEPS, progress=False)
    assert {**again, "command": "a test"} == results


def test_the_pilot_logs_whatever_the_recipe_says_and_is_made_again_where_its_numbers_are_lost(
    suggested: tuple[dict[str, Any], Path], recipe_file: Path, tmp_path: Path
) -> None:
    recipe = load_recipe(str(recipe_file), [*TRAIN, "train.logging_strategy=no"])
    for lost in ("nothing", "measured.json", "profile.safetensors"):
        for file in tmp_path.glob(f"runs/pilot@*/{lost}"):
            file.unlink()
        results = suggest_recipe(recipe, tmp_path, steps=STEPS, progress=False)
        assert results["proposal"] == suggested[0]["proposal"]
        assert results["checks"][-1]["multipliers"] == suggested[0]["checks"][-1]["multipliers"]


def test_times_of_two_processes_are_not_called_a_comparison(
    suggested: tuple[dict[str, Any], Path], recipe_file: Path
) -> None:
    results, folder = suggested
    (of_pilot,) = folder.glob("runs/pilot@*/measured.json")
    kept = of_pilot.read_text()
    of_pilot.write_text(json.dumps(json.loads(kept) | {"process": "another"}))
    again = suggest_recipe(load_recipe(str(recipe_file), TRAIN), folder, steps=STEPS, progress=False)
    of_pilot.write_text(kept)
    assert "in one process" in cost_sentences(results)[0]
    for ratio, words in ((0.5, "other work"), (1.1, "the whole training about")):
        assert words in cost_sentences(results | {"cost": results["cost"] | {"step_time_ratio": ratio}})[0]
    assert "at different times" in cost_sentences(again)[0]


# What is looked at ---------------------------------------------------------------------------------------------------


def test_the_test_part_is_not_touched(recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "prepare", lambda *args, **kwargs: NoTestPart(prepare(*args, **kwargs)))
    recipe = load_recipe(str(recipe_file), TRAIN)
    assert suggest_recipe(recipe, tmp_path, steps=STEPS, progress=False)["proposal"]
    with pytest.raises(AssertionError, match="the test part was touched"):
        experiment.load_data(recipe, tmp_path / "other", progress=False)


def test_other_test_rows_suggest_the_same(suggested: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    file = write_recipe(tmp_path)
    write_reviews(tmp_path / "test.csv", 24, seed=123)
    results = suggest_recipe(load_recipe(str(file), TRAIN), tmp_path / "runs", steps=STEPS, progress=False)
    for key in ("proposal", "alpha_max", "reasons", "states"):
        assert results[key] == suggested[0][key]


def test_spreads_are_of_what_the_head_reads(recipe_file: Path) -> None:
    """The first token is the same for every input at layer 0; and above, as transformers itself gives it."""
    source = recipe_file.parent / "checkpoint"
    tokenizer, model = AutoTokenizer.from_pretrained(source), BertForSequenceClassification.from_pretrained(source)
    rows = [dict(tokenizer(text)) for text in TEXTS]
    spreads = layer_spreads(model, rows, tokenizer, batch_size=3)
    with torch.inference_mode():
        states = [model.eval()(**tokenizer(text, return_tensors="pt"), output_hidden_states=True) for text in TEXTS]
    for layer in range(3):
        read = torch.stack([state.hidden_states[layer][0, 0] for state in states]).double()
        assert spreads[layer] == pytest.approx(read.var(dim=0, correction=0).mean().sqrt().item(), rel=1e-4, abs=1e-7)
    assert spreads[0] < 1e-6 < spreads[1]


TEXTS = ("fine film", "a dull story", "great warm clever music", "plot")


# Lengths and arms ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rows"),
    [
        ({"num_train_epochs": 2}, 48),
        ({"num_train_epochs": 1.5, "gradient_accumulation_steps": 2}, 41),
        ({"num_train_epochs": 1, "dataloader_drop_last": True}, 47),
        ({"max_steps": 5}, 48),
    ],
)
def test_steps_are_counted_as_trainer_counts_them(
    recipe_file: Path, tmp_path: Path, settings: dict[str, Any], rows: int
) -> None:
    overrides = [f"train.{name}={json.dumps(value)}" for name, value in settings.items()]
    recipe = load_recipe(str(recipe_file), [*overrides, f"data.rows.train={rows}"])
    run = Run(recipe, "erm", 0, tmp_path)
    data, tokenizer = experiment.load_data(recipe, tmp_path, False)
    train_run(run, data, tokenizer, progress=False)
    counted = recipe_steps(training_config(run, progress=False), len(data.train))
    assert counted == json.loads(run.record.read_text())["steps"]


def test_the_proposal_goes_to_the_first_descent_arm_or_to_a_new_one(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(recipe_file), TRAIN)
    two = recipe.model_copy(update={"arms": {"erm": {"objective": "erm"}, "b": {}, "a": {"objective": "descent"}}})
    assert descent_arm(two) == "b"  # descent is the default objective
    none = load_recipe(str(recipe_file), [*TRAIN, "arms={erm: {objective: erm}}"])
    assert descent_arm(none) is None
    results = suggest_recipe(none, tmp_path, steps=STEPS, check=False, progress=False)
    arms = load_recipe(tmp_path / "suggested.yaml").arms
    assert arms == {"erm": {"objective": "erm"}, "descent": {"objective": "descent", **results["proposal"]}}
    assert results["cost"] is None
    assert "not measured (--no-check)" in suggestion_text(results)


def test_a_grid_makes_way_for_the_proposal(recipe_file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(str(recipe_file), [*TRAIN, "arms.descent.grid=[0, 2]"])
    suggest_recipe(recipe, tmp_path, steps=STEPS, progress=False)
    arm = load_recipe(tmp_path / "suggested.yaml").arms["descent"]
    assert "grid" not in arm
    assert arm["first_layer"] >= 1


def test_regression_is_priced_in_rmse(tmp_path: Path) -> None:
    file = write_recipe(tmp_path)
    encoder = BertForSequenceClassification.from_pretrained(tmp_path / "checkpoint").bert
    encoder.save_pretrained(tmp_path / "checkpoint")  # its own head has two outputs
    recipe = load_recipe(str(file), [*TRAIN, "data.task=regression", "metric=rmse"])
    results = suggest_recipe(recipe, tmp_path / "runs", steps=STEPS, progress=False)
    cost = results["cost"]
    assert cost["value"] == pytest.approx(math.sqrt(results["checks"][-1]["layer_losses"][-1]))
    assert cost["price"] == pytest.approx(cost["value"] / cost["value_without"] - 1)
    assert "rmse after 18 steps" in suggestion_text(results)


# What goes wrong -----------------------------------------------------------------------------------------------------


def test_stuck_constraints_are_revised_a_bounded_number_of_times(
    suggested: tuple[dict[str, Any], Path], recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot, "judge", lambda *args: ("stuck",) * len(judge(*args)))
    results = suggest_recipe(load_recipe(str(recipe_file), TRAIN), tmp_path, steps=STEPS, progress=False)
    alphas = [check["settings"]["alpha"] for check in results["checks"]]
    assert len(alphas) == 3
    assert alphas[0] > 1.9 * alphas[1] > 3.6 * alphas[2]
    assert results["proposal"] == results["checks"][-1]["settings"]
    assert ["alpha is halved" in change["text"] for change in results["changes"]] == [True, True]
    assert f"changed by the check:\n* alpha: {results['changes'][0]['text']} [C]" in suggestion_text(results)
    assert f"# alpha: {results['changes'][1]['text']} [C]" in (tmp_path / "suggested.yaml").read_text()
    assert "stuck, with multipliers that only grow" in suggestion_text(results)
    assert load_recipe(tmp_path / "suggested.yaml").arms["descent"]["alpha"] == alphas[-1]


def test_a_check_that_diverges_halves_alpha_and_is_not_tried_again(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def diverges(run: Run, *args: Any, **kwargs: Any) -> None:
        trained.append(run.name)
        if len(trained) == 2:
            raise NonFiniteLossError("the loss of layer 2 is nan")
        train_run(run, *args, **kwargs)

    monkeypatch.setattr(pilot, "train_run", diverges)
    recipe = load_recipe(str(recipe_file), TRAIN)
    for _ in range(2):
        results = suggest_recipe(recipe, tmp_path, steps=STEPS, progress=False)
        assert results["checks"][0]["failed"] == "the loss of layer 2 is nan"
        assert "stopped being a number" in results["changes"][0]["text"]
        assert results["cost"]
    assert len(trained) == len(set(trained)) == 1 + len(results["checks"])


def test_a_pilot_that_learnt_nothing_asks_for_more_steps(recipe_file: Path, tmp_path: Path) -> None:
    slow = ["train.learning_rate=1e-9", "train.num_train_epochs=5"]
    with pytest.raises(RunError, match=r"too little to tell .* after 2 steps: run it again with --steps 8 \(numbers"):
        suggest_recipe(load_recipe(str(recipe_file), slow), tmp_path, steps=2, progress=False)
    stored = json.loads((tmp_path / "suggestion.json").read_text())
    assert stored["proposal"] is None
    assert len(stored["pilot"]["layer_losses"]) == 3
    assert not (tmp_path / "suggested.yaml").exists()
    with pytest.raises(RunError, match="as long as the recipe's own training"):
        suggest_recipe(load_recipe(str(recipe_file), slow), tmp_path, steps=30, progress=False)


def test_a_folder_of_another_recipe_is_refused(suggested: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    with pytest.raises(InputError, match="holds runs of recipe tiny with other settings"):
        suggest_recipe(load_recipe(str(recipe_file)), suggested[1], steps=STEPS, progress=False)


def test_the_command_line(suggested: tuple[dict[str, Any], Path], recipe_file: Path) -> None:
    sets = [word for each in TRAIN for word in ("--set", each)]
    line = [str(recipe_file), *sets, "--steps", str(STEPS), "--folder", str(suggested[1]), "--quiet"]
    result = CliRunner().invoke(app, ["suggest", *line])
    assert result.exit_code == 0, result.output
    for setting, value in suggested[0]["proposal"].items():
        assert f"  {setting:<12} {plain(value)}" in result.output
    assert "layer  loss, pilot" in result.output
    assert f"recipe:  {suggested[1] / 'suggested.yaml'}" in result.output
    assert json.loads((suggested[1] / "suggestion.json").read_text())["command"].startswith("layerdescent suggest ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["dmo"], 2, "demo"),
        (["demo", "--steps", "0"], 2, "steps"),
        (["demo", "--set", "arms.descent.alpha=2"], 2, "alpha"),
        (["demo", "--set", "train.learning_rat=1"], 2, "learning_rate"),
    ],
)
def test_wrong_input_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["suggest", *arguments])
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert not list(tmp_path.iterdir())


def test_no_steps_are_refused(recipe_file: Path, tmp_path: Path) -> None:
    recipe: Recipe = load_recipe(str(recipe_file))
    with pytest.raises(InputError, match="steps is 0"):
        suggest_recipe(recipe, tmp_path, steps=0)
