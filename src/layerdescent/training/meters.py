"""The mean of layer losses over what belongs together: an optimiser step, a logging window, an evaluation."""

from collections.abc import Callable

import torch
from torch import Tensor


class LossMeter:
    """The mean of layer losses over samples that arrive in pieces of unequal size.

    The sums stay on the losses' device, so adding costs no synchronisation.

    Args:
        size: number of losses, L+1.
        device: of the losses.

    Example:
        >>> meter = LossMeter(2)
        >>> meter.add(torch.tensor([1.0, 4.0]), items=1)
        >>> meter.add(torch.tensor([2.0, 1.0]), items=3)
        >>> meter.mean()
        tensor([1.7500, 1.7500])
    """

    def __init__(self, size: int, device: torch.device | str = "cpu") -> None:
        self._sums = torch.zeros(size + 1, device=device)

    def add(self, losses: Tensor, items: int) -> None:
        """Add the mean losses (size,) of a piece of `items` samples; of no samples, nothing, whatever their mean."""
        if items:
            self._sums[:-1] += losses.detach().float() * items
            self._sums[-1] += items

    def mean(self, reduce: Callable[[Tensor], Tensor] | None = None) -> Tensor | None:
        """The mean over all pieces (and, through `reduce`, over all ranks), on the CPU; None without a sample."""
        sums = (self._sums if reduce is None else reduce(self._sums.clone())).cpu()
        return sums[:-1] / sums[-1] if sums[-1] else None

    def clear(self) -> None:
        """Start again."""
        self._sums.zero_()
