"""The tables of the page, as rows of finished text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from layerdescent.report.results import Results
from layerdescent.report.summary import (
    Condition,
    best_trivial,
    condition_of,
    conditions,
    layer_means,
    noise_values,
    sign,
)
from layerdescent.report.units import UNITS, number
from layerdescent.report.words import paired_note


@dataclass(frozen=True)
class Cell:
    """One cell; the tone ("better", "worse") only colours what the text says already."""

    text: str
    tone: str = ""


@dataclass(frozen=True)
class Table:
    """A caption, a header, and rows whose first cell names the row."""

    caption: str
    header: list[str]
    rows: list[list[Cell]]


def _table(caption: str, header: list[str], rows: list[list[str]]) -> Table | None:
    return Table(caption, header, [[Cell(text) for text in row] for row in rows]) if rows else None


def layer_table(results: Results, arm: str) -> Table | None:
    """Everything known per layer of one arm, averaged over seeds; columns without numbers are left out."""
    columns = {
        "loss": (layer_means(results, arm, lambda run: run.layer_losses.get("test")), 1.0, 3),
        "recalibrated loss": (layer_means(results, arm, lambda run: run.calibrated_losses.get("test")), 1.0, 3),
        "accuracy (%)": (layer_means(results, arm, lambda run: run.accuracies.get("test")), 100.0, 1),
        "violation": (layer_means(results, arm, lambda run: run.violations.get("test")), 1.0, 3),
        "inflation": (layer_means(results, arm, lambda run: run.inflation), 1.0, 3),
        "share of descent (%)": (layer_means(results, arm, lambda run: run.log_share), 100.0, 0),
    }
    filled = {name: column for name, column in columns.items() if column[0]}
    layers = sorted({layer for values, _, _ in filled.values() for layer in values})
    rows = [
        [str(layer), *(_scaled(values.get(layer), scale, digits) for values, scale, digits in filled.values())]
        for layer in layers
    ]
    return _table(arm, ["layer", *filled], rows)


def value_table(results: Results) -> Table | None:
    """The metric of every arm under every noise, the range over seeds in brackets, and the best trivial predictor."""
    unit = UNITS[results.metric]
    values = {arm: noise_values(results, arm) for arm in results.arm_names}
    arms = [arm for arm in results.arm_names if values[arm]]
    rows = []
    for condition in conditions(results):
        cells = [_with_range(values[arm].get(condition, []), unit.scale, unit.digits) for arm in arms]
        trivial = best_trivial(results, condition)
        if any(cell != number(None, 0) for cell in cells):
            rows.append(
                [condition.text, *cells, f"{unit.value(trivial[1])} ({trivial[0]})" if trivial else number(None, 0)]
            )
    return _table(f"Test {unit.axis}", ["noise", *arms, "best trivial predictor"], rows)


def paired_table(results: Results) -> Table | None:
    """Paired differences with their intervals, one row a noise, and what each says in words."""
    unit = UNITS[results.metric]
    cells: dict[tuple[str, str], dict[Condition, list[Cell]]] = {}
    for row in results.paired:
        direction = sign(row, results.lower_is_better)
        interval = f" ({unit.difference(row.ci95[0])} to {unit.difference(row.ci95[1])})" if row.ci95 else ""
        words = {1: "▲ better", -1: "▼ worse", 0: "no clear difference"}[direction] if row.ci95 else "no interval"
        cells.setdefault((row.arm, row.against), {})[condition_of(row)] = [
            Cell(unit.difference(row.difference) + interval),
            Cell(words, {1: "better", -1: "worse", 0: ""}[direction]),
        ]
    rows = [
        [
            Cell(condition.text),
            *(cell for column in cells.values() for cell in column.get(condition, [Cell("–"), Cell("")])),
        ]
        for condition in conditions(results)
        if any(condition in column for column in cells.values())
    ]
    if not rows:
        return None
    caption = (
        f"Paired differences in {unit.name} ({unit.of_difference}), 95 % intervals in brackets. {paired_note(results)}"
    )
    return Table(
        caption, ["noise", *(text for arm, against in cells for text in (f"{arm} − {against}", "in words"))], rows
    )


def cost_table(results: Results) -> Table | None:
    """Time and memory of a training step relative to the baseline, and seconds a run."""
    rows = []
    for arm in results.arm_names:
        runs = results.runs_of(arm)
        ratios = [
            _with_range([value for run in runs if (value := getattr(run, name)) is not None], 1.0, digits)
            for name, digits in (("step_time_ratio", 2), ("peak_memory_ratio", 2), ("seconds", 0))
        ]
        if any(cell != number(None, 0) for cell in ratios):
            rows.append([arm, *ratios])
    against = f"× {results.baseline}"
    return _table(
        "Cost of training", ["arm", f"time a step ({against})", f"peak memory ({against})", "seconds a run"], rows
    )


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as (dotted name, text) pairs.

    >>> list(flatten({"rows": {"train": 3200}, "kinds": ["a", "b"], "none": None}))
    [('rows.train', '3200'), ('kinds', 'a, b'), ('none', '–')]
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        for place, item in enumerate(value):
            yield from flatten(item, f"{name}[{place}]")
    elif isinstance(value, list | tuple):
        yield name, ", ".join(str(item) for item in value) or number(None, 0)
    elif isinstance(value, float):
        yield name, f"{value:.4g}"
    else:
        yield name, number(None, 0) if value is None else str(value)


def _scaled(value: float | None, scale: float, digits: int) -> str:
    return number(None if value is None else scale * value, digits)


def _with_range(values: list[float], scale: float, digits: int) -> str:
    if not values:
        return number(None, 0)
    mean = number(scale * sum(values) / len(values), digits)
    low, high = number(scale * min(values), digits), number(scale * max(values), digits)
    return mean if low == high else f"{mean} ({low}–{high})"
