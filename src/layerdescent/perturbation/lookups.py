"""Change what a model's word embedding returns, knowing which of its tokens are real.

The embedding sees token ids but not the attention mask, the model's forward sees both. So two hooks work together: one
on the model notes what a forward pass was given, one on the embedding changes what is looked up for it.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerdescent.errors import InputError

_CACHE_ARGUMENTS = ("cache", "past_key_values")  # transformers' newer and older name

_rewritten: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True)
class Tokens:
    """What one lookup holds.

    Attributes:
        ids: (B, T) token ids.
        real: (B, T), False on padding.
        before: (B,) real tokens that came earlier and lie in the key-value cache; None where there is no cache.
    """

    ids: NDArray[np.int64]
    real: NDArray[np.bool_]
    before: NDArray[np.int64] | None


Rewrite = Callable[[Tokens, Tensor], Tensor | None]


@contextmanager
def rewritten_lookups(
    model: nn.Module, embedding: nn.Module, rewrite: Rewrite, pad_id: int | None = None
) -> Iterator[None]:
    """Pass every lookup of the model's input ids through `rewrite`, until the context ends.

    The mask comes from the forward pass; where it was given none, padding is what equals `pad_id`. A lookup outside the
    model's own forward, by an inner module that is called by itself, counts as one without a mask.

    Args:
        model: the model that will be called, PEFT wrapper included.
        embedding: the model's word embedding.
        rewrite: takes the tokens and the (B, T, d) embeddings, returns other embeddings or None to leave them.
        pad_id: id of the padding token, if there is one.

    Raises:
        InputError: on entry when the embedding is already being rewritten; in a forward pass that was given embeddings
            instead of ids or a mask that does not fit, or that looked up something else than its ids, or nothing.
    """
    if embedding in _rewritten:
        raise InputError(
            f"a perturbation is already on this {type(model).__name__}: "
            "leave its `with` block before entering another one"
        )
    watch = _Watch(rewrite, pad_id)
    base: nn.Module = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    with ExitStack() as stack:
        for module in {id(m): m for m in (model, base)}.values():
            # generate() on a PEFT model calls the base model, forward() the wrapper, so both are watched.
            takes_ids = "input_ids" in inspect.signature(module.forward).parameters
            names = tuple(inspect.signature((module if takes_ids else base).forward).parameters)
            for handle in watch.follow(module, names):
                stack.callback(handle.remove)
        stack.callback(embedding.register_forward_hook(watch.look_up, with_kwargs=True).remove)
        _rewritten.add(embedding)
        stack.callback(_rewritten.discard, embedding)
        yield


@dataclass
class _Forward:
    """A forward pass under way."""

    ids: Tensor | None
    mask: Tensor | None
    past: int
    looked_up: bool = False


class _Watch:
    """The hooks and what they share: the forward passes under way, the innermost last."""

    def __init__(self, rewrite: Rewrite, pad_id: int | None) -> None:
        self.rewrite, self.pad_id = rewrite, pad_id
        self.forwards: list[_Forward] = []

    def follow(self, module: nn.Module, names: tuple[str, ...]) -> Iterator[Any]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = dict(zip(names, args, strict=False)) | kwargs
            ids = given.get("input_ids")
            past = max(_cache_length(given.get(name)) for name in _CACHE_ARGUMENTS)
            self.forwards.append(_Forward(ids, given.get("attention_mask"), past))
            if ids is None and given.get("inputs_embeds") is not None:
                raise InputError(
                    f"{type(module).__name__} was given inputs_embeds under a perturbation: "
                    "give input_ids, whose embeddings get the noise"
                )

        def leave(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            forward = self.forwards.pop()
            finished = output is not None  # None: an exception is on its way out
            if finished and forward.ids is not None and not forward.looked_up:
                raise InputError(
                    f"{type(module).__name__} did not look its input_ids up in its word embedding, "
                    "so no noise reached it: perturbations do not support this model"
                )

        yield module.register_forward_pre_hook(enter, with_kwargs=True)
        yield module.register_forward_hook(leave, always_call=True)

    def look_up(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor | None:
        ids: Tensor = args[0] if args else next(iter(kwargs.values()))
        if ids.dim() != 2:
            raise InputError(
                f"a perturbation needs token ids of shape (batch, length), this lookup has {tuple(ids.shape)}"
            )
        forward = self.forwards[-1] if self.forwards else _Forward(ids, None, 0)
        given = forward.ids
        # Multiple choice flattens (batch, choices, length) into rows; any other change is not ours to guess.
        if given is None or given.numel() != ids.numel() or not torch.equal(given.reshape(ids.shape), ids):
            raise InputError(
                f"the word embedding was asked for ids of shape {tuple(ids.shape)} that are not the input_ids the "
                "model was given, so padding and positions are unknown: perturbations do not support this model"
            )
        for each in self.forwards:
            each.looked_up = True
        return self.rewrite(self._tokens(ids, forward), output)

    def _tokens(self, ids: Tensor, forward: _Forward) -> Tokens:
        rows, length = ids.shape
        ids_ = ids.cpu().numpy().astype(np.int64)
        if forward.mask is None:
            real = np.ones_like(ids_, dtype=bool) if self.pad_id is None else ids_ != self.pad_id
            before = np.full(rows, forward.past)
        else:
            mask = _mask(forward.mask, rows, forward.past + length)
            real = mask[:, forward.past :]
            before = mask[:, : forward.past].sum(axis=1)
        return Tokens(ids_, real, before if forward.past else None)


def _mask(mask: Any, rows: int, length: int) -> NDArray[np.bool_]:
    shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
    fits = (
        isinstance(mask, Tensor) and mask.dim() in (2, 3) and mask.shape[-1] == length and mask.numel() == rows * length
    )
    if not fits:
        raise InputError(
            f"a perturbation tells padding by an attention_mask of shape ({rows}, {length}), it was given {shape}: "
            "give the tokenizer's own mask, and in generate() a cache that is not static"
        )
    return mask.reshape(rows, length).cpu().numpy() != 0


def _cache_length(cache: Any) -> int:
    return int(cache.get_seq_length()) if hasattr(cache, "get_seq_length") else 0
