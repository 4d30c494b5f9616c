"""The robustness sweep: every model under every noise, the same noise for all, one model in memory at a time."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn
from tqdm import tqdm

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
    reads_tokens,
)
from layerdescent.evaluation.shelf import Shelf
from layerdescent.evaluation.sweep_result import (
    CLEAN,
    Key,
    Measurement,
    Setting,
    SweepResult,
    common_seeds,
    trivial_predictors,
)
from layerdescent.evaluation.texts import (
    INVERSE_TEMPERATURES,
    fit_inverse_temperatures,
    text_losses,
    token_counts,
    unigram_losses,
)
from layerdescent.perturbation import SHARE_KINDS, Perturbation
from layerdescent.readout import Readout

Trivial = Callable[[NDArray[np.int64], Perturbation | None], Mapping[str, NDArray[np.float32]]]
"""(positions of rows (n,), noise or None) -> by name the values of predictors that have learned nothing, each (n,), or
(2, n) where those of their outputs clipped to [0, 1] come second."""

GAMMAS = (0.5, 1.0, 1.5, 2.0)
SHARES = (0.05, 0.1, 0.25, 0.5, 0.75)


def robustness_sweep(
    models: Mapping[str, ModelOrPath] | Mapping[Key, ModelOrPath],
    data: Rows,
    *,
    kinds: Sequence[str] = ("gaussian",),
    gammas: Sequence[float] | Mapping[str, Sequence[float]] = GAMMAS,
    shares: Sequence[float] = SHARES,
    noise_seeds: Sequence[int] = (0,),
    special_tokens: bool = False,
    processing_class: Any = None,
    validation: Rows | None = None,
    train_labels: ArrayLike | None = None,
    baseline: str | None = "erm",
    batch_size: int = 32,
    bf16: bool = False,
    noisy_units: Sequence[int] | None = None,
    base: Perturbation | None = None,
    groups: ArrayLike | None = None,
    trivial: Trivial | None = None,
    store: str | Path | None = None,
    progress: bool = True,
) -> SweepResult:
    """Measure models under noise of growing strength, unit by unit, and compare them in pairs.

    Equivalent, for every model and every perturbation (and once for clean inputs), to

        with perturbation.on(model):
            right[i] = model(row_i).logits.argmax() == label_i

    A sample's noise depends on its own tokens or pixels and the noise seed only, so every model meets the same noise.
    Where models restore pixels, as denoisers do, every value is also given with their outputs clipped to [0, 1].
    Language models are measured by perplexity, of their last layer alone, and where there are validation rows once more
    after one temperature for each model and level, fitted on these rows under the same noise.
    Clean inputs are the first setting, unless there is a `base`. Discrete noise is given by the expected share of
    replaced tokens; its gamma is found once, with the baseline on validation rows, and used for all models.

    Args:
        models: Models, or paths of checkpoints, by arm or by (arm, seed). Paths are loaded one at a time.
        data: Rows as in `descent_profile`.
        kinds: Of "gaussian", "uniform", "discrete", for models that read pixels of "gaussian", "uniform", "poisson",
            "salt-and-pepper"; none for clean inputs only.
        gammas: Levels of gaussian, uniform and poisson noise, in units of the embedding matrix' RMS or of the pixels;
            by kind where they differ.
        shares: Levels of discrete and of salt-and-pepper noise, (expected) shares of replaced tokens or pixels.
        noise_seeds: Each noisy setting is averaged over these draws, unit by unit.
        special_tokens: Whether [CLS], [SEP], <s> … get noise too.
        processing_class: The tokenizer; taken from the first checkpoint when paths are given.
        validation: Rows to calibrate discrete noise and language models on.
        train_labels: Labels that the majority class, or the unigram model, is taken from; those of `data` by default.
        baseline: The arm that the others are paired with, by seed; None (or one arm only) for no pairs.
        batch_size: Rows in a batch.
        bf16: Whether the models' forward passes run under autocast to bfloat16, clean ones included; the head, the
            losses and the noise itself stay in the models' own precision.
        noisy_units: Positions of the rows that all but the first setting are measured on, where all of them would take
            too long; the first one is always measured on all.
        base: The noise that models met in training, such as a denoiser's: the first setting, instead of clean inputs.
        groups: The independent unit (N,) that each row belongs to, such as its clip: intervals are over these.
        trivial: Predictors that have learned nothing, given positions of rows and the noise on them, None for none:
            per-row values for each name, with a second line of them for outputs clipped to [0, 1] where there are
            such; by default the majority class or the mean label, and for language models equal chances for all
            tokens and their frequencies.
        store: A folder that keeps each finished (model, setting), so that an interrupted sweep goes on where it was.
            What is found there is used only if model, data, noise and precision are the same, byte by byte.
        progress: Whether a bar shows how long it still takes.

    Returns:
        The result; `to_dict()` gives it as a results file holds it.

    Raises:
        InputError: An unknown kind or baseline, a level that cannot be, positions that are not there, or data that do
            not fit.
        RunError: A damaged checkpoint, a loss that is not finite, or no space left in the store.

    Example:
        >>> from transformers import BertConfig, BertForSequenceClassification
        >>> sizes = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=50)
        >>> config = BertConfig(**sizes, pad_token_id=0)
        >>> models = {arm: BertForSequenceClassification(config) for arm in ("erm", "descent")}
        >>> rows = [{"input_ids": [2, 5 + i, 3], "attention_mask": [1, 1, 1], "labels": i % 2} for i in range(8)]
        >>> result = robustness_sweep(models, rows, gammas=(1.0,), special_tokens=True, progress=False)
        >>> [(entry["arm"], entry["kind"], entry["n_units"]) for entry in result.paired()]
        [('descent', 'none', 8), ('descent', 'gaussian', 8)]
    """
    keyed = _keyed(models)
    baseline = _checked_baseline(keyed, baseline)
    noises = _perturbations(kinds, gammas, shares, noise_seeds, special_tokens, base)
    sample = None if noisy_units is None else _positions(noisy_units, len(data))
    first = next((key for key in keyed if key[0] == baseline), next(iter(keyed)))
    tokenizer = load_tokenizer(processing_class, keyed[first], data)
    shelf = Shelf(None if store is None else Path(store))
    noises = _calibrated(noises, keyed[first], validation, tokenizer, shelf)

    measurements: dict[Key, list[Measurement]] = {}
    whole = _Part(data, batch_size, shelf)
    part = whole if sample is None else _Part([data[row] for row in sample.tolist()], batch_size, shelf)
    batches = len(whole.batches) + sum(len(draws) for draws in noises) * len(part.batches)
    of_language = [reads_tokens(model) for model in keyed.values()]
    if any(of_language) and not all(of_language):
        raise InputError("some of the models are language models and some are not: sweep them separately")
    fitted = None
    if any(of_language) and validation is not None:
        fitted = _Part(validation, batch_size, shelf)
        batches += (1 + sum(len(draws) for draws in noises)) * len(fitted.batches)
    counts = token_counts(data) if any(of_language) else None
    evaluation = _Evaluation(whole, part, tokenizer, shelf, bf16, any(of_language), fitted)
    with tqdm(total=len(keyed) * batches, desc="sweep", unit="batch", disable=not progress) as bar:
        for key, model in keyed.items():
            bar.set_postfix_str(f"{key[0]} seed {key[1]}")
            found = list(evaluation.measure(model, [[base], *noises], bar))
            measurements[key] = [Measurement.average(draws) for draws in found]
    kind = evaluation.kind
    if trivial is None:
        if kind == "next_token":
            known: Any = [row["labels"] for row in data] if train_labels is None else train_labels
            usual: dict[str, Any] = {
                "equal chances": np.full(len(data), np.log(evaluation.vocabulary), np.float32),
                "unigram model": unigram_losses(data, known, evaluation.vocabulary).astype(np.float32),
            }
        else:
            usual = trivial_predictors(labels_of(data, kind), kind, train_labels)
        # A mean of pixels lies in [0, 1], so clipping leaves it as it is.
        lines = {name: np.stack([values] * (2 if whole.restored else 1)) for name, values in usual.items()}
        predictors = {
            name: [values, *[values if sample is None else values[:, sample]] * len(noises)]
            for name, values in lines.items()
        }
    else:
        every = np.arange(len(data))
        others = every if sample is None else sample
        by_setting = [trivial(every, base), *(trivial(others, draws[0]) for draws in noises)]
        predictors = {name: [np.atleast_2d(values[name]) for values in by_setting] for name in by_setting[0]}
    return SweepResult(
        kind=kind,
        settings=[CLEAN if base is None else _setting(base), *(_setting(draws[0]) for draws in noises)],
        measurements=measurements,
        baseline=baseline,
        trivial={name: [values[0] for values in found] for name, found in predictors.items()},
        trivial_clipped={name: [v[1] for v in found] for name, found in predictors.items() if len(found[0]) > 1},
        noise_seeds=list(noise_seeds),
        bf16=bf16,
        noisy_units=sample,
        groups=None if groups is None else one_group_a_row(groups, len(data)),
        counts=counts,
    )


class _Part:
    """The rows of one kind of setting, as they are read and named in the store."""

    def __init__(self, rows: Rows, batch_size: int, shelf: Shelf) -> None:
        self.rows, self.batches, self.identity = rows, length_sorted(rows, batch_size), shelf.identity(data=rows)
        # Labels that are a picture, not numbers about one: what a model gives is pixels and can be clipped.
        self.restored = "pixel_values" in rows[0] and np.ndim(rows[0].get("labels", 0)) > 1


class _Evaluation:
    """Measures models on one data set; knows the heads' problem type once it has seen the first."""

    def __init__(
        self,
        first: _Part,
        others: _Part,
        tokenizer: Any,
        shelf: Shelf,
        bf16: bool,
        of_language: bool,
        fitted: _Part | None,
    ) -> None:
        self.first, self.others, self.tokenizer, self.shelf, self.bf16 = first, others, tokenizer, shelf, bf16
        self.of_language, self.fitted = of_language, fitted  # the rows that temperatures are fitted on
        self.vocabulary = 0
        self._kind: Kind | None = None

    @property
    def kind(self) -> Kind:
        """The problem type of the models measured so far."""
        if self._kind is None:
            raise RunError("no model has been measured yet")
        return self._kind

    def measure(
        self, model: ModelOrPath, settings: Sequence[Sequence[Perturbation | None]], bar: "tqdm[Any]"
    ) -> Iterator[list[Measurement]]:
        """For every setting one measurement a draw; the model is loaded when the first one is not stored."""
        # Nothing is said of the models' own precision: what was stored before there was a choice stays valid.
        identity = self.shelf.identity(model=model) | ({"bf16": True} if self.bf16 else {})
        if self.fitted is not None:
            identity |= {"fitted": self.fitted.identity}
        loaded = None
        for place, draws in enumerate(settings):
            part, found = self.first if place == 0 else self.others, []
            for noise in draws:
                this = part.identity | identity | {"noise": None if noise is None else noise.to_dict()}
                stored = self.shelf.get(this)
                # Denoisers were measured unclipped only at first; everything else that was stored then stays valid.
                if stored is not None and ("clipped" in stored[0] or not part.restored):
                    arrays, header = stored
                    self._see(header["kind"])
                    self.vocabulary = header.get("vocabulary", 0)
                    bar.update(len(part.batches) + (len(self.fitted.batches) if self.fitted else 0))
                else:
                    loaded = self._load(model) if loaded is None else loaded
                    run = self._run_texts if self.of_language else self._run
                    arrays, header = run(loaded, part, noise, bar)
                    self.shelf.put(this, arrays, header)
                found.append(Measurement(**arrays, realised_share=header["realised_share"]))
            yield found

    def _load(self, model: ModelOrPath) -> nn.Module:
        """The model, once it is clear that the labels fit its head."""
        loaded = load_model(model)
        readout = Readout.for_model(loaded)
        if self.of_language:
            self._see("next_token")
            self.vocabulary = readout.model.config.vocab_size
            return loaded
        self._see(problem_type(readout, self.first.rows))
        kind: Any = self.kind
        labels_of(self.first.rows, kind, readout.model.config.num_labels)
        return loaded

    def _run(
        self, model: nn.Module, part: _Part, noise: Perturbation | None, bar: "tqdm[Any]"
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        kind: Any = self.kind
        values, losses = np.empty(len(part.rows), np.float32), np.empty(len(part.rows), np.float32)
        readout = Readout.for_model(model)
        total, clipped = np.zeros(readout.num_layers + 1), np.empty(len(part.rows), np.float32)
        stream = {"processing_class": self.tokenizer, "perturbation": noise, "bf16": self.bf16, "bar": bar}
        for batch in layer_outputs(model, part.rows, part.batches, kind, **stream):
            last = batch.losses[-1]
            right = correctness(batch.logits[-1], batch.labels, kind)
            values[batch.indices] = (last if right is None else right.float()).cpu().numpy()
            losses[batch.indices] = last.cpu().numpy()
            if part.restored:
                inside = batch.logits[-1].clamp(0, 1)
                clipped[batch.indices] = readout.per_sample_losses(inside, batch.labels).float().cpu().numpy()
            total += batch.losses.double().sum(dim=1).cpu().numpy()
        arrays: dict[str, NDArray[Any]] = {"values": values, "losses": losses, "layer_losses": total / len(part.rows)}
        arrays |= {"clipped": clipped} if part.restored else {}
        return arrays, {"kind": kind, "realised_share": None if noise is None else _realised(noise)}

    def _run_texts(
        self, model: nn.Module, part: _Part, noise: Perturbation | None, bar: "tqdm[Any]"
    ) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
        """As `_run`, of a language model: nats a token of every text, as they are and after one temperature."""
        last = Readout.for_model(model).num_layers
        stream: dict[str, Any] = {
            "layers": [last],
            "processing_class": self.tokenizer,
            "perturbation": noise,
            "bf16": self.bf16,
            "bar": bar,
        }
        scales = [1.0]
        if self.fitted is not None:
            batches = text_losses(model, self.fitted.rows, self.fitted.batches, scales=[INVERSE_TEMPERATURES], **stream)
            sums = np.sum([(batch.losses * batch.counts).sum(-1).numpy() for batch in batches], axis=0)
            scales.append(float(fit_inverse_temperatures(sums)[0]))
        found = np.empty((len(part.rows), len(scales)), np.float32)
        counts = np.empty(len(part.rows))
        for batch in text_losses(model, part.rows, part.batches, scales=[scales], **stream):
            found[batch.indices], counts[batch.indices] = batch.losses[0].T.numpy(), batch.counts.numpy()
        means = np.full(last + 1, np.nan)
        means[last] = np.average(found[:, 0].astype(np.float64), weights=counts)
        arrays: dict[str, NDArray[Any]] = {"values": found[:, 0], "losses": found[:, 0], "layer_losses": means}
        if len(scales) > 1:
            arrays |= {"calibrated": found[:, 1], "temperature": np.array([1 / scales[1]])}
        header = {"kind": "next_token", "realised_share": None if noise is None else _realised(noise)}
        return arrays, header | {"vocabulary": self.vocabulary}

    def _see(self, kind: Kind) -> None:
        if self._kind not in (None, kind):
            raise InputError(f"the models have different heads, {self._kind} and {kind}: sweep them separately")
        self._kind = kind


def _keyed(models: Mapping[Any, ModelOrPath]) -> dict[Key, ModelOrPath]:
    if not models:
        raise InputError("there is nothing to sweep: 0 models were given")
    return {key if isinstance(key, tuple) else (key, 0): model for key, model in models.items()}


def _checked_baseline(models: Mapping[Key, ModelOrPath], baseline: str | None) -> str | None:
    """The baseline if there is something to pair with it."""
    seeds: dict[str, list[int]] = {}
    for arm, seed in models:
        seeds.setdefault(arm, []).append(seed)
    if baseline is None or len(seeds) == 1:
        return None
    if baseline not in seeds:
        raise InputError(f"baseline is {baseline!r}, but the models are {', '.join(seeds)}: name one of them, or None")
    for arm, own in seeds.items():
        if not common_seeds(own, seeds[baseline]):
            raise InputError(
                f"{arm} has the seeds {own} and {baseline} has {seeds[baseline]}: pairs need a common seed"
            )
    return baseline


def _positions(units: Sequence[int], count: int) -> NDArray[np.int64]:
    positions = np.asarray(units)
    whole = positions.ndim == 1 and len(positions) > 0 and np.issubdtype(positions.dtype, np.integer)
    if not whole or positions.min() < 0 or positions.max() >= count or len(set(positions.tolist())) < len(positions):
        raise InputError(
            f"noisy_units must be one or more different positions among the {count} rows, 0 to {count - 1}; "
            f"got {list(units)[:8]}"
        )
    return positions.astype(np.int64)


def _perturbations(
    kinds: Sequence[str],
    gammas: Sequence[float] | Mapping[str, Sequence[float]],
    shares: Sequence[float],
    noise_seeds: Sequence[int],
    special_tokens: bool,
    base: Perturbation | None,
) -> list[list[Perturbation]]:
    """The settings after the first, each with one perturbation a noise seed; what the first one is, is left out."""
    if not noise_seeds:
        raise InputError("noise_seeds is empty: give at least one, for example (0,)")
    settings = []
    for kind in dict.fromkeys(kinds):
        levels = shares if kind in SHARE_KINDS else gammas[kind] if isinstance(gammas, Mapping) else gammas
        for level in dict.fromkeys(levels):
            if level != 0 and (base is None or (kind, level) != (base.kind, base.gamma)):
                strength = {"share": level} if kind in SHARE_KINDS else {"gamma": level}
                draw: Any = {"kind": kind, "special_tokens": special_tokens, **strength}
                settings.append([Perturbation(**draw, seed=seed) for seed in noise_seeds])
    return settings


def _calibrated(
    settings: list[list[Perturbation]], model: ModelOrPath, validation: Rows | None, tokenizer: Any, shelf: Shelf
) -> list[list[Perturbation]]:
    """The same settings, those given by a share with the gamma that reaches it on the model's validation rows."""
    if not any(_needs_calibration(draws) for draws in settings):
        return settings
    if validation is None or len(validation) == 0:
        raise InputError("discrete noise is calibrated on validation text: pass validation rows, or leave it out")
    identity = shelf.identity(model=model, validation=validation)
    samples = [list(row["input_ids"]) for row in validation]
    ready, loaded = [], None
    for draws in settings:
        if _needs_calibration(draws):
            this = identity | {"calibrate": draws[0].to_dict()}
            stored = shelf.get(this)
            if stored is not None:
                gamma = float(stored[0]["gamma"][0])
            else:
                loaded = load_model(model) if loaded is None else loaded
                gamma = float(draws[0].calibrate(loaded, samples, tokenizer).gamma or 0.0)
                shelf.put(this, {"gamma": np.array([gamma])}, {})
            draws = [replace(draw, gamma=gamma) for draw in draws]
        ready.append(draws)
    return ready


def _needs_calibration(draws: Sequence[Perturbation]) -> bool:
    return draws[0].kind == "discrete" and draws[0].share is not None


def _setting(noise: Perturbation) -> Setting:
    return Setting(noise.kind, float(noise.gamma or 0.0), noise.share)


def _realised(noise: Perturbation) -> float | None:
    return noise.realised_share if noise.share is not None else None
