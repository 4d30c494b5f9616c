"""Whole frames of test clips through final models: how near they come to the clean ones, and pictures of every layer.

Windows of patches are what models are trained and compared on; frames are what people look at. The frames are few and
fixed, and each model denoises them once.
"""

import logging
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from layerdescent.data.splits import in_line
from layerdescent.data.video.clips import Clip, longest_stretch
from layerdescent.data.video.quality import ssim
from layerdescent.errors import InputError, NonFiniteLossError
from layerdescent.evaluation.batches import load_model
from layerdescent.evaluation.shelf import Shelf
from layerdescent.models import VideoDenoiser
from layerdescent.perturbation import Perturbation
from layerdescent.statistics import Estimate, paired_difference, paired_root_difference

logger = logging.getLogger(__name__)

Frames = NDArray[np.float32]
Key = tuple[str, int]
Measures = dict[str, NDArray[np.float64]]
"""Of every frame, each (clips, frames): `mse`, `mse_clipped`, `psnr`, and `ssim` where it can be had."""

PICTURE_SIDE = 128
"""The most pixels that a side of a picture has: more would not be seen beside a dozen others."""


@dataclass(frozen=True, eq=False)
class Stretch:
    """Frames of a clip that follow each other, whole or the same part of each.

    Attributes:
        clip: the clip.
        first: its first frame, among the clip's usable ones.
        values: (F, H, W) in [0, 1].
        row: the first row.
        column: the first column.
    """

    clip: Clip
    first: int
    values: Frames
    row: int = 0
    column: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Where it is, as plain values."""
        frames, height, width = self.values.shape
        size = {"frames": frames, "height": height, "width": width}
        return {"clip": self.clip.name, "first": self.first} | size | {"row": self.row, "column": self.column}

    def under(self, noise: Perturbation) -> Frames:
        """Its frames under noise, drawn once for the whole stretch: the same for every model."""
        return noise.on_pixels(self.values[None])[0]


Trivial = Callable[[Stretch, Frames], Mapping[str, Frames]]
"""(stretch, its noisy frames) -> by name the estimates of denoisers that have learned nothing."""


def sampled_stretches(clips: Sequence[Clip], count: int, *, frames: int, seed: int) -> list[Stretch]:
    """One stretch out of each of some clips.

    Which clips, and where the stretch begins, depends on the clips' names and on the seed: more clips leave the first
    ones what they are.

    Args:
        clips: where to draw.
        count: clips wanted; all that are long enough where there are fewer.
        frames: F, frames that follow each other without a break.
        seed: of the draw.

    Returns:
        The stretches, in the order of the clips.

    Raises:
        InputError: no clip is long enough.

    Example:
        >>> from layerdescent.data.video import synthetic_clips
        >>> clips = synthetic_clips(clips=3, frames=10, height=16, width=24, seed=0)
        >>> [stretch.values.shape for stretch in sampled_stretches(clips, 2, frames=4, seed=0)]
        [(4, 16, 24), (4, 16, 24)]
    """
    fitting = [clip for clip in clips if len(clip.starts(frames))]
    if not fitting:
        raise InputError(
            f"no test clip has {frames} frames without a break, the longest stretch has {longest_stretch(clips)}: "
            "set evaluation.whole_frames.frames to fewer"
        )
    names = in_line((clip.name for clip in fitting), seed)[:count]
    chosen = []
    for clip in fitting:
        if clip.name in names:
            drawn = np.random.default_rng([seed, zlib.crc32(clip.name.encode())]).choice(clip.starts(frames))
            chosen.append(Stretch(clip, int(drawn), clip.frames(int(drawn), int(drawn) + frames)))
    return chosen


def busiest_part(stretch: Stretch, side: int = PICTURE_SIDE) -> Stretch:
    """The part of a stretch where most happens: the square (or less) whose pixels vary most over time.

    Args:
        stretch: whole frames.
        side: the most rows and columns of the part.

    Example:
        >>> from layerdescent.data.video import synthetic_clips
        >>> (clip,) = synthetic_clips(clips=1, frames=4, height=16, width=24, seed=0)
        >>> part = busiest_part(Stretch(clip, 0, clip.frames(0, 4)), side=20)
        >>> part.values.shape, part.row
        ((4, 16, 20), 0)
    """
    _, height, width = stretch.values.shape
    rows, columns = min(side, height), min(side, width)
    motion = stretch.values.var(axis=0, dtype=np.float64)
    sums = np.pad(motion, ((1, 0), (1, 0))).cumsum(axis=0).cumsum(axis=1)
    inside = sums[rows:, columns:] - sums[:-rows, columns:] - sums[rows:, :-columns] + sums[:-rows, :-columns]
    row, column = (int(at) for at in np.unravel_index(inside.argmax(), inside.shape))
    part = stretch.values[:, row : row + rows, column : column + columns]
    return replace(stretch, values=part, row=stretch.row + row, column=stretch.column + column)


# Quality -------------------------------------------------------------------------------------------------------------


def frame_quality(
    models: Mapping[Key, Path],
    stretches: Sequence[Stretch],
    noises: Sequence[Perturbation],
    *,
    trivial: Trivial | None = None,
    baseline: str | None = None,
    store: Path | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Denoise whole frames with every model under every noise, and measure each frame.

        RMSE = sqrt(mean over frames of the MSE),   of outputs as they are and clipped to [0, 1]
        PSNR = mean over frames of -10 log10(MSE) dB and SSIM, of outputs clipped to [0, 1], as a file would hold them

    Args:
        models: checkpoints of denoisers, by arm and seed.
        stretches: the frames, as many of each clip.
        noises: what is put on them.
        trivial: denoisers that have learned nothing, measured beside the models.
        baseline: the arm that the others are paired with, by seed; None for no pairs.
        store: a folder that keeps every finished (model, noise), so that an interrupted evaluation goes on where it
            was.
        progress: show a bar.

    Returns:
        `clips`, the stretches; `runs` and `trivial`, each row with `rmse`, `rmse_clipped`, `psnr`, `ssim` (None without
        scikit-image or for frames below 11x11 pixels) and the means of each clip in `by_clip`; and `paired`, the
        differences of the same four to the baseline, with intervals over clips and seeds where there are two clips.

    Raises:
        RunError: a damaged checkpoint, an output that is not finite, or no space left in the store.
    """
    reason = _no_ssim(stretches)
    if reason is not None:
        logger.warning("whole frames are measured without SSIM: %s", reason)
    measured: dict[tuple[Key, int], Measures] = {}
    shelf = Shelf(store)
    total = len(models) * len(noises) * len(stretches)
    with tqdm(total=total, desc="whole frames", unit="clip", disable=not progress) as bar:
        for key, path in models.items():
            bar.set_postfix_str(f"{key[0]} seed {key[1]}")
            denoiser = _Denoiser(path)
            for at, noise in enumerate(noises):
                this = _identity(shelf, path, stretches, noise) | {"whole_frames": {"ssim": reason is None}}
                stored = shelf.get(this)
                if stored is None:
                    estimates = (denoiser(stretch, noise) for stretch in stretches)
                    arrays = _measures(stretches, _counted(estimates, bar), with_ssim=reason is None)
                    shelf.put(this, arrays, {})
                else:
                    arrays = stored[0]
                    bar.update(len(stretches))
                measured[key, at] = arrays
    runs = [
        {"arm": arm, "seed": seed} | _named(noise) | _summary(measured[(arm, seed), at])
        for arm, seed in models
        for at, noise in enumerate(noises)
    ]
    simple = [_of_trivial(stretches, noise, trivial, shelf, with_ssim=reason is None) for noise in noises]
    return {
        "clips": [stretch.to_dict() for stretch in stretches],
        "runs": runs,
        "trivial": [
            {"name": name} | _named(noise) | _summary(found[name])
            for name in simple[0]
            for noise, found in zip(noises, simple, strict=True)
        ],
        "paired": _paired(models, measured, noises, baseline) if len(stretches) > 1 else [],
    }


class _Denoiser:
    """A checkpoint that is loaded when it is first used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loaded: VideoDenoiser | None = None

    @property
    def loaded(self) -> VideoDenoiser:
        if self._loaded is None:
            self._loaded = VideoDenoiser(load_model(self.path))
        return self._loaded

    def __call__(self, stretch: Stretch, noise: Perturbation) -> Frames:
        """The last layer's estimate (F, H, W)."""
        return self._checked(self.loaded(torch.from_numpy(stretch.under(noise))[None])[0], stretch, noise)

    def layers(self, stretch: Stretch, noise: Perturbation, frame: int) -> Frames:
        """The estimates of layers 1 … L (L, H, W) of one frame."""
        noisy = torch.from_numpy(stretch.under(noise)).unbind()
        (every,) = islice(self.loaded.stream(noisy, every_layer=True), frame, frame + 1)
        return self._checked(every[1:], stretch, noise)

    def _checked(self, estimate: torch.Tensor, stretch: Stretch, noise: Perturbation) -> Frames:
        if not bool(torch.isfinite(estimate).all()):
            raise NonFiniteLossError(
                f"the output of {self.path} on clip {stretch.clip.name} under {noise.label} is not finite: "
                "the model has diverged; train it again with a smaller learning rate"
            )
        return estimate.cpu().numpy()


def _counted(estimates: Iterator[Frames], bar: "tqdm[Any]") -> Iterator[Frames]:
    for estimate in estimates:
        yield estimate
        bar.update()


def _identity(shelf: Shelf, path: Path, stretches: Sequence[Stretch], noise: Perturbation) -> dict[str, Any]:
    """What an estimate depends on: the model, the clean frames and the noise."""
    shapes = [list(stretch.values.shape) for stretch in stretches]
    clean = _flat(stretch.values for stretch in stretches)
    return shelf.identity(model=path, clean=clean) | {"shapes": shapes, "noise": noise.to_dict()}


def _flat(arrays: Iterable[Frames]) -> Frames:
    return np.concatenate([array.ravel() for array in arrays])


def _no_ssim(stretches: Sequence[Stretch]) -> str | None:
    """Why there can be no SSIM: no scikit-image, or frames smaller than its window."""
    try:
        for stretch in stretches:
            ssim(stretch.values[:1], stretch.values[:1])
    except InputError as error:
        return str(error)
    return None


def _measures(stretches: Sequence[Stretch], estimates: Iterator[Frames], *, with_ssim: bool) -> Measures:
    rows: dict[str, list[NDArray[np.float64]]] = {}
    for stretch, estimate in zip(stretches, estimates, strict=True):
        clean, inside = stretch.values, estimate.clip(0, 1)
        squared, clipped = (((each - clean) ** 2).mean(axis=(1, 2), dtype=np.float64) for each in (estimate, inside))
        with np.errstate(divide="ignore"):  # infinite where a frame is exact
            found = {"mse": squared, "mse_clipped": clipped, "psnr": -10 * np.log10(clipped)}
        for name, values in (found | ({"ssim": ssim(clean, inside)} if with_ssim else {})).items():
            rows.setdefault(name, []).append(values)
    return {name: np.stack(values) for name, values in rows.items()}


def _of_trivial(
    stretches: Sequence[Stretch], noise: Perturbation, trivial: Trivial | None, shelf: Shelf, *, with_ssim: bool
) -> dict[str, Measures]:
    if trivial is None:
        return {}
    estimates: dict[str, list[Frames]] = {}
    for stretch in stretches:
        for name, estimate in trivial(stretch, stretch.under(noise)).items():
            estimates.setdefault(name, []).append(estimate)
    found = {}
    for name, frames in estimates.items():
        this = shelf.identity(clean=_flat(stretch.values for stretch in stretches), estimate=_flat(frames))
        this |= {"whole_frames": {"ssim": with_ssim, "shapes": [list(each.shape) for each in frames]}}
        stored = shelf.get(this)
        found[name] = _measures(stretches, iter(frames), with_ssim=with_ssim) if stored is None else stored[0]
        if stored is None:
            shelf.put(this, found[name], {})
    return found


def _named(noise: Perturbation) -> dict[str, Any]:
    return {name: value for name, value in noise.to_dict().items() if name in ("kind", "gamma", "share")}


def _summary(arrays: Measures) -> dict[str, Any]:
    by_clip = {name: values.mean(axis=1).tolist() for name, values in arrays.items()}
    return {
        "rmse": float(np.sqrt(arrays["mse"].mean())),
        "rmse_clipped": float(np.sqrt(arrays["mse_clipped"].mean())),
        "psnr": float(arrays["psnr"].mean()),
        "ssim": float(arrays["ssim"].mean()) if "ssim" in arrays else None,
        "by_clip": by_clip,
    }


_PAIRED: dict[str, tuple[str, Callable[..., Estimate]]] = {
    "rmse": ("mse", paired_root_difference),
    "rmse_clipped": ("mse_clipped", paired_root_difference),
    "psnr": ("psnr", paired_difference),
    "ssim": ("ssim", paired_difference),
}


def _paired(
    models: Mapping[Key, Path],
    measured: Mapping[tuple[Key, int], Measures],
    noises: Sequence[Perturbation],
    baseline: str | None,
) -> list[dict[str, Any]]:
    """Every arm against the baseline, over the seeds that both have and over clips."""
    entries = []
    for arm in dict.fromkeys(arm for arm, _ in models):
        seeds = [seed for name, seed in models if name == arm and (baseline, seed) in models]
        if arm == baseline or baseline is None or not seeds:
            continue
        for at, noise in enumerate(noises):
            entry: dict[str, Any] = {"arm": arm, "against": baseline} | _named(noise)
            for name, (measure, difference) in _PAIRED.items():
                tables = [
                    np.stack([measured[(each, seed), at][measure].mean(axis=1) for seed in seeds])
                    for each in (arm, baseline)
                    if all(measure in measured[(each, seed), at] for seed in seeds)
                ]
                if len(tables) == 2 and np.isfinite(tables).all():
                    estimate = difference(*tables).to_dict()
                    entry[name] = {"difference": estimate.pop("value"), "ci95": estimate.pop("ci95")}
                    entry |= estimate
            entries.append(entry)
    return entries


# Pictures ------------------------------------------------------------------------------------------------------------


def layer_pictures(
    models: Mapping[Key, Path],
    stretch: Stretch,
    noises: Sequence[Perturbation],
    *,
    every_layer: Sequence[str],
    store: Path | None = None,
) -> tuple[dict[str, Frames], dict[str, Any]]:
    """The middle frame of a stretch: clean, noisy, and what layers make of it.

    Args:
        models: checkpoints of denoisers, by arm and seed; of each arm the first one is shown.
        stretch: the frames; each model sees all of them.
        noises: what is put on them.
        every_layer: the arms whose layers are all shown; of the others it is the last one only.
        store: a folder that keeps every finished (model, noise).

    Returns:
        Arrays, fp32 and not clipped: `clean` (H, W); for noise number i `i.noisy` (H, W), and for arm number j of the
        header `i.j` (K, H, W), the layers that the header names. The header is JSON-able.

    Raises:
        RunError: as in `frame_quality`.
    """
    middle = len(stretch.values) // 2
    shown = {arm: (seed, path) for (arm, seed), path in reversed(list(models.items()))}
    arms = list(dict.fromkeys(arm for arm, _ in models))
    arrays: dict[str, Frames] = {"clean": stretch.values[middle]}
    arrays |= {f"{at}.noisy": stretch.under(noise)[middle] for at, noise in enumerate(noises)}
    shelf, listed = Shelf(store), []
    for number, arm in enumerate(arms):
        seed, path = shown[arm]
        denoiser = _Denoiser(path)
        for at, noise in enumerate(noises):
            this = _identity(shelf, path, [stretch], noise) | {"pictures": {"frame": middle}}
            stored = shelf.get(this)
            layers = denoiser.layers(stretch, noise, middle) if stored is None else stored[0]["layers"]
            if stored is None:
                shelf.put(this, {"layers": layers}, {})
            first = 0 if arm in every_layer else len(layers) - 1
            arrays[f"{at}.{number}"] = layers[first:]
        listed.append({"arm": arm, "seed": seed, "layers": list(range(first + 1, len(layers) + 1))})
    header = stretch.to_dict() | {"frame": stretch.first + middle, "noise": [_named(noise) for noise in noises]}
    return arrays, header | {"arms": listed}
