"""What a robustness sweep says: values under noise, paired differences, areas, and trivial predictors beside them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerdescent.evaluation.batches import Kind
from layerdescent.readout import ProblemType
from layerdescent.statistics import (
    by_count,
    by_group,
    paired_difference,
    paired_exponential_difference,
    paired_root_difference,
)
from layerdescent.tables import condition

Array = NDArray[np.float64]
Key = tuple[str, int]


@dataclass(frozen=True)
class Setting:
    """One point of a sweep: a kind of noise and its level, `share` for discrete noise (with the `gamma` it took)."""

    kind: str
    gamma: float
    share: float | None = None

    @property
    def level(self) -> float:
        """Where the setting stands on its kind's axis: the share of replaced tokens for discrete noise, else gamma."""
        return self.gamma if self.share is None else self.share

    def to_dict(self) -> dict[str, Any]:
        """The setting as the fields of a results file."""
        return {"kind": self.kind, "gamma": self.gamma, "share": self.share}


CLEAN = Setting("none", 0.0)


@dataclass(frozen=True, eq=False)
class Measurement:
    """One model under one setting: per unit the value (1 where right, squared error for regression) and last loss.

    Of a model that restores pixels also the squared error of its output clipped to [0, 1]. Of a language model the
    value is the mean nats of a token, there may be that after one temperature, and losses of layers not read are NaN.
    """

    values: NDArray[np.float32]  # (N,)
    losses: NDArray[np.float32]  # (N,)
    layer_losses: Array  # (L+1,) means over the units
    realised_share: float | None
    clipped: NDArray[np.float32] | None = None  # (N,)
    calibrated: NDArray[np.float32] | None = None  # (N,)
    temperature: NDArray[np.float64] | None = None  # (1,)

    @staticmethod
    def average(parts: "Sequence[Measurement]") -> "Measurement":
        """The mean over noise seeds: they are further draws for the same units, not further units."""
        shares = [part.realised_share for part in parts if part.realised_share is not None]
        clipped = [part.clipped for part in parts if part.clipped is not None]
        calibrated = [part.calibrated for part in parts if part.calibrated is not None]
        temperatures = [part.temperature for part in parts if part.temperature is not None]
        return Measurement(
            np.mean([part.values for part in parts], axis=0, dtype=np.float32),
            np.mean([part.losses for part in parts], axis=0, dtype=np.float32),
            np.mean([part.layer_losses for part in parts], axis=0),
            float(np.mean(shares)) if shares else None,
            np.mean(clipped, axis=0, dtype=np.float32) if clipped else None,
            np.mean(calibrated, axis=0, dtype=np.float32) if calibrated else None,
            np.mean(temperatures, axis=0) if temperatures else None,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepResult:
    """The measurements of all models under all settings, on the same units and under the same noise.

    Attributes:
        kind: The heads' problem type; the metric is accuracy, rmse for regression, perplexity of language models.
        settings: The settings; the first one is what models meet in training, clean unless they are denoisers.
        measurements: For every (arm, seed) one measurement a setting.
        baseline: The arm that the others are compared with; None for none.
        trivial: For every setting the per-unit values of predictors that have learned nothing.
        noise_seeds: The seeds that every noisy setting is averaged over.
        bf16: Whether the forward passes ran in bfloat16.
        noisy_units: Positions of the units that all but the first setting were measured on; None for all N.
        groups: (N,) the independent unit that each one belongs to, such as a clip; None where each stands for itself.
        trivial_clipped: As `trivial`, of outputs clipped to [0, 1]; those that have such.
        counts: (N,) how often each unit counts, of texts their numbers of tokens; None where each counts once.
    """

    kind: Kind
    settings: Sequence[Setting]
    measurements: Mapping[Key, Sequence[Measurement]]
    baseline: str | None
    trivial: Mapping[str, Sequence[NDArray[np.float32]]]
    noise_seeds: Sequence[int]
    bf16: bool = False
    noisy_units: NDArray[np.int64] | None = None
    groups: NDArray[np.int64] | None = None
    trivial_clipped: Mapping[str, Sequence[NDArray[np.float32]]] = field(default_factory=dict)
    counts: NDArray[np.int64] | None = None

    @property
    def restores_pixels(self) -> bool:
        """Whether the models give pixels, so that every value is there for clipped outputs too."""
        return all(found.clipped is not None for row in self.measurements.values() for found in row)

    @property
    def metric(self) -> Literal["accuracy", "rmse", "perplexity"]:
        """What the values are."""
        if self.kind == "next_token":
            return "perplexity"
        return "rmse" if self.kind == "regression" else "accuracy"

    def _value(self, values: NDArray[Any]) -> float:
        """The metric of per-unit values: their mean, its root of squared errors, its exponential of nats."""
        mean = float(np.mean(values, dtype=np.float64))
        if self.metric == "perplexity":
            return math.exp(mean)
        return math.sqrt(mean) if self.metric == "rmse" else mean

    def _weighted(self, values: NDArray[Any], setting: int, of: Any = slice(None)) -> NDArray[Any]:
        """Per-unit values (…, N) of a setting, or of some units, as a mean takes them: as often as each counts."""
        if self.counts is None:
            return values[..., of]
        counts = self.counts if setting == 0 or self.noisy_units is None else self.counts[self.noisy_units]
        return by_count(values[..., of], counts[of])

    def _against(
        self, arm: str, against: str, values_of: Callable[..., NDArray[Any]], groups: NDArray[Any] | None
    ) -> dict[str, Any]:
        """Two arms' paired difference, and inside it that of their clipped outputs where there is one."""
        found = self._paired(values_of(arm), values_of(against), groups)
        if self.restores_pixels:
            inside = self._paired(values_of(arm, clipped=True), values_of(against, clipped=True), groups)
            found["clipped"] = {name: inside[name] for name in ("difference", "ci95")}
        if self.metric == "perplexity":
            found["nats"] = self._in_nats(values_of(arm), values_of(against), groups)
            if self.is_calibrated:
                pair = values_of(arm, calibrated=True), values_of(against, calibrated=True)
                found["calibrated"] = {
                    **{name: self._paired(*pair, groups)[name] for name in ("difference", "ci95")},
                    "nats": self._in_nats(*pair, groups),
                }
        return found

    def _in_nats(self, values: NDArray[Any], against: NDArray[Any], groups: NDArray[Any] | None) -> dict[str, Any]:
        fields = paired_difference(by_group(values, groups), by_group(against, groups)).to_dict()
        return {"difference": fields["value"], "ci95": fields["ci95"]}

    @property
    def is_calibrated(self) -> bool:
        """Whether every value is there after one temperature too."""
        return all(found.calibrated is not None for row in self.measurements.values() for found in row)

    def _paired(self, values: NDArray[Any], against: NDArray[Any], groups: NDArray[Any] | None) -> dict[str, Any]:
        """The paired difference of the metric, with its interval."""
        estimates = {"rmse": paired_root_difference, "perplexity": paired_exponential_difference}
        estimate = estimates.get(self.metric, paired_difference)
        fields = estimate(by_group(values, groups), by_group(against, groups)).to_dict()
        return {"difference": fields.pop("value")} | fields

    @property
    def arms(self) -> list[str]:
        """The arms, in the order given."""
        return list(dict.fromkeys(arm for arm, _ in self.measurements))

    def seeds(self, arm: str) -> list[int]:
        """The seeds of an arm."""
        return sorted(seed for name, seed in self.measurements if name == arm)

    def values(
        self,
        arm: str,
        setting: int,
        seeds: Sequence[int] | None = None,
        *,
        clipped: bool = False,
        calibrated: bool = False,
        of: Any = slice(None),
    ) -> NDArray[Any]:
        """The per-unit values (S, N) of an arm under the setting of that position; their mean is what is compared.

        If asked, of clipped outputs, or after one temperature.
        """
        found = [self.measurements[arm, seed][setting] for seed in seeds or self.seeds(arm)]
        rows = [one.clipped if clipped else one.calibrated if calibrated else one.values for one in found]
        return self._weighted(np.stack([row for row in rows if row is not None]), setting, of)

    def _groups(self, setting: int) -> NDArray[np.int64] | None:
        """The groups of the units that a setting was measured on."""
        if self.groups is None or setting == 0 or self.noisy_units is None:
            return self.groups
        return self.groups[self.noisy_units]

    def noise(self, arm: str, seed: int) -> list[dict[str, Any]]:
        """One model's values under every setting, as the `noise` list of a results file."""
        rows = []
        for place, (setting, found) in enumerate(zip(self.settings, self.measurements[arm, seed], strict=True)):
            row = setting.to_dict() | {
                "value": self._value(self._weighted(found.values, place)),
                "loss": float(self._weighted(found.losses, place).mean(dtype=np.float64)),
                "layer_losses": [None if math.isnan(loss) else loss for loss in found.layer_losses.tolist()],
                "realised_share": found.realised_share,
            }
            if found.clipped is not None:
                row["value_clipped"] = self._value(found.clipped)
            if found.calibrated is not None and found.temperature is not None:
                nats = self._weighted(found.calibrated, place)
                row |= {"value_calibrated": self._value(nats), "loss_calibrated": float(nats.mean())}
                row["temperature"] = float(found.temperature[0])
            rows.append(row)
        return rows

    def paired(self) -> list[dict[str, Any]]:
        """Every arm against the baseline under every setting, paired over the seeds that both have and over units."""
        return [
            {"arm": arm, "against": against}
            | setting.to_dict()
            | self._against(arm, against, partial(self.values, setting=place, seeds=seeds), self._groups(place))
            for arm, against, seeds in self._pairs()
            for place, setting in enumerate(self.settings)
        ]

    def areas(self) -> list[dict[str, Any]]:
        """For every arm and kind the normalised area under its value-level curve, and its paired difference.

            area = integral from level_min to level_max / (level_max - level_min), by the trapezoidal rule, unit by unit

        so that it is a mean value over noise levels, 1 for a model that is always right; level_min is 0 where clean
        inputs were measured. A kind with one level has no area. The root of squared errors is
        taken last.
        """
        pairs = {arm: (against, seeds) for arm, against, seeds in self._pairs()}
        found = []
        for kind in dict.fromkeys(setting.kind for setting in self.settings[1:]):
            if len(self._axis(kind)[0]) < 2:
                continue
            for arm in self.arms:
                areas = partial(self._area, kind=kind)
                entry = {"arm": arm, "kind": kind, "upto": self._axis(kind)[1][-1], "value": self._value(areas(arm))}
                if self.restores_pixels:
                    entry["value_clipped"] = self._value(areas(arm, clipped=True))
                if arm in pairs:
                    against, seeds = pairs[arm]
                    difference = self._against(arm, against, partial(areas, seeds=seeds), self._groups(1))
                    entry |= {"against": against} | difference
                found.append(entry)
        return found

    def trivial_values(self) -> list[dict[str, Any]]:
        """The trivial predictors under every setting."""
        return [
            {"name": name}
            | setting.to_dict()
            | {"value": self._value(self._weighted(values[place], place))}
            | ({"value_clipped": self._value(clipped[place])} if (clipped := self.trivial_clipped.get(name)) else {})
            for name, values in self.trivial.items()
            for place, setting in enumerate(self.settings)
        ]

    def beaten_by_trivial(self) -> list[str]:
        """One sentence for every setting under which a trivial predictor is at least as good as every arm."""
        sentences = []
        for clipped, predictors in enumerate((self.trivial, self.trivial_clipped if self.restores_pixels else {})):
            for name, trivial in predictors.items():
                for place, setting in enumerate(self.settings):
                    bar = self._value(self._weighted(trivial[place], place) if not clipped else trivial[place])
                    scores = [self._value(self.values(arm, place, clipped=bool(clipped))) for arm in self.arms]
                    lower = self.metric != "accuracy"
                    best = min(scores) if lower else max(scores)
                    if (best >= bar) if lower else (best <= bar):
                        unusable = name == "unigram model"
                        sentences.append(
                            f"{condition(setting.to_dict())}{', clipped' if clipped else ''}: no arm beats the trivial "
                            f"predictor {name!r} ({self.metric} {bar:.3g}; the best arm has {best:.3g})"
                            f"{': all are unusable there' if unusable else ''}."
                        )
        return sentences

    def to_dict(self) -> dict[str, Any]:
        """The sweep as JSON-able fields: `runs` with their `noise`, `paired`, `auc`, `trivial`."""
        n_units = len(next(iter(self.measurements.values()))[0].values)
        return {
            "metric": self.metric,
            "baseline": self.baseline,
            "noise_seeds": list(self.noise_seeds),
            "bf16": self.bf16,
            "n_units": n_units,
            "n_noisy_units": n_units if self.noisy_units is None else len(self.noisy_units),
            "runs": [{"arm": arm, "seed": seed, "noise": self.noise(arm, seed)} for arm, seed in self.measurements],
            "paired": self.paired(),
            "auc": self.areas(),
            "trivial": self.trivial_values(),
            "sentences": self.beaten_by_trivial(),
        }

    def _pairs(self) -> list[tuple[str, str, list[int]]]:
        """Every arm but the baseline, with the baseline and the seeds that both have."""
        if self.baseline is None:
            return []
        return [
            (arm, self.baseline, seeds)
            for arm in self.arms
            if arm != self.baseline and (seeds := common_seeds(self.seeds(arm), self.seeds(self.baseline)))
        ]

    def _axis(self, kind: str) -> tuple[list[int], list[float]]:
        """The positions and levels of the settings on a kind's axis, from clean upwards where that was measured."""
        places = [place for place, setting in enumerate(self.settings) if setting == CLEAN or setting.kind == kind]
        places.sort(key=lambda place: self.settings[place].level)
        return places, [self.settings[place].level for place in places]

    def _area(
        self,
        arm: str,
        kind: str,
        seeds: Sequence[int] | None = None,
        *,
        clipped: bool = False,
        calibrated: bool = False,
    ) -> Array:
        """Normalised areas (S, N) of the units that noise was measured on."""
        places, levels = self._axis(kind)
        of_all = slice(None) if self.noisy_units is None else self.noisy_units
        curves = [
            self.values(
                arm, place, seeds, clipped=clipped, calibrated=calibrated, of=of_all if place == 0 else slice(None)
            )
            for place in places
        ]
        area = np.trapezoid(np.stack(curves).astype(np.float64), levels, axis=0)
        return np.asarray(area / (levels[-1] - levels[0]))


def common_seeds(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """The seeds in both, in order."""
    return sorted(set(first) & set(second))


def trivial_predictors(labels: ArrayLike, kind: ProblemType, train_labels: ArrayLike | None) -> dict[str, Any]:
    """Per-unit values (N,) of the predictor that always says what is most usual among the training labels.

    Args:
        labels: The labels to predict.
        kind: The problem type.
        train_labels: The training labels; None takes `labels` themselves, which favours the trivial predictor.

    Returns:
        `{"majority": 1 where right}`, or `{"mean": squared error}` for regression.

    Example:
        >>> trivial_predictors([0, 1, 1, 1], "single_label_classification", train_labels=[0, 0, 1])["majority"].tolist()
        [1.0, 0.0, 0.0, 0.0]
    """
    y = np.asarray(labels)
    known = y if train_labels is None else np.asarray(train_labels)
    if kind == "single_label_classification":
        return {"majority": (y == np.bincount(known).argmax()).astype(np.float32)}
    if kind == "multi_label_classification":
        usual = known.mean(axis=0) > 0.5
        return {"majority": ((y > 0.5) == usual).all(axis=-1).astype(np.float32)}
    squared = ((y - known.mean(axis=0)) ** 2).reshape(len(y), -1)
    return {"mean": squared.mean(axis=1).astype(np.float32)}
