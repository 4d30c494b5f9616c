"""The unit noise: its distribution, and what it may depend on."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from layerdescent.errors import InputError
from layerdescent.noise_kinds import KINDS, Kind
from layerdescent.perturbation.noise import NoiseStream, epsilon

IDS = [101, 2023, 3185, 2003, 2307, 102]
SMALL_P = 1e-3  # the seeds are fixed, so this is a bound on how odd the one draw may look


def noise(kind: Kind, count: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    return NoiseStream(kind, seed, IDS, dim).rows(count)


@pytest.mark.parametrize("kind", KINDS)
def test_every_coordinate_has_mean_zero_and_variance_one(kind: Kind) -> None:
    rows = noise(kind, 40_000, 8).astype(np.float64)
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=4 / math.sqrt(len(rows)))
    np.testing.assert_allclose((rows**2).mean(axis=0), 1, atol=0.035)
    covariance = rows.T @ rows / len(rows)
    np.testing.assert_allclose(covariance - np.diag(np.diag(covariance)), 0, atol=0.025)


def test_gaussian_and_uniform_have_their_distribution() -> None:
    assert stats.kstest(noise("gaussian", 5_000, 4).ravel(), stats.norm.cdf).pvalue > SMALL_P
    uniform = stats.uniform(-math.sqrt(3), 2 * math.sqrt(3))
    assert stats.kstest(noise("uniform", 5_000, 4).ravel(), uniform.cdf).pvalue > SMALL_P


@pytest.mark.parametrize("dim", [2, 3, 48])
def test_discrete_noise_is_metric_privacy_noise(dim: int) -> None:
    """Radius Gamma(shape d, scale 1/eps), direction uniform on the sphere, one independent of the other."""
    rows = noise("discrete", 6_000, dim).astype(np.float64)
    radii = np.linalg.norm(rows, axis=1)
    eps = epsilon(gamma=1.0, scale=1.0, dim=dim)
    assert stats.kstest(radii, stats.gamma(dim, scale=1 / eps).cdf).pvalue > SMALL_P
    # The square of one coordinate of a uniform direction is Beta(1/2, (d-1)/2).
    directions = rows / radii[:, None]
    for axis in (0, dim - 1):
        assert stats.kstest(directions[:, axis] ** 2, stats.beta(0.5, (dim - 1) / 2).cdf).pvalue > SMALL_P
    assert abs(stats.spearmanr(radii, directions[:, 0]).statistic) < 4 / math.sqrt(len(rows))


def test_directions_in_the_plane_are_uniform_angles() -> None:
    rows = noise("discrete", 6_000, 2)
    angles = np.arctan2(rows[:, 1], rows[:, 0])
    assert stats.kstest(angles, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue > SMALL_P


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    dim=st.integers(1, 9),
    calls=st.lists(st.integers(0, 7), min_size=1, max_size=5),
    start=st.integers(0, 20),
)
def test_a_row_depends_on_its_position_only(kind: Kind, dim: int, calls: list[int], start: int) -> None:
    """Not on how many rows are drawn, in how many calls, or from where: forwards or back."""
    whole = noise(kind, 64, dim)
    stream = NoiseStream(kind, 0, IDS, dim)
    pieces = [stream.rows(count) for count in calls]
    np.testing.assert_array_equal(np.concatenate(pieces), whole[: sum(calls)])
    np.testing.assert_array_equal(stream.rows(3, start), whole[start : start + 3])


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_texts_kinds_and_positions_have_noise_of_their_own(kind: Kind) -> None:
    def stream(seed: int = 0, ids: list[int] = IDS, kind: Kind = kind) -> NDArray[np.float32]:
        return NoiseStream(kind, seed, ids, 16).rows(2)

    other_kind = KINDS[(KINDS.index(kind) + 1) % 3]
    variants = [
        stream(),
        stream(seed=1),
        stream(seed=-1),
        stream(ids=IDS[:-1]),
        stream(ids=IDS[::-1]),
        stream(kind=other_kind),
    ]
    rows = np.concatenate(variants)
    lengths = np.linalg.norm(rows, axis=1)
    cosines = rows @ rows.T / np.outer(lengths, lengths)
    assert np.abs(cosines - np.eye(len(rows))).max() < 0.9


@pytest.mark.parametrize(
    ("kind", "second_row"),
    [
        ("gaussian", [0.19312620, 1.09575653]),
        ("uniform", [-1.05677855, 0.31070775]),
        ("discrete", [0.03545922, 0.41390598]),
    ],
)
def test_the_streams_stay_what_they_are(kind: Kind, second_row: list[float]) -> None:
    """A changed key, generator or order of draws would silently part new results from stored ones."""
    np.testing.assert_allclose(noise(kind, 2, 2)[1], second_row, rtol=1e-6)


def test_epsilon_matches_gamma_by_variance() -> None:
    eps = epsilon(gamma=1.5, scale=0.05, dim=384)
    radii = np.random.default_rng(0).gamma(384, 1 / eps, 200_000)
    assert math.sqrt((radii**2).mean() / 384) == pytest.approx(1.5 * 0.05, rel=2e-3)
    assert epsilon(0.0, 1.0, 4) == math.inf


@pytest.mark.parametrize("bad", [{"gamma": -1.0}, {"scale": 0.0}, {"dim": 0}, {"gamma": math.nan}])
def test_epsilon_names_what_it_was_given(bad: dict[str, float]) -> None:
    with pytest.raises(InputError, match="|".join(f"{k}={v}" for k, v in bad.items())):
        epsilon(**{"gamma": 1.0, "scale": 1.0, "dim": 3} | bad)  # type: ignore[arg-type]
