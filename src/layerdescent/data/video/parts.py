"""Which clips train, validate and test: no clip in two parts; where there are too few clips, no frame in two parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Protocol

from layerdescent.data.splits import in_line
from layerdescent.data.video.clips import Clip
from layerdescent.errors import InputError
from layerdescent.recipes.common import PARTS

SplitBy = Literal["auto", "clips", "frames"]

_ENOUGH = 4  # clips; of fewer, a whole one for validation would take a third of the training data or more


class HasPart(Protocol):
    """What matters of a clip here."""

    @property
    def name(self) -> str:
        """Which is unique in its data set."""

    @property
    def part(self) -> str | None:
        """The part that the data set itself puts it in."""


@dataclass(frozen=True)
class Assignment:
    """Who goes where.

    Attributes:
        clips: the names of the clips of each part that has clips of its own.
        by_frames: parts that are to be stretches at the end of each training clip.
        notes: how it came about, for the report.
    """

    clips: dict[str, list[str]]
    by_frames: tuple[str, ...]
    notes: tuple[str, ...]


def assign(
    clips: Sequence[HasPart],
    *,
    split_by: SplitBy = "auto",
    official: bool = True,
    named: Mapping[str, Sequence[str]] | None = None,
    shares: Mapping[str, float],
    seed: int,
) -> Assignment:
    """Puts clips into parts.

    Named clips go where they are named. Else the data set's own test clips are the test part, and what is missing is
    cut off the training clips, which are drawn by a hash of seed and name: whole clips where there are four or more of
    them, else stretches of frames.

    Args:
        clips: all clips of the data set.
        split_by: "clips" or "frames" to decide the question instead.
        official: False makes no difference between training and test clips of the data set, and cuts all anew.
        named: clips of each part, by name or pattern (`test/01_*`); parts that are not named are cut off `train`.
        shares: of validation and test, in (0, 1).
        seed: of the draw.

    Raises:
        InputError: unknown names or parts, a clip in two parts, no clip to train on, or shares out of range.

    Example:
        >>> from pathlib import Path
        >>> from layerdescent.data.video.layouts import ClipSource
        >>> clips = [ClipSource(name=f"{n}", path=Path(), camera="") for n in range(6)]
        >>> assign(clips, shares={"validation": 0.2, "test": 0.2}, seed=0).clips
        {'train': ['0', '2', '3', '4'], 'test': ['5'], 'validation': ['1']}
    """
    _check_shares(shares)
    names = [clip.name for clip in clips]
    tests = {clip.name for clip in clips if clip.part == "test"}
    if named is not None:
        parts, notes = _named(names, named)
    elif not official or all(clip.part is None for clip in clips):
        parts = {"train": names}
        notes = ["the data set has no parts of its own"] if official else ["the data set's own parts are set aside"]
    else:
        parts = {part: [clip.name for clip in clips if clip.part == part] for part in ("train", "test")}
        parts = {part: members for part, members in parts.items() if members}
        notes = [f"{part}: the data set's own clips" for part in parts]
    if "train" not in parts:
        raise InputError(
            f"the data set has {len(parts['test'])} test clips here and no training clips; name clips for each part "
            "(clips), or have the test clips cut into parts anew (official=False), which the results will say"
        )
    missing = [part for part in ("test", "validation") if part not in parts]
    if taken := len(tests & set(parts["train"])):
        notes.append(f"{taken} of the data set's own test clips do not test only")
    if split_by == "frames" or (split_by == "auto" and len(parts["train"]) < _ENOUGH):
        return Assignment(parts, tuple(missing), tuple(notes))
    pool = in_line(parts["train"], seed)
    for part in missing:
        count = max(1, round(shares[part] * len(parts["train"])))
        if count >= len(pool):
            raise InputError(
                f"{len(parts['train'])} clips are too few to spare whole ones for {' and '.join(missing)}; split by "
                "frames, or give more clips"
            )
        chosen, pool = set(pool[:count]), pool[count:]
        parts[part] = [name for name in names if name in chosen]
        notes.append(f"{part}: {count} of {len(parts['train'])} clips, cut off whole")
    parts["train"] = [name for name in names if name in set(pool)]
    return Assignment(parts, (), tuple(notes))


def cut_frames(
    clips: Sequence[Clip], parts: Sequence[str], shares: Mapping[str, float], gap: int
) -> dict[str, list[Clip]]:
    """Cuts every clip in time: training frames, then those of each part, with a gap before each.

    A clip that has no room for that (every piece needs `gap` frames) trains as a whole.

    Args:
        clips: the training clips.
        parts: which to cut off, of "validation" and "test"; they lie in this order after the training frames.
        shares: of a clip's frames, for each part.
        gap: frames between two parts that are in neither: the length of a window, so that windows of two parts are
            further apart than the frames of one.

    Returns:
        The clips of "train" and of each part, with the frames that belong to it.

    Raises:
        InputError: no clip has room.
    """
    pieces: dict[str, list[Clip]] = {"train": [], **{part: [] for part in parts}}
    ordered = [part for part in PARTS if part in parts]
    for clip in clips:
        total = len(clip.pixels)
        lengths = {part: max(gap, round(shares[part] * total)) for part in ordered}
        end = total - sum(lengths.values()) - gap * len(ordered)
        if end < gap:
            pieces["train"].append(clip)
            continue
        pieces["train"].append(clip.within(0, end))
        for part in ordered:
            start = end + gap
            end = start + lengths[part]
            pieces[part].append(clip.within(start, end))
    short = next((part for part in ordered if not pieces[part]), None)
    if short is not None:
        raise InputError(
            f"no training clip is long enough to spare frames for {short}: {2 * gap * (len(ordered) + 1) - gap} are "
            f"needed, and the longest has {max(len(clip.pixels) for clip in clips)}; ask for windows of fewer frames"
        )
    return pieces


def _check_shares(shares: Mapping[str, float]) -> None:
    for part, share in shares.items():
        if not 0 < share < 1:
            raise InputError(f"the share of {part} is {share}; give a number between 0 and 1")
    if sum(shares.values()) >= 1:
        raise InputError(f"the shares of {' and '.join(shares)} sum to {sum(shares.values()):g}: nothing would train")


def _named(names: Sequence[str], named: Mapping[str, Sequence[str]]) -> tuple[dict[str, list[str]], list[str]]:
    unknown = [part for part in named if part not in PARTS]
    if unknown:
        raise InputError(f"clips are named for {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    if not named.get("train"):
        raise InputError(f"clips are named for {', '.join(named) or 'no part'}, and none for train; name those too")
    parts: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for part, patterns in named.items():
        parts[part] = []
        for pattern in patterns:
            matches = [name for name in names if fnmatchcase(name, pattern) or name.rpartition("/")[2] == pattern]
            if not matches:
                raise InputError(f"no clip is called {pattern!r}, named for {part}; there are {', '.join(names)}")
            if len(matches) > 1 and not any(fnmatchcase(name, pattern) for name in matches):
                raise InputError(f"{pattern!r}, named for {part}, may be {' or '.join(matches)}; name one of them")
            for name in matches:
                if owner.setdefault(name, part) != part:
                    raise InputError(f"clip {name} is named for {owner[name]} and for {part}; a clip has one part")
                if name not in parts[part]:
                    parts[part].append(name)
    return parts, [f"{part}: clips that were named" for part in parts]
