"""By what rule settings are chosen: pure functions on tables of validation numbers.

Two rules, because two things are compared. An arm without constraints is as good as its clean validation value. An arm
under constraints asks something of every layer, and its last layer's loss alone would always prefer the smallest alpha:
so it takes the largest alpha that stays within a price stated beforehand.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerdescent.errors import InputError

DUAL_FIELDS = frozenset(
    {
        "dual_lr",
        "resilience",
        "dual_every",
        "dual_warmup_steps",
        "violation_cap",
        "multiplier_max",
        "reference",
    }
)
"""How the multipliers move. Every other field says what is asked, or how the primal side trains: a variant."""

DEFAULT_PRICE = {"accuracy": 0.003, "rmse": 0.01, "perplexity": 0.01}
"""What a constrained arm may cost where the recipe does not say: 0.3 points, 1 %."""

_EPSILON = 1e-9  # equal but for rounding: 0.85 - 0.003 is not quite 0.847


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One combination of settings of one arm: means over its seeds, on clean validation data.

    Attributes:
        settings: the searched fields.
        value: the recipe's metric; None where a seed failed, and then the candidate is never chosen.
        loss: F_L, the loss of the last layer.
        alpha: share by which each layer must lower the loss (the geometric mean over layers); constrained arms only.
        max_violation: the largest relative violation of any seed.
        feasible: whether the kept checkpoint of every seed is feasible.
    """

    settings: Mapping[str, Any]
    value: float | None
    loss: float | None
    alpha: float | None = None
    max_violation: float | None = None
    feasible: bool | None = None


@dataclass(frozen=True)
class Choice:
    """Which candidate was chosen, and why.

    Attributes:
        place: its place among the candidates; None where all of them failed.
        reason: in words.
        within_price: of a constrained arm, whether it stays within the price.
        finalists: of a constrained arm, one place for each alpha and variant: the best feasible dual settings.
    """

    place: int | None
    reason: str
    within_price: bool | None = None
    finalists: tuple[int, ...] = ()


def price_paid(value: float, best: float, metric: str) -> float:
    """What a value costs against the best one; below 0 where it is better.

        accuracy            best - value        as a fraction
        rmse, perplexity    value / best - 1    relative

    Example:
        >>> round(price_paid(0.84, 0.85, "accuracy"), 6), round(price_paid(0.0404, 0.04, "rmse"), 6)
        (0.01, 0.01)
    """
    if metric != "accuracy":
        return value / best - 1 if best > 0 else (0.0 if value <= best else math.inf)
    return best - value


def choose_best(candidates: Sequence[Candidate], metric: str) -> Choice:
    """The rule of arms without constraints: the best value; of equal ones the lowest loss, then the first.

    Args:
        candidates: one for each combination of settings, in the order of the recipe.
        metric: "accuracy" (higher is better), "rmse" or "perplexity" (lower is better).

    Source: our choice [C].

    Example:
        >>> table = [Candidate(settings={"num_train_epochs": n}, value=v, loss=0.4) for n, v in ((1, 0.8), (2, 0.9))]
        >>> choose_best(table, "accuracy").place
        1
    """
    alive = _alive(candidates)
    if not alive:
        return _all_failed(candidates)
    best = _first_least(alive, lambda place: (_cost(candidates[place], metric), candidates[place].loss))
    equal = sum(_same(_cost(candidates[place], metric), _cost(candidates[best], metric)) for place in alive)
    ties = f", shared by {equal} of them and decided by the loss of the last layer" if equal > 1 else ""
    value = _value(candidates[best].value, metric)
    return Choice(best, f"the best validation {metric} of {_trials(candidates)}, {value}{ties}{_lost(candidates)}")


def choose_under_constraints(
    candidates: Sequence[Candidate], best: float, price: float, metric: str, baseline: str = "erm"
) -> Choice:
    """The rule of arms under constraints: the largest alpha that stays within the price.

    1. For each alpha and variant (every searched field that does not belong to the multipliers), of the feasible
       candidates that with the lowest F_L: a finalist.
    2. Of the finalists within the price, the largest alpha; of equal alphas the lowest F_L, then the first as written.
    3. None within the price: the cheapest finalist, and what it costs is said.
    4. None feasible: the candidate with the smallest largest violation, and that is said.

    Args:
        candidates: one for each combination of settings, in the order of the recipe.
        best: the baseline's best clean validation value.
        price: what may be paid of it, stated beforehand; see `price_paid`.
        metric: "accuracy", "rmse" or "perplexity".
        baseline: its name, for the reason.

    Raises:
        InputError: a candidate that did not fail lacks its alpha, feasibility or largest violation.

    Source: our choice [C].

    Example:
        >>> rows = [(0.02, 0.85, 0.40), (0.1, 0.848, 0.42), (0.2, 0.83, 0.50)]
        >>> table = [Candidate(settings={"alpha": a}, value=v, loss=f, alpha=a, max_violation=0.0, feasible=True)
        ...          for a, v, f in rows]
        >>> table[choose_under_constraints(table, best=0.85, price=0.003, metric="accuracy").place].alpha
        0.1
    """
    alive = _alive(candidates)
    if not alive:
        return _all_failed(candidates)
    for place in alive:
        row = candidates[place]
        if row.alpha is None or row.feasible is None or row.max_violation is None:
            raise InputError(f"candidate {place} ({dict(row.settings)}) needs alpha, feasible and max_violation")
    feasible = [place for place in alive if candidates[place].feasible]
    if not feasible:
        least = _first_least(alive, lambda place: (candidates[place].max_violation, candidates[place].loss))
        return Choice(
            least,
            f"none of {_trials(candidates)} is feasible: the least infeasible one, whose largest relative violation is "
            f"{candidates[least].max_violation:.4f}{_lost(candidates)}",
            within_price=_within(candidates[least], best, price, metric),
        )
    finalists = [
        _first_least(places, lambda place: (candidates[place].loss,))
        for places in _by_variant(candidates, feasible).values()
    ]
    affordable = [place for place in finalists if _within(candidates[place], best, price, metric)]
    # Ties go by alpha's negative, so that the largest comes first.
    if affordable:
        chosen = _first_least(affordable, lambda place: (-(candidates[place].alpha or 0.0), candidates[place].loss))
    else:
        chosen = _first_least(
            finalists,
            lambda place: (_cost(candidates[place], metric), -(candidates[place].alpha or 0.0), candidates[place].loss),
        )
    row = candidates[chosen]
    assert row.alpha is not None
    assert row.value is not None
    paid = price_paid(row.value, best, metric)
    limit, against = price_text(price, metric), f"{baseline}'s best ({_value(best, metric)})"
    if affordable:
        reason = f"alpha {row.alpha:g} is the largest that stays within {limit} of {against}: {_paid(paid, metric)}"
    else:
        reason = (
            f"no alpha stays within {limit} of {against}: alpha {row.alpha:g} is the cheapest feasible one, and "
            f"{_paid(paid, metric)}"
        )
    rivals = sum(_variant(candidates[place]) == _variant(row) for place in feasible)
    if rivals > 1:
        reason += f"; of its {rivals} feasible dual settings these have the lowest loss of the last layer"
    return Choice(chosen, reason + _lost(candidates), within_price=bool(affordable), finalists=tuple(sorted(finalists)))


def rule_in_words(metric: str, price: float, baseline: str, *, unequal: bool = False) -> list[str]:
    """Both rules as sentences, to be stored with what they chose."""
    study = "The arms had different numbers of trials: a study of sensitivity, whose choices must not be compared."
    return [
        "Only clean validation data decide; the test part is not looked at.",
        f"Every number is that of the checkpoint a run keeps, and the mean over seeds; the value is {metric}.",
        "Arms without constraints: the best value; of equal values the lowest loss of the last layer.",
        "Arms under constraints, first step: for each alpha, and each combination of the other searched fields that do "
        f"not belong to the multipliers ({', '.join(sorted(DUAL_FIELDS))} do), of the feasible settings those with the "
        "lowest loss of the last layer.",
        f"Second step: of these, the largest alpha whose value lies within {price_text(price, metric)} of the best of "
        f"{baseline}; of equal alphas the lowest loss of the last layer, then the order in the recipe.",
        "If no alpha does, the cheapest feasible one, and the price is reported; if nothing is feasible, the least "
        "infeasible one, and that is reported.",
        "A setting is feasible when the kept checkpoint of every seed is. A run whose loss stops being a number counts "
        "as a trial and is never chosen.",
        study if unequal else "Every arm had the same number of trials.",
    ]


def price_text(price: float, metric: str) -> str:
    """A price in the metric's words.

    Example:
        >>> price_text(0.003, "accuracy"), price_text(0.01, "rmse")
        ('0.3 points', '1 %')
    """
    return f"{100 * price:.4g} {'points' if metric == 'accuracy' else '%'}"


def _alive(candidates: Sequence[Candidate]) -> list[int]:
    return [
        place
        for place, row in enumerate(candidates)
        if row.value is not None and row.loss is not None and math.isfinite(row.value) and math.isfinite(row.loss)
    ]


def _all_failed(candidates: Sequence[Candidate]) -> Choice:
    return Choice(None, f"all of {_trials(candidates)} failed")


def _cost(row: Candidate, metric: str) -> float:
    """The value so turned that lower is better."""
    assert row.value is not None
    return -row.value if metric == "accuracy" else row.value


def _within(row: Candidate, best: float, price: float, metric: str) -> bool:
    assert row.value is not None
    return price_paid(row.value, best, metric) <= price + _EPSILON


def _by_variant(candidates: Sequence[Candidate], places: Sequence[int]) -> dict[str, list[int]]:
    """Places with the same settings but for the multipliers' own, in the order of the recipe."""
    groups: dict[str, list[int]] = {}
    for place in places:
        groups.setdefault(_variant(candidates[place]), []).append(place)
    return groups


def _variant(row: Candidate) -> str:
    return repr({name: value for name, value in row.settings.items() if name not in DUAL_FIELDS})


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= _EPSILON


def _first_least(places: Sequence[int], key: Callable[[int], tuple[Any, ...]]) -> int:
    """The place with the least key, numbers equal but for rounding being equal; of equal ones the first."""
    return min(places, key=lambda place: tuple(round(number / _EPSILON) for number in key(place)))


def _trials(candidates: Sequence[Candidate]) -> str:
    return f"{len(candidates)} settings" if len(candidates) > 1 else "1 setting"


def _lost(candidates: Sequence[Candidate]) -> str:
    failed = len(candidates) - len(_alive(candidates))
    return f" ({failed} failed)" if failed else ""


def _value(value: float | None, metric: str) -> str:
    assert value is not None
    return f"{100 * value:.2f} %" if metric == "accuracy" else f"{value:.4g}"


def _paid(paid: float, metric: str) -> str:
    size = f"{100 * abs(paid):.2f}"
    if float(size) == 0:
        return "it costs nothing"
    return f"it {'costs' if paid > 0 else 'gains'} {size} {'points' if metric == 'accuracy' else '%'}"
