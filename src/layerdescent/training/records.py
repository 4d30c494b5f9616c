"""What is logged about the layers, and how to read it back from a trainer's log history."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from layerdescent.descent import DescentConstraints, monotone
from layerdescent.duals import DualStep, Multipliers
from layerdescent.training.meters import LossMeter
from layerdescent.training.selection import descent_score, is_feasible_score, max_violation


@dataclass
class LogWindow:
    """The optimiser steps since the last log entry."""

    constraints: DescentConstraints
    _losses: LossMeter = field(default_factory=LossMeter)
    _active: Tensor | None = None
    _capped: Tensor | None = None
    _steps: int = 0
    _dual_steps: int = 0

    def add(self, losses: Tensor, multipliers: Multipliers | None, step: DualStep | None) -> None:
        """Count one optimiser step: its mean layer losses (L+1,), and the dual step if there was one."""
        self._losses.add(losses, items=1)
        self._steps += 1
        if multipliers is not None:
            active = (multipliers.values > 0).float()
            self._active = active if self._active is None else self._active + active
        if step is not None:
            self._capped = step.capped.float() if self._capped is None else self._capped + step.capped
            self._dual_steps += 1

    def drain(self, multipliers: Multipliers | None) -> dict[str, float]:
        """The log entry of the window, and a new window. Empty when no step was counted."""
        losses = self._losses.mean()
        if losses is None:
            return {}
        entry = loss_entries(losses, self.constraints)
        entry["final_layer_loss"] = losses[-1].item()
        if multipliers is not None:
            constrained = self.constraints.nodes[1:]
            weights = self.constraints.weights(multipliers.values, losses)
            entry |= _numbered("multiplier", constrained, multipliers.values)
            entry |= _numbered("lagrangian_weight", range(len(weights)), weights)
            if multipliers.resilience is not None:
                entry |= _numbered("slack", constrained, multipliers.slacks)
            if self._active is not None:
                entry |= _numbered("active_share", constrained, self._active / self._steps)
            if self._capped is not None:
                entry["capped_share"] = (self._capped / self._dual_steps).mean().item()
        self._losses.clear()
        self._active = self._capped = None
        self._steps = self._dual_steps = 0
        return entry


def loss_entries(losses: Tensor, constraints: DescentConstraints, prefix: str = "") -> dict[str, float]:
    """Layer losses and violations as flat log entries: `layer_loss/l`, `violation/l`, `max_violation`.

    Layers that were not read out (NaN, off the grid) have no entry.
    """
    read = [layer for layer, loss in enumerate(losses.tolist()) if loss == loss]
    return {
        **_numbered(f"{prefix}layer_loss", read, losses[read]),
        **_numbered(f"{prefix}violation", constraints.nodes[1:], constraints.violations(losses)),
        f"{prefix}max_violation": max_violation(losses.tolist(), constraints),
    }


def evaluation_entries(losses: Tensor, constraints: DescentConstraints, prefix: str) -> dict[str, float]:
    """What an evaluation adds to its metrics: the entries above, and the verdicts as numbers, for trackers."""
    score = descent_score(losses.tolist(), constraints)
    return {
        **loss_entries(losses, constraints, prefix),
        f"{prefix}monotone": float(monotone(losses)),
        f"{prefix}feasible": float(is_feasible_score(score)),
        f"{prefix}descent_score": score,
    }


def descent_history(log_history: Iterable[Mapping[str, Any]], prefix: str = "") -> list[dict[str, Any]]:
    """The layer-wise record of a run, read from `trainer.state.log_history` or the `log_history` of a `trainer_state.json`.

    Args:
        log_history: the entries that Trainer logged.
        prefix: "" for the training steps, "eval_" for the evaluations (or "eval_<name>_" for a named data set).

    Returns:
        One dictionary for each entry with layer losses, in order: `step`, `layer_losses` (L+1; None where not read out), `violations`
        (C), `max_violation`; for training under constraints also `weights` (L+1), `multipliers`, `slacks`, `active_share` (C each;
        slacks are 0 without resilience), `loss` (the Lagrangian, as minimised); for evaluations `feasible`, `monotone`, `descent_score`.

    Example:
        >>> descent_history([{"step": 5, "layer_loss/0": 0.7, "layer_loss/1": 0.5, "violation/1": -0.1, "max_violation": -0.2}])
        [{'step': 5, 'layer_losses': [0.7, 0.5], 'violations': [-0.1], 'max_violation': -0.2}]
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
