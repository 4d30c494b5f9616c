"""Draws the figures of "What we found on text" from what lies in results/.

python docs/figures.py    # -> docs/images/found/
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from layerdescent.report import figures, search_figures
from layerdescent.report.ink import ARMS, BASELINE, STYLE
from layerdescent.report.results import Results, read_results
from layerdescent.report.search_results import read_search

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
