"""UT: its layers are its half-steps, on the energies they are said to lower."""

from typing import Any

import pytest
import torch

from layerdescent.models.unrolled import attention_step, mlp_energy, mlp_step, pair_energy
from tests.models.unrolled.tiny import inputs, make


@torch.no_grad()
@pytest.mark.parametrize("kind", ["ut", "ut-tied", "ut-plain"])
def test_a_forward_pass_is_embedding_half_steps_and_decoder(kind: str) -> None:
    model = make(kind, move=0.3)
    x, config = inputs(model), model.config
    Y = x @ model.embed.weight.T + model.embed.bias
    Y = Y.clamp(min=0) if config.relu else Y
    states = model(x, output_hidden_states=True).hidden_states
    for number in range(3):
        layer = model.layers[0 if config.tied else number]
        a1, a2 = (1 / (1 + torch.exp(-bias)) for bias in (layer.attention_step_bias, layer.mlp_step_bias))
        switches = {"beta": config.beta, "normalize_tokens": config.normalize_tokens}
        Z = attention_step(Y, layer.W_attention, a1, **switches)
        Y = mlp_step(Z, layer.W_mlp, layer.bias, a2, relu=config.relu)
        torch.testing.assert_close(states[number + 1], Y @ model.decoder.weight.T + model.decoder.bias)


@torch.no_grad()
@pytest.mark.parametrize("seed", range(5))
def test_the_half_steps_of_a_model_lower_their_own_energies(seed: int) -> None:
    model = make("ut", move=1.0, seed=seed, initial_step=0.3)
    x = inputs(model, seed=seed)
    Y = model._start(x)
    for layer in model.layers:
        Z = layer.attend(Y)
        assert (pair_energy(Z, layer.W_attention) <= pair_energy(Y, layer.W_attention) + 1e-10).all()
        symmetric = (layer.W_mlp + layer.W_mlp.T) / 2
        limit = 2 / (1 + torch.linalg.eigvalsh(symmetric)[-1])
        layer.mlp_step_bias.fill_(torch.logit(min(limit, torch.tensor(0.9).double()) * 0.95))
        Y = layer(Y)
        assert (mlp_energy(Y, layer.W_mlp, layer.bias) <= mlp_energy(Z, layer.W_mlp, layer.bias) * (1 + 1e-12)).all()
        assert (Y >= 0).all()


@torch.no_grad()
def test_tokens_start_at_or_above_zero_where_relu_is_on() -> None:
    model = make("ut")
    x = inputs(model) - 0.5
    assert (model._start(x) >= 0).all()
    assert (make("ut", relu=False)._start(x) < 0).any()


@torch.no_grad()
def test_tied_layers_are_one_set_of_weights() -> None:
    tied, untied = make("ut-tied"), make("ut")
    assert len(tied.layers) == 1
    for name in ("embed", "decoder"):
        getattr(untied, name).load_state_dict(getattr(tied, name).state_dict())
    for layer in untied.layers:
        layer.load_state_dict(tied.layers[0].state_dict())
    x = inputs(tied)
    torch.testing.assert_close(tied(x).logits, untied(x).logits)


@torch.no_grad()
@pytest.mark.parametrize("change", [{"beta": False}, {"normalize_tokens": True}, {"relu": False}])
def test_every_switch_does_something(change: dict[str, Any]) -> None:
    x = inputs(make("ut")) - 0.5
    assert not torch.allclose(make("ut")(x).logits, make("ut", **change)(x).logits, atol=1e-4)


@torch.no_grad()
def test_steps_lie_between_0_and_1_whatever_was_learnt() -> None:
    model = make("ut", move=0.0)
    layer = model.layers[0]
    assert float(layer.attention_step_bias.sigmoid()) == pytest.approx(model.config.initial_step)
    layer.attention_step_bias.fill_(1e4)
    layer.mlp_step_bias.fill_(30.0)
    Y = torch.rand(2, 5, 24).double()
    torch.testing.assert_close(layer.attend(Y), attention_step(Y, layer.W_attention, 1.0))
    assert 0 < float(layer.mlp_step_bias.sigmoid()) <= 1
