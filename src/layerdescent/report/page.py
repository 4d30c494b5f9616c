"""Writes the page: one HTML file that needs nothing but itself, and the figures beside it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from layerdescent.errors import InputError, RunError
from layerdescent.files import write_text
from layerdescent.recipes.yaml_text import write_yaml
from layerdescent.report import figures, tables, words
from layerdescent.report.pictures import picture_figure, read_pictures
from layerdescent.report.render import FigureView, render, slug, stored_figure
from layerdescent.report.results import Results, read_results
from layerdescent.report.summary import clipped

Source = dict[str, Any] | Path | str


def write_report(results: Source | Sequence[Source], folder: Path | str) -> Path:
    """Writes `report.html` and `figures/` from one or several experiments' results.

    Args:
        results: What `layerdescent compare` stored: the dictionary, a `results.json`, a folder that holds one, or
            several of these.
        folder: Where the page goes; made when missing.

    Returns:
        The path of the page.

    Raises:
        InputError: A results file is not there, or a field is missing or of the wrong kind.
        RunError: A results file is damaged, or the page cannot be written.

    >>> import tempfile
    >>> run = {"arm": "erm", "seed": 0, "layers": [0, 1], "layer_losses": {"test": [0.69, 0.35]}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report({"experiment": "demo", "metric": "accuracy", "runs": [run]}, folder).name
    'report.html'
    """
    sources = [results] if isinstance(results, dict | Path | str) else list(results)
    if not sources:
        raise InputError("report: no results given; name at least one folder that `layerdescent compare` wrote")
    experiments = [read_results(source) for source in sources]
    folder = Path(folder)
    beside = [folder if isinstance(source, dict) else _folder_of(Path(source)) for source in sources]
    try:
        (folder / "figures").mkdir(parents=True, exist_ok=True)
        views = [
            _view(experiment, home, folder / "figures", prefix=f"{place + 1}-" if len(experiments) > 1 else "")
            for place, (experiment, home) in enumerate(zip(experiments, beside, strict=True))
        ]
        page = folder / "report.html"
        write_text(page, _render(views))
    except OSError as error:
        raise RunError(f"{folder}: the report cannot be written ({error.strerror or error})") from error
    return page


def _folder_of(source: Path) -> Path:
    return source if source.is_dir() else source.parent


def _view(results: Results, home: Path, folder: Path, prefix: str) -> dict[str, Any]:
    """Everything the template shows of one experiment, whose files lie at `home`; figures go to `folder`."""
    inside = clipped(results)
    duplicates = results.data.get("duplicates") if results.duplicates is None else results.duplicates
    shared, own = words.split_settings(results.arms)
    drawn = {figure.name.removeprefix(prefix): figure for figure in _figures(results, home, folder, prefix)}
    return {
        "id": f"{prefix}experiment",
        "prefix": prefix,
        "results": results,
        "title": results.title or results.experiment,
        "introduction": words.introduction(results),
        "shared_settings": words.settings_text(shared) if shared else "",
        "arm_settings": {arm: words.settings_text(settings) for arm, settings in own.items()},
        "looks": figures.looks(results),
        "headline": words.headline(results),
        "figures": drawn,
        "training": {arm: drawn[f"training-{slug(arm)}"] for arm in _trained_under_constraints(results)},
        "arms": [arm for arm in results.arm_names if results.runs_of(arm)],
        "inflation": {arm: words.inflation_sentences(results, arm) for arm in results.arm_names},
        "layer_tables": {arm: tables.layer_table(results, arm) for arm in results.arm_names},
        "flags": words.flag_sentences(results),
        "value_tables": _there(
            tables.value_table(results),
            tables.value_table(inside, tables.CLIPPED) if inside else None,
            tables.nats_table(results),
        ),
        "paired_tables": _there(
            tables.paired_table(results),
            tables.paired_table(inside, tables.CLIPPED) if inside else None,
            tables.nats_paired_table(results),
        ),
        "frames": words.frames_text(results),
        "frame_tables": tables.frame_tables(results),
        "frame_paired_table": tables.frame_paired_table(results),
        "shift_table": tables.shift_table(results),
        "shift_paired_table": tables.shift_paired_table(results),
        "shift_sentences": words.shift_sentences(results),
        "shift_data": {
            name: list(tables.flatten({key: value for key, value in results.shift.of(name).items() if key != "name"}))
            for name in results.shift.names
        },
        "cost_table": tables.cost_table(results),
        "convergence": words.convergence_sentence(results),
        "cost": list(tables.flatten(results.cost or {})),
        "environment": list(tables.flatten(results.environment)),
        "data": list(tables.flatten({name: value for name, value in results.data.items() if name != "duplicates"})),
        "duplicates": list(tables.flatten(duplicates)) if duplicates is not None else [],
        "recipe": write_yaml(results.recipe) if results.recipe else "",
        "one_seed": words.ONE_RUN_SENTENCE if len(results.seed_values) == 1 else "",
    }


def _there(*found: tables.Table | None) -> list[tables.Table]:
    return [table for table in found if table is not None]


def _trained_under_constraints(results: Results) -> list[str]:
    """The arms whose multipliers moved, or could have: those trained under constraints with a history."""
    return [
        arm
        for arm in results.arm_names
        if any(run.constrained and run.history and run.history.step and _drawable(run) for run in results.runs_of(arm))
    ]


def _drawable(run: Any) -> bool:
    return any((run.history.violations, run.history.weights, run.history.multipliers))


def _figures(results: Results, home: Path, folder: Path, prefix: str) -> Iterator[FigureView]:
    bands = words.band_text(results)
    sample = words.sample_text(results)
    pictures = read_pictures(results, home)
    plan: list[tuple[str, Callable[..., Figure | None], tuple[Any, ...], str]] = [
        (
            "layer-losses",
            figures.layer_losses,
            (results,),
            "Mean loss on test data, read at every layer through the model’s own "
            f"{'decoder' if results.of_denoisers else 'head'}. {bands}",
        ),
        *(
            [("pictures", picture_figure, (results, pictures), words.pictures_text(pictures.part))]
            if pictures is not None
            else []
        ),
        *(
            (
                f"training-{slug(arm)}",
                figures.training,
                (results, arm),
                f"{arm}: one line a layer, labelled with its number"
                + ("; the first seed, other seeds faint." if len(results.runs_of(arm)) > 1 else "."),
            )
            for arm in _trained_under_constraints(results)
        ),
        (
            "frontier",
            figures.frontier,
            (results,),
            f"Grey: checkpoints of {results.baseline} and of its variants, larger with more steps, joined along "
            "training. Large marks: the arms’ final models, means over seeds (seeds faint).",
        ),
        (
            "robustness",
            figures.robustness,
            (results,),
            f"{sample[0].upper()}{sample[1:]}. {bands} Dashed: trivial predictors. "
            "Differences are paired; bars are 95 % intervals.",
        ),
    ]
    for name, function, args, caption in plan:
        view = stored_figure(function, args, folder, f"{prefix}{name}", caption)
        if view is not None:
            yield view


def _render(views: Sequence[dict[str, Any]]) -> str:
    return render(
        "template.html.j2",
        figures=[figure for view in views for figure in view["figures"].values()],
        looks=[look for view in views for look in view["looks"].values()],
        title=" · ".join(view["title"] for view in views),
        experiments=views,
    )
