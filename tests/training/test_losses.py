"""Label smoothing and a loss function of the user's act on every layer alike, and leave plain training as it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers.modeling_outputs import SequenceClassifierOutput

from layerdescent.readout import Readout
from layerdescent.training.losses import count_items
from tests.training.tiny import bert, make_trainer, pad, plain_trainer, rows, same, weights

CLASS_WEIGHTS = torch.tensor([1.0, 5.0, 0.2])


def weighted_mean(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    """Class weights, as most people write them: a mean that ignores the count."""
    return functional.cross_entropy(outputs.logits, labels, weight=CLASS_WEIGHTS)


def weighted_sum(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
    """Class weights, as transformers asks for them: a sum over the count of the whole batch."""
    assert num_items_in_batch is not None
    return (
        functional.cross_entropy(outputs["logits"], labels, weight=CLASS_WEIGHTS, reduction="sum") / num_items_in_batch
    )


def layer_logits(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Logits of every layer of the tiny BERT on the first eight rows, without dropout, and the labels."""
    model = bert(dropout=0.0, seed=seed).eval()
    batch = pad(rows(8))
    with torch.no_grad():
        outputs = model(**batch, output_hidden_states=True)
        return Readout.for_model(model).logits(outputs.hidden_states, batch), batch["labels"]


@pytest.mark.parametrize("function", [weighted_mean, weighted_sum])
def test_a_loss_function_acts_on_every_layer(tmp_path: Path, function: Callable[..., Tensor]) -> None:
    trainer = make_trainer(tmp_path, bert(dropout=0.0), rows(8), max_steps=1, given={"compute_loss_func": function})
    trainer.train()
    logits, labels = layer_logits()
    outputs = [SequenceClassifierOutput(logits=layer) for layer in logits]
    expected = [function(output, labels, torch.tensor(8)).item() for output in outputs]
    assert trainer.descent_history[0]["layer_losses"] == pytest.approx(expected, rel=1e-5)


def test_label_smoothing_acts_on_every_layer(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, bert(dropout=0.0), rows(8), max_steps=1, label_smoothing_factor=0.2)
    trainer.train()
    logits, labels = layer_logits()
    expected = [functional.cross_entropy(layer, labels, label_smoothing=0.2).item() for layer in logits]
    assert trainer.descent_history[0]["layer_losses"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ({"compute_loss_func": weighted_mean}, {}),
        ({"compute_loss_func": weighted_sum}, {}),
        ({}, {"label_smoothing_factor": 0.2}),
    ],
    ids=["mean", "sum", "smoothing"],
)
def test_erm_stays_plain_training(tmp_path: Path, given: dict[str, Any], settings: dict[str, Any]) -> None:
    plain = plain_trainer(tmp_path / "plain", bert(), given=given, **settings)
    plain.train()
    for objective in ("erm", "descent"):
        ours = make_trainer(tmp_path / objective, given=given, objective=objective, dual_lr=0.0, **settings)
        ours.train()
        assert same(weights(ours.model), weights(plain.model))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{"problem_type": "regression", "num_labels": 1}, {"problem_type": "multi_label_classification"}],
    ids=str,
)
def test_other_heads(tmp_path: Path, settings: dict[str, Any]) -> None:
    data = rows(8)
    for row in data:
        row["labels"] = (
            [float(row["labels"] == k) for k in range(3)] if "num_labels" not in settings else row["labels"] / 2
        )
    trainer = make_trainer(tmp_path, bert(dropout=0.0, **settings), data, max_steps=1)
    trainer.train()
    model = bert(dropout=0.0, **settings)
    batch = pad(data)
    outputs = model(**batch, output_hidden_states=True)
    expected = Readout.for_model(model).layer_losses(outputs, batch["labels"], batch)
    assert trainer.descent_history[0]["layer_losses"] == pytest.approx(expected.tolist(), rel=1e-5)
    assert trainer.descent_history[0]["layer_losses"][-1] == pytest.approx(outputs.loss.item(), rel=1e-5)


def test_labels_are_counted_as_transformers_counts_them() -> None:
    labels = torch.tensor([[7, 8, 9], [7, -100, 9]])
    assert count_items({"labels": labels}, shifts_labels=False) == 5
    assert count_items({"labels": labels}, shifts_labels=True) == 3
    assert count_items({"labels": labels, "shift_labels": labels[:, :2]}, shifts_labels=True) == 3
