"""Layerwise descent constraints: pure mathematics on tensors of layer losses.

A model with L layers has the layer losses F_0 … F_L: the loss read from its initial representation and from the output
of every layer. Training under descent constraints is

    minimise F_L   subject to   F_l <= (1 - alpha_l) F_{l-1},   l = 1 … L                                    [P]

Everything here is a function of the vector of layer losses, of shape (..., L+1); nothing knows what a model is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from layerdescent.errors import InputError

Alpha = float | Sequence[float] | Mapping[str, float | str]
Form = Literal["difference", "ratio", "cumulative"]

FORMS = ("difference", "ratio", "cumulative")
_SCHEDULE_FIELDS = {"linear": {"first", "last"}, "cosine": {"first", "last"}, "reach": {"ratio"}}


def alpha_schedule(alpha: Alpha, num_layers: int, start: int = 0) -> tuple[float, ...]:
    """Turn any way of writing a step-size schedule into alpha_1 … alpha_L.

    Args:
        alpha: one of
            a number, the same alpha for every layer;
            a sequence of L numbers;
            `{"kind": "linear", "first": a, "last": b}`, equal steps from layer 1 to layer L;
            `{"kind": "cosine", "first": a, "last": b}`, half a cosine from layer 1 to layer L;
            `{"kind": "reach", "ratio": r}`, the constant alpha with (1 - alpha)^(L - start) = r: feasible then means
            F_L <= r F_start.
        num_layers: L.
        start: the layer whose loss the first constraint refers to; only `reach` uses it.

    Returns:
        L numbers in [0, 1).

    Raises:
        InputError: a number outside [0, 1), a list of another length, an unknown kind or field.

    Source: the schedule alpha_l is the paper's [P]; these shapes of it are ours [C].

    Example:
        >>> alpha_schedule(0.1, 3)
        (0.1, 0.1, 0.1)
        >>> alpha_schedule({"kind": "linear", "first": 0.0, "last": 0.2}, 3)
        (0.0, 0.1, 0.2)
        >>> alpha_schedule({"kind": "reach", "ratio": 0.25}, 2)
        (0.5, 0.5)
    """
    if isinstance(alpha, Mapping):
        values = _named_schedule(alpha, num_layers, start)
    elif isinstance(alpha, Sequence) and not isinstance(alpha, str):
        if len(alpha) != num_layers:
            raise InputError(
                f"alpha has {len(alpha)} values for {num_layers} layers: give one number, or one for each layer"
            )
        values = tuple(_number("alpha", value) for value in alpha)
    else:
        values = (_number("alpha", alpha),) * num_layers
    for layer, value in enumerate(values, start=1):
        if not 0 <= value < 1:
            raise InputError(f"alpha of layer {layer} is {value:g}: it must lie in [0, 1)")
    return values


def _named_schedule(alpha: Mapping[str, float | str], num_layers: int, start: int) -> tuple[float, ...]:
    kind = alpha.get("kind")
    fields = _SCHEDULE_FIELDS.get(str(kind))
    if fields is None:
        raise InputError(f"alpha schedule of kind {kind!r}: choose one of {', '.join(_SCHEDULE_FIELDS)}")
    given = set(alpha) - {"kind"}
    if given != fields:
        raise InputError(f"alpha schedule {kind} takes {sorted(fields)}, given {sorted(given)}")
    number = {field: _number(f"alpha.{field}", alpha[field]) for field in fields}
    if kind == "reach":
        if not 0 < number["ratio"] <= 1:
            raise InputError(f"alpha.ratio is {number['ratio']:g}: F_L/F_{start} to reach must lie in (0, 1]")
        return (1 - number["ratio"] ** (1 / (num_layers - start)),) * num_layers
    first, last = number["first"], number["last"]
    position = [layer / max(1, num_layers - 1) for layer in range(num_layers)]
    if kind == "cosine":
        position = [(1 - math.cos(math.pi * p)) / 2 for p in position]
    return tuple(first + (last - first) * p for p in position)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} is {value!r}: give a number")
    return float(value)


@dataclass(frozen=True, kw_only=True)
class DescentConstraints:
    """Which layers must lower the loss, by how much, and what of it enters the gradient.

    The constraints tie consecutive *nodes* n_0 < n_1 < … < n_C = L. By default the nodes are all layers 0 … L and

        c_l = F_l - (1 - alpha_l) F_{l-1}                                         difference (the default)      [P]
        c_l = F_l / F_{l-1} - (1 - alpha_l)                                       ratio                         [C]
        c_l = F_l - prod_{k<=l} (1 - alpha_k) F_0                                 cumulative                    [C]

    A later `first_layer`, or a `grid`, thins the nodes; alpha is compounded between them:
    1 - alpha_(n, m] = prod_{n<k<=m} (1 - alpha_k).

    The cumulative form never punishes an early layer for being good; the difference form does when that leaves too
    little room above it.

    Args:
        num_layers: L, the number of layers.
        alpha: step sizes, in any form that `alpha_schedule` takes.
        form: `"difference"`, `"ratio"` or `"cumulative"`.
        first_layer: the first constrained layer l; its reference is F_{l-1}.
        grid: the nodes themselves, ascending, the last one L (instead of `first_layer`).
        detach_initial: the loss of the first node enters as a constant. Its Lagrangian weight is never positive, so
            with a trainable readout the gradient would pay the readout for failing on Phi_0, without bound [D];
            hence on by default [C].
        detach_previous: F_{l-1} enters every constraint as a constant. Nothing is then paid for making layer l-1
            worse, but the dynamics have no saddle point where the only feasible route is a worse layer l-1: use it
            with resilience only [D]. Off by default, as the stated Lagrangian has it.
        clip_weights: negative Lagrangian weights become 0 in the gradient (another guard against inflated early
            layers [C]).
        tolerance: relative violation up to which a constraint counts as met; None means alpha/5. Never more than
            alpha/2 of the constraint in question, or a rising loss would pass [C].

    Raises:
        InputError: a value that cannot be; the message names the field.

    Example:
        >>> constraints = DescentConstraints(num_layers=2, alpha=0.5)
        >>> constraints.violations(torch.tensor([1.0, 0.4, 0.3]))
        tensor([-0.1000,  0.1000])
        >>> constraints.weights(torch.tensor([1.0, 2.0]))
        tensor([-0.5000,  0.0000,  3.0000])
        >>> DescentConstraints(num_layers=4, alpha=0.5, grid=(0, 2, 4)).steps
        (0.75, 0.75)
    """

    num_layers: int
    alpha: Alpha = 0.05
    form: Form = "difference"
    first_layer: int = 1
    grid: Sequence[int] | None = None
    detach_initial: bool = True
    detach_previous: bool = False
    clip_weights: bool = False
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise InputError(f"num_layers is {self.num_layers}: a model has at least one layer")
        if self.form not in FORMS:
            raise InputError(f"form is {self.form!r}: choose one of {', '.join(FORMS)}")
        if not 1 <= self.first_layer <= self.num_layers:
            raise InputError(f"first_layer is {self.first_layer}: this model has the layers 1 to {self.num_layers}")
        if self.grid is not None:
            self._check_grid(tuple(self.grid))
        if self.tolerance is not None and not self.tolerance >= 0:
            raise InputError(f"tolerance is {self.tolerance:g}: it must be at least 0")
        _ = self.alphas  # an impossible alpha is named here, not at the first step

    def _check_grid(self, grid: tuple[int, ...]) -> None:
        if self.first_layer != 1:
            raise InputError(
                "first_layer and grid are both given: a grid starts at its own first entry, leave first_layer out"
            )
        if len(grid) < 2 or not all(isinstance(node, int) for node in grid) or any(a >= b for a, b in pairwise(grid)):
            raise InputError(f"grid is {list(grid)}: give the numbers of at least two layers in ascending order")
        if grid[0] < 0 or grid[-1] != self.num_layers:
            raise InputError(
                f"grid is {list(grid)}: it must lie within 0 to {self.num_layers} and end at {self.num_layers}"
            )

    @cached_property
    def nodes(self) -> tuple[int, ...]:
        """The layers that take part, n_0 … n_C; n_0 is a reference only."""
        return tuple(self.grid) if self.grid is not None else tuple(range(self.first_layer - 1, self.num_layers + 1))

    @cached_property
    def alphas(self) -> tuple[float, ...]:
        """alpha_1 … alpha_L, one for each layer of the model."""
        return alpha_schedule(self.alpha, self.num_layers, start=self.nodes[0])

    @cached_property
    def steps(self) -> tuple[float, ...]:
        """The compounded alpha of each constraint, in the order of `nodes[1:]`."""
        keep = [1 - alpha for alpha in self.alphas]
        # One layer between the nodes keeps its alpha to the last bit.
        return tuple(self.alphas[m - 1] if m - n == 1 else 1 - math.prod(keep[n:m]) for n, m in pairwise(self.nodes))

    @cached_property
    def tolerances(self) -> tuple[float, ...]:
        """The relative violation up to which each constraint counts as met."""
        return tuple(step / 5 if self.tolerance is None else min(self.tolerance, step / 2) for step in self.steps)

    @cached_property
    def _bases(self) -> tuple[int, ...]:
        """For each constraint, the layer that its loss is compared with."""
        return (self.nodes[0],) * len(self.steps) if self.form == "cumulative" else self.nodes[:-1]

    @cached_property
    def _kept(self) -> tuple[float, ...]:
        """For each constraint, the factor on the loss it is compared with."""
        keep = [1 - step for step in self.steps]
        return tuple(math.prod(keep[: j + 1]) for j in range(len(keep))) if self.form == "cumulative" else tuple(keep)

    def _check(self, losses: Tensor) -> None:
        if losses.shape[-1] != self.num_layers + 1:
            raise InputError(
                f"{losses.shape[-1]} layer losses for a model of {self.num_layers} layers: "
                f"give F_0 to F_{self.num_layers}, {self.num_layers + 1} values"
            )

    def violations(self, losses: Tensor) -> Tensor:
        """The violation c of every constraint; met where c <= 0.

        Args:
            losses: layer losses, shape (..., L+1), in the units of the loss.

        Returns:
            Shape (..., C), one value for each of `nodes[1:]`. Linear in the losses in the difference and cumulative
            forms, so that there the mean over samples of c is the c of the means.
        """
        self._check(losses)
        kept = losses.new_tensor(self._kept)
        current, base = losses[..., list(self.nodes[1:])], losses[..., list(self._bases)]
        return current / base - kept if self.form == "ratio" else current - kept * base

    def references(self, losses: Tensor) -> Tensor:
        """What makes a violation free of units: F_{l-1}, or 1 in the ratio form [C]. Shape (..., C)."""
        self._check(losses)
        previous = losses[..., list(self.nodes[:-1])]
        return torch.ones_like(previous) if self.form == "ratio" else previous

    def relative_violations(self, losses: Tensor) -> Tensor:
        """c_l / F_{l-1}, free of units. Shape (..., C)."""
        tiny = torch.finfo(losses.dtype).tiny
        return self.violations(losses) / self.references(losses).clamp_min(tiny)

    def _coefficients(self, multipliers: Tensor, losses: Tensor | None) -> tuple[Tensor, Tensor]:
        """The derivatives of sum_j lambda_j c_j by each constraint's own loss and by the loss it is compared with."""
        if multipliers.shape != (len(self.steps),):
            raise InputError(
                f"{tuple(multipliers.shape)} multipliers for {len(self.steps)} constraints: give one for each"
            )
        if self.form != "ratio":
            return multipliers, -multipliers * multipliers.new_tensor(self._kept)
        if losses is None:
            raise InputError("the weights of the ratio form depend on the losses: give them")
        self._check(losses)
        current, base = (losses.detach().to(multipliers)[list(at)] for at in (self.nodes[1:], self._bases))
        # A constraint without a multiplier weighs nothing, whatever its losses are: 0 * inf would be NaN.
        own, against = multipliers / base, -multipliers * current / base**2
        return own.where(multipliers != 0, 0), against.where(multipliers != 0, 0)

    def _scatter(self, own: Tensor, base: Tensor) -> Tensor:
        weights = own.new_zeros(self.num_layers + 1)
        weights[-1] = 1
        weights.index_add_(0, torch.tensor(self.nodes[1:], device=own.device), own)
        return weights.index_add_(0, torch.tensor(self._bases, device=own.device), base)

    def weights(self, multipliers: Tensor, losses: Tensor | None = None) -> Tensor:
        """The Lagrangian weights w_0 … w_L: the derivative of the Lagrangian by every layer loss.

            w_L = 1 + lambda_L,   w_l = lambda_l - (1 - alpha_{l+1}) lambda_{l+1},   w_0 = -(1 - alpha_1) lambda_1   [D]

        Args:
            multipliers: lambda, shape (C,).
            losses: layer losses, shape (L+1,); only the ratio form needs them.

        Returns:
            Shape (L+1,); weights of early layers may be negative.
        """
        return self._scatter(*self._coefficients(multipliers, losses))

    def gradient_weights(self, multipliers: Tensor, losses: Tensor | None = None) -> Tensor:
        """The weights that the layer losses' gradients really get: `weights` detached and clipped. Shape (L+1,)."""
        own, base = self._coefficients(multipliers, losses)
        constant = [self.detach_previous or (self.detach_initial and node == self.nodes[0]) for node in self._bases]
        weights = self._scatter(own, base.masked_fill(torch.tensor(constant, device=base.device), 0))
        return weights.clamp_min(0) if self.clip_weights else weights

    def lagrangian(self, losses: Tensor, multipliers: Tensor, objective: Tensor | None = None) -> Tensor:
        """The Lagrangian F_L + sum_l lambda_l c_l, to be minimised in the model's parameters at fixed multipliers.

        Its value is the stated Lagrangian; its gradient is sum_l g_l grad F_l with g = `gradient_weights`, in one
        backward pass. Terms with g_l = 0 are left out rather than multiplied by 0: an infinite loss of an unconstrained
        layer does no harm, and with lambda = 0 this is F_L to the last bit.

        Args:
            losses: layer losses, shape (L+1,), differentiable.
            multipliers: lambda >= 0, shape (C,).
            objective: what is minimised under the constraints where it is not F_L itself, a scalar: the loss without
                noise, say, of layer losses under noise.

        Returns:
            A scalar.
        """
        self._check(losses)
        weights = self.gradient_weights(multipliers, losses)
        if objective is None:
            objective, surrogate = losses[-1], weighted_sum(losses, weights.tolist())
        else:
            weights[-1] -= 1
            surrogate = objective + weighted_sum(losses, weights.tolist())
        with torch.no_grad():
            active = multipliers.nonzero().flatten()
            value = objective
            if len(active):
                value = (
                    value + (multipliers[active].to(losses) * self.violations(losses)[active.to(losses.device)]).sum()
                )
            # Without an active constraint the correction must be 0 even where F_L is not finite.
            constant = value - surrogate if len(active) else torch.zeros_like(surrogate)
        return surrogate + constant


def weighted_sum(losses: Tensor, weights: Sequence[float]) -> Tensor:
    """sum_l w_l F_l; terms of weight 0 are left out, so an infinite loss of an unused layer does no harm.

    Args:
        losses: layer losses F_0 … F_L, shape (L+1,).
        weights: one for each.

    Example:
        >>> weighted_sum(torch.tensor([float("inf"), 2.0, 4.0]), (0.0, 0.5, 0.5))
        tensor(3.)
    """
    return sum((w * losses[layer] for layer, w in enumerate(weights) if w != 0), start=losses.new_zeros(()))


def monotone(losses: ArrayLike | Tensor) -> bool:
    """Whether F_l < F_{l-1} for every l.

    Args:
        losses: layer losses F_0 … F_L, shape (L+1,).

    Raises:
        InputError: not one vector of losses.

    Example:
        >>> monotone([0.7, 0.6, 0.4]), monotone([0.7, 0.7, 0.4])
        (True, False)
    """
    values = _vector(losses)
    return bool((values[1:] < values[:-1]).all())


def feasible(losses: ArrayLike | Tensor, constraints: DescentConstraints) -> bool:
    """Whether every relative violation lies within its tolerance: c_l / F_{l-1} <= tol_l.

    Args:
        losses: layer losses F_0 … F_L, shape (L+1,).
        constraints: the constraints, with their tolerances (alpha/5 by default [C]).

    Raises:
        InputError: not one loss for each of the layers 0 … L.

    Example:
        >>> constraints = DescentConstraints(num_layers=2, alpha=0.1)
        >>> feasible([1.0, 0.9, 0.82], constraints), feasible([1.0, 0.9, 0.85], constraints)
        (True, False)
    """
    relative = constraints.relative_violations(torch.from_numpy(_vector(losses)))
    return bool((relative <= relative.new_tensor(constraints.tolerances)).all())


def shown(
    per_sample_losses: ArrayLike | Tensor, constraints: DescentConstraints, confidence: float = 0.95, seed: int = 0
) -> bool:
    """Whether the data show every constraint met: the simultaneous one-sided upper bound on each mean c_l lies below 0.

    Args:
        per_sample_losses: shape (N, L+1), or (S, N, L+1) for S training seeds measured on the same N samples.
        constraints: the constraints. The ratio form is judged by its equivalent difference form, which is linear in the
            losses.
        confidence: that of all bounds together.
        seed: of the bootstrap.

    Source: the notion is ours [C]; the bound is a bootstrap over seeds and samples (`layerdescent.statistics`).
    """
    from layerdescent.statistics import simultaneous_upper_bounds

    losses = torch.from_numpy(_array(per_sample_losses))
    form: Form = "cumulative" if constraints.form == "cumulative" else "difference"
    linear = DescentConstraints(
        num_layers=constraints.num_layers, alpha=constraints.alphas, form=form, grid=constraints.nodes
    )
    bounds = simultaneous_upper_bounds(linear.violations(losses).numpy(), confidence=confidence, seed=seed)
    return bool((bounds < 0).all())


def largest_alpha(ratio: float, num_layers: int) -> float:
    """The largest constant alpha that `num_layers` layers can meet when F_L cannot fall below `ratio` times F_0.

    (1 - alpha)^L >= F*/F_0 gives alpha <= 1 - (F*/F_0)^(1/L) [D]. Necessary, not sufficient.

    Example:
        >>> round(largest_alpha(0.5, 6), 3)
        0.109
    """
    return 1 - min(1.0, max(0.0, ratio)) ** (1 / num_layers)


def loss_floors(constraints: DescentConstraints, best: float) -> tuple[float, ...]:
    """How low the loss of each node may be for the layers above it to descend to `best`: F* / prod_{k>l} (1 - alpha_k).

    The cumulative form has no such floor between the first and the last node [D].

    Returns:
        One value for each of `constraints.nodes`, in the units of the loss.

    Example:
        >>> loss_floors(DescentConstraints(num_layers=2, alpha=0.5), best=0.25)
        (1.0, 0.5, 0.25)
    """
    keep = [1 - step for step in constraints.steps]
    floors = [best / math.prod(keep[j:]) for j in range(len(keep) + 1)]
    if constraints.form == "cumulative":
        floors[1:-1] = [0.0] * (len(floors) - 2)
    return tuple(floors)


def feasibility_advice(constraints: DescentConstraints, losses: ArrayLike | Tensor, best: float | None = None) -> str:
    """Say whether these constraints can be met, judged by the loss that plain training reached.

    Args:
        constraints: the constraints asked for.
        losses: layer losses F_0 … F_L of an ERM run (or of the run in question).
        best: the lowest F_L known; None takes the last of `losses`.

    Returns:
        One sentence or two. The rule is necessary only, and the sentence says so.

    Raises:
        InputError: losses that are not finite or a first node's loss that is not above 0: the rule divides by it.

    Example:
        >>> constraints = DescentConstraints(num_layers=6, alpha=0.2)
        >>> feasibility_advice(constraints, [1.0, 1.0, 1.0, 0.9, 0.8, 0.7, 0.5])
        'alpha above 0.109 cannot be met here: 0.2 over 6 layers asks for F_6 <= 0.26 F_0 and 0.50 F_0 was reached;
        below it may still fail'
    """
    values = _vector(losses)
    constraints._check(torch.from_numpy(values))
    nodes, last = constraints.nodes, constraints.num_layers
    reached = float(values[-1]) if best is None else best
    start = float(values[nodes[0]])
    if not (math.isfinite(reached) and np.isfinite(values[list(nodes)]).all() and start > 0):
        raise InputError(
            f"F_{nodes[0]} is {start:g} and F_{last} {reached:g}: advice needs finite losses, the first above 0"
        )
    ratio, asked = reached / start, math.prod(1 - step for step in constraints.steps)
    span = last - nodes[0]
    alpha = f"{constraints.alphas[-1]:.3g}" if len(set(constraints.alphas)) == 1 else "this schedule"
    demand = (
        f"{alpha} over {span} layers asks for F_{last} <= {asked:.2f} F_{nodes[0]} "
        f"and {ratio:.2f} F_{nodes[0]} was reached"
    )
    limit = f"alpha above {largest_alpha(ratio, span):.3f} cannot be met here"
    if asked < ratio:
        return f"{limit}: {demand}; below it may still fail"
    floors = loss_floors(constraints, reached)
    low = [n for n, floor in zip(nodes[1:-1], floors[1:-1], strict=True) if values[n] < floor]
    if low:
        named = f"layer {low[0]} is" if len(low) == 1 else f"layers {', '.join(map(str, low))} are"
        return (
            f"{named} already so good that the layers above cannot each lower the loss by their alpha; "
            "use a smaller alpha, resilience or the cumulative form"
        )
    return f"{demand}: this rule allows it, though it may still fail; {limit}"


def _array(losses: ArrayLike | Tensor) -> np.ndarray:
    if isinstance(losses, Tensor):
        losses = losses.detach().cpu().double().numpy()
    return np.array(losses, dtype=np.float64)


def _vector(losses: ArrayLike | Tensor) -> np.ndarray:
    values = _array(losses)
    if values.ndim != 1:
        raise InputError(
            f"layer losses of shape {values.shape}: give one loss for each layer; average over samples first"
        )
    return values
