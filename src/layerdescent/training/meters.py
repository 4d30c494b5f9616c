"""The mean of layer losses over what belongs together: an optimiser step, a logging window, an evaluation."""

from collections.abc import Callable

import torch
from torch import Tensor


class LossMeter:
    """The mean of layer losses over samples that arrive in pieces of unequal size.

    The sums stay on the losses' device, so adding costs no synchronisation.

    Example:
        >>> meter = LossMeter()
        >>> meter.add(torch.tensor([1.0, 4.0]), items=1)
        >>> meter.add(torch.tensor([2.0, 1.0]), items=3)
        >>> meter.mean()
        tensor([1.7500, 1.7500])
    """

    def __init__(self) -> None:
        self._sums: Tensor | None = None
        self._items = 0

    def add(self, losses: Tensor, items: int) -> None:
        """Add the mean losses (L+1,) of a piece of `items` samples."""
        piece = losses.detach().float() * items
        self._sums = piece if self._sums is None else self._sums + piece
        self._items += items

    def mean(self, reduce: Callable[[Tensor], Tensor] | None = None) -> Tensor | None:
        """The mean over all pieces (and, through `reduce`, over all ranks), on the CPU; None when nothing was added."""
        if self._sums is None:
            return None
        sums = torch.cat([self._sums, self._sums.new_tensor([self._items])])
        sums = (sums if reduce is None else reduce(sums)).cpu()
        return sums[:-1] / sums[-1]

    def clear(self) -> None:
        """Start again."""
        self._sums, self._items = None, 0
