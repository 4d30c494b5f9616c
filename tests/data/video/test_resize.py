import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdescent.data.video.resize import Resize, area_means
from layerdescent.errors import InputError


def overlaps(before: int, after: int) -> np.ndarray:
    """(after, before): how much of each new pixel each old one covers, pixel by pixel."""
    length = before / after
    return (
        np.array(
            [[max(0.0, min((i + 1) * length, j + 1) - max(i * length, j)) for j in range(before)] for i in range(after)]
        )
        / length
    )


sizes = st.integers(1, 24).flatmap(lambda before: st.tuples(st.just(before), st.integers(1, before)))


@given(sizes, st.integers(0, 2**32 - 1))
def test_area_means_weigh_old_pixels_by_overlap(size: tuple[int, int], seed: int) -> None:
    before, after = size
    values = np.random.default_rng(seed).integers(0, 256, (before, 3)).astype(np.uint8)
    means = area_means(values, after)
    np.testing.assert_allclose(means, overlaps(before, after) @ values, atol=1e-9)
    np.testing.assert_allclose(means.mean(axis=0), values.mean(axis=0), atol=1e-9)


def test_halving_is_the_mean_of_four_pixels() -> None:
    frame = np.random.default_rng(0).integers(0, 256, (6, 10)).astype(np.uint8)
    halved = Resize(scale=0.5)(frame)
    np.testing.assert_array_equal(halved, np.rint(frame.reshape(3, 2, 5, 2).mean(axis=(1, 3))))
    assert halved.dtype == np.uint8


def test_smaller_frames_stay_as_they_are() -> None:
    frame = np.zeros((6, 10), dtype=np.uint8)
    assert Resize(longest_side=10)(frame) is frame
    assert Resize(longest_side=5)(frame).shape == (3, 5)
    assert Resize(longest_side=5)(frame.T).shape == (5, 3)
    assert Resize(longest_side=1)(frame).shape == (1, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"longest_side": 5, "scale": 0.5}, "both longest_side and scale"),
        ({"scale": 1.5}, "scale is 1.5; give a factor above 0 and at most 1"),
        ({"scale": 0.0}, "scale is 0.0"),
        ({"longest_side": 0}, "longest_side is 0"),
    ],
)
def test_wrong_fields(fields: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Resize(**fields)  # type: ignore[arg-type]
