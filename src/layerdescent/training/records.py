"""What is logged about the layers, and how to read it back from a trainer's log history."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from layerdescent.descent import DescentConstraints, monotone
from layerdescent.duals import DualStep, Multipliers
from layerdescent.training.selection import descent_score, is_feasible_score, max_violation


@dataclass
class LogWindow:
    """The optimiser steps since the last log entry."""

    constraints: DescentConstraints
    _losses: list[Tensor] = field(default_factory=list)
    _active: list[Tensor] = field(default_factory=list)
    _capped: list[Tensor] = field(default_factory=list)

    def add(self, losses: Tensor, multipliers: Multipliers | None = None, step: DualStep | None = None) -> None:
        """Count one optimiser step: its mean layer losses (L+1,), and the dual step if there was one."""
        self._losses.append(losses)
        if multipliers is not None:
            self._active.append(multipliers.values > 0)
        self.add_dual_step(step)

    def add_dual_step(self, step: DualStep | None) -> None:
        """Count a dual step, if there was one; at the end of an epoch it belongs to no single optimiser step."""
        if step is not None:
            self._capped.append(step.capped)

    def drain(self, multipliers: Multipliers | None) -> dict[str, float]:
        """The log entry of the window, and a new window. Empty when no step was counted."""
        if not self._losses:
            return {}
        losses = torch.stack(self._losses).mean(0)
        entry = loss_entries(losses, self.constraints)
        entry["final_layer_loss"] = losses[-1].item()
        if multipliers is not None:
            constrained = self.constraints.nodes[1:]
            weights = self.constraints.weights(multipliers.values, losses)
            entry |= _numbered("multiplier", constrained, multipliers.values)
            entry |= _numbered("lagrangian_weight", range(len(weights)), weights)
            if multipliers.resilience is not None:
                entry |= _numbered("slack", constrained, multipliers.slacks)
            entry |= _numbered("active_share", constrained, torch.stack(self._active).float().mean(0))
            if self._capped:
                entry["capped_share"] = torch.stack(self._capped).float().mean().item()
        for kept in (self._losses, self._active, self._capped):
            kept.clear()
        return entry


def loss_entries(losses: Tensor, constraints: DescentConstraints, prefix: str = "") -> dict[str, float]:
    """Layer losses and violations as flat log entries: `layer_loss/l`, `violation/l`, `max_violation`.

    Layers that were not read out (NaN, off the grid) have no entry, nor have the constraints that tie them.
    """
    read = [layer for layer, loss in enumerate(losses.tolist()) if loss == loss]
    entries = _numbered(f"{prefix}layer_loss", read, losses[read])
    if set(constraints.nodes) <= set(read):
        entries |= _numbered(f"{prefix}violation", constraints.nodes[1:], constraints.violations(losses))
        entries[f"{prefix}max_violation"] = max_violation(losses.tolist(), constraints)
    return entries


def evaluation_entries(losses: Tensor, constraints: DescentConstraints, prefix: str) -> dict[str, float]:
    """What an evaluation adds to its metrics: the entries above, and the verdicts as numbers, for trackers."""
    score = descent_score(losses.tolist(), constraints)
    return {
        **loss_entries(losses, constraints, prefix),
        f"{prefix}monotone": float(monotone(losses[list(constraints.nodes)])),
        f"{prefix}feasible": float(is_feasible_score(score)),
        f"{prefix}descent_score": score,
    }


def descent_history(log_history: Iterable[Mapping[str, Any]], prefix: str = "") -> list[dict[str, Any]]:
    """The layer-wise record of a run, read from the `log_history` of a trainer's state or of a `trainer_state.json`.

    Args:
        log_history: the entries that Trainer logged.
        prefix: "" for the training steps, "eval_" for the evaluations (or "eval_<name>_" for a named data set).

    Returns:
        One dictionary for each entry with layer losses, in order: `step`, `layer_losses` (L+1; None where not read
        out), `violations` (C), `max_violation` (relative). For training also `loss` (the objective as minimised) and,
        under constraints, `weights` (L+1), `multipliers`, `slacks` (0 without resilience) and `active_share` (C each).
        For evaluations `loss` (of the last layer), `feasible`, `monotone` and `descent_score`.

    Example:
        >>> descent_history([{"step": 5, "layer_loss/0": 0.7, "layer_loss/1": 0.5, "violation/1": -0.1}])
        [{'step': 5, 'layer_losses': [0.7, 0.5], 'violations': [-0.1]}]
    """
    records = []
    for entry in log_history:
        losses = _collect(entry, f"{prefix}layer_loss")
        if not losses:
            continue
        record: dict[str, Any] = {
            "step": entry["step"],
            "layer_losses": [losses.get(layer) for layer in range(max(losses) + 1)],
            "violations": list(_collect(entry, f"{prefix}violation").values()),
        }
        for name, key in (
            ("weights", "lagrangian_weight"),
            ("multipliers", "multiplier"),
            ("slacks", "slack"),
            ("active_share",) * 2,
        ):
            values = list(_collect(entry, f"{prefix}{key}").values())
            if values:
                record[name] = values
        if "multipliers" in record:
            record.setdefault("slacks", [0.0] * len(record["multipliers"]))
        for name in ("max_violation", "loss", "feasible", "monotone", "descent_score"):
            if f"{prefix}{name}" in entry:
                record[name] = entry[f"{prefix}{name}"]
        records.append(record)
    return records


def _numbered(name: str, layers: Iterable[int], values: Tensor) -> dict[str, float]:
    return {f"{name}/{layer}": value for layer, value in zip(layers, values.tolist(), strict=True)}


def _collect(entry: Mapping[str, Any], name: str) -> dict[int, float]:
    """{layer: value} of the entries `name/layer`, by layer."""
    found = {int(key.rpartition("/")[2]): value for key, value in entry.items() if key.rpartition("/")[0] == name}
    return dict(sorted(found.items()))
