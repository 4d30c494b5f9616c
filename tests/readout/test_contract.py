"""What a family must keep to stand in the table, whichever it is."""

from typing import Any

import pytest
import torch

from layerdescent.readout import READOUTS, Readout


def test_the_table_holds_the_families_tested_here_and_no_other(families: dict[str, Any]) -> None:
    assert set(READOUTS) == {family.architecture for family in families.values()}


@torch.no_grad()
def test_the_last_layer_reads_as_the_models_own_logits_bit_for_bit(family: Any) -> None:
    model, batch = family.model(), family.batch()
    readout = Readout.for_model(model)
    outputs = model(**batch, **readout.needs_hidden_states)
    read = readout.logits(outputs.hidden_states, batch, layers=[readout.num_layers])
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


def test_in_training_the_last_loss_is_the_models_own_and_no_random_number_is_used_up(family: Any) -> None:
    model, batch = family.model().train(), family.batch()
    readout = Readout.for_model(model)
    labels = family.labels()
    torch.manual_seed(1)
    plain = model(**batch, labels=labels).loss
    state = torch.get_rng_state()

    torch.manual_seed(1)
    outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
    losses = readout.layer_losses(outputs, labels, batch)

    assert losses.shape == (readout.num_layers + 1,)
    assert torch.equal(losses[-1], plain)
    assert torch.equal(torch.get_rng_state(), state)


def test_weight_on_the_last_layer_alone_is_plain_fine_tuning(family: Any) -> None:
    def train(through_readout: bool) -> dict[str, torch.Tensor]:
        model = family.model().train()
        readout = Readout.for_model(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for _ in range(3):
            batch, labels = family.batch(), family.labels()[torch.randperm(4)]
            if through_readout:
                outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
                loss = readout.layer_losses(outputs, labels, batch)[-1]
            else:
                loss = model(**batch, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return model.state_dict()

    plain, read = train(False), train(True)
    assert all(torch.equal(plain[name], read[name]) for name in plain)


def test_layers_share_one_dropout_mask_and_each_step_has_its_own(family: Any) -> None:
    model, batch = family.model().train(), family.batch()
    readout = Readout.for_model(model)
    L = readout.num_layers
    hidden = model(**batch, **readout.needs_hidden_states).hidden_states[1].detach()

    def read() -> torch.Tensor:
        return readout.logits([hidden] * (L + 1), batch, layers=range(L))

    first = read()
    model(**batch)  # the next step's forward
    second = read()
    model.eval()
    without = read()
    for layer in range(1, L):
        torch.testing.assert_close(first[layer], first[0], rtol=1e-6, atol=1e-6)
    if family.image or family.clip:  # these heads have no dropout
        torch.testing.assert_close(first, without)
    else:
        assert not torch.allclose(first, without, atol=1e-3)
        assert not torch.allclose(first, second, atol=1e-3)


@torch.no_grad()
def test_in_training_the_head_drops_what_the_models_own_forward_drops(family: Any) -> None:
    model, batch = family.model().train(), family.batch()
    model.base_model.eval()  # only the head draws random numbers
    readout = Readout.for_model(model)
    torch.manual_seed(1)
    outputs = model(**batch, **readout.needs_hidden_states)
    torch.manual_seed(1)
    read = readout.logits(outputs.hidden_states, batch, layers=[readout.num_layers])
    torch.testing.assert_close(read[0], outputs.logits, rtol=1e-5, atol=1e-6)


def test_every_layers_loss_reaches_the_embeddings(classifier: Any) -> None:
    model, batch = classifier.model().train(), classifier.batch()
    readout = Readout.for_model(model)
    labels = classifier.labels()
    outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
    embeddings = [p for name, p in model.named_parameters() if "embeddings" in name]
    inputs = [p for name, p in model.named_parameters() if "patch_embeddings" in name or "tok_embeddings" in name]
    inputs = inputs or [model.get_input_embeddings().weight]
    for layer, loss in enumerate(readout.layer_losses(outputs, labels, batch)):
        # Layer 0 of an image read at the class token has seen no patch yet, only the class token and its position.
        reached = embeddings if layer == 0 else inputs
        gradients = torch.autograd.grad(loss, reached, retain_graph=True, allow_unused=True)
        assert any(g is not None and g.abs().sum() > 0 for g in gradients), f"layer {layer}"


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_changes_no_gradient(family: Any, use_reentrant: bool) -> None:
    if not family.model().supports_gradient_checkpointing:
        pytest.skip(f"{family.architecture} of transformers has no gradient checkpointing")
    if use_reentrant and "Deberta" in type(family.model().base_model).__name__:
        pytest.skip("DeBERTa shares position embeddings between layers: reentrant checkpoints fail without us too")
    labels = family.labels()
    batch = family.batch()

    def gradients(checkpointing: bool) -> list[torch.Tensor]:
        model = family.model().train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
        readout = Readout.for_model(model)
        torch.manual_seed(1)
        outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
        readout.layer_losses(outputs, labels, batch).sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    plain, checkpointed = gradients(False), gradients(True)
    assert len(plain) == len(checkpointed)
    for expected, actual in zip(plain, checkpointed, strict=True):
        torch.testing.assert_close(actual, expected)


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
