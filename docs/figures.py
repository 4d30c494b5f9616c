"""Draws the figures of "What we found on text" from what lies in results/.

python docs/figures.py    # -> docs/images/found/
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from layerdescent.report import figures, search_figures
from layerdescent.report.ink import ARMS, STYLE
from layerdescent.report.results import read_results
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


def _results(name: str) -> Any:
    return read_results(RESULTS / f"{name}.json")


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
for experiment in ("imdb-minilm", "sst2-minilm"):
    FIGURES[f"{experiment}-layers"] = (
        (experiment,),
        lambda experiment=experiment: figures.layer_losses(_results(experiment), narrow=False),  # type: ignore[misc]
    )
    FIGURES[f"{experiment}-robustness"] = (
        (experiment,),
        lambda experiment=experiment: figures.robustness(_results(experiment), narrow=False),  # type: ignore[misc]
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
