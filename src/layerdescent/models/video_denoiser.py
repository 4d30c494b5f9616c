"""`VideoDenoiser`: whole frames in and out, around a model that knows patches only."""

import math
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel

from layerdescent.errors import InputError, RunError
from layerdescent.models.unrolled.matrices import patch_side


class VideoDenoiser:
    """A denoiser of patches, applied to videos of any size and length.

    Call it with frames (B, T, H, W), and with `layers` to stop early; `stream` takes a video frame by frame.

    Frames are padded by reflection and cut into overlapping patches; each patch position is denoised over a window of
    frames, and what overlaps is averaged under a smooth window in space and time, whose weights sum to 1 everywhere:

        out(t, y, x) = sum_k w_k(t, y, x) S_k(t, y, x) / sum_k w_k(t, y, x),    w = sin^2 x sin^2 x sin^2

    Everything is computed in fp32 on the model's device. Values are not clipped: like the model's own they may leave
    [0, 1], so clamp them before they become pixels of a file.

    Args:
        model: a denoiser of `layerdescent.models`, or any model with `config.num_pixels` and `config.num_frames` whose
            forward takes `pixel_values` (B, T, p p), `num_layers` and `output_hidden_states`, as they do.
        stride: pixels from one patch to the next, 1 … p; half a patch by default. Time goes with 1 / stride^2.
        num_frames: frames of a window; as in the model's training by default. A shorter video is one window.
        frame_stride: frames from one window to the next, 1 … num_frames; half a window by default.
        batch_size: most patches in one forward pass, which bounds the memory.

    Raises:
        InputError: a model of measurements instead of pixels, or a stride, length or size that cannot be.

    Source: overlapping patches with a tapered window are our choice [C].

    Example:
        >>> from layerdescent.models import DustConfig, DustForDenoising
        >>> model = DustForDenoising(DustConfig(num_pixels=16, num_frames=4, hidden_size=32, num_hidden_layers=2))
        >>> denoiser = VideoDenoiser(model)
        >>> frames = torch.rand(1, 9, 10, 13)
        >>> denoiser(frames).shape
        torch.Size([1, 9, 10, 13])
        >>> bool((denoiser(frames, layers=0) - frames).abs().max() < 1e-6)  # no layer: the input
        True
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        stride: int | None = None,
        num_frames: int | None = None,
        frame_stride: int | None = None,
        batch_size: int = 1024,
    ) -> None:
        config: Any = model.config
        if not hasattr(config, "num_pixels"):
            raise InputError(f"{type(model).__name__} is no denoiser of patches: its config has no num_pixels")
        if getattr(config, "num_measurements", None) is not None:
            raise InputError(
                f"{type(model).__name__} takes {config.num_measurements} measurements of a patch, not its "
                f"{config.num_pixels} pixels: a video needs a model with num_measurements=None"
            )
        self.model: Any = model
        self.patch = patch_side(config.num_pixels)
        self.stride = _within("stride", stride, max(1, self.patch // 2), self.patch, "the patch's side")
        self.num_frames = _within("num_frames", num_frames, config.num_frames, None, "")
        half = max(1, self.num_frames // 2)
        self.frame_stride = _within("frame_stride", frame_stride, half, self.num_frames, "num_frames")
        self.batch_size = _within("batch_size", batch_size, 1, None, "")

    @classmethod
    def load(cls, folder: str | Path, **options: Any) -> Self:
        """Put a saved model around which videos go.

        Args:
            folder: a checkpoint of a denoiser, saved by `save` or by training.
            options: the constructor's.

        Raises:
            InputError: there is no checkpoint.
            RunError: it is damaged.
        """
        if not (Path(folder) / "config.json").is_file():
            raise InputError(f"no model at {folder}: give a folder with config.json, as training saves it")
        try:
            model, info = AutoModel.from_pretrained(folder, output_loading_info=True)
        except (OSError, SafetensorError, RuntimeError, ValueError) as error:
            line = str(error).strip().partition("\n")[0]
            raise RunError(f"the checkpoint at {folder} cannot be loaded ({line}): save or train it again") from None
        if info["missing_keys"]:
            missing = ", ".join(sorted(info["missing_keys"])[:3])
            raise RunError(f"the checkpoint at {folder} lacks weights ({missing}): save or train it again")
        return cls(model, **options)

    def save(self, folder: str | Path) -> None:
        """Save the model, and nothing else: strides and lengths are a matter of each use."""
        self.model.save_pretrained(folder)

    def __call__(self, frames: Tensor, layers: int | None = None) -> Tensor:
        """Denoise videos.

        Args:
            frames: (B, T, H, W) grey values, 1 = white; any B, T, H, W of at least 1.
            layers: stop after this many of the model's layers; all by default.

        Returns:
            (B, T, H, W) fp32, on the device of the frames.

        Raises:
            InputError: frames of another shape, or whole numbers.
        """
        if frames.ndim != 4 or 0 in frames.shape:
            raise InputError(f"frames must be (B, T, H, W), each at least 1, but they are {tuple(frames.shape)}")
        return torch.stack([torch.stack(list(self.stream(clip, layers))) for clip in frames])

    def stream(
        self, frames: Iterable[Tensor], layers: int | None = None, *, every_layer: bool = False
    ) -> Iterator[Tensor]:
        """Denoise a video of any length frame by frame; memory holds about one window.

        Args:
            frames: (H, W) each, all of one size.
            layers: as in a call.
            every_layer: whether what comes out is every layer's estimate, Phi_0 first, in one pass.

        Yields:
            (H, W) fp32, as many as came in, the same numbers that a call gives; (layers + 1, H, W) of every layer.

        Raises:
            InputError: frames of different sizes, or whole numbers.
        """
        source = _alike(frames)
        held = list(islice(source, self.num_frames))
        if not held:
            return
        window = _taper(len(held))
        sums, weights = torch.zeros(()), torch.zeros(len(held))
        while held:
            sums = sums + window[:, None, None, None] * self._window(held, layers, every_layer)
            weights += window
            # Only what no later window reaches is finished; the last window ends with the video.
            coming = list(islice(source, self.frame_stride))
            finished = len(coming) or len(held)
            done = (sums[:finished] / weights[:finished, None, None, None]).to(held[0].device)
            yield from done if every_layer else done[:, 0]
            sums = torch.cat([sums[finished:], torch.zeros_like(sums[:finished])])
            weights = torch.cat([weights[finished:], torch.zeros(finished)])
            held = held[finished:] + coming if coming else []

    @torch.no_grad()
    def _window(self, held: list[Tensor], layers: int | None, every_layer: bool) -> Tensor:
        """One window of frames, denoised by the last layer or by each: (t, K, H, W) fp32 on the CPU."""
        H, W = held[0].shape
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        p, s = self.patch, self.stride
        rows, columns = _reflected(H, p, s), _reflected(W, p, s)
        padded = torch.stack(held).to(device, torch.float32)[:, rows.to(device)][:, :, columns.to(device)]
        taper = torch.outer(_taper(p), _taper(p)).flatten().to(padded)
        weights = torch.outer(_coverage(len(rows), p, s), _coverage(len(columns), p, s)).to(padded)
        grid_rows, grid_columns = (len(rows) - p) // s + 1, (len(columns) - p) // s + 1
        step = max(1, self.batch_size // grid_columns)
        for first in range(0, grid_rows, step):
            count = min(step, grid_rows - first)
            strip = slice(first * s, (first + count - 1) * s + p)
            # (t, p p, patches): the layout of fold and unfold.
            patches = functional.unfold(padded[:, None, strip], p, stride=s)
            parts = patches.permute(2, 0, 1).split(self.batch_size)
            clean = torch.cat([self._denoised(part, layers, every_layer) for part in parts])
            if first == 0:
                sums = padded.new_zeros(*clean.shape[1:3], *padded.shape[1:])
            size = padded[:, strip].shape[1:]
            folded = functional.fold((clean * taper).permute(1, 2, 3, 0).flatten(0, 1), size, p, stride=s)
            sums[:, :, strip] += folded.unflatten(0, clean.shape[1:3])[:, :, 0]
        return (sums / weights)[..., p - s : p - s + H, p - s : p - s + W].cpu()

    def _denoised(self, patches: Tensor, layers: int | None, every_layer: bool) -> Tensor:
        """Patches (N, t, p p) after the model, which is in eval mode meanwhile: (N, t, K, p p)."""
        training = self.model.training
        self.model.eval()
        try:
            outputs = self.model(pixel_values=patches, num_layers=layers, output_hidden_states=every_layer)
        finally:
            self.model.train(training)
        return torch.stack(outputs.hidden_states if every_layer else [outputs.logits], dim=2).to(patches)


def _within(name: str, value: int | None, default: int, highest: int | None, which: str) -> int:
    number = default if value is None else value
    if number < 1 or (highest is not None and number > highest):
        limit = "at least 1" if highest is None else f"between 1 and {which}, {highest}"
        raise InputError(f"{name}={number} must be {limit}")
    return number


def _alike(frames: Iterable[Tensor]) -> Iterator[Tensor]:
    """The frames, as long as they are of one size and hold grey values."""
    first = None
    for frame in frames:
        first = frame if first is None else first
        if frame.ndim != 2 or frame.shape != first.shape:
            shapes = f"{tuple(first.shape)} and {tuple(frame.shape)}"
            raise InputError(f"frames must be (H, W), all of one size, but there are {shapes}: resize them first")
        if not frame.is_floating_point():
            raise InputError(f"frames are {frame.dtype}: give floating-point values with white at 1, as frames / 255")
        yield frame


def _taper(length: int) -> Tensor:
    """A smooth window: sin^2 at half-integers, so it is nowhere 0; neighbours at half its length add up to 1."""
    return torch.sin(math.pi * (torch.arange(length) + 0.5) / length).square()


def _coverage(length: int, patch: int, stride: int) -> Tensor:
    """The sum of all windows that cover each place of an axis."""
    sums = torch.zeros(length)
    for start in range(0, length - patch + 1, stride):
        sums[start : start + patch] += _taper(patch)
    return sums


def _reflected(length: int, patch: int, stride: int) -> Tensor:
    """Which pixel of an axis stands where, after padding by reflection.

    `patch - stride` before and at least as many behind, so that every pixel lies in equally many patches, and whole
    strides altogether. An axis shorter than its padding is reflected again and again; one pixel is repeated.
    """
    before = patch - stride
    shortest = length + 2 * before
    total = patch + -(-(shortest - patch) // stride) * stride
    position = torch.arange(-before, total - before)
    period = max(1, 2 * (length - 1))
    phase = position % period
    return torch.minimum(phase, period - phase) if length > 1 else torch.zeros_like(position)
