"""Annotators of alpaca-eval, with a stand-in for the package: its interface, its order of rows, its numbers."""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest

from layerdescent.errors import InputError
from layerdescent.winrate import Question, choose_judge
from layerdescent.winrate.annotator import PIP

PREFERENCES = {"best": 1.0, "good": 1.2, "same": 1.5, "bad": 2.0, "silent": None, "nan": float("nan"), "odd": -1}


class FakeAnnotator:
    """As the package: rows come back sorted, with a preference from 1 (first) to 2 (second) or none."""

    made: list[dict[str, Any]] = []  # noqa: RUF012
    calls: list[int] = []  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        if settings["annotators_config"] == "unknown":
            raise FileNotFoundError("unknown/configs.yaml")
        self.made.append(settings)

    def __call__(self, rows: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
        self.calls.append(len(rows))
        annotated: list[dict[str, Any]] = [
            {**row, "preference": PREFERENCES[row["output_1"].split()[0]], "annotator": "x"} for row in rows
        ]
        return sorted(annotated, key=lambda row: row["output_1"])


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> type[FakeAnnotator]:
    for name in ("alpaca_eval", "alpaca_eval.annotators"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["alpaca_eval.annotators"], "PairwiseAnnotator", FakeAnnotator, raising=False)
    FakeAnnotator.made.clear()
    FakeAnnotator.calls.clear()
    return FakeAnnotator


def test_preferences_are_turned_into_ours_and_rows_found_again(package: type[FakeAnnotator]) -> None:
    judge = choose_judge("alpaca_eval:weighted_alpaca_eval_gpt4_turbo", dict)
    assert package.made == [{"annotators_config": "weighted_alpaca_eval_gpt4_turbo", "caching_path": None}]
    assert (judge.name, judge.proxy) == ("alpaca_eval:weighted_alpaca_eval_gpt4_turbo", None)
    questions = [Question("Why?", f"{word} {number}", "x") for number in range(6) for word in PREFERENCES]
    found = dict(judge.judge(questions))
    assert list(found) == questions
    expected = {"best": 1.0, "good": 0.8, "same": 0.5, "bad": 0.0, "silent": None, "nan": None, "odd": None}
    assert [found[question] for question in questions[:7]] == [
        value if value is None else pytest.approx(value) for value in expected.values()
    ]
    assert package.calls == [32, 10]  # a stopped run loses a few at most


def test_an_unknown_annotator_is_one_line(package: type[FakeAnnotator]) -> None:
    with pytest.raises(InputError, match=r"no annotator 'unknown' \(FileNotFoundError: unknown/configs\.yaml"):
        choose_judge("alpaca_eval:unknown", dict)


def test_without_the_package_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alpaca_eval.annotators", None)
    with pytest.raises(InputError, match=f"run: {PIP}"):
        choose_judge("alpaca_eval:alpaca_eval_gpt4", dict)
