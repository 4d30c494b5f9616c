"""A source of video, out of which come three parts of windows, and a report of all that was done on the way."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm.auto import tqdm

from layerdescent.data.splits import in_line
from layerdescent.data.video.cache import ClipCache, DecodeOptions
from layerdescent.data.video.clips import Clip
from layerdescent.data.video.decode import count_frames
from layerdescent.data.video.layouts import ClipSource, VideoFormat, find_clips
from layerdescent.data.video.parts import Assignment, SplitBy, assign, cut_frames
from layerdescent.data.video.resize import Resize
from layerdescent.data.video.synthetic import synthetic_clips
from layerdescent.data.video.trivial import training_backgrounds, training_mean
from layerdescent.data.video.windows import VideoWindows, all_positions, random_positions, sampled_positions
from layerdescent.errors import InputError
from layerdescent.recipes.common import PARTS

SYNTHETIC = "synthetic"


@dataclass(frozen=True, kw_only=True)
class SyntheticClips:
    """How many clips the generator makes, and how large; see `synthetic_clips`."""

    clips: int = 12
    frames: int = 64
    height: int = 96
    width: int = 96
    cameras: int = 3
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class VideoReport:
    """Where the windows come from, and what could not be used.

    Attributes:
        source: the file or folder.
        layout: the layout it is in.
        clips: the names of each part's clips.
        frames: usable frames in each part's clips.
        windows: windows in each part.
        window_clips: from how many clips a part's windows come: the independent units of its statistics.
        frame_sizes: width x height of the frames, after resizing.
        window: T and the side of the patch.
        split: how each part came about.
        by_frames: parts that share clips with the training part, though no frame.
        unusable: by clip, what could not be used: where, how many frames, and why.
        without_windows: clips whose usable frames are too short or too small for a window.
        left_out: clips that are in no part.
        resize: how frames were made smaller.
        max_frames: the most frames that were read of a clip.
    """

    source: str
    layout: str
    clips: dict[str, list[str]]
    frames: dict[str, int]
    windows: dict[str, int]
    window_clips: dict[str, int]
    frame_sizes: list[str]
    window: dict[str, int]
    split: list[str]
    by_frames: list[str]
    unusable: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    without_windows: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    resize: dict[str, Any] = field(default_factory=dict)
    max_frames: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a results file."""
        return asdict(self)

    def summary(self) -> str:
        """One line for the terminal."""
        parts = ", ".join(
            f"{self.windows[part]:,} {part} windows out of {len(self.clips[part])} clips ({self.frames[part]:,} frames)"
            for part in self.windows
        )
        notes = [*self.split]
        lost = {clip: sum(flaw["frames"] for flaw in flaws) for clip, flaws in self.unusable.items()}
        if any(lost.values()):
            worst = max(lost, key=lambda clip: lost[clip])
            notes.append(
                f"{sum(lost.values()):,} frames of {sum(map(bool, lost.values()))} clips cannot be used, and no window "
                f"holds them (most: {worst}, {lost[worst]:,}; {self.unusable[worst][0]['reason']})"
            )
        if self.without_windows:
            notes.append(f"{len(self.without_windows)} clips are too short or too small for a window")
        if self.left_out:
            notes.append(f"{len(self.left_out)} clips left out")
        return f"{self.source} ({self.layout}, {', '.join(self.frame_sizes)}): {parts}; {'; '.join(notes)}"


@dataclass(frozen=True, kw_only=True)
class PreparedVideo:
    """Three parts of windows.

    Attributes:
        train: windows at random places, in a fixed order.
        validation: a fixed sample, or all.
        test: a fixed sample, or all.
        report: what was done.
    """

    train: VideoWindows
    validation: VideoWindows
    test: VideoWindows
    report: VideoReport

    def part(self, name: str) -> VideoWindows:
        """The windows of "train", "validation" or "test"."""
        parts = {"train": self.train, "validation": self.validation, "test": self.test}
        if name not in parts:
            raise InputError(f"there is no part {name!r}; there are {', '.join(parts)}")
        return parts[name]

    @cached_property
    def training_mean(self) -> float:
        """The mean of the training pixels; see `constant_mean`."""
        return training_mean(self.train.clips)

    @cached_property
    def backgrounds(self) -> dict[str, NDArray[np.float32]] | None:
        """The training background of every camera, or None where a test clip's camera has none."""
        found = training_backgrounds(self.train.clips)
        covered = all(clip.camera in found and found[clip.camera].shape == clip.size for clip in self.test.used_clips)
        return found if covered else None


def prepare_video(
    source: str | Path,
    *,
    format: VideoFormat = "auto",  # noqa: A002
    frames: int = 12,
    patch: int = 8,
    train_windows: int = 32_000,
    validation_windows: int | None = 1_000,
    test_windows: int | None = 4_000,
    stored_windows: Mapping[str, str | Path] | None = None,
    split_by: SplitBy = "auto",
    official: bool = True,
    clips: Mapping[str, Sequence[str]] | None = None,
    validation_share: float = 0.15,
    test_share: float = 0.25,
    max_clips: int | None = None,
    max_frames: int | None = None,
    longest_side: int | None = None,
    scale: float | None = None,
    synthetic: SyntheticClips | None = None,
    seed: int = 0,
    cache: str | Path | None = None,
    progress: bool = False,
) -> PreparedVideo:
    """Finds, decodes, splits and cuts the clips of a source; the same arguments give the same windows everywhere.

    Args:
        source: a data set's folder, a folder of videos, a folder of frames, a video file, or "synthetic".
        format: which layout the folder has; "auto" recognises it.
        frames: T, frames in a window.
        patch: side of the square patch, in pixels.
        train_windows: windows in an epoch of training, at random places.
        validation_windows: size of the fixed sample, drawn in proportion to the clips' windows; None takes the windows
            that tile every clip.
        test_windows: the same for the test part.
        stored_windows: files that `VideoWindows.save` wrote, by part; those very windows are then the part.
        split_by: whether missing parts are whole clips or stretches of frames; "auto" takes clips where there are four
            or more training clips.
        official: False cuts the data set's own test clips anew, together with all others.
        clips: the clips of each part, by name or pattern.
        validation_share: of the training clips or frames, where a validation part is cut off.
        test_share: the same for a test part.
        max_clips: the most clips of each part, drawn by seed.
        max_frames: the most frames of each clip, from its beginning.
        longest_side: makes frames smaller, by the area filter; see `Resize`.
        scale: the same by a factor.
        synthetic: what to generate where the source is "synthetic".
        seed: of splits and windows.
        cache: where decoded clips are kept; by default `default_cache_folder()`.
        progress: show a bar while decoding.

    Returns:
        The three parts and the report.

    Raises:
        InputError: no such source, layout, clip or part; a clip that cannot be read; no room for a window.
        RunError: the cache cannot be written, or a stored list of windows is damaged.

    Example:
        >>> video = prepare_video("synthetic", synthetic=SyntheticClips(clips=8, frames=16, height=32, width=32),
        ...                       frames=4, train_windows=64, validation_windows=16, test_windows=16)
        >>> video.train[0]["pixel_values"].shape, video.report.window_clips
        (torch.Size([4, 64]), {'train': 5, 'validation': 1, 'test': 2})
    """
    unknown = [part for part in stored_windows or () if part not in PARTS]
    if unknown:
        raise InputError(f"windows are stored for {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    options = DecodeOptions(resize=Resize(longest_side=longest_side, scale=scale), max_frames=max_frames)
    found: Sequence[Clip | ClipSource]
    if str(source) == SYNTHETIC:
        found, layout = _synthetic(synthetic or SyntheticClips(), options, format), "generated"
    else:
        if synthetic is not None:
            raise InputError(f"synthetic clips are described, but the source is {source}; set it to {SYNTHETIC}")
        listed = find_clips(source, format)
        found, layout = listed.clips, listed.layout
    shares = {"validation": validation_share, "test": test_share}
    assignment = assign(found, split_by=split_by, official=official, named=clips, shares=shares, seed=seed)
    chosen = {part: _thinned(names, max_clips, seed) for part, names in assignment.clips.items()}

    wanted = {name for names in chosen.values() for name in names}
    used = [clip for clip in found if clip.name in wanted]
    loaded = {clip.name: clip for clip in _loaded(used, options, cache, progress)}
    parts = {part: [loaded[name] for name in names] for part, names in chosen.items()}
    notes = list(assignment.notes)
    if assignment.by_frames:
        pieces = cut_frames(parts["train"], assignment.by_frames, shares, gap=frames)
        parts |= pieces
        notes += _by_frames_notes(assignment, len(pieces["train"]), shares, frames, split_by)

    sizes = {"train": train_windows, "validation": validation_windows, "test": test_windows}
    windows = {}
    for part in PARTS:
        if stored_windows is not None and part in stored_windows:
            windows[part] = _stored(parts[part], Path(stored_windows[part]), frames, patch)
            notes.append(f"{part}: stored windows")
        else:
            windows[part] = _windows(part, parts[part], sizes[part], frames, patch, seed)
    report = VideoReport(
        source=str(source),
        layout=layout,
        clips={part: [clip.name for clip in parts[part]] for part in PARTS},
        frames={part: sum(clip.num_frames for clip in parts[part]) for part in PARTS},
        windows={part: len(rows) for part, rows in windows.items()},
        window_clips={part: len(rows.used_clips) for part, rows in windows.items()},
        frame_sizes=sorted({f"{clip.size[1]}x{clip.size[0]}" for clip in loaded.values()}),
        window={"frames": frames, "patch": patch},
        split=notes,
        by_frames=list(assignment.by_frames),
        unusable={name: [asdict(flaw) for flaw in clip.flaws] for name, clip in loaded.items() if clip.flaws},
        without_windows=[
            f"{clip.name} ({part})" for part in PARTS for clip in parts[part] if not _has_window(clip, frames, patch)
        ],
        left_out=[clip.name for clip in found if clip.name not in wanted],
        resize={name: value for name, value in asdict(options.resize).items() if value is not None},
        max_frames=max_frames,
    )
    return PreparedVideo(train=windows["train"], validation=windows["validation"], test=windows["test"], report=report)


def _synthetic(asked: SyntheticClips, options: DecodeOptions, format: str) -> list[Clip]:  # noqa: A002
    if options != DecodeOptions() or format != "auto":
        raise InputError(
            "format, longest_side, scale and max_frames are for files; say in synthetic how large generated clips are"
        )
    return synthetic_clips(**asdict(asked))


def _thinned(names: Sequence[str], count: int | None, seed: int) -> list[str]:
    if count is None:
        return list(names)
    if count < 1:
        raise InputError(f"at most {count} clips of each part are asked for; give 1 or more")
    first = set(in_line(names, seed)[:count])
    return [name for name in names if name in first]


def _loaded(
    clips: Sequence[Clip | ClipSource], options: DecodeOptions, folder: str | Path | None, progress: bool
) -> Iterator[Clip]:
    """The clips with their frames, decoded where the cache lacks them."""
    cache = ClipCache(None if folder is None else Path(folder), options)
    missing = [clip for clip in clips if isinstance(clip, ClipSource) and not cache.has(clip)]
    with _bar(missing, options.max_frames, progress) as bar:
        for clip in clips:
            yield clip if isinstance(clip, Clip) else cache.clip(clip, bar.update)


@contextmanager
def _bar(clips: Sequence[ClipSource], limit: int | None, progress: bool) -> "Iterator[tqdm[Any]]":
    shown = progress and bool(clips)
    counts = [count_frames(clip) for clip in clips] if shown else []
    known = [min(count, limit or count) for count in counts if count is not None]
    total = sum(known) if len(known) == len(counts) else None
    with tqdm(total=total, desc=f"decode {len(clips)} clips", unit="frame", disable=not shown) as bar:
        yield bar


def _by_frames_notes(
    assignment: Assignment, clips: int, shares: Mapping[str, float], gap: int, split_by: SplitBy
) -> list[str]:
    return [
        f"{part}: {shares[part]:.0%} of the frames of every training clip, {gap} frames away from the others"
        + ("" if split_by == "frames" else f", because of {clips} clips none can be spared whole")
        for part in assignment.by_frames
    ]


def _stored(clips: Sequence[Clip], path: Path, frames: int, patch: int) -> VideoWindows:
    windows = VideoWindows.load(clips, path)
    if (windows.frames, windows.patch) != (frames, patch):
        raise InputError(
            f"{path} holds windows of {windows.frames} frames and {windows.patch}x{windows.patch} pixels, and "
            f"{frames} frames and {patch}x{patch} pixels are asked for"
        )
    return windows


def _windows(part: str, clips: Sequence[Clip], count: int | None, frames: int, patch: int, seed: int) -> VideoWindows:
    if count is not None and count < 1:
        raise InputError(f"{count} {part} windows are asked for; give 1 or more")
    try:
        if count is None:
            positions = all_positions(clips, frames=frames, patch=patch)
        elif part == "train":
            positions = random_positions(clips, count, frames=frames, patch=patch, seed=seed)
        else:
            positions = sampled_positions(clips, count, frames=frames, patch=patch, seed=seed)
    except InputError as error:
        raise InputError(f"{part} part: {error}") from None
    return VideoWindows(clips, positions, frames=frames, patch=patch)


def _has_window(clip: Clip, frames: int, patch: int) -> bool:
    return len(clip.starts(frames)) > 0 and min(clip.size) >= patch
