"""Five looks at whether descent is real: pure functions on arrays of layer losses, logits and labels.

A falling loss can be faked, because early layers may be made worse than they need be, cross entropy has no upper bound,
and all layers share one readout [D]. So each profile also gives, per layer,

    inflation     F_l against the better of the paired ERM's F_l and the best constant predictor
    calibration   the loss after one temperature (gain and offset for regression) fitted to it on validation data
    accuracy      (computed where the logits are, in `batches`)
    log_share     the layer's part of log(F_0 / F_L)
    tightness     how much of the descent the constraints ask for

and `find_flags` turns them into named suspicions with their numbers. The thresholds below are ours [C].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import expit, softmax, xlogy

from layerdescent.descent import DescentConstraints
from layerdescent.errors import InputError
from layerdescent.layers import CALIBRATED_FALL, every_layer, layers_in_words, rises
from layerdescent.readout import ProblemType
from layerdescent.statistics import simultaneous_upper_bounds

Array = NDArray[np.float64]

INFLATION_SHARE = 0.02
"""A layer is inflated when its inflation exceeds this share of the best constant predictor's loss, beyond noise. [C]"""
VACUOUS_SHARE = 0.05
"""F_0 is a vacuous start when it exceeds the best constant predictor's loss by more than this share. [C]"""
CLIFF_SHARE = 0.8
"""The last layer is a cliff when its share of log(F_0 / F_L) exceeds this … [C]"""
CLIFF_LAYERS = 3
"""… in a model with at least this many layers. [C]"""
SLACK_TIGHTNESS = 0.25
"""alpha is slack when the constraints, all met, ask for less than this share of the descent. [C]"""
INVERSE_TEMPERATURES = (1e-4, 1e4)
"""Where a layer's 1/T is looked for: one that knows nothing goes to the lower end, a separable one to the upper. [C]"""


def constant_predictor_losses(labels: ArrayLike, kind: ProblemType) -> Array:
    """The per-sample losses of the best predictor that ignores its input; their mean is the least such a one reaches.

        classification  -log(frequency of the label)          mean: the labels' entropy
        multi-label     the same for every label, averaged    mean: the average binary entropy
        regression      (y - mean y)^2                        mean: the variance

    Args:
        labels: (N,) integers, (N, K) zeros and ones, or (N,) / (N, K) numbers, as `kind` says.
        kind: The problem type.

    Returns:
        (N,), in the units of the loss.

    Example:
        >>> float(constant_predictor_losses([0, 1, 0, 1], "single_label_classification").mean() - np.log(2))
        0.0
    """
    y = np.asarray(labels)
    if kind == "single_label_classification":
        frequencies = np.bincount(y) / len(y)
        return -np.log(frequencies[y])
    y = y.astype(np.float64).reshape(len(y), -1)
    p = y.mean(axis=0)
    if kind == "multi_label_classification":
        return -(xlogy(y, p) + xlogy(1 - y, 1 - p)).mean(axis=1)
    return ((y - p) ** 2).mean(axis=1)


@dataclass(frozen=True)
class Calibration:
    """One straight line per layer from its logits to better ones: `scale * logits + offset`, both (n,)."""

    scale: Array
    offset: Array

    @property
    def temperatures(self) -> Array:
        """T of every layer, (n,): logits / T. For regression this is 1 / gain."""
        with np.errstate(divide="ignore"):
            return 1 / self.scale


def fit_calibration(logits: ArrayLike, labels: ArrayLike, kind: ProblemType) -> Calibration:
    """Fit one temperature per layer, or gain and offset for regression, by minimising that layer's own mean loss.

    The mean loss is convex in b = 1/T: its derivative mean(E_softmax(bz)[z] - z_y) rises with b, and its root is found
    by bracketing. A layer whose best b is negative or beyond the range gets the end of `INVERSE_TEMPERATURES`.

    Args:
        logits: (n, N, K), n layers, of validation data; (n, N, T, m) for a denoiser.
        labels: Their labels, as in `constant_predictor_losses`.
        kind: The problem type.

    Returns:
        The fitted lines.

    Source: temperature scaling is Guo et al. 2017; one per layer, as a test of descent, is ours [C].

    Example:
        >>> z = np.random.default_rng(0).normal(size=(1, 4000, 3))
        >>> y = np.array([np.random.default_rng(i).choice(3, p=softmax(row)) for i, row in enumerate(z[0])])
        >>> fit_calibration(10 * z, y, "single_label_classification").temperatures.round(0)
        array([10.])
    """
    z = np.asarray(logits)
    y = np.asarray(labels)
    if z.ndim < 3 or z.shape[1] != len(y):
        raise InputError(f"calibration needs logits (layers, {len(y)}, K) for {len(y)} labels, but they are {z.shape}")
    if kind == "regression":
        lines = [_least_squares(layer.astype(np.float64).ravel(), y.astype(np.float64).ravel()) for layer in z]
        return Calibration(*(np.array(column) for column in zip(*lines, strict=True)))
    scale = np.array([_inverse_temperature(layer.astype(np.float64), y, kind) for layer in z])
    return Calibration(scale, np.zeros_like(scale))


def _inverse_temperature(z: Array, y: NDArray[Any], kind: ProblemType) -> float:
    if kind == "single_label_classification":
        target = np.take_along_axis(z, y[:, None], axis=1).mean()

        def slope(log_b: float) -> float:
            return float((softmax(np.exp(log_b) * z, axis=1) * z).sum(axis=1).mean() - target)
    else:

        def slope(log_b: float) -> float:
            return float(((expit(np.exp(log_b) * z) - y) * z).mean())

    low, high = np.log(INVERSE_TEMPERATURES)
    if slope(low) >= 0:
        return INVERSE_TEMPERATURES[0]
    if slope(high) <= 0:
        return INVERSE_TEMPERATURES[1]
    return float(np.exp(brentq(slope, low, high, xtol=1e-9)))


def _least_squares(x: Array, y: Array) -> tuple[float, float]:
    variance = x.var()
    gain = float(((x - x.mean()) * (y - y.mean())).mean() / variance) if variance > 0 else 0.0
    return gain, float(y.mean() - gain * x.mean())


def inflation(losses: ArrayLike, constant: ArrayLike, erm: ArrayLike | None = None) -> Array:
    """By how much every layer is worse than it need be.

        i_l = F_l - min(F_l of the ERM twin, loss of the best constant predictor)

    Args:
        losses: Mean layer losses (L+1,).
        constant: Per-sample losses of the best constant predictor (N,), or their mean.
        erm: Mean layer losses (L+1,) of the ERM twin on the same data, where there is one.

    Returns:
        (L+1,), positive where the layer is inflated.

    Example:
        >>> inflation([0.9, 0.5, 0.3], 0.7, erm=[0.7, 0.6, 0.3]).round(3).tolist()
        [0.2, -0.1, 0.0]
    """
    own = np.asarray(losses, dtype=np.float64)
    reference = np.full_like(own, np.asarray(constant, dtype=np.float64).mean())
    return own - (reference if erm is None else np.minimum(reference, np.asarray(erm, dtype=np.float64)))


def log_share(losses: ArrayLike) -> Array | None:
    """Every layer's share of the descent: log(F_{l-1} / F_l) / log(F_0 / F_L), (L,), summing to 1.

    None where there is nothing to share: F_L is not below F_0, or a loss is 0.

    Example:
        >>> log_share([0.8, 0.4, 0.2]).tolist()
        [0.5, 0.5]
    """
    F = np.asarray(losses, dtype=np.float64)
    if (F <= 0).any() or F[-1] >= F[0]:
        return None
    return np.log(F[:-1] / F[1:]) / np.log(F[0] / F[-1])


def tightness(losses: ArrayLike, constraints: DescentConstraints) -> float | None:
    """The share of the descent that the constraints ask for: log prod(1 - alpha) / log(F_L / F_n), n the first node.

    1 when the constraints demand exactly the descent that is there, above 1 when more. None where F_L is not below F_n.

    Example:
        >>> round(tightness([1.0, 0.5, 0.25], DescentConstraints(num_layers=2, alpha=0.5)), 6)
        1.0
    """
    F = np.asarray(losses, dtype=np.float64)
    first, last = F[constraints.nodes[0]], F[constraints.nodes[-1]]
    if last <= 0 or last >= first:
        return None
    return float(np.log1p(-np.asarray(constraints.steps)).sum() / np.log(last / first))


@dataclass(frozen=True)
class Flag:
    """A suspicion: its name, the layers it is about, and one sentence with the numbers."""

    name: str
    layers: tuple[int, ...]
    sentence: str

    @property
    def text(self) -> str:
        """The suspicion as it stands among other sentences."""
        return f"{self.name.capitalize()}: {self.sentence}."


def find_flags(
    losses: ArrayLike,
    constraints: DescentConstraints,
    constant: ArrayLike,
    *,
    erm: ArrayLike | None = None,
    calibrated: ArrayLike | None = None,
    lambda_share: Sequence[float] | None = None,
) -> list[Flag]:
    """The suspicions that a profile raises, in a fixed order; none for an honest descent.

    Args:
        losses: Per-sample layer losses (N, L+1).
        constraints: What was asked for.
        constant: Per-sample losses (N,) of the best constant predictor.
        erm: Per-sample layer losses (N, L+1) of the ERM twin on the same samples, where there is one.
        calibrated: Mean layer losses (L+1,) after calibration, where it was possible.
        lambda_share: For every constraint the share of training steps with lambda > 0, where it is known.

    Returns:
        Flags named "inflated", "vacuous start", "scale only", "cliff", "slack alpha".

    Example:
        >>> losses = np.random.default_rng(0).normal([0.69, 0.5, 0.4], 0.01, size=(100, 3))
        >>> find_flags(losses, DescentConstraints(num_layers=2, alpha=0.1), np.full(100, 0.6931))
        []
    """
    samples, reference = np.asarray(losses, dtype=np.float64), np.asarray(constant, dtype=np.float64)
    means = samples.mean(axis=0)
    found = (
        _inflated(samples, reference, None if erm is None else np.asarray(erm, dtype=np.float64)),
        _vacuous_start(means, float(reference.mean()), constraints),
        _scale_only(means, calibrated, constraints),
        _cliff(means),
        _slack_alpha(means, constraints, lambda_share),
    )
    return [flag for flag in found if flag is not None]


def _inflated(samples: Array, constant: Array, erm: Array | None) -> Flag | None:
    means = samples.mean(axis=0)
    excess = inflation(means, constant, None if erm is None else erm.mean(axis=0))
    references = np.repeat(constant[:, None], samples.shape[1], axis=1)
    if erm is not None:
        references = np.where(erm.mean(axis=0) < constant.mean(), erm, references)
    lowest = -simultaneous_upper_bounds(references - samples)
    large = (excess > INFLATION_SHARE * constant.mean()) & (lowest > 0)
    layers = tuple(int(layer) for layer in np.flatnonzero(large[:-1]))
    if not layers:
        return None
    worst = max(layers, key=lambda layer: excess[layer])
    against = "a constant prediction or the ERM twin" if erm is not None else "a constant prediction"
    lose = "loses" if len(layers) == 1 else "lose"
    return Flag(
        "inflated",
        layers,
        f"{layers_in_words(layers)} {lose} more than {against} does: layer {worst} by {excess[worst]:.3g} "
        f"(F_{worst} = {means[worst]:.3g}; constant prediction {constant.mean():.3g})",
    )


def _vacuous_start(means: Array, constant: float, constraints: DescentConstraints) -> Flag | None:
    first, second = constraints.nodes[:2]
    met = _violations(means, constraints)[0] <= 0
    if not (means[first] > (1 + VACUOUS_SHARE) * constant and met and means[second] > constant):
        return None
    return Flag(
        "vacuous start",
        (first, second),
        f"layer {second} meets its constraint only because layer {first} is so bad: F_{first} = {means[first]:.3g} and "
        f"F_{second} = {means[second]:.3g}, while a constant prediction has {constant:.3g}",
    )


def _scale_only(means: Array, calibrated: ArrayLike | None, constraints: DescentConstraints) -> Flag | None:
    if calibrated is None or rises(means, constraints.nodes):
        return None
    layers = rises(np.asarray(calibrated), constraints.nodes, CALIBRATED_FALL)
    if not layers:
        return None
    return Flag(
        "scale only",
        layers,
        f"the loss falls at {every_layer(constraints.nodes, constraints.num_layers)}, but after calibrating each "
        f"layer it does not fall at {layers_in_words(layers)}: there outputs change in scale, not in what they know",
    )


def _cliff(means: Array) -> Flag | None:
    shares = log_share(means)
    if shares is None or len(shares) < CLIFF_LAYERS or shares[-1] <= CLIFF_SHARE:
        return None
    last = len(shares)
    return Flag(
        "cliff",
        (last,),
        f"layer {last} alone makes {100 * shares[-1]:.0f} % of the descent from F_0 = {means[0]:.3g} to "
        f"F_{last} = {means[-1]:.3g}; F_{last - 1} is still {means[-2]:.3g}",
    )


def _slack_alpha(means: Array, constraints: DescentConstraints, lambda_share: Sequence[float] | None) -> Flag | None:
    part = tightness(means, constraints)
    reasons = []
    if (_violations(means, constraints) <= 0).all() and part is not None and part < SLACK_TIGHTNESS:
        reasons.append(f"they ask for {100 * part:.0f} % of the descent that is there")
    if lambda_share is not None and max(lambda_share) == 0:
        reasons.append("no multiplier was ever above 0")
    if not reasons:
        return None
    return Flag("slack alpha", constraints.nodes[1:], f"the constraints hardly bind: {' and '.join(reasons)}")


def _violations(means: Array, constraints: DescentConstraints) -> Array:
    return constraints.violations(torch.from_numpy(means)).numpy()
