"""How near an estimate of whole frames comes, by scikit-image."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from layerdescent.data.video.decode import video_packages
from layerdescent.errors import InputError

Frames = NDArray[np.floating]


def psnr(clean: Frames, estimate: Frames) -> NDArray[np.float64]:
    """Peak signal-to-noise ratio of every frame: -10 log10(MSE), in dB, for values in [0, 1].

    Args:
        clean: (N, H, W) in [0, 1].
        estimate: (N, H, W).

    Returns:
        (N,); infinite where a frame is exact.

    Raises:
        InputError: other shapes, or scikit-image is not installed.

    Example:
        >>> clean = np.zeros((1, 8, 8))
        >>> psnr(clean, clean + 0.1).round(6)
        array([20.])
    """
    with video_packages():
        from skimage.metrics import peak_signal_noise_ratio
    _check(clean, estimate)
    with np.errstate(divide="ignore"):
        values = [peak_signal_noise_ratio(*pair, data_range=1.0) for pair in _pairs(clean, estimate)]
    return np.array(values, dtype=np.float64)


def ssim(clean: Frames, estimate: Frames) -> NDArray[np.float64]:
    """Structural similarity of every frame, with the window of Wang et al. 2004: Gaussian, sigma 1.5, 11x11 pixels.

    Args:
        clean: (N, H, W) in [0, 1], H and W 11 or more.
        estimate: (N, H, W).

    Returns:
        (N,), 1 where a frame is exact.

    Raises:
        InputError: other shapes, frames smaller than the window, or scikit-image is not installed.

    Example:
        >>> frames = np.random.default_rng(0).random((2, 16, 16))
        >>> ssim(frames, frames)
        array([1., 1.])
    """
    with video_packages():
        from skimage.metrics import structural_similarity
    _check(clean, estimate)
    if min(clean.shape[1:]) < 11:
        raise InputError(f"SSIM takes frames of 11x11 pixels or more, but they are {clean.shape[2]}x{clean.shape[1]}")
    options = {"data_range": 1.0, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    values = [structural_similarity(*pair, **options) for pair in _pairs(clean, estimate)]
    return np.array(values, dtype=np.float64)


def _check(clean: Frames, estimate: Frames) -> None:
    if clean.ndim != 3 or clean.shape != estimate.shape or not len(clean):
        raise InputError(
            f"clean and estimated frames must both be (N, H, W), but their shapes are {clean.shape} and "
            f"{estimate.shape}"
        )


def _pairs(clean: Frames, estimate: Frames) -> Iterator[tuple[Frames, Frames]]:
    # In double precision: a difference of 1e-4 squared is at the edge of what single precision holds beside 1.
    return zip(clean.astype(np.float64), estimate.astype(np.float64), strict=True)
