"""Intervals and bounds for means over seeds and units, by one crossed hierarchical bootstrap.

Every array here is `(n_seeds, n_units)` or, with several quantities measured on the same units, `(n_seeds, n_units,
C)`. A *unit* is what was drawn independently (a review, a prompt, a clip); all seeds are measured on the same units, so
seeds and units are crossed, not nested. [C] One resample draws seeds and units with replacement:

    mean* - mean = (mean of the drawn seeds' means - mean) + (mean of the drawn units' means - mean)

Three corrections keep the coverage at what it says with the two to five seeds that one can afford [C]:

* the drawn seeds' part is scaled by sqrt(S / (S - 1)), the units' part by sqrt(N / (N - 1)): unbiased variances;
* what a seed does on one unit alone (the interaction) shows in both parts; the analysis of variance takes it out once;
* the deviations are widened by Student's over the normal quantile, with Satterthwaite's degrees of freedom.

With one seed this is the ordinary bootstrap over units, and the interval then says nothing about other seeds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from layerdescent.errors import InputError

Array = NDArray[np.float64]

RESAMPLES = 2000
_CHUNK_ENTRIES = 4_000_000  # drawn unit indices held at once: 32 MB
_MULTINOMIAL_COST = 8  # a multinomial count costs about this many plain draws


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean with its interval, and what stands behind it."""

    value: float
    low: float
    high: float
    confidence: float
    n_seeds: int
    n_units: int
    method: str

    def to_dict(self) -> dict[str, Any]:
        """The estimate as JSON-able fields; the interval is named after its confidence, `ci95` by default."""
        return {
            "value": self.value,
            f"ci{100 * self.confidence:g}": [self.low, self.high],
            "n_units": self.n_units,
            "n_seeds": self.n_seeds,
            "method": self.method,
        }


def mean_interval(
    values: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """The mean of a quantity over seeds and units, with its two-sided bootstrap interval.

    Args:
        values: (n_units,) or (n_seeds, n_units), one value per seed and unit.
        confidence: Coverage of the interval, in (0, 1).
        resamples: Number of bootstrap resamples.
        seed: Seed of the resampling; the result is a function of the values (in any order) and this.

    Returns:
        The mean and its interval; the method is named in it.

    Raises:
        InputError: Fewer than two units, values that are not finite, or a wrong shape.

    Example:
        >>> estimate = mean_interval([0.0, 1.0, 1.0, 1.0] * 100)
        >>> estimate.value, estimate.n_units, estimate.n_seeds
        (0.75, 400, 1)
        >>> 0.69 < estimate.low < 0.72 and 0.78 < estimate.high < 0.81
        True
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim not in (1, 2):
        raise InputError(f"values must be (n_units,) or (n_seeds, n_units), but their shape is {table.shape}")
    means, bounds = mean_intervals(table[..., None], confidence=confidence, resamples=resamples, seed=seed)
    n_seeds, n_units = (1, *table.shape)[-2:]
    return Estimate(
        value=float(means[0]),
        low=float(bounds[0, 0]),
        high=float(bounds[0, 1]),
        confidence=confidence,
        n_seeds=n_seeds,
        n_units=n_units,
        method=method_name(n_seeds, resamples),
    )


def paired_difference(
    values: ArrayLike, against: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """The mean of `values - against`, paired over seeds and units, with its interval.

    Args:
        values: (n_units,) or (n_seeds, n_units).
        against: The same shape: the same units in the same order, and a seed's partner in the same row.
        confidence: As in `mean_interval`.
        resamples: As in `mean_interval`.
        seed: As in `mean_interval`.

    Returns:
        The mean difference and its interval.

    Raises:
        InputError: The shapes differ, or as in `mean_interval`.

    Example:
        >>> estimate = paired_difference([1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 0.0, 1.0])
        >>> estimate.value
        0.25
    """
    ours, theirs = np.asarray(values, dtype=np.float64), np.asarray(against, dtype=np.float64)
    if ours.shape != theirs.shape:
        raise InputError(f"paired values must have one shape, but they have {ours.shape} and {theirs.shape}")
    return mean_interval(ours - theirs, confidence=confidence, resamples=resamples, seed=seed)


def paired_root_difference(
    values: ArrayLike, against: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """The difference of two root mean squares, paired over seeds and units, with its interval.

        a - b = (a^2 - b^2) / (a + b),   a^2 = mean(values), b^2 = mean(against)

    turns the difference of the means into that of their roots: exact for the difference, to first order for the
    interval.

    Args:
        values: Squared errors (n_units,) or (n_seeds, n_units).
        against: The same shape; see `paired_difference`.
        confidence: As in `mean_interval`.
        resamples: As in `mean_interval`.
        seed: As in `mean_interval`.

    Returns:
        The difference of the roots and its interval.

    Raises:
        InputError: As in `paired_difference`.

    Source: the interval by the delta method [D].

    Example:
        >>> estimate = paired_root_difference([4.0, 16.0], [1.0, 1.0])
        >>> round(estimate.value, 6) == round(10**0.5 - 1, 6)
        True
    """
    squares = paired_difference(values, against, confidence=confidence, resamples=resamples, seed=seed)
    roots = sum(math.sqrt(np.asarray(squared, dtype=np.float64).mean()) for squared in (values, against))
    scale = 1 / max(roots, float(np.finfo(np.float64).tiny))
    return replace(squares, value=scale * squares.value, low=scale * squares.low, high=scale * squares.high)


def paired_exponential_difference(
    values: ArrayLike, against: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """The difference of the exponentials of two means, paired over seeds and units: of perplexities, from nats.

        exp(a) - exp(b) = (a - b) * (exp(a) - exp(b)) / (a - b)

    turns the difference of the means into that of their exponentials: exact for the difference, to first order for
    the interval.

    Args:
        values: Nats (n_units,) or (n_seeds, n_units).
        against: The same shape; see `paired_difference`.
        confidence: As in `mean_interval`.
        resamples: As in `mean_interval`.
        seed: As in `mean_interval`.

    Returns:
        The difference of the exponentials and its interval.

    Raises:
        InputError: As in `paired_difference`.

    Source: the interval by the delta method [D].

    Example:
        >>> estimate = paired_exponential_difference([1.0, 3.0], [0.5, 1.5])
        >>> round(estimate.value, 6) == round(float(np.exp(2) - np.exp(1)), 6)
        True
    """
    means = paired_difference(values, against, confidence=confidence, resamples=resamples, seed=seed)
    b = float(np.asarray(against, dtype=np.float64).mean())
    # The mean slope between b and a; that at b where they are equal.
    scale = math.exp(b) * (math.expm1(means.value) / means.value if means.value else 1.0)
    return replace(means, value=scale * means.value, low=scale * means.low, high=scale * means.high)


def by_count(samples: ArrayLike, counts: ArrayLike | None) -> Array:
    """Per-sample means as values whose plain mean is the mean weighted by counts, such as numbers of tokens.

        y_i = F + (n_i / mean n) (x_i - F),   F = sum_i n_i x_i / sum_i n_i

    The weights are random too: y is the linearised ratio, so that resampling units gives the error of F, not that of
    a sum over texts of unequal length. It is linear in x: what holds of F and y holds of differences.

    Args:
        samples: (…, N).
        counts: (N,), how often each sample counts; None where each counts once.

    Returns:
        (…, N).

    Source: the linearised ratio estimator, as in survey sampling [D].

    Example:
        >>> by_count([1.0, 4.0], [3, 1]).tolist()
        [0.625, 2.875]
    """
    values = np.asarray(samples, dtype=np.float64)
    if counts is None:
        return values
    n = np.asarray(counts, dtype=np.float64)
    mean = (values * n).sum(axis=-1, keepdims=True) / n.sum()
    return mean + (n / n.mean()) * (values - mean)


def by_group(samples: ArrayLike, groups: ArrayLike | None) -> Array:
    """Samples put together by the independent unit that they come from, such as the windows of one clip.

        y_g = (G / N) sum_{i in g} x_i

    so that the mean over the G groups is the mean over the N samples, and resampling groups resamples what is
    independent.

    Args:
        samples: (…, N).
        groups: (N,) integers, the group of each sample; None where every sample is a unit of its own.

    Returns:
        (…, G), or the samples as they are.

    Raises:
        InputError: Another number of groups' entries than samples.

    Source: the ratio keeps the mean exact; taking clips as units is our choice [C].

    Example:
        >>> by_group([1.0, 3.0, 5.0], [7, 7, 9]).round(3).tolist()
        [2.667, 3.333]
    """
    values = np.asarray(samples, dtype=np.float64)
    if groups is None:
        return values
    names, place = np.unique(np.asarray(groups), return_inverse=True)
    if place.shape != values.shape[-1:]:
        raise InputError(f"{len(place)} groups for {values.shape[-1]} samples: give one for each")
    sums = [values[..., place == group].sum(axis=-1) for group in range(len(names))]
    return np.stack(sums, axis=-1) * (len(names) / len(place))


def mean_intervals(
    samples: ArrayLike, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[Array, Array]:
    """The means of C quantities measured on the same units, each with its own two-sided interval.

    Args:
        samples: (N, C) or (S, N, C).
        confidence: Coverage of each interval by itself.
        resamples: As in `mean_interval`.
        seed: As in `mean_interval`.

    Returns:
        The means (C,) and the intervals (C, 2).

    Raises:
        InputError: As in `mean_interval`.

    Example:
        >>> means, bounds = mean_intervals([[0.0, 2.0], [1.0, 2.0], [2.0, 2.0]])
        >>> means.tolist(), bounds[1].tolist()
        ([1.0, 2.0], [2.0, 2.0])
    """
    table = _table(samples, confidence)
    tail = (1 - confidence) / 2
    spread = _Spread.of(table)
    quantiles = np.quantile(_deviations(table, spread, resamples, seed), [tail, 1 - tail], axis=0)
    bounds = spread.mean + _student_factor(spread.freedom, 1 - tail) * quantiles
    return spread.mean, bounds.T


def simultaneous_upper_bounds(
    samples: ArrayLike, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Array:
    """Upper bounds that lie above all C true means at once with the given confidence (max-t bootstrap).

        bound_c = mean_c + q * se_c,     q = quantile of max_c (mean*_c - mean_c) / se_c over resamples

    Args:
        samples: (N, C) or (S, N, C), C quantities measured on the same units.
        confidence: Probability that every bound holds.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resampling.

    Returns:
        The bounds (C,). A quantity that is the same on every unit and seed is its own bound.

    Raises:
        InputError: Fewer than two units, values that are not finite, or a wrong shape.

    Example:
        >>> violations = np.random.default_rng(0).normal([-0.2, 0.0], 0.5, size=(400, 2))
        >>> (simultaneous_upper_bounds(violations) < 0).tolist()
        [True, False]
    """
    table = _table(samples, confidence)
    spread = _Spread.of(table)
    deviations = _deviations(table, spread, resamples, seed)
    varying = spread.error > 0
    if not varying.any():
        return spread.mean
    largest = (deviations[:, varying] / spread.error[varying]).max(axis=1)
    factor = _student_factor(spread.freedom, confidence)
    return spread.mean + np.quantile(largest, confidence) * factor * spread.error


def method_name(n_seeds: int, resamples: int = RESAMPLES) -> str:
    """The words for the method behind an interval, as they stand in tables.

    Example:
        >>> method_name(1)
        'bootstrap over units (one seed), 2000 resamples'
        >>> method_name(3)
        'hierarchical bootstrap over seeds and units (crossed), 2000 resamples'
    """
    over = (
        "bootstrap over units (one seed)" if n_seeds == 1 else "hierarchical bootstrap over seeds and units (crossed)"
    )
    return f"{over}, {resamples} resamples"


@dataclass(frozen=True)
class _Spread:
    """Means (C,) of a table (S, N, C) and what the analysis of variance says about their error."""

    mean: Array
    seed_means: Array  # (S, C)
    unit_means: Array  # (N, C)
    error: Array  # (C,) standard error of the mean
    naive_error: Array  # (C,) the same with the interaction counted in the seeds' and in the units' part
    freedom: Array  # (C,) degrees of freedom of the error

    @staticmethod
    def of(table: Array) -> "_Spread":
        n_seeds, n_units, _ = table.shape
        seed_means, unit_means = table.mean(axis=1), table.mean(axis=0)
        mean = unit_means.mean(axis=0)
        by_units = unit_means.var(axis=0, ddof=1) / n_units
        if n_seeds > 1:
            by_seeds = seed_means.var(axis=0, ddof=1) / n_seeds
            rest = table - seed_means[:, None] - unit_means[None] + mean
            both = (rest**2).sum(axis=(0, 1)) / ((n_seeds - 1) * (n_units - 1)) / (n_seeds * n_units)
        else:
            by_seeds = both = np.zeros_like(mean)
        naive = by_seeds + by_units
        variance = np.maximum(naive - both, np.maximum(by_seeds, by_units))
        # The variance of equal numbers is rounding, not spread.
        variance[variance <= (8 * np.finfo(np.float64).eps * np.abs(table).max(axis=(0, 1))) ** 2] = 0.0
        scatter = by_seeds**2 / max(n_seeds - 1, 1) + by_units**2 / (n_units - 1)
        freedom = np.full_like(mean, n_units - 1.0)
        np.divide(variance**2, scatter, out=freedom, where=scatter > 0)
        return _Spread(mean, seed_means, unit_means, np.sqrt(variance), np.sqrt(naive), np.maximum(freedom, 1.0))


def _table(samples: ArrayLike, confidence: float) -> Array:
    """`samples` as (S, N, C) in float64, checked."""
    table = np.asarray(samples, dtype=np.float64)
    if not 0 < confidence < 1:
        raise InputError(f"confidence must lie between 0 and 1, but it is {confidence}; 0.95 is usual")
    if table.ndim == 2:
        table = table[None]
    if table.ndim != 3 or table.shape[0] < 1 or table.shape[2] < 1:
        raise InputError(f"samples must be (N, C) or (S, N, C), but their shape is {np.shape(samples)}")
    if table.shape[1] < 2:
        raise InputError(f"an interval needs at least 2 units, but {table.shape[1]} was given; evaluate on more data")
    if not np.isfinite(table).all():
        raise InputError("an interval needs finite values, but some are NaN or infinite; look for a diverged model")
    return table


def _deviations(table: Array, spread: _Spread, resamples: int, seed: int) -> Array:
    """Resampled mean minus mean, (resamples, C), scaled to the standard error of the analysis of variance."""
    rng = np.random.default_rng(seed)
    result = _resampled_means(spread.unit_means - spread.mean, rng, resamples)
    if len(spread.seed_means) > 1:
        result += _resampled_means(spread.seed_means - spread.mean, rng, resamples)
    shrink = np.zeros_like(spread.error)
    np.divide(spread.error, spread.naive_error, out=shrink, where=spread.naive_error > 0)
    return result * shrink


def _resampled_means(effects: Array, rng: np.random.Generator, resamples: int) -> Array:
    """Means (resamples, C) of n effects (n, C) drawn with replacement, their variance made unbiased."""
    size = len(effects)
    # Sorted and counted: the order in which units came does not matter, and correctness has few distinct rows.
    distinct, counts = np.unique(effects, axis=0, return_counts=True)
    if len(distinct) * _MULTINOMIAL_COST < size:
        means = rng.multinomial(size, counts / size, size=resamples) @ distinct / size
    else:
        ordered = np.repeat(distinct, counts, axis=0)
        means = np.concatenate([drawn @ ordered / size for drawn in _draws(rng, resamples, size)])
    return means * np.sqrt(size / (size - 1))


def _draws(rng: np.random.Generator, resamples: int, size: int) -> Iterator[NDArray[np.int64]]:
    """How often each item comes in `size` draws with replacement, (chunk, size) at a time, `resamples` rows in all."""
    chunk = max(1, _CHUNK_ENTRIES // size)
    for start in range(0, resamples, chunk):
        rows = min(chunk, resamples - start)
        drawn = rng.integers(size, size=(rows, size)) + size * np.arange(rows)[:, None]
        yield np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)


def _student_factor(freedom: Array, level: float) -> Array:
    """By how much Student's quantile at `level` exceeds the normal one."""
    normal = stats.norm.ppf(level)
    if normal <= 0:
        return np.ones_like(freedom)
    return np.asarray(stats.t.ppf(level, freedom) / normal)
