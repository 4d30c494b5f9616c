"""Figures: labels that do not touch, inks that have a dark twin, nothing drawn from nothing."""

import re
from collections.abc import Callable
from io import BytesIO
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerdescent.report import figures
from layerdescent.report.ink import dark_inks, inline_svg, svg_of
from layerdescent.report.results import read_results
from tests.report.fixture import full_results, minimal_results, video_results

DRAWINGS: list[tuple[Callable[..., Figure | None], tuple[str, ...]]] = [
    (figures.layer_losses, ()),
    (figures.training, ("descent",)),
    (figures.robustness, ()),
    (figures.frontier, ()),
]


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.floats(0.01, 1))
def test_labels_keep_their_distance_and_their_order(targets: list[float], gap: float) -> None:
    places = figures.spread(targets, gap)
    ordered = sorted(zip(targets, places, strict=True))
    for (_, before), (_, after) in pairwise(ordered):
        assert after - before >= gap - 1e-9
    assert sum(places) == pytest.approx(sum(targets), abs=1e-6)


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8, unique=True))
def test_labels_with_room_stay_where_they_point(targets: list[int]) -> None:
    assert figures.spread(targets, 0.9) == pytest.approx(targets)


@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize(("function", "args"), DRAWINGS)
def test_every_colour_has_a_dark_twin(
    function: Callable[..., Figure | None], args: tuple[str, ...], narrow: bool
) -> None:
    figure = figures.draw(function, read_results(full_results()), *args, narrow=narrow)
    assert figure is not None
    drawn = inline_svg(svg_of(figure, "name"), "name", "label")
    left = set(re.findall(r"(?<!, )#[0-9a-f]{6}\b", drawn))
    assert not left, f"colours without a dark twin: {left}"
    assert "currentColor" in drawn
    assert dark_inks([drawn]).count("--ink-") >= 2


@pytest.mark.parametrize(("function", "args"), DRAWINGS[1:])
def test_nothing_is_drawn_from_nothing(function: Callable[..., Figure | None], args: tuple[str, ...]) -> None:
    results = read_results(minimal_results() | {"runs": []})
    assert figures.draw(function, results, *(args or ()), narrow=False) is None


def test_the_picture_has_a_line_a_label_and_a_value_for_each_arm() -> None:
    figure = figures.draw(figures.layer_losses, read_results(full_results()), narrow=False)
    assert figure is not None
    axes = figure.axes[0]
    labels = [text.get_text() for text in axes.texts]
    assert [label.split()[0] for label in labels] == ["erm", "descent", "deep-supervision", "best"]
    means = [np.asarray(line.get_ydata()) for line in axes.lines if line.get_linestyle() == "-"]
    runs = [run for run in full_results()["runs"] if run["arm"] == "descent"]
    expected = [sum(run["layer_losses"]["test"][layer] for run in runs) / 2 for layer in range(7)]
    assert any(mean == pytest.approx(expected) for mean in means)
    assert len(axes.collections) == 3  # a band an arm


def test_losses_over_decades_get_a_logarithmic_axis() -> None:
    results: dict[str, Any] = minimal_results()
    results["runs"][0]["layer_losses"]["test"] = [116.0, 16.0, 2.0]
    figure = figures.draw(figures.layer_losses, read_results(results), narrow=True)
    assert figure is not None
    assert figure.axes[0].get_yscale() == "log"


def test_many_layers_are_drawn_but_not_all_labelled() -> None:
    results = full_results(("descent",), 1)
    run = results["runs"][0]
    layers, steps = list(range(33)), [1, 2]
    run |= {"layers": layers, "alpha": [0.01] * 32, "nodes": layers, "history": {"step": steps}}
    run["layer_losses"] = run["layer_losses_ci95"] = run["calibrated_losses"] = run["accuracies"] = {}
    run["history"]["multipliers"] = [[0.1 * layer for layer in range(32)] for _ in steps]
    figure = figures.draw(figures.training, read_results(results), "descent", narrow=False)
    assert figure is not None
    axes = figure.axes[0]
    labels = [text.get_text() for text in axes.texts]
    assert len(axes.lines) == 32 + 1  # and the line at 0
    assert 5 <= len(labels) <= 9
    assert {"λ₁", "λ₃₂"} <= set(labels)


def test_the_frontier_tells_its_families_by_marker_and_legend() -> None:
    figure = figures.draw(figures.frontier, read_results(full_results()), narrow=False)
    assert figure is not None
    handles = {str(line.get_label()): line for line in figure.legends[0].get_lines()}
    assert {"along training", "weight decay 0.1", "weight decay 0.3", "label smoothing 0.1"} < set(handles)
    markers = {label: str(line.get_marker()) for label, line in handles.items()}
    assert markers["weight decay 0.1"] == markers["weight decay 0.3"]
    assert handles["weight decay 0.1"].get_linestyle() != handles["weight decay 0.3"].get_linestyle()
    assert len(set(markers.values())) == len(handles) - 1  # no other two share one
    paths = {line.get_linestyle() for line in figure.axes[0].lines}
    assert paths == {line.get_linestyle() for label, line in handles.items() if label not in full_results()["arms"]}


def test_the_legend_reads_row_by_row_and_stays_on_the_page() -> None:
    figure = figures.draw(figures.frontier, read_results(full_results()), narrow=False)
    assert figure is not None
    figure.savefig(BytesIO())  # texts have no place before
    boxes = {text.get_text(): text.get_window_extent() for text in figure.legends[0].get_texts()}
    order = sorted(boxes, key=lambda label: (-round(boxes[label].y0), boxes[label].x0))
    assert order[:4] == ["erm", "descent", "deep-supervision", "along training"]
    assert max(box.x1 for box in boxes.values()) < figure.bbox.x1


def test_a_lone_point_of_the_frontier_carries_its_value() -> None:
    given = full_results()
    given["frontier"] = [point for point in given["frontier"] if point["step"] == 200]
    figure = figures.draw(figures.frontier, read_results(given), narrow=False)
    assert figure is not None
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.1", "0.3", "0.1"]


def names(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_many_kinds_of_noise_stand_below_each_other_and_trivial_predictors_at_their_ends() -> None:
    figure = figures.draw(figures.robustness, read_results(video_results(1)), narrow=False)
    assert figure is not None
    values, differences = figure.axes[::2], figure.axes[1::2]
    assert [axes.get_title(loc="left") for axes in values] == [
        f"{kind} noise" for kind in ("gaussian", "uniform", "poisson", "salt-and-pepper")
    ]
    assert all(axes.get_title(loc="left").endswith("difference to erm") for axes in differences)
    for axes in values:
        assert set(names(axes)) == {"constant mean", "temporal mean", "patch mean", "training background"}
        figure.savefig(BytesIO())
        boxes = sorted((text.get_window_extent() for text in axes.texts), key=lambda box: box.y0)
        assert all(before.y1 <= after.y0 + 1 for before, after in pairwise(boxes))
        assert boxes[0].y0 >= axes.get_window_extent().y0 - 1
    one = figures.draw(figures.robustness, read_results(full_results(("erm", "descent"))), narrow=False)
    assert one is not None
    assert names(one.axes[0]) == ["majority"]  # one alone is written on its line


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.2)), min_size=1, max_size=6), st.floats(0, 0.2))
def test_labels_of_different_heights_neither_touch_nor_leave_the_axes(
    labels: list[tuple[float, float]], lowest: float
) -> None:
    targets, heights = (list(values) for values in zip(*labels, strict=True))
    places = figures.spread(targets, heights, lowest=lowest, highest=1.5)
    ordered = sorted(range(len(labels)), key=lambda one: (targets[one], one))
    for before, after in pairwise(ordered):
        assert places[after] - places[before] >= (heights[before] + heights[after]) / 2 - 1e-9
    assert min(places) >= lowest - 1e-9
    assert max(places) <= max(1.5, lowest + sum(heights)) + 1e-9


def test_axes_of_denoisers_say_what_their_layers_and_losses_are() -> None:
    figure = figures.draw(figures.layer_losses, read_results(video_results()), narrow=False)
    assert figure is not None
    assert figure.axes[0].get_xlabel() == "layer (0: the noisy input)"
    assert figure.axes[0].get_ylabel() == "mean test loss (squared error)"
