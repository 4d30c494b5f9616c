"""What an evaluation adds, what it does not gather, and which checkpoint is kept."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import EvalPrediction

from layerdescent.readout import Readout
from layerdescent.training import DescentTrainer, descent_history
from layerdescent.training.records import evaluation_entries
from tests.training.tiny import bert, make_trainer, pad, plain_trainer, rows, same, weights


@pytest.mark.parametrize("objective", ["descent", "erm"])
def test_layer_losses_are_means_over_the_evaluation_set(tmp_path: Path, objective: str) -> None:
    """20 rows in batches of 8: the last one is smaller."""
    trainer = make_trainer(tmp_path, objective=objective)
    metrics = trainer.evaluate()
    model = trainer.model.eval()  # type: ignore[union-attr]
    batch = pad(rows(20, seed=1))
    with torch.no_grad():
        expected = Readout.for_model(model).layer_losses(
            model(**batch, output_hidden_states=True), batch["labels"], batch
        )
    assert [metrics[f"eval_layer_loss/{layer}"] for layer in range(4)] == pytest.approx(expected.tolist(), rel=1e-5)
    c = (expected[1:] - 0.95 * expected[:-1]).tolist()
    assert [metrics[f"eval_violation/{layer}"] for layer in (1, 2, 3)] == pytest.approx(c, rel=1e-4)
    assert trainer.state.log_history[-1]["eval_layer_loss/0"] == metrics["eval_layer_loss/0"]


def test_evaluating_layers_changes_nothing_in_training(tmp_path: Path) -> None:
    """Beyond what transformers' own evaluation does: it draws a number for its data loader."""
    settings = {"eval_strategy": "steps", "eval_steps": 1}
    plain = plain_trainer(tmp_path / "a", bert(), **settings)
    plain.train()
    watched = make_trainer(tmp_path / "b", objective="erm", **settings)
    watched.train()
    assert same(weights(plain.model), weights(watched.model))  # type: ignore[arg-type]
    assert len(descent_history(watched.state.log_history, "eval_")) == 4


def test_hidden_states_are_not_gathered(tmp_path: Path) -> None:
    """`compute_metrics` sees the logits, as under plain Trainer, and nothing else."""
    seen: list[Any] = []

    def metrics(prediction: EvalPrediction) -> dict[str, float]:
        seen.append(prediction.predictions)
        return {"mean": float(np.mean(prediction.predictions))}

    given = {"compute_metrics": metrics}
    ours = make_trainer(tmp_path / "a", given=given).evaluate()
    theirs = plain_trainer(tmp_path / "b", bert(), given=given).evaluate()
    assert seen[0].shape == (20, 3)
    np.testing.assert_array_equal(seen[0], seen[1])
    assert ours["eval_loss"] == theirs["eval_loss"]
    predictions = make_trainer(tmp_path / "a").predict(rows(20, seed=1))  # type: ignore[arg-type]
    assert np.shape(predictions.predictions) == (20, 3)
    assert predictions.metrics is not None
    assert "test_layer_loss/3" in predictions.metrics


def test_a_model_that_is_asked_for_hidden_states_still_returns_them(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, bert(output_hidden_states=True))
    loss, outputs = trainer.compute_loss(trainer.model, pad(rows(4)), return_outputs=True)  # type: ignore[arg-type]
    assert len(outputs.hidden_states) == 4
    trainer = make_trainer(tmp_path)
    loss, outputs = trainer.compute_loss(trainer.model.eval(), pad(rows(4)), return_outputs=True)  # type: ignore[union-attr]
    assert outputs.hidden_states is None
    assert loss == outputs.loss


def test_several_evaluation_sets(tmp_path: Path) -> None:
    sets = {"a": rows(8, seed=2), "b": rows(9, seed=3)}
    metrics = make_trainer(tmp_path, given={"eval_dataset": sets}).evaluate()
    assert metrics["eval_a_layer_loss/2"] != metrics["eval_b_layer_loss/2"]
    assert {"eval_a_descent_score", "eval_b_feasible"} <= metrics.keys()


class Scripted(DescentTrainer):
    """Evaluates to what the script says, so that the choice of the checkpoint alone is tested."""

    script: tuple[tuple[float, ...], ...] = ()

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        output = super().evaluation_loop(*args, **kwargs)
        losses = torch.tensor(self.script[self.state.global_step - 1])
        assert output.metrics is not None
        output.metrics.update(evaluation_entries(losses, self.constraints, "eval_"))
        return output


FEASIBLE_A, FEASIBLE_B = (1.0, 0.9, 0.8, 0.7), (1.0, 0.8, 0.7, 0.6)
BETTER_BUT_INFEASIBLE, WORSE_INFEASIBLE = (1.0, 0.8, 0.8, 0.5), (1.0, 0.8, 1.6, 0.5)


@pytest.mark.parametrize(
    ("script", "best", "feasible"),
    [
        ((FEASIBLE_A, BETTER_BUT_INFEASIBLE, FEASIBLE_B, WORSE_INFEASIBLE), 3, True),
        ((BETTER_BUT_INFEASIBLE, FEASIBLE_A, BETTER_BUT_INFEASIBLE, WORSE_INFEASIBLE), 2, True),
        ((WORSE_INFEASIBLE, BETTER_BUT_INFEASIBLE, WORSE_INFEASIBLE, WORSE_INFEASIBLE), 2, False),
    ],
)
def test_the_best_feasible_checkpoint_is_kept(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    script: tuple[tuple[float, ...], ...],
    best: int,
    feasible: bool,
) -> None:
    monkeypatch.setattr(Scripted, "script", script)
    settings = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 1, "save_steps": 1}
    trainer = make_trainer(
        tmp_path, cls=Scripted, dual_lr=1.0, load_best_model_at_end=True, save_total_limit=1, **settings
    )
    with caplog.at_level(logging.WARNING, logger="layerdescent"):
        trainer.train()
    kept = Path(str(trainer.state.best_model_checkpoint))
    assert kept == tmp_path / f"checkpoint-{best}"
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == [kept.name]
    saved = bert()
    saved.load_state_dict(load_file(kept / "model.safetensors"))
    assert same(weights(saved), weights(trainer.model))  # type: ignore[arg-type]
    said = [record.getMessage() for record in caplog.records if "feasible" in record.getMessage()]
    assert (said == []) == feasible
    trainer.save_model(str(tmp_path / "final"))
    card = (tmp_path / "final" / "README.md").read_text()
    assert f"at step {best} on validation data" in card
    assert f"| 3 | {script[best - 1][3]:.4f} |" in card
    assert ("every constraint is met" in card) == feasible
    assert ("**not feasible**" in card) != feasible


def test_the_history_survives_in_the_checkpoint(tmp_path: Path) -> None:
    settings = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 2}
    trainer = make_trainer(tmp_path, dual_lr=1.0, resilience=5.0, **settings)
    trainer.train()
    stored = json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    assert descent_history(stored) == trainer.descent_history
    assert [record["step"] for record in trainer.descent_history] == [1, 2, 3, 4]
    last = trainer.descent_history[-1]
    assert last["slacks"] == pytest.approx([value / 5 for value in last["multipliers"]])
    assert len(last["weights"]) == len(last["layer_losses"]) == 4
    assert [record["step"] for record in descent_history(stored, "eval_")] == [2, 4]
