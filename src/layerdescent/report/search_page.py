"""Writes the page of a search: what was tried, what was chosen, and how much hangs on it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from layerdescent.errors import RunError
from layerdescent.files import write_text
from layerdescent.layers import join
from layerdescent.recipes.yaml_text import write_yaml
from layerdescent.report import search_figures
from layerdescent.report.render import FigureView, render, slug, stored_figure
from layerdescent.report.search_results import Candidate, Search, read_search
from layerdescent.report.tables import Cell, Table, flatten
from layerdescent.report.units import UNITS, number
from layerdescent.tables import plain, settings_line

_EVERY_TRIAL_IS_A_ROW = "One seed for each setting: differences of the size that another seed makes decide nothing."


def write_search_page(source: dict[str, Any] | Path | str, folder: Path | str) -> Path:
    """Writes `search.html` and its figures from what `layerdescent search` stored.

    Args:
        source: The dictionary, a `search.json`, or a folder that holds one.
        folder: Where the page goes; made when missing.

    Returns:
        The path of the page.

    Raises:
        InputError: The file is not there, or a field is missing or of the wrong kind.
        RunError: The file is damaged, or the page cannot be written.
    """
    search = read_search(source)
    folder = Path(folder)
    page = folder / "search.html"
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        write_text(page, _page(search, folder / "figures"))
    except OSError as error:
        raise RunError(f"{folder}: the page cannot be written ({error.strerror or error})") from error
    return page


def _page(search: Search, folder: Path) -> str:
    looks = search_figures.looks(search)
    sensitivity = {
        arm: stored_figure(
            search_figures.sensitivity, (search, arm), folder, f"search-{slug(arm)}", _caption(search, arm)
        )
        for arm in search.arm_names
    }
    price = stored_figure(search_figures.price_of_alpha, (search,), folder, "search-price", _price_caption(search))
    drawn: dict[str, FigureView] = {arm: view for arm, view in sensitivity.items() if view is not None}
    return render(
        "search.html.j2",
        figures=[*drawn.values(), *([price] if price else [])],
        looks=looks.values(),
        title=search.title or search.experiment,
        search=search,
        introduction=_introduction(search),
        choices=[(choice, _chosen_text(search, choice)) for choice in search.choices],
        arm_looks=looks,
        sensitivity=drawn,
        price=price,
        layer_table=_layer_table(search),
        candidate_tables={arm: _candidate_table(search, arm) for arm in search.arm_names},
        trial_tables={arm: _trial_table(search, arm) for arm in search.arm_names} if len(search.seeds) > 1 else {},
        remarks=_remarks(search),
        environment=list(flatten(search.environment)),
        recipe=write_yaml(search.recipe) if search.recipe else "",
    )


def _introduction(search: Search) -> str:
    counts = {arm: len(search.candidates_of(arm)) for arm in search.arm_names}
    same = len(set(counts.values())) == 1
    each = (
        f"{next(iter(counts.values()))} settings of each arm ({join(search.arm_names)})"
        if same
        else join([f"{count} settings of {arm}" for arm, count in counts.items()])
    )
    seeds = f"seed {search.seeds[0]}" if len(search.seeds) == 1 else f"seeds {join([str(s) for s in search.seeds])}"
    runs = f"{len(search.trials)} runs in all"
    return f"{each} were trained with {seeds}, {runs}, and judged on clean validation data alone."


def _chosen_text(search: Search, choice: Any) -> str:
    if choice.settings is None:
        return "nothing"
    unit = UNITS[search.metric]
    return f"{settings_line(choice.settings)}: validation {unit.axis} {unit.value(choice.value)}"


def _remarks(search: Search) -> list[str]:
    found = []
    if search.unequal:
        found.append(
            "The arms had different numbers of trials, so what was chosen for them must not be compared: "
            "this is a study of sensitivity."
        )
    failed = sum(trial.failed is not None for trial in search.trials)
    if failed:
        found.append(f"{failed} of {len(search.trials)} runs failed: their loss stopped being a number.")
    if len(search.seeds) == 1:
        found.append(_EVERY_TRIAL_IS_A_ROW)
    return found


def _caption(search: Search, arm: str) -> str:
    rows = search.candidates_of(arm)
    text = (
        f"{arm}: validation {UNITS[search.metric].axis}, and below it the loss of the last layer; the stronger the "
        "colour, the better. Orange frame: chosen."
    )
    if any(row.constrained for row in rows):
        text += " Hatched: not feasible. Thin frame: the best feasible dual settings of an alpha."
    return text


def _price_caption(search: Search) -> str:
    worse = "below" if search.metric == "accuracy" else "above"
    return (
        f"Clean validation {UNITS[search.metric].name} against the best of {search.baseline}; a mark for each setting. "
        "The line joins the best feasible dual settings of each alpha; of these, the largest alpha that is not "
        f"{worse} the dashed line is taken."
    )


def _candidate_table(search: Search, arm: str) -> Table:
    """One row a combination of settings, means over seeds."""
    rows, unit = search.candidates_of(arm), UNITS[search.metric]
    constrained = any(row.constrained for row in rows)
    fields = list(dict.fromkeys(name for row in rows for name in row.settings))
    header = [*fields, unit.axis, "loss, last layer", f"price ({'points' if search.metric == 'accuracy' else '%'})"]
    header += ["largest violation", "feasible", "largest multiplier at the end", "steps with λ > 0 (%)"] * constrained
    body = []
    for row in rows:
        trials = search.trials_of(row)
        cells = [plain(row.settings.get(name)) for name in fields]
        cells += [unit.value(row.value), number(row.loss, 4), number(_percent(row.price), 2, signed=True)]
        if constrained:
            cells += [
                number(row.max_violation, 4, signed=True),
                {True: "yes", False: "no", None: "–"}[row.feasible],
                number(_largest([trial.multipliers for trial in trials]), 3),
                number(_percent(_largest([trial.lambda_share for trial in trials])), 0),
            ]
        body.append([Cell(cell) for cell in [*cells, _seconds(trials)]] + [_mark(row)])
    seeds = f", means over {len(search.seeds)} seeds" if len(search.seeds) > 1 else ""
    return Table(f"{arm}: {len(rows)} settings{seeds}", [*header, "seconds a run", "chosen"], body)


def _trial_table(search: Search, arm: str) -> Table:
    """One row a run."""
    unit = UNITS[search.metric]
    body = [
        [
            Cell(cell)
            for cell in (
                settings_line(trial.settings),
                str(trial.seed),
                unit.value(trial.value),
                number(trial.loss, 4),
                number(trial.max_violation, 4, signed=True),
                {True: "yes", False: "no", None: "–"}[trial.feasible],
                trial.failed or "",
            )
        ]
        for trial in search.trials
        if trial.arm == arm
    ]
    header = ["settings", "seed", unit.axis, "loss, last layer", "largest violation", "feasible", "failed"]
    return Table(f"{arm}: every run", header, body)


def _layer_table(search: Search) -> Table | None:
    """The validation loss of every layer under the chosen settings, means over seeds."""
    columns: dict[str, list[float | None]] = {}
    for row in search.candidates:
        trials = search.trials_of(row)
        if row.chosen and trials and all(trial.layer_losses for trial in trials):
            columns[row.arm] = [_mean(values) for values in zip(*(trial.layer_losses for trial in trials), strict=True)]
    if not columns:
        return None
    layers = max(len(column) for column in columns.values())
    body = [
        [
            Cell(str(layer)),
            *(Cell(number(column[layer] if layer < len(column) else None, 4)) for column in columns.values()),
        ]
        for layer in range(layers)
    ]
    return Table("Validation loss per layer under the settings chosen", ["layer", *columns], body)


def _mark(row: Candidate) -> Cell:
    if row.chosen:
        return Cell("★ chosen", "better")
    return Cell("failed" if row.value is None else "best of its alpha" if row.finalist else "")


def _seconds(trials: Sequence[Any]) -> str:
    return number(_mean([trial.seconds for trial in trials]), 0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _largest(lists: Sequence[Sequence[float | None]]) -> float | None:
    return max((value for values in lists for value in values if value is not None), default=None)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
