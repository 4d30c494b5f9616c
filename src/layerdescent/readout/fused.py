"""Losses of many layers through a head with a large vocabulary, without the logits of more than one chunk of tokens.

A vocabulary is far larger than a hidden state, so what must not be kept are logits. Every layer's tokens go through the
head in chunks, and each chunk's gradient is taken at once, while its logits are there. Reading them again in the
backward pass would save no memory worth naming (the gradients kept instead are as large as the hidden states, which are
there anyway), and would cost another pass through the head: a third of its work again, half where it is frozen.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerdescent.errors import InputError
from layerdescent.readout.losses import IGNORED

Head = Callable[[Tensor], Tensor]

MAX_LOGITS = 2**25
"""Logits held at a time: 128 MiB in fp32, of which the cross entropy and its gradient need a few copies."""


@torch.compiler.disable
def fused_layer_losses(
    hidden_states: Tensor | Sequence[Tensor],
    head: Head,
    labels: Tensor,
    weights: Sequence[float] | Tensor,
    *,
    parameters: Iterable[Tensor] | None = None,
    num_items: float | Tensor | None = None,
    label_smoothing: float = 0.0,
    max_logits: int = MAX_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Compute the cross entropy of K layers and their weighted sum, a chunk of tokens at a time.

    What it computes, exactly, is

        losses = [cross_entropy(head(h), labels, reduction="sum", label_smoothing=label_smoothing) / num_items
                  for h in hidden_states]
        total = sum(w * loss for w, loss in zip(weights, losses) if w != 0)

    1. Tokens without a label are left out, so nothing is paid for a prompt.
    2. One row goes through the head, to learn how large V is: a chunk is as many tokens as `max_logits` allows.
    3. Layer by layer, chunk by chunk: rows -> head -> logits -> loss, in fp32 (fp64 for fp64 logits).
    4. Where w != 0 and something learns, the chunk's gradients are taken at once and its logits are gone: those of the
       hidden states are kept in their dtype, those of the head are summed in fp32 (as large as the head itself).
    5. The backward pass of `total` only scales these gradients by what comes in (by accumulation, a loss scaler or
       other terms of the objective).

    A head with dropout (an adapter's) draws the same masks for every layer, from a forked random state: the global
    random streams do not move. Inside `torch.compile` the function is a graph break, for it calls autograd itself; the
    head may be compiled.

    Args:
        hidden_states: (K, ..., d), or K tensors (..., d), as `head` takes them: those of layers to be normed by the
            head not normed yet, for example.
        head: rows (n, d) -> logits (n, V), row by row and the same for every layer: final norm, lm_head, soft-cap.
        labels: (...), what each token is to predict. They are not shifted here (see `next_token_labels`); -100 leaves
            a token out.
        weights: (K,), Lagrangian weights, of any sign. A layer of weight 0 is read forward only; its loss is exact.
        parameters: the tensors of the head that may learn (more do no harm, all of a model's for example); those of
            the module by default. Has to be given for a head that is no module.
        num_items: what the sums are divided by; the number of labels that count by default. Take the count of the
            whole step under accumulation, and see `sample_tokens` for a part of the tokens.
        label_smoothing: share of the target that is spread evenly over the vocabulary.
        max_logits: how many logits may be held at a time; at least one token's are.

    Returns:
        The losses (K,), detached, and their weighted sum, a scalar to call `backward()` on (once differentiable, and
        without a graph where nothing learns). Fp32, or fp64 for fp64 logits. Both are 0 when no label counts.

    Raises:
        InputError: shapes or numbers of layers and weights that do not fit, a head that is no module and names no
            parameters or whose logits are not (n, V), a `num_items` that is not above 0; in the backward pass,
            `create_graph=True`.

    Source: the weighted sum is the Lagrangian's [P]; how it is computed is ours [C].

    Example:
        >>> from layerdescent.readout import next_token_labels
        >>> hidden_states = torch.zeros(2, 1, 3, 4, requires_grad=True)  # two layers, one text of three tokens
        >>> labels = next_token_labels(torch.tensor([[5, 7, 2]]))
        >>> losses, total = fused_layer_losses(hidden_states, nn.Linear(4, 8, bias=False), labels, (-0.5, 1.5))
        >>> losses
        tensor([2.0794, 2.0794])
        >>> total.backward()
    """
    layers, weights = _checked(hidden_states, labels, weights)
    learning = _learning(head, parameters)
    index = labels.flatten().ne(IGNORED).nonzero().squeeze(1)
    targets = labels.flatten()[index]
    divisor = float(len(index) if num_items is None else num_items)
    if len(index) and not divisor > 0:
        raise InputError(f"num_items is {divisor:g}: give the number of labels to average over, above 0")
    scale = 1 / divisor if len(index) else 0.0
    chunk_size = _chunk_size(head, layers[0], index, max_logits) if len(index) else 1
    reader = _Reader(head, learning, chunk_size, label_smoothing)

    losses = []
    total = torch.zeros((), dtype=_wide(layers[0].dtype), device=layers[0].device)
    for hidden, weight in zip(layers, weights, strict=True):
        rows = _tokens(hidden).index_select(0, index)
        with _same_random_numbers(rows.device):
            loss, of_rows = reader.read(rows, targets, weight)
        losses.append(loss * scale)
        if weight != 0:
            total = total + weight * losses[-1]
        if of_rows is not None:
            total = _WithGradients.apply(total, weight * scale, [of_rows], rows)
    if learning and any(weights):
        total = _WithGradients.apply(total, scale, reader.of_head, *learning)
    return torch.stack(losses), total


def _checked(
    hidden_states: Tensor | Sequence[Tensor], labels: Tensor, weights: Sequence[float] | Tensor
) -> tuple[list[Tensor], list[float]]:
    layers = list(hidden_states)
    values = weights.tolist() if isinstance(weights, Tensor) else [float(weight) for weight in weights]
    if not layers or len(layers) != len(values):
        raise InputError(
            f"{len(values)} weights for the hidden states of {len(layers)} layers: give one for each layer"
        )
    for hidden in layers:
        if hidden.shape[:-1] != labels.shape:
            raise InputError(
                f"labels of shape {tuple(labels.shape)} for hidden states {tuple(hidden.shape)} of a layer: "
                "give one label for each token, -100 where none counts"
            )
    return layers, values


def _learning(head: Head, parameters: Iterable[Tensor] | None) -> list[Tensor]:
    if not torch.is_grad_enabled():
        return []
    if parameters is None:
        if not isinstance(head, nn.Module):
            raise InputError("the head is no module: say with parameters=… which tensors of it learn, () for none")
        parameters = head.parameters()
    # Each once, though a caller may have chained two modules that share it.
    return list({id(tensor): tensor for tensor in parameters if tensor.requires_grad}.values())


def _wide(dtype: torch.dtype) -> torch.dtype:
    # A bf16 mean of losses is off by as much as an alpha.
    return torch.promote_types(dtype, torch.float32)


def _tokens(hidden: Tensor) -> Tensor:
    return hidden.reshape(-1, hidden.shape[-1])


def _same_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    devices = [] if device.type == "cpu" else [device]  # the CPU's stream is always forked
    return torch.random.fork_rng(devices, device_type=device.type)


@torch.no_grad()
def _chunk_size(head: Head, hidden: Tensor, index: Tensor, max_logits: int) -> int:
    row = _tokens(hidden).index_select(0, index[:1])
    with _same_random_numbers(row.device):
        shape = head(row).shape
    if len(shape) != 2 or shape[0] != 1:
        raise InputError(f"the head made {tuple(shape)} of one row {tuple(row.shape)}: it must make logits (1, V)")
    return max(1, max_logits // shape[1])


class _Reader:
    """Reads layers chunk by chunk, and sums the head's gradients over all of them.

    Gradients are those of sums over tokens: multiplied by weights and divided by counts only in fp32 or better, they
    neither vanish nor overflow in 16 bits.
    """

    def __init__(self, head: Head, learning: Sequence[Tensor], chunk_size: int, label_smoothing: float) -> None:
        self.head, self.learning = head, learning
        self.chunk_size, self.label_smoothing = chunk_size, label_smoothing
        self.of_head: list[Tensor | None] = [None] * len(learning)

    def read(self, rows: Tensor, targets: Tensor, weight: float) -> tuple[Tensor, Tensor | None]:
        """The summed loss of one layer, and its gradient by the rows where wanted; adds weight times the head's."""
        total = torch.zeros((), dtype=_wide(rows.dtype), device=rows.device)
        of_rows = torch.zeros_like(rows) if weight != 0 and rows.requires_grad else None
        for start in range(0, len(rows), self.chunk_size):
            part = slice(start, start + self.chunk_size)
            chunk = rows[part].detach()
            if of_rows is not None:
                total = total + self._learn(chunk.requires_grad_(), targets[part], weight, of_rows[part])
            elif weight != 0 and self.learning:
                total = total + self._learn(chunk, targets[part], weight)
            else:
                with torch.no_grad():
                    total = total + self._loss(chunk, targets[part])
        return total, of_rows

    # Logits live in these two only, so that a chunk's are gone before the next chunk's are there.

    def _loss(self, chunk: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(chunk)
        return functional.cross_entropy(
            logits.to(_wide(logits.dtype)), targets, reduction="sum", label_smoothing=self.label_smoothing
        )

    def _learn(self, chunk: Tensor, targets: Tensor, weight: float, of_chunk: Tensor | None = None) -> Tensor:
        loss = self._loss(chunk, targets)
        if not loss.requires_grad:  # what learns lies elsewhere: a frozen head that reads frozen embeddings
            return loss.detach()
        wanted = [*self.learning] if of_chunk is None else [*self.learning, chunk]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        if of_chunk is not None and found[-1] is not None:
            of_chunk.copy_(found[-1])
        for i, gradient in enumerate(found[: len(self.learning)]):
            if gradient is not None:
                summed = self.of_head[i]
                if summed is None:
                    summed = self.of_head[i] = torch.zeros_like(gradient, dtype=_wide(gradient.dtype))
                summed.add_(gradient, alpha=weight)
        return loss.detach()


class _WithGradients(torch.autograd.Function):
    """A total unchanged, with gradients that are known already: each is scaled by what comes in, and no more."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, scale: float, gradients: Sequence[Tensor | None], *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*gradients)
        ctx.scale, ctx.dtypes = scale, [tensor.dtype for tensor in tensors]
        return total.clone()

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():  # a known gradient is a constant: its derivative would silently be missing
            raise InputError("create_graph=True was asked for, but fused layer losses are differentiable only once")
        factor = incoming * ctx.scale
        scaled = (
            None if gradient is None else (gradient.to(_wide(gradient.dtype)) * factor).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return incoming, None, None, *scaled
