"""Windows: one patch position over T frames, as rows that a denoiser takes."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from layerdescent.data.splits import quotas
from layerdescent.data.video.clips import Clip, longest_stretch, to_unit
from layerdescent.errors import InputError
from layerdescent.files import read_json, write_json

Positions = NDArray[np.int32]
"""(N, 4): clip, first frame, top row, left column of each window."""


class VideoWindows(Dataset[dict[str, Tensor]]):
    """Rows `{"pixel_values": (T, m), "labels": (T, m)}`: grey values in [0, 1], clean, m = patch · patch.

    Both are the same tensor, so whoever adds noise makes a new one. Rows are cut out of the mapped clips when they are
    asked for; which rows there are is fixed, so row i is the same row in every epoch, process and resumed run.

    Args:
        clips: where the windows lie.
        positions: (N, 4) clip (its place in `clips`), first frame, top row, left column.
        frames: T, frames in a window.
        patch: side of the square patch, in pixels.

    Raises:
        InputError: no windows, or one that leaves its clip, its frame, or a stretch without breaks.

    Example:
        >>> from layerdescent.data.video.synthetic import synthetic_clips
        >>> clips = synthetic_clips(clips=2, frames=6, height=16, width=24, seed=0)
        >>> rows = VideoWindows(clips, all_positions(clips, frames=3, patch=8), frames=3, patch=8)
        >>> len(rows), rows[0]["pixel_values"].shape, rows.clip.tolist()[::6]
        (24, torch.Size([3, 64]), [0, 0, 1, 1])
    """

    def __init__(self, clips: Sequence[Clip], positions: Positions, *, frames: int, patch: int) -> None:
        self.clips = list(clips)
        self.frames = frames
        self.patch = patch
        self.positions = np.asarray(positions, dtype=np.int32)
        _check(self.clips, self.positions, frames, patch)

    @property
    def clip(self) -> NDArray[np.int32]:
        """(N,) the clip of each window, its place in `clips`: windows of one clip are not independent, clips are."""
        return self.positions[:, 0]

    @property
    def used_clips(self) -> list[Clip]:
        """The clips that have windows."""
        return [self.clips[number] for number in np.unique(self.clip).tolist()]

    @property
    def clip_names(self) -> list[str]:
        """The names of the clips, in the order of their numbers."""
        return [clip.name for clip in self.clips]

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"window {index} of {len(self)}")
        return self.__getitems__([index])[0]

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[index] for index in range(len(self)))

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Tensor]]:
        """The rows of a batch at once, which torch's DataLoader asks for."""
        return [{"pixel_values": row, "labels": row} for row in torch.from_numpy(self.values(indices)).unbind()]

    def values(self, indices: Sequence[int] | NDArray[np.integer[Any]] | slice = slice(None)) -> NDArray[np.float32]:
        """(B, T, m) the values of some windows, or of all."""
        chosen = self.positions[indices]
        size, length = self.patch, self.frames
        cut = np.empty((len(chosen), length, size, size), dtype=np.uint8)
        pixels = {number: self.clips[number].pixels for number in np.unique(chosen[:, 0]).tolist()}
        for place, (clip, frame, row, column) in enumerate(chosen.tolist()):
            cut[place] = pixels[clip][frame : frame + length, row : row + size, column : column + size]
        return to_unit(cut.reshape(len(chosen), length, size * size))

    def to_dict(self) -> dict[str, Any]:
        """The windows by the names of their clips, for a file."""
        rows = [[self.clips[clip].name, *place] for clip, *place in self.positions.tolist()]
        return {"frames": self.frames, "patch": self.patch, "windows": rows}

    def save(self, path: Path) -> None:
        """Write which windows these are as JSON: `{"frames", "patch", "windows": [[clip, frame, row, column], …]}`."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, clips: Sequence[Clip], path: Path) -> "VideoWindows":
        """The windows that `save` wrote.

        Args:
            clips: clips with the same names; others may be among them.
            path: the file.

        Raises:
            InputError: the file is no list of windows, or names a clip or a place that is not there.
            RunError: the file is missing or no JSON.
        """
        stored = read_json(path)
        if not isinstance(stored, Mapping) or not {"frames", "patch", "windows"} <= stored.keys():
            raise InputError(f"{path} is no list of windows: it needs frames, patch and windows")
        numbers = {clip.name: number for number, clip in enumerate(clips)}
        try:
            named = [(str(clip), int(frame), int(row), int(column)) for clip, frame, row, column in stored["windows"]]
            length, size = int(stored["frames"]), int(stored["patch"])
        except (TypeError, ValueError):
            raise InputError(
                f"{path} is no list of windows: each must be [clip, first frame, row, column], one name and numbers"
            ) from None
        absent = next((clip for clip, *_ in named if clip not in numbers), None)
        if absent is not None:
            raise InputError(f"{path} names the clip {absent!r}, which is not here; here are {', '.join(numbers)}")
        rows = [(numbers[clip], *place) for clip, *place in named]
        return cls(clips, np.array(rows, dtype=np.int32).reshape(-1, 4), frames=length, patch=size)


# Positions ------------------------------------------------------------------------------------------------------------


def random_positions(clips: Sequence[Clip], count: int, *, frames: int, patch: int, seed: int) -> Positions:
    """Windows drawn one by one, each of all that there are with the same chance; for training.

    A window may begin at every frame and every pixel. Window i depends on (seed, i) alone: asking for more windows
    leaves the first ones what they are.

    Args:
        clips: where to draw.
        count: windows wanted.
        frames: T.
        patch: side of the patch, in pixels.
        seed: of the draw.

    Returns:
        (count, 4).

    Raises:
        InputError: no clip has a window.
    """
    options = [_Options(clip, frames, patch) for clip in clips]
    _check_some(options, clips, frames, patch)
    draws = np.random.default_rng(seed).random((count, 4))
    ends = np.cumsum([option.count for option in options])
    chosen = np.searchsorted(ends, (draws[:, 0] * ends[-1]).astype(np.int64), side="right")
    positions = np.empty((count, 4), dtype=np.int32)
    positions[:, 0] = chosen
    for number, option in enumerate(options):
        rows = np.flatnonzero(chosen == number)
        if rows.size:
            # Floats below 1 times n, rounded down, stay below n for every n that fits an image.
            start, row, column = (draws[rows, 1:] * option.shape).astype(np.int64).T
            positions[rows, 1:] = np.stack([option.starts[start], row, column], axis=1)
    return positions


def sampled_positions(clips: Sequence[Clip], count: int, *, frames: int, patch: int, seed: int) -> Positions:
    """Different windows drawn from every clip, in proportion to how many each has; for evaluation.

    Every clip that has a window gets one at least, where `count` suffices. What is drawn from a clip depends on its
    name, on the seed and on how many are drawn, not on the other clips.

    Args:
        clips: where to draw.
        count: windows wanted.
        frames: T.
        patch: side of the patch, in pixels.
        seed: of the draw.

    Returns:
        (count, 4), in the order of clips, frames, rows, columns; all there are where that is fewer than `count`.

    Raises:
        InputError: no clip has a window.
    """
    options = [_Options(clip, frames, patch) for clip in clips]
    _check_some(options, clips, frames, patch)
    sizes = {number: option.count for number, option in enumerate(options) if option.count}
    count = min(count, sum(sizes.values()))
    firsts = len(sizes) if count >= len(sizes) else 0
    shares = quotas({number: size - bool(firsts) for number, size in sizes.items()}, count - firsts)
    positions = []
    for number, share in shares.items():
        number = cast(int, number)
        option = options[number]
        generator = np.random.default_rng([seed, zlib.crc32(clips[number].name.encode())])
        drawn = np.sort(generator.choice(option.count, size=share + bool(firsts), replace=False, shuffle=False))
        start, row, column = np.unravel_index(drawn, option.shape)
        positions.append(np.stack([np.full_like(drawn, number), option.starts[start], row, column], axis=1))
    return np.concatenate(positions).astype(np.int32)


def all_positions(clips: Sequence[Clip], *, frames: int, patch: int) -> Positions:
    """The windows that tile every clip without overlap: each pixel in one window at most.

    What a last incomplete tile would cover (fewer than T frames at the end of a stretch, fewer than `patch` rows or
    columns at the bottom and the right) is in no window.

    Args:
        clips: what to tile.
        frames: T.
        patch: side of the patch, in pixels.

    Returns:
        (N, 4), in the order of clips, frames, rows, columns.

    Raises:
        InputError: no clip has a window.
    """
    _check_some([_Options(clip, frames, patch) for clip in clips], clips, frames, patch)
    positions = []
    for number, clip in enumerate(clips):
        height, width = clip.size
        starts = [first for start, stop in clip.stretches for first in range(start, stop - frames + 1, frames)]
        rows, columns = range(0, height - patch + 1, patch), range(0, width - patch + 1, patch)
        grid = np.array(np.meshgrid([number], starts, rows, columns, indexing="ij"), dtype=np.int32)
        positions.append(grid.reshape(4, -1).T)
    return np.concatenate(positions)


class _Options:
    """Where windows can be in one clip."""

    def __init__(self, clip: Clip, frames: int, patch: int) -> None:
        height, width = clip.size
        self.starts = clip.starts(frames)
        self.shape = (len(self.starts), max(0, height - patch + 1), max(0, width - patch + 1))
        self.count = int(np.prod(self.shape, dtype=np.int64))


def _check_some(options: Sequence[_Options], clips: Sequence[Clip], frames: int, patch: int) -> None:
    if frames < 1 or patch < 1:
        raise InputError(f"a window has {frames} frames and a patch of {patch} pixels; give 1 or more of each")
    if any(option.count for option in options):
        return
    if not clips:
        raise InputError("there are no clips to take windows from; give some")
    largest = max((clip.size for clip in clips), key=min)
    raise InputError(
        f"no clip has a window of {frames} frames of {patch}x{patch} pixels: the longest stretch without a break has "
        f"{longest_stretch(clips)} frames, and the largest frame is {largest[1]}x{largest[0]}; ask for smaller windows"
    )


def _check(clips: Sequence[Clip], positions: Positions, frames: int, patch: int) -> None:
    """Every window lies in its clip; a slice that leaves it would be short, or silently another one."""
    if positions.ndim != 2 or positions.shape[1:] != (4,) or not len(positions):
        raise InputError(f"positions must be (N, 4), N at least 1, but their shape is {positions.shape}")
    if positions.min() < 0 or positions[:, 0].max() >= len(clips):
        raise InputError(f"positions must count clips from 0 to {len(clips) - 1}, and frames and pixels from 0")
    for number in np.unique(positions[:, 0]).tolist():
        option = _Options(clips[number], frames, patch)
        _, *place = positions[positions[:, 0] == number].T
        outside = ~np.isin(place[0], option.starts) | (place[1] >= option.shape[1]) | (place[2] >= option.shape[2])
        if outside.any():
            frame, row, column = (int(values[outside][0]) for values in place)
            raise InputError(
                f"a window of {frames} frames of {patch}x{patch} pixels at frame {frame}, row {row}, column {column} "
                f"is not inside the usable frames of clip {clips[number].name}"
            )
