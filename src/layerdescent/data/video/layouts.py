"""Where the clips of a source are: the layouts that data sets come in, each recognised by what is there.

A clip is one video file, or one folder of images in the order of the integers in their names. What the official
archives carry beside their clips is passed over: names that begin with a dot (`.DS_Store`, `._001.tif`) and folders of
masks (`Test001_gt`).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from layerdescent.errors import InputError

VideoFormat = Literal["auto", "ucsd", "avenue", "shanghaitech", "ano_pred", "videos", "frames", "video"]

VIDEO_SUFFIXES = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm", ".wmv")
IMAGE_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff")

_OFFICIAL_PARTS = {"train": "training", "test": "testing"}
_SCENE = re.compile(r"(\d+)_\d+")  # ShanghaiTech numbers its cameras: clip 01_0014 is from camera 01


@dataclass(frozen=True, kw_only=True)
class ClipSource:
    """Where one clip is.

    Attributes:
        name: the clip's own name in its data set; with its part before it (`test/01`) where the set has parts.
        path: the video file, or the folder.
        images: the files of a folder, in order; empty for a video file.
        part: "train" or "test" where the data set says so.
        camera: clips of one name here were filmed by one camera that does not move.
    """

    name: str
    path: Path
    images: tuple[Path, ...] = ()
    part: Literal["train", "test"] | None = None
    camera: str


@dataclass(frozen=True)
class FoundClips:
    """The clips of a source, the layout they are in, and the folder that has it."""

    clips: list[ClipSource]
    layout: str
    root: Path


def find_clips(source: str | Path, format: VideoFormat = "auto") -> FoundClips:  # noqa: A002
    """The clips of a file or folder.

    Args:
        source: a video file, or a folder in one of the layouts of `LAYOUTS`; a folder around it will do.
        format: which layout it is; "auto" recognises it.

    Raises:
        InputError: the source is not there or cannot be read, has no clips, or follows several layouts; or a clip's
            images have no numbers, or one number twice.
    """
    path = Path(source).expanduser()
    if format != "auto" and format not in LAYOUTS:
        raise InputError(f"there is no video format {format!r}; there are auto, {', '.join(LAYOUTS)}")
    if not path.exists():
        raise InputError(
            f"video source {str(source)!r} is no file or folder here; give a video file, a folder of them, a folder of "
            "frames, the folder of a data set, or synthetic"
        )
    hits = _search(path, format)
    if not hits:
        expected = "; ".join(LAYOUTS[name].looks for name in LAYOUTS if format in ("auto", name))
        raise InputError(f"{path} holds no clips that are recognised: found {_found(path)}; expected {expected}")
    if len(hits) > 1:
        listed = ", ".join(f"{hit.root} ({hit.layout})" for hit in hits)
        raise InputError(f"{path} can be read in {len(hits)} ways: {listed}; give one of the folders, or the format")
    [found] = hits
    empty = next((clip for clip in found.clips if clip.path.is_dir() and not clip.images), None)
    if empty is not None:
        raise InputError(f"clip {empty.path} holds no frames; remove the folder, or fetch it again")
    return found


def frame_number(path: Path) -> int:
    """The integer in the name of a frame: the last one, so that `01_0012.jpg` is frame 12.

    Raises:
        InputError: the name holds no integer.

    Example:
        >>> frame_number(Path("01_0012.jpg"))
        12
    """
    numbers = re.findall(r"\d+", path.stem)
    if not numbers:
        raise InputError(f"{path} has no number in its name, so its place in the clip is unknown; number the frames")
    return int(numbers[-1])


# Search ---------------------------------------------------------------------------------------------------------------


def _search(path: Path, format: str) -> list[FoundClips]:  # noqa: A002
    """Every reading of the source; folders inside it are looked into only where it has no layout of its own."""
    if path.is_file():
        return _readings(path, ("video",), format)
    level = [path]
    for _ in range(3):  # a download may lie in a folder of the archive's name, and that in one of the user's
        hits = [hit for folder in level for hit in _readings(folder, _OFFICIAL, format)]
        if hits:
            return hits
        level = [entry for folder in level for entry in _entries(folder) if entry.is_dir()]
        if len(level) > 100:  # the clips of something else
            break
    return _readings(path, _PLAIN, format)


def _readings(path: Path, names: Sequence[str], format: str) -> list[FoundClips]:  # noqa: A002
    hits: list[FoundClips] = []
    for name in names:
        # Where videos lie beside them, ano_pred's folders are one half of ShanghaiTech's layout.
        half = name == "ano_pred" and any(hit.layout == "shanghaitech" for hit in hits)
        if format in ("auto", name) and not half and (clips := LAYOUTS[name].read(path)):
            hits.append(FoundClips(clips, name, path))
    return hits


def _found(path: Path) -> str:
    if path.is_file():
        return f"a file that ends in {path.suffix or 'nothing'}"
    entries = _entries(path)
    folders = [entry.name for entry in entries if entry.is_dir()]
    kinds = Counter(entry.suffix or "no suffix" for entry in entries if not entry.is_dir())
    parts = [f"{len(folders)} folders ({_few(folders)})" if folders else "no folders"]
    parts += [f"{count} files ({kind})" for kind, count in kinds.items()] or ["no files"]
    return ", ".join(parts)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")


def _entries(folder: Path) -> list[Path]:
    """What lies in a folder, in the order of the numbers in the names; without hidden files and masks."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(f"{folder} cannot be read ({error.strerror or error}); check its permissions") from None
    return sorted((entry for entry in entries if not entry.name.endswith("_gt")), key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts clip 2 before clip 10."""
    return [(int(piece), "") if piece.isdigit() else (-1, piece) for piece in re.split(r"(\d+)", path.name)]


def _child(folder: Path, *names: str) -> Path | None:
    """A folder inside another, upper and lower case aside."""
    for name in names:
        if not folder.is_dir():
            return None
        match = next((entry for entry in _entries(folder) if entry.name.lower() == name and entry.is_dir()), None)
        if match is None:
            return None
        folder = match
    return folder


# Clips ----------------------------------------------------------------------------------------------------------------


def _videos_in(folder: Path | None) -> list[ClipSource]:
    entries = [] if folder is None else _entries(folder)
    return _named(
        ClipSource(name=entry.stem, path=entry, camera="")
        for entry in entries
        if entry.suffix.lower() in VIDEO_SUFFIXES and entry.is_file()
    )


def _folders_in(folder: Path | None, pattern: str = r".*") -> list[ClipSource]:
    entries = [] if folder is None else _entries(folder)
    return [
        ClipSource(name=entry.name, path=entry, images=_images_in(entry), camera="")
        for entry in entries
        if entry.is_dir() and re.fullmatch(pattern, entry.name, re.IGNORECASE)
    ]


def _images_in(folder: Path) -> tuple[Path, ...]:
    images = [entry for entry in _entries(folder) if entry.suffix.lower() in IMAGE_SUFFIXES and entry.is_file()]
    by_number: dict[int, Path] = {}
    for image in images:
        number = frame_number(image)
        if number in by_number:
            raise InputError(f"{folder} has two frames of number {number}: {by_number[number].name} and {image.name}")
        by_number[number] = image
    return tuple(by_number[number] for number in sorted(by_number))


def _named(clips: Iterable[ClipSource]) -> list[ClipSource]:
    """Files that share a stem (`a.avi`, `a.mp4`) keep their suffix as part of the name."""
    listed = list(clips)
    stems = Counter(clip.name for clip in listed)
    return [replace(clip, name=clip.path.name) if stems[clip.name] > 1 else clip for clip in listed]


def _in_parts(train: Sequence[ClipSource], test: Sequence[ClipSource]) -> list[ClipSource]:
    """The clips of an official split; a camera for each scene where the names count scenes, else one for all."""
    clips = [replace(clip, part="train", name=f"train/{clip.name}") for clip in train]
    clips += [replace(clip, part="test", name=f"test/{clip.name}") for clip in test]
    stems = [_SCENE.fullmatch(clip.path.stem) for clip in clips]
    return [replace(clip, camera=stem[1] if stem else "one") for clip, stem in zip(clips, stems, strict=True)]


# Layouts --------------------------------------------------------------------------------------------------------------


def _ucsd(path: Path) -> list[ClipSource]:
    return _in_parts(
        _folders_in(_child(path, "train"), r"train\d+"),
        _folders_in(_child(path, "test"), r"test\d+"),
    )


def _avenue(path: Path) -> list[ClipSource]:
    return _in_parts(_videos_in(_child(path, "training_videos")), _videos_in(_child(path, "testing_videos")))


def _shanghaitech(path: Path) -> list[ClipSource]:
    """Training clips are videos, test clips are frames; in either part the other kind will do, but not both."""
    found = {}
    has_videos = False
    for part, folder in _OFFICIAL_PARTS.items():
        videos, frames = _videos_in(_child(path, folder, "videos")), _folders_in(_child(path, folder, "frames"))
        if videos and frames:
            raise InputError(
                f"{path / folder} has both videos ({len(videos)}) and frames ({len(frames)} folders), and they decode "
                "differently; set the format to ano_pred for the frames, or move one of the folders away"
            )
        found[part] = videos or frames
        has_videos |= bool(videos)
    return _in_parts(found["train"], found["test"]) if has_videos else []


def _ano_pred(path: Path) -> list[ClipSource]:
    train, test = (_folders_in(_child(path, folder, "frames")) for folder in _OFFICIAL_PARTS.values())
    return _in_parts(train, test)


def _videos(path: Path) -> list[ClipSource]:
    return [replace(clip, camera=clip.name) for clip in _videos_in(path)]


def _frames(path: Path) -> list[ClipSource]:
    if images := _images_in(path):
        return [ClipSource(name=path.resolve().name, path=path, images=images, camera=path.resolve().name)]
    # A folder without images among clips is somebody's notes here, where nothing says what belongs to the data set.
    return [replace(clip, camera=clip.name) for clip in _folders_in(path) if clip.images]


def _video(path: Path) -> list[ClipSource]:
    return [ClipSource(name=path.stem, path=path, camera=path.stem)] if path.is_file() else []


@dataclass(frozen=True)
class Layout:
    """How a layout is read, and what it looks like, for an error."""

    read: Callable[[Path], list[ClipSource]]
    looks: str


LAYOUTS: dict[str, Layout] = {
    "ucsd": Layout(_ucsd, "{Train,Test}/{Train,Test}NNN/NNN.tif (ucsd)"),
    "avenue": Layout(_avenue, "{training,testing}_videos/NN.avi (avenue)"),
    "shanghaitech": Layout(
        _shanghaitech, "training/videos/NN_NNN.avi and testing/frames/NN_NNNN/NNN.jpg (shanghaitech)"
    ),
    "ano_pred": Layout(_ano_pred, "{training,testing}/frames/CLIP/NNN.jpg (ano_pred)"),
    "videos": Layout(_videos, f"files that end in {', '.join(VIDEO_SUFFIXES)} (videos)"),
    "frames": Layout(_frames, f"numbered images, or folders of them, that end in {', '.join(IMAGE_SUFFIXES)} (frames)"),
    "video": Layout(_video, "one video file (video)"),
}
_OFFICIAL = ("ucsd", "avenue", "shanghaitech", "ano_pred")
_PLAIN = ("videos", "frames")
