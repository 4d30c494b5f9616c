"""A convex problem with three layers whose solution and multipliers are known, and our own path to it.

The layer losses at theta = (x, y) are

    F_0 = 10,   F_1 = 7 - 2x,   F_2 = 10/9 + (y - 1)^2 / 2,   F_3 = 4/9 + (x^2 + y^2) / 2,         alpha = 1/2.

Objective and constraints are convex, and (1, -1/3) with the multipliers (1, 0, 1) meets the KKT conditions: there
F = (10, 5, 2, 1), so constraints 1 and 3 are active and 2 is not, and the weights w = (1, -1/2, 2) of layers 1 to 3
balance the gradients, -2 w_1 + w_3 x = 0 and w_2 (y - 1) + w_3 y = 0. The weight of layer 2 is negative: it would be
too good otherwise.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from layerdescent.descent import DescentConstraints, Form
from layerdescent.duals import Multipliers

SOLUTION = torch.tensor([1.0, -1 / 3], dtype=torch.float64)
MULTIPLIERS = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64)
LOSSES = torch.tensor([10.0, 5.0, 2.0, 1.0], dtype=torch.float64)

PRIMAL_LR, DUAL_LR = 0.2, 1.0


class Point(NamedTuple):
    """One iterate: after so many steps."""

    theta: Tensor
    multipliers: Tensor


def start() -> nn.Parameter:
    return nn.Parameter(torch.zeros(2, dtype=torch.float64))


def layer_losses(theta: Tensor) -> Tensor:
    x, y = theta
    return torch.stack([10 + 0 * x, 7 - 2 * x, 10 / 9 + (y - 1) ** 2 / 2, 4 / 9 + (x**2 + y**2) / 2])


def violations(losses: Tensor, form: Form) -> Tensor:
    """The constraints at alpha = 1/2 written out, for libraries that know nothing of layers."""
    F0, F1, F2, F3 = losses
    match form:
        case "difference":
            return torch.stack([F1 - F0 / 2, F2 - F1 / 2, F3 - F2 / 2])
        case "ratio":
            return torch.stack([F1 / F0 - 1 / 2, F2 / F1 - 1 / 2, F3 / F2 - 1 / 2])
        case "cumulative":
            return torch.stack([F1 - F0 / 2, F2 - F0 / 4, F3 - F0 / 8])


class References:
    """The running mean of F_{l-1} that a dual step is relative to; 1 in the ratio form, which has no units."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.mean: Tensor | None = None

    def __call__(self, losses: Tensor) -> Tensor:
        new = torch.ones(3, dtype=losses.dtype) if self.form == "ratio" else losses.detach()[:-1]
        self.mean = new if self.mean is None else 0.9 * self.mean + 0.1 * new
        return self.mean


def our_path(form: Form, resilience: float | None = None) -> Iterator[Point]:
    """Gradient descent on our Lagrangian and one dual step on the same losses, for ever."""
    constraints = DescentConstraints(num_layers=3, alpha=0.5, form=form)
    multipliers = Multipliers(constraints, lr=DUAL_LR, resilience=resilience, dtype=torch.float64)
    theta = start()
    optimizer = torch.optim.SGD([theta], lr=PRIMAL_LR)
    while True:
        losses = layer_losses(theta)
        optimizer.zero_grad()
        multipliers.lagrangian(losses).backward()
        optimizer.step()
        multipliers.ascend(losses)
        yield Point(theta.detach().clone(), multipliers.values)


def compare(ours: Iterator[Point], theirs: Iterator[Point], steps: int) -> Point:
    """Both paths side by side, equal at every step; returns where they end."""
    highest = torch.zeros(3, dtype=torch.float64)
    for _ in range(steps):
        our, their = next(ours), next(theirs)
        torch.testing.assert_close(our.theta, their.theta, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(our.multipliers, their.multipliers, rtol=1e-10, atol=1e-10)
        highest = torch.maximum(highest, our.multipliers)
    assert (highest > 0).any(), "a path on which no multiplier ever moves compares nothing"
    return our
