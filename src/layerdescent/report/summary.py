"""Numbers of several runs brought together: means over seeds with their range, pure functions of `Results`."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from layerdescent.noise_kinds import replaced_units
from layerdescent.report.results import (
    Area,
    Difference,
    FramesPaired,
    FrameValues,
    FrontierPoint,
    NoiseValue,
    Paired,
    Results,
    Run,
    ShiftPaired,
    Trivial,
)


class NoiseAxis(NamedTuple):
    """One kind of noise and what its levels are: `gamma`, or the share of replaced tokens."""

    kind: str
    by_share: bool


Family = Literal["training", "weight decay", "label smoothing", "width"]


class Variant(NamedTuple):
    """A run of the frontier: the baseline itself, read along its training, or with one setting changed."""

    family: Family
    value: float

    @property
    def text(self) -> str:
        """The run as a legend names it."""
        return "along training" if self.family == "training" else f"{self.family} {self.value:g}"


class Condition(NamedTuple):
    """One noise: its kind and its level, `gamma` or the share of replaced tokens."""

    kind: str
    level: float
    by_share: bool

    def lies_on(self, axis: NoiseAxis) -> bool:
        """Whether this is a level of one axis; no noise is a level of all."""
        return self.kind == "none" or (self.kind, self.by_share) == axis

    @property
    def text(self) -> str:
        """The condition as a reader would say it."""
        if self.kind == "none":
            return "no noise"
        if not self.by_share:
            return f"{self.kind}, γ = {self.level:g}"
        return f"{self.kind}, {100 * self.level:g} % of {replaced_units(self.kind)}"


def condition_of(row: NoiseValue | Paired | Trivial | FrontierPoint | FrameValues | FramesPaired) -> Condition:
    """The noise a row was measured under; a share, where there is one, is its level."""
    kind = row.kind or "none"
    if kind == "none":
        return CLEAN
    if row.share is not None:
        return Condition(kind, row.share, True)
    return Condition(kind, row.gamma or 0.0, False)


CLEAN = Condition("none", 0.0, False)


def base_condition(results: Results) -> Condition:
    """What *in distribution* means: no noise, or the noise that the models met in training."""
    return CLEAN if results.base is None else Condition(results.base.kind, results.base.gamma, False)


@dataclass(frozen=True)
class Band:
    """A line with a range around it: sorted positions, means, and the low and high ends (None without a range)."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] | None
    high: tuple[float, ...] | None


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return sum(values) / len(values)


def _band(samples: Mapping[float, list[float]], with_range: bool) -> Band:
    x = tuple(sorted(samples))
    return Band(
        x,
        tuple(mean(samples[at]) for at in x),
        tuple(min(samples[at]) for at in x) if with_range else None,
        tuple(max(samples[at]) for at in x) if with_range else None,
    )


def layer_band(results: Results, arm: str, split: str = "test") -> Band:
    """Loss per layer of one arm: mean and min–max over seeds; with one seed the stored interval over units, if any."""
    runs = [run for run in results.runs_of(arm) if run.layer_losses.get(split)]
    samples: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        for layer, loss in run.by_layer(run.layer_losses[split]).items():
            samples[layer].append(loss)
    band = _band(samples, with_range=len(runs) > 1)
    if len(runs) == 1 and (intervals := runs[0].layer_losses_ci95.get(split)):
        by_layer = dict(zip(runs[0].layers, intervals, strict=True))
        known = {at: interval for at in band.x if (interval := by_layer.get(int(at))) is not None}
        if len(known) == len(band.x):
            return Band(band.x, band.mean, tuple(known[at][0] for at in band.x), tuple(known[at][1] for at in band.x))
    return band


def layer_means(results: Results, arm: str, values_of: Callable[[Run], list[float | None] | None]) -> dict[int, float]:
    """Any per-layer quantity of one arm, averaged over the seeds that have it."""
    samples: dict[int, list[float]] = defaultdict(list)
    for run in results.runs_of(arm):
        for layer, value in run.by_layer(values_of(run)).items():
            samples[layer].append(value)
    return {layer: mean(samples[layer]) for layer in sorted(samples)}


def noise_values(results: Results, arm: str) -> dict[Condition, list[float]]:
    """The metric of one arm under each noise, one value a seed (draws of the same noise averaged first)."""
    found: dict[Condition, list[float]] = defaultdict(list)
    for run in results.runs_of(arm):
        draws: dict[Condition, list[float]] = defaultdict(list)
        for row in run.noise:
            if row.value is not None:
                draws[condition_of(row)].append(row.value)
        for condition, values in draws.items():
            found[condition].append(mean(values))
    return dict(found)


def nats(results: Results, arm: str, *, calibrated: bool) -> dict[Condition, list[float]]:
    """The loss of one arm in nats a token under each noise, as trained or after one temperature, one value a seed."""
    found: dict[Condition, list[float]] = defaultdict(list)
    for run in results.runs_of(arm):
        for row in run.noise:
            value = row.loss_calibrated if calibrated else row.loss
            if value is not None:
                found[condition_of(row)].append(value)
    return dict(found)


def noise_band(results: Results, arm: str, axis: NoiseAxis) -> Band:
    """The metric of one arm along one axis of noise, from the least on; min–max over seeds."""
    values = noise_values(results, arm)
    samples = {condition.level: found for condition, found in values.items() if condition.lies_on(axis)}
    if all(condition.kind == "none" for condition in values if condition.lies_on(axis)):
        samples = {}
    return _band(samples, with_range=len(results.runs_of(arm)) > 1)


def conditions(results: Results) -> list[Condition]:
    """Every noise anything was measured under: in distribution first, then kind by kind, weak to strong."""
    found = {condition_of(row) for run in results.runs for row in run.noise} | {
        condition_of(row) for row in results.paired
    }
    order = {kind: place for place, kind in enumerate(("gaussian", "uniform", "discrete"))}
    first = base_condition(results)
    return sorted(
        found, key=lambda one: (one != first, order.get(one.kind, len(order)), one.kind, one.by_share, one.level)
    )


def noise_axes(results: Results) -> list[NoiseAxis]:
    """The kinds of noise measured, each with what its level is."""
    return list(dict.fromkeys(NoiseAxis(one.kind, one.by_share) for one in conditions(results) if one.kind != "none"))


def area_text(results: Results, area: Area) -> str:
    """Over which levels an area averages."""
    by_share = any(axis.by_share for axis in noise_axes(results) if axis.kind == area.kind)
    return Condition(area.kind, area.upto or 0.0, by_share).text.replace(",", " up to")


def trivial_values(results: Results, condition: Condition) -> dict[str, float]:
    """What each trivial predictor reaches under one noise."""
    return {
        row.name: row.value
        for row in results.trivial
        if row.value is not None and (row.kind is None or condition_of(row) == condition)
    }


def best_trivial(results: Results, condition: Condition) -> tuple[str, float] | None:
    """The best trivial predictor under one noise, with its value."""
    values = trivial_values(results, condition)
    if not values:
        return None
    name = (min if results.lower_is_better else max)(values, key=lambda one: values[one])
    return name, values[name]


def clipped(results: Results) -> Results | None:
    """The same comparison with the outputs clipped to [0, 1]; None where that was not measured."""
    if not any(row.value_clipped is not None for run in results.runs for row in run.noise):
        return None

    def inside(row: Any) -> Any:
        """A row whose values are those of clipped outputs."""
        found: dict[str, Any] = {}
        for name in ("value", "in_distribution"):
            if hasattr(row, f"{name}_clipped"):
                found[name] = getattr(row, f"{name}_clipped")
        if hasattr(row, "clipped"):
            difference = row.clipped
            found |= {name: getattr(difference, name, None) for name in ("difference", "ci95")}
        return row.model_copy(update=found)

    parts = {name: [inside(row) for row in getattr(results, name)] for name in ("paired", "auc", "trivial", "frontier")}
    runs = [run.model_copy(update={"noise": [inside(row) for row in run.noise]}) for run in results.runs]
    return results.model_copy(update=parts | {"runs": runs})


def constant_loss(results: Results) -> float | None:
    """The loss of the best constant predictor (for cross entropy the label entropy), if it was stored."""
    if results.constant_loss is not None:
        return results.constant_loss
    stored = [run.constant_loss for run in results.runs if run.constant_loss is not None]
    return mean(stored) if stored else None


def loss_digits(results: Results) -> int:
    """Decimals that show the smallest loss to two digits at least: losses of regressions can be small."""
    losses = [abs(loss) for run in results.runs for loss in run.layer_losses.get("test") or [] if loss]
    return max(3, 1 - math.floor(math.log10(min(losses)))) if losses else 3


def sign(row: Paired | Area | ShiftPaired | Difference, lower_is_better: bool) -> int:
    """1 where the interval of a paired difference says better, -1 where it says worse, 0 where it includes 0."""
    if row.ci95 is None or row.ci95[0] <= 0 <= row.ci95[1]:
        return 0
    return 1 if (row.ci95[0] > 0) != lower_is_better else -1


def shift_losses(results: Results, arm: str, name: str) -> dict[int, float]:
    """Mean loss per layer of one arm on another data set, over the seeds that have it."""
    by_seed = {run.seed: run for run in results.runs_of(arm)}
    samples: dict[int, list[float]] = defaultdict(list)
    for shifted in results.shift.runs:
        if (shifted.arm, shifted.data) == (arm, name) and shifted.seed in by_seed:
            for layer, loss in by_seed[shifted.seed].by_layer(shifted.layer_losses).items():
                samples[layer].append(loss)
    return {layer: mean(samples[layer]) for layer in sorted(samples)}


def frontier_variants(results: Results) -> dict[Variant, list[FrontierPoint]]:
    """The measured points of the frontier by the run they are of, the baseline's own first, each along training."""
    settings = results.arms.get(results.baseline) or {}
    own = [settings.get(field) or 0.0 for field in ("weight_decay", "label_smoothing_factor")]
    found: dict[Variant, list[FrontierPoint]] = {}
    for point in sorted(results.frontier, key=lambda point: point.step or 0):
        decay, smoothing = point.weight_decay or 0.0, point.label_smoothing or 0.0
        if point.width is not None:
            variant = Variant("width", point.width)
        elif smoothing != own[1]:
            variant = Variant("label smoothing", smoothing)
        else:
            variant = Variant("training" if decay == own[0] else "weight decay", decay)
        if point.in_distribution is not None and point.value is not None:
            found.setdefault(variant, []).append(point)
    order = get_args(Family)
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0].family), item[0].value)))


def beyond_frontier(results: Results, arm: str) -> dict[Condition, bool]:
    """Per noise of the frontier: whether no checkpoint of it is at least as good as this arm both clean and noisy."""
    values = noise_values(results, arm)
    clean = values.get(base_condition(results))
    turn = -1.0 if results.lower_is_better else 1.0
    answer: dict[Condition, bool] = {}
    for condition in dict.fromkeys(condition_of(point) for point in results.frontier):
        if clean is None or condition not in values:
            continue
        x, y = turn * mean(clean), turn * mean(values[condition])
        answer[condition] = not any(
            turn * point.in_distribution >= x and turn * point.value >= y
            for point in results.frontier
            if condition_of(point) == condition and point.in_distribution is not None and point.value is not None
        )
    return answer
