import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerdescent.data.video.decode import Flaw, luma
from layerdescent.data.video.layouts import find_clips
from layerdescent.denoise.pictures import Colour, Picture, details_of, pictures
from layerdescent.denoise.writing import to_frame, to_video_frame
from layerdescent.errors import InputError
from tests.data.video.films import film, write_images, write_video
from tests.denoise.clips import coloured, planes, planes_of, write_clip


def read(path: Path, colour: Colour = "luma") -> tuple[list[Picture], list[Flaw]]:
    [clip] = find_clips(path).clips
    flaws: list[Flaw] = []
    return list(pictures(clip, details_of(clip), colour, flaws)), flaws


@pytest.mark.parametrize("size", [(24, 32), (48, 18)])
def test_a_video_comes_back_as_it_was_stored(tmp_path: Path, size: tuple[int, int]) -> None:
    path = write_clip(tmp_path / "v.mkv", coloured(3, *size))
    found, flaws = read(path)
    assert flaws == []
    for picture, stored in zip(found, planes_of(path), strict=True):
        assert picture.shape == size
        for back, plane in zip(planes(to_video_frame(picture)), stored, strict=True):
            np.testing.assert_array_equal(back, plane)
        assert np.ptp(stored[1]) > 20  # there was colour to lose


def test_values_are_luma_or_red_green_and_blue(tmp_path: Path) -> None:
    rgb = coloured(2)
    write_images(tmp_path / "png", rgb)
    [first, _], _ = read(tmp_path / "png")
    np.testing.assert_allclose(first.values[0].numpy() * 255, luma(rgb[0]), atol=1e-3)
    [first, _], _ = read(tmp_path / "png", "channels")
    assert first.chroma is None
    np.testing.assert_allclose(np.moveaxis(first.values.numpy(), 0, -1) * 255, rgb[0], atol=1e-3)


@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_luma_and_its_colour_make_the_image_again(tmp_path: Path, suffix: str) -> None:
    rgb = coloured(2)
    paths = write_images(tmp_path, rgb, "{:03d}" + suffix, **({"quality": 100} if suffix == ".jpg" else {}))
    found, _ = read(tmp_path)
    for picture, path in zip(found, paths, strict=True):
        with Image.open(path) as image:
            stored = np.asarray(image.convert("RGB")).astype(int)
        assert np.abs(to_frame(picture, 6).to_ndarray(format="rgb24").astype(int) - stored).max() <= 4
        assert picture.name == path.stem


@pytest.mark.parametrize("colour", ["luma", "channels"])
def test_grey_has_one_channel_and_no_colour(tmp_path: Path, colour: Colour) -> None:
    write_images(tmp_path / "png", film(2))
    for path in (tmp_path / "png", write_video(tmp_path / "v.mkv", film(2), "ffv1", "gray")):
        for picture, expected in zip(read(path, colour)[0], film(2), strict=True):
            assert picture.chroma is None
            np.testing.assert_allclose(picture.values.numpy() * 255, expected[None], atol=1e-3)


@pytest.mark.parametrize("colour_first", [True, False])
def test_channels_are_as_many_in_every_frame(tmp_path: Path, colour_first: bool) -> None:
    write_images(tmp_path, coloured(2), first=1 if colour_first else 3)
    write_images(tmp_path, film(2, 24, 32), first=3 if colour_first else 1)
    with pytest.raises(InputError, match=r"some frames of .* are grey and some have colour; denoise their luma"):
        read(tmp_path, "channels")
    assert [picture.chroma is None for picture in read(tmp_path)[0]].count(True) == 2


def test_what_a_telephone_held_upright_is_upright(tmp_path: Path) -> None:
    wide = film(2, 24, 32)
    path = write_clip(tmp_path / "v.mp4", wide, turned=90)
    for picture, expected in zip(read(path)[0], wide, strict=True):
        assert picture.shape == (32, 24)
        assert np.abs(picture.values[0].numpy() * 255 - np.rot90(expected)).max() <= 1.001


def test_time_stamps_are_the_files_and_grow(tmp_path: Path) -> None:
    write_clip(tmp_path / "v.mp4", film(4), times=[0, 1, 5, 6], time_base=Fraction(1, 50))
    [clip] = find_clips(tmp_path / "v.mp4").clips
    details = details_of(clip)
    times = [(picture.time or 0) * details.time_base for picture in pictures(clip, details, "luma", [])]
    assert times == [0, Fraction(1, 50), Fraction(5, 50), Fraction(6, 50)]


def test_lost_images_leave_a_gap_in_time(tmp_path: Path) -> None:
    paths = write_images(tmp_path, film(6))
    paths[1].unlink()
    paths[3].write_bytes(b"")
    found, flaws = read(tmp_path)
    assert [picture.time for picture in found] == [0, 2, 4, 5]
    assert sum(flaw.frames for flaw in flaws) == 2


def test_rates_are_for_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "png", film(2))
    [folder], [video] = (
        find_clips(path).clips for path in (tmp_path / "png", write_video(tmp_path / "v.avi", film(2)))
    )
    assert details_of(folder).rate == 25
    assert details_of(folder, 29.97).rate == Fraction(2997, 100)
    assert details_of(video).rate == 25
    assert details_of(folder, 0.001).rate == Fraction(1, 1000)
    for rate in (0.0, 0.0009, 1000.1, math.nan):
        with pytest.raises(InputError, match=rf"rate is {rate}; give frames a second, from 0\.001 to 1000"):
            details_of(folder, rate)
    with pytest.raises(InputError, match=r"a rate of 30 is given, and .*v\.avi has its own"):
        details_of(video, 30)
