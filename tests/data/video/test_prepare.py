import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerdescent.data.video import Flaw, background_windows, find_clips, prepare_video, psnr, read_frames
from layerdescent.data.video.prepare import PreparedVideo, SyntheticClips
from layerdescent.errors import InputError
from tests.data.video.films import film, write_images, write_video

SMALL: dict[str, Any] = {"frames": 4, "patch": 8, "train_windows": 40, "validation_windows": 12, "test_windows": 20}
GENERATED = SyntheticClips(clips=8, frames=20, height=32, width=40, cameras=1)


@pytest.fixture
def data_set(tmp_path: Path) -> Path:
    """Six training and two test clips in the layout of Ped2, with a damaged frame and a missing one."""
    root = tmp_path / "ped2"
    for number in range(6):
        write_images(root / "training" / "frames" / f"{number:02d}", film(12, seed=number), first=0)
    for number in range(2):
        paths = write_images(root / "testing" / "frames" / f"{number:02d}", film(12, seed=10 + number), first=0)
    paths[3].write_bytes(b"")
    paths[8].unlink()
    return root


def frames_used(video: PreparedVideo) -> dict[str, set[tuple[str, int]]]:
    return {
        part: {
            (rows.clips[clip].name, frame + t)
            for rows in [video.part(part)]
            for clip, frame, *_ in rows.positions.tolist()
            for t in range(rows.frames)
        }
        for part in ("train", "validation", "test")
    }


def test_a_data_set_in_its_own_parts(data_set: Path, tmp_path: Path) -> None:
    video = prepare_video(data_set, cache=tmp_path / "cache", **SMALL)
    report = video.report
    assert report.layout == "ano_pred"
    assert report.clips["test"] == ["test/00", "test/01"]
    assert len(report.clips["train"]) == 5
    assert len(report.clips["validation"]) == 1
    assert (
        report.windows
        == {"train": 40, "validation": 12, "test": 20}
        == {part: len(video.part(part)) for part in ("train", "validation", "test")}
    )
    assert report.window_clips == {"train": 5, "validation": 1, "test": 2}
    assert report.frames == {"train": 60, "validation": 12, "test": 22}
    assert report.frame_sizes == ["64x48"]
    assert report.by_frames == []
    assert [flaw["where"] for flaw in report.unusable["test/01"]] == ["003.png", "between 007.png and 009.png"]
    assert list(report.unusable) == ["test/01"]
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
    assert "2 frames of 1 clips cannot be used, and no window holds them (most: test/01, 2;" in report.summary()
    assert "\n" not in report.summary()

    used = frames_used(video)
    assert not used["train"] & used["validation"]
    # Of the damaged clip, frames 0-2, 4-7 and 9-11 follow each other; only the four in the middle hold a window.
    assert {frame for name, frame in used["test"] if name == "test/01"} == {3, 4, 5, 6}


def test_the_windows_are_cut_out_of_the_frames_of_their_clip(data_set: Path, tmp_path: Path) -> None:
    video = prepare_video(data_set, cache=tmp_path / "cache", **SMALL)
    sources = {clip.name: clip for clip in find_clips(data_set).clips}
    for part in ("train", "validation", "test"):
        rows = video.part(part)
        for number in (0, len(rows) - 1):
            clip, frame, row, column = rows.positions[number].tolist()
            read = [f for f in read_frames(sources[rows.clip_names[clip]]) if not isinstance(f, Flaw)]
            expected = np.stack(read)[frame : frame + 4, row : row + 8, column : column + 8].reshape(4, 64) / 255
            np.testing.assert_allclose(rows[number]["pixel_values"].numpy(), expected, atol=1e-7)


def test_the_same_arguments_give_the_same_windows(data_set: Path, tmp_path: Path) -> None:
    once, again = (prepare_video(data_set, cache=tmp_path / name, **SMALL) for name in ("one", "two"))
    other = prepare_video(data_set, cache=tmp_path / "one", seed=1, **SMALL)
    for part in ("train", "validation", "test"):
        np.testing.assert_array_equal(once.part(part).positions, again.part(part).positions)
        np.testing.assert_array_equal(once.part(part).values(), again.part(part).values())
    assert (once.train.positions != other.train.positions).any()


def test_few_clips_share_clips_but_no_frames_and_the_report_says_so(tmp_path: Path) -> None:
    for number in range(2):
        write_video(tmp_path / "av" / "training_videos" / f"{number}.avi", film(60, seed=number))
    write_video(tmp_path / "av" / "testing_videos" / "1.avi", film(20, seed=7))
    video = prepare_video(tmp_path / "av", cache=tmp_path / "cache", **{**SMALL, "train_windows": 900})
    report = video.report
    assert report.layout == "avenue"
    assert report.by_frames == ["validation"]
    assert report.clips["train"] == report.clips["validation"] == ["train/0", "train/1"]
    assert any(note.startswith("validation: 15% of the frames of every training clip") for note in report.split)
    used = frames_used(video)
    assert used["train"] == {(f"train/{n}", frame) for n in range(2) for frame in range(60 - 9 - 4)}
    assert used["validation"] <= {(f"train/{n}", frame) for n in range(2) for frame in range(51, 60)}
    assert {name for name, _ in used["test"]} == {"test/1"}


def test_one_video_file_is_cut_into_three_stretches(tmp_path: Path) -> None:
    path = write_video(tmp_path / "walk.mp4", film(80), "libx264")
    video = prepare_video(path, cache=tmp_path / "cache", **SMALL)
    used = {part: {frame for _, frame in found} for part, found in frames_used(video).items()}
    assert max(used["train"]) + 4 < min(used["validation"])
    assert max(used["validation"]) + 4 < min(used["test"])
    assert video.report.layout == "video"
    assert video.report.by_frames == ["test", "validation"]


def test_generated_clips() -> None:
    video = prepare_video("synthetic", synthetic=GENERATED, **SMALL)
    assert video.report.layout == "generated"
    assert video.report.window_clips == {"train": 5, "validation": 1, "test": 2}
    assert video.train[0]["pixel_values"].shape == (4, 64)
    assert 0.2 < video.training_mean < 0.8
    assert prepare_video("synthetic", **SMALL).report.frames == {"train": 448, "validation": 128, "test": 192}


def test_the_background_of_a_camera_that_stands_still_is_near_and_no_background_is_made_up() -> None:
    video = prepare_video("synthetic", synthetic=GENERATED, **SMALL)
    assert video.backgrounds is not None
    errors = background_windows(video.test, video.backgrounds) - video.test.values()
    assert np.median(np.abs(errors)) < 0.1
    own_cameras = SyntheticClips(clips=8, frames=20, height=32, width=40, cameras=8)
    assert prepare_video("synthetic", synthetic=own_cameras, **SMALL).backgrounds is None


def test_all_windows_tile_the_part() -> None:
    video = prepare_video("synthetic", synthetic=GENERATED, **{**SMALL, "test_windows": None})
    assert len(video.test) == 2 * (20 // 4) * (32 // 8) * (40 // 8)


def test_stored_windows_replace_the_sample(tmp_path: Path) -> None:
    first = prepare_video("synthetic", synthetic=GENERATED, **SMALL)
    first.test.save(tmp_path / "test.json")
    stored = {"test": tmp_path / "test.json"}
    again = prepare_video("synthetic", synthetic=GENERATED, stored_windows=stored, **{**SMALL, "test_windows": 3})
    np.testing.assert_array_equal(again.test.values(), first.test.values())
    assert "test: stored windows" in again.report.split
    with pytest.raises(InputError, match="holds windows of 4 frames and 8x8 pixels, and 5 frames and 8x8"):
        prepare_video("synthetic", synthetic=GENERATED, stored_windows=stored, **{**SMALL, "frames": 5})


def test_options_reach_the_frames_and_the_report(data_set: Path, tmp_path: Path) -> None:
    video = prepare_video(data_set, cache=tmp_path / "cache", scale=0.5, max_frames=6, max_clips=1, **SMALL)
    report = video.report
    assert report.frame_sizes == ["32x24"]
    assert report.frames["train"] == 6
    assert {part: len(names) for part, names in report.clips.items()} == {"train": 1, "validation": 1, "test": 1}
    assert len(report.left_out) == 8 - 3
    assert (report.resize, report.max_frames) == ({"scale": 0.5}, 6)


def test_only_clips_that_are_used_are_decoded(data_set: Path, tmp_path: Path) -> None:
    prepare_video(data_set, cache=tmp_path / "cache", max_clips=1, **SMALL)
    assert len(list((tmp_path / "cache").glob("*.npy"))) == 3


def test_clips_without_a_window_are_named(data_set: Path, tmp_path: Path) -> None:
    shutil.rmtree(data_set / "training" / "frames" / "00")
    write_images(data_set / "training" / "frames" / "00", film(3))
    video = prepare_video(data_set, cache=tmp_path / "cache", **SMALL)
    assert [name.split(" ")[0] for name in video.report.without_windows] == ["train/00"]
    assert "1 clips are too short or too small for a window" in video.report.summary()


def test_a_bar_is_shown_while_decoding_and_only_then(
    data_set: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    prepare_video(data_set, cache=tmp_path / "cache", progress=True, **SMALL)
    assert "decode 8 clips: 100%" in capfd.readouterr().err
    prepare_video(data_set, cache=tmp_path / "cache", progress=True, **SMALL)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("synthetic", {"scale": 0.5}, "are for files; say in synthetic how large"),
        ("synthetic", {"format": "ucsd"}, "are for files"),
        ("absent", {"synthetic": GENERATED}, "synthetic clips are described, but the source is absent"),
        ("absent", {}, "'absent' is no file or folder here"),
        ("synthetic", {"frames": 65}, "train part: no clip has a window of 65 frames"),
        ("synthetic", {"test_windows": 0}, "0 test windows are asked for"),
        ("synthetic", {"stored_windows": {"dev": "x"}}, "windows are stored for dev; the parts are train, validation"),
        ("synthetic", {"max_clips": 0}, "at most 0 clips of each part"),
    ],
)
def test_wrong_arguments(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare_video(source, **{**SMALL, **options})


def test_an_unknown_part() -> None:
    with pytest.raises(InputError, match="no part 'dev'; there are train, validation, test"):
        prepare_video("synthetic", synthetic=GENERATED, **SMALL).part("dev")


# Real data ------------------------------------------------------------------------------------------------------------

FEW: dict[str, Any] = {"train_windows": 64, "validation_windows": 32, "test_windows": 64, "max_frames": 40}


@pytest.mark.shared
def test_ucsd_ped2(shared_data: Path, tmp_path: Path) -> None:
    video = prepare_video(shared_data / "video" / "ucsd_ped2", cache=tmp_path, **FEW)
    assert video.report.layout == "ano_pred"
    assert video.report.frames == {"train": 14 * 40, "validation": 2 * 40, "test": 12 * 40}
    assert video.report.frame_sizes == ["360x240"]
    assert video.report.unusable == {}
    assert video.backgrounds is not None
    # The camera stands still: what it saw in training is near to what it sees in test.
    errors = background_windows(video.test, video.backgrounds) - video.test.values()
    assert np.sqrt((errors**2).mean()) < 0.1


@pytest.mark.shared
def test_ucsd_ped1_tiff(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "video" / "ucsd_ped1"
    with pytest.raises(InputError, match="1 test clips here and no training clips"):
        prepare_video(source, cache=tmp_path, **FEW)
    video = prepare_video(source, official=False, cache=tmp_path, **{**FEW, "max_frames": 90})
    assert (video.report.layout, video.report.frame_sizes) == ("ucsd", ["238x158"])
    assert video.report.by_frames == ["test", "validation"]


@pytest.mark.shared
def test_avenue(shared_data: Path, tmp_path: Path) -> None:
    whole = {**FEW, "max_frames": None}
    report = prepare_video(shared_data / "video" / "avenue", cache=tmp_path, **whole).report
    assert report.layout == "avenue"
    assert report.clips["train"] == ["train/12", "train/16"]
    assert report.frames["test"] == 36 + 294 + 248 + 273
    assert report.frames["train"] + report.frames["validation"] == 145 + 244 - 2 * 12
    assert report.unusable == {}


@pytest.mark.shared
def test_shanghaitech(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "video" / "shanghaitech"
    named = {"train": ["01_0014", "01_0016", "12_0142"], "test": ["01_0015"]}
    video = prepare_video(source, clips=named, scale=0.5, cache=tmp_path, **FEW)
    assert video.report.layout == "shanghaitech"
    assert video.report.frame_sizes == ["428x240"]
    assert video.report.clips["test"] == ["test/01_0015"]
    assert "3 of the data set's own test clips do not test only" in video.report.split
    assert video.backgrounds is not None
    assert set(video.backgrounds) == {"01", "12"}


@pytest.mark.shared
def test_neighbouring_frames_of_real_video_are_alike(shared_data: Path, tmp_path: Path) -> None:
    video = prepare_video(shared_data / "video" / "avenue", cache=tmp_path, **FEW)
    frames = video.test.clips[0].frames(0, 11)
    assert psnr(frames[:-1], frames[1:]).mean() > psnr(frames[:-1], frames[:-1][:, ::-1]).mean() + 5
