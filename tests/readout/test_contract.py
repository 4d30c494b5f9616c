"""What a family must keep to stand in the table, whichever it is: what is read, in eval mode."""

from typing import Any

import pytest
import torch

from layerdescent.readout import READOUTS, Readout


def test_the_table_holds_the_families_tested_here_and_no_other(families: dict[str, Any]) -> None:
    assert set(READOUTS) == {family.architecture for family in families.values()}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_the_last_layer_reads_as_the_models_own_logits_bit_for_bit(family: Any, dtype: torch.dtype) -> None:
    model, batch = family.model().to(dtype), family.batch()
    batch |= {name: value.to(dtype) for name, value in batch.items() if value.is_floating_point()}
    readout = Readout.for_model(model)
    outputs = model(**batch, **readout.needs_hidden_states)
    read = readout.logits(outputs.hidden_states, batch, layers=[readout.num_layers])
    if family.decoder and not family.language_model:
        # These score every token and then pick one: another shape of the same product, which may round differently.
        tiny = 16 * torch.finfo(dtype).eps
        torch.testing.assert_close(read[0], outputs.logits, rtol=tiny, atol=tiny)
    else:
        assert torch.equal(read[0], outputs.logits)


@torch.no_grad()
def test_every_layer_reads_as_a_model_that_ends_there(family: Any) -> None:
    model, batch = family.model(), family.batch()
    readout = Readout.for_model(model)
    read = readout.logits(model(**batch, **readout.needs_hidden_states).hidden_states, batch)
    assert len(read) == readout.num_layers + 1
    for layer in family.cuts:
        torch.testing.assert_close(read[layer], family.cut(model, layer)(**batch).logits, rtol=1e-5, atol=1e-6)
    first_rows = read[:, 0].flatten(1).tolist()
    assert len({tuple(row) for row in first_rows}) == len(read), "layers must differ, or this shows nothing"


@torch.no_grad()
def test_one_stacked_call_equals_a_call_for_each_layer(family: Any) -> None:
    model, batch = family.model(), family.batch()
    readout = Readout.for_model(model)
    hidden_states = model(**batch, **readout.needs_hidden_states).hidden_states
    stacked = readout.logits(hidden_states, batch)
    for layer in range(readout.num_layers + 1):
        alone = readout.logits(hidden_states, batch, layers=[layer])[0]
        torch.testing.assert_close(stacked[layer], alone, rtol=1e-6, atol=1e-6)


HEADS: dict[str, tuple[dict[str, Any], torch.Tensor]] = {
    "classes": ({}, torch.tensor([0, 2, 1, 1])),
    "classes, some ignored": ({}, torch.tensor([0, -100, 1, -100])),
    "classes, said so": ({"problem_type": "single_label_classification"}, torch.tensor([[0], [2], [1], [1]])),
    "one value": ({"num_labels": 1}, torch.tensor([0.5, -1.0, 2.0, 0.0])),
    "whole numbers as values": (
        {"num_labels": 1, "problem_type": "regression"},
        torch.tensor([[1], [-2], [0], [3]]),
    ),
    "many values": ({"problem_type": "regression"}, torch.tensor([[0.5, -1.0, 2.0]] * 4)),
    "many labels": (
        {"problem_type": "multi_label_classification"},
        torch.tensor([[1.0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]]),
    ),
    "many labels, not said": ({}, torch.tensor([[1.0, 0, 1], [0, 0, 1], [0, 0, 0], [1, 1, 1]])),
}


@torch.no_grad()
@pytest.mark.parametrize("head", HEADS)
def test_losses_are_the_heads_own(classifier: Any, head: str) -> None:
    settings, labels = HEADS[head]
    model, batch = classifier.model(**settings), classifier.batch()
    readout = Readout.for_model(model)
    outputs = model(**batch, **readout.needs_hidden_states)
    before = readout.layer_losses(outputs, labels, batch)
    assert model.config.problem_type == settings.get("problem_type"), "reading must not write the config"

    own = model(**batch, labels=labels).loss
    torch.testing.assert_close(before[-1], own)
    for layer in classifier.cuts:
        torch.testing.assert_close(before[layer], classifier.cut(model, layer)(**batch, labels=labels).loss)
    per_sample = readout.per_sample_losses(readout.logits(outputs.hidden_states, batch), labels)
    assert per_sample.shape == (readout.num_layers + 1, 4)
    if head != "classes, some ignored":
        torch.testing.assert_close(per_sample[-1].mean(), own)


@torch.no_grad()
def test_losses_of_a_denoiser_are_its_own(denoiser: Any) -> None:
    model, batch, labels = denoiser.model(), denoiser.batch(), denoiser.labels()
    readout = Readout.for_model(model)
    outputs = model(**batch, **readout.needs_hidden_states)
    losses = readout.layer_losses(outputs, labels, batch)
    per_sample = readout.per_sample_losses(readout.logits(outputs.hidden_states, batch), labels)
    assert per_sample.shape == (readout.num_layers + 1, 4)
    for layer in denoiser.cuts:
        cut = denoiser.cut(model, layer)
        own = cut(**batch, labels=labels).loss
        torch.testing.assert_close(losses[layer], own)
        torch.testing.assert_close(per_sample[layer].mean(), own)
        for row in range(4):
            alone = cut(batch["pixel_values"][row : row + 1], labels=labels[row : row + 1]).loss
            torch.testing.assert_close(per_sample[layer, row], alone)
