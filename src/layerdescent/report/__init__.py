"""Figures and one self-contained page from stored results.

    results.json -> results.Results -> summary (numbers) -> figures, words, tables -> page (one HTML file)

Nothing here trains or evaluates: every number on the page was in the results file, or is a mean, a range or a count of
such numbers.
"""

from layerdescent.report.page import write_report

__all__ = ["write_report"]
