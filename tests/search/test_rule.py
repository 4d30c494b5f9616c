"""The rule on tables made by hand, where the right choice is seen at a glance, and its properties on any table."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerdescent.errors import InputError
from layerdescent.search import Candidate, Choice, choose_best, choose_under_constraints
from layerdescent.search.rule import DUAL_FIELDS, price_paid, rule_in_words
from layerdescent.training import DescentConfig


def plain(value: float | None, loss: float | None = 0.4, **settings: Any) -> Candidate:
    return Candidate(settings=settings, value=value, loss=loss)


def asked(
    alpha: float, value: float, loss: float, violation: float = -0.1, feasible: bool = True, **settings: Any
) -> Candidate:
    return Candidate(
        settings={"alpha": alpha, **settings},
        value=value,
        loss=loss,
        alpha=alpha,
        max_violation=violation,
        feasible=feasible,
    )


def chosen(table: Sequence[Candidate], best: float = 0.85, price: float = 0.003, metric: str = "accuracy") -> Choice:
    return choose_under_constraints(table, best, price, metric)


# Arms without constraints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "metric", "place"),
    [
        ([plain(0.80), plain(0.85), plain(0.83)], "accuracy", 1),
        ([plain(0.80), plain(0.85), plain(0.83)], "rmse", 0),
        ([plain(0.85, 0.40), plain(0.85, 0.38), plain(0.85, 0.39)], "accuracy", 1),
        ([plain(0.85, 0.38), plain(0.85, 0.38)], "accuracy", 0),
        ([plain((0.8 + 0.9) / 2, 0.40), plain((0.84 + 0.86) / 2, 0.38)], "accuracy", 1),  # equal but for rounding
        ([plain(None, None), plain(0.6)], "accuracy", 1),
        ([plain(float("nan"), 0.1), plain(0.6)], "accuracy", 1),
    ],
)
def test_the_best_value_wins_and_ties_go_by_the_loss(table: list[Candidate], metric: str, place: int) -> None:
    assert choose_best(table, metric).place == place


def test_the_reason_of_the_best_value_counts_ties_and_failures() -> None:
    reason = choose_best([plain(0.85, 0.4), plain(0.85, 0.3), plain(None, None)], "accuracy").reason
    assert reason == (
        "the best validation accuracy of 3 settings, 85.00 %, shared by 2 of them and decided by the loss of the last "
        "layer (1 failed)"
    )


def test_where_all_failed_nothing_is_chosen() -> None:
    for choice in (choose_best([plain(None, None)], "accuracy"), chosen([plain(None, None)])):
        assert choice.place is None
        assert "failed" in choice.reason


# Arms under constraints -----------------------------------------------------------------------------------------------


def test_the_largest_alpha_within_the_price_wins_though_smaller_ones_are_better() -> None:
    choice = chosen([asked(0.02, 0.852, 0.38), asked(0.1, 0.848, 0.41), asked(0.2, 0.846, 0.46)])
    assert (choice.place, choice.within_price) == (1, True)
    assert choice.reason == (
        "alpha 0.1 is the largest that stays within 0.3 points of erm's best (85.00 %): it costs 0.20 points"
    )


def test_exactly_the_price_is_within_it() -> None:
    assert 0.85 - 0.847 > 0.003  # in floating point
    assert chosen([asked(0.02, 0.85, 0.38), asked(0.1, 0.847, 0.41)]).place == 1


def test_dual_settings_are_chosen_by_the_loss_before_the_price_is_looked_at() -> None:
    """The second is within the price, but at this alpha the first has the lower loss, and it is not."""
    table = [asked(0.1, 0.84, 0.40, dual_lr=0.1), asked(0.1, 0.85, 0.41, dual_lr=1), asked(0.02, 0.85, 0.39, dual_lr=1)]
    assert chosen(table).place == 2
    assert chosen(table).finalists == (0, 2)


def test_infeasible_dual_settings_are_out_however_low_their_loss() -> None:
    table = [
        asked(0.1, 0.85, 0.30, violation=0.05, feasible=False, dual_lr=0.1),
        asked(0.1, 0.85, 0.41, dual_lr=1, resilience=None),
        asked(0.1, 0.85, 0.40, dual_lr=1, resilience=10),
    ]
    choice = chosen(table)
    assert choice.place == 2
    assert "of its 2 feasible dual settings these have the lowest loss" in choice.reason


def test_none_within_the_price_takes_the_cheapest_and_says_what_it_costs() -> None:
    choice = chosen([asked(0.02, 0.83, 0.39), asked(0.1, 0.84, 0.41), asked(0.2, 0.80, 0.46)])
    assert (choice.place, choice.within_price) == (1, False)
    assert choice.reason == (
        "no alpha stays within 0.3 points of erm's best (85.00 %): alpha 0.1 is the cheapest feasible one, and it "
        "costs 1.00 points"
    )


def test_equally_cheap_ones_go_by_alpha_then_loss_then_order() -> None:
    table = [asked(0.02, 0.8, 0.38), asked(0.1, 0.8, 0.41, first_layer=4), asked(0.1, 0.8, 0.40, first_layer=5)]
    assert chosen(table).place == 2
    assert chosen([*table, asked(0.1, 0.8, 0.40, first_layer=6)]).place == 2


def test_nothing_feasible_takes_the_least_infeasible_and_says_so() -> None:
    table = [
        asked(0.02, 0.85, 0.38, violation=0.04, feasible=False),
        asked(0.1, 0.85, 0.39, violation=0.03, feasible=False),
        asked(0.2, 0.86, 0.30, violation=0.09, feasible=False),
    ]
    choice = chosen(table)
    assert (choice.place, choice.within_price) == (1, True)
    assert "none of 3 settings is feasible: the least infeasible one" in choice.reason
    assert "0.0300" in choice.reason


def test_variants_go_by_price_then_alpha_then_loss() -> None:
    table = [
        asked(0.1, 0.84, 0.37, first_layer=1),  # too dear
        asked(0.1, 0.85, 0.40, first_layer=5),
        asked(0.1, 0.85, 0.39, first_layer=4),
        asked(0.05, 0.86, 0.35, first_layer=1),
    ]
    assert chosen(table).place == 2
    assert chosen(table).finalists == (0, 1, 2, 3)


def test_a_training_field_of_a_constrained_arm_is_a_variant() -> None:
    """Its cheaper half must not be hidden by one with a lower loss that is too dear."""
    table = [asked(0.1, 0.84, 0.37, learning_rate=1e-4), asked(0.1, 0.85, 0.40, learning_rate=2e-4)]
    assert chosen(table).place == 1


def test_rmse_is_better_when_lower_and_its_price_is_relative() -> None:
    table = [asked(0.02, 0.0399, 0.001), asked(0.1, 0.0403, 0.002), asked(0.2, 0.0405, 0.003)]
    choice = chosen(table, best=0.04, price=0.01, metric="rmse")
    assert choice.place == 1
    assert "within 1 % of erm's best (0.04): it costs 0.75 %" in choice.reason


def test_a_candidate_without_its_numbers_is_refused() -> None:
    with pytest.raises(InputError, match="needs alpha, feasible and max_violation"):
        chosen([plain(0.8)])


def test_the_dual_fields_exist() -> None:
    assert set(DescentConfig.__dataclass_fields__) >= DUAL_FIELDS


def test_the_words_name_price_metric_and_baseline() -> None:
    words = " ".join(rule_in_words("accuracy", 0.003, "plain"))
    assert "within 0.3 points of the best of plain" in words
    assert "accuracy" in words
    assert "must not be compared" not in words
    assert "must not be compared" in rule_in_words("accuracy", 0.003, "plain", unequal=True)[-1]


# Properties -----------------------------------------------------------------------------------------------------------

fractions = st.integers(0, 1000).map(lambda thousandths: thousandths / 1000)
tables = st.lists(
    st.builds(
        asked,
        alpha=st.sampled_from([0.02, 0.05, 0.1]),
        value=fractions,
        loss=fractions,
        violation=fractions,
        feasible=st.booleans(),
        dual_lr=st.sampled_from([0.1, 1]),
        first_layer=st.sampled_from([1, 5]),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: tuple(row.settings.values()),
)


@given(tables, fractions, st.integers(0, 20).map(lambda tenths: tenths / 1000))
def test_the_choice_is_what_the_rule_says(table: list[Candidate], best: float, price: float) -> None:
    """Written down once more, without a shortcut: over all feasible rows, not over groups."""
    choice = choose_under_constraints(table, best, price, "accuracy")
    assert choice.place is not None
    row = table[choice.place]
    feasible = [other for other in table if other.feasible]
    if not feasible:
        assert row.max_violation == min(float(other.max_violation or 0) for other in table)
        return
    assert row.feasible

    def beaten_at_home(other: Candidate) -> bool:
        return any(
            rival.loss is not None
            and other.loss is not None
            and rival.loss < other.loss
            and {**rival.settings, "dual_lr": 0} == {**other.settings, "dual_lr": 0}
            for rival in feasible
        )

    assert not beaten_at_home(row)
    rivals = [other for other in feasible if not beaten_at_home(other)]

    def cost(other: Candidate) -> int:
        return round(1000 * price_paid(other.value or 0.0, best, "accuracy"))

    affordable = [other for other in rivals if cost(other) <= round(1000 * price)]
    assert choice.within_price is (cost(row) <= round(1000 * price))
    # Of two dual settings with equal losses the first as written stands, whatever the second would cost.
    if choice.within_price:
        firsts = [table[place] for place in choice.finalists if table[place] in affordable]
        assert row.alpha == max(other.alpha or 0.0 for other in firsts)
    else:
        assert cost(row) == min(cost(table[place]) for place in choice.finalists)


@given(tables, fractions)
def test_a_higher_price_never_buys_a_smaller_alpha(table: list[Candidate], best: float) -> None:
    choices = [choose_under_constraints(table, best, price, "accuracy") for price in (0.0, 0.01, 0.1, 1.0)]
    alphas = [table[choice.place or 0].alpha for choice in choices if choice.within_price and choice.finalists]
    assert alphas == sorted(alphas, key=lambda alpha: alpha or 0.0)


@given(tables, fractions)
def test_a_shift_of_all_values_changes_nothing(table: list[Candidate], best: float) -> None:
    moved = [replace(row, value=(row.value or 0.0) + 0.25) for row in table]
    assert (
        choose_under_constraints(moved, best + 0.25, 0.003, "accuracy").place
        == choose_under_constraints(table, best, 0.003, "accuracy").place
    )


@given(st.lists(st.builds(plain, value=fractions, loss=fractions), min_size=1, max_size=8))
def test_accuracy_and_its_negative_as_an_error_choose_the_same(table: list[Candidate]) -> None:
    errors = [replace(row, value=1 - (row.value or 0.0)) for row in table]
    assert choose_best(table, "accuracy").place == choose_best(errors, "rmse").place
