"""Learned ISTA under descent constraints: forty lines of unrolled network, in a plain PyTorch loop."""

import torch
from torch import Tensor, nn

from layerdescent import DescentConstraints, Multipliers, feasible, monotone

DEPTH, MEASUREMENTS, CODES = 8, 20, 40


class Lista(nn.Module):
    """h <- soft(V_l h + U_l x, theta_l), all of it learnt; what is wanted is the sparse code itself."""

    def __init__(self) -> None:
        super().__init__()
        self.U = nn.Parameter(0.1 * torch.randn(DEPTH, CODES, MEASUREMENTS))
        self.V = nn.Parameter(0.1 * torch.randn(DEPTH, CODES, CODES))
        self.theta = nn.Parameter(torch.full((DEPTH, 1), 0.02))

    def forward(self, x: Tensor) -> list[Tensor]:
        """The codes Phi_0 = 0, Phi_1 … Phi_L of measurements x (B, M), each (B, N)."""
        codes = [x.new_zeros(len(x), CODES)]
        for U, V, theta in zip(self.U, self.V, self.theta, strict=True):
            z = codes[-1] @ V.T + x @ U.T
            codes.append(z.sign() * (z.abs() - theta.clamp_min(0)).clamp_min(0))
        return codes


def sample(A: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sparse codes, one entry in ten at work, and their noisy measurements."""
    h = torch.randn(count, CODES, generator=generator) * (torch.rand(count, CODES, generator=generator) < 0.1)
    return h @ A.T + 0.01 * torch.randn(count, MEASUREMENTS, generator=generator), h


def train(dual_lr: float, steps: int = 1500, seed: int = 0) -> tuple[Tensor, DescentConstraints]:
    """Train once and return the layer losses on fresh data; `dual_lr=0` is ordinary training."""
    data = torch.Generator().manual_seed(seed)
    A = nn.functional.normalize(torch.randn(MEASUREMENTS, CODES, generator=data), dim=0)
    torch.manual_seed(seed)
    model = Lista()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    constraints = DescentConstraints(num_layers=DEPTH, alpha=0.05)
    multipliers = Multipliers(constraints, lr=dual_lr)

    def layer_losses(x: Tensor, h: Tensor) -> Tensor:
        return torch.stack([(code - h).square().mean() for code in model(x)])

    for _ in range(steps):
        losses = layer_losses(*sample(A, 64, data))
        optimizer.zero_grad()
        multipliers.lagrangian(losses).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        multipliers.ascend(losses)

    with torch.no_grad():
        return layer_losses(*sample(A, 4096, data)), constraints


if __name__ == "__main__":
    for name, dual_lr in (("ERM", 0.0), ("descent", 0.2)):
        losses, constraints = train(dual_lr)
        row = " ".join(f"{1000 * loss:.1f}" for loss in losses.tolist())
        print(f"{name:>8}: {row}  monotone: {monotone(losses)}  feasible: {feasible(losses, constraints)}")
