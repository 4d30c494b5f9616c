"""What a person sees while it trains: one short line, and one explanation when the multipliers only grow."""

import logging
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback

from layerdescent.descent import DescentConstraints, feasibility_advice
from layerdescent.training.config import BEST_METRIC

logger = logging.getLogger(__name__)


def brief(logs: dict[str, Any]) -> dict[str, Any]:
    """A log entry without its per-layer values and the score, but with the largest multiplier.

    Example:
        >>> brief({"loss": 0.5, "layer_loss/0": 0.7, "max_violation": 0.1, "multiplier/1": 0.2, "multiplier/2": 0.4})
        {'loss': 0.5, 'max_violation': 0.1, 'largest_multiplier': 0.4}
    """
    multipliers = [value for key, value in logs.items() if key.startswith("multiplier/")]
    line = {key: value for key, value in logs.items() if "/" not in key and not key.endswith(BEST_METRIC)}
    return line | ({"largest_multiplier": max(multipliers)} if multipliers else {})


class DescentProgress(ProgressCallback):
    """Trainer's progress bar, with loss, largest violation and largest multiplier at its end."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Show training steps at the end of the bar, and other entries above it without their per-layer values."""
        line = brief(logs or {})
        if self.training_bar is None:
            return
        if "loss" not in line:
            self.training_bar.write("  " + ", ".join(f"{name} {_short(value)}" for name, value in line.items()))
        elif "largest_multiplier" in line:
            shown = {"loss": "loss", "max_violation": "violation", "largest_multiplier": "multiplier"}
            self.training_bar.set_postfix({name: f"{line[key]:.3g}" for key, name in shown.items() if key in line})
        else:  # without constraints a violation would only alarm
            self.training_bar.set_postfix(loss=f"{line['loss']:.3g}")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class DescentPrinter(PrinterCallback):
    """Trainer's printed log without the per-layer values."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Print the entry without its per-layer values."""
        super().on_log(args, state, control, logs=brief(logs or {}), **kwargs)


SHORT_LINES: dict[type[TrainerCallback], type[TrainerCallback]] = {
    ProgressCallback: DescentProgress,
    PrinterCallback: DescentPrinter,
}


class GrowthWatch:
    """Notices multipliers that only grow, and explains it once.

    Args:
        constraints: the constraints.
        window: optimiser steps to watch. A multiplier that rose between all `PARTS` snapshots of the window only grows.
    """

    PARTS = 5

    def __init__(self, constraints: DescentConstraints, window: int) -> None:
        self.constraints = constraints
        self.every = max(1, window // self.PARTS)
        self._snapshots: list[Tensor] = []
        self._steps = 0
        self._losses: Tensor | None = None
        self._explained = False

    def see(self, multipliers: Tensor, losses: Tensor) -> str | None:
        """Take in one optimiser step; the explanation, the first time there is something to explain."""
        if self._explained:
            return None
        # One noisy batch should not decide what is said.
        self._losses = losses if self._losses is None else torch.lerp(self._losses, losses, 1 / self.every)
        self._steps += 1
        if self._steps % self.every:
            return None
        self._snapshots = [*self._snapshots, multipliers.clone()][-(self.PARTS + 1) :]
        if len(self._snapshots) <= self.PARTS:
            return None
        growing = (torch.stack(self._snapshots).diff(dim=0) > 0).all(dim=0).nonzero().flatten().tolist()
        if not growing:
            return None
        self._explained = True
        return explain_growth(self.constraints, growing, multipliers, self._losses)


def explain_growth(constraints: DescentConstraints, growing: list[int], multipliers: Tensor, losses: Tensor) -> str:
    """Say in a sentence or two why multipliers only grow.

    Args:
        constraints: the constraints.
        growing: which constraints' multipliers grow, as indices.
        multipliers: lambda, shape (C,).
        losses: recent layer losses F_0 … F_L.
    """
    layers = [constraints.nodes[j + 1] for j in growing]
    largest = f"{max(multipliers[j].item() for j in growing):.3g}"
    if len(layers) == 1:
        what = f"the multiplier of layer {layers[0]} only grows (now {largest})"
    else:
        what = f"the multipliers of layers {', '.join(map(str, layers))} only grow (now up to {largest})"
    return f"{what}: {feasibility_advice(constraints, losses)}"
