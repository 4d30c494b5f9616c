"""Our paths against Cooper's simultaneous primal-dual optimiser, step by step."""

from collections.abc import Iterator

import pytest
import torch
from cooper.cmp import CMPState, ConstrainedMinimizationProblem
from cooper.constraints.constraint import Constraint
from cooper.constraints.constraint_state import ConstraintState
from cooper.multipliers.multipliers import DenseMultiplier
from cooper.optim.constrained_optimizers.simultaneous_optimizer import SimultaneousOptimizer
from cooper.utils.annotations import ConstraintType
from torch import Tensor

from layerdescent.descent import FORMS, Form
from tests.oracles.problem import (
    DUAL_LR,
    LOSSES,
    MULTIPLIERS,
    PRIMAL_LR,
    SOLUTION,
    Point,
    References,
    compare,
    layer_losses,
    our_path,
    start,
    violations,
)


class _Problem(ConstrainedMinimizationProblem):
    """The problem as Cooper states one: raw violations move theta, relative ones the multipliers."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self.form = form
        self.multiplier = DenseMultiplier(num_constraints=3, dtype=torch.float64)
        self.descent = Constraint(ConstraintType.INEQUALITY, multiplier=self.multiplier)
        self.references = References(form)

    def compute_cmp_state(self, theta: Tensor) -> CMPState:
        losses = layer_losses(theta)
        violation = violations(losses, self.form)
        state = ConstraintState(violation, strict_violation=violation.detach() / self.references(losses))
        return CMPState(loss=losses[-1], observed_constraints={self.descent: state})


def _coopers_path(form: Form, resilience: float | None = None) -> Iterator[Point]:
    problem, theta = _Problem(form), start()
    decay = 0.0 if resilience is None else 1 / resilience
    optimizer = SimultaneousOptimizer(
        problem,
        primal_optimizers=torch.optim.SGD([theta], lr=PRIMAL_LR),
        dual_optimizers=torch.optim.SGD(problem.dual_parameters(), lr=DUAL_LR, weight_decay=decay, maximize=True),
    )
    while True:
        optimizer.roll({"theta": theta})
        yield Point(theta.detach().clone(), problem.multiplier.weight.detach().clone())


@pytest.mark.parametrize("resilience", [None, 3.0])
@pytest.mark.parametrize("form", FORMS)
def test_every_step_is_coopers(form: Form, resilience: float | None) -> None:
    compare(our_path(form, resilience), _coopers_path(form, resilience), steps=60)


def test_both_arrive_at_the_kkt_point() -> None:
    end = compare(our_path("difference"), _coopers_path("difference"), steps=400)
    torch.testing.assert_close(end.theta, SOLUTION, rtol=0, atol=5e-4)
    torch.testing.assert_close(end.multipliers, MULTIPLIERS, rtol=0, atol=5e-4)
    torch.testing.assert_close(layer_losses(end.theta), LOSSES, rtol=0, atol=5e-4)
