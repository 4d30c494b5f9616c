from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from layerdescent.data.video.clips import Clip, merged
from layerdescent.data.video.decode import Flaw


def clip(*stretches: tuple[int, int]) -> Clip:
    total = max(stop for _, stop in stretches)
    pixels = np.arange(total, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 3), dtype=np.uint8)
    return Clip(name="c", store=pixels, stretches=stretches, camera="c")


def test_windows_start_where_no_break_is_inside() -> None:
    broken = clip((0, 4), (4, 6), (6, 10))
    assert broken.starts(3).tolist() == [0, 1, 6, 7]
    assert broken.starts(2).tolist() == [0, 1, 2, 4, 6, 7, 8]
    assert broken.starts(5).tolist() == []
    assert broken.num_frames == 10


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 9), st.integers(0, 20), st.integers(0, 20))
def test_within_keeps_just_the_windows_inside(lengths: list[int], frames: int, start: int, stop: int) -> None:
    ends = np.cumsum([0, *lengths]).tolist()
    whole = clip(*pairwise(ends))
    inside = [first for first in whole.starts(frames).tolist() if start <= first and first + frames <= stop]
    assert whole.within(start, stop).starts(frames).tolist() == inside


def test_frames_lie_between_0_and_1() -> None:
    pixels = np.array([0, 51, 255], dtype=np.uint8).reshape(3, 1, 1)
    frames = Clip(name="c", store=pixels, stretches=((0, 3),), camera="c").frames(1, 3)
    assert frames.dtype == np.float32
    np.testing.assert_array_equal(frames.ravel(), np.array([0.2, 1.0], dtype=np.float32))


def test_spread_takes_usable_frames_at_even_distances() -> None:
    part = clip((0, 100)).within(10, 31)
    assert part.spread(3)[:, 0, 0].tolist() == [10, 20, 30]
    assert part.spread(99)[:, 0, 0].tolist() == list(range(10, 31))


def test_only_flaws_at_one_place_for_one_reason_are_merged() -> None:
    flaws = [Flaw("a", 1, "x"), Flaw("a", 2, "x"), Flaw("a", 1, "y"), Flaw("b", 1, "y"), Flaw("a", 1, "x")]
    assert list(merged(flaws)) == [Flaw("a", 3, "x"), *flaws[2:]]
    assert list(merged([])) == []
