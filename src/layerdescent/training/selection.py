"""Which checkpoint to keep: the best among the feasible ones, the least infeasible if there is none."""

import math
from collections.abc import Sequence

import torch

from layerdescent.descent import DescentConstraints, feasible

INFEASIBLE = 1e6  # above any loss, and small enough that a violation added to it keeps ten digits


def max_violation(losses: Sequence[float], constraints: DescentConstraints) -> float:
    """The largest relative violation c_l / F_{l-1} over all constraints; at most 0 where every constraint is met.

    Example:
        >>> round(max_violation([1.0, 0.5, 0.5], DescentConstraints(num_layers=2, alpha=0.1)), 3)
        0.1
    """
    return constraints.relative_violations(torch.tensor(losses, dtype=torch.float64)).max().item()


def descent_score(losses: Sequence[float], constraints: DescentConstraints) -> float:
    """One number that orders checkpoints as they should be kept; lower is better.

        F_L                            if feasible
        10^6 + max_l c_l / F_{l-1}     if not

    The last primal-dual iterate need not be feasible, so the best feasible one is kept; if none is, the least
    infeasible. Being one number, it works as the `metric_for_best_model` of transformers' Trainer.

    Args:
        losses: mean layer losses F_0 … F_L on validation data.
        constraints: the constraints, with their tolerances.

    Returns:
        The score; NaN when a loss that matters is NaN, which no comparison prefers.

    Source: our choice [C]; the idea is that of TFCO's candidate selection.

    Example:
        >>> constraints = DescentConstraints(num_layers=2, alpha=0.1)
        >>> descent_score([1.0, 0.9, 0.8], constraints) < descent_score([1.0, 0.5, 0.5], constraints)
        True
    """
    worst = max_violation(losses, constraints)
    if math.isnan(worst) or math.isnan(losses[-1]):
        return math.nan
    return losses[-1] if feasible(losses, constraints) else INFEASIBLE + worst


def is_feasible_score(score: float) -> bool:
    """Whether a `descent_score` is that of a feasible checkpoint."""
    return score < INFEASIBLE
