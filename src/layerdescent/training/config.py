"""What can be set about training: `DescentConfig`, and its fields alone for other configurations."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from transformers import TrainingArguments

from layerdescent.descent import FORMS, DescentConstraints, alpha_schedule
from layerdescent.duals import REFERENCES, Multipliers
from layerdescent.errors import InputError

OBJECTIVES = ("descent", "erm", "deep-supervision", "noise")
NOISE_LEVELS = ("fixed", "uniform")
BEST_METRIC = "descent_score"


@dataclass
class DescentArguments:
    """The fields of descent-constrained training, to be mixed into any `TrainingArguments`.

    Example:
        >>> from dataclasses import dataclass
        >>> from transformers import Seq2SeqTrainingArguments
        >>> @dataclass
        ... class MyConfig(DescentArguments, Seq2SeqTrainingArguments):
        ...     pass
        >>> MyConfig(alpha=0.1, use_cpu=True).alpha
        0.1
    """

    objective: str = field(
        default="descent",
        metadata={
            "help": "What is minimised: 'descent' (the loss of the last layer under descent constraints), 'erm' (that "
            "loss alone), 'deep-supervision' (a fixed weighted sum of the layer losses) or 'noise' (the loss of the "
            "last layer under gaussian noise on the word embeddings).",
            "choices": OBJECTIVES,
        },
    )
    # The second type is the one that a command line gives; transformers' parser takes it from that place.
    alpha: float | str | list[float] | dict[str, Any] | None = field(
        default=0.05,
        metadata={
            "help": "Share by which every layer must lower the loss, in [0, 1): one number, a list with one for each "
            'layer, or a schedule such as {"kind": "linear", "first": 0.0, "last": 0.1}; on a command line as JSON.'
        },
    )
    form: str = field(
        default="difference",
        metadata={
            "help": "How a violation is measured: 'difference' F_l - (1-alpha) F_{l-1}, 'ratio' F_l / F_{l-1} - "
            "(1-alpha), or 'cumulative' F_l - (1-alpha)^l F_0.",
            "choices": FORMS,
        },
    )
    first_layer: int = field(
        default=1, metadata={"help": "First layer that has a constraint; it is compared with the layer below."}
    )
    grid: list[int] | None = field(
        default=None,
        metadata={
            "help": "Layers whose losses are constrained against each other, instead of every layer: ascending, the "
            "last one included; alpha is compounded between them. Only these are read out during training."
        },
    )
    dual_lr: float = field(
        default=0.1,
        metadata={
            "help": "Step size of the multipliers on relative violations, so free of the loss's units; 0 is plain ERM."
        },
    )
    resilience: float | None = field(
        default=None,
        metadata={
            "help": "rho, the price of slack: the smaller, the more a constraint may be missed; multipliers stay "
            "bounded. Must be above dual_lr; none: hard constraints."
        },
    )
    dual_warmup_steps: int = field(default=0, metadata={"help": "Optimiser steps before the first dual step."})
    dual_every: int | str | None = field(
        default=1, metadata={"help": "Optimiser steps between dual steps (on their mean), or 'epoch'."}
    )
    violation_cap: float | None = field(
        default=1.0, metadata={"help": "The most that one dual step may see of a relative violation; none: no cap."}
    )
    multiplier_max: float | None = field(
        default=None, metadata={"help": "Upper bound on every multiplier; none: no bound."}
    )
    reference: str = field(
        default="previous",
        metadata={
            "help": "What makes a violation relative: the running mean of F_{l-1} ('previous') or of the first loss "
            "('initial').",
            "choices": REFERENCES,
        },
    )
    detach_initial: bool = field(
        default=True,
        metadata={
            "help": "The first loss enters as a constant: nothing is paid for failing on the initial representation."
        },
    )
    detach_previous: bool = field(
        default=False,
        metadata={"help": "F_{l-1} enters every constraint as a constant (an ablation; use it with resilience)."},
    )
    clip_weights: bool = field(
        default=False,
        metadata={"help": "Negative Lagrangian weights become 0: nothing is ever paid for getting worse."},
    )
    feasibility_tolerance: float | None = field(
        default=None,
        metadata={
            "help": "Relative violation up to which a constraint counts as met; none: alpha/5. Never above alpha/2."
        },
    )
    layer_weights: list[float] | None = field(
        default=None,
        metadata={"help": "Deep supervision: the weights of layers 1 to L, used as they are; none: 1/L each."},
    )
    input_gamma: float = field(
        default=0.0,
        metadata={
            "help": "Gaussian noise that every input has, whatever the objective, as a denoiser needs: its standard "
            "deviation, on the word embeddings or on pixel_values. Fresh in training; in evaluation fixed by the "
            "sample."
        },
    )
    noise_gamma: float = field(
        default=0.5,
        metadata={
            "help": "Noise objective: standard deviation of the gaussian noise, on word embeddings in units of the "
            "root mean square of the embedding matrix (padding and the special tokens of processing_class get none), "
            "on pixel_values in their own."
        },
    )

    noise_level: str = field(
        default="fixed",
        metadata={
            "help": "Noise objective: 'fixed', always noise_gamma, or 'uniform', drawn anew for every micro-batch, "
            "uniform between input_gamma and noise_gamma.",
            "choices": NOISE_LEVELS,
        },
    )
    constraint_gamma: float | None = field(
        default=None,
        metadata={
            "help": "Measure the constraints on a second forward pass under gaussian noise, its level drawn anew for "
            "every micro-batch, uniform between input_gamma and this, in the unit of noise_gamma; the objective stays "
            "the loss without it. A step costs twice as much; none: no second pass."
        },
    )
    token_share: float = field(
        default=1.0,
        metadata={
            "help": "Causal language models: share of the tokens that the constraints are measured on, one draw a "
            "micro-batch for all layers; the objective stays the loss of all tokens. Right on average; the variance of "
            "a violation is (1/share - 1)/N times that of the tokens' own, for N tokens a step. 1: all, exactly."
        },
    )

    def __post_init__(self) -> None:
        self.alpha = _parse_alpha(self.alpha)
        self.dual_every = _parse_dual_every(self.dual_every)
        self._check_descent_fields()
        self._choose_best_metric()
        # The next class in line: TrainingArguments, or whatever these fields were mixed into.
        following = getattr(super(), "__post_init__", None)
        if following is not None:
            following()

    def _check_descent_fields(self) -> None:
        choices = {"objective": OBJECTIVES, "form": FORMS, "reference": REFERENCES, "noise_level": NOISE_LEVELS}
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(allowed)}")
        for name, least in (("first_layer", 1), ("dual_warmup_steps", 0)):
            if not _whole(getattr(self, name)) or getattr(self, name) < least:
                raise InputError(f"{name} is {getattr(self, name)!r}: give a whole number of at least {least}")
        for name in ("dual_lr", "input_gamma", "noise_gamma"):
            if not _finite(getattr(self, name)) or getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)!r}: give a number of at least 0")
        for name in ("violation_cap", "multiplier_max"):
            value = getattr(self, name)
            if value is not None and not (_finite(value) and value > 0):
                raise InputError(f"{name} is {value!r}: give a number above 0, or none for no bound")
        if self.resilience is not None and not (_finite(self.resilience) and self.resilience > self.dual_lr):
            raise InputError(
                f"resilience is {self.resilience!r}: give a number above dual_lr ({self.dual_lr:g}), "
                "or none for hard constraints"
            )
        tolerance = self.feasibility_tolerance
        if tolerance is not None and not (_finite(tolerance) and tolerance >= 0):
            raise InputError(
                f"feasibility_tolerance is {tolerance!r}: give a number of at least 0, or none for alpha/5"
            )
        if self.constraint_gamma is not None:
            if not (_finite(self.constraint_gamma) and self.constraint_gamma > self.input_gamma):
                raise InputError(
                    f"constraint_gamma is {self.constraint_gamma!r}: give a number above input_gamma "
                    f"({self.input_gamma:g}), or none for constraints measured where the objective is"
                )
            if self.objective != "descent":
                raise InputError(
                    f"constraint_gamma is {self.constraint_gamma:g} with objective {self.objective!r}, which has no "
                    "constraints: leave it out"
                )
        if not (_finite(self.token_share) and 0 < self.token_share <= 1):
            raise InputError(f"token_share is {self.token_share!r}: give a number above 0 and at most 1")
        self._check_layer_lists()

    def _check_layer_lists(self) -> None:
        if self.grid is not None:
            if len(self.grid) < 2 or not all(_whole(n) and n >= 0 for n in self.grid):
                raise InputError(f"grid is {self.grid!r}: give at least two layer numbers, from 0 to the last layer")
            if any(low >= high for low, high in pairwise(self.grid)):
                raise InputError(f"grid is {self.grid!r}: the layers must ascend")
            if self.first_layer != 1:
                raise InputError(f"first_layer is {self.first_layer} and grid is {self.grid!r}: give one of the two")
        if self.layer_weights is not None:
            if self.objective != "deep-supervision":
                raise InputError(
                    f"layer_weights is {self.layer_weights!r} with objective {self.objective!r}: "
                    "they belong to 'deep-supervision', leave them out"
                )
            if not all(_finite(w) for w in self.layer_weights) or not any(self.layer_weights):
                raise InputError(f"layer_weights is {self.layer_weights!r}: give one number for each layer, not all 0")

    def _choose_best_metric(self) -> None:
        """The best checkpoint under constraints is the best feasible one, unless the caller names another metric."""
        arguments: Any = self
        if getattr(self, "load_best_model_at_end", False) and self.objective == "descent":
            arguments.metric_for_best_model = arguments.metric_for_best_model or BEST_METRIC
        metric = getattr(self, "metric_for_best_model", None)
        if metric is not None and metric.endswith(BEST_METRIC) and arguments.greater_is_better is None:
            arguments.greater_is_better = False

    def constraints(self, num_layers: int) -> DescentConstraints:
        """The constraints that these fields describe, for a model of `num_layers` layers.

        Raises:
            InputError: more layers are named than the model has.
        """
        alpha: Any = self.alpha
        return DescentConstraints(
            num_layers=num_layers,
            alpha=alpha,
            form=self.form,  # type: ignore[arg-type]  # checked in __post_init__
            first_layer=self.first_layer,
            grid=None if self.grid is None else tuple(self.grid),
            detach_initial=self.detach_initial,
            detach_previous=self.detach_previous,
            clip_weights=self.clip_weights,
            tolerance=self.feasibility_tolerance,
        )

    def multipliers(self, constraints: DescentConstraints) -> Multipliers:
        """Fresh multipliers, all 0, as these fields set them up."""
        every: Any = self.dual_every
        return Multipliers(
            constraints,
            lr=self.dual_lr,
            resilience=self.resilience,
            reference=self.reference,  # type: ignore[arg-type]  # checked in __post_init__
            violation_cap=self.violation_cap,
            max_value=self.multiplier_max,
            warmup_steps=self.dual_warmup_steps,
            dual_every=every,
        )

    def fixed_weights(self, num_layers: int) -> tuple[float, ...]:
        """The weights of F_0 … F_L under an objective without multipliers; F_0 never has one.

        Raises:
            InputError: another number of weights than there are layers.
        """
        if self.objective != "deep-supervision":
            return (*[0.0] * num_layers, 1.0)
        weights = self.layer_weights if self.layer_weights is not None else [1 / num_layers] * num_layers
        if len(weights) != num_layers:
            raise InputError(f"layer_weights has {len(weights)} values: give one for each of the {num_layers} layers")
        return (0.0, *weights)


@dataclass
class DescentConfig(DescentArguments, TrainingArguments):
    """`TrainingArguments` with the fields of descent-constrained training.

    Wrong values raise an `InputError` that names the field, the value given and what is allowed.

    Example:
        >>> DescentConfig(alpha=0.1, dual_lr=0.5, use_cpu=True).objective
        'descent'
        >>> DescentConfig(alpha=1.5)
        Traceback (most recent call last):
        layerdescent.errors.InputError: alpha of layer 1 is 1.5: it must lie in [0, 1)
    """


def _parse_alpha(alpha: Any) -> float | list[float] | dict[str, Any]:
    """Take alpha as Python or, from a command line, as JSON."""
    if isinstance(alpha, str):
        try:
            alpha = float(alpha)
        except ValueError:
            try:
                alpha = json.loads(alpha)
            except json.JSONDecodeError:
                raise InputError(
                    f"alpha is {alpha!r}: give a number, a list of numbers or a schedule, as JSON"
                ) from None
    if isinstance(alpha, Mapping):
        alpha = dict(alpha)
    elif isinstance(alpha, list | tuple):
        alpha = list(alpha)
    # Whatever the number of layers, impossible values are known now.
    alpha_schedule(alpha, num_layers=len(alpha) if isinstance(alpha, list) else 1)
    return alpha


def _parse_dual_every(every: Any) -> int | str:
    if isinstance(every, str) and every.isdecimal():
        every = int(every)
    if every != "epoch" and not (_whole(every) and every >= 1):
        raise InputError(f"dual_every is {every!r}: give a number of optimiser steps of at least 1, or 'epoch'")
    return every


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
