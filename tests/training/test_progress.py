"""The live line, and the one explanation."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from layerdescent.descent import DescentConstraints
from layerdescent.training.progress import GrowthWatch, brief, explain_growth
from tests.training.tiny import make_trainer


def test_a_live_line_is_short_and_shows_what_matters(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make_trainer(tmp_path, dual_lr=1.0, disable_tqdm=False).train()
    shown = capfd.readouterr()
    text = shown.out + shown.err
    assert "layer_loss/0" not in text
    assert "lagrangian_weight" not in text
    assert "violation=" in text
    assert "multiplier=" in text


def test_without_a_progress_bar_the_printed_line_is_short_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer = make_trainer(tmp_path, dual_lr=1.0)
    trainer.train()
    lines = [line for line in capfd.readouterr().out.splitlines() if "'loss'" in line]
    assert len(lines) == 4
    assert all("max_violation" in line and "largest_multiplier" in line and "/" not in line for line in lines)
    # What is stored is complete.
    assert "layer_loss/0" in trainer.state.log_history[0]


def test_a_score_of_the_users_own_is_shown() -> None:
    assert brief({"eval_f1_score": 0.8, "eval_descent_score": 0.4}) == {"eval_f1_score": 0.8}


def test_trackers_get_every_value(tmp_path: Path) -> None:
    class Tracker(TrainerCallback):
        def __init__(self) -> None:
            self.seen: dict[str, Any] = {}

        def on_log(
            self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
        ) -> None:
            self.seen |= logs or {}

    tracker = Tracker()
    trainer = make_trainer(tmp_path, dual_lr=1.0, resilience=3.0, given={"callbacks": [tracker]})
    trainer.train()
    for name in (
        "layer_loss/0",
        "layer_loss/3",
        "violation/1",
        "multiplier/3",
        "slack/2",
        "lagrangian_weight/0",
        "final_layer_loss",
    ):
        assert isinstance(tracker.seen[name], float)


def test_brief_keeps_whole_words_only() -> None:
    assert brief({"eval_loss": 1.0, "eval_layer_loss/3": 2.0, "eval_descent_score": 1e6}) == {"eval_loss": 1.0}


CONSTRAINTS = DescentConstraints(num_layers=3, alpha=0.5)
FLAT = torch.tensor([1.0, 1.0, 1.0, 0.9])


def watch(path: Any, losses: torch.Tensor = FLAT) -> list[str]:
    watcher = GrowthWatch(CONSTRAINTS, window=50)
    said = [watcher.see(torch.tensor(path(step)), losses) for step in range(200)]
    return [text for text in said if text]


def test_growth_is_explained_once() -> None:
    (said,) = watch(lambda step: [0.01 * step, 0.0, 0.02 * step])
    assert "layers 1, 3 only grow" in said
    assert "alpha above" in said
    assert "may still fail" in said


def test_what_comes_back_is_not_growth() -> None:
    assert watch(lambda step: [0.0, float(step % 30), max(0.0, 1 - step / 100)]) == []


def test_noise_on_the_way_up_is_still_growth() -> None:
    assert len(watch(lambda step: [0.01 * step + 0.005 * (step % 2), 0.0, 0.0])) == 1


def test_a_layer_that_overshot_is_named() -> None:
    constraints = DescentConstraints(num_layers=3, alpha=0.2)
    said = explain_growth(constraints, [1], torch.tensor([0.0, 2.5, 0.0]), torch.tensor([1.0, 0.1, 0.5, 0.3]))
    assert said.startswith("the multiplier of layer 2 only grows (now 2.5): layer 1 is already so good")


def test_a_run_explains_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """alpha = 0.5 asks a random model for an eighth of its loss within 80 steps."""
    with caplog.at_level(logging.WARNING, logger="layerdescent"):
        make_trainer(tmp_path, alpha=0.5, dual_lr=0.5, max_steps=80, learning_rate=1e-5, logging_steps=40).train()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert "only grow" in said[0]
    assert "cannot be met" in said[0]
