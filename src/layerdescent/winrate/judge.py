"""What a judge is: anything that says which of two answers to a prompt is better."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Question(NamedTuple):
    """A prompt and two answers, in the order in which they are shown."""

    instruction: str
    first: str
    second: str


class Judge(Protocol):
    """Says how much it prefers the first answer: 1 the first, 0 the second, 0.5 a tie, or anything between."""

    @property
    def name(self) -> str:
        """What the results call it."""

    @property
    def basis(self) -> str:
        """What its verdicts depend on beside `name` and the question: prompt template, weights, references."""

    @property
    def proxy(self) -> str | None:
        """What it measures in truth, where it is no judge but stands in for one; None for a judge."""

    def judge(self, questions: Sequence[Question]) -> Iterator[tuple[Question, float | None]]:
        """Yield every question with the preference for its first answer, each as soon as it is known, in any order.

        A preference lies in [0, 1]; None stands for an answer of the judge that is no verdict.
        """


TEMPLATE = """Two assistants were given the instruction below. Which of their answers is better?
Judge how well an answer does what was asked: whether it is right, complete, clear and harmless. Neither length nor the
order of the answers matters.

<instruction>
{instruction}
</instruction>

<answer-A>
{first}
</answer-A>

<answer-B>
{second}
</answer-B>

"""
"""What judges that are language models are shown; what they are to reply stands after it."""
