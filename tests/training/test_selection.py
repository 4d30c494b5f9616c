"""The order of checkpoints."""

import math

from hypothesis import given
from hypothesis import strategies as st

from layerdescent.descent import DescentConstraints, feasible
from layerdescent.training.selection import descent_score, is_feasible_score, max_violation

CONSTRAINTS = DescentConstraints(num_layers=2, alpha=0.1)
losses = st.lists(st.floats(0.01, 100.0), min_size=3, max_size=3)


@given(losses, losses)
def test_feasible_ones_come_first_then_the_lower_loss_then_the_smaller_violation(
    a: list[float], b: list[float]
) -> None:
    first, second = feasible(a, CONSTRAINTS), feasible(b, CONSTRAINTS)
    before = descent_score(a, CONSTRAINTS) < descent_score(b, CONSTRAINTS)
    if first != second:
        assert before == first
    elif first:
        assert before == (a[-1] < b[-1])
    elif abs(max_violation(a, CONSTRAINTS) - max_violation(b, CONSTRAINTS)) > 1e-8:
        assert before == (max_violation(a, CONSTRAINTS) < max_violation(b, CONSTRAINTS))


@given(losses)
def test_the_score_says_whether_it_is_feasible(a: list[float]) -> None:
    assert is_feasible_score(descent_score(a, CONSTRAINTS)) == feasible(a, CONSTRAINTS)


def test_a_nan_is_never_preferred() -> None:
    for broken in ([1.0, math.nan, 0.5], [1.0, 0.5, math.nan]):
        score = descent_score(broken, CONSTRAINTS)
        assert not score < descent_score([1.0, 1.0, 1.0], CONSTRAINTS)
        assert not is_feasible_score(score)
