"""The rules of a suggestion: closed forms, and what must hold for any numbers."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from layerdescent.descent import DescentConstraints
from layerdescent.errors import InputError
from layerdescent.suggest import Measured, Proposal, judge, propose, revise
from layerdescent.suggest.rules import (
    DUAL_LR_RANGE,
    LEAST_ALPHA,
    proposed_dual_lr,
    proposed_resilience,
    readable_from,
    spread,
    two_digits_down,
)
from layerdescent.training import DescentConfig

LN2 = math.log(2)
# Six layers of MiniLM on IMDb: a head on the first token, and one on the mean over positions.
FIRST_TOKEN = (0.0, 0.0012, 0.0013, 0.0006, 0.004, 0.015, 0.18)
MEAN = (0.06, 0.08, 0.09, 0.11, 0.14, 0.11, 0.10)


def measured(losses: tuple[float, ...], **changes: Any) -> Measured:
    numbers: dict[str, Any] = {"spreads": (1.0,) * len(losses), "constant_loss": LN2, "dual_steps": 375}
    return Measured(layer_losses=losses, **(numbers | changes))


def falling(last: float, **changes: Any) -> Measured:
    return measured((LN2,) * 6 + (last,), **changes)


def about(proposal: Proposal, setting: str) -> str:
    return " | ".join(str(reason) for reason in proposal.reasons if reason.about == setting)


# Where one head can read ---------------------------------------------------------------------------------------------


def test_spread_is_the_standard_deviation_over_inputs_and_ignores_what_is_common() -> None:
    rows = np.random.default_rng(0).normal(0, [0.5, 2.0], size=(20_000, 2)) + 1e3
    assert spread(rows) == pytest.approx(math.sqrt((0.25 + 4) / 2), rel=0.02)
    assert spread(np.full((5, 3), 7.0)) == 0
    assert spread(3 * rows) == pytest.approx(3 * spread(rows))


@pytest.mark.parametrize(
    ("relative", "first"),
    [
        ((0.0, 0.05, 1.0), 1),  # at the threshold is readable
        ((0.0, 0.049, 1.0), 2),
        ((9.0, 0.04, 1.0), 2),  # layer 0 is never required, and does not count
        ((0.0, 0.9, 0.01, 0.9, 1.0), 3),  # a gap in the middle: every layer from there on must be readable
        ((0.0, 0.01, 0.01, 0.01, 1.0), 4),
        ((0.0, 1.0), 1),
    ],
)
def test_the_first_layer_is_the_lowest_from_which_all_can_be_read(relative: tuple[float, ...], first: int) -> None:
    assert readable_from(relative) == first


def test_the_first_token_of_minilm_can_be_read_from_layer_5_on_and_the_mean_from_layer_1() -> None:
    token = propose(falling(0.4, spreads=FIRST_TOKEN), mean_pooling=True)
    assert token.first_layer == 5
    assert "--set model.pooling=mean" in about(token, "first_layer")
    assert "layers 1, 2, 3 and 4" in about(token, "first_layer")
    assert propose(falling(0.4, spreads=MEAN), mean_pooling=True).first_layer == 1
    assert "pooling" not in about(propose(falling(0.4, spreads=MEAN), mean_pooling=True), "first_layer")


def test_mean_pooling_is_recommended_only_where_it_exists_and_the_head_reads_one_token() -> None:
    assert "pooling" not in about(propose(falling(0.4, spreads=FIRST_TOKEN)), "first_layer")
    varies_at_0 = (0.1, *FIRST_TOKEN[1:])
    assert "pooling" not in about(propose(falling(0.4, spreads=varies_at_0), mean_pooling=True), "first_layer")


def test_a_last_layer_alone_is_said_to_be_of_little_use() -> None:
    only = propose(falling(0.4, spreads=(0, 0, 0, 0, 0, 0, 1)))
    assert only.first_layer == 6
    assert "only the last layer is left" in about(only, "first_layer")


# Alpha ---------------------------------------------------------------------------------------------------------------


def test_alpha_takes_half_of_the_log_descent() -> None:
    """(1 - a)^6 = 1/4 is the limit; half of it is (1 - a)^6 = 1/2, a = 0.1091, rounded down."""
    found = propose(falling(LN2 / 4))
    assert found.alpha_max == pytest.approx(1 - 0.25 ** (1 / 6))
    assert found.alpha == 0.1
    assert propose(falling(LN2 / 4), tightness=1).alpha == 0.2  # of 0.2063


def test_fewer_layers_share_the_descent_from_a_later_start() -> None:
    losses = (LN2, LN2, LN2, LN2, 0.6, 0.5, 0.4)
    found = propose(measured(losses, spreads=FIRST_TOKEN))
    assert found.alpha_max == pytest.approx(1 - math.sqrt(0.4 / 0.6))  # from layer 4, two steps
    assert found.alpha == two_digits_down(1 - (0.4 / 0.6) ** 0.25)


def test_a_start_worse_than_a_constant_prediction_gives_no_room() -> None:
    vacuous = measured((3.0, *(LN2,) * 5, 0.4))
    assert propose(vacuous).settings == propose(falling(0.4)).settings
    assert "a constant prediction" in about(propose(vacuous), "alpha")


def test_layers_between_do_not_set_alpha_but_too_good_ones_are_named() -> None:
    """The head of a plain run does not serve them, so their losses say nothing about what they could reach."""
    found = propose(measured((LN2, 5.0, 0.41, 9.0, 1.0, 0.2, 0.4)))
    assert found.alpha == propose(falling(0.4)).alpha
    assert "layers 2 and 5 did so well" in about(found, "alpha")
    assert "did so well" not in about(propose(falling(0.4)), "alpha")


@pytest.mark.parametrize("last", [LN2, 0.7, 5.0, 0.97 * LN2])
def test_a_pilot_that_learnt_too_little_gives_no_numbers(last: float) -> None:
    found = propose(falling(last))
    assert (found.alpha, found.dual_lr, found.resilience, found.settings) == (None, None, None, {})
    assert "too little" in about(found, "alpha")


def test_a_deep_model_gets_the_least_alpha() -> None:
    deep = measured((LN2,) * 48 + (0.45,))  # half of its log descent would be 0.0045 a layer
    found = propose(deep)
    assert found.alpha == LEAST_ALPHA
    assert found.alpha <= found.alpha_max


# The dual side -------------------------------------------------------------------------------------------------------


def test_a_flat_layer_reaches_5_without_resilience_and_stays_below_5_with_it() -> None:
    alpha, steps = 0.05, 375
    eta, rho = proposed_dual_lr(alpha, steps), proposed_resilience(alpha)
    assert sum(eta * alpha for _ in range(steps)) == pytest.approx(5, rel=0.02)
    multiplier, largest = 0.0, 0.0
    for _ in range(100 * steps):
        multiplier = max(0.0, multiplier + eta * (alpha - multiplier / rho))
        largest = max(largest, multiplier)
    assert largest <= 5
    assert multiplier == pytest.approx(5, rel=0.01)


def test_slack_stays_within_the_tolerance_while_the_multiplier_is_at_most_1() -> None:
    for alpha in (0.01, 0.05, 0.2):
        tolerance = DescentConstraints(num_layers=1, alpha=alpha).tolerances[0]
        assert 1 / proposed_resilience(alpha) == pytest.approx(tolerance, rel=0.05)


def test_dual_steps_are_clipped() -> None:
    assert proposed_dual_lr(0.05, 3) == DUAL_LR_RANGE[1]
    assert proposed_dual_lr(0.05, 1_000_000) == DUAL_LR_RANGE[0]
    assert "clipped" in about(propose(falling(0.4, dual_steps=3)), "dual_lr")
    assert "clipped" not in about(propose(falling(0.4)), "dual_lr")


# For any numbers -----------------------------------------------------------------------------------------------------

LOSSES = st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=33)


@st.composite
def pilots(draw: st.DrawFn) -> Measured:
    losses = draw(LOSSES)
    spreads = draw(st.lists(st.floats(0, 10), min_size=len(losses), max_size=len(losses)))
    assume(spreads[-1] > 1e-6)
    steps = draw(st.integers(1, 10**6))
    return Measured(
        layer_losses=tuple(losses),
        spreads=tuple(spreads),
        constant_loss=draw(st.floats(1e-3, 1e3)),
        dual_steps=steps,
    )


@given(pilot=pilots(), tightness=st.floats(0.01, 1))
def test_what_is_proposed_is_accepted_and_within_its_limits(pilot: Measured, tightness: float) -> None:
    found = propose(pilot, tightness=tightness)
    if found.alpha is None:
        assert not found.settings
        return
    assert found.dual_lr is not None
    assert found.resilience is not None
    assert LEAST_ALPHA <= found.alpha <= found.alpha_max
    assert DUAL_LR_RANGE[0] <= found.dual_lr <= DUAL_LR_RANGE[1]
    assert found.resilience > found.dual_lr
    constraints = DescentConfig(output_dir="unused", use_cpu=True, **found.settings).constraints(pilot.num_layers)
    assert all(pilot.relative_spreads[layer] >= 0.05 for layer in constraints.nodes[1:])
    # The necessary condition: the pilot's own last loss is low enough for what the chain asks for.
    start = min(pilot.layer_losses[constraints.nodes[0]], pilot.constant_loss)
    asked = math.prod(1 - step for step in constraints.steps) * start
    assert pilot.layer_losses[-1] <= asked * (1 + 1e-9)
    assert {reason.about for reason in found.reasons} == set(found.settings)


@given(pilot=pilots(), power=st.integers(-20, 20))
def test_units_of_the_loss_and_of_the_states_change_nothing(pilot: Measured, power: int) -> None:
    """Powers of two are exact, so equality is too."""
    scale = 2.0**power
    scaled = replace(
        pilot,
        layer_losses=tuple(scale * loss for loss in pilot.layer_losses),
        spreads=tuple(scale * each for each in pilot.spreads),
        constant_loss=scale * pilot.constant_loss,
    )
    assert propose(scaled).settings == propose(pilot).settings
    assert propose(scaled).alpha_max == propose(pilot).alpha_max


@given(last=st.floats(0.01, 0.6), better=st.floats(0.5, 1))
def test_more_descent_never_asks_for_less(last: float, better: float) -> None:
    less, more = propose(falling(last)), propose(falling(better * last))
    assert less.alpha is not None
    assert more.alpha is not None
    assert more.alpha >= less.alpha


@given(value=st.floats(1e-6, 1e6))
def test_rounding_down_is_never_above_and_off_by_less_than_a_tenth(value: float) -> None:
    down = two_digits_down(value)
    assert 0.9 * value < down <= value
    assert float(f"{down:.1e}") == down


# After the check -----------------------------------------------------------------------------------------------------

SIX = DescentConstraints(num_layers=6, alpha=0.05)
GROWING = [[0.01 * step] * 6 for step in range(20)]


def losses_with(*falls: float) -> list[float]:
    losses = [LN2]
    for fall in falls:
        losses.append(losses[-1] * (1 - fall))
    return losses


PUSHED = [[0.0, *[1.0] * 6]] * 20


def test_a_constraint_is_met_moving_stuck_or_waiting() -> None:
    pilot = losses_with(0, 0, 0, 0, 0, 0.4)
    # layer 1 does nothing, layer 2 a third of what is asked, 3 all but its tolerance, 4 nothing but at rest, 5 exactly
    # what is asked, 6 more
    check = losses_with(0, 0.02, 0.041, 0, 0.05, 0.1)
    multipliers = [[lam if layer != 3 else 0.2 for layer, lam in enumerate(row)] for row in GROWING]
    assert judge(SIX, pilot, check, multipliers, PUSHED) == ("stuck", "moving", "met", "waiting", "met", "met")


def test_a_layer_without_weight_waits_however_much_its_multiplier_grows() -> None:
    """With equal multipliers in a row only the topmost of its layers has weight."""
    pilot = check = losses_with(0, 0, 0, 0.1, 0.1, 0.1)
    multipliers = [[0.1 * step] * 3 + [0.0] * 3 for step in range(20)]
    weights = [SIX.weights(torch.tensor(row)).tolist() for row in multipliers]
    assert judge(SIX, pilot, check, multipliers, weights) == ("waiting", "waiting", "stuck", "met", "met", "met")


def test_only_the_last_half_of_the_multipliers_path_counts() -> None:
    pilot = check = losses_with(*[0.0] * 6)
    early = [[1.0 - 0.1 * step] * 6 for step in range(10)] + [[0.1 + 0.1 * step] * 6 for step in range(10)]
    late = [[0.1 * step] * 6 for step in range(18)] + [[1.6] * 6, [1.7] * 6]
    assert set(judge(SIX, pilot, check, early, PUSHED)) == {"stuck"}
    assert set(judge(SIX, pilot, check, late, PUSHED)) == {"waiting"}
    assert set(judge(SIX, pilot, check, early, PUSHED[:10] + [[0.0] * 7] * 10)) == {"waiting"}


def test_two_entries_are_no_path() -> None:
    pilot = losses_with(*[0.0] * 6)
    assert set(judge(SIX, pilot, pilot, GROWING[:4], PUSHED[:4])) == {"waiting"}
    assert set(judge(SIX, pilot, pilot, GROWING[:5], PUSHED[:5])) == {"stuck"}


def test_a_layer_that_rises_less_than_in_the_pilot_moves() -> None:
    pilot, check = losses_with(-0.5, *[0.1] * 5), losses_with(-0.2, *[0.1] * 5)
    assert judge(SIX, pilot, check, GROWING, PUSHED)[0] == "moving"


def states(**others: str) -> dict[int, Any]:
    return {layer: others.get(f"layer{layer}", "met") for layer in range(1, 7)}


@pytest.mark.parametrize("below", ["stuck", "waiting"])
def test_constraints_begin_above_a_stuck_layer_and_all_that_waits_below_it(below: str) -> None:
    pilot = falling(0.35)
    first = propose(pilot)
    moved = revise(first, pilot, states(layer1=below, layer2="stuck"))
    assert moved is not None
    assert moved.first_layer == 3
    assert moved.settings == propose(pilot, first_layer=3).settings
    (change,) = moved.changes
    assert change.about == "first_layer"
    assert "only grew" in change.text


def test_alpha_is_halved_where_higher_layers_are_stuck_or_too_few_would_be_left_or_training_diverged() -> None:
    pilot = falling(0.35)
    first = propose(pilot)
    assert first.alpha is not None
    all_but_last = {layer: "stuck" if layer < 6 else "met" for layer in range(1, 7)}
    for outcome in (states(layer4="stuck"), states(layer1="moving", layer2="stuck"), all_but_last, {}):
        halved = revise(first, pilot, outcome)  # type: ignore[arg-type]  # the words are states
        assert halved is not None
        assert halved.alpha is not None
        assert (halved.first_layer, halved.alpha) == (1, two_digits_down(first.alpha / 2))
        assert halved.dual_lr == proposed_dual_lr(halved.alpha, pilot.dual_steps)
        assert halved.resilience == proposed_resilience(halved.alpha)
        assert halved.reasons == propose(pilot, first_layer=1, alpha=halved.alpha).reasons
        assert f"alpha: {halved.alpha:g} asks for" in about(halved, "alpha")
        assert f"at {first.alpha:g}" in halved.changes[0].text
        assert f"halved to {halved.alpha:g}" in halved.changes[0].text
        again = revise(halved, pilot, outcome)  # type: ignore[arg-type]
        assert again is not None
        assert again.changes[:1] == halved.changes
        assert len(again.changes) == 2


def test_nothing_is_revised_where_nothing_is_stuck_or_nothing_is_left() -> None:
    pilot = falling(0.35)
    first = propose(pilot)
    assert revise(first, pilot, states()) is None
    assert revise(first, pilot, dict.fromkeys(range(1, 7), "moving")) is None
    assert revise(first, pilot, dict.fromkeys(range(1, 7), "waiting")) is None
    assert revise(replace(first, alpha=0.008), pilot, states(layer4="stuck")) is None


# Wrong input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_losses": (0.7,)}, "1 layer losses and 7 spreads"),
        ({"spreads": (1.0,) * 6}, "7 layer losses and 6 spreads"),
        ({"constant_loss": math.nan}, "must be finite"),
        ({"constant_loss": 0.0}, "constant_loss above 0"),
        ({"dual_steps": 0}, "dual_steps is 0"),
    ],
)
def test_numbers_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(falling(0.4), **changes)


def test_arguments_that_cannot_be_are_refused() -> None:
    for layer in (0, 7):
        with pytest.raises(InputError, match=f"first_layer is {layer}: the model has layers 1 to 6"):
            propose(falling(0.4), first_layer=layer)
    with pytest.raises(InputError, match="tightness is 0"):
        propose(falling(0.4), tightness=0)
    with pytest.raises(InputError, match="reads the same from layer 6"):
        propose(falling(0.4, spreads=(0.0,) * 7))
