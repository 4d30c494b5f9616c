import sys

import numpy as np
import pytest

from layerdescent.data.video.quality import psnr, ssim
from layerdescent.errors import InputError

CLEAN = np.random.default_rng(0).random((3, 20, 24)).astype(np.float32)


def test_psnr_is_minus_10_log10_of_the_squared_error_of_each_frame() -> None:
    estimate = CLEAN + np.array([0.1, 0.01, 0.0], dtype=np.float32)[:, None, None]
    values = psnr(CLEAN, estimate)
    np.testing.assert_allclose(values[:2], [20, 40], atol=1e-3)
    assert values[2] == np.inf


def gaussian_window() -> np.ndarray:
    line = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    return np.outer(line, line) / line.sum() ** 2


def plain_ssim(x: np.ndarray, y: np.ndarray) -> float:
    """Wang et al. 2004, window by window, where a whole window fits."""
    window, values = gaussian_window(), []
    for row in range(x.shape[0] - 10):
        for column in range(x.shape[1] - 10):
            a, b = x[row : row + 11, column : column + 11], y[row : row + 11, column : column + 11]
            mean_a, mean_b = (window * a).sum(), (window * b).sum()
            var_a, var_b = (window * a * a).sum() - mean_a**2, (window * b * b).sum() - mean_b**2
            both = (window * a * b).sum() - mean_a * mean_b
            values.append(
                (2 * mean_a * mean_b + 1e-4)
                * (2 * both + 9e-4)
                / ((mean_a**2 + mean_b**2 + 1e-4) * (var_a + var_b + 9e-4))
            )
    return float(np.mean(values))


def test_ssim_is_that_of_wang() -> None:
    estimate = CLEAN + 0.1 * np.random.default_rng(1).standard_normal(CLEAN.shape).astype(np.float32)
    expected = [plain_ssim(x.astype(float), y.astype(float)) for x, y in zip(CLEAN, estimate, strict=True)]
    np.testing.assert_allclose(ssim(CLEAN, estimate), expected, atol=1e-6)
    np.testing.assert_array_equal(ssim(CLEAN, CLEAN), np.ones(3))


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_wrong_shapes(measure: type) -> None:
    with pytest.raises(InputError, match=r"both be \(N, H, W\).* \(3, 20, 24\) and \(2, 20, 24\)"):
        measure(CLEAN, CLEAN[:2])
    with pytest.raises(InputError, match=r"both be \(N, H, W\)"):
        measure(CLEAN[0], CLEAN[0])


def test_frames_smaller_than_the_window() -> None:
    with pytest.raises(InputError, match="11x11 pixels or more, but they are 24x10"):
        ssim(CLEAN[:, :10], CLEAN[:, :10])


def test_a_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "skimage.metrics", None)
    with pytest.raises(InputError, match=r"pip install 'layerdescent\[video\]'"):
        psnr(CLEAN, CLEAN)
