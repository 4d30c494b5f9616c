"""Descent-constrained training in a plain PyTorch loop: any network whose layers share one output space."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from layerdescent import DescentConstraints, Multipliers, feasible, monotone

DEPTH, WIDTH, CLASSES = 6, 16, 2


class Blocks(nn.Module):
    """Residual blocks, every state of which is read by one shared head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(2, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(DEPTH)
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of Phi_0 … Phi_L, shape (L+1, B, K)."""
        states = [self.embed(x)]
        for block in self.blocks:
            states.append(states[-1] + block(states[-1]))
        return self.head(torch.stack(states))


def layer_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """F_0 … F_L, shape (L+1,)."""
    return torch.stack([cross_entropy(layer, labels) for layer in logits])


def spirals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two interleaved spirals: nothing linear tells them apart."""
    labels = torch.randint(CLASSES, (count,), generator=generator)
    radius = torch.rand(count, generator=generator)
    angle = 6 * radius + torch.pi * labels
    x = radius[:, None] * torch.stack([angle.cos(), angle.sin()], dim=1)
    return 2 * x + 0.05 * torch.randn(count, 2, generator=generator), labels


def train(dual_lr: float, steps: int = 600, seed: int = 0) -> tuple[Tensor, DescentConstraints]:
    """Train once and return the layer losses on fresh data; `dual_lr=0` is ordinary training."""
    torch.manual_seed(seed)
    data = torch.Generator().manual_seed(seed)
    model = Blocks()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    constraints = DescentConstraints(num_layers=DEPTH, alpha=0.1)
    multipliers = Multipliers(constraints, lr=dual_lr)

    for _ in range(steps):
        x, labels = spirals(64, data)
        losses = layer_losses(model(x), labels)
        optimizer.zero_grad()
        multipliers.lagrangian(losses).backward()  # one backward pass serves all constraints
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        multipliers.ascend(losses)  # once an optimiser step, with the losses of the whole step

    model.eval()
    with torch.no_grad():
        x, labels = spirals(4096, data)
        return layer_losses(model(x), labels), constraints


if __name__ == "__main__":
    for name, dual_lr in (("ERM", 0.0), ("descent", 0.3)):
        losses, constraints = train(dual_lr)
        row = " ".join(f"{loss:.3f}" for loss in losses.tolist())
        print(f"{name:>8}: {row}  monotone: {monotone(losses)}  feasible: {feasible(losses, constraints)}")
