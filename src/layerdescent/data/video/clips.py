"""A clip whose frames are at hand, in memory or mapped from a file, and which of them may stand in one window."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from layerdescent.data.video.decode import Flaw, Grey

Stretch = tuple[int, int]
"""First frame and the frame after the last of frames that follow each other without a break."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Clip:
    """The usable frames of one clip.

    Attributes:
        name: unique in its data set.
        store: (N, H, W) grey bytes, or the .npy file that holds them.
        stretches: where frames follow each other without a break; a window never leaves its stretch.
        flaws: frames that could not be used.
        part: "train" or "test" where the data set says so.
        camera: clips of one name here were filmed by one camera that does not move.
    """

    name: str
    store: Path | Grey = field(repr=False)
    stretches: tuple[Stretch, ...]
    flaws: tuple[Flaw, ...] = ()
    part: Literal["train", "test"] | None = None
    camera: str

    @cached_property
    def pixels(self) -> Grey:
        """(N, H, W) grey bytes, N counting usable frames only; those of a file are read when they are touched."""
        if isinstance(self.store, Path):
            # As a plain array: the subclass for mapped files makes every slice slow.
            return np.load(self.store, mmap_mode="r").view(np.ndarray)
        return self.store

    def __getstate__(self) -> dict[str, Any]:
        """Without the mapped file, which another process maps for itself."""
        return {name: value for name, value in self.__dict__.items() if name != "pixels"}

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of a frame, in pixels."""
        return self.pixels.shape[1], self.pixels.shape[2]

    @property
    def num_frames(self) -> int:
        """Frames in all stretches together."""
        return sum(stop - start for start, stop in self.stretches)

    def frames(self, start: int, stop: int) -> NDArray[np.float32]:
        """(stop - start, H, W) whole frames with values in [0, 1]."""
        return to_unit(self.pixels[start:stop])

    def spread(self, count: int) -> Grey:
        """At most `count` of its frames, at even distances."""
        frames = np.concatenate([np.arange(start, stop) for start, stop in self.stretches] or [np.arange(0)])
        if len(frames) > count:
            frames = frames[np.linspace(0, len(frames) - 1, count).round().astype(np.int64)]
        return self.pixels[frames]

    def starts(self, length: int) -> NDArray[np.int64]:
        """The frames at which a window of so many frames can begin, in order."""
        ranges = [np.arange(start, stop - length + 1) for start, stop in self.stretches if stop - start >= length]
        return np.concatenate(ranges) if ranges else np.arange(0)

    def within(self, start: int, stop: int) -> "Clip":
        """The same clip with no frame outside start … stop - 1."""
        inside = [(max(first, start), min(last, stop)) for first, last in self.stretches]
        return replace(self, stretches=tuple((first, last) for first, last in inside if first < last))


def to_unit(grey: Grey) -> NDArray[np.float32]:
    """Grey bytes as numbers in [0, 1]: x = byte / 255.

    Example:
        >>> to_unit(np.array([0, 51, 255], dtype=np.uint8))
        array([0. , 0.2, 1. ], dtype=float32)
    """
    return np.divide(grey, np.float32(255), dtype=np.float32)


def longest_stretch(clips: Iterable[Clip]) -> int:
    """The most frames of any of the clips that follow each other without a break."""
    return max((stop - start for clip in clips for start, stop in clip.stretches), default=0)


def merged(flaws: Sequence[Flaw]) -> Iterator[Flaw]:
    """Flaws that follow each other at one place for one reason, as one."""
    current: Flaw | None = None
    for flaw in flaws:
        if current is not None and (current.where, current.reason) == (flaw.where, flaw.reason):
            current = replace(current, frames=current.frames + flaw.frames)
        else:
            if current is not None:
                yield current
            current = flaw
    if current is not None:
        yield current
