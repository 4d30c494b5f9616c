"""Per-sample losses of heads, against torch's own reductions and against DeBERTa's own rules."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import BertConfig

from layerdescent.errors import InputError
from layerdescent.readout import Readout, head_counts, head_losses, mean_loss, problem_type


def head(**settings: Any) -> Any:
    return BertConfig(**settings)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(2, 4), st.data())
def test_every_leading_axis_is_a_model_of_its_own(layers: int, B: int, K: int, data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    logits = torch.randn(2, layers, B, K, generator=generator)
    classes = torch.randint(K, (B,), generator=generator)
    zeros_and_ones = torch.randint(2, (B, K), generator=generator).float()
    values = torch.randn(B, K, generator=generator)
    for labels, kind, own in (
        (classes, "single_label_classification", nn.CrossEntropyLoss()),
        (zeros_and_ones, "multi_label_classification", nn.BCEWithLogitsLoss()),
        (values, "regression", nn.MSELoss()),
    ):
        config = head(num_labels=K, problem_type=kind)
        losses = head_losses(config, logits, labels)
        assert losses.shape == (2, layers, B)
        means = mean_loss(losses, head_counts(config, labels))
        for i in range(2):
            for layer in range(layers):
                torch.testing.assert_close(means[i, layer], own(logits[i, layer], labels))


def test_one_value_is_never_broadcast_against_the_batch() -> None:
    config = head(num_labels=1)
    logits = torch.tensor([[1.0], [2.0], [4.0]])
    expected = torch.tensor([1.0, 4.0, 16.0])
    for labels in (torch.zeros(3), torch.zeros(3, 1)):
        torch.testing.assert_close(head_losses(config, logits, labels), expected)


def test_ignored_classes_cost_nothing_and_leave_the_mean() -> None:
    config = head(num_labels=2)
    labels = torch.tensor([0, -100])
    losses = head_losses(config, torch.tensor([[0.0, 1.0], [5.0, 0.0]]), labels)
    assert losses[1] == 0
    assert mean_loss(losses, head_counts(config, labels)) == losses[0]
    assert mean_loss(torch.zeros(3, 2), head_counts(config, torch.tensor([-100, -100]))).isnan().all()


def test_a_class_number_out_of_range_is_an_error() -> None:
    with pytest.raises(IndexError, match="out of bounds"):
        head_losses(head(num_labels=2), torch.zeros(1, 2), torch.tensor([-1]))


def test_low_precision_logits_lose_nothing_more() -> None:
    logits = torch.randn(64, 3).bfloat16()
    labels = torch.randint(3, (64,))
    losses = head_losses(head(num_labels=3), logits, labels)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses.mean(), nn.functional.cross_entropy(logits.float(), labels))


@pytest.mark.parametrize(
    ("num_labels", "labels", "kind"),
    [
        (1, torch.tensor([1]), "regression"),
        (3, torch.tensor([1]), "single_label_classification"),
        (3, torch.tensor([1], dtype=torch.int), "single_label_classification"),
        (3, torch.tensor([[1.0, 0.0, 1.0]]), "multi_label_classification"),
    ],
)
def test_the_kind_of_head_follows_from_labels_and_their_dtype(num_labels: int, labels: Any, kind: str) -> None:
    assert problem_type(head(num_labels=num_labels), labels) == kind


def test_an_unknown_kind_of_head_is_named() -> None:
    config = head(num_labels=2)
    config.problem_type = "ranking"
    with pytest.raises(InputError, match="'ranking'"):
        head_losses(config, torch.zeros(1, 2), torch.tensor([0]))


@torch.no_grad()
@pytest.mark.parametrize(
    "labels",
    [
        torch.tensor([0, -1, 2, -100]),  # every negative class is ignored
        torch.tensor([0.0, 1.0, 2.0, -1.0]),  # classes, although not whole numbers
        torch.tensor([[0.2, 0.3, 0.5]] * 4),  # a distribution
    ],
)
def test_deberta_keeps_its_own_rules(families: dict[str, Any], labels: torch.Tensor) -> None:
    family = families["deberta-v3"]
    model, batch = family.model(), family.batch()
    readout = Readout.for_model(model)
    outputs = model(**batch, **readout.needs_hidden_states)
    own = model(**batch, labels=labels).loss
    torch.testing.assert_close(readout.layer_losses(outputs, labels)[-1], own)
