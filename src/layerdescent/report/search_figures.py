"""The figures of the search page: how values move with the settings, and what an alpha costs."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from layerdescent.report.figures import Look, arm_looks, panel_grid
from layerdescent.report.ink import ARMS, FAINT, GRID, TEXT, cell_ink
from layerdescent.report.search_results import Candidate, Search
from layerdescent.report.units import UNITS, number
from layerdescent.tables import plain

_ACROSS = ("alpha", "learning_rate")  # what lies along x where it was searched, and what along y
_UP = ("dual_lr", "weight_decay")
_GAP = 0.04  # between cells, whose width is 1


def looks(search: Search) -> dict[str, Look]:
    """Colour and marker of each arm, as on the report page."""
    constrained = {row.arm for row in search.candidates if row.constrained}
    return arm_looks(search.arm_names, search.baseline, constrained)


def sensitivity(search: Search, arm: str, *, narrow: bool) -> Figure | None:
    """A heat map of the value over two of the searched fields, one for each combination of the others."""
    fields = search.searched(arm)
    if not fields:
        return None
    x = next((name for name in _ACROSS if name in fields), next(iter(fields)))
    others = [name for name in fields if name != x]
    y = next((name for name in _UP if name in others), others[0] if others else None)
    rest = [name for name in others if name != y]
    combinations = list(product(*(fields[name] for name in rest)))
    columns = 1 if narrow else min(len(combinations), 3 if len(fields[x]) < 5 else 2)
    rows_up = len(fields[y]) if y else 1
    figure, grid = panel_grid(-(-len(combinations) // columns), columns, narrow=narrow, height=1.15 + 0.56 * rows_up)
    candidates = search.candidates_of(arm)
    shade = _shades(search, candidates)
    for axes, values in zip(grid.flat, combinations, strict=False):
        wanted = dict(zip(rest, values, strict=True))
        for candidate in candidates:
            if all(candidate.settings[name] == value for name, value in wanted.items()):
                place = (
                    fields[x].index(candidate.settings[x]),
                    fields[y].index(candidate.settings[y]) if y else 0,
                )
                _cell(axes, search, candidate, place, shade)
        _category_axis(axes, fields, x, y)
        axes.set_title(", ".join(f"{name} {plain(value)}" for name, value in wanted.items()))
    for axes in grid.flat[len(combinations) :]:
        axes.set_axis_off()
    return figure


def price_of_alpha(search: Search, *, narrow: bool) -> Figure | None:
    """What each alpha costs in clean validation value, with the price stated beforehand."""
    arms = {
        arm: rows
        for arm in search.arm_names
        if (rows := [row for row in search.candidates_of(arm) if row.alpha is not None and row.price is not None])
    }
    if not any(len({row.alpha for row in rows}) > 1 for rows in arms.values()):
        return None
    figure, [[axes]] = panel_grid(1, 1, narrow=narrow, height=3.9)
    look, unit = looks(search), UNITS[search.metric]
    sign = -100 if search.metric == "accuracy" else 100  # of a price, to a difference in value
    for arm, rows in arms.items():
        colour, marker = look[arm].colour, look[arm].marker
        for row in rows:
            face = colour if row.feasible else "none"
            point = ([row.alpha], [sign * (row.price or 0.0)])
            axes.scatter(*point, s=22, marker=marker, facecolors=face, edgecolors=colour, linewidths=1, alpha=0.75)
            if row.chosen:
                axes.scatter(*point, s=150, marker="o", facecolors="none", edgecolors=colour, linewidths=1.8)
        finalists = sorted((row for row in rows if row.finalist), key=lambda row: row.alpha or 0.0)
        if len({row.alpha for row in finalists}) == len(finalists):
            axes.plot(
                [row.alpha or 0.0 for row in finalists],
                [sign * (row.price or 0.0) for row in finalists],
                color=colour,
                linewidth=1.6,
                zorder=1,
            )
    limit = sign * search.price
    alphas = sorted({row.alpha or 0.0 for rows in arms.values() for row in rows})
    axes.axhline(0, color=FAINT, linewidth=0.9, zorder=0)
    axes.axhline(limit, color=FAINT, linestyle=(0, (5, 3)), linewidth=1.1, zorder=0)
    for height, text, other in ((0.0, f"{search.baseline}’s best", limit), (limit, "price stated beforehand", 0.0)):
        above = height >= other  # away from each other, however near the lines lie
        axes.annotate(
            text, (1, height), (0, 3 if above else -4), xycoords=("axes fraction", "data"),
            textcoords="offset points", ha="right", va="bottom" if above else "top", color=FAINT, fontsize=8.5,
        )  # fmt: skip
    axes.set_xticks(alphas, [f"{alpha:g}" for alpha in alphas])
    axes.set_xlabel("alpha")
    against = "points" if search.metric == "accuracy" else "%"
    axes.set_ylabel(f"validation {unit.name} against {search.baseline} ({against})")
    axes.margins(x=0.05, y=0.12)
    handles = [
        Line2D([], [], color=look[arm].colour, marker=look[arm].marker, linewidth=1.6, markersize=5, label=arm)
        for arm in arms
    ]
    kinds = {"feasible": TEXT, "not feasible": "none"}
    handles += [
        Line2D([], [], linewidth=0, marker="o", color=TEXT, markerfacecolor=face, markersize=4.5, label=name)
        for name, face in kinds.items()
    ]
    handles.append(
        Line2D([], [], linewidth=0, marker="o", color=TEXT, markerfacecolor="none", markersize=11, label="chosen")
    )
    figure.legend(handles=handles, loc="outside upper left", ncols=2 if narrow else len(handles), handlelength=2.2)
    return figure


def _shades(search: Search, candidates: Sequence[Candidate]) -> dict[int, float]:
    """How strong each candidate's cell is: 1 for the best value of the arm, 0 for the worst."""
    sign = 1 if search.metric == "accuracy" else -1
    merits = {id(row): sign * row.value for row in candidates if row.value is not None}
    low, high = min(merits.values(), default=0.0), max(merits.values(), default=0.0)
    return {key: (merit - low) / (high - low) if high > low else 0.5 for key, merit in merits.items()}


def _cell(axes: Axes, search: Search, candidate: Candidate, place: tuple[int, int], shade: dict[int, float]) -> None:
    x, y = place
    left, bottom, size = x - 0.5 + _GAP / 2, y - 0.5 + _GAP / 2, 1 - _GAP
    failed = candidate.value is None
    usable = not failed and candidate.feasible is not False
    axes.add_patch(
        Rectangle(
            (left, bottom),
            size,
            size,
            facecolor=cell_ink(shade[id(candidate)]) if usable else "none",
            edgecolor="none" if usable else GRID,
            hatch=None if usable else "////",
            linewidth=0 if usable else 0.8,
        )
    )
    if candidate.chosen or candidate.finalist:
        axes.add_patch(
            Rectangle(
                (left, bottom),
                size,
                size,
                facecolor="none",
                edgecolor=ARMS[1] if candidate.chosen else FAINT,
                linewidth=2.4 if candidate.chosen else 1.0,
                zorder=3,
            )
        )
    if failed:
        axes.annotate("failed", (x, y), ha="center", va="center", color=FAINT, fontsize=8)
        return
    unit = UNITS[search.metric]
    weight: Any = "bold" if candidate.chosen else "normal"
    colour = TEXT if usable else FAINT
    axes.annotate(
        unit.value(candidate.value), (x, y), (0, 1), textcoords="offset points",
        ha="center", va="bottom", color=colour, fontweight=weight,
    )  # fmt: skip
    axes.annotate(
        number(candidate.loss, 4), (x, y), (0, -1), textcoords="offset points",
        ha="center", va="top", color=colour, fontsize=7.5,
    )  # fmt: skip


def _category_axis(axes: Axes, fields: dict[str, list[Any]], x: str, y: str | None) -> None:
    """One step for each value, in the order of the recipe."""
    axes.set_xlim(-0.5, len(fields[x]) - 0.5)
    axes.set_xticks(range(len(fields[x])), [_short(value) for value in fields[x]])
    axes.set_xlabel(x)
    axes.set_ylim(-0.5, (len(fields[y]) if y else 1) - 0.5)
    axes.set_yticks(range(len(fields[y])) if y else [], [_short(value) for value in fields[y]] if y else [])
    axes.set_ylabel(y or "")
    axes.grid(visible=False)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _short(value: Any) -> str:
    text = plain(value)
    return text if len(text) <= 18 else text[:17] + "…"
