"""Taking the hidden states out of a forward pass that somebody else makes.

The loss may be computed by transformers' Trainer, by TRL, by a user's subclass. All of them call the model, and every
model calls its backbone: a hook there takes the hidden states. They never reach the model's own outputs, so evaluation
cannot gather them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from layerdescent.errors import InputError


class Captured:
    """What one forward pass left behind.

    Attributes:
        hidden_states: Phi_0 … Phi_L as the backbone returned them, each (B, ...); empty before the forward pass.
        logits: the model's own, where its outputs hold any.
    """

    def __init__(self) -> None:
        self.hidden_states: tuple[Tensor, ...] = ()
        self.logits: Tensor | None = None


def plain_model(model: Any) -> Any:
    """The transformers model inside a PEFT wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@contextmanager
def capture_hidden_states(model: nn.Module) -> Iterator[Captured]:
    """Collect the hidden states and logits of the first forward pass made inside.

    The forward must be asked for them (`output_hidden_states=True`). They are taken out of the backbone's output,
    unless the model's own configuration asks for them too.

    Args:
        model: the model, outside any distributed wrapper; PEFT wrappers are looked through.

    Yields:
        A `Captured`, filled when the forward pass has run.

    Raises:
        InputError: the model returns tuples.
    """
    plain = plain_model(model)
    captured = Captured()
    wanted_by_user = bool(getattr(plain.config, "output_hidden_states", False))

    def take_hidden_states(_module: nn.Module, _args: Any, output: Any) -> Any:
        if not isinstance(output, Mapping):
            name = type(plain).__name__
            raise InputError(f"the backbone of {name} returned a {type(output).__name__}: set config.return_dict=True")
        if output.get("hidden_states") is None:
            return output
        captured.hidden_states = captured.hidden_states or tuple(output["hidden_states"])
        if wanted_by_user:
            return output
        return type(output)(**{key: value for key, value in output.items() if key != "hidden_states"})

    def take_logits(_module: nn.Module, _args: Any, output: Any) -> None:
        if captured.logits is None and isinstance(output, Mapping):
            captured.logits = output.get("logits")

    # PEFT calls the forward of the model it wraps without the model's hooks; the backbone inside is called as usual.
    # OPT's heads call the decoder inside the backbone, past the backbone itself.
    backbone = plain.base_model.get_decoder() if plain.base_model is not plain else model
    handles = [backbone.register_forward_hook(take_hidden_states), model.register_forward_hook(take_logits)]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def embedding_noise(model: nn.Module, gamma: float, clean: Tensor) -> Iterator[None]:
    """Add fresh gaussian noise to the word embeddings of every forward pass made inside.

        e~ = e + gamma * s * n,   s = root mean square of the embedding matrix,   n ~ N(0, 1)                [C]

    The noise comes from the global generator of the embedding's device, so a resumed run continues the same stream.

    Args:
        model: the model, outside any distributed wrapper.
        gamma: noise level relative to s.
        clean: positions that get no noise, bool, shape (B, T); see `clean_positions`.
    """

    def disturb(module: Any, _args: Any, output: Tensor) -> Tensor:
        with torch.no_grad():
            scale = gamma * module.weight.float().square().mean().sqrt()
            noise = (torch.randn_like(output) * scale.to(output.dtype)).masked_fill_(clean.unsqueeze(-1), 0)
        return output + noise

    handle = plain_model(model).get_input_embeddings().register_forward_hook(disturb)
    try:
        yield
    finally:
        handle.remove()


def clean_positions(input_ids: Tensor, attention_mask: Tensor | None, special_ids: tuple[int, ...]) -> Tensor:
    """Padding and special tokens, which training noise leaves alone; bool, shape (B, T).

    Example:
        >>> clean_positions(torch.tensor([[101, 7, 8, 102, 0]]), torch.tensor([[1, 1, 1, 1, 0]]), (101, 102))
        tensor([[ True, False, False,  True,  True]])
    """
    clean = torch.isin(input_ids, torch.tensor(special_ids, device=input_ids.device, dtype=input_ids.dtype))
    return clean if attention_mask is None else clean | (attention_mask == 0)
