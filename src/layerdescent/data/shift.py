"""Another data set for models that are trained already: matched to the models' classes, never trained on."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from layerdescent.data.labels import bins
from layerdescent.data.sources import WHOLE, open_source
from layerdescent.data.splits import subsample
from layerdescent.data.text import Columns, PreparedText, encode_part, read_part
from layerdescent.data.tokens import check_length, encode, renumbered
from layerdescent.errors import InputError
from layerdescent.recipes.text import DataSpec, ShiftSpec


@dataclass(frozen=True, kw_only=True)
class ShiftReport:
    """What was done to the rows of one data set on their way to the models.

    Attributes:
        name: what the recipe calls it.
        source: where the rows come from.
        part: the part of the source.
        rows: rows used.
        available: rows there were to draw them from.
        in_training: rows left out because the models were trained on their texts.
        empty: rows left out because a text is empty.
        unlabelled: rows left out because they have no label.
        repeated: rows used whose text an earlier one has too.
        truncated: share of the rows used that were cut to `max_length` tokens.
        max_length: in tokens.
        labels: how classes were matched to the model's: "by name", or "by number" where one side has no names or the
            recipe lists them in the order of the model's; None for numbers to predict.
        label_counts: rows of each of the model's classes, by name (classification only).
    """

    name: str
    source: str
    part: str
    rows: int
    available: int
    in_training: int
    empty: int
    unlabelled: int
    repeated: int
    truncated: float
    max_length: int
    labels: str | None
    label_counts: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a results file."""
        return asdict(self)


def prepare_shift(
    name: str,
    shift: ShiftSpec,
    data: DataSpec,
    trained_on: PreparedText,
    tokenizer: PreTrainedTokenizerBase,
    *,
    progress: bool = False,
) -> tuple[Dataset, ShiftReport]:
    """Reads, thins and tokenises another data set for models trained on `data`.

    Empty and unlabelled rows go, then rows whose text is among the training rows (upper and lower case and white space
    aside); what is left is thinned to the rows asked for, in proportion to its classes and by `data.seed`. Repeated
    texts stay, as in the test part.

    Args:
        name: what the recipe calls the data set.
        shift: its section of the recipe.
        data: the recipe's `data`, for what the section leaves open.
        trained_on: the rows that the models were trained on, and their classes.
        tokenizer: the models'.
        progress: show a bar while tokenising.

    Returns:
        The tokenised rows, their labels the model's ids, and what was done to them.

    Raises:
        InputError: as `prepare`; also classes that the model does not have, or fewer than two rows.

    Source: ours [C].
    """
    where = f"evaluation.shift.{name}"
    max_length = data.max_length if shift.max_length is None else shift.max_length
    strip_html = data.strip_html if shift.strip_html is None else shift.strip_html
    check_length(max_length, tokenizer)
    parts = open_source(shift.source, format=shift.format, subset=shift.subset)
    part = shift.part
    if list(parts) == [WHOLE] and part in (None, "train"):  # as in `data`, where such a source is the training part
        part = WHOLE
    elif part is None and len(parts) == 1:
        part = next(iter(parts))
    if part not in parts:
        asked = "says nothing" if part is None else f"is {part!r}"
        there = "no parts: leave it out" if list(parts) == [WHOLE] else f"the parts {', '.join(parts)}"
        raise InputError(f"{where}.part {asked}, and {shift.source} has {there}")
    columns = Columns(shift.columns.text, shift.columns.text_pair, shift.columns.label)
    found = read_part(parts, part, shift.source, columns, strip_html)

    fresh = [row for row, key in enumerate(found.keys()) if key not in trained_on.train_texts]
    if not fresh:
        raise InputError(f"{where}: all texts of {found.where} are among the training rows; give other data")
    if shift.rows is not None and shift.rows > len(fresh):
        raise InputError(
            f"{where}.rows asks for {shift.rows:,} rows, and {len(fresh):,} are there "
            f"({len(found.texts) - len(fresh):,} more are among the training rows); ask for fewer"
        )
    rows = found.take(fresh)
    unnamed = shift.label_names is None and rows.class_names is None
    labels, names = encode_part(rows, data.task, shift.label_names, trained_on.num_labels if unnamed else None)
    matched = _matched(names, trained_on.label_names, given=shift.label_names is not None, where=where)

    keys = rows.keys()
    chosen = subsample(keys, bins(labels, data.task), len(fresh) if shift.rows is None else shift.rows, data.seed)
    if len(chosen) < 2:
        raise InputError(f"{where} comes to one row, on which no two models can be compared: give two or more")
    rows, labels, keys = rows.take(chosen), [labels[row] for row in chosen], [keys[row] for row in chosen]
    tokenised, truncated = encode(
        rows.texts, rows.pairs, labels, data.task, tokenizer, max_length, title=f"tokenise {name}", progress=progress
    )
    if matched == "by name":
        tokenised = renumbered(tokenised, names, trained_on.label_names or [])
    counts = {}
    if data.task == "classification" and trained_on.label_names is not None:
        ids = tokenised["labels"][:]
        counts = {label: ids.count(number) for number, label in enumerate(trained_on.label_names)}
    report = ShiftReport(
        name=name,
        source=shift.source if shift.subset is None else f"{shift.source} ({shift.subset})",
        part=str(part),
        rows=len(tokenised),
        available=len(fresh),
        in_training=len(found.texts) - len(fresh),
        empty=found.empty,
        unlabelled=found.unlabelled,
        repeated=len(keys) - len(set(keys)),
        truncated=truncated,
        max_length=max_length,
        labels=matched,
        label_counts=counts,
    )
    return tokenised, report


def _matched(names: Sequence[str] | None, model: Sequence[str] | None, *, given: bool, where: str) -> str | None:
    """How classes become the model's, refusing to guess where neither names nor a given order say it."""
    if names is None or model is None:
        return None
    if {name.lower() for name in names} <= {name.lower() for name in model}:
        return "by name"
    numbers = list(names) == [str(number) for number in range(len(names))]
    if (given or numbers) and len(names) <= len(model):
        return "by number"
    raise InputError(
        f"{where}: its classes are {', '.join(names)}, and the model's are {', '.join(model)}; "
        f"list its classes in the order of the model's as {where}.label_names, or leave it out"
    )
