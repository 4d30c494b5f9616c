"""Recipes of instructions: trained, stopped and resumed, compared and shown, with adapters, from the command line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback
from typer.testing import CliRunner

from layerdescent.cli import app
from layerdescent.data import resolve_model
from layerdescent.data.builtin import instructions
from layerdescent.data.sources import open_source
from layerdescent.errors import InputError
from layerdescent.experiment import compare_recipe, train_recipe
from layerdescent.recipes import InstructionsRecipe, load_recipe
from layerdescent.report import write_report
from layerdescent.tables import comparison_table
from layerdescent.tasks import task_of

# peft asks for a name that transformers 5.24 calls deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

SMALL = [
    "data.rows={train: 32, validation: 8, test: 10}",
    "data.max_length=140",
    "train.max_steps=4",
    "train.eval_steps=2",
    "train.per_device_train_batch_size=4",
    "train.use_cpu=true",
    "train.logging_steps=1",
    "evaluation.noise=[{kind: gaussian, gammas: [1]}, {kind: discrete, shares: [0.25]}]",
]
LORA = [*SMALL, "model.lora={r: 2, alpha: 4, targets: [q_proj, down_proj]}"]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("lora")
    recipe = load_recipe("stories260k-tiny", [*LORA, "frontier={checkpoints: 2}"])
    return compare_recipe(recipe, folder, progress=False), folder


def test_what_is_built_in() -> None:
    table = instructions()
    asked = table.columns["instruction"]
    assert len(asked) == len(set(asked)) >= 280
    assert len(asked) == len(table.columns["output"])
    assert list(open_source("builtin:instructions")) == ["all"]
    folder = Path(resolve_model("builtin:tiny-llama"))
    first = load_file(folder / "model.safetensors")
    assert resolve_model("builtin:tiny-llama") == str(folder)
    assert first["model.embed_tokens.weight"].shape == (384, 64)


def test_results_of_language_models(compared: tuple[dict[str, Any], Path]) -> None:
    results, _ = compared
    assert results["metric"] == "perplexity"
    assert results["data"]["response_tokens"]["test"] > 10
    for run in results["runs"]:
        clean, noisy, discrete = run["noise"]
        assert clean["loss"] == pytest.approx(run["layer_losses"]["test"][-1], rel=1e-5)
        assert noisy["temperature"] > 0
        assert discrete["share"] == 0.25
        assert run["validation"]["perplexity"] == pytest.approx(
            2.718281828 ** run["validation"]["layer_losses"][-1], rel=1e-4
        )
        # The grid leaves layer 0 out while training; the test profile has it.
        assert run["layer_losses"]["validation"][0] is None
        assert run["layer_losses"]["test"][0] > 0
        assert len(run["calibrated_losses"]["test"]) == 5
    assert {row["name"] for row in results["trivial"]} == {"equal chances", "unigram model"}
    assert all("nats" in row and "calibrated" in row for row in results["paired"])
    assert {point["kind"] for point in results["frontier"]} == {"gaussian", "discrete"}
    erm, descent = results["runs"]
    assert erm["layer_losses"]["test"] != descent["layer_losses"]["test"]


def test_adapters_are_saved_as_adapters(compared: tuple[dict[str, Any], Path]) -> None:
    _, folder = compared
    model = folder / "runs" / "descent-seed0" / "model"
    names = {path.name for path in model.iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not {"model.safetensors", "training_args.bin"} & names
    assert json.loads((model / "adapter_config.json").read_text())["r"] == 2


def test_the_page_and_the_table_of_a_language_model(compared: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    results, _ = compared
    page = write_report(results, tmp_path).read_text(encoding="utf-8")
    for words in ("perplexity", "unigram model", "after one temperature", "nats"):
        assert words in page, words
    assert "perplexity, no noise" in comparison_table(results)


def test_from_the_command_line(compared: tuple[dict[str, Any], Path], tmp_path: Path) -> None:
    _, folder = compared
    erm, descent = (str(folder / "runs" / f"{arm}-seed0" / "model") for arm in ("erm", "descent"))
    alpaca = tmp_path / "alpaca.json"
    alpaca.write_text(
        json.dumps(
            [{"instruction": f"Repeat green {n} times.", "input": "", "output": "green " * n} for n in (2, 3, 4)]
        )
    )

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, "-q"])
        assert done.exit_code == 0, done.output
        return done.output

    told = run("profile", descent, "--data", "recipe:stories260k-tiny", "--alpha", "0.1", "--first-layer", "2")
    assert "texts" in told
    swept = run("sweep", erm, descent, "--data", str(alpaca), "--gamma", "1", "--out", str(tmp_path / "sweep.json"))
    assert "perplexity" in swept
    assert json.loads((tmp_path / "sweep.json").read_text())["n_units"] == 3
    refused = CliRunner().invoke(app, ["profile", descent, "--data", "recipe:demo"])
    assert refused.exit_code == 2
    assert "language models are measured on instructions" in refused.output


def test_a_stopped_training_goes_on_and_ends_with_the_same_adapters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = load_recipe("stories260k-tiny", [*LORA, "train.token_share=0.5"])
    straight = train_recipe(recipe, "descent", 0, tmp_path / "straight", progress=False)

    class Stop(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("layerdescent.runs._StepTimer.on_step_begin", Stop.on_step_begin)
        with pytest.raises(KeyboardInterrupt):
            train_recipe(recipe, "descent", 0, tmp_path / "stopped", progress=False)
    resumed = train_recipe(recipe, "descent", 0, tmp_path / "stopped", progress=False)
    record = json.loads((tmp_path / "stopped" / "runs" / "descent-seed0" / "run.json").read_text())
    assert record["resumed_from"] == "checkpoint-2"
    expected, found = (load_file(folder / "adapter_model.safetensors") for folder in (straight, resumed))
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.lora={r: 2, targets: [nowhere]}", r"model\.lora\.targets is \['nowhere'\]"),
        ("data.max_length=4000", "4,?000"),
        ("model.source=no/such-model-here", "no model at"),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(override: str, message: str, tmp_path: Path) -> None:
    recipe = load_recipe("stories260k-tiny", [*SMALL, override])
    with pytest.raises(InputError, match=message) as caught:
        train_recipe(recipe, "erm", 0, tmp_path, progress=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("metric=accuracy", r"metric accuracy does not fit data\.task next-token"),
        ("evaluation.shift.x.source=y", r"evaluation\.shift is for texts with labels"),
        ("model.pooling=mean", r"model\.pooling: no such field"),
        ("data.kind=instruction", "say video or instructions"),
        ("data.splits={train: a, test: a}", "one part of the source twice"),
    ],
)
def test_fields_that_a_recipe_of_instructions_does_not_have(override: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_recipe("stories260k-tiny", [override])


@pytest.mark.parametrize("name", ["llama31-8b-lora", "llama31-8b-full", "smollm2-instruct"])
def test_recipes_of_language_models_have_a_task(name: str) -> None:
    recipe = load_recipe(name)
    assert isinstance(recipe, InstructionsRecipe)
    assert task_of(recipe).base is None
    assert (recipe.model.lora is None) == (name == "llama31-8b-full")


@pytest.mark.shared
def test_a_small_model_that_you_have(shared_data: Path, tmp_path: Path) -> None:
    source = f"model.source={shared_data / 'models' / 'stories260k'}"
    recipe = load_recipe("stories260k-tiny", [*SMALL, source, "data.max_length=256", "train.grid=[2, 3, 4, 5]"])
    train_recipe(recipe, "descent", 0, tmp_path, progress=False)
    record = json.loads((tmp_path / "runs" / "descent-seed0" / "run.json").read_text())
    assert record["validation"]["perplexity"] > 1
