from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdescent.data.video.clips import Clip
from layerdescent.data.video.parts import Assignment, assign, cut_frames
from layerdescent.errors import InputError

SHARES = {"validation": 0.2, "test": 0.3}


@dataclass(frozen=True)
class Named:
    name: str
    part: str | None = None


def official(train: int, test: int) -> list[Named]:
    return [Named(f"train/{n:02d}", "train") for n in range(train)] + [
        Named(f"test/{n:02d}", "test") for n in range(test)
    ]


def plain(count: int) -> list[Named]:
    return [Named(f"{n:02d}") for n in range(count)]


def all_names(assignment: Assignment) -> list[str]:
    return [name for names in assignment.clips.values() for name in names]


# Clips ----------------------------------------------------------------------------------------------------------------


def test_official_test_clips_stay_the_test_part() -> None:
    clips = official(10, 3)
    assignment = assign(clips, shares=SHARES, seed=0)
    assert assignment.clips["test"] == ["test/00", "test/01", "test/02"]
    assert len(assignment.clips["validation"]) == 2
    assert sorted(all_names(assignment)) == sorted(clip.name for clip in clips)
    assert assignment.by_frames == ()
    assert "validation: 2 of 10 clips, cut off whole" in assignment.notes


@given(st.integers(4, 40), st.integers(0, 99))
def test_every_clip_is_in_one_part(count: int, seed: int) -> None:
    assignment = assign(plain(count), shares=SHARES, seed=seed)
    assert sorted(all_names(assignment)) == [clip.name for clip in plain(count)]
    assert all(len(names) >= 1 for names in assignment.clips.values())
    assert set(assignment.clips) == {"train", "validation", "test"}
    assert len(assignment.clips["test"]) == max(1, round(0.3 * count))


def test_the_draw_depends_on_seed_and_names_only() -> None:
    once = assign(plain(12), shares=SHARES, seed=3)
    again = assign(plain(12)[::-1], shares=SHARES, seed=3)
    assert {part: set(names) for part, names in once.clips.items()} == {
        part: set(names) for part, names in again.clips.items()
    }
    assert once.clips["train"] == sorted(once.clips["train"])
    assert len({tuple(assign(plain(12), shares=SHARES, seed=seed).clips["test"]) for seed in range(5)}) > 1


def test_few_clips_are_split_by_frames() -> None:
    assert assign(official(3, 2), shares=SHARES, seed=0) == Assignment(
        {"train": ["train/00", "train/01", "train/02"], "test": ["test/00", "test/01"]},
        ("validation",),
        ("train: the data set's own clips", "test: the data set's own clips"),
    )
    assert assign(plain(1), shares=SHARES, seed=0).by_frames == ("test", "validation")
    assert assign(plain(20), split_by="frames", shares=SHARES, seed=0).by_frames == ("test", "validation")
    assert assign(official(3, 2), split_by="clips", shares=SHARES, seed=0).by_frames == ()
    with pytest.raises(InputError, match="2 clips are too few to spare whole ones for test and validation"):
        assign(plain(2), split_by="clips", shares=SHARES, seed=0)


def test_a_data_set_without_training_clips_needs_a_word_from_the_user() -> None:
    clips = official(0, 6)
    with pytest.raises(InputError, match=r"6 test clips here and no training clips; name clips .*official=False"):
        assign(clips, shares=SHARES, seed=0)
    anew = assign(clips, official=False, shares=SHARES, seed=0)
    assert sorted(all_names(anew)) == [clip.name for clip in clips]
    assert anew.notes[:2] == (
        "the data set's own parts are set aside",
        "6 of the data set's own test clips do not test only",
    )


def test_named_clips_go_where_they_are_named() -> None:
    named = {"train": ["train/*", "test/00"], "test": ["02"], "validation": ["test/03"]}
    assignment = assign(official(2, 5), named=named, shares=SHARES, seed=0)
    assert assignment.clips == {
        "train": ["train/00", "train/01", "test/00"],
        "test": ["test/02"],
        "validation": ["test/03"],
    }
    assert "1 of the data set's own test clips do not test only" in assignment.notes


def test_parts_that_are_not_named_are_cut_off_the_training_clips() -> None:
    assignment = assign(plain(10), named={"train": ["*[02468]", "*[13]"], "test": ["09"]}, shares=SHARES, seed=0)
    assert assignment.clips["test"] == ["09"]
    assert len(assignment.clips["validation"]) == 1
    assert len(assignment.clips["train"]) == 6


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"train": ["train/*"], "dev": ["test/00"]}, "named for dev; the parts are train, validation, test"),
        ({"test": ["test/00"]}, "named for test, and none for train"),
        ({"train": ["seven"]}, "no clip is called 'seven', named for train; there are train/00"),
        ({"train": ["train/*"], "test": ["*/01"]}, "clip train/01 is named for train and for test"),
        ({"train": ["00"]}, "'00', named for train, may be train/00 or test/00; name one"),
    ],
)
def test_wrong_names(named: dict[str, list[str]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        assign(official(2, 2), named=named, shares=SHARES, seed=0)


@pytest.mark.parametrize("shares", [{"validation": 0.0, "test": 0.2}, {"validation": 0.5, "test": 0.5}])
def test_wrong_shares(shares: dict[str, float]) -> None:
    with pytest.raises(InputError, match="share"):
        assign(plain(10), shares=shares, seed=0)


# Frames ---------------------------------------------------------------------------------------------------------------


def clip(name: str, *lengths: int) -> Clip:
    ends = np.cumsum([0, *lengths]).tolist()
    stretches = tuple(zip(ends[:-1], ends[1:], strict=True))  # noqa: RUF007
    return Clip(name=name, store=np.zeros((ends[-1], 2, 2), dtype=np.uint8), stretches=stretches, camera="")


@given(
    st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=3), min_size=1, max_size=3),
    st.integers(1, 6),
    st.sampled_from([("validation",), ("test", "validation")]),
)
def test_windows_of_two_parts_are_more_than_a_window_apart(
    lengths: list[list[int]], frames: int, parts: tuple[str, ...]
) -> None:
    clips = [clip(str(n), *pieces) for n, pieces in enumerate(lengths)]
    needed = frames * (2 * len(parts) + 1)
    if max(sum(pieces) for pieces in lengths) < needed:
        with pytest.raises(InputError, match=f"{needed} are needed"):
            cut_frames(clips, parts, SHARES, gap=frames)
        return
    cut = cut_frames(clips, parts, SHARES, gap=frames)
    assert [c.name for c in cut["train"]] == [c.name for c in clips]  # none is lost
    for one, others in cut.items():
        for piece in others:
            for other in (c for part in cut if part != one for c in cut[part] if c.name == piece.name):
                for start, stop in piece.stretches:
                    for first, last in other.stretches:
                        assert first >= stop + frames or start >= last + frames


def test_stretches_lie_at_the_end_and_have_their_share() -> None:
    cut = cut_frames([clip("a", 100), clip("b", 24)], ("test", "validation"), SHARES, gap=4)
    assert {part: [(c.name, c.stretches) for c in clips] for part, clips in cut.items()} == {
        "train": [("a", ((0, 42),)), ("b", ((0, 4),))],
        "validation": [("a", ((46, 66),)), ("b", ((8, 13),))],
        "test": [("a", ((70, 100),)), ("b", ((17, 24),))],
    }


def test_a_clip_that_is_too_short_trains_as_a_whole() -> None:
    cut = cut_frames([clip("long", 100), clip("short", 11)], ("validation",), SHARES, gap=4)
    assert [(c.name, c.num_frames) for c in cut["train"]] == [("long", 76), ("short", 11)]
    assert [c.name for c in cut["validation"]] == ["long"]
