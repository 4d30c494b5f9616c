"""The results file, read with every fault named by file and field.

A missing piece is not a fault: results are written while runs are still under way, and `null` stands for "not
computed". Fields that this version does not know are ignored.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, model_validator

from layerdescent.errors import InputError, RunError
from layerdescent.files import finite
from layerdescent.report.units import UNITS

FILE_NAME = "results.json"

Metric = Literal["accuracy", "rmse", "perplexity"]
PerLayer = list[float | None]


class Part(BaseModel):
    """A part of a results file."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_missing(cls, given: Any) -> Any:
        return {key: value for key, value in given.items() if value is not None} if isinstance(given, dict) else given


def _sentence(flag: Any) -> Any:
    return flag["sentence"] if isinstance(flag, dict) and "sentence" in flag else flag


class Verdict(Part):
    """The four words of one run; None where the run cannot say."""

    monotone: bool | None = None
    feasible: bool | None = None
    shown: bool | None = None
    calibrated: bool | None = None


class NoiseValue(Part):
    """The metric of one run under one noise; of a denoiser also with its outputs clipped to [0, 1].

    Of a language model also the loss in nats a token, as trained and after one temperature.
    """

    kind: str
    gamma: float | None = None
    share: float | None = None
    value: float | None = None
    value_clipped: float | None = None
    loss: float | None = None
    loss_calibrated: float | None = None
    temperature: float | None = None
    realised_share: float | None = None


class Base(Part):
    """The noise that models meet in distribution, such as a denoiser's."""

    kind: str
    gamma: float


class History(Part):
    """What was logged while one run trained: one row an entry of `step`."""

    step: list[float]
    violations: list[PerLayer] = []
    weights: list[PerLayer] = []
    multipliers: list[PerLayer] = []

    @model_validator(mode="before")
    @classmethod
    def _records_are_columns(cls, given: Any) -> Any:
        """Turns one dictionary a step, as a trainer keeps it, into one list a quantity."""
        if not (isinstance(given, list) and all(isinstance(record, dict) for record in given)):
            return given
        names = {name for record in given for name in record}
        return {name: [record.get(name, []) for record in given] for name in names & set(cls.model_fields)} or {
            "step": []
        }

    @model_validator(mode="after")
    def _one_row_a_step(self) -> "History":
        for name in ("violations", "weights", "multipliers"):
            rows = len(getattr(self, name))
            if rows not in (0, len(self.step)):
                raise ValueError(f"{name} has {rows} rows for {len(self.step)} steps")
        return self


class Run(Part):
    """One arm with one seed."""

    arm: str
    seed: int
    alpha: PerLayer | None = None
    layers: list[int]
    nodes: list[int] | None = None
    layer_losses: dict[str, PerLayer | None] = {}
    layer_losses_ci95: dict[str, list[tuple[float, float] | None] | None] = {}
    violations: dict[str, PerLayer | None] = {}
    calibrated_losses: dict[str, PerLayer | None] = {}
    accuracies: dict[str, PerLayer | None] = {}
    inflation: PerLayer = []
    log_share: PerLayer = []
    tightness: float | None = None
    share_descending: float | None = None
    verdict: Verdict = Verdict()
    flags: list[Annotated[str, BeforeValidator(_sentence)]] = []
    feasible_checkpoint: bool | None = None
    noise: list[NoiseValue] = []
    constant_loss: float | None = None
    history: History | None = None
    step_time_ratio: float | None = None
    step_seconds: float | None = None
    data_seconds: float | None = None
    late_fall: float | None = None
    peak_memory_ratio: float | None = None
    seconds: float | None = None

    @model_validator(mode="after")
    def _one_value_a_layer(self) -> "Run":
        for name in ("layer_losses", "layer_losses_ci95", "calibrated_losses", "accuracies"):
            values = getattr(self, name).get("test")
            if values and len(values) != len(self.layers):
                raise ValueError(f"{name}.test has {len(values)} values for {len(self.layers)} layers")
        return self

    @property
    def data_share(self) -> float | None:
        """The wait for the rows of a step, as a share of step and wait; medians."""
        if self.data_seconds is None or self.step_seconds is None:
            return None
        return self.data_seconds / (self.data_seconds + self.step_seconds)

    @property
    def constrained(self) -> bool:
        """Whether this run trained under descent constraints."""
        return self.alpha is not None

    @property
    def judged(self) -> list[int]:
        """The layers between which the words of the verdict ask for a fall: the nodes of the constraints."""
        return self.nodes or self.layers

    def by_layer(self, values: Sequence[float | None] | None) -> dict[int, float]:
        """Values keyed by layer, without the missing ones; a list that is one short starts at the second layer."""
        values = values or []
        layers = self.layers
        if self.nodes and len(values) == len(self.nodes) - 1 != len(layers) - 1:
            layers = self.nodes
        if len(values) > len(layers):
            return {}
        return {
            layer: value
            for layer, value in zip(layers[len(layers) - len(values) :], values, strict=True)
            if value is not None
        }


class Difference(Part):
    """A paired difference and its interval."""

    difference: float | None = None
    ci95: tuple[float, float] | None = None


class Calibrated(Part):
    """A paired difference after one temperature for each arm and noise."""

    nats: Difference | None = None


class Paired(Part):
    """The difference of two arms under one noise, arm minus `against`, on the same units and seeds."""

    arm: str
    against: str
    kind: str
    gamma: float | None = None
    share: float | None = None
    difference: float | None = None
    ci95: tuple[float, float] | None = None
    clipped: Difference | None = None
    nats: Difference | None = None
    calibrated: Calibrated | None = None
    n_units: int | None = None
    n_seeds: int | None = None
    method: str | None = None


class Area(Part):
    """The mean of one arm's metric over the levels of one noise, from none up to `upto`, and its paired difference."""

    arm: str
    kind: str
    upto: float | None = None
    value: float | None = None
    value_clipped: float | None = None
    against: str | None = None
    difference: float | None = None
    ci95: tuple[float, float] | None = None
    clipped: Difference | None = None


class Trivial(Part):
    """What a predictor that learned nothing reaches; without a kind it holds for every noise."""

    name: str
    kind: str | None = None
    gamma: float | None = None
    share: float | None = None
    value: float | None = None
    value_clipped: float | None = None


class FrontierPoint(Part):
    """One checkpoint of ordinary training: its value on clean data and under one noise."""

    step: int | None = None
    weight_decay: float | None = None
    label_smoothing: float | None = None
    width: int | None = None
    in_distribution: float | None = None
    in_distribution_clipped: float | None = None
    kind: str
    gamma: float | None = None
    share: float | None = None
    value: float | None = None
    value_clipped: float | None = None


class ShiftRun(Part):
    """One run on another data set, without noise."""

    arm: str
    seed: int
    data: str
    value: float | None = None
    layer_losses: PerLayer = []
    n_units: int | None = None


class ShiftPaired(Part):
    """The difference of two arms on another data set, arm minus `against`, on the same units and seeds."""

    arm: str
    against: str
    data: str
    difference: float | None = None
    ci95: tuple[float, float] | None = None
    n_units: int | None = None
    n_seeds: int | None = None
    method: str | None = None


class ShiftTrivial(Part):
    """What a predictor that knows nothing of a data set but its most usual label reaches on it."""

    name: str
    data: str
    value: float | None = None


class Shift(Part):
    """Data sets that nothing was trained on: every run's values, and a report of each as plain facts."""

    runs: list[ShiftRun] = []
    paired: list[ShiftPaired] = []
    trivial: list[ShiftTrivial] = []
    data: list[dict[str, Any]] = []

    @property
    def names(self) -> list[str]:
        """The data sets, in the order of the recipe."""
        return list(dict.fromkeys(run.data for run in self.runs))

    def of(self, name: str) -> dict[str, Any]:
        """The report of one data set."""
        return next((report for report in self.data if report.get("name") == name), {})


class FrameValues(Part):
    """What one model, or a predictor that learned nothing, makes of whole frames under one noise."""

    arm: str | None = None
    seed: int | None = None
    name: str | None = None
    kind: str
    gamma: float | None = None
    share: float | None = None
    rmse: float | None = None
    rmse_clipped: float | None = None
    psnr: float | None = None
    ssim: float | None = None


class FramesPaired(Part):
    """Two arms on the same whole frames, arm minus `against`, by measure."""

    arm: str
    against: str
    kind: str
    gamma: float | None = None
    share: float | None = None
    rmse: Difference | None = None
    rmse_clipped: Difference | None = None
    psnr: Difference | None = None
    ssim: Difference | None = None
    n_units: int | None = None
    n_seeds: int | None = None
    method: str | None = None


class FrameClip(Part):
    """Frames of one clip that follow each other."""

    clip: str
    frames: int
    height: int
    width: int


class WholeFrames(Part):
    """Whole frames of test clips, denoised by final models."""

    clips: list[FrameClip] = []
    runs: list[FrameValues] = []
    trivial: list[FrameValues] = []
    paired: list[FramesPaired] = []


class PicturesFile(Part):
    """Where the pictures lie: a file beside the results."""

    file: str


def _seeds(given: Any) -> Any:
    return list(range(given)) if isinstance(given, int) else given


class Results(Part):
    """One experiment: every arm and seed that has finished."""

    experiment: str
    title: str | None = None
    command: str | None = None
    recipe: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    data: dict[str, Any] = {}
    metric: Metric
    bf16: bool = False
    base: Base | None = None
    baseline: str = "erm"
    seeds: Annotated[list[int], BeforeValidator(_seeds)] = []
    arms: dict[str, dict[str, Any] | None] = {}
    constant_loss: float | None = None
    runs: list[Run]
    paired: list[Paired] = []
    auc: list[Area] = []
    trivial: list[Trivial] = []
    frontier: list[FrontierPoint] = []
    shift: Shift = Shift()
    whole_frames: WholeFrames = WholeFrames()
    pictures: PicturesFile | None = None
    cost: dict[str, Any] | None = None
    duplicates: Any = None

    @property
    def arm_names(self) -> list[str]:
        """The arms in the order they were listed or met, the baseline first."""
        names = list(dict.fromkeys([*self.arms, *(run.arm for run in self.runs)]))
        return sorted(names, key=lambda name: name != self.baseline)

    @property
    def seed_values(self) -> list[int]:
        """The seeds that were asked for, or those that have run."""
        return self.seeds or sorted({run.seed for run in self.runs})

    @property
    def of_denoisers(self) -> bool:
        """Whether the models take noise out of pixels: then noise is what they meet in distribution."""
        return self.base is not None

    @property
    def lower_is_better(self) -> bool:
        """Whether the metric is an error."""
        return UNITS[self.metric].lower_is_better

    def runs_of(self, arm: str) -> list[Run]:
        """The finished runs of one arm, by seed."""
        return sorted((run for run in self.runs if run.arm == arm), key=lambda run: run.seed)


Kind = TypeVar("Kind", bound=Part)


def read_results(source: dict[str, Any] | Path | str) -> Results:
    """Reads one experiment from a dictionary, a results file or a folder that holds `results.json`.

    Raises:
        InputError: There is no such file, or a field is missing or of the wrong kind; the message names both.
        RunError: The file is not JSON, as after a disk that filled up.

    >>> read_results({"experiment": "demo", "metric": "accuracy", "runs": []}).arm_names
    []
    >>> read_results({"experiment": "demo", "metric": "accuracy", "runs": [{"arm": "erm", "seed": 0}]})
    Traceback (most recent call last):
    layerdescent.errors.InputError: results: runs[0].layers: field required
    """
    return read_stored(Results, source, FILE_NAME, "compare")


def read_stored(shape: type[Kind], source: dict[str, Any] | Path | str, file_name: str, command: str) -> Kind:
    """Reads what a command stored, from a dictionary, a file or a folder that holds `file_name`.

    Raises:
        InputError: As `read_results`.
        RunError: As `read_results`.
    """
    if isinstance(source, dict):
        name, given = file_name.removesuffix(".json"), source
    else:
        name, given = _load(Path(source), file_name, command)
    try:
        return shape.model_validate(finite(given))
    except ValidationError as error:
        first = error.errors()[0]
        field = _field(first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        kind = first["input"] if isinstance(first["input"], str | int | float | bool) else type(first["input"]).__name__
        given_text = "" if first["type"] in ("missing", "value_error") else f", given {kind!r}"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        line = f"{name}: {field + ': ' if field else ''}{message[:1].lower()}{message[1:]}{given_text}{more}"
        raise InputError(line) from error


def _load(path: Path, file_name: str, command: str) -> tuple[str, Any]:
    file = path / file_name if path.is_dir() else path
    try:
        return str(file), json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such results file; `layerdescent {command} RECIPE` writes one") from error
    except UnicodeDecodeError as error:
        raise RunError(
            f"{file}: not a text file (byte {error.start}); run the experiment again to rewrite it"
        ) from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise RunError(f"{file}: not JSON ({where}); run the experiment again to rewrite it") from error
    except OSError as error:
        raise RunError(f"{file}: cannot be read ({error.strerror})") from error


def _field(location: Iterable[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
