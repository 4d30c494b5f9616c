"""Head to head: every pair judged in both orders, and what comes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from layerdescent.environment import describe_environment
from layerdescent.errors import RunError
from layerdescent.files import write_json
from layerdescent.winrate.cache import VerdictCache
from layerdescent.winrate.judge import Judge, Question
from layerdescent.winrate.pairs import Answers, Pair, match
from layerdescent.winrate.rates import length_controlled, win_rate

RESULTS, VERDICTS = "winrate.json", "verdicts.jsonl"


@dataclass(frozen=True)
class Verdict:
    """How much A's answer is preferred, in [0, 1], when it is shown first and when it is shown second."""

    a_first: float | None
    a_second: float | None

    @property
    def score(self) -> float | None:
        """The mean of both orders; None where one is missing, for the other alone would favour a place.

        Example:
            >>> Verdict(1.0, 0.0).score, Verdict(1.0, None).score
            (0.5, None)
        """
        if self.a_first is None or self.a_second is None:
            return None
        return (self.a_first + self.a_second) / 2

    @property
    def contradicts_itself(self) -> bool:
        """Whether each order prefers another answer; a tie contradicts nothing.

        Example:
            >>> Verdict(0.9, 0.2).contradicts_itself, Verdict(1.0, 0.5).contradicts_itself
            (True, False)
        """
        if self.a_first is None or self.a_second is None:
            return False
        return (self.a_first - 0.5) * (self.a_second - 0.5) < 0


def head_to_head(
    a: Answers, b: Answers, judge: Judge, folder: Path, *, progress: bool = True, command: str | None = None
) -> dict[str, Any]:
    """Judge two models' answers to the same prompts, in both orders, and store the result.

    Equal answers are a tie that nobody is asked about. A pair is left out, and counted, where an order has no verdict.

    Args:
        a: The answers whose win rate is measured.
        b: Those they are compared with.
        judge: Who judges.
        folder: Where `winrate.json` is written; `verdicts.jsonl` beside it keeps every verdict the moment it is known,
            so that the same call goes on after an interruption, and judges nothing twice.
        progress: Whether to show a bar.
        command: The command line, for the record.

    Returns:
        What `winrate.json` holds.

    Raises:
        InputError: The prompts differ.
        RunError: The judge cannot be reached, or gave fewer than two pairs a verdict in both orders.

    Source: mean of both orders, ties 0.5 [C], as is usual.
    """
    pairs = match(a, b)
    verdicts = _verdicts(pairs, judge, VerdictCache(folder / VERDICTS), progress)
    results = _results(a, b, pairs, verdicts, judge)
    results |= {"command": command, "environment": describe_environment()}
    results["verdicts"] = [
        {
            "instruction": pair.instruction,
            "score": verdict.score,
            "a_first": verdict.a_first,
            "a_second": verdict.a_second,
        }
        for pair, verdict in zip(pairs, verdicts, strict=True)
    ]
    write_json(folder / RESULTS, results)
    return results


def _verdicts(pairs: Sequence[Pair], judge: Judge, cache: VerdictCache, progress: bool) -> list[Verdict]:
    """The verdict on every pair, out of the cache or new."""
    asked = [
        question
        for pair in pairs
        if pair.a != pair.b
        for question in (Question(*pair), Question(pair.instruction, pair.b, pair.a))
    ]
    known = {question: cache.get(judge, question) for question in asked}
    new = [question for question in asked if known[question] is None]
    with tqdm(
        total=len(asked), initial=len(asked) - len(new), desc="judge", unit="verdict", disable=not progress
    ) as bar:
        for question, preference in judge.judge(new) if new else ():
            if preference is not None:
                cache.put(judge, question, preference)
                known[question] = preference
            bar.update()
    return [_verdict(pair, known) for pair in pairs]


def _verdict(pair: Pair, known: dict[Question, float | None]) -> Verdict:
    if pair.a == pair.b:
        return Verdict(0.5, 0.5)
    b_first = known[Question(pair.instruction, pair.b, pair.a)]
    return Verdict(known[Question(*pair)], None if b_first is None else 1 - b_first)


def _results(
    a: Answers, b: Answers, pairs: Sequence[Pair], verdicts: Sequence[Verdict], judge: Judge
) -> dict[str, Any]:
    counted = [
        (pair, verdict, verdict.score)
        for pair, verdict in zip(pairs, verdicts, strict=True)
        if verdict.score is not None
    ]
    if len(counted) < 2:
        raise RunError(
            f"{judge.name} gave {len(counted)} of {len(pairs)} pairs a verdict in both orders, too few to go on: "
            "take another judge"
        )
    scores = np.asarray([score for *_, score in counted])
    lengths_a, lengths_b = (np.asarray([len(pair[place]) for pair, *_ in counted]) for place in (1, 2))
    controlled = length_controlled(scores, lengths_a, lengths_b)
    orders = np.asarray([[verdict.a_first, verdict.a_second] for _, verdict, _ in counted], dtype=np.float64)
    rates = {
        "proxy_rate" if judge.proxy else "win_rate": win_rate(scores).to_dict(),
        "length_controlled": None if controlled is None else controlled.to_dict(),
    }
    return {
        "judge": judge.name,
        "proxy": judge.proxy,
        "a": {"file": str(a.path), "generator": a.generator, "mean_length": float(lengths_a.mean())},
        "b": {"file": str(b.path), "generator": b.generator, "mean_length": float(lengths_b.mean())},
        **rates,
        "n": len(counted),
        "no_verdict": len(pairs) - len(counted),
        "wins": int((scores > 0.5).sum()),
        "ties": int((scores == 0.5).sum()),
        "losses": int((scores < 0.5).sum()),
        "order_inconsistency": float(np.mean([verdict.contradicts_itself for _, verdict, _ in counted])),
        "first_preferred": float((orders[:, 0] + 1 - orders[:, 1]).mean() / 2),
    }
