"""Texts as token ids, in the columns a model takes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, List, concatenate_datasets
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from layerdescent.data.duplicates import normalise
from layerdescent.data.labels import Label, Task, bins
from layerdescent.data.splits import subsample
from layerdescent.errors import InputError

_BATCH = 1000  # rows tokenised at once


def tokenise(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    limit: int | None = None,
    *,
    seed: int = 0,
    progress: bool = False,
) -> Dataset:
    """What `load_text` gives, as a model takes it.

    Args:
        rows: columns `text`, `label` and perhaps `text_pair`.
        tokenizer: the model's.
        max_length: tokens a row, special tokens included; longer rows are cut.
        limit: the most rows to use, drawn in proportion to the classes; None uses all.
        seed: of that draw.
        progress: show a bar.

    Returns:
        The tokenizer's columns and `labels`.

    Raises:
        InputError: a `max_length` that the model does not take, or a limit below 1.
    """
    check_length(max_length, tokenizer)
    texts: list[str] = rows["text"][:]
    pairs: list[str] | None = rows["text_pair"][:] if "text_pair" in rows.column_names else None
    labels: list[Label] = rows["label"][:]
    kind = rows.features["label"]
    task: Task = (
        "classification" if isinstance(kind, ClassLabel) else "multi-label" if isinstance(kind, List) else "regression"
    )
    if limit is not None and limit < len(texts):
        if limit < 1:
            raise InputError(f"at most {limit} rows are asked for; give 1 or more")
        seconds: Sequence[str | None] = pairs or [None] * len(texts)
        keys = [normalise(*both) for both in zip(texts, seconds, strict=True)]
        chosen = subsample(keys, bins(labels, task), limit, seed)
        texts = [texts[row] for row in chosen]
        pairs = pairs and [pairs[row] for row in chosen]
        labels = [labels[row] for row in chosen]
    return encode(texts, pairs, labels, task, tokenizer, max_length, progress=progress)[0]


def renumbered(rows: Dataset, names: Sequence[str] | None, wanted: Sequence[str]) -> Dataset:
    """Tokenised rows whose classes have the ids of a model, where data and model call them by the same names.

    Args:
        rows: with the column `labels`.
        names: the classes of the rows in the order of their ids; None where there are none.
        wanted: the model's classes in the order of its ids.

    Returns:
        The rows, their labels renumbered by name (upper and lower case aside); as they were where the names differ.

    Example:
        >>> rows = Dataset.from_dict({"input_ids": [[5], [6], [7]], "labels": [0, 1, 0]})
        >>> renumbered(rows, ["contra", "pro"], ["PRO", "CONTRA"])["labels"][:]
        [1, 0, 1]
    """
    ids = {name.lower(): number for number, name in enumerate(wanted)}
    if names is None or not {name.lower() for name in names} <= ids.keys():
        return rows
    order = [ids[name.lower()] for name in names]
    if order == list(range(len(order))):
        return rows
    labels = np.asarray(rows["labels"][:])
    if labels.ndim == 1:
        labels = np.asarray(order)[labels]
    elif len(order) == len(ids):
        labels = labels[:, np.argsort(order)]
    return rows.remove_columns("labels").add_column("labels", labels.tolist())


def encode(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    labels: Sequence[Label],
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    *,
    title: str = "tokenise",
    progress: bool = False,
) -> tuple[Dataset, float]:
    """The rows as token ids, and the share of them that were too long."""
    dtype = np.int64 if task == "classification" else np.float32
    batches: list[Dataset] = []
    truncated = 0
    with tqdm(total=len(texts), desc=title, unit="row", disable=not progress, leave=False) as bar:
        for start in range(0, len(texts), _BATCH):
            here = slice(start, start + _BATCH)
            some, some_pairs = list(texts[here]), None if pairs is None else list(pairs[here])
            encoded = tokenizer(some, some_pairs, truncation=True, max_length=max_length)
            truncated += _count_truncated(encoded, some, some_pairs, max_length, tokenizer)
            batches.append(Dataset.from_dict({**encoded, "labels": np.asarray(labels[here], dtype=dtype)}))
            bar.update(len(some))
    return concatenate_datasets(batches), truncated / len(texts)


def check_length(max_length: int, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses more tokens than the model has positions for."""
    if max_length > tokenizer.model_max_length:
        raise InputError(
            f"max_length is {max_length}, and this model takes at most {tokenizer.model_max_length} tokens"
        )


def _count_truncated(
    encoded: Any, texts: list[str], pairs: list[str] | None, max_length: int, tokenizer: PreTrainedTokenizerBase
) -> int:
    if tokenizer.is_fast:  # it keeps what it cut off
        return sum(bool(row.overflowing) for row in encoded.encodings)
    whole = tokenizer(texts, pairs, truncation=False, verbose=False)["input_ids"]
    return sum(len(ids) > max_length for ids in whole)
