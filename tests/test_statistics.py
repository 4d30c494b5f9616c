"""Intervals and bounds: coverage on simulated data, normal theory, and what they refuse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from layerdescent.errors import InputError
from layerdescent.statistics import (
    by_group,
    mean_interval,
    mean_intervals,
    paired_difference,
    paired_root_difference,
    simultaneous_upper_bounds,
)

TRIALS = 300


def simulate(
    rng: np.random.Generator, shape: tuple[int, int], by_seed: float, by_unit: float, rest: float
) -> np.ndarray:
    """Values of mean 0 with a spread over seeds, over units, and over both."""
    n_seeds, n_units = shape
    return (
        by_seed * rng.normal(size=(n_seeds, 1))
        + by_unit * rng.normal(size=(1, n_units))
        + rest * rng.normal(size=(n_seeds, n_units))
    )


@pytest.mark.parametrize(
    ("shape", "by_seed", "by_unit", "rest"),
    [
        ((1, 200), 0.0, 1.0, 1.0),  # one seed: the ordinary bootstrap
        ((3, 200), 0.1, 1.0, 1.0),  # seeds and units matter alike
        ((3, 200), 1.0, 0.1, 0.1),  # three seeds are all there is to know
        ((3, 200), 0.0, 1.0, 0.0),  # seeds that make no difference
        ((5, 200), 0.1, 0.5, 1.0),
    ],
)
def test_intervals_cover_the_truth_as_often_as_they_say(
    shape: tuple[int, int], by_seed: float, by_unit: float, rest: float
) -> None:
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(TRIALS):
        estimate = mean_interval(simulate(rng, shape, by_seed, by_unit, rest), resamples=500, seed=trial)
        hits += estimate.low <= 0 <= estimate.high
    # Three standard errors of the count, and the approximation for few seeds.
    assert 0.90 <= hits / TRIALS <= 0.995


def test_units_shared_by_all_seeds_are_not_counted_as_new_ones() -> None:
    rng = np.random.default_rng(0)
    unit_effects = rng.normal(size=(1, 400))
    once = mean_interval(unit_effects)
    thrice = mean_interval(np.repeat(unit_effects, 3, axis=0))
    assert thrice.high - thrice.low == pytest.approx(once.high - once.low, rel=0.1)


@pytest.mark.parametrize("n_seeds", [4, 8])
def test_few_seeds_get_students_width(n_seeds: int) -> None:
    """Where seeds are all that varies, the interval is about Student's on the seeds' means."""
    rng = np.random.default_rng(0)
    ratios = []
    for trial in range(60):
        seed_means = rng.normal(size=n_seeds)
        estimate = mean_interval(np.repeat(seed_means[:, None], 30, axis=1), resamples=2000, seed=trial)
        student = stats.t.ppf(0.975, n_seeds - 1) * seed_means.std(ddof=1) / np.sqrt(n_seeds)
        ratios.append((estimate.high - estimate.low) / 2 / student)
    assert np.mean(ratios) == pytest.approx(1, abs=0.06)


def test_what_seeds_do_on_single_units_is_counted_once() -> None:
    """Independent values have the standard error 1 / sqrt(S N); counted twice it were 1.4 times that."""
    rng = np.random.default_rng(0)
    widths = [mean_interval(rng.normal(size=(12, 100)), resamples=300, seed=t) for t in range(60)]
    half = np.mean([(estimate.high - estimate.low) / 2 for estimate in widths])
    assert half == pytest.approx(1.96 / np.sqrt(1200), rel=0.25)


def test_one_seed_agrees_with_the_normal_interval() -> None:
    values = np.random.default_rng(0).exponential(size=2000)
    estimate = mean_interval(values, resamples=8000)
    half = stats.norm.ppf(0.975) * values.std(ddof=1) / np.sqrt(2000)
    assert estimate.value == pytest.approx(values.mean())
    assert estimate.low == pytest.approx(values.mean() - half, abs=0.05 * half)
    assert estimate.high == pytest.approx(values.mean() + half, abs=0.05 * half)


def test_continuous_and_counted_resampling_agree() -> None:
    """Few distinct values are drawn by their counts, many one by one: the same interval either way."""
    coarse = (np.random.default_rng(0).random(3000) < 0.3).astype(float)
    jittered = coarse + 1e-9 * np.arange(3000)
    fast, slow = mean_interval(coarse, resamples=4000), mean_interval(jittered, resamples=4000)
    assert fast.low == pytest.approx(slow.low, abs=1e-3)
    assert fast.high == pytest.approx(slow.high, abs=1e-3)


def test_roots_are_compared_as_a_bootstrap_of_the_roots_would() -> None:
    rng = np.random.default_rng(3)
    errors = rng.gamma(2.0, 0.05, size=400)
    ours, theirs = errors * rng.uniform(0.8, 1.1, size=400), errors
    found = paired_root_difference(ours, theirs)
    assert found.value == pytest.approx(np.sqrt(ours.mean()) - np.sqrt(theirs.mean()))
    draws = rng.integers(400, size=(4000, 400))
    roots = np.sqrt(ours[draws].mean(1)) - np.sqrt(theirs[draws].mean(1))
    low, high = np.quantile(roots, [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))
    exact = paired_root_difference(np.zeros(5), np.zeros(5))
    assert (exact.value, exact.low, exact.high) == (0, 0, 0)


def test_a_paired_difference_uses_the_pairing() -> None:
    rng = np.random.default_rng(0)
    hard = rng.normal(0, 10, size=(2, 500))
    paired = paired_difference(hard + 0.1 + 0.01 * rng.normal(size=hard.shape), hard)
    assert paired.value == pytest.approx(0.1, abs=0.01)
    assert paired.low > 0
    assert (paired.n_seeds, paired.n_units) == (2, 500)
    assert "hierarchical bootstrap" in paired.method
    assert paired.to_dict() == {
        "value": paired.value,
        "ci95": [paired.low, paired.high],
        "n_units": 500,
        "n_seeds": 2,
        "method": paired.method,
    }


def test_swapping_the_pair_changes_the_sign_only() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 400))
    there, back = paired_difference(a, b), paired_difference(b, a)
    assert back.value == pytest.approx(-there.value)
    assert back.low == pytest.approx(-there.high, abs=0.1 * (there.high - there.low))


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(2, 60), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_the_order_of_units_does_not_matter(seed: int, n_seeds: int, n_units: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    samples = rng.normal(size=(n_seeds, n_units, count))
    bounds = simultaneous_upper_bounds(samples, resamples=200)
    shuffled = simultaneous_upper_bounds(samples[:, rng.permutation(n_units)], resamples=200)
    np.testing.assert_allclose(shuffled, bounds, rtol=1e-9, atol=1e-12)


def test_one_call_for_many_quantities_is_many_calls() -> None:
    samples = np.random.default_rng(0).normal([0.0, 1.0], size=(500, 2))
    means, bounds = mean_intervals(samples, resamples=4000)
    for column in range(2):
        alone = mean_interval(samples[:, column], resamples=4000)
        assert means[column] == pytest.approx(alone.value)
        np.testing.assert_allclose(bounds[column], [alone.low, alone.high], atol=5e-3)


@pytest.mark.parametrize("n_seeds", [1, 3])
def test_simultaneous_bounds_lie_above_each_marginal_bound(n_seeds: int) -> None:
    samples = np.random.default_rng(0).normal([-0.3, 0.0, 2.0, 1.0], [1.0, 0.5, 2.0, 1.0], size=(n_seeds, 300, 4))
    together = simultaneous_upper_bounds(samples, resamples=4000)
    for column in range(4):
        alone = simultaneous_upper_bounds(samples[..., [column]], resamples=4000)
        assert together[column] > alone[0] > samples[..., column].mean()


def test_simultaneous_bounds_hold_together_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    together = marginal = 0
    for trial in range(TRIALS):
        samples = rng.normal(size=(150, 8))
        together += bool((simultaneous_upper_bounds(samples, resamples=500, seed=trial) >= 0).all())
        alone = [simultaneous_upper_bounds(samples[:, [c]], resamples=500, seed=trial)[0] for c in range(8)]
        marginal += bool(min(alone) >= 0)
    assert 0.91 <= together / TRIALS <= 0.985
    assert marginal / TRIALS < 0.8  # what one would claim without the correction


def test_identical_quantities_cost_nothing_extra() -> None:
    column = np.random.default_rng(0).normal(size=(200, 1))
    once, often = simultaneous_upper_bounds(column), simultaneous_upper_bounds(np.repeat(column, 6, axis=1))
    np.testing.assert_allclose(often, once[0])


def test_constant_values_are_their_own_bound() -> None:
    estimate = mean_interval(np.full((3, 50), 0.1))
    assert (estimate.low, estimate.high) == pytest.approx((0.1, 0.1))
    samples = np.column_stack([np.full(50, 0.1), np.random.default_rng(0).normal(size=50)])
    bounds = simultaneous_upper_bounds(samples)
    assert bounds[0] == pytest.approx(0.1)
    assert bounds[1] == pytest.approx(simultaneous_upper_bounds(samples[:, 1:])[0])


def test_the_result_is_a_function_of_the_seed() -> None:
    values = np.random.default_rng(0).normal(size=300)
    assert mean_interval(values, seed=3) == mean_interval(values, seed=3)
    assert mean_interval(values, seed=3) != mean_interval(values, seed=4)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "at least 2 units"),
        ([], "at least 2 units"),
        ([1.0, float("nan")], "finite"),
        (np.zeros((2, 3, 4)), "shape"),
    ],
)
def test_what_cannot_have_an_interval_is_refused(values: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mean_interval(values)  # type: ignore[arg-type]


def test_wrong_confidence_and_unpaired_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        simultaneous_upper_bounds(np.zeros((5, 2)), confidence=95)
    with pytest.raises(InputError, match="one shape"):
        paired_difference(np.zeros((2, 5)), np.zeros((3, 5)))


def test_groups_keep_the_mean_and_are_what_is_resampled() -> None:
    rng = np.random.default_rng(0)
    samples, groups = rng.normal(size=(2, 9)), [5, 5, 1, 1, 1, 1, 5, 7, 7]
    grouped = by_group(samples, groups)
    assert grouped.shape == (2, 3)
    np.testing.assert_allclose(grouped.mean(axis=1), samples.mean(axis=1))
    np.testing.assert_allclose(grouped[:, 0], samples[:, 2:6].sum(axis=1) * 3 / 9)
    np.testing.assert_array_equal(by_group(samples, None), samples)
    with pytest.raises(InputError, match="8 groups for 9 samples"):
        by_group(samples, groups[:-1])
