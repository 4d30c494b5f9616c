"""The tables of the page, as rows of finished text."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from layerdescent.report.results import Area, Difference, FrameValues, Paired, Results, Run, ShiftPaired
from layerdescent.report.summary import (
    CLEAN,
    Condition,
    area_text,
    best_trivial,
    condition_of,
    conditions,
    layer_means,
    loss_digits,
    mean,
    nats,
    noise_values,
    sign,
    trivial_values,
)
from layerdescent.report.units import FRAME_UNITS, UNITS, Unit, number
from layerdescent.report.words import condition_name, methods_text, paired_note, shift_note


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
    digits = loss_digits(results)
    columns = {
        "loss": (layer_means(results, arm, lambda run: run.layer_losses.get("test")), 1.0, digits),
        "RMSE": (
            layer_means(results, arm, _root_losses) if results.metric == "rmse" else {},
            1.0,
            UNITS["rmse"].digits,
        ),
        "recalibrated loss": (layer_means(results, arm, lambda run: run.calibrated_losses.get("test")), 1.0, digits),
        "accuracy (%)": (layer_means(results, arm, lambda run: run.accuracies.get("test")), 100.0, 1),
        "violation": (layer_means(results, arm, lambda run: run.violations.get("test")), 1.0, digits),
        "inflation": (layer_means(results, arm, lambda run: run.inflation), 1.0, digits),
        "share of descent (%)": (layer_means(results, arm, lambda run: run.log_share), 100.0, 0),
    }
    filled = {name: column for name, column in columns.items() if column[0]}
    layers = sorted({layer for values, _, _ in filled.values() for layer in values})
    rows = [
        [str(layer), *(_scaled(values.get(layer), scale, places) for values, scale, places in filled.values())]
        for layer in layers
    ]
    return _table(arm, ["layer", *filled], rows)


def _root_losses(run: Run) -> list[float | None] | None:
    losses = run.layer_losses.get("test")
    return losses and [None if loss is None else math.sqrt(loss) for loss in losses]


CLIPPED = " with outputs clipped to [0, 1]"


def value_table(results: Results, note: str = "") -> Table | None:
    """The metric of every arm under every noise, the range over seeds in brackets, and the best trivial predictor."""
    unit = UNITS[results.metric]
    values = {arm: noise_values(results, arm) for arm in results.arm_names}
    arms = [arm for arm in results.arm_names if values[arm]]
    rows = []
    for condition in conditions(results):
        if any(condition in values[arm] for arm in arms):
            cells = [_with_range(values[arm].get(condition, []), unit.scale, unit.digits) for arm in arms]
            trivial = best_trivial(results, condition)
            name = condition_name(results, condition)
            rows.append([name, *cells, f"{unit.value(trivial[1])} ({trivial[0]})" if trivial else "–"])
    for name, areas in _areas(results).items():
        rows.append([name, *(unit.value(areas[arm].value) if arm in areas else "–" for arm in arms), "–"])
    realised = _realised_shares(results)
    caption = f"Test {unit.axis}{note}." + (f" Really replaced: {realised}." if realised else "")
    return _table(caption, ["noise", *arms, "best trivial predictor"], rows)


def paired_table(results: Results, note: str = "") -> Table | None:
    """Paired differences with their intervals, one row a noise, and what each says in words."""
    unit = UNITS[results.metric]
    columns: dict[tuple[str, str], dict[str, Paired | Area]] = {}
    for row in results.paired:
        columns.setdefault((row.arm, row.against), {})[condition_name(results, condition_of(row))] = row
    for name, areas in _areas(results).items():
        for area in areas.values():
            if area.against is not None:
                columns.setdefault((area.arm, area.against), {})[name] = area
    names = [*(condition_name(results, condition) for condition in conditions(results)), *_areas(results)]
    rows = [
        [Cell(name), *(cell for column in columns.values() for cell in _difference_cells(column.get(name), unit))]
        for name in names
        if any(name in column for column in columns.values())
    ]
    if not rows:
        return None
    measured = unit.name if unit.name == unit.of_difference else f"{unit.name} ({unit.of_difference})"
    caption = f"Paired differences in {measured}{note}, 95 % intervals in brackets. {paired_note(results)}"
    return Table(caption, _paired_header("noise", columns), rows)


def _paired_header(first: str, pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Two columns a pair of arms, as `_difference_cells` fills them."""
    return [first, *(text for arm, against in pairs for text in (f"{arm} − {against}", "in words"))]


def _difference_cells(row: Paired | Area | ShiftPaired | Difference | None, unit: Unit) -> list[Cell]:
    """A difference, and what its interval says."""
    if row is None or row.difference is None:
        return [Cell("–"), Cell("")]
    if row.ci95 is None:
        return [Cell(unit.difference(row.difference)), Cell("no interval")]
    words, tone = {1: ("▲ better", "better"), -1: ("▼ worse", "worse"), 0: ("unclear", "")}[
        sign(row, unit.lower_is_better)
    ]
    interval = f"({unit.difference(row.ci95[0])} to {unit.difference(row.ci95[1])})"
    return [Cell(f"{unit.difference(row.difference)} {interval}"), Cell(words, tone)]


UNIGRAM = "unigram model"


def nats_table(results: Results) -> Table | None:
    """Nats a response token of language models under every noise, as trained and after one temperature.

    Beside them stand the trivial predictors; where a unigram model is at least as good as every arm, that is said.
    """
    if results.metric != "perplexity":
        return None
    columns: dict[str, dict[Condition, list[float]]] = {}
    for arm in results.arm_names:
        for name, calibrated in ((arm, False), (f"{arm}, after one temperature", True)):
            values = nats(results, arm, calibrated=calibrated)
            columns |= {name: values} if values else {}
    trivial = list(dict.fromkeys(row.name for row in results.trivial))
    rows = []
    for condition in conditions(results):
        losses = {name: math.log(value) for name, value in trivial_values(results, condition).items() if value > 0}
        known = [mean(values[condition]) for values in columns.values() if condition in values]
        if known:
            lost = UNIGRAM in losses and min(known) >= losses[UNIGRAM]
            verdict = f"{'both' if len(results.arm_names) == 2 else 'all'} unusable" if lost else ""
            cells = [_with_range(values.get(condition, []), 1.0, 3) for values in columns.values()]
            cells += [number(losses.get(name), 3) for name in trivial]
            rows.append([condition_name(results, condition), *cells, verdict])
    caption = (
        "Test nats a response token. The temperature is that of each arm, seed and noise, fitted on validation data. "
        "Where no arm, after one temperature either, beats a unigram model, none can be used."
    )
    return _table(caption, ["noise", *columns, *trivial, "in words"], rows)


def nats_paired_table(results: Results) -> Table | None:
    """Paired differences of language models in nats a token, as trained and after one temperature."""
    columns: dict[tuple[str, str], dict[str, Difference]] = {}
    for row in results.paired:
        name = condition_name(results, condition_of(row))
        if row.nats is not None:
            columns.setdefault((row.arm, row.against), {})[name] = row.nats
        if row.calibrated is not None and row.calibrated.nats is not None:
            columns.setdefault((f"{row.arm}, after one temperature", row.against), {})[name] = row.calibrated.nats
    names = [condition_name(results, condition) for condition in conditions(results)]
    unit = Unit("nats", 1.0, 3, "nats a token", "nats")
    rows = [
        [Cell(name), *(cell for column in columns.values() for cell in _difference_cells(column.get(name), unit))]
        for name in names
        if any(name in column for column in columns.values())
    ]
    caption = "The same in nats a response token, as trained and after one temperature; 95 % intervals in brackets."
    return Table(caption, _paired_header("noise", columns), rows) if rows else None


def frame_tables(results: Results) -> list[Table]:
    """What the models make of whole frames, and trivial predictors: one table a noise level."""
    found = results.whole_frames
    tables = []
    for condition in dict.fromkeys(condition_of(row) for row in found.runs):
        arms: dict[str, list[FrameValues]] = {}
        for row in [*found.runs, *found.trivial]:
            if condition_of(row) == condition:
                arms.setdefault(str(row.arm or row.name), []).append(row)
        shown = {
            measure: unit
            for measure, unit in FRAME_UNITS.items()
            if any(getattr(row, measure) is not None for rows in arms.values() for row in rows)
        }
        rows = [
            [name, *(_with_range(_known(values, measure), unit.scale, unit.digits) for measure, unit in shown.items())]
            for name, values in arms.items()
        ]
        table = _table(condition_name(results, condition), ["", *(unit.axis for unit in shown.values())], rows)
        tables += [table] if table else []
    return tables


def _known(rows: list[FrameValues], measure: str) -> list[float]:
    return [value for row in rows if (value := getattr(row, measure)) is not None]


def frame_paired_table(results: Results) -> Table | None:
    """Paired differences on whole frames, one row a noise level and measure."""
    found = results.whole_frames.paired
    pairs = list(dict.fromkeys((row.arm, row.against) for row in found))
    rows = []
    for condition in dict.fromkeys(condition_of(row) for row in found):
        of_pair = {(row.arm, row.against): row for row in found if condition_of(row) == condition}
        for measure, unit in FRAME_UNITS.items():
            differences = [getattr(of_pair.get(pair), measure, None) for pair in pairs]
            cells = [cell for each in differences for cell in _difference_cells(each, unit)]
            if any(differences):
                rows.append([Cell(f"{condition.text}: {unit.axis}"), *cells])
    methods = methods_text(found)
    intervals = f", 95 % intervals in brackets: {methods}; units are clips" if methods else ""
    caption = f"Paired differences on whole frames{intervals}."
    return Table(caption, _paired_header("noise", pairs), rows) if rows else None


def shift_table(results: Results) -> Table | None:
    """The metric of every arm on the test part and on other data, without noise, and the trivial predictors."""
    unit, shift, clean = UNITS[results.metric], results.shift, CLEAN
    arms = [arm for arm in results.arm_names if any(run.arm == arm for run in shift.runs)]
    trivial = best_trivial(results, clean)
    own = [_with_range(noise_values(results, arm).get(clean, []), unit.scale, unit.digits) for arm in arms]
    rows = [["the test part", *own, f"{unit.value(trivial[1])} ({trivial[0]})" if trivial else "–"]]
    for name in shift.names:
        count = next((run.n_units for run in shift.runs if run.data == name and run.n_units is not None), None)
        values: dict[str, list[float]] = {arm: [] for arm in arms}
        for run in shift.runs:
            if run.data == name and run.arm in values and run.value is not None:
                values[run.arm].append(run.value)
        usual = [row for row in shift.trivial if row.data == name and row.value is not None]
        rows.append(
            [
                name if count is None else f"{name} ({count:,} rows)",
                *(_with_range(found, unit.scale, unit.digits) for found in values.values()),
                ", ".join(f"{unit.value(row.value)} ({row.name})" for row in usual) or "–",
            ]
        )
    caption = f"Test {unit.axis} without noise, on data that nothing was trained on. {shift_note(results)}"
    return _table(caption, ["data", *arms, "trivial predictor"], rows if shift.names else [])


def shift_paired_table(results: Results) -> Table | None:
    """Paired differences on other data with their intervals, and what each says in words."""
    unit, paired = UNITS[results.metric], results.shift.paired
    pairs = list(dict.fromkeys((row.arm, row.against) for row in paired))
    known = {(row.data, row.arm, row.against): row for row in paired}
    rows = [
        [Cell(name), *(cell for pair in pairs for cell in _difference_cells(known.get((name, *pair)), unit))]
        for name in dict.fromkeys(row.data for row in paired)
    ]
    methods = methods_text(paired)
    intervals = f", 95 % intervals in brackets: {methods}" if methods else ""
    caption = f"Paired differences in {unit.name} ({unit.of_difference}){intervals}."
    return Table(caption, _paired_header("data", pairs), rows) if rows else None


def _areas(results: Results) -> dict[str, dict[str, Area]]:
    """The means over noise levels, by their name and then by arm."""
    found: dict[str, dict[str, Area]] = {}
    for area in results.auc:
        found.setdefault(f"mean, {area_text(results, area)}", {})[area.arm] = area
    return found


def _realised_shares(results: Results) -> str:
    shares: dict[float, list[float]] = {}
    for run in results.runs:
        for row in run.noise:
            if row.share is not None and row.realised_share is not None:
                shares.setdefault(row.share, []).append(row.realised_share)
    return ", ".join(f"{100 * mean(shares[asked]):.1f} % for {100 * asked:g} %" for asked in sorted(shares))


def cost_table(results: Results) -> Table | None:
    """Time and memory of a training step relative to the baseline, seconds a run, waits for data, and convergence."""
    against = f"× {results.baseline}"
    columns = [
        (f"time a step ({against})", "step_time_ratio", 1.0, 2),
        (f"peak memory ({against})", "peak_memory_ratio", 1.0, 2),
        ("seconds a run", "seconds", 1.0, 0),
        ("waits for data, % of a step", "data_share", 100.0, 1),
        ("fall of the validation loss over the last fifth, %", "late_fall", 100.0, 1),
    ]
    columns = [column for column in columns if any(getattr(run, column[1]) is not None for run in results.runs)]
    rows = []
    for arm in results.arm_names:
        runs = results.runs_of(arm)
        cells = [
            _with_range([value for run in runs if (value := getattr(run, name)) is not None], scale, digits)
            for _, name, scale, digits in columns
        ]
        if any(cell != number(None, 0) for cell in cells):
            rows.append([arm, *cells])
    return _table("Cost of training", ["arm", *(title for title, *_ in columns)], rows)


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as (name, text) pairs, names made readable.

    >>> list(flatten({"rows": {"train": 3200}, "kinds": ["a", "b"], "none": None}))
    [('rows train', '3200'), ('kinds', 'a, b'), ('none', '–')]
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, f"{name} {key}".replace("_", " ").strip())
    elif isinstance(value, list | tuple) and any(isinstance(item, dict | list | tuple) for item in value):
        for place, item in enumerate(value):
            yield from flatten(item, f"{name} {place + 1}")
    elif isinstance(value, list | tuple):
        yield name, ", ".join(str(item) for item in value) or number(None, 0)
    elif isinstance(value, float):
        yield name or "value", f"{value:.4g}"
    else:
        yield name or "value", number(None, 0) if value is None else str(value)


def _scaled(value: float | None, scale: float, digits: int) -> str:
    return number(None if value is None else scale * value, digits)


def _with_range(values: list[float], scale: float, digits: int) -> str:
    if not values:
        return number(None, 0)
    mean = number(scale * sum(values) / len(values), digits)
    low, high = number(scale * min(values), digits), number(scale * max(values), digits)
    return mean if low == high else f"{mean} ({low}–{high})"
