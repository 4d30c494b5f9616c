"""Labels as models take them: class ids, numbers, or 0/1 vectors, checked while they are read."""

import math
import re
from collections.abc import Hashable, Sequence
from typing import Any, Literal

from layerdescent.errors import InputError

Task = Literal["classification", "regression", "multi-label"]
Label = int | float | list[float]

_INTEGER = re.compile(r"([+-]?[0-9]{1,18})(\.0+)?")  # 1.0 too, as a table with gaps is written


def encode_labels(
    values: Sequence[Any],
    *,
    where: str,
    task: Task = "classification",
    names: Sequence[str] | None = None,
    num_labels: int | None = None,
) -> tuple[list[Label], list[str] | None]:
    """Turns the values of a label column into labels, and says what the classes are called.

    Classes: values that all occur in `names` stand for their place there; other whole numbers are class ids; other
    words are classes in alphabetical order where `names` is not given.

    Args:
        values: what the column holds, row by row, nothing missing.
        where: what the values are, for errors: "the label column 'stars' of reviews.csv".
        task: "classification", "regression", or "multi-label" (each value a list of 0s and 1s).
        names: the classes in the order of their ids, where they are known.
        num_labels: how many classes (or numbers) the model has, where that is fixed.

    Returns:
        The labels, and the class names (None for regression).

    Raises:
        InputError: a value that is no such label, or an id outside the classes.

    Example:
        >>> encode_labels(["no", "yes", "no"], where="the answers")
        ([0, 1, 0], ['no', 'yes'])
    """
    if names is not None and num_labels is not None and len(names) != num_labels:
        raise InputError(f"{where}: {len(names)} label names are given ({', '.join(names)}) for {num_labels} labels")
    if task == "regression":
        if num_labels not in (None, 1):
            raise InputError(f"{where}: regression has one number a row, but num_labels is {num_labels}")
        return [_number(value, where) for value in values], None
    if task == "multi-label":
        return _multi_label(values, where, names, num_labels)
    return _classes(values, where, names, num_labels)


def bins(labels: Sequence[Label], task: Task, count: int = 10) -> list[Hashable]:
    """The stratum of each row: its class, its set of classes, or which tenth of the numbers it lies in."""
    if task != "regression":
        return [tuple(label) if isinstance(label, list) else label for label in labels]
    order = sorted(range(len(labels)), key=lambda row: labels[row])
    tenths: list[Hashable] = [0] * len(labels)
    for rank, row in enumerate(order):
        tied = rank > 0 and labels[row] == labels[order[rank - 1]]
        tenths[row] = tenths[order[rank - 1]] if tied else rank * count // len(labels)
    return tenths


def _number(value: Any, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InputError(f"{where} holds {value!r}, which is no number; regression needs one number a row") from None
    if not math.isfinite(number):
        raise InputError(f"{where} holds {value!r}; regression needs finite numbers")
    return number


def _multi_label(
    values: Sequence[Any], where: str, names: Sequence[str] | None, num_labels: int | None
) -> tuple[list[Label], list[str]]:
    width = num_labels or (len(names) if names else len(values[0]) if isinstance(values[0], list | tuple) else 0)
    for value in values:
        if not isinstance(value, list | tuple) or len(value) != width or any(entry not in (0, 1) for entry in value):
            raise InputError(
                f"{where} holds {value!r}; multi-label needs a list of {width or 'equally many'} 0s and 1s"
            )
    return [[float(entry) for entry in value] for value in values], list(names or map(str, range(width)))


def _classes(
    values: Sequence[Any], where: str, names: Sequence[str] | None, num_labels: int | None
) -> tuple[list[Label], list[str]]:
    whole = [_whole_number(value) for value in values]
    words = {str(value) for value in values}
    known = {name: number for number, name in enumerate(names or ())}
    if words <= known.keys():
        return [known[str(value)] for value in values], list(names or ())
    if all(number is not None for number in whole):
        ids = [number for number in whole if number is not None]
        size = len(names) if names is not None else num_labels
        if min(ids) < 0 or (size is not None and max(ids) >= size):
            wrong = min(ids) if min(ids) < 0 else max(ids)
            expected = f"ids 0 to {size - 1}" if size is not None else "ids from 0"
            raise InputError(
                f"{where} holds {wrong}, outside the classes ({expected}); name the classes by label_names"
            )
        present = set(ids)
        # A column of identifiers is no reason to count to a billion.
        missing = [number for number in range(min(max(ids), len(present) + 5)) if number not in present]
        if size is None and missing:
            raise InputError(
                f"{where} holds {_some(sorted(present))} but never {_some(missing)}; class ids run from 0: "
                "name the classes by label_names, or set task: regression"
            )
        return list(ids), list(names or map(str, range(size if size is not None else max(ids) + 1)))
    nameless = [
        value for value, number in zip(values, whole, strict=True) if number is None and not _names_class(value)
    ]
    if nameless:
        raise InputError(f"{where} holds {nameless[0]!r}, which names no class; set task to regression or multi-label")
    if names is not None:
        raise InputError(
            f"{where} holds {_some(sorted(words - known.keys()))}, not among the classes {', '.join(names)}"
        )
    if num_labels is not None and len(words) > num_labels:
        raise InputError(f"{where} holds {len(words)} classes ({_some(sorted(words))}), but the model has {num_labels}")
    found = sorted(words)
    place = {name: number for number, name in enumerate(found)}
    return [place[str(value)] for value in values], found


def _whole_number(value: Any) -> int | None:
    if isinstance(value, int):  # True and False too
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    digits = _INTEGER.fullmatch(value.strip()) if isinstance(value, str) else None
    return int(digits[1]) if digits else None


def _names_class(value: Any) -> bool:
    """Whether a value can be the name of a class: a word, not 3.8 and not a list."""
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return True
    return False


def _some(values: Sequence[Any], most: int = 5) -> str:
    shown = ", ".join(str(value) for value in values[:most])
    return shown if len(values) <= most else f"{shown}, … ({len(values)} in all)"
