"""Pictures: every layer in its place with its error, pixel by pixel, on a desk and on a phone."""

import base64
import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from layerdescent.arrays import read_arrays
from layerdescent.report import figures
from layerdescent.report.ink import svg_of
from layerdescent.report.pictures import picture_figure, read_pictures
from layerdescent.report.results import read_results
from tests.report.fixture import full_results, video_results, write_pictures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures")).parent


def drawn(folder: Path, narrow: bool) -> Figure:
    results = read_results(video_results())
    figure = figures.draw(picture_figure, results, read_pictures(results, folder), narrow=narrow)
    assert figure is not None
    return figure


def titles(figure: Figure) -> list[str]:
    return [axes.get_title(loc="left").replace("\n", " ").strip() for axes in figure.axes if axes.images]


@pytest.mark.parametrize("narrow", [False, True])
def test_every_picture_has_its_name_and_its_error(folder: Path, narrow: bool) -> None:
    layers = [f"layer {layer} {0.1 / layer:.4f}" for layer in range(1, 7)]
    last = ["erm 0.0167", "descent 0.0167", "noise 0.1000"]
    assert titles(drawn(folder, narrow)) == [
        *("clean", "noisy 0.2000", *last, *layers, *layers),
        *("clean", "noisy 1.0000", *last, *layers, *layers),
    ]


def test_rows_are_named_by_their_arm_in_its_colour(folder: Path) -> None:
    look = figures.looks(read_results(video_results()))
    for narrow, rows in ((False, 1), (True, 2)):
        labels = [axes.yaxis.label for axes in drawn(folder, narrow).axes if axes.get_ylabel()]
        assert [label.get_text() for label in labels] == (["erm"] * rows + ["descent"] * rows) * 2
        assert all(label.get_color() == look[label.get_text()].colour for label in labels)


def test_levels_of_noise_are_headings(folder: Path) -> None:
    headings = [part.get_suptitle() for part in drawn(folder, False).subfigs]
    assert headings == ["gaussian, γ = 0.2", "gaussian, γ = 1"]


def test_pixels_are_the_stored_ones_in_one_shade_each(folder: Path) -> None:
    """Not resampled: a picture in the page has as many pixels as it has, clipped to white and black."""
    document = svg_of(drawn(folder, True), "name")
    found = [base64.b64decode(data) for data in re.findall(r'data:image/png;base64,([^"]+)', document)]
    assert "image-rendering:pixelated" in document
    arrays, _ = read_arrays(folder / "pictures.safetensors")
    with Image.open(io.BytesIO(found[1])) as image:
        assert image.mode == "L"
        shown = np.asarray(image)
    expected = np.round(255 * arrays["0.noisy"].clip(0, 1))
    assert shown.shape == expected.shape
    assert np.abs(shown - expected).max() <= 2  # a colour map has 256 steps of its own


def test_a_file_elsewhere_is_not_read(folder: Path) -> None:
    given = video_results() | {"pictures": {"file": "../" + folder.name + "/pictures.safetensors"}}
    (folder / "inner").mkdir(exist_ok=True)
    assert read_pictures(read_results(given), folder / "inner") is None
    assert read_pictures(read_results(full_results()), folder) is None
