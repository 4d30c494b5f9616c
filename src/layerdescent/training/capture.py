"""Taking the hidden states out of a forward pass that somebody else makes.

The loss may be computed by transformers' Trainer, by TRL, by a user's subclass. All of them call the model, and every model calls its
backbone; a hook on the backbone takes the hidden states there. They never reach the model's own outputs, so evaluation cannot
gather them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from layerdescent.errors import InputError, RunError


@dataclass
class Captured:
    """What one forward pass left behind.

    Attributes:
        hidden_states: Phi_0 … Phi_L as the backbone returned them, each (B, ...); empty before the forward pass.
    """

    hidden_states: tuple[Tensor, ...] = field(default=())


def plain_model(model: nn.Module) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def capture_hidden_states(model: nn.Module) -> Iterator[Captured]:
    """Collect the hidden states of the first forward pass made inside.

    The forward must be asked for them (`output_hidden_states=True`). They are taken out of the backbone's output unless the
    model's own configuration asks for them too.

    Args:
        model: the model, outside any distributed wrapper; PEFT wrappers are looked through.

    Yields:
        A `Captured`, filled when the forward pass has run.
    """
    plain = plain_model(model)
    captured = Captured()
    wanted_by_user = bool(getattr(plain.config, "output_hidden_states", False))

    def take(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> Any:
        if not isinstance(output, Mapping):
            raise InputError(
                f"the backbone of {type(plain).__name__} returned a {type(output).__name__}: set return_dict=True in its config"
            )
        if captured.hidden_states or output.get("hidden_states") is None:
            return output
        captured.hidden_states = tuple(output["hidden_states"])
        if wanted_by_user:
            return output
        return type(output)(**{key: value for key, value in output.items() if key != "hidden_states"})

    handle = plain.base_model.register_forward_hook(take)
    try:
        yield captured
    finally:
        handle.remove()


@contextmanager
def embedding_noise(model: nn.Module, gamma: float, keep_clean: Tensor) -> Iterator[None]:
    """Add fresh gaussian noise to the word embeddings of every forward pass made inside.

        e~ = e + gamma * s * n,   s = root mean square of the embedding matrix,   n ~ N(0, 1)                                   [C]

    The noise comes from the global generator of the embedding's device, so a resumed run continues the same stream.

    Args:
        model: the model, outside any distributed wrapper.
        gamma: noise level relative to s.
        keep_clean: positions that get no noise (padding, special tokens), bool, shape (B, T).
    """
    embedding = plain_model(model).get_input_embeddings()

    def disturb(module: nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        if output.shape[:2] != keep_clean.shape:
            raise RunError(
                f"embeddings of shape {tuple(output.shape)} for input ids of shape {tuple(keep_clean.shape)}"
            )
        with torch.no_grad():
            weight: Any = module.weight
            noise = torch.randn_like(output) * (gamma * weight.float().square().mean().sqrt()).to(output.dtype)
            noise.masked_fill_(keep_clean.unsqueeze(-1), 0)
        return output + noise

    handle = embedding.register_forward_hook(disturb)
    try:
        yield
    finally:
        handle.remove()


def clean_positions(input_ids: Tensor, attention_mask: Tensor | None, special_ids: tuple[int, ...]) -> Tensor:
    """Padding and special tokens, which training noise leaves alone.

    Example:
        >>> clean_positions(torch.tensor([[101, 7, 8, 102, 0]]), torch.tensor([[1, 1, 1, 1, 0]]), (101, 102))
        tensor([[ True, False, False,  True,  True]])
    """
    clean = torch.isin(input_ids, torch.tensor(special_ids, device=input_ids.device, dtype=input_ids.dtype))
    return clean if attention_mask is None else clean | (attention_mask == 0)
