"""The pictures on the page of a comparison of denoisers: a frame, its noise, and what every layer makes of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray

from layerdescent.arrays import read_arrays
from layerdescent.errors import RunError
from layerdescent.report.figures import NARROW, WIDE, looks
from layerdescent.report.ink import FAINT, TEXT
from layerdescent.report.results import Results
from layerdescent.report.summary import Condition
from layerdescent.report.units import UNITS, number

Picture = NDArray[np.floating[Any]]

_COLUMNS = {False: 7, True: 3}  # by narrow
_LABELS = 0.4  # inches above a picture, for two lines
_TITLE = 0.35  # inches above the pictures of one noise


@dataclass(frozen=True)
class Shown:
    """What one arm makes of the frame under one noise: layer by layer, the last one at least."""

    arm: str
    layers: Sequence[int]
    pictures: Picture  # (K, H, W)


@dataclass(frozen=True)
class Noisy:
    """One noise, the noisy frame, and what the arms make of it."""

    condition: Condition
    picture: Picture
    arms: Sequence[Shown]


@dataclass(frozen=True)
class Pictures:
    """A frame of a clip under some noises."""

    clip: str
    frame: int
    clean: Picture
    noises: Sequence[Noisy]

    @property
    def part(self) -> str:
        """The part of the frame in words."""
        height, width = self.clean.shape
        return f"{width}x{height} pixels of frame {self.frame + 1} of test clip {self.clip}"


def read_pictures(results: Results, folder: Path) -> Pictures | None:
    """The pictures that a comparison stored beside its results.

    Args:
        results: the comparison.
        folder: where its results lie.

    Returns:
        The pictures; None where the comparison has none, or where they have not come along with the results.

    Raises:
        RunError: the file is damaged.
    """
    path = folder / Path(results.pictures.file).name if results.pictures else None
    if path is None or not path.is_file():
        return None
    arrays, header = read_arrays(path)
    try:
        noises = [
            Noisy(
                Condition(noise["kind"], noise["gamma"], False),
                arrays[f"{at}.noisy"],
                [
                    Shown(arm["arm"], arm["layers"], arrays[f"{at}.{number}"])
                    for number, arm in enumerate(header["arms"])
                ],
            )
            for at, noise in enumerate(header["noise"])
        ]
        return Pictures(header["clip"], header["frame"], arrays["clean"], noises)
    except (KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged ({error}): delete it, and the same comparison writes it again") from None


def picture_figure(results: Results, pictures: Pictures, *, narrow: bool) -> Figure | None:
    """For every noise the clean and the noisy frame, the layers of the arms that have them all, and other last layers.

    Every picture is labelled with its RMSE; pixels are shown as they are, without interpolation.
    """
    if not pictures.noises:
        return None
    columns = _COLUMNS[narrow]
    rows = [list(_rows(pictures.clean, noisy, columns)) for noisy in pictures.noises]
    columns = max(len(row.cells) for of_noise in rows for row in of_noise)
    height, width = pictures.clean.shape
    across = NARROW if narrow else WIDE
    tall = [_TITLE + len(of_noise) * (_LABELS + across / (columns + 0.3) * height / width) for of_noise in rows]
    layout = ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0.02, hspace=0.02)
    figure = Figure(figsize=(across, sum(tall)), layout=layout)
    look = looks(results)
    parts = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=tall)[:, 0]
    for part, of_noise, noisy in zip(parts, rows, pictures.noises, strict=True):
        part.suptitle(noisy.condition.text, x=0.01, ha="left", fontsize=10.5)
        grid = part.subplots(len(of_noise), columns, squeeze=False)
        for line, row in zip(grid, of_noise, strict=True):
            for axes, cell in zip(line, row.cells, strict=False):
                colour = look[cell.arm].colour if cell.arm in look else TEXT
                _draw(axes, pictures.clean, cell, colour)
            for axes in line[len(row.cells) :]:
                axes.set_axis_off()
            if row.arm:
                line[0].set_ylabel(row.arm, color=look[row.arm].colour if row.arm in look else TEXT)
    return figure


@dataclass(frozen=True)
class _Cell:
    name: str
    picture: Picture
    arm: str = ""


@dataclass(frozen=True)
class _Row:
    cells: Sequence[_Cell]
    arm: str = ""


def _rows(clean: Picture, noisy: Noisy, columns: int) -> Iterator[_Row]:
    """First what went in and what came out, then the layers one by one."""
    last = [_Cell(shown.arm, shown.pictures[-1], shown.arm) for shown in noisy.arms]
    yield from _wrapped([_Cell("clean", clean), _Cell("noisy", noisy.picture), *last], columns)
    for shown in noisy.arms:
        if len(shown.layers) > 1:
            cells = [
                _Cell(f"layer {layer}", picture) for layer, picture in zip(shown.layers, shown.pictures, strict=True)
            ]
            yield from _wrapped(cells, columns, shown.arm)


def _wrapped(cells: Sequence[_Cell], columns: int, arm: str = "") -> Iterator[_Row]:
    for first in range(0, len(cells), columns):
        yield _Row(cells[first : first + columns], arm)


def _draw(axes: Axes, clean: Picture, cell: _Cell, colour: str) -> None:
    axes.imshow(cell.picture, cmap="gray", vmin=0, vmax=1, interpolation="none")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.6)
    error = float(np.sqrt(np.mean((cell.picture.astype(np.float64) - clean) ** 2)))
    said = "" if cell.picture is clean else number(error, UNITS["rmse"].digits)
    axes.set_title(f"{cell.name}\n{said}", color=colour, fontsize=8.5, loc="left", pad=3, linespacing=1.15)
