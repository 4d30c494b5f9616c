"""From what a pilot measured to a proposal, and from a check of it to a better one: pure functions, with reasons.

Marks as everywhere: [D] derived, [C] our choice. The constants are ours; they were set on IMDb and SST-2.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from layerdescent.descent import DescentConstraints, largest_alpha, loss_floors
from layerdescent.errors import InputError
from layerdescent.layers import layers_in_words

READABLE_SPREAD = 0.05
"""A layer can be read by the head of the last one when its spread is at least this share of the last layer's. [C]"""
TIGHTNESS = 0.5
"""The share of the pilot's log descent that the constraints ask for. [C]"""
LEAST_ALPHA = 0.005
"""Below this an alpha asks for nothing that a profile could show. [C]"""
LEAST_DESCENT = 0.05
"""A pilot whose last loss lies less than this share below the start has not learnt enough to judge by. [C]"""
FLAT_MULTIPLIER = 5.0
"""What the multiplier of a layer that does nothing may come to, by the dual step size and by resilience. [C]"""
DUAL_LR_RANGE = (0.02, 1.0)
"""Dual step sizes that are proposed. [C]"""
MOVED_SHARE = 0.25
"""A layer moves when the check has lowered its relative violation by at least this share of alpha. [C]"""

PUSHED_WEIGHT = 0.5
"""A layer has been pushed when its own loss had at least this weight, against 1 of the last layer's. [C]"""

State = Literal["met", "moving", "stuck", "waiting"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the rules see of a pilot without constraints, measured on clean validation data.

    Attributes:
        layer_losses: F_0 … F_L, in the units of the loss.
        spreads: for each layer, how far what the head reads varies between inputs; see `spread`.
        constant_loss: the loss of the best predictor that ignores its input.
        dual_steps: how many dual steps the whole training will take.
    """

    layer_losses: tuple[float, ...]
    spreads: tuple[float, ...]
    constant_loss: float
    dual_steps: int

    def __post_init__(self) -> None:
        if len(self.layer_losses) < 2 or len(self.spreads) != len(self.layer_losses):
            raise InputError(
                f"{len(self.layer_losses)} layer losses and {len(self.spreads)} spreads: give one of each for every "
                "layer from 0 to L"
            )
        numbers = (*self.layer_losses, *self.spreads, self.constant_loss)
        if not all(math.isfinite(number) and number >= 0 for number in numbers) or self.constant_loss == 0:
            raise InputError("losses and spreads must be finite and not negative, and constant_loss above 0")
        if self.dual_steps < 1:
            raise InputError(f"dual_steps is {self.dual_steps}: give at least 1")

    @property
    def num_layers(self) -> int:
        """L."""
        return len(self.layer_losses) - 1

    @property
    def relative_spreads(self) -> tuple[float, ...]:
        """Every layer's spread as a share of the last layer's.

        Raises:
            InputError: the last layer gives the head the same for every input.
        """
        if self.spreads[-1] == 0:
            raise InputError(
                f"after the pilot the head reads the same from layer {self.num_layers} whatever the input: the model "
                "does not look at it, or training has killed it; lower learning_rate or give another model"
            )
        return tuple(each / self.spreads[-1] for each in self.spreads)


@dataclass(frozen=True)
class Reason:
    """Why a setting is what it is. `mark` is D where it was derived, C where it is our choice."""

    about: str
    mark: Literal["C", "D"]
    text: str

    def __str__(self) -> str:
        return f"{self.about}: {self.text} [{self.mark}]"


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """Settings of a descent arm; all but `first_layer` are None where the pilot allows no proposal.

    Attributes:
        first_layer: the first layer that is constrained.
        alpha: share by which each layer is to lower the loss.
        dual_lr: step size of the multipliers.
        resilience: rho, the price of slack.
        clip_weights: whether negative Lagrangian weights count as 0.
        alpha_max: the largest alpha that the pilot's losses allow; necessary, not sufficient.
        reasons: one or more for each setting.
        changes: what checks changed of what the pilot alone suggested, in order, with the reason.
    """

    first_layer: int
    alpha: float | None
    dual_lr: float | None
    resilience: float | None
    alpha_max: float
    reasons: tuple[Reason, ...]
    changes: tuple[Reason, ...] = ()
    clip_weights: bool = True

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of `DescentConfig`; empty where there is no proposal."""
        if self.alpha is None:
            return {}
        names = ("first_layer", "alpha", "dual_lr", "resilience", "clip_weights")
        return {name: getattr(self, name) for name in names}


def spread(rows: ArrayLike) -> float:
    """How far what the head reads from one layer varies between inputs.

        s = sqrt( mean_{i,k} (x_ik - mean_j x_jk)^2 )

    Args:
        rows: (N, d), what the head is given of N inputs.

    Example:
        >>> spread([[1.0, 5.0], [3.0, 5.0]])
        0.7071067811865476
    """
    x = np.asarray(rows, dtype=np.float64)
    return float(np.sqrt(((x - x.mean(axis=0)) ** 2).mean()))


def readable_from(relative_spreads: Sequence[float], threshold: float = READABLE_SPREAD) -> int:
    """The lowest layer, at least 1, from which on every layer's relative spread reaches a threshold [C].

    Example:
        >>> readable_from([0.0, 0.007, 0.003, 0.02, 0.08, 1.0])
        4
        >>> readable_from([0.0, 0.5, 0.8, 1.0])
        1
    """
    last = len(relative_spreads) - 1
    low = [layer for layer in range(1, last) if relative_spreads[layer] < threshold]
    return low[-1] + 1 if low else 1


def proposed_dual_lr(alpha: float, dual_steps: int) -> float:
    """The step size at which a layer that does nothing gets a multiplier of `FLAT_MULTIPLIER` by the end.

        eta = 5 / (alpha T)     clipped to `DUAL_LR_RANGE`                                                           [C]

    Its relative violation is alpha, T times; without resilience that adds up to eta alpha T.

    Example:
        >>> proposed_dual_lr(0.05, 375)
        0.27
    """
    low, high = DUAL_LR_RANGE
    return min(high, max(low, two_digits(FLAT_MULTIPLIER / (alpha * dual_steps))))


def proposed_resilience(alpha: float) -> float:
    """The price of slack at which the multiplier of a layer that does nothing stays below `FLAT_MULTIPLIER`.

        rho = 5 / alpha                                                                                              [C]

    A multiplier is at most rho times the relative violation, which is alpha there; and while it is at most 1 the slack
    lambda / rho stays within the tolerance alpha / 5. Always above any proposed dual step size.

    Example:
        >>> proposed_resilience(0.05)
        100.0
    """
    return two_digits(FLAT_MULTIPLIER / alpha)


def two_digits(value: float) -> float:
    """A positive number rounded to two significant digits."""
    return float(f"{value:.1e}")


def two_digits_down(value: float) -> float:
    """A positive number rounded down to two significant digits; never above the number itself.

    Example:
        >>> two_digits_down(0.04999), two_digits_down(0.9999)
        (0.049, 0.99)
    """
    number = Decimal(value)
    return float(number.quantize(Decimal(1).scaleb(number.adjusted() - 1), rounding=ROUND_FLOOR))


def propose(
    measured: Measured,
    *,
    first_layer: int | None = None,
    alpha: float | None = None,
    tightness: float = TIGHTNESS,
    mean_pooling: bool = False,
) -> Proposal:
    """Settings for a descent arm out of a pilot's numbers.

        first_layer   the lowest layer from which on every relative spread reaches `READABLE_SPREAD`                 [C]
        alpha_max     1 - (F_L / F_start)^(1/n),  n = L - first_layer + 1                                            [D]
        alpha         1 - (F_L / F_start)^(tightness/n), rounded down to two digits, at least `LEAST_ALPHA`          [C]

    with F_start the smaller of F_{first_layer - 1} and the best constant predictor's loss; then `proposed_dual_lr` and
    `proposed_resilience`, and negative weights clipped. All of it is free of the loss's units.

    Args:
        measured: what the pilot measured.
        first_layer: the first constrained layer, where it is decided already.
        alpha: the same.
        tightness: share of the log descent to ask for, in (0, 1].
        mean_pooling: whether the recipe could read the mean over positions instead, so that it may be recommended.

    Returns:
        The proposal; without an alpha where the pilot has not learnt enough.

    Raises:
        InputError: a layer that isn't there, a tightness outside its range, or a last layer of spread 0.

    Example:
        >>> losses = (0.693, 0.679, 0.607, 0.544, 0.503, 0.452, 0.41)
        >>> found = propose(Measured(layer_losses=losses, spreads=(0.1,) * 7, constant_loss=0.6931, dual_steps=375))
        >>> found.settings
        {'first_layer': 1, 'alpha': 0.042, 'dual_lr': 0.32, 'resilience': 120.0, 'clip_weights': True}
    """
    L = measured.num_layers
    if not 0 < tightness <= 1:
        raise InputError(f"tightness is {tightness:g}: give a number above 0, at most 1")
    if first_layer is not None and not 1 <= first_layer <= L:
        raise InputError(f"first_layer is {first_layer}: the model has layers 1 to {L}")
    lowest = readable_from(measured.relative_spreads)
    reasons = _first_layer_reasons(measured.relative_spreads, lowest, mean_pooling)
    first = lowest if first_layer is None else first_layer

    n, last, below = L - first + 1, measured.layer_losses[-1], measured.layer_losses[first - 1]
    start = min(below, measured.constant_loss)
    ratio = max(last / start, 1e-9) if start > 0 else math.inf
    limit = largest_alpha(ratio, n)
    what = f"F_{first - 1}" if below <= measured.constant_loss else "a constant prediction"
    reached = f"the pilot's layer {L} reaches {last:.4g} from {start:.4g} ({what})"
    layers = f"{n} layer{'s' if n > 1 else ''}"
    if ratio > 1 - LEAST_DESCENT or limit < LEAST_ALPHA:
        text = f"{reached}: too little to tell what {layers} could share; nothing is proposed"
        return Proposal(
            first_layer=first,
            alpha=None,
            dual_lr=None,
            resilience=None,
            alpha_max=limit,
            reasons=(*reasons, Reason("alpha", "C", text)),
        )
    if alpha is None:
        alpha = max(LEAST_ALPHA, two_digits_down(min(1 - ratio ** (tightness / n), limit)))
    text = (
        f"{reached}: over {layers} no alpha above {limit:.3g} could be met there; below it may still fail, and longer "
        "training may allow more"
    )
    reasons.append(Reason("alpha", "D", text))
    share = math.log1p(-alpha) * n / math.log(ratio)
    reasons.append(Reason("alpha", "C", f"{alpha:g} asks for {100 * share:.0f} % of that descent, in logarithms"))
    floors = loss_floors(DescentConstraints(num_layers=L, alpha=alpha, first_layer=first), last)
    good = [layer for layer in range(first, L) if measured.layer_losses[layer] < floors[layer - first + 1]]
    if good:
        text = (
            f"{layers_in_words(good)} did so well in the pilot that the layers above cannot each lower the loss by "
            "alpha down to what the pilot reached: the last layer must get better, or these get worse"
        )
        reasons.append(Reason("alpha", "D", text))
    return Proposal(
        first_layer=first,
        alpha=alpha,
        dual_lr=proposed_dual_lr(alpha, measured.dual_steps),
        resilience=proposed_resilience(alpha),
        alpha_max=limit,
        reasons=(*reasons, *_dual_reasons(alpha, measured.dual_steps)),
    )


def _first_layer_reasons(relative: Sequence[float], first: int, mean_pooling: bool) -> list[Reason]:
    L, least = len(relative) - 1, f"{100 * READABLE_SPREAD:g} %"
    if first == 1:
        lowest = min(relative[1:])
        return [
            Reason(
                "first_layer",
                "C",
                f"what the head reads varies between inputs at every layer (least {100 * lowest:.2g} % of layer {L}'s "
                f"spread, {least} are needed), so one head can serve all of them",
            )
        ]
    varies = ", ".join(f"{100 * each:.2g}" for each in relative[1:first])
    text = (
        f"at {layers_in_words(range(1, first))} what the head reads varies between inputs by {varies} % of what it "
        f"does at layer {L}; for one head to read layer {L} and the others, each of them needs {least}"
    )
    reasons = [Reason("first_layer", "C", text)]
    if relative[0] < 1e-3:
        hint = "the head reads one token, which is the same for every input before the first layer"
        if mean_pooling:
            hint += (
                "; --set model.pooling=mean (a new head, on the mean over positions) would let every layer take part"
            )
        reasons.append(Reason("first_layer", "D", hint))
    if first == L:
        reasons.append(
            Reason("first_layer", "C", "only the last layer is left, so the constraint says little more than ERM does")
        )
    return reasons


def _dual_reasons(alpha: float, dual_steps: int) -> list[Reason]:
    exact, (low, high) = FLAT_MULTIPLIER / (alpha * dual_steps), DUAL_LR_RANGE
    formula = f"{FLAT_MULTIPLIER:g} / (alpha T) with T = {dual_steps} dual steps"
    if low <= exact <= high:
        eta = (
            f"{formula}: a layer that does nothing gets a multiplier of about {FLAT_MULTIPLIER:g}, enough to outweigh "
            "the last layer's loss and little enough to come back"
        )
    else:
        eta = f"{formula} would be {exact:.2g}, clipped to [{low:g}, {high:g}]"
    rho = (
        f"{FLAT_MULTIPLIER:g} / alpha: that multiplier never passes {FLAT_MULTIPLIER:g}, and while one is at most 1 "
        "the slack it buys stays within the tolerance alpha/5"
    )
    clip = (
        "no layer is ever paid for getting worse; on the texts where it was tried this cost nothing, and the layer "
        "below the last lost less than without constraints, not more"
    )
    return [Reason("dual_lr", "C", eta), Reason("resilience", "C", rho), Reason("clip_weights", "C", clip)]


def judge(
    constraints: DescentConstraints,
    pilot_losses: Sequence[float],
    check_losses: Sequence[float],
    multipliers: Sequence[Sequence[float]],
    weights: Sequence[Sequence[float]],
) -> tuple[State, ...]:
    """What each constraint came to in a check.

        met       its relative violation lies within its tolerance
        moving    not met, but its relative violation is lower than the pilot's by at least `MOVED_SHARE` of its alpha
        stuck     neither, though over the last half of the check its multiplier rose from entry to entry and the loss
                  of its layer had a mean weight of at least `PUSHED_WEIGHT`
        waiting   none of these: nothing pushed it yet, or not all the time                                          [C]

    A layer's weight is lambda_l - (1 - alpha) lambda_{l+1}: while the layers above it are unmet too, next to nothing is
    left of it, and the chain is taken up from its top. So in a short check low layers wait, which says nothing against
    them.

    Args:
        constraints: those of the check.
        pilot_losses: validation losses F_0 … F_L of the pilot.
        check_losses: the same of the check.
        multipliers: lambda as logged, in order, (entries, C).
        weights: the Lagrangian's weights w_0 … w_L as logged with them, (entries, L+1).

    Returns:
        One word for each of `constraints.nodes[1:]`.

    Example:
        >>> constraints = DescentConstraints(num_layers=2, alpha=0.1)
        >>> rising = [[0.2 * step, 0.0] for step in range(6)]
        >>> judge(constraints, [1.0, 1.0, 0.5], [1.0, 0.99, 0.6], rising, [[0.0, row[0], 1.0] for row in rising])
        ('stuck', 'met')
    """
    before, after = (
        constraints.relative_violations(torch.tensor(losses, dtype=torch.float64)).tolist()
        for losses in (pilot_losses, check_losses)
    )
    half = len(multipliers) // 2
    late, weight = (np.asarray(path, dtype=np.float64)[half:] for path in (multipliers, weights))
    # Fewer entries than three are no path.
    growing = (np.diff(late, axis=0) > 0).all(axis=0) & (len(late) >= 3)
    tested = growing & (weight.mean(axis=0)[list(constraints.nodes[1:])] >= PUSHED_WEIGHT)
    return tuple(
        _state(*each)
        for each in zip(after, before, constraints.tolerances, constraints.steps, tested.tolist(), strict=True)
    )


def _state(now: float, before: float, tolerance: float, step: float, tested: bool) -> State:
    if now <= tolerance:
        return "met"
    if now <= before - MOVED_SHARE * step:
        return "moving"
    return "stuck" if tested else "waiting"


def revise(
    proposal: Proposal,
    measured: Measured,
    states: Mapping[int, State],
    *,
    tightness: float = TIGHTNESS,
    mean_pooling: bool = False,
) -> Proposal | None:
    """A proposal that asks for less, after a check in which some constraints were stuck.

    Where a layer is stuck and no constrained layer below it has met its constraint or moves, `first_layer` moves above
    it if two or more layers are left; otherwise alpha is halved. [C]

    Args:
        proposal: what was checked.
        measured: what the pilot measured.
        states: layer -> what its constraint came to, as `judge` says; empty where the check diverged.
        tightness: as in `propose`.
        mean_pooling: as in `propose`.

    Returns:
        The next proposal, with the change among its `changes`; None where nothing is stuck or nothing is left to try.
    """
    assert proposal.alpha is not None
    stuck = [layer for layer, state in states.items() if state == "stuck"]
    if states and not stuck:
        return None
    L, first = measured.num_layers, proposal.first_layer
    above = max(stuck, default=L) + 1
    if L - above + 1 >= 2 and all(states[layer] in ("stuck", "waiting") for layer in range(first, above)):
        moved = propose(measured, first_layer=above, tightness=tightness, mean_pooling=mean_pooling)
        if moved.alpha is not None:
            text = (
                f"in the check the multipliers of {layers_in_words(stuck)} only grew and the loss there did not move, "
                f"so the constraints begin at layer {above}"
            )
            return replace(moved, changes=(*proposal.changes, Reason("first_layer", "C", text)))
    half = two_digits_down(proposal.alpha / 2)
    if half < LEAST_ALPHA:
        return None
    why = f"the multipliers of {layers_in_words(stuck)} only grew" if stuck else "the loss stopped being a number"
    text = f"in the check at {proposal.alpha:g} {why}, so alpha is halved to {half:g}"
    halved = propose(measured, first_layer=first, alpha=half, mean_pooling=mean_pooling)
    return replace(halved, changes=(*proposal.changes, Reason("alpha", "C", text)))
