"""What all denoisers share: their configuration, their outputs, and one forward pass that reads every layer."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.utils.generic import ModelOutput

from layerdescent.errors import InputError


class DenoiserConfig(PreTrainedConfig):
    """What every denoiser's configuration has. A sequence is one patch position over T frames, a token one frame.

    Attributes:
        num_pixels: n, pixels of a patch.
        num_measurements: m < n, where the model is given compressive measurements X = S A^T instead of pixels; None
            for pixels.
        num_frames: T in training. A model takes any T; windows over a long clip have this length unless told otherwise.
        hidden_size: width of the layers: the number of codes of a sparse coder, d of the others.
        num_hidden_layers: L.
    """

    num_pixels: int = 64
    num_measurements: int | None = None
    num_frames: int = 16
    hidden_size: int = 128
    num_hidden_layers: int = 6
    problem_type: Literal["regression", "single_label_classification", "multi_label_classification"] | None = (
        "regression"
    )

    def __post_init__(self, **kwargs: Any) -> None:
        if self.id2label is None:
            kwargs.setdefault("num_labels", 1)
        super().__post_init__(**kwargs)
        for name in ("num_pixels", "num_frames", "hidden_size", "num_hidden_layers"):
            value = getattr(self, name)
            self._require(isinstance(value, int) and value >= 1, name, "a whole number of at least 1")
        m = self.num_measurements
        asked = f"fewer than num_pixels={self.num_pixels} and at least 1, or None for pixels"
        self._require(m is None or 1 <= m < self.num_pixels, "num_measurements", asked)

    def _require(self, holds: bool, name: str, asked: str) -> None:
        if not holds:
            raise InputError(f"{name}={getattr(self, name)!r} of a {type(self).__name__} must be {asked}")

    @property
    def num_inputs(self) -> int:
        """m, the length of an input token: measurements where there are any, else pixels."""
        return self.num_pixels if self.num_measurements is None else self.num_measurements


@dataclass
class DenoiserOutput(ModelOutput):
    """What a denoiser returns.

    Attributes:
        loss: mean squared error of the last layer; None without labels.
        logits: (B, T, n), the last layer's reconstruction in pixels. The name is the one by which transformers' Trainer
            and the readouts know a model's output.
        hidden_states: Phi_0 … Phi_L, each (B, T, n) in pixels, read by the shared decoder already; only when asked for.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


class DenoiserModel(PreTrainedModel):
    """A denoiser whose every layer is read by one shared decoder.

    A subclass says how the state starts, what a layer does to it, and how it is decoded; Phi_0 is the noisy input
    itself, or the decoded start where the input is measurements [C].
    """

    config_class = DenoiserConfig
    main_input_name = "pixel_values"
    config: Any

    def _start(self, x: Tensor) -> Tensor:
        """The state before the first layer."""
        raise NotImplementedError

    def _layer(self, layer: int, state: Tensor, x: Tensor) -> Tensor:
        """The state after one more layer; layers count from 0 here."""
        raise NotImplementedError

    def _decode(self, state: Tensor) -> Tensor:
        """A state as pixels (B, T, n)."""
        raise NotImplementedError

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_layers: int | None = None,
    ) -> DenoiserOutput | tuple[Any, ...]:
        """Denoise a batch of sequences.

        Args:
            pixel_values: (B, T, n) pixels, noisy, or (B, T, m) measurements; any T.
            labels: (B, T, n) clean pixels.
            output_hidden_states: whether to return the reconstruction of every layer, L + 1 of them.
            return_dict: False for a tuple.
            num_layers: stop after this many layers, 0 … L; what is returned is of the layers that ran. All by default.

        Returns:
            `DenoiserOutput`, or a tuple of its fields.

        Raises:
            InputError: inputs of another shape, or more layers than there are.
        """
        x = self._checked(pixel_values)
        depth = self._checked_depth(num_layers)
        keep = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        state = self._start(x)
        estimates = [x if self.config.num_measurements is None else self._decode(state)]
        for layer in range(depth):
            state = self._layer(layer, state, x)
            if keep or layer == depth - 1:
                estimates.append(self._decode(state))
        result = DenoiserOutput(
            loss=None if labels is None else _squared_error(estimates[-1], labels),
            logits=estimates[-1],
            hidden_states=tuple(estimates) if keep else None,
        )
        wants_tuple = not (self.config.return_dict if return_dict is None else return_dict)
        return result.to_tuple() if wants_tuple else result

    def _checked(self, pixel_values: Tensor) -> Tensor:
        if pixel_values.ndim != 3 or pixel_values.shape[-1] != self.config.num_inputs:
            raise InputError(
                f"{type(self).__name__} takes pixel_values of shape (B, T, {self.config.num_inputs}), "
                f"but they are {tuple(pixel_values.shape)}"
            )
        return pixel_values.to(self.dtype)

    def _checked_depth(self, num_layers: int | None) -> int:
        L: int = self.config.num_hidden_layers
        depth = L if num_layers is None else num_layers
        if not 0 <= depth <= L:
            raise InputError(f"{depth} layers were asked for, but this {type(self).__name__} has 0 … {L}")
        return depth

    def _init_weights(self, module: torch.nn.Module) -> None:
        if isinstance(module, torch.nn.Linear):
            init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, torch.nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)


def _squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    # As the readout's losses: never below fp32.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits - labels.to(logits)).square().mean()


def inverse_softplus(x: Tensor) -> Tensor:
    """The raw value whose softplus is x > 0.

    Example:
        >>> torch.nn.functional.softplus(inverse_softplus(torch.tensor(0.25)))
        tensor(0.2500)
    """
    return x + torch.log(-torch.expm1(-x))
