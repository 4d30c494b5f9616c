"""Figures and one self-contained page from stored results, and another from a stored search.

    results.json -> results.Results -> summary (numbers) -> figures, words, tables -> page (one HTML file)
    search.json -> search_results.Search -> search_figures -> search_page (one HTML file)

Nothing here trains or evaluates: every number on the page was in the results file, or is a mean, a range or a count of
such numbers.
"""

from layerdescent.report.page import write_report
from layerdescent.report.search_page import write_search_page

__all__ = ["write_report", "write_search_page"]
