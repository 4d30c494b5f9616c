"""The page of a search: whole, self-contained, and showing what was chosen, for any number of searched fields."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from layerdescent.errors import InputError, RunError
from layerdescent.report import search_figures, write_search_page
from layerdescent.report.figures import draw
from layerdescent.report.ink import ARMS, dark_inks, inline_svg, svg_of
from layerdescent.report.search_results import read_search
from tests.report.search_fixture import GRIDS, search_results
from tests.report.test_chromium import browse
from tests.report.test_page import Reader

SECTIONS = [
    "In short",
    "1 · The rule",
    "2 · What an alpha costs",
    "3 · How much hangs on the settings",
    "4 · Every setting",
    "5 · How it was run",
    "Glossary",
]


def read(page: Path) -> tuple[str, Reader]:
    html, reader = page.read_text(encoding="utf-8"), Reader()
    reader.feed(html)
    reader.close()
    assert not reader.faults
    assert not reader.open
    assert len(set(reader.ids)) == len(reader.ids)
    assert not [value for _, name, value in reader.references if name == "src"]
    text = " ".join(reader.text).replace("the loss of layer 6 is nan", "")  # what a trial's error says
    assert not re.search(r"\b(nan|inf|undefined)\b", text, re.IGNORECASE)
    return html, reader


def drawn(results: dict[str, Any], arm: str, narrow: bool = False) -> Figure:
    figure = draw(search_figures.sensitivity, read_search(results), arm, narrow=narrow)
    assert figure is not None
    return figure


def cells(figure: Figure) -> list[Rectangle]:
    """One for each cell; frames lie above them."""
    found = [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, Rectangle)]
    return [patch for patch in found if patch.get_zorder() < 3]


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_the_page_is_whole(seeds: tuple[int, ...], tmp_path: Path) -> None:
    results = search_results(seeds=seeds)
    page = write_search_page(results, tmp_path)
    assert page == tmp_path / "search.html"
    html, reader = read(page)
    assert [heading for heading in reader.headings if heading in SECTIONS] == SECTIONS
    assert html.count("<figure") == 4  # price, and a heat map for each arm
    text = " ".join(" ".join(reader.text).split())
    for choice in results["choices"]:
        assert choice["reason"].replace("feasible", "").split()[0] in text
    assert text.count("★ chosen") == 3
    assert "48 runs in all" in text or seeds == (0, 1)
    assert ("every run" in text) is (len(seeds) > 1)
    assert ("One seed for each setting" in text) is (len(seeds) == 1)
    assert "failed: their loss stopped being a number" in text
    assert {path.name for path in (tmp_path / "figures").glob("*.svg")} == {
        "search-price.svg",
        *(f"search-{arm}.svg" for arm in GRIDS),
    }


def test_the_same_search_gives_the_same_page(tmp_path: Path) -> None:
    (tmp_path / "search.json").write_text(json.dumps(search_results()))
    first = write_search_page(tmp_path, tmp_path / "first")
    assert first.read_bytes() == write_search_page(search_results(), tmp_path / "second").read_bytes()


def test_an_unequal_study_is_called_one(tmp_path: Path) -> None:
    html, _ = read(write_search_page(search_results() | {"unequal": True}, tmp_path))
    assert "must not be compared" in html


def test_html_in_names_stays_text(tmp_path: Path) -> None:
    results = search_results() | {"title": "<script>alert(1)</script>"}
    assert "<script>" not in write_search_page(results, tmp_path).read_text()


@pytest.mark.parametrize(
    ("fields", "panels", "across"),
    [
        ({"alpha": [0.02, 0.05, 0.1]}, 1, "alpha"),
        ({"dual_lr": [0.1, 1], "alpha": [0.02, 0.05]}, 1, "alpha"),
        ({"alpha": [0.02, 0.05], "dual_lr": [0.1, 1], "resilience": [None, 5, 10]}, 3, "alpha"),
        (
            {"alpha": [0.02, 0.05], "dual_lr": [0.1, 1], "resilience": [None, 10], "form": ["difference", "ratio"]},
            4,
            "alpha",
        ),
        ({"alpha": [0.02], "dual_lr": [0.1, 1], "first_layer": [1, 5]}, 1, "dual_lr"),
    ],
)
@pytest.mark.parametrize("narrow", [False, True])
def test_any_number_of_fields_has_a_cell_for_every_setting(
    fields: dict[str, list[Any]], panels: int, across: str, narrow: bool
) -> None:
    results = search_results({"erm": {"weight_decay": [0.0, 0.1]}, "descent": fields})
    figure = drawn(results, "descent", narrow)
    shown = [axes for axes in figure.axes if axes.axison]
    assert len(shown) == panels
    assert {axes.get_xlabel() for axes in shown} == {across}
    expected = 1
    for values in fields.values():
        expected *= len(values)
    assert len(cells(figure)) == expected
    places = [(id(cell.axes), cell.get_xy()) for cell in cells(figure)]
    assert len(set(places)) == expected


def test_what_cannot_be_used_is_hatched_and_what_was_chosen_is_framed() -> None:
    results = search_results()
    rows = [row for row in results["candidates"] if row["arm"] == "descent"]
    figure = drawn(results, "descent")
    hatched = [cell for cell in cells(figure) if cell.get_hatch()]
    assert len(hatched) == sum(not row["feasible"] for row in rows) > 0
    frames = [
        patch for axes in figure.axes for patch in axes.patches if patch.get_zorder() >= 3 and patch.get_linewidth() > 2
    ]
    (frame,) = frames
    chosen = next(row for row in rows if row["chosen"])
    around: Any = frame.axes
    assert around.get_title(loc="left") == f"resilience {chosen['settings']['resilience'] or 'none'}"
    failed = [text.get_text() for axes in drawn(results, "deep-supervision").axes for text in axes.texts]
    assert failed.count("failed") == 1


def test_better_values_are_stronger() -> None:
    for metric, best in (("accuracy", max), ("rmse", min)):
        results = search_results({"erm": {"learning_rate": [1e-4, 2e-4, 4e-4]}}, metric=metric)
        shades = [sum(to_rgb(cell.get_facecolor())) for cell in cells(drawn(results, "erm"))]  # darker is stronger
        values = [row["value"] for row in results["candidates"]]
        assert shades.index(min(shades)) == values.index(best(values))


def test_nothing_is_drawn_of_one_setting() -> None:
    search = read_search(search_results({"erm": {"weight_decay": [0.1]}, "descent": {"alpha": [0.1]}}))
    assert draw(search_figures.sensitivity, search, "erm", narrow=False) is None
    assert draw(search_figures.price_of_alpha, search, narrow=False) is None


@pytest.mark.parametrize(("metric", "limit"), [("accuracy", -0.3), ("rmse", 1.0)])
def test_the_price_figure_has_the_price_and_a_point_for_each_setting(metric: str, limit: float) -> None:
    results = search_results(metric=metric)
    figure = draw(search_figures.price_of_alpha, read_search(results), narrow=False)
    assert figure is not None
    axes = figure.axes[0]
    rows = [row for row in results["candidates"] if row["arm"] == "descent"]
    points: list[Any] = list(axes.collections)
    heights = [float(each.get_offsets()[0][1]) for each in points if each.get_sizes()[0] < 100]
    sign = -100 if metric == "accuracy" else 100
    assert heights == pytest.approx([sign * row["price"] for row in rows])
    lines: list[Any] = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [line.get_ydata()[0] for line in lines] == pytest.approx([limit])


@pytest.mark.parametrize("narrow", [False, True])
def test_every_colour_has_a_dark_twin(narrow: bool) -> None:
    search = read_search(search_results())
    for function, args in ((search_figures.sensitivity, ("descent",)), (search_figures.price_of_alpha, ())):
        figure = draw(function, search, *args, narrow=narrow)
        assert figure is not None
        svg = inline_svg(svg_of(figure, "name"), "name", "label")
        assert not set(re.findall(r"(?<!, )#[0-9a-f]{6}\b", svg))
        assert dark_inks([svg]).count("--ink-") >= 2


def test_arms_look_as_on_the_report_page() -> None:
    looks = search_figures.looks(read_search(search_results()))
    assert looks["descent"].colour == ARMS[0]
    assert looks["deep-supervision"].colour == ARMS[1]


def test_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"search\.json: no such results file; `layerdescent search RECIPE` writes one"
    ):
        write_search_page(tmp_path, tmp_path)
    with pytest.raises(InputError, match=r"search: candidates\[0\]\.settings: field required"):
        write_search_page(search_results() | {"candidates": [{"arm": "erm"}]}, tmp_path)
    (tmp_path / "search.json").write_text("{")
    with pytest.raises(RunError, match=r"search\.json: not JSON"):
        write_search_page(tmp_path, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="the page cannot be written"):
        write_search_page(search_results(), tmp_path / "file")


@pytest.mark.chromium
def test_the_browser_builds_every_figure(tmp_path: Path) -> None:
    page = write_search_page(search_results(), tmp_path)
    dom = browse(page, tmp_path / "profile", "--dump-dom")
    figures = re.findall(r"<figure.*?</figure>", dom, flags=re.DOTALL)
    assert len(figures) == 4
    assert all(figure.count("<svg") == 2 for figure in figures)
