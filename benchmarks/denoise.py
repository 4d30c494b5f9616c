"""A trained denoiser beside classical ones on one synthetic clip: error and frames a second, in one run.

    python -m benchmarks.denoise runs/demo-video/runs/descent-seed0/model      # -> results/denoise.json
    python -m benchmarks.denoise MODEL --layers 2 --layers 6 --stride 8        # fewer layers, sparser patches
    pip install 'layerdescent[video,benchmarks]'                               # OpenCV and PyWavelets

Methods, all on the same noisy clip of bytes, as a file would hold it (360x240, gaussian noise, clipped and rounded):

    noisy           the clip itself
    layerdescent    the checkpoint under `VideoDenoiser`, with all layers and with as many as --layers says
    opencv          OpenCV's fastNlMeansDenoisingMulti: non-local means over 5 frames, its default windows
    wavelet         scikit-image's denoise_wavelet (BayesShrink, soft), frame by frame
    wavelet-volume  the same, over the clip as one volume

The classical methods are told the noise level; OpenCV's strength h, in levels, is the best of a few multiples of it on
another clip. The clip is drawn with a seed that no recipe trains on. The methods take turns, in another order each
round, so that a machine that slows down slows all of them; reading and writing of files is not counted. Models are
trained on noise that is not clipped; their error on such noise is stored beside (`rmse_unclipped_noise`).

A method whose package is missing is left out, and named in the result.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from layerdescent.data.video import psnr, ssim, synthetic_clips
from layerdescent.environment import describe_environment
from layerdescent.errors import InputError
from layerdescent.evaluation.batches import load_model
from layerdescent.files import write_json
from layerdescent.models import VideoDenoiser

Bytes = NDArray[np.uint8]
Frames = NDArray[np.floating[Any]]
Method = Callable[[Bytes], Frames]

PACKAGES = ("opencv-python-headless", "scikit-image", "PyWavelets", "numpy")
STRENGTHS = (0.4, 0.6, 0.8, 1.0, 1.2, 1.5)  # of OpenCV's h, in multiples of the noise's deviation
_NLM_FRAMES = 5
_DATA_SEED = 2026  # recipes draw with 0


def noisy_bytes(clean: Frames, gamma: float, seed: int) -> tuple[Bytes, Frames]:
    """A clip in [0, 1] under gaussian noise: as bytes, and as the numbers before they were clipped."""
    noise = np.random.default_rng(seed).standard_normal(clean.shape, dtype=np.float32)
    noisy = clean + np.float32(gamma) * noise
    return np.rint(noisy.clip(0, 1) * 255).astype(np.uint8), noisy


def layerdescent(denoiser: VideoDenoiser, layers: int) -> Method:
    def run(noisy: Bytes) -> Frames:
        return denoised(denoiser, noisy / np.float32(255), layers)

    return run


def denoised(denoiser: VideoDenoiser, noisy: Frames, layers: int) -> Frames:
    """The model's output for frames (N, H, W), which are not clipped."""
    frames = torch.from_numpy(noisy.astype(np.float32))
    return denoiser(frames[None], layers)[0].numpy()


def opencv(h: float) -> Method:
    """Non-local means over time; at its ends the clip is reflected, since OpenCV wants frames on both sides."""
    import cv2

    def run(noisy: Bytes) -> Frames:
        side = _NLM_FRAMES // 2
        frames = list(np.pad(noisy, [(side, side), (0, 0), (0, 0)], mode="reflect"))
        found = [
            cv2.fastNlMeansDenoisingMulti(frames, number + side, _NLM_FRAMES, None, h) for number in range(len(noisy))
        ]
        return np.stack(found) / 255

    return run


def wavelet(gamma: float, volume: bool) -> Method:
    from skimage.restoration import denoise_wavelet

    def shrink(values: Frames) -> Frames:
        found: Frames = denoise_wavelet(values, sigma=gamma, method="BayesShrink", mode="soft", rescale_sigma=True)
        return found

    def run(noisy: Bytes) -> Frames:
        values = noisy / 255
        return shrink(values) if volume else np.stack([shrink(frame) for frame in values])

    return run


def strength(gamma: float, size: int) -> float:
    """OpenCV's h with the smallest error on a clip that nothing else is measured on."""
    [clip] = synthetic_clips(clips=1, frames=8, height=size, width=size, cameras=1, seed=_DATA_SEED + 1)
    clean = clip.frames(0, 8)
    noisy, _ = noisy_bytes(clean, gamma, seed=1)
    errors = {factor: rmse(clean, opencv(255 * gamma * factor)(noisy)) for factor in STRENGTHS}
    return 255 * gamma * min(errors, key=lambda factor: errors[factor])


def rmse(clean: Frames, estimate: Frames) -> float:
    """Root mean squared error over all pixels, in [0, 1].

    >>> rmse(np.zeros((2, 2)), np.full((2, 2), 0.5))
    0.5
    """
    return float(np.sqrt(np.mean((estimate.astype(np.float64) - clean) ** 2)))


def methods(
    denoiser: VideoDenoiser, depths: Sequence[int], gamma: float, tuned_on: int
) -> tuple[dict[str, Method], dict[str, str], dict[str, float]]:
    """What is compared, what cannot be and why, and the settings that were chosen."""
    found = {_name(depth): layerdescent(denoiser, depth) for depth in depths}
    missing, chosen = {}, {}
    try:
        chosen["opencv_h"] = strength(gamma, tuned_on)
        found["opencv"] = opencv(chosen["opencv_h"])
    except ImportError as error:
        missing["opencv"] = f"{error.name} is not installed; pip install 'layerdescent[video,benchmarks]'"
    try:
        import pywt  # noqa: F401  # scikit-image asks for it only when it is called

        found |= {"wavelet": wavelet(gamma, volume=False), "wavelet-volume": wavelet(gamma, volume=True)}
    except ImportError as error:
        missing["wavelet"] = f"{error.name} is not installed; pip install 'layerdescent[video,benchmarks]'"
    return found, missing, chosen


def _name(depth: int) -> str:
    return f"layerdescent, {depth} layer{'s' * (depth > 1)}"


def measure(compared: dict[str, Method], noisy: Bytes, rounds: int) -> tuple[dict[str, Frames], dict[str, list[float]]]:
    """Every method's estimate, and its seconds in each round; a first round warms up and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    estimates: dict[str, Frames] = {}
    order = random.Random(0)
    with tqdm(total=(rounds + 1) * len(compared), desc="denoising", leave=False) as bar:
        for turn in range(rounds + 1):
            for name in order.sample(list(compared), len(compared)):
                bar.set_postfix_str(name)
                started = time.perf_counter()
                estimates[name] = compared[name](noisy)
                if turn:
                    seconds[name].append(time.perf_counter() - started)
                bar.update()
    return estimates, seconds


def quality(clean: Frames, estimate: Frames) -> dict[str, float]:
    shown = estimate.clip(0, 1)
    return {
        "rmse": rmse(clean, estimate),
        "rmse_clipped": rmse(clean, shown),
        "psnr_clipped": float(psnr(clean, shown).mean()),
        "ssim_clipped": float(ssim(clean, shown).mean()),
    }


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a checkpoint folder of a denoiser")
    parser.add_argument("--gamma", type=float, default=0.2, help="deviation of the noise, with white at 1")
    parser.add_argument("--layers", type=int, action="append", help="so many layers; repeatable, all by default")
    parser.add_argument("--stride", type=int, help="pixels from patch to patch; half a patch by default")
    parser.add_argument("--frame-stride", type=int, help="frames from window to window; half a window by default")
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--width", type=int, default=360)
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=3, help="turns of every method, after one that is not counted")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0, help="of the noise")
    parser.add_argument("--output", type=Path, default=Path("results/denoise.json"))
    asked = parser.parse_args(arguments)
    torch.set_num_threads(asked.threads)
    try:
        import cv2

        cv2.setNumThreads(asked.threads)
    except ImportError:
        pass  # the result says so

    model = load_model(asked.model)
    denoiser = VideoDenoiser(model, stride=asked.stride, frame_stride=asked.frame_stride)
    config: Any = model.config
    depths = asked.layers or [config.num_hidden_layers]
    if not all(1 <= depth <= config.num_hidden_layers for depth in depths):
        raise InputError(f"--layers is {depths}; the model has {config.num_hidden_layers}: give numbers from 1 to that")

    [clip] = synthetic_clips(
        clips=1, frames=asked.frames, height=asked.height, width=asked.width, cameras=1, seed=_DATA_SEED
    )
    clean = clip.frames(0, asked.frames)
    noisy, unclipped = noisy_bytes(clean, asked.gamma, asked.seed)
    compared, missing, chosen = methods(denoiser, depths, asked.gamma, tuned_on=min(96, asked.height, asked.width))
    estimates, seconds = measure(compared, noisy, asked.rounds)
    rows: dict[str, dict[str, Any]] = {"noisy": quality(clean, noisy / 255)}
    for name in compared:
        rates = [asked.frames / each for each in seconds[name]]
        rows[name] = quality(clean, estimates[name]) | {
            "frames_per_second": {"median": statistics.median(rates), "lowest": min(rates), "highest": max(rates)}
        }
    for depth in depths:
        rows[_name(depth)]["rmse_unclipped_noise"] = rmse(clean, denoised(denoiser, unclipped, depth))

    settings = {name: value for name, value in vars(asked).items() if name not in ("output", "layers")}
    write_json(
        asked.output,
        {
            "model": {"class": type(model).__name__, "layers": config.num_hidden_layers},
            "settings": settings | {"layers": depths, "stride": denoiser.stride, "frame_stride": denoiser.frame_stride},
            "chosen": chosen,
            "missing": missing,
            "methods": rows,
            "environment": describe_environment() | versions(),
        },
    )
    for name, row in rows.items():
        speed = f"{row['frames_per_second']['median']:8.2f} frames/s" if "frames_per_second" in row else ""
        print(f"{name:24} RMSE {row['rmse_clipped']:.4f}  PSNR {row['psnr_clipped']:.2f} dB  {speed}".rstrip())
    for name, reason in missing.items():
        print(f"{name:24} left out: {reason}")
    print(f"written to {asked.output}")


if __name__ == "__main__":
    main()
