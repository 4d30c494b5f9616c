"""An ordinary transformer over the frames: the rival whose layers were not made to be descent steps."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdescent.models.unrolled.denoiser import DenoiserConfig, DenoiserModel
from layerdescent.models.unrolled.steps import merge_heads, split_heads


class TransformerDenoiserConfig(DenoiserConfig):
    """The configuration of a `TransformerForDenoising`.

    Besides what `DenoiserConfig` has:

    Attributes:
        num_attention_heads: which must divide `hidden_size`.
        intermediate_size: width of the MLP; None for four times `hidden_size`.
        dropout: of attention's and the MLP's outputs.
    """

    model_type = "transformer-denoiser"

    num_attention_heads: int = 4
    intermediate_size: int | None = None
    dropout: float = 0.0

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        k = self.num_attention_heads
        asked = f"at least 1 and divide hidden_size={self.hidden_size}"
        self._require(k >= 1 and self.hidden_size % k == 0, "num_attention_heads", asked)
        self._require(self.hidden_size % 2 == 0, "hidden_size", "even: half of it is for sines, half for cosines")
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size


class TransformerBlock(nn.Module):
    """Attention and an MLP, each normed before and added to what came in."""

    def __init__(self, config: TransformerDenoiserConfig) -> None:
        super().__init__()
        d, inner = config.hidden_size, config.intermediate_size
        assert inner is not None
        self.heads = config.num_attention_heads
        self.attention_norm = nn.LayerNorm(d)
        self.query_key_value = nn.Linear(d, 3 * d)
        self.attention_out = nn.Linear(d, d)
        self.mlp_norm = nn.LayerNorm(d)
        self.mlp_in = nn.Linear(d, inner)
        self.mlp_out = nn.Linear(inner, d)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, Y: Tensor) -> Tensor:
        """Tokens (B, T, d) after one more block."""
        parts = self.query_key_value(self.attention_norm(Y)).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.heads) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value)
        Y = Y + self.dropout(self.attention_out(merge_heads(attended)))
        return Y + self.dropout(self.mlp_out(functional.gelu(self.mlp_in(self.mlp_norm(Y)))))


class TransformerForDenoising(DenoiserModel):
    """An ordinary pre-norm transformer over the T frames, between a linear embedding and a linear decoder.

        Y_0 = X E + e + sinusoidal positions
        Y+  = Y' + MLP(norm(Y')),   Y' = Y + Attention(norm(Y))
        S   = norm(Y) G + g                                          the same norm and decoder for every layer

    Args:
        config: see `TransformerDenoiserConfig`.

    Source: Vaswani et al. 2017, with norms first; as a rival of equal depth and width it is our choice [C].

    Example:
        >>> sizes = dict(num_pixels=16, hidden_size=8, num_hidden_layers=2)
        >>> model = TransformerForDenoising(TransformerDenoiserConfig(**sizes))
        >>> model(torch.rand(2, 5, 16)).logits.shape
        torch.Size([2, 5, 16])
    """

    config_class = TransformerDenoiserConfig

    def __init__(self, config: TransformerDenoiserConfig) -> None:
        super().__init__(config)
        self.embed = nn.Linear(config.num_inputs, config.hidden_size)
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.decoder = nn.Linear(config.hidden_size, config.num_pixels)
        self.post_init()

    def _start(self, x: Tensor) -> Tensor:
        Y = self.embed(x)
        return Y + sinusoidal_positions(*Y.shape[-2:]).to(Y)

    def _layer(self, layer: int, state: Tensor, x: Tensor) -> Tensor:
        return self.layers[layer](state)

    def _decode(self, state: Tensor) -> Tensor:
        return self.decoder(self.norm(state))


def sinusoidal_positions(num_frames: int, width: int) -> Tensor:
    """Positions of any number of frames, without weights.

        p[t, 2 i] = sin(t / 10000^(2 i / d)),    p[t, 2 i + 1] = cos(t / 10000^(2 i / d))

    Args:
        num_frames: T.
        width: d, even.

    Returns:
        (T, d).

    Source: Vaswani et al. 2017.

    Example:
        >>> sinusoidal_positions(1, 4)
        tensor([[0., 1., 0., 1.]])
    """
    t = torch.arange(num_frames, dtype=torch.float32)[:, None]
    angles = t * torch.exp(-math.log(10000.0) * torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
