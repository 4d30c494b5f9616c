"""The dual side: multipliers that rise while a layer fails to lower the loss, and fall back when it does.

Own-loop use, once an optimiser step:

    losses = readout.layer_losses(outputs, labels)          # (L+1,), differentiable
    multipliers.lagrangian(losses).backward()
    optimizer.step()
    multipliers.ascend(losses)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from layerdescent.descent import DescentConstraints
from layerdescent.errors import InputError, NonFiniteLossError, RunError

Reference = Literal["previous", "initial"]

REFERENCES = ("previous", "initial")
REFERENCE_DECAY = 0.9  # of the running mean of the reference losses, per dual step [C]


@dataclass(frozen=True)
class DualStep:
    """What one dual step saw and did; every tensor has shape (C,), one entry for each constraint.

    Attributes:
        violations: raw c_l, in the units of the loss, averaged over the step.
        relative: c_l / ref_l after the cap, what the multipliers moved by.
        capped: where the cap acted.
        multipliers: lambda after the step.
        slacks: u_l = lambda_l / rho after the step; zeros without resilience.
    """

    violations: Tensor
    relative: Tensor
    capped: Tensor
    multipliers: Tensor
    slacks: Tensor


class Multipliers:
    """Lagrange multipliers of descent constraints, by projected gradient ascent with optional resilience.

    One dual step, with the layer losses averaged over the whole optimiser step:

        lambda_l <- max(0, lambda_l + lr * (min(c_l / ref_l, cap) - lambda_l / rho))                                 [D]

    The relative violation makes lambda and lr free of the loss's units [C]; the Lagrangian itself keeps the raw c_l.
    Resilience (rho) allows c_l <= ref_l u_l at the price (rho/2) sum_l ref_l u_l^2 [P: a slack with quadratic penalty;
    D: this form]: for fixed lambda the best slack is u_l = lambda_l / rho, which makes the step above a leaky one. The
    smaller rho, the more is forgiven. Without resilience an infeasible alpha drives lambda up without bound; with it
    lambda <= rho * max c/ref.

    The state lives on the CPU, in single precision by default, whatever the model's device and precision: it is L
    numbers, and weights that are plain Python numbers need no synchronisation in the forward pass.

    Args:
        constraints: the constraints, one multiplier for each.
        lr: dual step size (dimensionless), at least 0; at 0 the multipliers stay 0 and training is plain ERM.
        resilience: rho, or None for hard constraints. Must exceed `lr`, or the step overshoots its own fixed point.
        reference: `"previous"`: ref_l = running mean of F_{l-1}; `"initial"`: of the first node's loss for all (fails
            where F_0 is off scale, as in language models with tied embeddings).
        violation_cap: the most that one dual step may see of a relative violation; None for no cap. One spike early in
            training would otherwise wind a multiplier up for thousands of steps.
        max_value: an upper bound on every multiplier; None for none.
        warmup_steps: optimiser steps before the first dual step.
        dual_every: dual step every so many optimiser steps, on their mean; or `"epoch"`, at each `end_epoch`.
        dtype: of the state.

    Raises:
        InputError: a value that cannot be; the message names the argument.

    Example:
        >>> multipliers = Multipliers(DescentConstraints(num_layers=2, alpha=0.5), lr=1.0)
        >>> step = multipliers.ascend(torch.tensor([1.0, 0.4, 0.3]))
        >>> multipliers.values
        tensor([0.0000, 0.2500])
    """

    def __init__(
        self,
        constraints: DescentConstraints,
        lr: float = 0.1,
        resilience: float | None = None,
        *,
        reference: Reference = "previous",
        violation_cap: float | None = 1.0,
        max_value: float | None = None,
        warmup_steps: int = 0,
        dual_every: int | Literal["epoch"] = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if not 0 <= lr < float("inf"):
            raise InputError(f"lr of the multipliers is {lr:g}: it must be at least 0")
        if resilience is not None and not resilience > lr:
            raise InputError(
                f"resilience is {resilience:g} with lr {lr:g}: "
                "rho must exceed the dual step size, or the multipliers chatter"
            )
        if reference not in REFERENCES:
            raise InputError(f"reference is {reference!r}: choose one of {', '.join(REFERENCES)}")
        for name, value in (("violation_cap", violation_cap), ("max_value", max_value)):
            if value is not None and not value > 0:
                raise InputError(f"{name} is {value:g}: it must be above 0, or None for no bound")
        if warmup_steps < 0:
            raise InputError(f"warmup_steps is {warmup_steps}: it must be at least 0")
        if dual_every != "epoch" and not (isinstance(dual_every, int) and dual_every >= 1):
            raise InputError(f"dual_every is {dual_every!r}: give a number of optimiser steps, or 'epoch'")
        self.constraints = constraints
        self.lr = lr
        self.resilience = resilience
        self.reference = reference
        self.violation_cap = violation_cap
        self.max_value = max_value
        self.warmup_steps = warmup_steps
        self.dual_every = dual_every
        count = len(constraints.steps)
        self.values = torch.zeros(count, dtype=dtype)
        self._references = torch.zeros(count, dtype=dtype)  # 0: none seen yet
        self._pending = torch.zeros(constraints.num_layers + 1, dtype=dtype)
        self._pending_steps = 0
        self._steps = 0

    @property
    def slacks(self) -> Tensor:
        """The slack u_l = lambda_l / rho that each constraint is granted, shape (C,); zeros without resilience."""
        return torch.zeros_like(self.values) if self.resilience is None else self.values / self.resilience

    def lagrangian(self, losses: Tensor, objective: Tensor | None = None) -> Tensor:
        """The Lagrangian at the present multipliers; see `DescentConstraints.lagrangian`."""
        return self.constraints.lagrangian(losses, self.values, objective)

    def ascend(self, losses: Tensor) -> DualStep | None:
        """Count one optimiser step and, when one is due, take the dual step.

        Args:
            losses: layer losses of shape (L+1,), averaged over the whole optimiser step: all micro-batches, all ranks.

        Returns:
            What the dual step did, or None where none was due.

        Raises:
            InputError: losses of another shape.
            NonFiniteLossError: a NaN or an infinity among the constrained layers, or a step that would end in one; the
                state is untouched.
        """
        losses = losses.detach().to("cpu", self.values.dtype)
        if losses.shape != self._pending.shape:
            raise InputError(
                f"layer losses of shape {tuple(losses.shape)}: "
                f"give F_0 to F_{self.constraints.num_layers}, averaged over the step"
            )
        broken = [n for n in self.constraints.nodes if not losses[n].isfinite()]
        if broken:
            raise NonFiniteLossError(
                f"the loss at layer {broken[0]} is {losses[broken[0]].item()} at optimiser step {self._steps + 1}: "
                "the multipliers are unchanged; lower the learning rate, clip gradients or look at the batch"
            )
        if self._steps < self.warmup_steps:
            self._steps += 1
            return None
        pending, pending_steps = self._pending + losses, self._pending_steps + 1
        if self.dual_every == "epoch" or pending_steps < self.dual_every:
            step, self._pending, self._pending_steps = None, pending, pending_steps
        else:
            step = self._dual_step(pending / pending_steps)
        self._steps += 1
        return step

    def end_epoch(self) -> DualStep | None:
        """Take the dual step of an epoch when `dual_every` is `"epoch"` and steps were counted since the last one."""
        if self.dual_every != "epoch" or not self._pending_steps:
            return None
        return self._dual_step(self._pending / self._pending_steps)

    def _dual_step(self, losses: Tensor) -> DualStep:
        violations = self.constraints.violations(losses)
        references = self.constraints.references(losses)
        if self.reference == "initial":
            references = references[:1].expand_as(references)
        mean = REFERENCE_DECAY * self._references + (1 - REFERENCE_DECAY) * references
        references = torch.where(self._references > 0, mean, references)

        relative = violations / references.clamp_min(torch.finfo(losses.dtype).tiny)
        cap = float("inf") if self.violation_cap is None else self.violation_cap
        capped, relative = relative > cap, relative.clamp_max(cap)
        values = (self.values + self.lr * (relative - self.slacks)).clamp(min=0, max=self.max_value)
        for layer, value in zip(self.constraints.nodes[1:], values.tolist(), strict=True):
            if not math.isfinite(value):
                raise NonFiniteLossError(
                    f"the multiplier of layer {layer} would become {value} at optimiser step {self._steps + 1}: "
                    "the multipliers are unchanged; for losses near 0 use the difference form and a violation_cap"
                )
        self.values, self._references = values, references
        self._pending, self._pending_steps = torch.zeros_like(self._pending), 0
        return DualStep(violations, relative, capped, self.values.clone(), self.slacks)

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to go on as if never stopped: flat, tensors only, fit for safetensors."""
        return {
            "values": self.values.clone(),
            "references": self._references.clone(),
            "pending": self._pending.clone(),
            "pending_steps": torch.tensor(self._pending_steps),
            "steps": torch.tensor(self._steps),
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take up a state that `state_dict` gave.

        Raises:
            RunError: entries missing, of another shape (other constraints), or not finite; the present state stays.
        """
        own = self.state_dict()
        for name, present in own.items():
            if name not in state:
                raise RunError(f"the saved multipliers lack {name!r}: the file is damaged or not one of ours")
            if state[name].shape != present.shape:
                raise RunError(
                    f"the saved multipliers' {name} has shape {tuple(state[name].shape)}, "
                    f"these constraints need {tuple(present.shape)}: "
                    "resume with the constraints that the run was started with"
                )
            # Layers outside the constraints may pend as NaN; everything else must be a number.
            if name != "pending" and not state[name].isfinite().all():
                raise RunError(f"the saved multipliers' {name} is not finite: the file is damaged")
        self.values, self._references, self._pending = (
            state[name].to(own[name]).clone() for name in ("values", "references", "pending")
        )
        self._pending_steps, self._steps = int(state["pending_steps"]), int(state["steps"])
