"""A video through a denoiser, frame by frame: read, disturbed if asked, denoised, measured if possible, written."""

import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from layerdescent.data.video.clips import merged
from layerdescent.data.video.decode import Flaw, video_packages
from layerdescent.data.video.layouts import IMAGE_SUFFIXES, ClipSource, find_clips
from layerdescent.denoise.pictures import Colour, Details, Picture, details_of, pictures
from layerdescent.denoise.writing import beside, check_target, is_folder, padded, written
from layerdescent.errors import InputError, RunError
from layerdescent.evaluation.batches import ModelOrPath, load_model
from layerdescent.models import VideoDenoiser

Item = TypeVar("Item")


@dataclass(frozen=True)
class LayerQuality:
    """How near one layer's video comes to the clean one, over all pixels and frames together.

    Attributes:
        rmse: root of the mean squared error, with white at 1.
        rmse_clipped: the same after clipping to [0, 1], as a file holds it.
        psnr: -20 log10(rmse_clipped), in dB.
    """

    rmse: float
    rmse_clipped: float

    @property
    def psnr(self) -> float:
        """Peak signal-to-noise ratio; infinite where all is exact."""
        return -20 * math.log10(self.rmse_clipped) if self.rmse_clipped else math.inf


@dataclass(frozen=True, kw_only=True)
class DenoisedVideo:
    """What `denoise_video` did.

    Attributes:
        out: the file or folder.
        frames: frames written.
        size: height and width of the video that was read.
        layers: how many layers ran.
        quality: of the input and of each layer, layers + 1 of them; None where no clean video is known.
        notes: what the user should know: frames that were lost, sound that was left out, …
        seconds: from the first frame to the last, reading and writing included.
    """

    out: Path
    frames: int
    size: tuple[int, int]
    layers: int
    quality: tuple[LayerQuality, ...] | None
    notes: tuple[str, ...]
    seconds: float

    @property
    def frames_per_second(self) -> float:
        """How fast it went."""
        return self.frames / self.seconds


def denoise_video(
    model: ModelOrPath,
    source: str | Path,
    out: str | Path,
    *,
    gamma: float | None = None,
    seed: int = 0,
    layers: int | None = None,
    colour: Colour = "luma",
    side_by_side: bool = False,
    clean: str | Path | None = None,
    rate: float | None = None,
    sound: bool = True,
    overwrite: bool = False,
    stride: int | None = None,
    frame_stride: int | None = None,
    batch_size: int = 1024,
    progress: bool = False,
) -> DenoisedVideo:
    """Denoise a video of any length; memory holds about one window of frames.

    Args:
        model: a checkpoint of a denoiser, or the model itself.
        source: a video file, or a folder of numbered images.
        out: a video file (.mp4, .m4v, .mov, .mkv, .webm, .avi), or a name without a suffix: a folder of PNG frames. It
            is there when all is done, and not before.
        gamma: standard deviation of gaussian noise that is added first, with white at 1; the source is the clean video
            then. None denoises what is there.
        seed: of that noise, which depends on it and on the number of the frame, and on nothing else.
        layers: stop after this many of the model's layers, which takes so much less time; all by default.
        colour: "luma" denoises luma and keeps the colour, "channels" denoises red, green and blue, each for itself.
        side_by_side: write what the model was given, and what it made of it beside.
        clean: the clean video, frame for frame, where the source is a noisy one: quality is measured against it.
        rate: frames a second of a folder of images, which does not say; 25 by default.
        sound: whether sound is copied from video to video.
        overwrite: whether what is at `out` may be replaced; a folder only if it holds nothing but PNG frames.
        stride: pixels from one patch to the next, as in `VideoDenoiser`; time goes with 1 / stride^2.
        frame_stride: frames from one window to the next, as in `VideoDenoiser`.
        batch_size: most patches in one forward pass.
        progress: whether a bar shows.

    Raises:
        InputError: there is nothing to read, the model is no denoiser of pixels, `out` cannot be, or an option.
        RunError: the checkpoint is damaged, its estimates are not finite, or no space is left.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> from layerdescent.models import IstaConfig, IstaForDenoising
        >>> model = IstaForDenoising(IstaConfig(num_pixels=16, num_frames=2, hidden_size=16, num_hidden_layers=2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for number in range(4):
        ...         Image.new("L", (12, 10), 40 * number).save(f"{folder}/{number}.png")
        ...     done = denoise_video(model, folder, f"{folder}/denoised", gamma=0.1)
        ...     sorted(file.name for file in done.out.iterdir())
        ['0.png', '1.png', '2.png', '3.png']
        >>> len(done.quality)  # the noisy input and two layers
        3
    """
    target, given = Path(out).expanduser(), [Path(path).expanduser() for path in (source, clean) if path is not None]
    with video_packages():
        import av  # noqa: F401
        import PIL  # noqa: F401
    check_target(target, *given, overwrite=overwrite)
    _check_noise(gamma, clean)
    if colour not in ("luma", "channels"):
        raise InputError(f"colour is {colour!r}; give luma or channels")
    clip = _one_clip(given[0])
    details = details_of(clip, rate)
    denoiser = VideoDenoiser(load_model(model), stride=stride, frame_stride=frame_stride, batch_size=batch_size)
    depth = _depth(denoiser, layers)
    lost: list[Flaw] = []
    first, stream = _peeked(pictures(clip, details, colour, lost))
    errors = None
    if clean is not None:
        errors = _Errors(depth, _Reference(_one_clip(given[1]), details, first, colour))
    elif gamma is not None:
        errors = _Errors(depth)
    height, width = first.shape
    written_size = (height, 2 * width) if side_by_side else (height, width)
    frames = 0
    started = time.monotonic()
    with (
        written(target, details, written_size, sound) as write,
        tqdm(total=details.frames, desc="denoising", unit="frame", disable=not progress, leave=False) as bar,
    ):
        disturbed = ((picture, _disturbed(picture, gamma, seed, frame)) for frame, picture in enumerate(stream))
        for picture, values, estimates in _denoised(denoiser, disturbed, len(first.values), depth, errors is not None):
            if not bool(torch.isfinite(estimates).all()):
                raise RunError(
                    f"what the model makes of frame {frames + 1} is not finite: the model has diverged, so train it "
                    "again with a smaller learning rate" + ("" if gamma is None else "; or gamma is far too large")
                )
            if errors is not None:
                errors.add(picture, estimates)
            result = replace(picture, values=estimates[-1])
            write(beside(replace(picture, values=values), result) if side_by_side else result)
            frames += 1
            bar.update()
    seconds = time.monotonic() - started
    quality, reason = (None, None) if errors is None else errors.quality(lost)
    return DenoisedVideo(
        out=target,
        frames=frames,
        size=(height, width),
        layers=depth,
        quality=quality,
        notes=(*_lost(lost), *_changes(target, written_size, details, sound), *([reason] if reason else [])),
        seconds=seconds,
    )


def _check_noise(gamma: float | None, clean: str | Path | None) -> None:
    if gamma is None:
        return
    if not (math.isfinite(gamma) and gamma >= 0):
        raise InputError(f"gamma is {gamma}; give a standard deviation of 0 or more, with white at 1")
    if clean is not None:
        raise InputError("both a gamma and a clean video are given: with noise of our own, IN itself is the clean one")


def _one_clip(path: Path) -> ClipSource:
    if not path.exists():
        raise InputError(f"{path} is no file or folder here; give a video file, or a folder of numbered images")
    # A folder of frames may hold a video made of them.
    images = any(entry.suffix.lower() in IMAGE_SUFFIXES for entry in path.glob("[!.]*")) and path.is_dir()
    found = find_clips(path, "frames" if images else "auto").clips
    if len(found) > 1:
        named = ", ".join(str(clip.path) for clip in found[:3])
        raise InputError(f"{path} holds {len(found)} clips; give one of them: {named}{', …' if len(found) > 3 else ''}")
    return found[0]


def _depth(denoiser: VideoDenoiser, layers: int | None) -> int:
    deepest: int = denoiser.model.config.num_hidden_layers
    if layers is None:
        return deepest
    if not 1 <= layers <= deepest:
        raise InputError(
            f"{layers} layers are asked for, and the model has {deepest}; give a number from 1 to {deepest}"
        )
    return layers


def _peeked(stream: Iterator[Picture]) -> tuple[Picture, Iterator[Picture]]:
    """The first picture, and all of them."""
    first = next(stream)  # reading raises where there is none
    return first, chain([first], stream)


def _disturbed(picture: Picture, gamma: float | None, seed: int, frame: int) -> Tensor:
    """The picture's values under noise; its generator depends on seed and frame, so no frame needs the others."""
    if gamma is None:
        return picture.values
    noise = np.random.default_rng([seed, frame]).standard_normal(picture.values.shape, dtype=np.float32)
    return picture.values + gamma * torch.from_numpy(noise)


def _denoised(
    denoiser: VideoDenoiser,
    disturbed: Iterator[tuple[Picture, Tensor]],
    channels: int,
    layers: int,
    every_layer: bool,
) -> Iterator[tuple[Picture, Tensor, Tensor]]:
    """Each picture, what the model was given of it (C, H, W), and its estimates (K, C, H, W), the last layer's last.

    Every channel is a video of its own. All are pulled at one pace, so that none holds more than its window.
    """
    shown, *branches = _shared(disturbed, channels + 1)

    def video(channel: int) -> Iterable[Tensor]:
        return (values[channel] for _, values in branches[channel])

    streams = [denoiser.stream(video(channel), layers, every_layer=every_layer) for channel in range(channels)]
    for (picture, values), *parts in zip(shown, *streams, strict=True):
        estimates = torch.stack(parts, dim=-3)
        yield picture, values, estimates if every_layer else estimates[None]


def _shared(source: Iterator[Item], readers: int) -> list[Iterator[Item]]:
    """One iterator for several readers; as `itertools.tee`, which keeps up to 57 items that all have read."""
    waiting: list[deque[Item]] = [deque() for _ in range(readers)]

    def read(own: deque[Item]) -> Iterator[Item]:
        while True:
            if not own:
                try:
                    item = next(source)
                except StopIteration:
                    return
                for queue in waiting:
                    queue.append(item)
                del item
            yield own.popleft()

    return [read(own) for own in waiting]


# Quality --------------------------------------------------------------------------------------------------------------


class _Reference:
    """The clean video beside the noisy one."""

    def __init__(self, clip: ClipSource, noisy: Details, first: Picture, colour: Colour) -> None:
        self.name = clip.path
        self.flaws: list[Flaw] = []
        details = details_of(clip)
        clean, self.stream = _peeked(pictures(clip, details, colour, self.flaws))
        if clean.values.shape != first.values.shape:
            sizes = [" x ".join(str(length) for length in each.values.shape) for each in (clean, first)]
            raise InputError(
                f"the clean video {clip.path} is {sizes[0]} (channels x height x width), and IN is {sizes[1]}; "
                "give the clean version of IN itself"
            )
        if details.frames is not None and noisy.frames is not None and details.frames != noisy.frames:
            raise InputError(
                f"the clean video {clip.path} has {details.frames} frames, and IN has {noisy.frames}; give the clean "
                "version of IN, frame for frame"
            )


class _Errors:
    """Squared errors of every layer, summed frame by frame: of the values as they are, and clipped."""

    def __init__(self, layers: int, reference: _Reference | None = None) -> None:
        self.reference = reference
        self.sums = torch.zeros(2, layers + 1, dtype=torch.float64)
        self.count = 0
        self.short = False

    def add(self, picture: Picture, estimates: Tensor) -> None:
        """One more frame; estimates (L + 1, C, H, W)."""
        clean = picture if self.reference is None else next(self.reference.stream, None)
        if clean is None:
            self.short = True
            return
        for row, values in enumerate((estimates, estimates.clamp(0, 1))):
            self.sums[row] += (values - clean.values).square().sum(dim=(1, 2, 3), dtype=torch.float64)
        self.count += clean.values.numel()

    def quality(self, lost: list[Flaw]) -> tuple[tuple[LayerQuality, ...] | None, str | None]:
        """Of each layer; or why there is none."""
        if self.reference is not None:
            if any(flaw.frames for flaw in [*lost, *self.reference.flaws]):
                return None, "nothing is measured: frames are lost, so it is unknown which clean one belongs to which"
            longer = not self.short and next(self.reference.stream, None) is not None
            if self.short or longer:
                which = "fewer" if self.short else "more"
                return None, f"nothing is measured: {self.reference.name} has {which} frames than IN"
        pairs = (self.sums / self.count).sqrt().T.tolist()
        return tuple(LayerQuality(*pair) for pair in pairs), None


# Notes ----------------------------------------------------------------------------------------------------------------


def _lost(flaws: list[Flaw]) -> list[str]:
    counts = {0: "", 1: "1 frame lost, "}
    return [
        f"{counts.get(flaw.frames, f'{flaw.frames} frames lost, ')}{flaw.where}: {flaw.reason}"
        for flaw in merged(flaws)
    ]


def _changes(target: Path, size: tuple[int, int], details: Details, sound: bool) -> list[str]:
    notes = []
    if (even := padded(target, size)) != size:
        notes.append(f"{size[1]}x{size[0]} is written as {even[1]}x{even[0]}: the codec takes even sizes only")
    if is_folder(target) and sound and details.sound is not None:
        notes.append("the sound is left out: a folder of frames has none")
    return notes
