import errno
import os
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerdescent.data.video import cache as cache_module
from layerdescent.data.video.cache import ClipCache, DecodeOptions, default_cache_folder
from layerdescent.data.video.clips import Clip
from layerdescent.data.video.decode import Flaw, Grey, read_frames
from layerdescent.data.video.layouts import ClipSource, find_clips
from layerdescent.data.video.resize import Resize
from layerdescent.errors import InputError, RunError
from tests.data.video.films import Frames, film, write_images, write_video


@pytest.fixture
def frames() -> Frames:
    return film(6)


@pytest.fixture
def source(tmp_path: Path, frames: Frames) -> ClipSource:
    write_images(tmp_path / "frames", frames)
    return find_clips(tmp_path / "frames").clips[0]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the clips that were decoded, in order."""
    names: list[str] = []

    def noted(clip: ClipSource) -> Iterator[Grey | Flaw]:
        names.append(clip.name)
        return read_frames(clip)

    monkeypatch.setattr(cache_module, "read_frames", noted)
    return names


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.mark.parametrize("name", ["视" * 80, "a" * 240, "视 频/Ü:1"])
def test_any_name_that_a_clip_can_have_is_kept(tmp_path: Path, source: ClipSource, frames: Frames, name: str) -> None:
    cache = ClipCache(tmp_path / "cache")
    np.testing.assert_array_equal(cache.clip(replace(source, name=name)).pixels, frames)
    assert cache.has(replace(source, name=name))


def test_a_clip_is_decoded_once_and_mapped_afterwards(
    tmp_path: Path, source: ClipSource, frames: Frames, decoded: list[str]
) -> None:
    folder = tmp_path / "cache"
    assert not ClipCache(folder).has(source)
    clips = [ClipCache(folder).clip(source) for _ in range(2)]
    assert decoded == ["frames"]
    assert ClipCache(folder).has(source)
    for clip in clips:
        np.testing.assert_array_equal(clip.pixels, frames)
        assert clip.stretches == ((0, 6),)
        assert not clip.pixels.flags.writeable
        assert not clip.pixels.flags.owndata  # mapped, not read
    assert [path.suffix for path in files(folder)] == [".json", ".npy"]
    np.testing.assert_array_equal(np.load(files(folder)[1]), frames)  # an ordinary .npy file


def test_every_frame_is_told_while_decoding(tmp_path: Path, source: ClipSource) -> None:
    steps: list[int] = []
    ClipCache(tmp_path / "cache").clip(source, steps.append)
    assert sum(steps) == 6
    steps.clear()
    ClipCache(tmp_path / "cache").clip(source, steps.append)
    assert steps == []


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        (DecodeOptions(resize=Resize(scale=0.5)), (6, 24, 32)),
        (DecodeOptions(resize=Resize(longest_side=16)), (6, 12, 16)),
        (DecodeOptions(max_frames=4), (4, 48, 64)),
        (DecodeOptions(max_frames=9), (6, 48, 64)),
    ],
)
def test_other_options_are_another_entry(
    tmp_path: Path, source: ClipSource, decoded: list[str], options: DecodeOptions, shape: tuple[int, ...]
) -> None:
    ClipCache(tmp_path / "cache").clip(source)
    clip = ClipCache(tmp_path / "cache", options).clip(source)
    assert len(decoded) == 2
    assert clip.pixels.shape == shape
    assert clip.stretches == ((0, shape[0]),)
    assert clip.flaws == ()


def test_a_changed_file_is_decoded_again(tmp_path: Path, frames: Frames, decoded: list[str]) -> None:
    path = write_video(tmp_path / "v.mkv", frames, "ffv1", "gray")
    cache = ClipCache(tmp_path / "cache")
    [source] = find_clips(path).clips
    before = cache.clip(source)
    write_video(path, frames[::-1], "ffv1", "gray")
    os.utime(path, ns=(1, 1))
    after = cache.clip(source)
    assert len(decoded) == 2
    np.testing.assert_array_equal(before.pixels, frames)
    np.testing.assert_array_equal(after.pixels, frames[::-1])


@pytest.mark.parametrize("victim", [".npy", ".json"])
@pytest.mark.parametrize("harm", ["cut", "overwritten", "emptied", "removed"])
def test_a_damaged_entry_is_made_again(
    tmp_path: Path, source: ClipSource, frames: Frames, decoded: list[str], victim: str, harm: str
) -> None:
    folder = tmp_path / "cache"
    ClipCache(folder).clip(source)
    [path] = folder.glob(f"*{victim}")
    content = path.read_bytes()
    path.unlink()
    if harm != "removed":
        path.write_bytes({"cut": content[:-9], "overwritten": b"[1]" + bytes(len(content)), "emptied": b""}[harm])
    clip = ClipCache(folder).clip(source)
    assert len(decoded) == 2
    np.testing.assert_array_equal(clip.pixels, frames)
    assert len(files(folder)) == 2


def test_flaws_break_the_clip_into_stretches_and_are_remembered(tmp_path: Path, decoded: list[str]) -> None:
    frames = film(9)
    paths = write_images(tmp_path / "frames", frames)
    paths[0].write_bytes(b"")
    paths[4].write_bytes(b"")
    paths[5].write_bytes(b"")
    paths[7].unlink()
    [source] = find_clips(tmp_path / "frames").clips
    for _ in range(2):
        clip = ClipCache(tmp_path / "cache").clip(source)
        np.testing.assert_array_equal(clip.pixels, frames[[1, 2, 3, 6, 8]])
        assert clip.stretches == ((0, 3), (3, 4), (4, 5))
        assert [(flaw.where, flaw.frames) for flaw in clip.flaws] == [
            ("001.png", 1),
            ("005.png", 1),
            ("006.png", 1),
            ("between 007.png and 009.png", 1),
        ]
    assert len(decoded) == 1


def test_flaws_at_one_place_of_a_video_are_one(tmp_path: Path) -> None:
    path = write_video(tmp_path / "v.avi", film(40))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    [source] = find_clips(path).clips
    clip = ClipCache(tmp_path / "cache").clip(source)
    assert sum(flaw.frames for flaw in clip.flaws) == 40 - clip.num_frames
    assert len(clip.flaws) <= 2


def test_a_note_about_a_clip_does_not_break_it(tmp_path: Path) -> None:
    for number, pixels in zip((0, 31, 67, 90), film(4), strict=True):
        write_images(tmp_path / "frames", [pixels], first=number)
    [source] = find_clips(tmp_path / "frames").clips
    clip = ClipCache(tmp_path / "cache").clip(source)
    assert clip.stretches == ((0, 4),)
    assert [flaw.frames for flaw in clip.flaws] == [0]


def test_a_full_disk_is_a_run_error_and_leaves_nothing(
    tmp_path: Path, source: ClipSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(RunError, match=r"cannot be written to .*cache: No space left on device; free some room"):
            ClipCache(tmp_path / "cache").clip(source)
    assert files(tmp_path / "cache") == []
    assert ClipCache(tmp_path / "cache").clip(source).num_frames == 6


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path, source: ClipSource) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(RunError, match="cannot be written to"):
        ClipCache(tmp_path / "taken").clip(source)


def test_a_clip_that_cannot_be_read_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "v.avi").write_bytes(b"RIFF" + bytes(100))
    [source] = find_clips(tmp_path / "v.avi").clips
    with pytest.raises(InputError, match=r"v\.avi"):
        ClipCache(tmp_path / "cache").clip(source)
    assert files(tmp_path / "cache") == []


def test_a_clip_that_went_away(tmp_path: Path, source: ClipSource) -> None:
    source.images[0].unlink()
    with pytest.raises(InputError, match=r"001\.png cannot be read \(No such file or directory\)"):
        ClipCache(tmp_path / "cache").clip(source)


def test_the_default_folder_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert ClipCache().folder == default_cache_folder() == tmp_path / "layerdescent" / "video"


def test_too_few_frames_asked_for() -> None:
    with pytest.raises(InputError, match="at most 0 frames of a clip"):
        DecodeOptions(max_frames=0)


def test_a_clip_travels_to_other_processes_as_the_name_of_its_file(
    tmp_path: Path, source: ClipSource, frames: Frames
) -> None:
    clip = ClipCache(tmp_path / "cache").clip(source)
    assert clip.pixels.nbytes > 5000
    travelling = pickle.dumps(clip)
    assert len(travelling) < 2000
    arrived: Clip = pickle.loads(travelling)
    np.testing.assert_array_equal(arrived.pixels, frames)
