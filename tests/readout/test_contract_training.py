"""What a family must keep to stand in the table, whichever it is: dropout, random streams and gradients in training."""

from typing import Any

import pytest
import torch

from layerdescent.readout import Readout


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
    if family.drops_in_head:
        assert not torch.allclose(first, without, atol=1e-3)
        assert not torch.allclose(first, second, atol=1e-3)
    else:
        torch.testing.assert_close(first, without)


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
    embeddings = embeddings or [model.get_input_embeddings().weight]
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
