import numpy as np
import pytest

from layerdescent.data.video.clips import Clip
from layerdescent.data.video.trivial import (
    background_windows,
    constant_mean,
    frame_patch_mean,
    median_background,
    patch_mean,
    temporal_mean,
    training_backgrounds,
    training_mean,
)
from layerdescent.data.video.windows import VideoWindows
from layerdescent.errors import InputError

GENERATOR = np.random.default_rng(0)
NOISY = GENERATOR.normal(0.5, 1.0, (3, 4, 6)).astype(np.float32)


def clip(name: str, camera: str, frames: int, height: int = 8, width: int = 8, level: int | None = None) -> Clip:
    pixels = GENERATOR.integers(0, 256, (frames, height, width)).astype(np.uint8)
    if level is not None:
        pixels[:] = level
    return Clip(name=name, store=pixels, stretches=((0, frames),), camera=camera)


def test_each_mean_runs_over_its_own_axis() -> None:
    for n in range(3):
        for t in range(4):
            for j in range(6):
                assert temporal_mean(NOISY)[n, t, j] == pytest.approx(NOISY[n, :, j].mean(), abs=1e-6)
                assert patch_mean(NOISY)[n, t, j] == pytest.approx(NOISY[n, t].mean(), abs=1e-6)
    assert (constant_mean(NOISY, 0.25) == 0.25).all()
    for estimate in (constant_mean(NOISY, 0.25), temporal_mean(NOISY), patch_mean(NOISY)):
        assert estimate.shape == NOISY.shape
        assert estimate.dtype == np.float32
        assert estimate.flags.writeable


@pytest.mark.parametrize("patch", [1, 2, 4, 9])
def test_patches_tile_whole_frames(patch: int) -> None:
    found = frame_patch_mean(NOISY, patch)
    assert found.dtype == np.float32
    for n in range(3):
        for row in range(4):
            for column in range(6):
                top, left = row // patch * patch, column // patch * patch
                block = NOISY[n, top : top + patch, left : left + patch]
                assert found[n, row, column] == pytest.approx(block.mean(), abs=1e-6)


def test_means_divide_the_noise_by_what_they_average() -> None:
    noise = np.random.default_rng(1).normal(0, 1, (4000, 9, 16)).astype(np.float32)
    assert np.sqrt((temporal_mean(noise) ** 2).mean()) == pytest.approx(1 / 3, rel=0.02)
    assert np.sqrt((patch_mean(noise) ** 2).mean()) == pytest.approx(1 / 4, rel=0.02)


def test_the_median_forgets_what_passes_by() -> None:
    frames = np.full((9, 4, 4), 51, dtype=np.uint8)
    frames[2:6, 1] = 255
    np.testing.assert_allclose(median_background(frames), np.full((4, 4), 0.2), atol=1e-7)


def test_backgrounds_are_those_of_the_training_clips_of_a_camera() -> None:
    clips = [clip("a", "north", 5), clip("b", "north", 7), clip("c", "south", 3)]
    backgrounds = training_backgrounds(clips)
    assert backgrounds.keys() == {"north", "south"}
    north = np.concatenate([clips[0].pixels, clips[1].pixels])
    np.testing.assert_allclose(backgrounds["north"], np.median(north, axis=0) / 255, atol=1e-6)
    # Frames outside the stretches are not training frames.
    half = clips[2].within(0, 1)
    np.testing.assert_allclose(training_backgrounds([half])["south"], clips[2].pixels[0] / 255, atol=1e-6)
    assert training_backgrounds([*clips, clip("d", "south", 3, height=10)]).keys() == {"north"}


def test_background_windows_stand_where_the_windows_do() -> None:
    train, test = clip("a", "north", 5, 10, 12), clip("t", "north", 6, 10, 12)
    windows = VideoWindows([test], np.array([[0, 1, 2, 4], [0, 3, 0, 0]]), frames=3, patch=4)
    backgrounds = training_backgrounds([train])
    estimate = background_windows(windows, backgrounds)
    assert estimate.shape == (2, 3, 16)
    for frame in estimate[0]:
        np.testing.assert_array_equal(frame, backgrounds["north"][2:6, 4:8].ravel())
    np.testing.assert_array_equal(background_windows(windows, backgrounds, [1]), estimate[1:])


def test_a_camera_that_no_training_clip_is_from() -> None:
    windows = VideoWindows([clip("t", "west", 3)], np.array([[0, 0, 0, 0]]), frames=3, patch=4)
    for backgrounds in ({}, {"west": np.zeros((4, 8), dtype=np.float32)}):
        with pytest.raises(InputError, match=r"what the camera of t sees \(west, 8x8\)"):
            background_windows(windows, backgrounds)


def test_the_training_mean_counts_pixels_not_clips() -> None:
    clips = [clip("a", "x", 3, level=0), clip("b", "x", 9, level=102), clip("c", "x", 3, 16, 16, level=255)]
    assert training_mean(clips) == pytest.approx((9 * 64 * 0.4 + 3 * 256) / (12 * 64 + 3 * 256))
