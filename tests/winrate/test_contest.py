"""Head to head: what is asked, what is kept, and what comes of the verdicts."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from layerdescent.errors import InputError, RunError
from layerdescent.winrate import Answers, Question, head_to_head, winrate_table
from layerdescent.winrate.contest import RESULTS, VERDICTS


class FakeJudge:
    """Answers by a function, in reverse, and remembers what it was asked."""

    proxy: str | None = None
    basis = "none"

    def __init__(self, preference: Callable[[Question], float | None], name: str = "fake") -> None:
        self.preference = preference
        self.name = name
        self.asked: list[Question] = []

    def judge(self, questions: Sequence[Question]) -> Iterator[tuple[Question, float | None]]:
        for question in reversed(questions):
            self.asked.append(question)
            yield question, self.preference(question)


def answers(name: str, **outputs: str) -> Answers:
    return Answers(path=Path(f"{name}.json"), generator=name, outputs=outputs, references={})


A = answers("a", p="long answer", q="right", r="same", s="tie A")
B = answers("b", p="short", q="wrong answer", r="same", s="tie B")


def longer(question: Question) -> float:
    first, second = len(question.first), len(question.second)
    return 0.5 if first == second else float(first > second)


def compare(judge: FakeJudge, folder: Path, a: Answers = A, b: Answers = B) -> dict[str, Any]:
    return head_to_head(a, b, judge, folder, progress=False, command="layerdescent winrate a b")


def test_every_pair_is_asked_in_both_orders_and_equal_answers_are_not_asked(tmp_path: Path) -> None:
    judge = FakeJudge(longer)
    results = compare(judge, tmp_path)
    expected = [(p, *both) for p in "pqs" for both in ((A.outputs[p], B.outputs[p]), (B.outputs[p], A.outputs[p]))]
    assert sorted(judge.asked) == sorted(Question(*each) for each in expected)
    assert [row["score"] for row in results["verdicts"]] == [1.0, 0.0, 0.5, 0.5]
    assert (results["wins"], results["ties"], results["losses"], results["n"]) == (1, 2, 1, 4)
    assert results["win_rate"]["value"] == 0.5
    assert (results["order_inconsistency"], results["first_preferred"]) == (0.0, 0.5)
    assert results["a"] == {"file": "a.json", "generator": "a", "mean_length": (11 + 5 + 4 + 5) / 4}
    assert results["command"] == "layerdescent winrate a b"
    assert results["environment"]["python"]
    assert json.loads((tmp_path / RESULTS).read_text()) == results


def test_a_judge_that_looks_at_the_place_only_contradicts_itself(tmp_path: Path) -> None:
    judge = FakeJudge(lambda _: 0.9)
    results = compare(judge, tmp_path)
    assert [row["score"] for row in results["verdicts"]] == [pytest.approx(0.5)] * 4
    assert results["win_rate"]["value"] == pytest.approx(0.5)
    assert results["order_inconsistency"] == 3 / 4  # nobody was asked about the equal answers
    assert results["first_preferred"] == pytest.approx((3 * 0.9 + 0.5) / 4)
    assert [row["a_second"] for row in results["verdicts"]] == [pytest.approx(0.1)] * 2 + [0.5, pytest.approx(0.1)]


def test_a_pair_without_a_verdict_in_one_order_is_left_out_and_asked_again(tmp_path: Path) -> None:
    speechless = FakeJudge(lambda question: None if question.first == "right" else longer(question))
    results = compare(speechless, tmp_path)
    assert (results["n"], results["no_verdict"]) == (3, 1)
    assert results["verdicts"][1] == {"instruction": "q", "score": None, "a_first": None, "a_second": 0.0}
    assert results["win_rate"]["value"] == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert "1 pairs have no verdict" in winrate_table(results)
    judge = FakeJudge(longer)
    assert compare(judge, tmp_path)["n"] == 4
    assert judge.asked == [Question("q", "right", "wrong answer")]


def test_a_stopped_run_goes_on_and_asks_nothing_twice(tmp_path: Path) -> None:
    judge = FakeJudge(longer)

    def stops(question: Question) -> float:
        if len(judge.asked) == 4:
            raise KeyboardInterrupt
        return longer(question)

    judge.preference = stops
    with pytest.raises(KeyboardInterrupt):
        compare(judge, tmp_path)
    assert not (tmp_path / RESULTS).exists()
    assert len((tmp_path / VERDICTS).read_text().splitlines()) == 3
    rest, whole = FakeJudge(longer), FakeJudge(longer)
    results = compare(rest, tmp_path)
    assert set(rest.asked).isdisjoint(judge.asked[:3])
    assert len(rest.asked) == 3
    fresh = compare(whole, tmp_path / "fresh")
    assert results["verdicts"] == fresh["verdicts"]
    compare(whole, tmp_path)  # all known: not asked
    assert len(whole.asked) == 6


def test_another_judge_is_asked_anew(tmp_path: Path) -> None:
    compare(FakeJudge(longer), tmp_path)
    other = FakeJudge(longer, name="other")
    compare(other, tmp_path)
    assert len(other.asked) == 6


def test_a_judge_without_verdicts_is_an_error(tmp_path: Path) -> None:
    different = answers("b", p="x", q="y", r="z", s="w")
    with pytest.raises(RunError, match="fake gave 0 of 4 pairs a verdict in both orders"):
        compare(FakeJudge(lambda _: None), tmp_path, b=different)


def test_different_prompts_are_refused_before_anyone_is_asked(tmp_path: Path) -> None:
    judge = FakeJudge(longer)
    with pytest.raises(InputError, match="not in"):
        compare(judge, tmp_path, b=answers("b", p="x", q="y"))
    assert judge.asked == []


def test_a_proxy_is_called_one_everywhere(tmp_path: Path) -> None:
    judge = FakeJudge(longer)
    assert "proxy" not in winrate_table(compare(judge, tmp_path))
    judge.proxy = "a proxy, no win rate of a judge"
    results = compare(judge, tmp_path)
    assert "win_rate" not in results
    assert results["proxy_rate"]["value"] == 0.5
    assert results["proxy"] == judge.proxy
    table = winrate_table(results)
    assert "nearer to the reference (proxy) of A" in table
    assert "this is a proxy, no win rate of a judge" in table


def test_the_table_says_what_the_result_holds(tmp_path: Path) -> None:
    table = winrate_table(compare(FakeJudge(longer), tmp_path))
    assert "A a: a.json" in table
    assert "fake, 4 prompts" in table
    assert "win rate of A" in table
    assert "the same at equal length" in table
    assert "A better 1, tie 2, B better 1" in table
    equal = compare(FakeJudge(longer), tmp_path, answers("a", p="x", q="y"), answers("b", p="v", q="w"))
    assert equal["length_controlled"] is None
    assert "no rate at equal length" in winrate_table(equal)
