"""Draws the figures of "What we found on text" and "What we found on video" from what lies in results/.

python docs/figures.py    # -> docs/images/found/
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

from layerdescent.report import figures, search_figures
from layerdescent.report.figures import Look
from layerdescent.report.ink import ARMS, BASELINE, FAINT, STYLE
from layerdescent.report.results import Results, read_results
from layerdescent.report.search_results import read_search
from layerdescent.report.summary import best_trivial, conditions, noise_axes

ROOT = Path(__file__).parent.parent
RESULTS, IMAGES = ROOT / "results", ROOT / "docs" / "images" / "found"


def head_inputs(stored: list[tuple[str, dict[str, Any]]]) -> Figure:
    """Spread and probe of each layer, for the first token and for the mean over positions; one row an encoder."""
    figure, axes = figures.panel_grid(len(stored), 2, narrow=False, height=2.7)
    for (name, found), (scale, probes) in zip(stored, axes, strict=True):
        for (pooling, layers), colour, marker in zip(found["poolings"].items(), ARMS, "os", strict=False):
            x = [row["layer"] for row in layers]
            line: Any = {"color": colour, "marker": marker, "markersize": 5, "label": pooling}
            scale.plot(x, [row["spread"] if row["spread"] > 1e-6 else None for row in layers], **line)  # else rounding
            probes.plot(x, [row["probe_loss"] for row in layers], **line)
        scale.set_yscale("log")
        scale.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        scale.set_title(f"{name}: how much the head's input differs between texts")
        probes.set_title(f"{name}: loss of a probe that may rescale it")
        for panel in (scale, probes):
            panel.set_xlabel("layer")
            panel.set_xticks(x)
        scale.legend(loc="lower right")
    return figure


def remedies(results: Results, arms: Sequence[str], noise: tuple[str, float]) -> Figure:
    """For each arm the inflation of its worst layer, and its accuracy against the baseline's, clean and under noise."""
    kind, gamma = noise
    arms = [arm for arm in arms if results.runs_of(arm)]
    figure, [[inflated, clean, noisy]] = figures.panel_grid(1, 3, narrow=False, height=0.42 * len(arms) + 1.3)
    rows = range(len(arms))
    for row, arm in zip(rows, arms, strict=True):
        worst = [max(run.inflation[:-1]) for run in results.runs_of(arm)]
        inflated.plot(worst, [row] * len(worst), "o", color=ARMS[0], markersize=5, alpha=0.6)
        for panel, wanted in ((clean, ("none", 0.0)), (noisy, (kind, gamma))):
            for found in results.paired:
                if found.arm == arm and (found.kind, found.gamma) == wanted:
                    assert found.difference is not None
                    assert found.ci95 is not None
                    low, high = (100 * bound for bound in found.ci95)
                    panel.plot([low, high], [row, row], color=ARMS[0], linewidth=1.6)
                    panel.plot([100 * found.difference], [row], "o", color=ARMS[0], markersize=6)
    for panel in (inflated, clean, noisy):
        panel.set_ylim(len(arms) - 0.5, -0.5)
        panel.set_yticks(rows, arms if panel is inflated else [""] * len(arms))
        panel.axvline(0, color=BASELINE, linewidth=1)
        panel.grid(axis="x")
        panel.grid(visible=False, axis="y")
    inflated.set_title("inflation of the worst layer")
    inflated.set_xlabel("nats, one dot a seed")
    inflated.xaxis.set_major_locator(MaxNLocator(4))
    clean.set_title("accuracy, no noise")
    noisy.set_title(f"accuracy, {kind} γ {gamma:g}")
    for panel in (clean, noisy):
        panel.set_xlabel(f"points against {results.baseline}, 95 %")
    return figure


def six(draw: Callable[[Axes, Results, dict[str, Look]], None]) -> Figure | None:
    """One panel for each data set and network of video whose results are there: networks down, data sets across."""
    found = {name: _results(name, VIDEO_ARMS) for name in VIDEO if (RESULTS / f"{name}.json").is_file()}
    figure, grid = figures.panel_grid(2, 3, narrow=False, height=3.0)
    # Of one arm the same in every panel, whichever arms a panel has.
    look = figures.arm_looks(VIDEO_ARMS, "erm", {"descent", "stated", "descent-under-noise"})
    for panel, (name, title) in zip(grid.flat, VIDEO.items(), strict=True):
        panel.set_title(title)
        if name not in found:
            panel.set_axis_off()
            continue
        draw(panel, found[name], look)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(ScalarFormatter())
        panel.yaxis.set_minor_formatter(NullFormatter())
    handles = [
        Line2D([], [], color=one.colour, marker=one.marker, linewidth=2, markersize=5, label=arm)
        for arm, one in look.items()
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handlelength=2.2)
    return figure


def layer_errors(panel: Axes, results: Results, look: dict[str, Look]) -> None:
    """RMSE of every layer at the training level; a thin line a seed."""
    for arm in results.arm_names:
        for run in results.runs_of(arm):
            losses = run.by_layer(run.layer_losses["test"])
            errors = [loss**0.5 for loss in losses.values()]
            panel.plot(list(losses), errors, color=look[arm].colour, marker=look[arm].marker, markersize=3, linewidth=1)
    panel.set_xlabel("layer (0: the noisy input)")
    panel.set_ylabel("test RMSE at γ 0.2")


def errors_under_noise(panel: Axes, results: Results, look: dict[str, Look]) -> None:
    """RMSE of the last layer against the level of gaussian noise, a thin line a seed, and the best trivial denoiser."""
    gaussian = next(axis for axis in noise_axes(results) if axis.kind == "gaussian")
    for arm in results.arm_names:
        for run in results.runs_of(arm):
            values = {row.gamma: row.value for row in run.noise if row.kind == "gaussian" and row.gamma and row.value}
            levels = sorted(values)
            line: Any = {"color": look[arm].colour, "marker": look[arm].marker, "markersize": 3, "linewidth": 1}
            panel.plot(levels, [values[level] for level in levels], **line)
    trivial = {
        condition.level: found[1]
        for condition in conditions(results)
        if condition.lies_on(gaussian) and (found := best_trivial(results, condition))
    }
    levels = sorted(trivial)
    panel.plot(levels, [trivial[level] for level in levels], linestyle=(0, (5, 3)), color=FAINT, linewidth=1.1)
    panel.set_xlabel("level γ of gaussian noise")
    panel.set_ylabel("test RMSE")


def _results(name: str, arms: Sequence[str] = ()) -> Results:
    """Stored results, or some arms of them."""
    found = read_results(RESULTS / f"{name}.json")
    if not arms:
        return found
    kept = {field: [row for row in getattr(found, field) if row.arm in arms] for field in ("runs", "paired", "auc")}
    return found.model_copy(update=kept | {"arms": {arm: found.arms.get(arm) for arm in arms}})


def _json(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


# Which figure is made of which results; one whose results are not there is left out.
FIGURES: dict[str, tuple[tuple[str, ...], Callable[[], Figure | None]]] = {
    "head-inputs": (
        ("imdb-minilm-head-inputs",),
        lambda: head_inputs([("MiniLM", _json("imdb-minilm-head-inputs"))]),
    ),
    "imdb-minilm-price": (
        ("imdb-minilm-search",),
        lambda: search_figures.price_of_alpha(read_search(RESULTS / "imdb-minilm-search.json"), narrow=False),
    ),
    "sst2-minilm-sensitivity": (
        ("sst2-minilm-search",),
        lambda: search_figures.sensitivity(read_search(RESULTS / "sst2-minilm-search.json"), "descent", narrow=False),
    ),
}
# The arms of the recipes; what else was tried beside them stands in the figure of remedies.
SHOWN = ("erm", "descent", "deep-supervision", "noise")
VARIANTS = (
    "descent",
    "alpha-06",
    "alpha-10",
    "clipped",
    "detached",
    "cumulative",
    "late",
    "under-noise",
    "deep-supervision",
    "noise",
    "noise-uniform",
)
FIGURES["sst2-minilm-remedies"] = (
    ("sst2-minilm",),
    lambda: remedies(_results("sst2-minilm"), VARIANTS, ("gaussian", 1.5)),
)
for experiment in ("imdb-minilm", "sst2-minilm", "mnli-minilm"):
    FIGURES[f"{experiment}-layers"] = (
        (experiment,),
        lambda experiment=experiment: figures.layer_losses(_results(experiment, SHOWN), narrow=False),  # type: ignore[misc]
    )
    FIGURES[f"{experiment}-robustness"] = (
        (experiment,),
        lambda experiment=experiment: figures.robustness(_results(experiment, SHOWN), narrow=False),  # type: ignore[misc]
    )
    FIGURES[f"{experiment}-frontier"] = (
        (experiment,),
        lambda experiment=experiment: figures.frontier(_results(experiment, SHOWN), narrow=False),  # type: ignore[misc]
    )


VIDEO = {
    f"{data}-{network}": f"{network.upper()}, {title}"
    for network in ("dust", "ut")
    for data, title in (("ucsd-ped2", "UCSD Ped2"), ("avenue", "CUHK Avenue"), ("shanghaitech", "ShanghaiTech"))
}
VIDEO_ARMS = ("erm", "descent", "stated", "deep-supervision", "noise", "descent-under-noise")
FIGURES["video-layers"] = ((), lambda: six(layer_errors))
FIGURES["video-noise"] = ((), lambda: six(errors_under_noise))
for experiment in VIDEO:
    FIGURES[f"{experiment}-frontier"] = (
        (experiment,),
        lambda experiment=experiment: figures.frontier(_results(experiment, VIDEO_ARMS), narrow=False),  # type: ignore[misc]
    )
for experiment in ("ucsd-ped2-dust-search", "ucsd-ped2-ut-search"):
    FIGURES[f"{experiment.removesuffix('-search')}-price"] = (
        (experiment,),
        lambda experiment=experiment: search_figures.price_of_alpha(  # type: ignore[misc]
            read_search(RESULTS / f"{experiment}.json"), narrow=False
        ),
    )


def main() -> None:
    """Draw what there are results for."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, (needed, draw) in FIGURES.items():
        if all((RESULTS / f"{result}.json").is_file() for result in needed):
            with matplotlib.rc_context(STYLE):
                figure = draw()
                if figure is not None:
                    figure.savefig(IMAGES / f"{name}.png", dpi=110, facecolor="white")
                    print(IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
