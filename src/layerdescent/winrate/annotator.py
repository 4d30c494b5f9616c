"""The annotators of the package alpaca-eval as judges, where it is installed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from layerdescent.errors import InputError
from layerdescent.winrate.judge import Question

PIP = "pip install alpaca-eval"
_AT_ONCE = 32  # pairs in one call: so many verdicts are lost at most where a run is stopped


class AnnotatorJudge:
    """Asks one of alpaca-eval's annotators, with the prompt, the model and the keys of its own configuration.

    The package shuffles the order by the prompt alone, so a pair and its reverse are shown in both orders here too. Its
    preferences, from 1 for the first answer to 2 for the second, are turned into ours.

    Args:
        annotator: The name of a configuration, such as `weighted_alpaca_eval_gpt4_turbo`, or the path of one.

    Raises:
        InputError: The package is not installed, or does not know the annotator.
    """

    basis = "alpaca_eval"
    proxy = None

    def __init__(self, annotator: str) -> None:
        try:
            from alpaca_eval.annotators import PairwiseAnnotator
        except ImportError as error:
            raise InputError(f"alpaca_eval:{annotator} needs the package alpaca-eval ({error}); run: {PIP}") from None
        self.name = f"alpaca_eval:{annotator}"
        try:
            # Verdicts are kept by this library, and not in the package's folder too.
            self._annotate = PairwiseAnnotator(annotators_config=annotator, caching_path=None)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"alpaca-eval has no annotator {annotator!r} ({type(error).__name__}: {error})") from None

    def judge(self, questions: Sequence[Question]) -> Iterator[tuple[Question, float | None]]:
        """Yield every question with its verdict, a few at a time."""
        for start in range(0, len(questions), _AT_ONCE):
            asked = questions[start : start + _AT_ONCE]
            rows = [
                {"instruction": instruction, "output_1": first, "output_2": second}
                for instruction, first, second in asked
            ]
            # The package returns the rows in an order of its own.
            found = {_question(row): row.get("preference") for row in self._annotate(rows)}
            yield from ((question, _preference(found.get(question))) for question in asked)


def _question(row: Mapping[str, Any]) -> Question:
    return Question(row["instruction"], row["output_1"], row["output_2"])


def _preference(value: Any) -> float | None:
    """Between 1 for the first and 2 for the second, or missing (None, or not a number)."""
    return 2.0 - float(value) if value is not None and 1 <= value <= 2 else None
