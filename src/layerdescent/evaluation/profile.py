"""The descent profile: what every layer of a checkpoint does to the loss, in numbers and in words."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import nn
from tqdm import tqdm

from layerdescent.arrays import read_arrays, write_arrays
from layerdescent.descent import DescentConstraints, feasible, monotone, shown
from layerdescent.errors import InputError, RunError
from layerdescent.evaluation.batches import (
    Kind,
    ModelOrPath,
    Rows,
    correctness,
    labels_of,
    layer_outputs,
    length_sorted,
    load_model,
    load_tokenizer,
    one_group_a_row,
    problem_type,
)
from layerdescent.evaluation.diagnostics import (
    Calibration,
    Flag,
    constant_predictor_losses,
    find_flags,
    fit_calibration,
    inflation,
    log_share,
    tightness,
)
from layerdescent.evaluation.texts import (
    INVERSE_TEMPERATURES,
    best_unigram_losses,
    fit_inverse_temperatures,
    text_losses,
    token_counts,
)
from layerdescent.layers import CALIBRATED_FALL, every_layer, layers_in_words, rises
from layerdescent.perturbation import Perturbation
from layerdescent.readout import Readout
from layerdescent.statistics import by_count, by_group, mean_intervals, method_name, simultaneous_upper_bounds

Array = NDArray[np.float64]
CONFIDENCE = 0.95

_ARRAYS = ("layer_losses", "labels", "correct", "calibrated_layer_losses", "erm_layer_losses", "groups", "constants")


@dataclass(frozen=True, kw_only=True, eq=False)
class DescentProfile:
    """Per-sample layer losses of one checkpoint on one data set, and everything that follows from them.

    Attributes:
        layer_losses: (N, L+1) float32, in the order of the data; column l is read from the output of layer l.
        labels: (N,) or (N, K); of a language model, how many tokens of each text count: then the layer losses are means
            over these, and every mean over texts counts each as often.
        kind: The head's problem type.
        constraints: What the words *feasible* and *shown* are measured against.
        correct: (N, L+1) bool, None for regression.
        calibration: The line fitted to each layer on validation data, None where none was given.
        calibrated_layer_losses: (N, L+1) after it.
        erm_layer_losses: (N, L+1) of the paired ERM run on the same samples, None where none was given.
        lambda_share: For every constraint the share of training steps with lambda > 0, None where unknown.
        perturbation: The noise on the inputs, None when clean.
        groups: (N,) integers, the independent unit that each sample belongs to, such as its clip: intervals, bounds and
            flags treat these as the units; None where each sample stands for itself.
        constants: (N,) the losses of the best constant predictor, where the labels do not say; None where they do.
    """

    layer_losses: NDArray[np.float32]
    labels: NDArray[Any]
    kind: Kind
    constraints: DescentConstraints
    correct: NDArray[np.bool_] | None = None
    calibration: Calibration | None = None
    calibrated_layer_losses: NDArray[np.float32] | None = None
    erm_layer_losses: NDArray[np.float32] | None = None
    lambda_share: tuple[float, ...] | None = None
    perturbation: Mapping[str, Any] | None = None
    groups: NDArray[np.int64] | None = None
    constants: NDArray[np.float32] | None = None

    @property
    def _counts(self) -> NDArray[Any] | None:
        return self.labels if self.kind == "next_token" else None

    def _by_unit(self, samples: NDArray[Any]) -> Array:
        """Per-sample values (N, …) as values of the independent units, with the same means."""
        return by_group(by_count(samples.T, self._counts), self.groups).T

    def _mean(self, samples: NDArray[Any]) -> Array:
        """The mean of per-sample values (N, …), each as often as it counts."""
        return np.average(samples.astype(np.float64), axis=0, weights=self._counts)

    @cached_property
    def unit_losses(self) -> Array:
        """The layer losses of the independent units, (N, L+1) or one row a group; their means are F_0 … F_L."""
        return self._by_unit(self.layer_losses)

    @cached_property
    def mean_losses(self) -> Array:
        """F_0 … F_L, the mean layer losses (L+1,)."""
        return self._mean(self.layer_losses)

    @cached_property
    def intervals(self) -> Array:
        """The 95 % interval of every mean layer loss over the units, (L+1, 2)."""
        return mean_intervals(self.unit_losses, confidence=CONFIDENCE)[1]

    @cached_property
    def accuracies(self) -> Array | None:
        """The accuracy of every layer, (L+1,); None for regression."""
        return None if self.correct is None else self.correct.mean(axis=0)

    @cached_property
    def violations(self) -> Array:
        """c, one for each constraint, in the units of the loss; met where c <= 0."""
        return self.constraints.violations(torch.from_numpy(self.mean_losses)).numpy()

    @cached_property
    def relative_violations(self) -> Array:
        """c_l / F_{l-1}, one for each constraint."""
        return self.constraints.relative_violations(torch.from_numpy(self.mean_losses)).numpy()

    @cached_property
    def verdict(self) -> dict[str, bool | None]:
        """The four words: monotone, feasible, shown and calibrated (None where there was nothing to calibrate on)."""
        nodes = list(self.constraints.nodes)
        calibrated = self.calibrated_losses
        return {
            "monotone": monotone(self.mean_losses[nodes]),
            "feasible": feasible(self.mean_losses, self.constraints),
            "shown": shown(self.unit_losses, self.constraints, confidence=CONFIDENCE),
            "calibrated": None if calibrated is None else not rises(calibrated, nodes, CALIBRATED_FALL),
        }

    @cached_property
    def unshown_descent(self) -> tuple[int, ...]:
        """The nodes at which even F_l < F_{l-1} (alpha = 0) is not shown at 95 %, all nodes together."""
        return _unshown(self.unit_losses, self.constraints.nodes)

    @cached_property
    def share_descending(self) -> float:
        """The share of samples whose own loss falls at every node."""
        falls = np.diff(self.layer_losses[:, list(self.constraints.nodes)], axis=1) < 0
        return float(falls.all(axis=1).mean())

    @cached_property
    def constant_losses(self) -> Array:
        """The per-sample losses (N,) of the best constant predictor."""
        if self.kind == "next_token":
            assert self.constants is not None
            return self.constants.astype(np.float64)
        return constant_predictor_losses(self.labels, self.kind)

    @cached_property
    def calibrated_losses(self) -> Array | None:
        """F_0 … F_L after calibration, (L+1,)."""
        samples = self.calibrated_layer_losses
        return None if samples is None else self._mean(samples)

    @cached_property
    def temperatures(self) -> Array | None:
        """The temperature of every layer, (L+1,); None for regression or without validation data."""
        return None if self.calibration is None or self.kind == "regression" else self.calibration.temperatures

    @cached_property
    def inflation(self) -> Array:
        """By how much every layer is worse than it need be, (L+1,); see `diagnostics.inflation`."""
        erm = self.erm_layer_losses
        twin = None if erm is None else self._mean(erm)
        return inflation(self.mean_losses, self._mean(self.constant_losses), twin)

    @cached_property
    def log_share(self) -> Array | None:
        """Every layer's share of log(F_0 / F_L), (L,); None where F_L is not below F_0."""
        return log_share(self.mean_losses)

    @cached_property
    def tightness(self) -> float | None:
        """The share of the descent that the constraints ask for; None where there is no descent."""
        return tightness(self.mean_losses, self.constraints)

    @cached_property
    def flags(self) -> list[Flag]:
        """The suspicions; see `diagnostics.find_flags`."""
        erm = self.erm_layer_losses
        return find_flags(
            self.unit_losses,
            self.constraints,
            self._by_unit(self.constant_losses),
            erm=None if erm is None else self._by_unit(erm),
            calibrated=self.calibrated_losses,
            lambda_share=self.lambda_share,
        )

    def to_dict(self) -> dict[str, Any]:
        """The profile as JSON-able fields, without the per-sample arrays; lists run over layers 0 … L or 1 … L."""
        return {
            "layers": list(range(len(self.mean_losses))),
            "nodes": list(self.constraints.nodes),
            "alpha": list(self.constraints.alphas),
            "n_units": len(self.unit_losses),
            "method": method_name(n_seeds=1),
            "layer_losses": _floats(self.mean_losses),
            "layer_losses_ci95": self.intervals.tolist(),
            "accuracies": _floats(self.accuracies),
            "violations": _floats(self.violations),
            "relative_violations": _floats(self.relative_violations),
            "verdict": self.verdict,
            "constant_loss": float(self._mean(self.constant_losses)),
            "initial_inflation": float(self.inflation[0]),
            "inflation": _floats(self.inflation[1:]),
            "calibrated_losses": _floats(self.calibrated_losses),
            "temperatures": _floats(self.temperatures),
            "log_share": _floats(self.log_share),
            "tightness": self.tightness,
            "lambda_share": None if self.lambda_share is None else list(self.lambda_share),
            "share_descending": self.share_descending,
            "flags": [
                {"name": flag.name, "layers": list(flag.layers), "sentence": flag.sentence} for flag in self.flags
            ],
            "sentences": describe(self),
            "perturbation": None if self.perturbation is None else dict(self.perturbation),
        }

    def save(self, path: str | Path) -> None:
        """Write the profile as one safetensors file with a JSON header, atomically.

        Raises:
            RunError: The file cannot be written.
        """
        arrays: dict[str, NDArray[Any] | None] = {name: getattr(self, name) for name in _ARRAYS}
        if self.calibration is not None:
            arrays |= {"scale": self.calibration.scale, "offset": self.calibration.offset}
        header = {
            "kind": self.kind,
            "constraints": asdict(self.constraints),
            "lambda_share": self.lambda_share,
            "perturbation": None if self.perturbation is None else dict(self.perturbation),
        }
        write_arrays(Path(path), {name: array for name, array in arrays.items() if array is not None}, header)

    @classmethod
    def load(cls, path: str | Path) -> "DescentProfile":
        """Read a profile that `save` wrote.

        Raises:
            RunError: The file is missing or damaged.
        """
        arrays, header = read_arrays(Path(path))
        try:
            line = Calibration(arrays.pop("scale"), arrays.pop("offset")) if "scale" in arrays else None
            share = header["lambda_share"]
            return cls(
                **arrays,
                kind=header["kind"],
                constraints=DescentConstraints(**header["constraints"]),
                calibration=line,
                lambda_share=None if share is None else tuple(share),
                perturbation=header["perturbation"],
            )
        except (KeyError, TypeError, InputError) as error:
            raise RunError(f"{path} is not a descent profile ({error}): evaluate the model again") from None


def descent_profile(
    model: ModelOrPath,
    data: Rows,
    *,
    processing_class: Any = None,
    constraints: DescentConstraints | None = None,
    validation: Rows | None = None,
    erm: DescentProfile | None = None,
    perturbation: Perturbation | None = None,
    groups: ArrayLike | None = None,
    batch_size: int = 32,
    lambda_share: Sequence[float] | None = None,
    progress: bool = True,
) -> DescentProfile:
    """Measure the loss at every layer of a checkpoint on every sample, and look at whether its descent is real.

    In eval mode, without gradients, a batch at a time; equivalent to

        logits = readout.logits(model(**batch, output_hidden_states=True).hidden_states, batch)
        layer_losses[batch] = readout.per_sample_losses(logits, labels).T

    Args:
        model: A model, or the path or hub name of a checkpoint; trained by layerdescent or not.
        data: Rows `{"input_ids", "attention_mask", "labels", …}` or `{"pixel_values", "labels"}`: a list or a Dataset.
            Of a language model the labels are tokens, -100 where no loss is wanted.
        processing_class: The tokenizer, for padding; taken from the checkpoint when a path is given.
        constraints: What to measure against; by default alpha = 0.05 on every layer.
        validation: Rows to fit each layer's temperature on. Without them descent is not checked after calibration.
        erm: The profile of the ERM run of the same seed on the same data, to measure inflation against.
        perturbation: Noise on what the model reads, of the validation rows too.
        groups: The independent unit (N,) that each row belongs to, such as its clip.
        batch_size: Rows in a batch.
        lambda_share: For every constraint the share of training steps with lambda > 0.
        progress: Whether a bar shows how long it still takes.

    Returns:
        The profile.

    Raises:
        InputError: Data, labels, constraints or the ERM profile do not fit the model.
        RunError: The checkpoint is damaged, or a loss is not finite.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> sizes = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=8, vocab_size=50)
        >>> model = BertForSequenceClassification(BertConfig(**sizes))
        >>> rows = [{"input_ids": [2, 5 + i, 3], "attention_mask": [1, 1, 1], "labels": i % 2} for i in range(8)]
        >>> profile = descent_profile(model, rows, progress=False)
        >>> profile.layer_losses.shape, sorted(profile.verdict)
        ((8, 3), ['calibrated', 'feasible', 'monotone', 'shown'])
    """
    tests = length_sorted(data, batch_size)
    tokenizer = load_tokenizer(processing_class, model, data)
    model = load_model(model)
    readout = Readout.for_model(model)
    constraints = _fitting_constraints(constraints, readout.num_layers)
    known_of_all: dict[str, Any] = {
        "constraints": constraints,
        "erm_layer_losses": None if erm is None else erm.layer_losses,
        "lambda_share": None if lambda_share is None else tuple(float(share) for share in lambda_share),
        "perturbation": None if perturbation is None else perturbation.to_dict(),
        "groups": None if groups is None else one_group_a_row(groups, len(data)),
    }
    if readout.reads_tokens:
        _check_pair(erm, (len(data), constraints.num_layers + 1))
        measured = _of_texts(model, readout, data, tests, validation, batch_size, tokenizer, perturbation, progress)
        return DescentProfile(**known_of_all, **measured)
    kind = problem_type(readout, data)
    labels = labels_of(data, kind, readout.model.config.num_labels)
    if (labels == labels[0]).all():
        raise InputError(f"all {len(labels)} rows have the same label: a profile needs at least two different ones")
    shape = (len(data), constraints.num_layers + 1)
    _check_pair(erm, shape)
    fits: list[list[int]] = []
    if validation is not None:
        fits = length_sorted(validation, batch_size)
        known = labels_of(validation, kind, readout.model.config.num_labels)

    losses, calibrated = np.empty(shape, np.float32), np.empty(shape, np.float32)
    correct = np.empty(shape, np.bool_)
    line = None
    with tqdm(total=len(fits) + len(tests), desc="profile", unit="batch", disable=not progress) as bar:
        stream: dict[str, Any] = {"processing_class": tokenizer, "perturbation": perturbation, "bar": bar}
        if validation is not None:
            outputs = list(layer_outputs(model, validation, fits, kind, **stream))
            logits = torch.cat([batch.logits for batch in outputs], dim=1).cpu().numpy()
            order = [index for batch in outputs for index in batch.indices]
            line = fit_calibration(logits, known[order], kind)
        for batch in layer_outputs(model, data, tests, kind, **stream):
            losses[batch.indices] = batch.losses.T.cpu().numpy()
            right = correctness(batch.logits, batch.labels, kind)
            if right is not None:
                correct[batch.indices] = right.T.cpu().numpy()
            if line is not None:
                layerwise = (-1, *(1 for _ in batch.logits.shape[1:]))
                scale, offset = (batch.logits.new_tensor(part).view(layerwise) for part in (line.scale, line.offset))
                better = readout.per_sample_losses(scale * batch.logits + offset, batch.labels)
                calibrated[batch.indices] = better.T.cpu().numpy()
    return DescentProfile(
        layer_losses=losses,
        labels=labels,
        kind=kind,
        correct=None if kind == "regression" else correct,
        calibration=line,
        calibrated_layer_losses=None if line is None else calibrated,
        **known_of_all,
    )


def _check_pair(erm: DescentProfile | None, shape: tuple[int, int]) -> None:
    if erm is not None and erm.layer_losses.shape != shape:
        raise InputError(
            f"the ERM profile has {erm.layer_losses.shape} samples and layers, this one {shape}: pair them"
        )


def _of_texts(
    model: nn.Module,
    readout: Readout,
    data: Rows,
    tests: Sequence[Sequence[int]],
    validation: Rows | None,
    batch_size: int,
    tokenizer: Any,
    perturbation: Perturbation | None,
    progress: bool,
) -> dict[str, Any]:
    """What is measured of a language model: the same, and never the logits of more than a chunk of tokens."""
    counts, layers = token_counts(data), range(readout.num_layers + 1)
    fits = [] if validation is None else length_sorted(validation, batch_size)
    scales = np.ones((len(layers), 1))
    with tqdm(total=len(fits) + len(tests), desc="profile", unit="batch", disable=not progress) as bar:
        stream: dict[str, Any] = {"processing_class": tokenizer, "perturbation": perturbation, "bar": bar}
        if validation is not None:
            token_counts(validation)
            grid = np.tile(INVERSE_TEMPERATURES, (len(layers), 1))
            sums: Any = sum(
                (batch.losses * batch.counts).sum(-1).numpy()
                for batch in text_losses(model, validation, fits, layers=layers, scales=grid, **stream)
            )
            scales = np.stack([scales[:, 0], fit_inverse_temperatures(sums)], axis=1)
        losses = np.empty((len(data), *scales.shape), np.float32)
        for batch in text_losses(model, data, tests, layers=layers, scales=scales, **stream):
            losses[batch.indices] = batch.losses.permute(2, 0, 1).numpy()
    fitted = None if validation is None else Calibration(scales[:, 1], np.zeros(len(layers)))
    return {
        "layer_losses": losses[..., 0],
        "labels": counts,
        "kind": "next_token",
        "calibration": fitted,
        "calibrated_layer_losses": None if fitted is None else losses[..., 1],
        "constants": best_unigram_losses(data, readout.model.config.vocab_size).astype(np.float32),
    }


def describe(profile: DescentProfile) -> list[str]:
    """What holds and what does not, in sentences for a reader who sees no numbers beside them.

    Example:
        >>> losses = np.random.default_rng(0).normal([0.69, 0.5, 0.4], 0.1, size=(400, 3)).astype(np.float32)
        >>> profile = DescentProfile(
        ...     layer_losses=losses,
        ...     labels=np.arange(400) % 2,
        ...     kind="single_label_classification",
        ...     constraints=DescentConstraints(num_layers=2, alpha=0.1),
        ... )
        >>> for sentence in describe(profile):
        ...     print(sentence)
        Every layer lowers the loss by its alpha: shown at 95 % on 400 samples.
        No validation data: calibration not checked.
        Nothing suspicious was found.
    """
    sentences = [_descent_sentence(profile), *_feasibility_sentence(profile), _calibration_sentence(profile)]
    entropy, (low, _) = float(profile._mean(profile.constant_losses)), profile.intervals[0]
    if low > entropy:
        sentences.append(
            f"F_0 = {profile.mean_losses[0]:.3f} lies above the best constant prediction ({entropy:.3f}): "
            "the head is confidently wrong on the initial representation."
        )
    flags = [flag.text for flag in profile.flags]
    return [*sentences, *(flags or ["Nothing suspicious was found."])]


def _descent_sentence(profile: DescentProfile) -> str:
    count, nodes = _count(profile), profile.constraints.nodes
    up = rises(profile.mean_losses, nodes)
    if up:
        return f"The loss does not fall at {layers_in_words(up)}: not monotone on {count}."
    every = every_layer(nodes, profile.constraints.num_layers).capitalize()
    if profile.verdict["shown"]:
        return f"{every} lowers the loss by its alpha: shown at 95 % on {count}."
    if profile.unshown_descent:
        where = layers_in_words(profile.unshown_descent)
        return f"{every} lowers the mean loss: monotone, but not shown at 95 % on {count} ({where})."
    return f"{every} lowers the loss: shown at 95 % on {count}; that each does so by its alpha is not shown."


def _count(profile: DescentProfile) -> str:
    samples = f"{len(profile.layer_losses)} {'texts' if profile.kind == 'next_token' else 'samples'}"
    return samples if profile.groups is None else f"{samples} in {len(profile.unit_losses)} independent groups"


def _feasibility_sentence(profile: DescentProfile) -> list[str]:
    if profile.verdict["shown"]:
        return []
    relative, tolerances = profile.relative_violations, np.asarray(profile.constraints.tolerances)
    broken = [node for node, over in zip(profile.constraints.nodes[1:], relative > tolerances, strict=True) if over]
    if not broken:
        return ["Every constraint is met within its tolerance: feasible."]
    return [f"The constraint is violated beyond its tolerance at {layers_in_words(broken)}: not feasible."]


def _calibration_sentence(profile: DescentProfile) -> str:
    if profile.calibrated_losses is None or profile.calibrated_layer_losses is None:
        return "No validation data: calibration not checked."
    what = "gain and offset" if profile.kind == "regression" else "one temperature"
    nodes = profile.constraints.nodes
    up = rises(profile.calibrated_losses, nodes, CALIBRATED_FALL)
    if up:
        return f"After {what} per layer the loss does not fall at {layers_in_words(up)}."
    unshown = _unshown(profile._by_unit(profile.calibrated_layer_losses), nodes)
    certainty = f"not shown at 95 % at {layers_in_words(unshown)}" if unshown else "shown at 95 %"
    every = every_layer(nodes, profile.constraints.num_layers)
    return f"After {what} per layer {every} still lowers the loss: {certainty}."


def _unshown(samples: Array, nodes: Sequence[int]) -> tuple[int, ...]:
    """The nodes whose fall of the loss is not shown, by one simultaneous bound on all of them."""
    rise = np.diff(samples[:, list(nodes)].astype(np.float64), axis=1)
    bounds = simultaneous_upper_bounds(rise, confidence=CONFIDENCE)
    return tuple(node for node, bound in zip(nodes[1:], bounds, strict=True) if bound >= 0)


def _fitting_constraints(constraints: DescentConstraints | None, num_layers: int) -> DescentConstraints:
    if constraints is None:
        return DescentConstraints(num_layers=num_layers)
    if constraints.num_layers != num_layers:
        raise InputError(f"constraints are for {constraints.num_layers} layers, but the model has {num_layers}")
    return constraints


def _floats(values: NDArray[Any] | None) -> list[float | None] | None:
    """Numbers as JSON has them: None for the temperature or loss that is infinite."""
    if values is None:
        return None
    return [float(value) if np.isfinite(value) else None for value in values]
