"""Denoisers that know next to nothing. What loses to one of them is not worth its parameters.

Each takes noisy windows (..., T, m) as they are, values outside [0, 1] included, and gives estimates of that shape.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from layerdescent.data.video.clips import Clip, to_unit
from layerdescent.data.video.windows import VideoWindows
from layerdescent.errors import InputError

Values = NDArray[np.float32]

_FRAMES = 200  # of each camera or clip: more would not move a median or a mean


def constant_mean(noisy: Values, mean: float) -> Values:
    """One number everywhere: the mean of the training pixels, which minimises the squared error among constants.

    Args:
        noisy: (..., T, m).
        mean: see `training_mean`.

    Example:
        >>> constant_mean(np.zeros((1, 2), dtype=np.float32), 0.25)
        array([[0.25, 0.25]], dtype=float32)
    """
    return np.full_like(noisy, mean)


def temporal_mean(noisy: Values) -> Values:
    """Every pixel is its mean over the window's frames: s_tj = (1/T) sum_t x_tj.

    Args:
        noisy: (..., T, m).

    Example:
        >>> temporal_mean(np.array([[0, 1], [2, 3]], dtype=np.float32))
        array([[1., 2.],
               [1., 2.]], dtype=float32)
    """
    return np.broadcast_to(noisy.mean(axis=-2, keepdims=True), noisy.shape).copy()


def patch_mean(noisy: Values) -> Values:
    """Every pixel is the mean of its patch in its frame: s_tj = (1/m) sum_j x_tj.

    Args:
        noisy: (..., T, m).

    Example:
        >>> patch_mean(np.array([[0, 1], [2, 3]], dtype=np.float32))
        array([[0.5, 0.5],
               [2.5, 2.5]], dtype=float32)
    """
    return np.broadcast_to(noisy.mean(axis=-1, keepdims=True), noisy.shape).copy()


def frame_patch_mean(noisy: Values, patch: int) -> Values:
    """What `patch_mean` is on whole frames, which patches tile from the upper left; the last ones may be smaller.

    Args:
        noisy: (..., H, W).
        patch: side of the patch, in pixels.

    Example:
        >>> frame_patch_mean(np.array([[0, 1, 7], [2, 3, 9]], dtype=np.float32), 2)
        array([[1.5, 1.5, 8. ],
               [1.5, 1.5, 8. ]], dtype=float32)
    """
    means = noisy
    for axis in (-2, -1):
        starts = np.arange(0, noisy.shape[axis], patch)
        sizes = np.diff(starts, append=noisy.shape[axis])
        sums = np.add.reduceat(means, starts, axis=axis)
        means = np.repeat(sums / (sizes[:, None] if axis == -2 else sizes), sizes, axis=axis)
    return means.astype(np.float32)


def background_windows(
    windows: VideoWindows, backgrounds: Mapping[str, Values], indices: Sequence[int] | slice = slice(None)
) -> Values:
    """What the camera saw there in training: the background at the window's place, in each of its frames.

    It does not look at the noisy window at all, so its error is the same at every noise level.

    Args:
        windows: where the windows are.
        backgrounds: see `training_backgrounds`.
        indices: of which windows; by default all.

    Returns:
        (B, T, m).

    Raises:
        InputError: a window's camera has no background of the frames' size.
    """
    chosen = windows.positions[indices]
    size = windows.patch
    patches = np.empty((len(chosen), 1, size * size), dtype=np.float32)
    for place, (number, _, row, column) in enumerate(chosen.tolist()):
        clip = windows.clips[number]
        background = backgrounds.get(clip.camera)
        if background is None or background.shape != clip.size:
            raise InputError(
                f"no training clip shows what the camera of {clip.name} sees ({clip.camera}, {clip.size[1]}x"
                f"{clip.size[0]}); leave the background out of the comparison"
            )
        patches[place] = background[row : row + size, column : column + size].reshape(1, -1)
    return np.broadcast_to(patches, (len(chosen), windows.frames, size * size)).copy()


def median_background(frames: NDArray[np.uint8]) -> Values:
    """What a camera that stands still sees when nothing moves: the median of every pixel over the frames.

    Args:
        frames: (N, H, W) grey bytes.

    Returns:
        (H, W) in [0, 1].

    Example:
        >>> median_background(np.array([[[0]], [[51]], [[255]]], dtype=np.uint8))
        array([[0.2]], dtype=float32)
    """
    return (np.median(frames, axis=0) / 255).astype(np.float32)


def training_backgrounds(clips: Sequence[Clip]) -> dict[str, Values]:
    """The background of every camera that filmed training clips, over 200 frames at even distances (or all).

    Cameras whose clips have several sizes are left out.

    Args:
        clips: the training clips.

    Returns:
        From camera to (H, W) values in [0, 1].
    """
    backgrounds = {}
    for camera in dict.fromkeys(clip.camera for clip in clips):
        filmed = [clip for clip in clips if clip.camera == camera]
        if len({clip.size for clip in filmed}) == 1:
            share = -(-_FRAMES // len(filmed))
            backgrounds[camera] = median_background(np.concatenate([clip.spread(share) for clip in filmed]))
    return backgrounds


def training_mean(clips: Sequence[Clip]) -> float:
    """The mean of the training pixels, every clip in proportion to its pixels, over at most 200 frames of each.

    Args:
        clips: the training clips.
    """
    weights = [float(clip.num_frames * clip.size[0] * clip.size[1]) for clip in clips]
    means = [float(to_unit(clip.spread(_FRAMES)).mean(dtype=np.float64)) for clip in clips]
    return float(np.average(means, weights=weights))
