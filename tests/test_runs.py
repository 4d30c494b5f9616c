"""One run of a recipe: its name, its lock, and the metric that is logged at every evaluation."""

from pathlib import Path

import numpy as np
import pytest
from transformers import EvalPrediction

from layerdescent.recipes import load_recipe
from layerdescent.runs import Run, _metric, late_fall

LOGITS = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, -1.0], [0.5, 0.6]], dtype=np.float32)


def run_with(**overrides: object) -> Run:
    return Run(load_recipe("demo"), "descent", 3, Path("folder"), tuple(overrides.items()))


def test_accuracy_is_the_share_of_right_classes() -> None:
    of_outputs = _metric("accuracy", "classification")
    assert of_outputs(EvalPrediction(LOGITS, np.array([0, 1, 1, 1]))) == {"accuracy": 0.75}
    # Models that return more than logits give them first.
    assert of_outputs(EvalPrediction((LOGITS,), np.array([0, 0, 1, 1]))) == {"accuracy": 0.5}


def test_of_several_labels_all_must_be_right() -> None:
    labels = np.array([[1, 1], [0, 1], [1, 0], [1, 0]], dtype=np.float32)
    assert _metric("accuracy", "multi-label")(EvalPrediction(LOGITS, labels)) == {"accuracy": 0.75}


def test_rmse_is_the_root_of_the_mean_square() -> None:
    predictions, labels = np.array([[1.0], [2.0], [4.0]]), np.array([1.0, 0.0, 0.0])
    found = _metric("rmse", "regression")(EvalPrediction(predictions, labels))
    assert found == {"rmse": pytest.approx((20 / 3) ** 0.5)}


def test_a_run_is_named_by_what_is_changed() -> None:
    assert run_with().name == "descent-seed3"
    assert run_with(alpha=0.1, resilience=None).name == "descent@alpha=0.1@resilience=none-seed3"
    assert run_with(learning_rate=5e-5).folder == Path("folder/runs/descent@learning_rate=5e-05-seed3")


def test_long_and_odd_values_become_short_names_of_their_own() -> None:
    odd = [[0.1] * 24, [0.1] * 23 + [0.2], {"kind": "linear", "first": 0.0, "last": 0.1}, "a/b", "../x"]
    names = [run_with(alpha=value).name for value in odd]
    assert len(set(names)) == len(odd)
    assert all(len(name) < 60 and "/" not in name for name in names)
    assert run_with(alpha=[0.1] * 24).name == names[0]


@pytest.mark.parametrize(
    ("steps", "losses", "fall"),
    [
        ([50, 100], [0.5, 0.25], 1 - 0.25 / 0.35),  # 0.35 at step 80, on the line between
        ([20, 80, 100], [0.9, 0.4, 0.4], 0.0),
        ([80, 100], [0.4, 0.5], -0.25),
        ([90, 100], [0.4, 0.3], None),
        ([100], [0.4], None),
        ([], [], None),
    ],
)
def test_late_fall(steps: list[float], losses: list[float], fall: float | None) -> None:
    assert late_fall({"step": steps, "loss": losses}) == (fall if fall is None else pytest.approx(fall))
