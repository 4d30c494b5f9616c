"""UT, the unrolled transformer: every layer is a step on one energy and a step on another."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init

from layerdescent.models.unrolled.denoiser import DenoiserConfig, DenoiserModel
from layerdescent.models.unrolled.steps import attention_step, mlp_step


class UtConfig(DenoiserConfig):
    """The configuration of a `UtForDenoising`.

    Besides what `DenoiserConfig` has:

    Attributes:
        tied: whether all layers share one set of weights.
        beta: whether attention weights have beta; False for plain softmax, which need not lower the energy.
        normalize_tokens: whether attention weights are taken from unit rows; then the energy need not fall either.
        relu: whether tokens are kept at Y >= 0, from the start on.
        initial_step: the steps a1 and a2 that training starts from, in (0, 1).
    """

    model_type = "ut"

    tied: bool = False
    beta: bool = True
    normalize_tokens: bool = False
    relu: bool = True
    initial_step: float = 0.1

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self._require(0 < self.initial_step < 1, "initial_step", "between 0 and 1")


class UtLayer(nn.Module):
    """An attention step and an MLP step; the steps a1 and a2 are sigmoids of numbers, so always in (0, 1)."""

    def __init__(self, config: UtConfig) -> None:
        super().__init__()
        d = config.hidden_size
        self.beta, self.normalize_tokens, self.relu = config.beta, config.normalize_tokens, config.relu
        self.W_attention = nn.Parameter(torch.empty(d, d))
        self.W_mlp = nn.Parameter(torch.empty(d, d))
        self.bias = nn.Parameter(torch.empty(d))
        # "bias" in the name keeps Trainer's weight decay off them.
        self.attention_step_bias = nn.Parameter(torch.empty(()))
        self.mlp_step_bias = nn.Parameter(torch.empty(()))

    def attend(self, Y: Tensor) -> Tensor:
        """The first half, on `pair_energy(Y, W_attention)`."""
        a = self.attention_step_bias.sigmoid()
        return attention_step(Y, self.W_attention, a, beta=self.beta, normalize_tokens=self.normalize_tokens)

    def forward(self, Y: Tensor) -> Tensor:
        """Both halves, the second on `mlp_energy(Z, W_mlp, bias)`."""
        a = self.mlp_step_bias.sigmoid()
        return mlp_step(self.attend(Y), self.W_mlp, self.bias, a, relu=self.relu)


class UtForDenoising(DenoiserModel):
    """UT, the unrolled transformer, between a linear embedding and a linear decoder that all layers share.

        Y_0 = ReLU(X E + e)
        Z   = (1 - a1) Y + a1 softmax_beta(Y Wa Wa^T Y^T) Y                  a step on E1, `pair_energy`
        Y+  = ReLU( Z [(1 - a2) I - (a2 / 2)(Wf + Wf^T)] + a2 b )           a step on E2, `mlp_energy`
        S   = Y G + g

    The sum E1 + E2 need not fall from layer to layer: each half-step lowers its own. Nothing here knows the order of
    the frames, so permuting them permutes the result.

    Args:
        config: see `UtConfig`.

    Source: Yang, Huang, Wipf, NeurIPS 2022, the layer in the form above [D]. Which UT the paper used is not stated;
        embedding, decoder and starting values are ours [C].

    Example:
        >>> model = UtForDenoising(UtConfig(num_pixels=16, hidden_size=8, num_hidden_layers=2))
        >>> model(torch.rand(2, 5, 16)).logits.shape
        torch.Size([2, 5, 16])
    """

    config_class = UtConfig

    def __init__(self, config: UtConfig) -> None:
        super().__init__(config)
        self.embed = nn.Linear(config.num_inputs, config.hidden_size)
        self.layers = nn.ModuleList(UtLayer(config) for _ in range(1 if config.tied else config.num_hidden_layers))
        self.decoder = nn.Linear(config.hidden_size, config.num_pixels)
        self.post_init()

    def _start(self, x: Tensor) -> Tensor:
        Y = self.embed(x)
        return torch.relu(Y) if self.config.relu else Y

    def _layer(self, layer: int, state: Tensor, x: Tensor) -> Tensor:
        return self.layers[0 if self.config.tied else layer](state)

    def _decode(self, state: Tensor) -> Tensor:
        return self.decoder(state)

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, UtLayer):
            std = self.config.hidden_size**-0.5
            init.normal_(module.W_attention, std=std)
            init.normal_(module.W_mlp, std=std)
            init.zeros_(module.bias)
            raw = math.log(self.config.initial_step / (1 - self.config.initial_step))
            init.constant_(module.attention_step_bias, raw)
            init.constant_(module.mlp_step_bias, raw)
