"""Verdicts on disk: found again by all that they depend on, and by nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from layerdescent.errors import RunError
from layerdescent.winrate import Question
from layerdescent.winrate.cache import VerdictCache


@dataclass(frozen=True)
class Named:
    name: str = "judge"
    basis: str = "template"
    proxy: str | None = None

    def judge(self, questions: Sequence[Question]) -> Iterator[tuple[Question, float | None]]:
        raise NotImplementedError


QUESTION = Question("Why?", "So.", "Ask me.")


def test_a_verdict_depends_on_judge_basis_prompt_and_both_answers_in_order(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "folder" / "verdicts.jsonl")
    assert cache.get(Named(), QUESTION) is None
    cache.put(Named(), QUESTION, 0.25)
    for known in (cache, VerdictCache(cache.path)):
        assert known.get(Named(), QUESTION) == 0.25
        others = [
            (Named(name="other"), QUESTION),
            (Named(basis="other"), QUESTION),
            (Named(), QUESTION._replace(instruction="Who?")),
            (Named(), Question("Why?", "Ask me.", "So.")),
            (Named(), Question("Why?", "So.Ask me.", "")),
        ]
        assert [known.get(*other) for other in others] == [None] * 5


def test_texts_are_not_stored(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "verdicts.jsonl")
    cache.put(Named(), QUESTION, 1.0)
    assert "Ask me" not in cache.path.read_text()


@pytest.mark.parametrize("cut", [b'{"key": "ab', b"\xff\xfe", b'{"key": "ab", "preference": "x"}\n', b"[]\n", b"\n"])
def test_a_damaged_line_costs_itself_only(tmp_path: Path, cut: bytes) -> None:
    cache = VerdictCache(tmp_path / "verdicts.jsonl")
    cache.put(Named(), QUESTION, 1.0)
    with cache.path.open("ab") as file:
        file.write(cut)
    again = VerdictCache(cache.path)
    other = replace(Named(), name="other")
    again.put(other, QUESTION, 0.5)
    last = VerdictCache(cache.path)
    assert (last.get(Named(), QUESTION), last.get(other, QUESTION)) == (1.0, 0.5)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        VerdictCache(tmp_path)
