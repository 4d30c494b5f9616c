import numpy as np
import pytest

from layerdescent.data.video.synthetic import fractal_noise, synthetic_clips
from layerdescent.errors import InputError

SMALL = {"clips": 4, "frames": 24, "height": 48, "width": 64, "cameras": 2}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others() -> None:
    once, again = (synthetic_clips(**SMALL, seed=3) for _ in range(2))
    other = synthetic_clips(**SMALL, seed=4)
    for first, second, third in zip(once, again, other, strict=True):
        np.testing.assert_array_equal(first.pixels, second.pixels)
        assert (first.pixels != third.pixels).mean() > 0.5
    assert [clip.name for clip in once] == ["clip-00", "clip-01", "clip-02", "clip-03"]
    assert {clip.size for clip in once} == {(48, 64)}


def test_more_clips_leave_the_first_ones_what_they_are() -> None:
    few, many = synthetic_clips(**{**SMALL, "clips": 2}), synthetic_clips(**SMALL)
    for first, second in zip(few, many, strict=False):
        np.testing.assert_array_equal(first.pixels, second.pixels)


def test_the_background_stands_still_and_is_the_cameras() -> None:
    clips = synthetic_clips(**SMALL)
    medians = [np.median(clip.pixels, axis=0) for clip in clips]
    assert [clip.camera for clip in clips] == ["camera-0", "camera-1", "camera-0", "camera-1"]
    likeness = np.corrcoef([median.ravel() for median in medians])
    assert likeness[0, 2] > 0.8 > 0.4 > likeness[0, 1]
    assert likeness[1, 3] > 0.8 > 0.4 > likeness[2, 3]


def test_there_is_texture_motion_and_drifting_light() -> None:
    for clip in synthetic_clips(**SMALL):
        pixels = clip.pixels.astype(float)
        assert pixels.std() > 25  # from dark to light
        assert np.abs(np.diff(pixels, axis=2)).mean() > 3  # texture
        changes = np.abs(np.diff(pixels, axis=0))
        moved = changes > 12
        assert 0.01 < moved.mean() < 0.3  # sprites move, the background doesn't
        still = ~moved.any(axis=0)
        light = pixels[:, still].mean(axis=1)
        assert light.max() - light.min() > 0.5  # light drifts where nothing moves
        assert np.abs(np.diff(light)).max() < 1  # slowly


def test_motion_is_by_fractions_of_a_pixel() -> None:
    """A frame moved by whole pixels would hold the values of the one before; most values here are new ones."""
    pixels = synthetic_clips(clips=1, frames=2, height=48, width=64)[0].pixels.astype(int)
    moved = np.argwhere(np.abs(pixels[1] - pixels[0]) > 12)
    repeated = [
        (np.abs(pixels[0, max(0, r - 3) : r + 4, max(0, c - 3) : c + 4] - pixels[1, r, c]) == 0).any() for r, c in moved
    ]
    assert len(moved) > 30
    assert np.mean(repeated) < 0.8


def test_noise_has_mean_0_and_deviation_1_and_neighbours_are_alike() -> None:
    noise = fractal_noise(np.random.default_rng(0), 64, 80)
    assert noise.mean() == pytest.approx(0, abs=1e-12)
    assert noise.std() == pytest.approx(1)
    assert np.mean(noise[:, 1:] * noise[:, :-1]) > 0.7


@pytest.mark.parametrize("wrong", [{"clips": 0}, {"frames": 0}, {"cameras": 0}, {"height": 15}, {"width": 8}])
def test_wrong_sizes(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"synthetic clips: .* give 1 or more of each, and frames of 16x16 or larger"):
        synthetic_clips(**{**SMALL, **wrong})
