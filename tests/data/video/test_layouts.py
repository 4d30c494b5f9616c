from pathlib import Path

import pytest

from layerdescent.data.video.layouts import ClipSource, FoundClips, VideoFormat, find_clips, frame_number
from layerdescent.errors import InputError
from tests.data.video.films import touch


def ucsd(root: Path) -> Path:
    for part in ("Train", "Test"):
        for clip in ("001", "002"):
            touch(root / part / f"{part}{clip}", "001.tif", "002.tif", "._001.tif", ".DS_Store", "Thumbs.db")
        touch(root / part, ".DS_Store", "notes.m")
    touch(root / "Test" / "Test001_gt", "001.bmp", "002.bmp")
    touch(root, "UCSDped1.m")
    return root


def summary(found: FoundClips) -> list[tuple[str, str | None, str, list[str]]]:
    return [(clip.name, clip.part, clip.camera, [image.name for image in clip.images]) for clip in found.clips]


def test_ucsd_skips_masks_and_hidden_files(tmp_path: Path) -> None:
    found = find_clips(ucsd(tmp_path / "UCSDped1"))
    frames = ["001.tif", "002.tif"]
    assert found.layout == "ucsd"
    assert summary(found) == [
        ("train/Train001", "train", "one", frames),
        ("train/Train002", "train", "one", frames),
        ("test/Test001", "test", "one", frames),
        ("test/Test002", "test", "one", frames),
    ]


def test_avenue_whatever_its_folder_is_called(tmp_path: Path) -> None:
    root = tmp_path / "Avenue Dataset"
    touch(root, "training_videos/02.avi", "training_videos/10.avi", "training_videos/1.avi", "testing_videos/01.avi")
    touch(
        root, "testing_videos/.DS_Store", "testing_videos/._01.avi", "ground_truth_demo/testing_label_mask/1_label.mat"
    )
    found = find_clips(root)
    assert found.layout == "avenue"
    assert [(clip.name, clip.path.name) for clip in found.clips] == [
        ("train/1", "1.avi"),
        ("train/02", "02.avi"),
        ("train/10", "10.avi"),
        ("test/01", "01.avi"),
    ]
    assert {clip.camera for clip in found.clips} == {"one"}
    assert not any(clip.images for clip in found.clips)
    assert find_clips(root.rename(tmp_path / "avenue")).layout == "avenue"


def test_shanghaitech_trains_on_videos_and_tests_on_frames(tmp_path: Path) -> None:
    touch(tmp_path, "training/videos/01_001.avi", "training/videos/02_001.avi")
    touch(tmp_path, *(f"testing/frames/01_0014/{n:03d}.jpg" for n in range(3)), "testing/test_frame_mask/01_0014.npy")
    assert summary(find_clips(tmp_path)) == [
        ("train/01_001", "train", "01", []),
        ("train/02_001", "train", "02", []),
        ("test/01_0014", "test", "01", ["000.jpg", "001.jpg", "002.jpg"]),
    ]
    assert find_clips(tmp_path).layout == "shanghaitech"


def test_shanghaitech_with_test_videos_only(tmp_path: Path) -> None:
    touch(tmp_path, "testing/videos/01_0014.mp4", "testing/videos/12_0142.mp4")
    assert [(clip.name, clip.camera) for clip in find_clips(tmp_path).clips] == [
        ("test/01_0014", "01"),
        ("test/12_0142", "12"),
    ]


def test_ano_pred_sorts_frames_by_number(tmp_path: Path) -> None:
    touch(tmp_path, *(f"training/frames/01/{n}.jpg" for n in (10, 9, 1)), "testing/frames/01/000.jpg")
    found = find_clips(tmp_path)
    assert found.layout == "ano_pred"
    assert summary(found) == [
        ("train/01", "train", "one", ["1.jpg", "9.jpg", "10.jpg"]),
        ("test/01", "test", "one", ["000.jpg"]),
    ]


def test_videos_and_frames_in_one_part_need_a_word_from_the_user(tmp_path: Path) -> None:
    touch(tmp_path, "training/videos/01_001.avi", "training/frames/01_001/000.jpg", "testing/frames/01_0014/000.jpg")
    with pytest.raises(InputError, match=r"both videos \(1\) and frames \(1 folders\).*ano_pred"):
        find_clips(tmp_path)
    assert all(clip.images for clip in find_clips(tmp_path, "ano_pred").clips)


def test_a_folder_of_videos(tmp_path: Path) -> None:
    touch(tmp_path, "b.MP4", "a.mkv", "a.webm", "notes.txt", ".a.mkv")
    clips = find_clips(tmp_path).clips
    assert [(clip.name, clip.part, clip.camera) for clip in clips] == [
        ("a.mkv", None, "a.mkv"),
        ("a.webm", None, "a.webm"),
        ("b", None, "b"),
    ]


def test_a_folder_of_frames_is_one_clip_and_a_folder_of_folders_several(tmp_path: Path) -> None:
    touch(tmp_path, "two/f_2.png", "two/f_10.png", "ten/f_1.png", "notes/readme.txt")
    [clip] = find_clips(tmp_path / "two").clips
    assert (clip.name, [image.name for image in clip.images]) == ("two", ["f_2.png", "f_10.png"])
    assert [clip.name for clip in find_clips(tmp_path).clips] == ["ten", "two"]


def test_one_video_file(tmp_path: Path) -> None:
    touch(tmp_path, "walk.mp4")
    assert find_clips(tmp_path / "walk.mp4").clips == [
        ClipSource(name="walk", path=tmp_path / "walk.mp4", camera="walk")
    ]


def test_a_data_set_is_found_inside_the_folders_of_its_archive(tmp_path: Path) -> None:
    inner = ucsd(tmp_path / "downloads" / "UCSD_Anomaly_Dataset.v1p2" / "UCSDped1")
    touch(tmp_path / "downloads", "SOURCE.txt")
    assert find_clips(tmp_path / "downloads").root == inner
    ucsd(inner.with_name("UCSDped2"))
    with pytest.raises(InputError, match=r"2 ways: .*UCSDped1 \(ucsd\), .*UCSDped2 \(ucsd\); give one"):
        find_clips(tmp_path / "downloads")


def test_the_format_overrides_what_would_be_recognised(tmp_path: Path) -> None:
    touch(tmp_path, "a.avi", "training_videos/1.avi")
    assert [clip.name for clip in find_clips(tmp_path).clips] == ["train/1"]
    assert [clip.name for clip in find_clips(tmp_path, "videos").clips] == ["a"]


def test_images_beside_videos_are_two_readings(tmp_path: Path) -> None:
    touch(tmp_path, "a.avi", "1.jpg")
    with pytest.raises(InputError, match=r"2 ways: .*\(videos\), .*\(frames\)"):
        find_clips(tmp_path)


@pytest.mark.parametrize(
    ("files", "layout", "message"),
    [
        (["a/x.txt", "b/y.txt", "z.csv"], "auto", r"no clips.*: found 2 folders \(a, b\), 1 files \(\.csv\); expected"),
        ([], "auto", r"found no folders, no files"),
        (["1.png"], "ucsd", r"found no folders, 1 files \(\.png\); expected \{Train,Test\}/\S+ \(ucsd\)$"),
        (["1.png", "01.png"], "auto", r"two frames of number 1: 0?1\.png and 0?1\.png"),
        (["cover.png"], "auto", r"cover\.png has no number in its name"),
        (["training/frames/01/1.jpg", "testing/frames/02/x.txt"], "auto", r"testing/frames/02 holds no frames"),
        (["1.png"], "imax", r"no video format 'imax'; there are auto, ucsd, avenue"),
    ],
)
def test_what_is_wrong_with_a_folder_is_one_line(
    tmp_path: Path, files: list[str], layout: VideoFormat, message: str
) -> None:
    touch(tmp_path, *files)
    with pytest.raises(InputError, match=message) as error:
        find_clips(tmp_path, layout)
    assert "\n" not in str(error.value)


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no file or folder here; give a video file"):
        find_clips(tmp_path / "absent")


def test_an_unreadable_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(InputError, match=r"cannot be read \(Permission denied\)"):
        find_clips(tmp_path)


def test_the_last_integer_of_a_name_counts() -> None:
    assert [frame_number(Path(name)) for name in ("7.jpg", "cam2_0031.png", "clip-3.frame-08.tif")] == [7, 31, 8]
