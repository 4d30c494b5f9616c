"""From scores of pairs to rates: the mean with its interval, and what is left of it at equal length."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, special, stats

from layerdescent.errors import InputError
from layerdescent.statistics import Estimate, mean_interval

Array = NDArray[np.float64]


def win_rate(scores: ArrayLike) -> Estimate:
    """The mean score over prompts with its 95 % bootstrap interval, cut to [0, 1].

    Args:
        scores: (n,), of each prompt: 1 where A's answer is better, 0 where B's is, 0.5 for a tie, or between.

    Returns:
        The rate. Where all scores are equal the interval has no width, and says nothing.

    Raises:
        InputError: Fewer than two scores, or some that are not finite.

    Example:
        >>> rate = win_rate([1.0, 1.0, 0.5, 0.0] * 50)
        >>> rate.value, 0.55 < rate.low < 0.6 and 0.65 < rate.high < 0.7
        (0.625, True)
    """
    estimate = mean_interval(scores)
    return replace(estimate, low=max(estimate.low, 0.0), high=min(estimate.high, 1.0))


@dataclass(frozen=True, kw_only=True)
class LengthControlled:
    """A win rate at equal length, with its 95 % interval, and the slope that was taken out."""

    value: float
    low: float
    high: float
    slope: float  # of the logit in tanh(difference / standard deviation); above 0, longer answers are preferred
    n_units: int

    def to_dict(self) -> dict[str, Any]:
        """The rate as JSON-able fields."""
        return {
            "value": self.value,
            "ci95": [self.low, self.high],
            "slope": self.slope,
            "n_units": self.n_units,
            "method": "logistic regression on tanh of the standardised length difference, at difference 0",
        }


def length_controlled(scores: ArrayLike, lengths_a: ArrayLike, lengths_b: ArrayLike) -> LengthControlled | None:
    """What the win rate would be if both answers were always of the same length, by a logistic regression.

        P(A better) = sigmoid(b0 + b1 tanh(d / sd(d))),   d = length of A - length of B

    evaluated at d = 0: sigmoid(b0). Scores between 0 and 1 count as that share of a win. The fit maximises

        sum_i [ y_i log p_i + (1 - y_i) log(1 - p_i) ] + 1/2 log det I(b)

    where I is the Fisher information. The last term (Jeffreys' prior, or Firth's correction) keeps the estimate finite
    where length alone decides every pair, and has no strength to choose. The interval is that of b0 by the inverse of
    I, through the sigmoid; since scores in [0, 1] of mean p vary by p (1 - p) at most, it is not too narrow.

    Args:
        scores: (n,), as for `win_rate`.
        lengths_a: (n,), the lengths of A's answers, in characters.
        lengths_b: (n,), those of B's.

    Returns:
        The rate; None where one model's answers are always longer, so that equal length lies outside what was seen, or
        where all differences are equal.

    Raises:
        InputError: The three have different shapes, or fewer than two entries.

    Source: in the spirit of AlpacaEval 2, whose regression also has a difficulty of each prompt, fitted over many
    models, and an L1 penalty that is cross-validated; so the numbers are not AlpacaEval's [C].

    Example:
        >>> d = np.linspace(-300, 900, 60)  # A is longer mostly, and the longer answer wins
        >>> rate = length_controlled((d > 0).astype(float), 1000 + d, np.full(60, 1000.0))
        >>> bool((d > 0).mean() > 0.7), rate.low < 0.5 < rate.high
        (True, True)
    """
    y = np.asarray(scores, dtype=np.float64)
    difference = np.asarray(lengths_a, dtype=np.float64) - np.asarray(lengths_b, dtype=np.float64)
    if y.ndim != 1 or y.shape != difference.shape or len(y) < 2:
        raise InputError(f"{y.shape} scores and {difference.shape} lengths are given: give two or more, one of each")
    deviation = difference.std(ddof=1)
    if difference.min() > 0 or difference.max() < 0 or deviation == 0:
        return None
    design = np.stack([np.ones_like(y), np.tanh(difference / deviation)], axis=1)
    fitted = optimize.minimize(_objective, np.zeros(2), args=(design, y), jac=_gradient, method="BFGS")
    intercept, slope = (float(each) for each in fitted.x)
    error = float(np.sqrt(np.linalg.inv(_information(fitted.x, design))[0, 0]))
    width = float(stats.norm.ppf(0.975)) * error
    low, value, high = special.expit([intercept - width, intercept, intercept + width]).tolist()
    return LengthControlled(value=value, low=low, high=high, slope=slope, n_units=len(y))


def _information(weights: Array, design: Array) -> Array:
    p = special.expit(design @ weights)
    return design.T @ (design * (p * (1 - p))[:, None])


def _objective(weights: Array, design: Array, y: Array) -> float:
    """Minus the penalised log likelihood."""
    logits = design @ weights
    likelihood = (y * special.log_expit(logits) + (1 - y) * special.log_expit(-logits)).sum()
    return float(-likelihood - 0.5 * np.linalg.slogdet(_information(weights, design))[1])


def _gradient(weights: Array, design: Array, y: Array) -> Array:
    """Its gradient: minus X^T (y - p + h (1/2 - p)), h the leverages."""
    p = special.expit(design @ weights)
    variance = p * (1 - p)
    leverages = variance * np.einsum("ij,jk,ik->i", design, np.linalg.inv(_information(weights, design)), design)
    return np.asarray(-design.T @ (y - p + leverages * (0.5 - p)))
