"""Colours that work on white, on black and on paper, and the SVG that carries them.

Figures are drawn once, in the inks for a light page. In the page each ink becomes a CSS variable whose fallback is the
light ink, so that a dark screen only has to override variables and print stays light.
"""

import base64
import io
import re
from collections.abc import Iterable
from html import escape
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from PIL import Image  # which matplotlib needs itself

TEXT = "#1b1e23"
FAINT = "#6a6f78"
GRID = "#e3e5e9"
BASELINE = "#4d525b"
# Blue, orange, green, purple, ochre: told apart by the common kinds of colour blindness, and by markers besides.
ARMS = ("#0b57d0", "#c24e00", "#00795a", "#9a3f86", "#8a6a00")

_DARK = {
    FAINT: "#9aa1ac",
    GRID: "#343940",
    BASELINE: "#b9bec7",
    "#0b57d0": "#7fb2ff",
    "#c24e00": "#ff9a57",
    "#00795a": "#4fd1a5",
    "#9a3f86": "#e59ad2",
    "#8a6a00": "#e0bd52",
}
_RAMP = 64


def _ramp(first: float, last: float) -> list[str]:
    colours = matplotlib.colormaps["viridis"]
    return [matplotlib.colors.to_hex(colours(first + (last - first) * place / (_RAMP - 1))) for place in range(_RAMP)]


# Deep layers stand out: dark on a light page, bright on a dark one.
_LAYERS = _ramp(0.72, 0.0)
_DARK |= dict(zip(_LAYERS, _ramp(0.35, 1.0), strict=True))


def _between(first: str, last: str) -> list[str]:
    mixed = matplotlib.colors.LinearSegmentedColormap.from_list("", [first, last])
    return [matplotlib.colors.to_hex(mixed(place / (_RAMP - 1))) for place in range(_RAMP)]


# Of cells with writing in them: the page's text is readable on every one, on a light page and on a dark one.
_CELLS = _between("#eef3fd", "#74aaf7")
_DARK |= dict(zip(_CELLS, _between("#1d2532", "#2b62b0"), strict=True))

STYLE: dict[Any, Any] = {
    "font.family": [
        "DejaVu Sans"
    ],  # what matplotlib brings, so that layout is the same everywhere; the page shows its own font
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.labelsize": 9.5,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": TEXT,
    "axes.titlecolor": TEXT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "text.color": TEXT,
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
}


def layer_ink(place: int, count: int) -> str:
    """The colour of the layer at one place among `count`, light for early layers and dark for deep ones."""
    return _LAYERS[round(place * (_RAMP - 1) / max(1, count - 1))]


def cell_ink(share: float) -> str:
    """The colour of a cell, from 0 (nearly the page's own) to 1 (strong)."""
    return _CELLS[round(min(1.0, max(0.0, share)) * (_RAMP - 1))]


def svg_of(figure: Figure, name: str) -> str:
    """The figure as an SVG document: text as text, no date, the same bytes for the same figure."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    return re.sub(
        r"(data:image/png;base64,)\s*([^\"]+)", lambda found: found[1] + _grey_png(found[2]), buffer.getvalue()
    )


def _grey_png(encoded: str) -> str:
    """A PNG in base64; one in shades of grey, which matplotlib writes in four channels, in a single one."""
    with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
        red, green, blue, alpha = (channel.tobytes() for channel in image.convert("RGBA").split())
        if not red == green == blue or min(alpha) < 255:
            return encoded
        buffer = io.BytesIO()
        image.convert("L").save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def inline_svg(document: str, name: str, label: str) -> str:
    """An SVG document as an element of the page: inks as CSS variables, ids unique there, sized by its container."""
    view_box = re.search(r'viewBox="[^"]+"', document)
    body = document[document.index(">", document.index("<svg")) + 1 :]
    body = re.sub(
        r"<style.*?</style>", "", body, flags=re.DOTALL
    )  # it would hold for the whole page, which has its own
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', body))
    body = re.sub(r' id="([^"]+)"', lambda found: f' id="{name}-{found[1]}"' if found[1] in used else "", body)
    body = re.sub(r'(url\(#|href="#)', lambda found: f"{found[1]}{name}-", body).replace("xlink:href", "href")
    body = body.replace(TEXT, "currentColor")
    body = re.sub(r"#[0-9a-f]{6}\b", lambda found: _variable(found[0]), body)
    size = view_box[0] if view_box else ""
    return f'<svg {size} role="img" aria-label="{escape(label)}">{body.strip()}'


def _variable(light: str) -> str:
    return f"var(--ink-{light[1:]}, {light})" if light in _DARK else light


def dark_inks(parts: Iterable[str]) -> str:
    """The CSS declarations that turn every ink found in these parts of the page dark."""
    used = sorted({found for part in parts for found in re.findall(r"--ink-([0-9a-f]{6})", part)})
    return " ".join(f"--ink-{light}: {_DARK['#' + light]};" for light in used)
