"""What a recipe may say, checked field by field.

The parts that only text or only video has are in modules of their own; what is measured, compared and searched is here.
Nothing heavy is imported: the command line lists recipes in a blink.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from layerdescent.noise_kinds import KINDS, PIXEL_KINDS, SHARE_KINDS, Kind, replaced_units
from layerdescent.recipes.common import Count, Level, Section, Seed, Seeds, Share
from layerdescent.recipes.instructions import InstructionsSpec, LanguageModelSpec
from layerdescent.recipes.text import DataSpec, ModelSpec, ShiftSpec
from layerdescent.recipes.video import NetworkSpec, VideoSpec, WholeFramesSpec
from layerdescent.recipes.yaml_text import write_yaml


def _names_a_folder(arm: str) -> str:
    if not re.fullmatch(r"[\w(][\w .,+=()-]*", arm):  # @ marks a changed setting of the frontier's runs
        raise ValueError(f"{arm!r} is to be the name of a folder: use letters, digits, spaces and . , + = ( ) - _")
    return arm


ArmName = Annotated[str, AfterValidator(_names_a_folder)]

# Set by the program for every run, so that a folder of results always has the same shape.
RESERVED_TRAIN_FIELDS = frozenset({"output_dir", "seed", "data_seed", "resume_from_checkpoint"})


class NoiseSpec(Section):
    """One kind of noise; its levels are gammas, in embedding scales or pixels, or shares of tokens or pixels replaced.

    gaussian and uniform are for all models, discrete for those of text, poisson and salt-and-pepper for those of video.
    """

    kind: Kind
    gammas: list[Level] = Field(default_factory=list)
    shares: list[Share] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_levels(self) -> Self:
        if self.kind in SHARE_KINDS and (self.gammas or not self.shares):
            what = replaced_units(self.kind)
            raise ValueError(f"{self.kind} noise needs shares (of {what} replaced), and has no gammas of its own")
        if self.kind not in SHARE_KINDS and (self.shares or not self.gammas):
            raise ValueError(f"{self.kind} noise needs gammas, and has no shares")
        return self


ShiftName = Annotated[str, Field(pattern=r"^\w[\w +-]*$")]  # no dot: it may stand in an override


class EvaluationSpec(Section):
    """What is measured on the test rows of every run, and on other data."""

    noise: list[NoiseSpec] = Field(default_factory=list)
    noise_seeds: list[Seed] = Field(default=[0], min_length=1)
    noise_rows: Count | None = None
    """How many test rows noise is measured on, drawn in proportion to the classes; null is all. Clean values and the
    profile of the layers always take all test rows."""
    batch_size: Count = 64
    bf16: bool = False
    """Whether forward passes under noise and on other data run in bfloat16. The profile of the layers never does."""
    special_tokens: bool = False
    """Whether noise also falls on [CLS], [SEP] and their like."""
    shift: dict[ShiftName, ShiftSpec] = Field(default_factory=dict)
    """Data sets by name that the models read without noise."""
    whole_frames: WholeFramesSpec | None = None
    """What is measured on whole frames, for video; null is nothing."""
    pictures: list[Level] | None = None
    """Levels of the gaussian noise of the page's pictures, for video; null is the training level and 1, [] is none."""


class FrontierSpec(Section):
    """Further runs of the baseline that draw its frontier of in-distribution against robust quality."""

    weight_decay: list[Level] = Field(default_factory=list)
    label_smoothing: list[Annotated[float, Field(ge=0, lt=1)]] = Field(default_factory=list)
    """Values of `label_smoothing_factor`."""
    width: list[Count] = Field(default_factory=list)
    """Values of the network's `hidden_size`, for video."""
    checkpoints: Annotated[int, Field(ge=0)] = 0
    """Evenly spaced models along each of these runs, the last one included; 0 is the last one only."""
    noise: Annotated[list[NoiseSpec], Field(min_length=1)] | None = None
    """What its models are measured under, where all of `evaluation.noise` would take too long; null is all of it."""


class SearchSpec(Section):
    """Which settings of the arms are tried, and by what the best are chosen; see `layerdescent.search`."""

    price: Level | None = None
    """What an arm under constraints may cost in clean validation value against the baseline's best, stated before
    anything is tried: accuracy as a fraction, RMSE and perplexity relative; null is 0.003 (0.3 points), 0.01 (1 %)."""
    seeds: Seeds | None = None
    """Of every trial; null is the recipe's first seed."""
    arms: Annotated[dict[ArmName, dict[str, list[Any]]], Field(min_length=1)]
    """By arm, the values tried of each field of `DescentConfig`: all combinations."""
    unequal: bool = False
    """Allow other numbers of trials for other arms: to study sensitivity, never to compare the arms chosen."""
    keep_models: bool = True
    """Keep every trial's weights; what is chosen needs none of them."""

    @field_validator("arms")
    @classmethod
    def _is_a_grid(cls, arms: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, list[Any]]]:
        for arm, fields in arms.items():
            if not fields:
                raise ValueError(f"{arm} has no field to search: name one, or leave the arm out")
            for name, values in fields.items():
                if name in RESERVED_TRAIN_FIELDS:
                    raise ValueError(f"{arm}.{name} is set by the program for each run; seeds belong in search.seeds")
                if name == "objective":
                    raise ValueError(f"{arm}.objective decides by what rule the arm is chosen: make another arm of it")
                if not values:
                    raise ValueError(f"{arm}.{name} has no values")
                distinct = {json.dumps(_canonical(value), sort_keys=True, default=str) for value in values}
                if len(distinct) < len(values):
                    raise ValueError(f"{arm}.{name} holds a value twice: {values}")
        return arms

    @model_validator(mode="after")
    def _tries_every_arm_equally_often(self) -> Self:
        counts = {arm: math.prod(map(len, fields.values())) for arm, fields in self.arms.items()}
        if not self.unequal and len(set(counts.values())) > 1:
            told = ", ".join(f"{arm} {count}" for arm, count in counts.items())
            raise ValueError(
                f"every arm must have the same number of trials, and they have: {told}; even them out, or say "
                "unequal: true where the arms chosen are not to be compared"
            )
        return self

    def grid(self, arm: str) -> list[dict[str, Any]]:
        """Every combination of an arm's values, the last field fastest; 1.0 and 1 are one number.

        Example:
            >>> SearchSpec(arms={"erm": {"learning_rate": [1e-4], "num_train_epochs": [1, 2.0]}}).grid("erm")
            [{'learning_rate': 0.0001, 'num_train_epochs': 1}, {'learning_rate': 0.0001, 'num_train_epochs': 2}]
        """
        fields = self.arms[arm]
        return [dict(zip(fields, _canonical(values), strict=True)) for values in itertools.product(*fields.values())]


class Recipe(Section):
    """One experiment: a model, data, arms that differ only in what `arms` says, seeds, and what is measured."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    title: str = ""
    description: str = ""
    needs: list[str] = Field(default_factory=list)
    """What a machine must have, in words: "packages", "hub", "GPU advised"."""
    model: ModelSpec
    data: DataSpec
    train: dict[str, Any] = Field(default_factory=dict)
    """Fields of `DescentConfig` (so of `TrainingArguments`) that all arms share."""
    arms: Annotated[dict[ArmName, dict[str, Any]], Field(min_length=1)]
    """By name, the fields in which an arm differs from `train`."""
    baseline: str = "erm"
    """The arm all others are compared with."""
    seeds: Seeds
    evaluation: EvaluationSpec = EvaluationSpec()
    frontier: FrontierSpec | None = None
    search: SearchSpec | None = None
    metric: Literal["accuracy", "rmse", "perplexity"] = "accuracy"

    noise_kinds: ClassVar[tuple[Kind, ...]] = KINDS

    @field_validator("train", "arms")
    @classmethod
    def _leaves_reserved_fields_alone(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name, value in fields.items():
            for field in {name, *(value if isinstance(value, dict) else ())} & RESERVED_TRAIN_FIELDS:
                raise ValueError(f"{field} is set by the program for each run; training seeds belong in seeds")
        return fields

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.baseline not in self.arms:
            raise ValueError(f"the baseline {self.baseline!r} is not among the arms ({', '.join(self.arms)})")
        if self.metric != {"regression": "rmse", "next-token": "perplexity"}.get(self.data.task, "accuracy"):
            raise ValueError(f"metric {self.metric} does not fit data.task {self.data.task}")
        for arm in self.search.arms if self.search else ():
            if arm not in self.arms:
                raise ValueError(f"search.arms: no arm is called {arm!r}; there are {', '.join(self.arms)}")
        if self.search and self.baseline not in self.search.arms:
            raise ValueError(
                f"search.arms lacks the baseline {self.baseline!r}: prices are measured against its best trial"
            )
        noise = [*self.evaluation.noise, *((self.frontier and self.frontier.noise) or ())]
        for part in noise:
            if part.kind not in self.noise_kinds:
                raise ValueError(
                    f"{part.kind} noise is not for what these models read: choose one of {', '.join(self.noise_kinds)}"
                )
        return self

    @model_validator(mode="after")
    def _fits_its_data(self) -> Self:
        """Of text; recipes of other data replace it."""
        if self.evaluation.whole_frames or self.evaluation.pictures:
            raise ValueError("evaluation.whole_frames and evaluation.pictures are for video")
        if self.frontier and self.frontier.width:
            raise ValueError("frontier.width is for video: a pretrained model has the width that it has")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Every field, defaults included, as plain values."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The recipe as resolved, every default written out; `load_recipe` reads it back."""
        return write_yaml(self.to_dict())

    def arm_settings(self, arm: str) -> dict[str, Any]:
        """The `DescentConfig` fields of one arm: what all arms share, then its own."""
        return {**self.train, **self.arms[arm]}

    def arm_fingerprint(self, arm: str) -> str:
        """A hash of what decides one arm's results: model, data, and its training fields however they are split up."""
        content = {
            "model": self.model.model_dump(mode="json"),
            "data": self.data.model_dump(mode="json"),
            "settings": self.arm_settings(arm),
        }
        return hashlib.sha256(json.dumps(_canonical(content), sort_keys=True).encode()).hexdigest()[:16]


class InstructionsRecipe(Recipe):
    """A recipe whose data are instructions: a causal language model learns their responses."""

    model: LanguageModelSpec  # type: ignore[assignment]  # another section of the same place
    data: InstructionsSpec  # type: ignore[assignment]
    metric: Literal["accuracy", "rmse", "perplexity"] = "perplexity"

    @model_validator(mode="after")
    def _fits_its_data(self) -> Self:
        if self.evaluation.shift:
            raise ValueError(
                "evaluation.shift is for texts with labels; measure other instructions by a recipe of their own"
            )
        if self.evaluation.whole_frames or self.evaluation.pictures:
            raise ValueError("evaluation.whole_frames and evaluation.pictures are for video")
        if self.frontier and self.frontier.width:
            raise ValueError("frontier.width is for video: a pretrained model has the width that it has")
        return self


class VideoRecipe(Recipe):
    """A recipe whose data are video: its models take noise out of windows of patches over time.

    All arms meet gaussian noise of `train.input_gamma`, in training and in validation; that is the setting that *in
    distribution* means.
    """

    model: NetworkSpec  # type: ignore[assignment]  # another section of the same place
    data: VideoSpec  # type: ignore[assignment]
    metric: Literal["accuracy", "rmse", "perplexity"] = "rmse"

    noise_kinds: ClassVar[tuple[Kind, ...]] = PIXEL_KINDS

    @model_validator(mode="after")
    def _fits_its_data(self) -> Self:
        gammas = {json.dumps(self.arm_settings(arm).get("input_gamma", 0)) for arm in self.arms}
        if len(gammas) > 1 or gammas == {"0"}:
            raise ValueError("a denoiser needs noise: give train.input_gamma above 0, the same for all arms")
        if any("input_gamma" in fields for fields in (self.search.arms.values() if self.search else ())):
            raise ValueError(
                "search.arms: input_gamma is the noise that trials are measured under, so the least would win"
            )
        if self.evaluation.shift:
            raise ValueError("evaluation.shift is for text; measure other clips with a recipe of their own")
        return self


def _canonical(value: Any) -> Any:
    """Equal settings in one form: 2 and 2.0 are the same number of epochs."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
