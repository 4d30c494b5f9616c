import errno
import os
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image

from layerdescent.denoise.pictures import Details, Picture
from layerdescent.denoise.writing import FORMATS, beside, check_target, to_frame, written
from layerdescent.errors import InputError, RunError
from tests.data.video.films import film, touch
from tests.denoise.clips import planes_of, rest, times_of, unit, write_clip

DETAILS = Details(rate=Fraction(30000, 1001), time_base=Fraction(1, 30000))


def grey(frames: int = 5, height: int = 24, width: int = 32) -> list[Picture]:
    return [
        Picture(values=values[None], time=1001 * number)
        for number, values in enumerate(unit(film(frames, height, width)))
    ]


def write(out: Path, pictures: list[Picture], details: Details = DETAILS, stopped_after: int | None = None) -> Path:
    with written(out, details, pictures[0].shape, sound=True) as write_one:
        for picture in pictures[:stopped_after]:
            write_one(picture)
        if stopped_after is not None:
            raise KeyboardInterrupt
    return out


@pytest.mark.parametrize("suffix", [*FORMATS, ".MP4"])
def test_videos_keep_rate_values_and_grey(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"v{suffix}", grey())
    assert rest(tmp_path) == {f"v{suffix}"}
    with av.open(str(path)) as file:
        assert file.streams.video[0].average_rate == DETAILS.rate
    luma = np.stack([stored[0] for stored in planes_of(path)]).astype(float)
    assert np.abs(luma - (16 + film(5, 24, 32) * (219 / 255))).mean() < 2
    assert {code for stored in planes_of(path) for plane in stored[1:] for code in np.unique(plane)} == {128}
    assert [float(time) for time in times_of(path)] == pytest.approx([n * 1001 / 30000 for n in range(5)], abs=6e-4)


@pytest.mark.parametrize("suffix", [".mp4", ".mov", ".mkv", ".webm"])
def test_uneven_time_stamps_are_kept(tmp_path: Path, suffix: str) -> None:
    times = [0, 1001, 5000, 5100, 30000]
    pictures = [Picture(values=picture.values, time=time) for picture, time in zip(grey(), times, strict=True)]
    path = write(tmp_path / f"v{suffix}", pictures)
    assert [float(time) for time in times_of(path)] == pytest.approx([time / 30000 for time in times], abs=6e-4)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("size", [(23, 32), (24, 31), (23, 31)])
def test_odd_sizes_are_made_even(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    path = write(tmp_path / f"v{suffix}", grey(2, *size))
    for stored, expected in zip(planes_of(path), film(2, *size), strict=True):
        assert stored[0].shape == (size[0] + size[0] % 2, size[1] + size[1] % 2)
        shown = stored[0][: size[0], : size[1]]
        assert np.abs(shown - (16 + expected * (219 / 255))).mean() < 2


def test_aspect_and_matrix_are_handed_on(tmp_path: Path) -> None:
    details = Details(rate=Fraction(25), time_base=Fraction(1, 25), aspect=Fraction(4, 3), colours=(1, 1, 1))
    with av.open(str(write(tmp_path / "v.mp4", grey(), details))) as file:
        stream = file.streams.video[0]
        assert stream.sample_aspect_ratio == Fraction(4, 3)
        codec = stream.codec_context
        assert (codec.colorspace, codec.color_primaries, codec.color_trc, codec.color_range) == (1, 1, 1, 1)


def test_values_that_leave_the_range_become_black_and_white() -> None:
    frame = to_frame(Picture(values=torch.tensor([[[-3.0, 0.0, 0.5, 1.0, 7.0]]])))
    assert frame.to_ndarray(format="gray").tolist() == [[0, 0, 128, 255, 255]]
    chroma = np.full((2, 1, 2), 99, dtype=np.uint8)
    frame = to_frame(Picture(values=torch.tensor([[[-3.0, 7.0]]]), chroma=chroma))
    assert frame.to_ndarray().tolist() == [[[16, 235]], [[99, 99]], [[99, 99]]]


def test_beside_puts_colour_beside_too() -> None:
    left, right = (
        Picture(values=torch.full((1, 2, 3), value), chroma=np.full((2, 2, 3), code, dtype=np.uint8), time=time)
        for value, code, time in ((0.1, 20, 0), (0.9, 200, 7))
    )
    both = beside(left, right)
    assert both.shape == (2, 6)
    assert both.time == 7
    assert both.values[0, 0].tolist() == pytest.approx([0.1] * 3 + [0.9] * 3)
    assert both.chroma is not None
    assert both.chroma[1, 1].tolist() == [20] * 3 + [200] * 3


# What may be written --------------------------------------------------------------------------------------------------


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"OUT ends in \.gif; give a video file that ends in \.mp4"):
        check_target(tmp_path / "v.gif", overwrite=True)


def test_what_is_there_stays_unless_told_otherwise(tmp_path: Path) -> None:
    touch(tmp_path, "v.mp4", "frames/1.png")
    for out in (tmp_path / "v.mp4", tmp_path / "frames"):
        with pytest.raises(InputError, match="is there already; give OUT another name, or --overwrite"):
            check_target(out, overwrite=False)
        check_target(out, overwrite=True)
    (tmp_path / "empty").mkdir()
    check_target(tmp_path / "empty", overwrite=False)


def test_a_folder_with_other_files_is_never_replaced(tmp_path: Path) -> None:
    touch(tmp_path, "frames/1.png", "frames/thesis.txt")
    with pytest.raises(InputError, match=r"holds more than PNG frames \(thesis\.txt\)"):
        check_target(tmp_path / "frames", overwrite=True)


def test_a_folder_inside_a_folder_is_no_frame(tmp_path: Path) -> None:
    touch(tmp_path, "frames/1.png", "frames/2.png/thesis.txt")
    with pytest.raises(InputError, match=r"holds more than PNG frames \(2\.png\)"):
        check_target(tmp_path / "frames", overwrite=True)


def test_of_a_link_only_the_link_goes(tmp_path: Path) -> None:
    touch(tmp_path, "real/000009.png")
    (tmp_path / "frames").symlink_to("real")
    check_target(tmp_path / "frames", overwrite=True)
    write(tmp_path / "frames", grey(2))
    assert rest(tmp_path) == {"frames", "real"}
    assert (rest(tmp_path / "frames"), rest(tmp_path / "real")) == ({"000001.png", "000002.png"}, {"000009.png"})


def test_a_link_that_leads_nowhere_is_there(tmp_path: Path) -> None:
    (tmp_path / "frames").symlink_to("nothing")
    with pytest.raises(InputError, match="is there already"):
        check_target(tmp_path / "frames", overwrite=False)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    touch(tmp_path, "v.mp4/1.png", "frames")
    for name, message in (("v.mp4", "is a folder, and OUT would be a file"), ("frames", "is a file, and OUT would be")):
        with pytest.raises(InputError, match=message):
            check_target(tmp_path / name, overwrite=True)


def test_the_input_is_no_output(tmp_path: Path) -> None:
    touch(tmp_path, "v.mp4")
    with pytest.raises(InputError, match="would be written over what is read"):
        check_target(tmp_path / "sub" / ".." / "v.mp4", tmp_path / "other", tmp_path / "v.mp4", overwrite=True)


# What goes wrong ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"v{suffix}"
    (tmp_path / f".{out.name}.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(RunError, match=f"no space is left on the device for {out}: nothing was written"):
        write(out, grey())
    assert rest(tmp_path) == set()


def test_a_disk_that_fills_up_while_frames_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = Image.Image.save

    def full(image: Image.Image, path: Path) -> None:
        if path.name == "000003.png":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save(image, path)

    monkeypatch.setattr(Image.Image, "save", full)
    with pytest.raises(RunError, match=r"no space is left on the device for .*frames: nothing was written"):
        write(tmp_path / "frames", grey())
    assert rest(tmp_path) == set()


@pytest.mark.parametrize("name", ["v.mp4", "v.mkv", "v.avi", "frames"])
@pytest.mark.parametrize("after", [0, 3])
def test_an_error_leaves_nothing_and_keeps_what_was_there(tmp_path: Path, name: str, after: int) -> None:
    for before in (set(), {name}):
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / name, grey(), stopped_after=after)
        assert rest(tmp_path) == before
        write(tmp_path / name, grey())  # whole, and there before the second time
    if name == "frames":
        assert rest(tmp_path / name) == {f"{number:06d}.png" for number in range(1, 6)}
    else:
        assert len(planes_of(tmp_path / name)) == 5


def test_a_folder_is_replaced_as_a_whole(tmp_path: Path) -> None:
    touch(tmp_path, "frames/000009.png")
    write(tmp_path / "frames", grey(2))
    assert rest(tmp_path) == {"frames"}
    assert rest(tmp_path / "frames") == {"000001.png", "000002.png"}


def test_what_was_there_comes_back_where_the_new_cannot_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path, "frames/000009.png")
    rename = Path.rename

    def refused(path: Path, target: Path) -> Path:
        if path.suffix == ".tmp":
            raise OSError(errno.EIO, "Input/output error", str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(RunError, match="Input/output error"):
        write(tmp_path / "frames", grey(2))
    assert (rest(tmp_path), rest(tmp_path / "frames")) == ({"frames"}, {"000009.png"})


def test_what_a_killed_process_of_the_same_number_left_is_no_obstacle(tmp_path: Path) -> None:
    touch(tmp_path, *(f".{name}.{os.getpid()}.tmp{inside}" for name, inside in (("frames", "/1.png"), ("v.mp4", ""))))
    write(tmp_path / "frames", grey(2))
    write(tmp_path / "v.mp4", grey(2))
    assert rest(tmp_path) == {"frames", "v.mp4"}


def test_avi_takes_any_rate(tmp_path: Path) -> None:
    rate = Fraction(100_001, 1000)
    out = write(tmp_path / "v.avi", grey(), Details(rate=rate, time_base=1 / rate))
    with av.open(str(out)) as file:
        assert float(file.streams.video[0].average_rate or 0) == pytest.approx(float(rate), rel=1e-4)


def test_sound_that_a_container_does_not_take(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "v.mkv", film(3, 24, 32), sound="pcm_s16le")
    details = Details(rate=Fraction(25), time_base=Fraction(1, 25), sound=source)
    with (
        pytest.raises(InputError, match=r"sound .* cannot be copied into \.webm; give OUT as \.mkv"),
        written(tmp_path / "out.webm", details, (24, 32), sound=True),
    ):
        pass
    assert rest(tmp_path) == {"v.mkv"}
    with written(tmp_path / "out.webm", details, (24, 32), sound=False) as write_one:
        write_one(grey()[0])


def test_an_encoder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from layerdescent.denoise import writing

    monkeypatch.setitem(writing.FORMATS, ".mp4", writing.Format("mp4", "libx266"))
    with pytest.raises(InputError, match="no encoder libx266 here"), written(tmp_path / "v.mp4", DETAILS, (2, 2), True):
        pass
    assert rest(tmp_path) == set()
