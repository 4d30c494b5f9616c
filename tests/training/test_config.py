"""DescentConfig: what it takes, what it refuses, and how it travels."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from transformers import HfArgumentParser, TrainingArguments

from layerdescent.errors import InputError
from layerdescent.training import DescentArguments, DescentConfig
from tests.training.tiny import make_trainer


def config(**settings: Any) -> DescentConfig:
    given: dict[str, Any] = {"output_dir": "run", "use_cpu": True}
    return DescentConfig(**(given | settings))


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("objective", "erm2", "descent, erm, deep-supervision, noise"),
        ("alpha", 1.0, r"\[0, 1\)"),
        ("alpha", -0.1, r"\[0, 1\)"),
        ("alpha", "a lot", "a number, a list of numbers or a schedule"),
        ("alpha", None, "a number"),
        ("alpha", {"kind": "square"}, "linear, cosine, reach"),
        ("form", "sum", "difference, ratio, cumulative"),
        ("first_layer", 0, "at least 1"),
        ("grid", [3], "at least two"),
        ("grid", [0, 3, 2], "ascend"),
        ("grid", [-1, 3], "from 0"),
        ("dual_lr", -1.0, "at least 0"),
        ("dual_lr", float("nan"), "at least 0"),
        ("resilience", 0.05, r"above dual_lr \(0.1\)"),
        ("dual_warmup_steps", -1, "at least 0"),
        ("dual_every", 0, "at least 1, or 'epoch'"),
        ("dual_every", "week", "at least 1, or 'epoch'"),
        ("violation_cap", 0.0, "above 0"),
        ("multiplier_max", -2.0, "above 0"),
        ("reference", "last", "previous, initial"),
        ("feasibility_tolerance", -0.1, "at least 0"),
        ("layer_weights", [1.0, 2.0], "deep-supervision"),
        ("noise_gamma", -0.5, "at least 0"),
        ("noise_level", "half", "fixed, uniform"),
        ("constraint_gamma", 0.0, r"above input_gamma \(0\)"),
    ],
)
def test_an_error_names_the_field_and_what_is_allowed(name: str, value: object, allowed: str) -> None:
    with pytest.raises(InputError, match=f"(?s){name}.*{allowed}"):
        config(**{name: value})


def test_without_constraints_there_is_nothing_to_measure_under_noise() -> None:
    with pytest.raises(InputError, match=r"constraint_gamma is 1 with objective 'erm', which has no constraints"):
        config(objective="erm", constraint_gamma=1.0)


def test_grid_and_first_layer_exclude_each_other() -> None:
    with pytest.raises(InputError, match=r"first_layer is 2 and grid is \[0, 4\]"):
        config(first_layer=2, grid=[0, 4])


def test_deep_supervision_weights_must_mean_something() -> None:
    with pytest.raises(InputError, match="layer_weights"):
        config(objective="deep-supervision", layer_weights=[0.0, 0.0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": [0.1, 0.1]}, "alpha has 2 values for 3 layers"),
        ({"first_layer": 4}, "first_layer is 4"),
        ({"grid": [0, 2]}, "end at 3"),
        ({"grid": [0, 2, 5]}, "within 0 to 3"),
        ({"objective": "deep-supervision", "layer_weights": [1.0]}, "layer_weights has 1 values"),
    ],
)
def test_the_trainer_names_what_does_not_fit_the_model(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_trainer(tmp_path, **settings)


def test_every_field_has_help() -> None:
    assert all(len(field.metadata["help"]) > 20 for field in fields(DescentArguments))


def test_a_command_line_gives_every_kind_of_value() -> None:
    parser = HfArgumentParser(DescentConfig)  # type: ignore[arg-type]
    line = (
        "--output_dir run --use_cpu --alpha 0.1 --form cumulative --grid 0 2 6 --dual_lr 0.5 --resilience 2 "
        "--dual_every epoch --clip_weights --detach_initial false --reference initial --violation_cap 3"
    )
    (parsed,) = parser.parse_args_into_dataclasses(line.split(), look_for_args_file=False)
    assert (parsed.alpha, parsed.form, parsed.grid) == (0.1, "cumulative", [0, 2, 6])
    assert (parsed.dual_lr, parsed.resilience, parsed.dual_every) == (0.5, 2.0, "epoch")
    assert (parsed.clip_weights, parsed.detach_initial, parsed.violation_cap) == (True, False, 3.0)


@pytest.mark.parametrize(
    ("text", "alpha"),
    [
        ("0.2", 0.2),
        ("[0.0, 0.1]", [0.0, 0.1]),
        ('{"kind": "linear", "first": 0.0, "last": 0.1}', {"kind": "linear", "first": 0.0, "last": 0.1}),
    ],
)
def test_alpha_may_be_json(text: str, alpha: object) -> None:
    parser = HfArgumentParser(DescentConfig)  # type: ignore[arg-type]
    (parsed,) = parser.parse_args_into_dataclasses(["--use_cpu", "--alpha", text], look_for_args_file=False)
    assert parsed.alpha == alpha


def test_nothing_is_lost_on_the_way_through_json(tmp_path: Path) -> None:
    before = config(alpha={"kind": "cosine", "first": 0.0, "last": 0.2}, dual_every="epoch", resilience=3.0)
    path = tmp_path / "config.json"
    path.write_text(before.to_json_string())
    (after,) = HfArgumentParser(DescentConfig).parse_json_file(str(path))  # type: ignore[arg-type]
    assert after.to_dict() == before.to_dict()
    assert json.loads(path.read_text())["alpha"]["kind"] == "cosine"


def test_under_constraints_the_best_checkpoint_is_the_best_feasible_one() -> None:
    strategy: dict[str, Any] = {
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 500,
    }
    assert config(**strategy).metric_for_best_model == "descent_score"
    assert config(**strategy).greater_is_better is False
    assert config(**strategy, objective="erm").metric_for_best_model == "loss"
    own = config(**strategy, metric_for_best_model="accuracy")
    assert (own.metric_for_best_model, own.greater_is_better) == ("accuracy", True)
    named = config(**strategy, objective="erm", metric_for_best_model="eval_descent_score")
    assert named.greater_is_better is False


def test_the_fields_mix_into_other_configurations() -> None:
    @dataclass
    class Other(TrainingArguments):
        extra: int = 3

        def __post_init__(self) -> None:
            super().__post_init__()
            self.extra += 1

    @dataclass
    class Mixed(DescentArguments, Other):
        pass

    mixed = Mixed(output_dir="run", use_cpu=True, alpha="0.3", extra=5)
    assert (mixed.alpha, mixed.extra) == (0.3, 6)
    with pytest.raises(InputError, match="dual_lr"):
        Mixed(output_dir="run", use_cpu=True, dual_lr=-1)


def test_a_plain_configuration_is_refused(tmp_path: Path) -> None:
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    with pytest.raises(InputError, match="args is a TrainingArguments: give DescentTrainer a DescentConfig"):
        make_trainer(tmp_path, given={"args": arguments})
