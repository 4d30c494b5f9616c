"""Our paths against the Lagrangian dual optimiser of humancompatible-train, step by step."""

from collections.abc import Iterator

import pytest
import torch
from humancompatible.train.dual_optim import ALM

from layerdescent.descent import FORMS, Form
from tests.oracles.problem import (
    DUAL_LR,
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


def _their_path(form: Form) -> Iterator[Point]:
    theta, references = start(), References(form)
    primal = torch.optim.SGD([theta], lr=PRIMAL_LR)
    # Without a penalty ALM is dual ascent on the plain Lagrangian.
    dual = ALM(init_duals=torch.zeros(3, dtype=torch.float64), lr=DUAL_LR, penalty=0.0, is_ineq=True)
    while True:
        losses = layer_losses(theta)
        c = violations(losses, form)
        primal.zero_grad()
        dual.forward(
            losses[-1], c
        ).backward()  # not forward_update: that one descends at the multipliers after the step
        primal.step()
        dual.update(c.detach() / references(losses))
        yield Point(theta.detach().clone(), dual.duals.detach().clone())


@pytest.mark.parametrize("form", FORMS)
def test_every_step_is_theirs(form: Form) -> None:
    compare(our_path(form), _their_path(form), steps=60)


def test_both_arrive_at_the_kkt_point() -> None:
    end = compare(our_path("difference"), _their_path("difference"), steps=400)
    torch.testing.assert_close(end.theta, SOLUTION, rtol=0, atol=5e-4)
    torch.testing.assert_close(end.multipliers, MULTIPLIERS, rtol=0, atol=5e-4)
