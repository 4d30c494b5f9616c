"""Data and models by name: text from any known source, cut and tokenised; models and data inside PyPI packages."""

from layerdescent.data.duplicates import DuplicateReport
from layerdescent.data.packages import resolve_model
from layerdescent.data.shift import ShiftReport, prepare_shift
from layerdescent.data.text import DataReport, PreparedText, load_text, prepare
from layerdescent.data.tokens import renumbered, tokenise

__all__ = [
    "DataReport",
    "DuplicateReport",
    "PreparedText",
    "ShiftReport",
    "load_text",
    "prepare",
    "prepare_shift",
    "renumbered",
    "resolve_model",
    "tokenise",
]
