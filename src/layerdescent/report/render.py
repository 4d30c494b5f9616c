"""What every page is made of: figures stored beside it and drawn into it, one look, words that explain themselves."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from layerdescent.files import write_text
from layerdescent.report.figures import Look, draw
from layerdescent.report.ink import dark_inks, inline_svg, svg_of
from layerdescent.report.words import GLOSSARY

_PNG_DPI = 200


@dataclass(frozen=True)
class FigureView:
    """A figure in the page: its two drawings and what they show, in words."""

    name: str
    wide: Markup
    narrow: Markup
    caption: str


def stored_figure(
    function: Callable[..., Figure | None], args: Sequence[Any], folder: Path, stem: str, caption: str
) -> FigureView | None:
    """Draws a figure for the page, and writes it to `folder` as SVG and PNG; None where there is nothing to draw."""
    wide = draw(function, *args, narrow=False)
    narrow = draw(function, *args, narrow=True)
    if wide is None or narrow is None:
        return None
    document = svg_of(wide, stem)
    write_text(folder / f"{stem}.svg", document)
    wide.savefig(folder / f"{stem}.png", dpi=_PNG_DPI, facecolor="white", metadata={"Software": None})
    small = svg_of(narrow, f"{stem}-narrow")
    return FigureView(
        stem,
        Markup(inline_svg(document, f"f{stem}", caption)),  # matplotlib escaped what it drew, we the label
        Markup(inline_svg(small, f"n{stem}", caption)),
        caption,
    )


def render(template: str, figures: Iterable[FigureView], looks: Iterable[Look], **context: Any) -> str:
    """A page from one of the templates beside this file; figures and looks bring their inks along."""
    environment = Environment(
        loader=PackageLoader("layerdescent.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["terms"] = _with_terms
    drawings = [str(part) for figure in figures for part in (figure.wide, figure.narrow)]
    inks = [f"--ink-{look.colour[1:]}" for look in looks]
    return environment.get_template(template).render(
        **context, glossary=GLOSSARY, dark_inks=Markup(dark_inks([*drawings, *inks]))
    )


def slug(name: str) -> str:
    """A name as part of a file's or an element's.

    >>> slug("deep supervision (1/L)")
    'deep-supervision-1-L'
    """
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") or "arm"


def _with_terms(sentence: str) -> Markup:
    """A sentence, escaped, its words of art explained on hover."""
    names = sorted(GLOSSARY, key=len, reverse=True)
    pattern = re.compile(r"\b(" + "|".join(re.escape(str(escape(name))) for name in names) + r")\b")
    return Markup(  # escaped before the marks are added
        pattern.sub(
            lambda found: f'<abbr title="{escape(GLOSSARY[found[1]])}">{found[1]}</abbr>', str(escape(sentence))
        )
    )
