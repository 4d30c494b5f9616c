"""The figures of the page, each drawn twice from the same numbers: wide for a desk and for paper, narrow for a phone.

A function returns None where the results lack what it would show.
"""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, cycle, pairwise
from textwrap import wrap
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from layerdescent.noise_kinds import replaced_units
from layerdescent.report.ink import ARMS, BASELINE, FAINT, STYLE, TEXT, layer_ink
from layerdescent.report.results import PerLayer, Results
from layerdescent.report.summary import (
    Band,
    Condition,
    NoiseAxis,
    Variant,
    base_condition,
    condition_of,
    conditions,
    constant_loss,
    frontier_variants,
    layer_band,
    layer_means,
    loss_digits,
    noise_axes,
    noise_band,
    noise_values,
    trivial_values,
)
from layerdescent.report.units import UNITS, number

WIDE, NARROW = 10.5, 4.3  # inches
_MARKERS = "osD^vPX"
_SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
_MOST_LAYER_LABELS = 9
_NARROW_LABEL = 17  # characters in a line, so that labels leave room for the lines
_MOST_COLUMNS = 3  # of kinds of noise beside each other


@dataclass(frozen=True)
class Look:
    """How one arm is drawn everywhere."""

    colour: str
    marker: str


@dataclass(frozen=True)
class _End:
    """A label for the right margin, and the point it belongs to."""

    text: str
    x: float
    y: float
    colour: str


def looks(results: Results) -> dict[str, Look]:
    """Colour and marker of each arm of a comparison."""
    constrained = {run.arm for run in results.runs if run.constrained}
    return arm_looks(results.arm_names, results.baseline, constrained)


def arm_looks(arms: Sequence[str], baseline: str, constrained: Container[str]) -> dict[str, Look]:
    """Neutral for the baseline, the strong ones for the others in their order, those under constraints first."""
    order = sorted((arm for arm in arms if arm != baseline), key=lambda arm: arm not in constrained)
    found = {arm: Look(ARMS[place % len(ARMS)], _MARKERS[1 + place % 6]) for place, arm in enumerate(order)}
    return {arm: found.get(arm, Look(BASELINE, _MARKERS[0])) for arm in arms}


def draw(figure: Callable[..., Figure | None], *args: Any, narrow: bool) -> Figure | None:
    """Calls one of the functions below under the page's style."""
    with matplotlib.rc_context(STYLE):
        drawn = figure(*args, narrow=narrow)
        if drawn is not None:
            _lay_out(drawn)
            drawn.set_layout_engine("none")  # once, not again for every format
        return drawn


def layer_losses(results: Results, *, narrow: bool) -> Figure | None:
    """The loss per layer on test data, one line an arm: the picture people come for."""
    bands = {arm: layer_band(results, arm) for arm in results.arm_names}
    bands = {arm: band for arm, band in bands.items() if band.x}
    if not bands:
        return None
    figure, [[axes]] = panel_grid(1, 1, narrow=narrow, height=4.7 if not narrow else 4.1)
    look, digits = looks(results), loss_digits(results)
    ends = []
    for arm, band in bands.items():
        _line(axes, band, look[arm], narrow=narrow)
        calibrated = layer_means(results, arm, lambda run: run.calibrated_losses.get("test"))
        if calibrated:
            axes.plot(list(calibrated), list(calibrated.values()), ":", color=look[arm].colour, linewidth=1.1)
        label = f"{arm}  {number(band.mean[-1], digits)}"
        if narrow:
            label = "\n".join(wrap(label, _NARROW_LABEL))
        ends.append(_End(label, band.x[-1], band.mean[-1], look[arm].colour))
    deepest = max(band.x[-1] for band in bands.values())
    constant = constant_loss(results)
    if constant is not None:
        axes.axhline(constant, color=FAINT, linestyle=(0, (5, 3)), linewidth=1.1, zorder=1)
        ends.append(_End(f"best constant\npredictor  {number(constant, digits)}", deepest, constant, FAINT))
    values = [value for band in bands.values() for value in band.mean]
    if min(values) > 0 and max(values) > 20 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_locator(MaxNLocator(8 if narrow else 13, integer=True))
    start = " (0: the noisy input)" if results.of_denoisers else " (0: embeddings)"
    axes.set_xlabel("layer" + (start if min(band.x[0] for band in bands.values()) == 0 else ""))
    axes.set_ylabel("mean test loss" + (" (squared error)" if results.metric == "rmse" else " (nats)"))
    if any(run.calibrated_losses.get("test") for run in results.runs):
        _legend_of_lines(axes, [("as trained", "-"), ("recalibrated", ":")])
    axes.margins(x=0.02)
    _label_ends(figure, [(axes, ends)])
    return figure


def training(results: Results, arm: str, *, narrow: bool) -> Figure | None:
    """Violations, Lagrangian weights and multipliers of one arm over training, one line a layer."""
    runs = [run for run in results.runs_of(arm) if run.history is not None and run.history.step]
    names = {"violations": "c", "weights": "w", "multipliers": "λ"}
    shown = [name for name in names if any(getattr(run.history, name) for run in runs)]
    if not runs or not shown:
        return None
    clips = (results.arms.get(arm) or {}).get("clip_weights")
    titles = {
        "violations": "Violations (at or below 0: met)",
        "weights": "Weights in the Lagrangian" + ("\n(those below 0 clipped in the gradient)" if clips else ""),
        "multipliers": "Multipliers",
    }
    figure, grid = panel_grid(
        *((len(shown), 1) if narrow else (1, len(shown))), narrow=narrow, height=2.7 if narrow else 3.5
    )
    labels: list[tuple[Axes, list[_End]]] = []
    for axes, name in zip(grid.flat, shown, strict=True):
        axes.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
        axes.set_title(titles[name])
        axes.set_xlabel("optimiser step")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        ends = []
        first = True
        for run in runs:
            assert run.history is not None
            rows: list[PerLayer] = getattr(run.history, name)
            table = [run.by_layer(row) for row in rows]
            layers = sorted({layer for row in table for layer in row})
            for place, layer in enumerate(layers):
                points = [(step, row[layer]) for step, row in zip(run.history.step, table, strict=True) if layer in row]
                x, y = zip(*points, strict=True)
                colour = layer_ink(layer, max(run.layers) + 1)
                axes.plot(x, y, color=colour, linewidth=1.6 if first else 0.8, alpha=1.0 if first else 0.35)
                if first and _is_labelled(place, len(layers)):
                    ends.append(_End(f"{names[name]}{str(layer).translate(_SUBSCRIPTS)}", x[-1], y[-1], colour))
            first = first and not layers
        labels.append((axes, ends))
        axes.margins(x=0.01)
    _label_ends(figure, labels)
    return figure


def robustness(results: Results, *, narrow: bool) -> Figure | None:
    """The metric against the level of each kind of noise, and the paired differences to the baseline below."""
    noises = noise_axes(results)
    if not noises:
        return None
    unit = UNITS[results.metric]
    rows_of_panels = [False, True] if any(row.difference is not None for row in results.paired) else [False]
    panels = [(noise, paired) for noise in noises for paired in rows_of_panels]
    if narrow:
        figure, grid = panel_grid(len(panels), 1, narrow=True, height=2.8)
    elif len(noises) == 1:
        figure, grid = panel_grid(1, len(panels), narrow=False, height=4.0)
    elif len(noises) > _MOST_COLUMNS:
        figure, grid = panel_grid(len(noises), len(rows_of_panels), narrow=False, height=3.1)
    else:
        figure, grid = panel_grid(len(rows_of_panels), len(noises), narrow=False, height=3.3)
        panels = [(noise, paired) for paired in rows_of_panels for noise in noises]
    look = looks(results)
    names: list[tuple[Axes, list[_End]]] = []
    for axes, (noise, paired) in zip(grid.flat, panels, strict=True):
        if paired:
            _differences(axes, results, noise, look)
        else:
            ends = _values(axes, results, noise, look)
            if narrow:  # one word a line: the margin is as wide below, where there are no names
                ends = [replace(end, text=end.text.replace(" ", "\n")) for end in ends]
            names.append((axes, ends))
        axes.set_title(f"{noise.kind} noise" + (f": difference to {results.baseline}" if paired else ""))
        axes.set_xlabel(f"{replaced_units(noise.kind)} replaced (%)" if noise.by_share else "noise level γ")
        axes.set_ylabel(f"{unit.of_difference} (95 % interval)" if paired else f"test {unit.axis}")
    _legend_of_arms(figure, results, look, narrow=narrow)
    _label_ends(figure, names)
    return figure


def frontier(results: Results, *, narrow: bool) -> Figure | None:
    """Clean value against value under noise: ordinary training's checkpoints as a path, every arm's last model."""
    variants = frontier_variants(results)
    measured = list(dict.fromkeys(condition_of(point) for points in variants.values() for point in points))
    if not measured:
        return None
    unit = UNITS[results.metric]
    columns = 1 if narrow else min(3, max(2, len(measured)))
    rows = -(-len(measured) // columns)
    figure, grid = panel_grid(rows, columns, narrow=narrow, height=3.3 if narrow else 3.7)
    look = looks(results)
    styles = _frontier_styles(variants)
    for axes, condition in zip(grid.flat, measured, strict=False):
        for variant, points in variants.items():
            path = [point for point in points if condition_of(point) == condition]
            x = [unit.scale * (point.in_distribution or 0.0) for point in path]
            y = [unit.scale * (point.value or 0.0) for point in path]
            marker, line = styles[variant]
            faces = {"facecolors": "none", "edgecolors": BASELINE} if marker in _HOLLOW else {"color": BASELINE}
            axes.plot(x, y, line, color=BASELINE, linewidth=1.0, alpha=0.6)
            axes.scatter(x, y, s=np.linspace(8, 36, len(x) + 1)[1:], marker=marker, linewidths=0.9, zorder=2, **faces)
            if len(path) == 1 and variant.family != "training":  # no line that tells the value
                note = f"{variant.value:g}"
                axes.annotate(note, (x[0], y[0]), (4, -9), textcoords="offset points", color=FAINT, fontsize=7.5)
        for arm in results.arm_names:
            _final_points(axes, results, arm, condition, look[arm], unit.scale)
        axes.set_title(f"{condition.text}")
        axes.set_xlabel(f"{'clean' if results.base is None else 'in-distribution'} {unit.axis}")
        axes.set_ylabel(f"{unit.axis} under noise")
        axes.grid(visible=True, axis="both")
        axes.margins(0.08)
        better = "better ↙" if results.lower_is_better else "better ↗"
        axes.set_title(better, loc="right", color=FAINT, fontsize=8.5)
    for axes in grid.flat[len(measured) :]:
        axes.set_axis_off()
    paths = [
        Line2D(
            [],
            [],
            color=BASELINE,
            linewidth=1.0,
            linestyle=line,
            marker=marker,
            markerfacecolor="none" if marker in _HOLLOW else BASELINE,
            markersize=5,
            label=variant.text,
        )
        for variant, (marker, line) in styles.items()
    ]
    _legend_of_arms(figure, results, look, narrow=narrow, more=paths)
    return figure


_LineStyle = Literal["-", "--", ":", "-."]
_HOLLOW = "p"  # so that the path is seen through it
_LINES: tuple[_LineStyle, ...] = ("--", ":", "-.")
# Marker and lines of each family; no marker is one of an arm's.
_FAMILIES: dict[str, tuple[str, tuple[_LineStyle, ...]]] = {
    "training": (".", ("-",)),
    "weight decay": ("x", _LINES),
    "label smoothing": ("p", _LINES),
    "width": ("+", _LINES),
}


def _frontier_styles(variants: Iterable[Variant]) -> dict[Variant, tuple[str, _LineStyle]]:
    """Marker and line of each run of the frontier: the marker tells the family, the line the value within it."""
    unused = {family: cycle(lines) for family, (_, lines) in _FAMILIES.items()}
    return {variant: (_FAMILIES[variant.family][0], next(unused[variant.family])) for variant in variants}


def spread(
    targets: Sequence[float], gap: float | Sequence[float], lowest: float = -np.inf, highest: float = np.inf
) -> list[float]:
    """Places for labels that don't touch and are, in least squares, as near to their targets as that allows.

    Neighbours are `gap` apart, or by the mean of their two where each has a height of its own. With sorted targets
    this is isotonic regression of `target_i - (where label i stands in a stack)`, solved by pooling neighbours; bounds
    clip its solution. Where the labels don't fit between them, the lower one holds.

    >>> [round(place, 2) for place in spread([0.5, 0.5, 0.9], gap=0.1)]
    [0.45, 0.55, 0.9]
    >>> [round(place, 2) for place in spread([0.0, 0.0], gap=[0.1, 0.3], lowest=0.05)]
    [0.05, 0.25]
    """
    order = sorted(range(len(targets)), key=lambda one: targets[one])
    heights = [gap if isinstance(gap, int | float) else gap[one] for one in order]
    stack = list(accumulate(((before + after) / 2 for before, after in pairwise(heights)), initial=0.0))
    pools: list[tuple[float, int]] = []
    for rank, one in enumerate(order):
        mean, size = targets[one] - stack[rank], 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        pools.append((mean, size))
    top = max(lowest, highest - stack[-1])
    levels = [min(max(mean, lowest), top) for mean, size in pools for _ in range(size)]
    places = [0.0] * len(targets)
    for rank, (one, level) in enumerate(zip(order, levels, strict=True)):
        places[one] = level + stack[rank]
    return places


def panel_grid(rows: int, columns: int, *, narrow: bool, height: float) -> tuple[Figure, Any]:
    """An empty figure of one of the two widths with panels of this height, and its axes (rows, columns)."""
    layout = ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.1, wspace=0.04, hspace=0.05)
    figure = Figure(figsize=(NARROW if narrow else WIDE, height * rows), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False)


def _lay_out(figure: Figure) -> None:
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def _line(axes: Axes, band: Band, look: Look, *, narrow: bool) -> None:
    if band.low is not None and band.high is not None:
        axes.fill_between(band.x, band.low, band.high, color=look.colour, alpha=0.18, linewidth=0)
    crowded = len(band.x) > (10 if narrow else 26)
    axes.plot(
        band.x, band.mean, color=look.colour, linewidth=2.0, marker="" if crowded else look.marker, markersize=4.5
    )


def _is_labelled(place: int, count: int) -> bool:
    """Whether a layer gets a label: all of a few, evenly chosen ones of many, the first and the last always."""
    chosen = {round(one * (count - 1) / (min(count, _MOST_LAYER_LABELS) - 1 or 1)) for one in range(_MOST_LAYER_LABELS)}
    return place in chosen


def _label_ends(figure: Figure, labels: Sequence[tuple[Axes, list[_End]]]) -> None:
    """Writes labels into the right margins, moved apart where they would touch, each joined to its point."""
    notes = [
        (axes, end, axes.annotate(
            end.text, (end.x, end.y), (1.035, 0.5), textcoords="axes fraction", color=end.colour, va="center",
            arrowprops={"arrowstyle": "-", "color": end.colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3},
        ))
        for axes, ends in labels for end in ends
    ]  # fmt: skip
    _lay_out(figure)  # how far apart labels must be depends on the height of the axes
    for axes, _ in labels:
        mine = [(end, note) for at, end, note in notes if at is axes]
        to_fraction = axes.transData + axes.transAxes.inverted()
        targets = [float(to_fraction.transform((end.x, end.y))[1]) for end, _ in mine]
        line = 1.25 * matplotlib.rcParams["font.size"] * figure.dpi / 72 / axes.bbox.height
        heights = [line * (end.text.count("\n") + 1) for end, _ in mine]
        for (_, note), place in zip(mine, spread(targets, heights, lowest=line / 2, highest=1.0), strict=True):
            note.xyann = (1.035, place)


def _values(axes: Axes, results: Results, noise: NoiseAxis, look: dict[str, Look]) -> list[_End]:
    """Every arm's line, and the trivial predictors'; the names of these are left to do where there are several."""
    along_x, along_y = _scales(results, noise)
    for arm in results.arm_names:
        band = noise_band(results, arm, noise)
        if band.x:
            _line(axes, _scaled(band, along_x, along_y), look[arm], narrow=False)
    paths, ends = _trivial_paths(results, noise), []
    for name, path in paths.items():
        x, y = [along_x * level for level, _ in path], [along_y * value for _, value in path]
        alone = len(x) == 1
        axes.plot(
            x,
            y,
            color=FAINT,
            linestyle=(0, (5, 3)),
            linewidth=1.1,
            marker="_" if alone else "",
            markersize=14,
            zorder=1,
        )
        if len(paths) == 1:
            axes.annotate(name, (x[0], y[0]), (2, 3), textcoords="offset points", color=FAINT, fontsize=8.5)
        else:
            ends.append(_End(name, x[-1], y[-1], FAINT))
    return ends


def _differences(axes: Axes, results: Results, noise: NoiseAxis, look: dict[str, Look]) -> None:
    along_x, along_y = _scales(results, noise)
    axes.axhline(0, color=FAINT, linewidth=0.8, zorder=1)
    rows = [
        row
        for row in results.paired
        if row.against == results.baseline and row.difference is not None and condition_of(row).lies_on(noise)
    ]
    arms = [arm for arm in results.arm_names if any(row.arm == arm for row in rows)]
    levels = sorted({condition_of(row).level for row in rows})
    nearest = min((after - before for before, after in pairwise(levels)), default=1.0)
    # Side by side, or the intervals of several arms would hide each other; but all near the level that they are of.
    step = min(0.16 * nearest, 0.03 * (levels[-1] - levels[0])) if len(levels) > 1 else 0.16
    for place, arm in enumerate(arms):
        shift = step * (place - (len(arms) - 1) / 2)
        mine = [row for row in rows if row.arm == arm]
        x = {id(row): along_x * (condition_of(row).level + shift) for row in mine}
        for row in mine:
            if row.ci95 is not None:
                low, high = row.ci95
                axes.vlines(x[id(row)], along_y * low, along_y * high, color=look[arm].colour, linewidth=1.4)
        y = [along_y * (row.difference or 0.0) for row in mine]
        axes.plot(list(x.values()), y, look[arm].marker, color=look[arm].colour, markersize=4.5)


def _scales(results: Results, noise: NoiseAxis) -> tuple[float, float]:
    """What levels and values are multiplied by on their way to the axes: shares are shown in percent."""
    return 100.0 if noise.by_share else 1.0, UNITS[results.metric].scale


def _trivial_paths(results: Results, noise: NoiseAxis) -> dict[str, list[tuple[float, float]]]:
    paths: dict[str, list[tuple[float, float]]] = {}
    for condition in conditions(results):
        if condition.lies_on(noise):
            for name, value in trivial_values(results, condition).items():
                paths.setdefault(name, []).append((condition.level, value))
    return paths


def _scaled(band: Band, along_x: float, along_y: float) -> Band:
    def times(values: tuple[float, ...] | None, factor: float) -> tuple[float, ...] | None:
        return None if values is None else tuple(factor * value for value in values)

    return Band(
        times(band.x, along_x) or (),
        times(band.mean, along_y) or (),
        times(band.low, along_y),
        times(band.high, along_y),
    )


def _final_points(axes: Axes, results: Results, arm: str, condition: Condition, look: Look, scale: float) -> None:
    values = noise_values(results, arm)
    clean, noisy = values.get(base_condition(results), []), values.get(condition, [])
    if not clean or len(clean) != len(noisy):
        return
    style: dict[str, Any] = {"marker": look.marker, "color": look.colour, "zorder": 3}
    if len(clean) > 1:
        axes.scatter([scale * x for x in clean], [scale * y for y in noisy], s=16, alpha=0.45, linewidths=0, **style)
    axes.scatter([scale * float(np.mean(clean))], [scale * float(np.mean(noisy))], s=64, linewidths=0, **style)


def _legend_of_lines(axes: Axes, kinds: Sequence[tuple[str, Literal["-", ":"]]]) -> None:
    handles = [Line2D([], [], color=TEXT, linestyle=style, linewidth=1.4, label=name) for name, style in kinds]
    axes.legend(handles=handles, loc="best", handlelength=2.2)


def _legend_of_arms(
    figure: Figure, results: Results, look: dict[str, Look], *, narrow: bool, more: Sequence[Line2D] = ()
) -> None:
    arms = [arm for arm in results.arm_names if noise_values(results, arm)]
    handles = [
        Line2D(
            [],
            [],
            color=look[arm].colour,
            marker=look[arm].marker,
            linewidth=0 if more else 2.0,
            markersize=5,
            label=arm,
        )
        for arm in arms
    ]
    columns = (1 if more else 2) if narrow else 4 if more else 6
    entries = [*handles, *more]
    by_row = [entry for column in range(columns) for entry in entries[column::columns]]  # matplotlib fills by column
    figure.legend(handles=by_row, loc="outside upper left", ncols=columns, handlelength=2.2)
