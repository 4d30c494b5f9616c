"""The ordinary transformer is torch's own, with positions and one shared decoder."""

import math

import pytest
import torch
from torch import nn

from layerdescent.models.unrolled.transformer import sinusoidal_positions
from tests.models.unrolled.tiny import inputs, make


@torch.no_grad()
def test_a_block_is_torchs_own_encoder_layer() -> None:
    model = make("transformer", move=0.3)
    x = inputs(model)
    Y = model.embed(x) + sinusoidal_positions(5, 24)
    states = model(x, output_hidden_states=True).hidden_states
    for number, block in enumerate(model.layers):
        theirs = nn.TransformerEncoderLayer(
            24, 4, 96, dropout=0.0, activation="gelu", batch_first=True, norm_first=True, dtype=torch.float64
        )
        pairs = {
            "self_attn.in_proj_": block.query_key_value,
            "self_attn.out_proj.": block.attention_out,
            "linear1.": block.mlp_in,
            "linear2.": block.mlp_out,
            "norm1.": block.attention_norm,
            "norm2.": block.mlp_norm,
        }
        theirs.load_state_dict(
            {f"{prefix}{name}": value for prefix, m in pairs.items() for name, value in m.state_dict().items()}
        )
        Y = theirs(Y)
        expected = nn.functional.layer_norm(Y, (24,), model.norm.weight, model.norm.bias)
        torch.testing.assert_close(states[number + 1], model.decoder(expected), rtol=1e-6, atol=1e-6)


def test_positions_are_sines_and_cosines() -> None:
    p = sinusoidal_positions(7, 6)
    for t in (0, 3, 6):
        for i in range(3):
            angle = t / 10000 ** (2 * i / 6)
            assert float(p[t, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-6)
            assert float(p[t, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-6)


def test_dropout_acts_in_training_only() -> None:
    model = make("transformer", dropout=0.5)
    x = inputs(model)
    assert torch.equal(model(x).logits, model(x).logits)
    model.train()
    assert not torch.allclose(model(x).logits, model(x).logits)


def test_the_mlp_is_four_times_as_wide_unless_told_otherwise() -> None:
    assert make("transformer").config.intermediate_size == 96
    assert make("transformer", intermediate_size=10).layers[0].mlp_in.out_features == 10
