"""Rates: closed forms, an independent fit, and what holds for any scores."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import optimize, special

from layerdescent.errors import InputError
from layerdescent.winrate import length_controlled, win_rate

Scores = list[float]
scores = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=4, max_size=30)


def test_the_win_rate_is_the_mean_with_the_interval_of_a_binomial() -> None:
    n, p = 805, 0.6
    wins = np.zeros(n)
    wins[: round(n * p)] = 1
    rate = win_rate(wins)
    assert rate.value == wins.mean()
    half = 1.96 * np.sqrt(p * (1 - p) / n)
    assert (rate.low, rate.high) == pytest.approx((p - half, p + half), abs=3e-3)


def test_the_interval_stays_a_rate() -> None:
    rate = win_rate([1.0, 1.0, 1.0, 0.0])
    assert rate.high == 1.0
    assert rate.low >= 0.0


def test_two_groups_of_length_have_a_closed_form() -> None:
    """With d = +c or -c, Jeffreys' prior adds half a win and half a loss to each group."""
    d = np.repeat([1.0, -1.0], [30, 20]) * 40
    y = np.concatenate([np.repeat([1.0, 0.0], [24, 6]), np.repeat([1.0, 0.5, 0.0], [5, 4, 11])])
    logits = [special.logit((wins + 0.5) / (count + 1)) for wins, count in ((24, 30), (7, 20))]
    rate = length_controlled(y, 500 + d, np.full(50, 500))
    assert rate is not None
    assert rate.value == pytest.approx(special.expit(np.mean(logits)), abs=1e-5)
    x = np.tanh(40 / d.std(ddof=1))
    assert rate.slope == pytest.approx((logits[0] - logits[1]) / (2 * x), abs=1e-4)
    # Each group's logit has variance 1 / (n p (1 - p)); their mean has a quarter of the sum.
    variance = sum(1 / (n * special.expit(z) * special.expit(-z)) for n, z in zip((30, 20), logits, strict=True)) / 4
    bounds = special.expit(np.mean(logits) + np.array([-1, 1]) * 1.959964 * np.sqrt(variance))
    assert (rate.low, rate.high) == pytest.approx(tuple(bounds), abs=1e-4)


def test_it_is_the_maximum_of_the_penalised_likelihood_by_autograd() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.gamma(3, 300, size=(2, 120))
    y = rng.choice([0.0, 0.5, 1.0], size=120)
    x = torch.stack([torch.ones(120), torch.tanh(torch.tensor((a - b) / (a - b).std(ddof=1)))], dim=1).double()
    target = torch.tensor(y)

    def loss(weights: np.ndarray) -> float:
        p = torch.sigmoid(x @ torch.tensor(weights))
        likelihood = (target * p.log() + (1 - target) * (1 - p).log()).sum()
        return float(-(likelihood + 0.5 * torch.logdet(x.T @ torch.diag(p * (1 - p)) @ x)))

    expected = optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}).x
    rate = length_controlled(y, a, b)
    assert rate is not None
    assert (rate.value, rate.slope) == pytest.approx((special.expit(expected[0]), expected[1]), abs=1e-5)


def drawn(n: int, logit: float, slope: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores that follow the model, with A's answers longer by half a standard deviation on average."""
    rng = np.random.default_rng(seed)
    b = rng.uniform(1000, 2000, n)
    d = rng.normal(200, 400, n)
    y = rng.random(n) < special.expit(logit + slope * np.tanh(d / d.std(ddof=1)))
    return y.astype(float), b + d, b


def test_where_length_alone_decides_the_rate_at_equal_length_is_a_half() -> None:
    y, a, b = drawn(4000, logit=0.0, slope=3.0)
    rate = length_controlled(y, a, b)
    assert rate is not None
    assert y.mean() > 0.62
    assert rate.value == pytest.approx(0.5, abs=0.03)
    assert rate.low < 0.5 < rate.high
    certain = length_controlled((a > b).astype(float), a, b)  # separable: an unpenalised fit has no maximum
    assert certain is not None
    assert certain.value == pytest.approx(0.5, abs=0.1)
    assert certain.slope > 10


def test_where_length_does_not_matter_the_rate_stays() -> None:
    y, a, b = drawn(4000, logit=1.0, slope=0.0)
    rate = length_controlled(y, a, b)
    assert rate is not None
    assert rate.value == pytest.approx(y.mean(), abs=0.01)
    assert rate.value == pytest.approx(special.expit(1.0), abs=0.02)


def test_quality_and_length_are_told_apart() -> None:
    y, a, b = drawn(8000, logit=-1.0, slope=2.5)
    rate = length_controlled(y, a, b)
    assert rate is not None
    assert y.mean() > rate.value + 0.1
    assert rate.low < special.expit(-1.0) < rate.high
    assert rate.slope == pytest.approx(2.5, abs=0.3)


def test_its_interval_covers_what_it_says() -> None:
    covered = []
    for seed in range(120):
        rate = length_controlled(*drawn(150, logit=0.5, slope=1.0, seed=seed))
        assert rate is not None
        covered.append(rate.low < special.expit(0.5) < rate.high)
    assert 0.91 <= np.mean(covered) <= 0.99


@settings(max_examples=40)
@given(scores, st.integers(0, 1000))
def test_swapping_the_models_mirrors_both_rates(y: Scores, seed: int) -> None:
    a, b = np.random.default_rng(seed).integers(1, 2000, (2, len(y)))
    assume((a >= b).any() and (a <= b).any())
    mirrored = [1 - score for score in y]
    assert win_rate(mirrored).value == pytest.approx(1 - win_rate(y).value)
    ours, theirs = length_controlled(y, a, b), length_controlled(mirrored, b, a)
    assert ours is not None
    assert theirs is not None
    assert 0 <= ours.low < ours.value < ours.high <= 1
    assert theirs.value == pytest.approx(1 - ours.value, abs=1e-5)
    assert (theirs.low, theirs.high) == pytest.approx((1 - ours.high, 1 - ours.low), abs=1e-4)


@pytest.mark.parametrize("won", [0.0, 1.0])
def test_who_wins_every_time_wins_at_equal_length(won: float) -> None:
    a, b = np.random.default_rng(3).integers(1, 2000, (2, 40))
    rate = length_controlled(np.full(40, won), a, b)
    assert rate is not None
    assert rate.value == pytest.approx(won, abs=0.03)  # the prior's half a loss or win in 41


@pytest.mark.parametrize("differences", [(0, 0, 0), (120, 120, 120), (5, 80, 3), (-5, -80, -3)])
def test_where_equal_length_was_not_seen_there_is_no_rate(differences: tuple[int, ...]) -> None:
    b = np.array([100, 300, 700])
    assert length_controlled([1.0, 0.0, 0.5], b + differences, b) is None


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(3,\) scores and \(2,\) lengths"):
        length_controlled([1.0, 0.0, 0.5], [1, 2], [3, 5])
    with pytest.raises(InputError, match="two or more"):
        length_controlled([1.0], [1], [3])
    with pytest.raises(InputError, match="at least 2 units"):
        win_rate([1.0])
