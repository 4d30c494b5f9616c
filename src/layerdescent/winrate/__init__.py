"""Win rates: two models' answers to the same prompts, judged head to head.

    two files -> pairs by prompt -> both orders before a judge -> verdicts on disk -> rates with intervals

`judge` says what a judge is, `choice` which there are; `rates` is pure: scores in, rates out.
"""

from layerdescent.winrate.choice import choose_judge
from layerdescent.winrate.contest import head_to_head
from layerdescent.winrate.judge import Judge, Question
from layerdescent.winrate.pairs import Answers, match, read_answers, references_for
from layerdescent.winrate.rates import LengthControlled, length_controlled, win_rate
from layerdescent.winrate.words import winrate_table

__all__ = [
    "Answers",
    "Judge",
    "LengthControlled",
    "Question",
    "choose_judge",
    "head_to_head",
    "length_controlled",
    "match",
    "read_answers",
    "references_for",
    "win_rate",
    "winrate_table",
]
