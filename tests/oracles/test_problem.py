"""The oracle problem's own claims: its KKT point is one."""

import torch

from tests.oracles.problem import LOSSES, MULTIPLIERS, SOLUTION, layer_losses, violations


def test_the_kkt_conditions_hold_at_the_solution() -> None:
    theta = SOLUTION.clone().requires_grad_()
    losses = layer_losses(theta)
    c = violations(losses, "difference")
    torch.testing.assert_close(losses.detach(), LOSSES)
    assert (c <= 1e-12).all()
    torch.testing.assert_close(MULTIPLIERS * c.detach(), torch.zeros(3, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(losses[-1] + MULTIPLIERS @ c, theta)
    torch.testing.assert_close(gradient, torch.zeros(2, dtype=torch.float64))
