"""Smaller frames by the area filter: every new pixel is the mean of the old ones it covers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerdescent.data.video.decode import Grey
from layerdescent.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Resize:
    """How frames are made smaller; by neither field they stay as they are.

    Attributes:
        longest_side: the longer of width and height afterwards, in pixels; smaller frames stay as they are.
        scale: the factor for both sides, in (0, 1].
    """

    longest_side: int | None = None
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.longest_side is not None and self.scale is not None:
            raise InputError("both longest_side and scale are given; give one of them")
        if self.longest_side is not None and self.longest_side < 1:
            raise InputError(f"longest_side is {self.longest_side}; give 1 pixel or more")
        if self.scale is not None and not 0 < self.scale <= 1:
            raise InputError(
                f"scale is {self.scale}; give a factor above 0 and at most 1: frames are only made smaller"
            )

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width afterwards.

        Example:
            >>> Resize(longest_side=320).size(360, 640), Resize(scale=0.5).size(158, 238), Resize().size(5, 6)
            ((180, 320), (79, 119), (5, 6))
        """
        factor = self.scale or 1.0
        if self.longest_side is not None:
            factor = min(1.0, self.longest_side / max(height, width))
        return max(1, round(height * factor)), max(1, round(width * factor))

    def __call__(self, frame: Grey) -> Grey:
        """A (H, W) frame, made smaller and rounded to bytes."""
        height, width = self.size(*frame.shape)
        if (height, width) == frame.shape:
            return frame
        return np.rint(area_means(area_means(frame, height).T, width).T).astype(np.uint8)


def area_means(values: NDArray[np.number], after: int) -> NDArray[np.float64]:
    """Makes the first axis shorter: every new value is the mean of the old ones over the stretch it stands for.

    y_i = (1/s) ∫ x over [i s, (i + 1) s), s = before / after, with x constant over each old pixel. So flat areas stay
    what they are, and so does the mean.

    Args:
        values: (before, ...).
        after: its length afterwards, 1 … before.

    Returns:
        (after, ...).

    Example:
        >>> area_means(np.array([3.0, 6.0, 0.0]), 2)
        array([4., 2.])
    """
    before = len(values)
    edges = np.linspace(0, before, after + 1)
    whole = np.minimum(edges.astype(np.int64), before - 1)
    rest = (edges - whole).reshape(-1, *(1,) * (values.ndim - 1))
    integral = np.zeros((before + 1, *values.shape[1:]))
    np.cumsum(values, axis=0, out=integral[1:])
    at_edges = integral[whole] + rest * values[whole]
    return np.asarray(np.diff(at_edges, axis=0) * (after / before))
