import sys
import wave
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from PIL.TiffImagePlugin import TiffImageFile

from layerdescent.data.video.decode import Flaw, Grey, count_frames, luma, packbits_length, read_frames, usual_step
from layerdescent.data.video.layouts import find_clips
from layerdescent.errors import InputError
from tests.data.video.films import Frames, film, touch, write_images, write_video


def read(path: Path) -> list[Grey | Flaw]:
    [clip] = find_clips(path).clips
    return list(read_frames(clip))


def frames_of(items: Sequence[Grey | Flaw]) -> Frames:
    return np.stack([item for item in items if not isinstance(item, Flaw)])


def flaws_of(items: Sequence[Grey | Flaw]) -> list[Flaw]:
    return [item for item in items if isinstance(item, Flaw)]


def colours() -> Frames:
    """Frames of saturated colours, black and white, in blocks that no subsampling of colour can blur."""
    palette = np.array([[c >> 2 & 1, c >> 1 & 1, c & 1] for c in range(8)], dtype=np.uint8) * 255
    blocks = np.repeat(np.repeat(palette.reshape(2, 4, 3), 16, axis=0), 16, axis=1)
    return np.stack([blocks, blocks[::-1]])


# Grey -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["ffv1", "libx264"])
def test_grey_video_and_grey_images_are_the_same_grey(tmp_path: Path, codec: str) -> None:
    clean = film()
    write_images(tmp_path / "png", clean)
    write_images(tmp_path / "tif", clean, "{:03d}.tif", compression="packbits")
    # Both lossless; yuv420p keeps luma in 16 … 235, so 255 levels become 219 and one level is lost at most.
    video = write_video(tmp_path / "v.mkv", clean, codec, options={"qp": "0"} if codec == "libx264" else {})
    np.testing.assert_array_equal(frames_of(read(tmp_path / "png")), clean)
    np.testing.assert_array_equal(frames_of(read(tmp_path / "tif")), clean)
    decoded = frames_of(read(video)).astype(int)
    assert np.abs(decoded - clean).max() <= 1
    assert decoded.min() <= 1
    assert decoded.max() >= 254


def test_full_range_video_is_taken_as_it_is(tmp_path: Path) -> None:
    clean = film()
    np.testing.assert_array_equal(frames_of(read(write_video(tmp_path / "v.mkv", clean, "ffv1", "gray"))), clean)


def test_grey_video_of_limited_range_is_stretched_too(tmp_path: Path) -> None:
    levels = np.arange(0, 256, dtype=np.uint8).reshape(1, 16, 16)
    video = write_video(tmp_path / "v.mkv", levels, "ffv1", "gray", color_range=1)
    expected = np.clip((levels.astype(float) - 16) / 219, 0, 1) * 255
    assert np.abs(frames_of(read(video)) - expected).max() <= 0.5


def test_colour_is_luma_in_images_and_in_videos_of_red_green_and_blue(tmp_path: Path) -> None:
    rgb = colours()
    write_images(tmp_path / "png", rgb)
    write_images(tmp_path / "tif", rgb, "{:03d}.tif", compression="packbits")
    video = write_video(tmp_path / "v.mkv", rgb, "ffv1", "bgr0")
    expected = np.rint(0.299 * rgb[..., 0] + 0.587 * rgb[..., 1] + 0.114 * rgb[..., 2])
    for path in (tmp_path / "png", tmp_path / "tif", video):
        np.testing.assert_array_equal(frames_of(read(path)), expected)


def test_colour_is_luma_where_files_store_luma(tmp_path: Path) -> None:
    rgb = colours()
    write_images(tmp_path / "jpg", rgb, "{:03d}.jpg", quality=100)
    write_images(tmp_path / "sub", rgb, "{:03d}.jpg", quality=100, subsampling=2)
    video = write_video(tmp_path / "v.mkv", rgb, "libx264", "yuv420p", {"qp": "0"})
    expected = luma(rgb).astype(int)
    for path in (tmp_path / "jpg", tmp_path / "sub", video):
        # At colour borders, too, where a way through red, green and blue clips and blurs.
        assert np.abs(frames_of(read(path)) - expected).max() <= 2


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "I;16"])
def test_other_modes_of_images(tmp_path: Path, mode: str) -> None:
    grey = np.tile(np.array([0, 255], dtype=np.uint8), (8, 4))
    image = Image.fromarray(grey.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    image.save(tmp_path / "1.png")
    [frame] = read(tmp_path)
    assert not isinstance(frame, Flaw)
    np.testing.assert_array_equal(frame, grey)


def test_pixels_without_a_known_white_are_a_flaw(tmp_path: Path) -> None:
    write_images(tmp_path, film(1), "{:03d}.tif")
    Image.fromarray(np.zeros((48, 64), dtype=np.float32)).save(tmp_path / "002.tif")
    assert flaws_of(read(tmp_path)) == [
        Flaw("002.tif", 1, "pixels of mode F have no known white; save the frames with 8 or 16 bits")
    ]


# Damaged images -------------------------------------------------------------------------------------------------------


def damage(path: Path, at: float, with_bytes: bytes) -> None:
    content = bytearray(path.read_bytes())
    start = int(at * len(content))
    content[start : start + len(with_bytes)] = with_bytes
    path.write_bytes(bytes(content))


def test_a_damaged_packbits_strip_is_seen_though_pillow_reads_it(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (3, 48, 64)).astype(np.uint8)
    paths = write_images(tmp_path, noise, "{:03d}.tif", compression="packbits")
    with Image.open(paths[1]) as image:
        start = cast(TiffImageFile, image).tag_v2[273][0]
    content = bytearray(paths[1].read_bytes())
    content[start] = 20  # a run of 64 bytes says that it has 21; what follows is read out of step
    paths[1].write_bytes(bytes(content))
    with Image.open(paths[1]) as image:
        image.load()  # Pillow says nothing

    first, damaged, last = read(tmp_path)
    assert isinstance(damaged, Flaw)
    assert (damaged.where, damaged.frames) == ("002.tif", 1)
    np.testing.assert_array_equal(frames_of([first, last]), noise[[0, 2]])


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif"])
@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_truncated_or_empty_image_is_a_flaw_of_one_frame(tmp_path: Path, suffix: str, kept: float) -> None:
    paths = write_images(tmp_path, film(3), "{:03d}" + suffix)
    content = paths[1].read_bytes()
    paths[1].write_bytes(content[: int(kept * len(content))])
    kinds = [isinstance(item, Flaw) for item in read(tmp_path)]
    assert kinds == [False, True, False]


def test_a_file_that_vanishes_or_is_forbidden_is_a_flaw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path, film(2))
    [clip] = find_clips(tmp_path).clips
    (tmp_path / "001.png").unlink()
    flaw, _ = read_frames(clip)
    assert isinstance(flaw, Flaw)
    assert "No such file" in flaw.reason


def test_missing_numbers_are_a_gap(tmp_path: Path) -> None:
    paths = write_images(tmp_path, film(8), first=0, step=5)
    paths[3].unlink()
    paths[4].unlink()
    assert flaws_of(read(tmp_path)) == [Flaw("between 010.png and 025.png", 2, "missing files")]


def test_numbers_without_a_step_are_an_order_only(tmp_path: Path) -> None:
    for number, pixels in zip((0, 31, 67, 90), film(4), strict=True):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    items = read(tmp_path)
    assert [(flaw.where, flaw.frames) for flaw in flaws_of(items)] == [("file numbers", 0)]
    assert len(frames_of(items)) == 4


@given(st.integers(0, 1000), st.integers(1, 50), st.integers(1, 30))
def test_evenly_numbered_frames_have_that_step(first: int, step: int, count: int) -> None:
    numbers = [first + step * n for n in range(count)]
    assert usual_step(numbers) == (step if count > 1 else 1)


@given(st.binary(max_size=400))
def test_packbits_length_is_what_unpacking_gives(data: bytes) -> None:
    packed = b"".join(  # each piece of up to 128 bytes as it is, then one byte repeated, then a header that is nothing
        bytes([len(piece) - 1]) + piece + bytes([257 - 3, 9]) + bytes([128])
        for piece in (data[at : at + 128] for at in range(0, len(data), 128))
    )
    pieces = -(-len(data) // 128)
    assert packbits_length(packed) == len(data) + 3 * pieces
    assert not data or packbits_length(packed[:-2]) == -1


# Damaged video --------------------------------------------------------------------------------------------------------


def test_a_truncated_video_gives_what_decodes_and_says_what_is_lost(tmp_path: Path) -> None:
    clean = film(40)
    whole = frames_of(read(write_video(tmp_path / "whole.avi", clean)))
    cut = tmp_path / "cut.avi"
    cut.write_bytes((tmp_path / "whole.avi").read_bytes()[: int(0.6 * (tmp_path / "whole.avi").stat().st_size)])
    items = read(cut)
    decoded = frames_of(items)
    assert 10 < len(decoded) < 35
    np.testing.assert_array_equal(decoded, whole[: len(decoded)])
    assert len(decoded) + sum(flaw.frames for flaw in flaws_of(items)) == 40
    assert flaws_of(items)[-1].reason == "the file is cut short"


def packets(path: Path) -> list[tuple[int, int, bool]]:
    """Place in the file, size, and whether it is a key frame, of each packet."""
    with av.open(str(path)) as container:
        return [(p.pos or 0, p.size, p.is_keyframe) for p in container.demux(video=0) if p.size]


def test_from_a_damaged_frame_to_the_next_key_frame_nothing_is_used(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", film(30), gop=10)
    whole = frames_of(read(path))
    found = packets(path)
    assert [n for n, packet in enumerate(found) if packet[2]] == [0, 10, 20]
    start, size, _ = found[13]
    content = bytearray(path.read_bytes())
    content[start + 8 : start + 8 + size // 2] = bytes(size // 2)
    path.write_bytes(bytes(content))

    items = read(path)
    np.testing.assert_array_equal(frames_of(items), np.concatenate([whole[:13], whole[20:]]))
    assert sum(flaw.frames for flaw in flaws_of(items)) == 7
    assert {flaw.where for flaw in flaws_of(items)} == {"after frame 13"}
    assert isinstance(items[12], np.ndarray)
    assert isinstance(items[13], Flaw)


# What cannot be read --------------------------------------------------------------------------------------------------


def test_frames_of_two_sizes(tmp_path: Path) -> None:
    write_images(tmp_path, [*film(2), *film(1, height=40)])
    with pytest.raises(InputError, match="several sizes: first 64x48, then 64x40 pixels; cut the clip"):
        read(tmp_path)


def write_sound(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(1600))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("empty", "cannot be read as a video"),
        ("text", "cannot be read as a video"),
        ("sound", "no video stream .*audio"),
    ],
)
def test_files_without_moving_pictures(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "v.mp4"
    touch(tmp_path, "v.mp4")
    if content == "text":
        path.write_text("Not a film.\n" * 50)
    elif content == "sound":
        write_sound(path)
    with pytest.raises(InputError, match=message) as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_titles_may_be_in_any_encoding(tmp_path: Path) -> None:
    path = tmp_path / "v.mkv"
    with av.open(str(path), "w", metadata_encoding="latin-1") as container:
        container.metadata["title"] = "Müller"
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 24, "gray"
        for pixels in film(3, 24, 32):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "gray")))
        container.mux(stream.encode())
    with pytest.raises(UnicodeDecodeError):
        av.open(str(path))
    np.testing.assert_array_equal(frames_of(read(path)), film(3, 24, 32))


def test_pictures_of_an_unknown_kind(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", film(3))
    path.write_bytes(path.read_bytes().replace(b"FMP4", b"q9zz"))
    with pytest.raises(InputError, match=r"no decoder for the pictures of .*v\.avi; convert it"):
        read(path)


def test_a_video_without_frames(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", film(1)[:0])
    with pytest.raises(InputError, match=r"v\.avi"):
        read(path)


def test_a_folder_of_damaged_frames_only(tmp_path: Path) -> None:
    touch(tmp_path, "1.png", "2.png")
    with pytest.raises(InputError, match=r"no frame of .* can be decoded \(1\.png: cannot identify image file"):
        read(tmp_path)


@pytest.mark.parametrize("package", ["av", "PIL"])
def test_a_missing_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    write_images(tmp_path / "frames", film(1))
    video = write_video(tmp_path / "v.avi", film(2))
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"takes the package {package}, .* pip install 'layerdescent\[video\]'"):
        read(tmp_path / "frames" if package == "PIL" else video)


def test_counted_frames(tmp_path: Path) -> None:
    write_images(tmp_path / "frames", film(3))
    videos = [write_video(tmp_path / "v.avi", film(5)), write_video(tmp_path / "v.mkv", film(5))]
    counts = [count_frames(find_clips(path).clips[0]) for path in (tmp_path / "frames", *videos)]
    assert counts == [3, 5, None]  # Matroska doesn't say
