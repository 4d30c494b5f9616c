"""The constraints against the definitions written out by hand, autograd, and linear programming."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor, nn

from layerdescent.descent import (
    FORMS,
    DescentConstraints,
    alpha_schedule,
    feasibility_advice,
    feasible,
    largest_alpha,
    loss_floors,
    monotone,
    shown,
)
from layerdescent.errors import InputError

# --- The definitions, written a second time: loops over layers, no vectorisation, nothing shared with the package -----


def plain_violations(
    F: Sequence[Tensor],
    alphas: Sequence[float],
    nodes: Sequence[int],
    form: str,
    is_constant: Callable[[int], bool] = lambda layer: False,
) -> list[Tensor]:
    """The c of every constraint, one layer after another; `is_constant` names the references that enter detached."""
    result = []
    for previous, layer in pairwise(nodes):
        start = nodes[0] if form == "cumulative" else previous
        reference = F[start].detach() if is_constant(start) else F[start]
        target = reference
        for k in range(start + 1, layer + 1):
            target = (1 - alphas[k - 1]) * target
        result.append((F[layer] - target) / reference if form == "ratio" else F[layer] - target)
    return result


def plain_lagrangian(F: Sequence[Tensor], multipliers: Sequence[float], violations: Sequence[Tensor]) -> Tensor:
    return F[-1] + sum(m * c for m, c in zip(multipliers, violations, strict=True))


@dataclass(frozen=True)
class Case:
    """Constraints with the numbers to evaluate them on."""

    constraints: DescentConstraints
    alphas: list[float]
    nodes: list[int]
    losses: Tensor
    multipliers: Tensor

    def leaves(self) -> list[Tensor]:
        return [loss.clone().requires_grad_() for loss in self.losses]


@st.composite
def cases(draw: st.DrawFn, forms: Sequence[str] = FORMS, switches: bool = False) -> Case:
    L = draw(st.integers(1, 6))
    alphas = draw(st.lists(st.floats(0, 0.9), min_size=L, max_size=L))
    where: dict[str, Any]
    match draw(st.sampled_from(["all", "first_layer", "grid"])):
        case "all":
            where, nodes = {}, list(range(L + 1))
        case "first_layer":
            first = draw(st.integers(1, L))
            where, nodes = {"first_layer": first}, list(range(first - 1, L + 1))
        case _:
            nodes = [*sorted(draw(st.sets(st.integers(0, L - 1), min_size=1))), L]
            where = {"grid": nodes}
    if switches:
        where |= {name: draw(st.booleans()) for name in ("detach_initial", "detach_previous", "clip_weights")}
    constraints = DescentConstraints(
        num_layers=L,
        alpha=alphas,
        form=draw(st.sampled_from(list(forms))),
        **where,
    )
    losses = draw(st.lists(st.floats(0.05, 5), min_size=L + 1, max_size=L + 1))
    multiplier = st.one_of(st.just(0.0), st.floats(1e-3, 20))
    multipliers = draw(st.lists(multiplier, min_size=len(nodes) - 1, max_size=len(nodes) - 1))
    as_tensor = lambda numbers: torch.tensor(numbers, dtype=torch.float64)  # noqa: E731
    return Case(constraints, alphas, nodes, as_tensor(losses), as_tensor(multipliers))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


# --- Violations, weights, Lagrangian ----------------------------------------------------------------------------------


@given(cases())
def test_violations_are_the_definition(case: Case) -> None:
    expected = plain_violations(list(case.losses), case.alphas, case.nodes, case.constraints.form)
    close(case.constraints.violations(case.losses), torch.stack(expected))
    assert case.constraints.nodes == tuple(case.nodes)


@given(cases())
def test_weights_are_the_gradient_of_the_stated_lagrangian(case: Case) -> None:
    F = case.leaves()
    violations = plain_violations(F, case.alphas, case.nodes, case.constraints.form)
    gradient = torch.autograd.grad(
        plain_lagrangian(F, case.multipliers.tolist(), violations), F, allow_unused=True, materialize_grads=True
    )
    close(case.constraints.weights(case.multipliers, case.losses), torch.stack(gradient))


@given(cases(switches=True))
def test_one_backward_pass_gives_the_gradient_with_detached_and_clipped_terms(case: Case) -> None:
    c, F = case.constraints, case.leaves()

    def is_constant(layer: int) -> bool:
        return c.detach_previous or (c.detach_initial and layer == case.nodes[0])

    value = plain_lagrangian(
        F, case.multipliers.tolist(), plain_violations(F, case.alphas, case.nodes, c.form, is_constant)
    )
    expected = torch.stack(torch.autograd.grad(value, F, allow_unused=True, materialize_grads=True))
    if c.clip_weights:
        expected = expected.clamp_min(0)

    losses = case.losses.clone().requires_grad_()
    lagrangian = c.lagrangian(losses, case.multipliers)
    (gradient,) = torch.autograd.grad(lagrangian, losses)

    close(gradient, expected)
    close(c.gradient_weights(case.multipliers, case.losses), expected)
    close(lagrangian.detach(), value.detach())  # the value is the stated one, whatever is detached or clipped


@given(cases(switches=True), st.floats(0.01, 10))
def test_an_objective_of_its_own_takes_the_place_of_the_last_loss_alone(case: Case, own: float) -> None:
    c, losses = case.constraints, case.losses.clone().requires_grad_()
    objective = torch.tensor(own, dtype=torch.float64, requires_grad=True)
    lagrangian = c.lagrangian(losses, case.multipliers, objective)
    gradient, by_objective = torch.autograd.grad(lagrangian, (losses, objective), materialize_grads=True)

    usual = c.lagrangian(case.losses, case.multipliers)
    close(lagrangian.detach(), usual - case.losses[-1] + own)
    last = torch.zeros_like(case.losses)
    last[-1] = 1
    close(gradient, c.gradient_weights(case.multipliers, case.losses) - last)
    assert by_objective == 1


def test_weights_of_three_layers_written_out() -> None:
    a1, a2, a3, l1, l2, l3 = 0.1, 0.2, 0.3, 1.0, 10.0, 100.0
    constraints = DescentConstraints(num_layers=3, alpha=[a1, a2, a3])
    multipliers = torch.tensor([l1, l2, l3], dtype=torch.float64)
    expected = [-(1 - a1) * l1, l1 - (1 - a2) * l2, l2 - (1 - a3) * l3, 1 + l3]
    close(constraints.weights(multipliers), torch.tensor(expected, dtype=torch.float64))
    assert constraints.gradient_weights(multipliers)[0] == 0  # F_0 enters as a constant
    kept = replace(constraints, detach_initial=False).gradient_weights(multipliers)
    close(kept, constraints.weights(multipliers))
    alone = replace(constraints, detach_previous=True).gradient_weights(multipliers)
    close(alone, torch.tensor([0, l1, l2, 1 + l3], dtype=torch.float64))
    clipped = replace(constraints, clip_weights=True).gradient_weights(multipliers)
    close(clipped, torch.tensor([0, 0, 0, 1 + l3], dtype=torch.float64))


def test_a_later_first_layer_detaches_its_own_reference_and_leaves_the_rest_free() -> None:
    constraints = DescentConstraints(num_layers=4, alpha=0.5, first_layer=3)
    multipliers = torch.tensor([2.0, 4.0])
    assert constraints.weights(multipliers).tolist() == [0, 0, -1, 0, 5]
    assert constraints.gradient_weights(multipliers).tolist() == [0, 0, 0, 0, 5]


def test_alpha_is_compounded_over_the_gaps_of_a_grid() -> None:
    constraints = DescentConstraints(num_layers=5, alpha=[0.1, 0.2, 0.3, 0.4, 0.5], grid=(1, 2, 5))
    assert constraints.steps == pytest.approx((0.2, 1 - 0.7 * 0.6 * 0.5))
    every = DescentConstraints(num_layers=5, alpha=0.05)
    assert every.steps == every.alphas == (0.05,) * 5  # no rounding where nothing is compounded


def test_the_cumulative_form_compares_with_the_first_node_and_ignores_the_layers_between() -> None:
    constraints = DescentConstraints(num_layers=2, alpha=0.5, form="cumulative")
    losses = torch.tensor([1.0, 0.1, 0.25], dtype=torch.float64)
    assert constraints.violations(losses).tolist() == pytest.approx([-0.4, 0.0])
    # The difference form punishes the good layer 1: layer 2 rises above it.
    assert replace(constraints, form="difference").violations(losses)[1] == pytest.approx(0.2)


@given(cases(forms=("difference", "cumulative")), st.integers(1, 5))
def test_the_mean_violation_is_the_violation_of_the_means(case: Case, samples: int) -> None:
    per_sample = case.losses * torch.linspace(0.5, 2, samples, dtype=torch.float64)[:, None] ** torch.arange(
        len(case.losses)
    )
    close(case.constraints.violations(per_sample).mean(0), case.constraints.violations(per_sample.mean(0)))


@given(cases(), st.floats(1e-3, 1e3))
def test_relative_violations_have_no_units(case: Case, scale: float) -> None:
    relative = case.constraints.relative_violations(case.losses)
    close(case.constraints.relative_violations(scale * case.losses), relative)
    if case.constraints.form != "ratio":
        close(relative * case.losses[case.nodes[:-1]], case.constraints.violations(case.losses))


def test_a_loss_of_zero_below_a_loss_of_zero_is_no_violation() -> None:
    constraints = DescentConstraints(num_layers=2, alpha=0.1)
    assert constraints.relative_violations(torch.tensor([1.0, 0.0, 0.0])).tolist() == pytest.approx([-0.9, 0.0])


# --- lambda = 0 is ERM ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_without_multipliers_value_and_gradients_are_those_of_the_last_loss_bit_for_bit(form: Any) -> None:
    constraints = DescentConstraints(num_layers=3, alpha=0.1, form=form)

    def run(objective: Callable[[Tensor], Tensor]) -> list[Tensor]:
        torch.manual_seed(1)
        layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)) for _ in range(3))
        states = [torch.randn(8, 4)]
        for layer in layers:
            states.append(layer(states[-1]))
        losses = torch.stack([state.square().mean() for state in states])
        value = objective(losses)
        value.backward()
        return [value.detach(), *(p.grad for p in layers.parameters() if p.grad is not None)]

    ours = run(lambda losses: constraints.lagrangian(losses, torch.zeros(3)))
    erm = run(lambda losses: losses[-1])
    assert len(ours) == len(erm) == 7
    assert all(torch.equal(a, b) for a, b in zip(ours, erm, strict=True))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_layers_without_weight_are_skipped_not_multiplied_by_zero(form: Any, broken: float) -> None:
    losses = torch.tensor([broken, broken, 0.5, 0.4], requires_grad=True)
    multipliers = torch.tensor([0.0, 0.0, 2.0])
    constraints = DescentConstraints(num_layers=3, alpha=0.1, form=form)
    idle = constraints.lagrangian(losses, torch.zeros(3))
    assert idle.item() == losses[-1].item()
    if form != "cumulative":  # there layer 3 is compared with the broken F_0
        value = constraints.lagrangian(losses, multipliers)
        value.backward()
        assert losses.grad is not None
        assert value.isfinite()
        assert losses.grad.isfinite().all()
        assert losses.grad[:2].tolist() == [0, 0]


def test_a_broken_last_loss_is_passed_on() -> None:
    constraints = DescentConstraints(num_layers=2)
    assert constraints.lagrangian(torch.tensor([1.0, 1.0, math.inf]), torch.zeros(2)).item() == math.inf
    assert constraints.lagrangian(torch.tensor([1.0, 1.0, math.nan]), torch.zeros(2)).isnan()


# --- Schedules --------------------------------------------------------------------------------------------------------


@given(st.floats(0.01, 1), st.integers(1, 30), st.data())
def test_reach_compounds_to_the_ratio_asked_for(ratio: float, L: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(1, L))
    constraints = DescentConstraints(num_layers=L, alpha={"kind": "reach", "ratio": ratio}, first_layer=first)
    assert math.prod(1 - step for step in constraints.steps) == pytest.approx(ratio)
    assert len(set(constraints.alphas)) == 1


def test_reach_on_a_grid_counts_the_layers_from_its_first_node() -> None:
    constraints = DescentConstraints(num_layers=6, alpha={"kind": "reach", "ratio": 0.5}, grid=(2, 4, 6))
    assert math.prod(1 - step for step in constraints.steps) == pytest.approx(0.5)


def test_linear_and_cosine_run_from_first_to_last() -> None:
    linear = alpha_schedule({"kind": "linear", "first": 0.0, "last": 0.4}, 5)
    cosine = alpha_schedule({"kind": "cosine", "first": 0.4, "last": 0.0}, 5)
    assert linear == pytest.approx((0.0, 0.1, 0.2, 0.3, 0.4))
    assert cosine == pytest.approx([0.2 + 0.2 * math.cos(math.pi * p) for p in (0, 0.25, 0.5, 0.75, 1)])
    assert alpha_schedule({"kind": "linear", "first": 0.3, "last": 0.1}, 1) == (0.3,)


# --- monotone, feasible, shown ----------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 3), min_size=2, max_size=6))
def test_monotone_is_strict_everywhere(losses: list[float]) -> None:
    expected = not any(losses[i] >= losses[i - 1] for i in range(1, len(losses)))
    assert monotone(losses) == monotone(torch.tensor(losses, dtype=torch.float64)) == expected


def test_a_loss_that_is_not_a_number_is_not_monotone_nor_feasible() -> None:
    losses = [1.0, math.nan, 0.1]
    assert not monotone(losses)
    assert not feasible(losses, DescentConstraints(num_layers=2, alpha=0.1))


@given(cases(), st.one_of(st.none(), st.floats(0, 1)))
def test_feasible_is_every_relative_violation_within_its_tolerance(case: Case, tolerance: float | None) -> None:
    c = replace(case.constraints, tolerance=tolerance)
    F, verdict = case.losses.tolist(), True
    violations = plain_violations(list(case.losses), case.alphas, case.nodes, c.form)
    for (previous, layer), violation in zip(pairwise(case.nodes), violations, strict=True):
        step = 1 - math.prod(1 - alpha for alpha in case.alphas[previous:layer])
        allowed = step / 5 if tolerance is None else min(tolerance, step / 2)
        relative = violation.item() if c.form == "ratio" else violation.item() / F[previous]
        assume(abs(relative - allowed) > 1e-9)
        verdict = verdict and relative <= allowed
    assert feasible(case.losses, c) == verdict


@given(st.floats(1e-3, 0.9), st.floats(0, 100))
def test_no_tolerance_lets_a_rising_loss_pass(alpha: float, tolerance: float) -> None:
    constraints = DescentConstraints(num_layers=1, alpha=alpha, tolerance=tolerance)
    assert not feasible([1.0, 1.0], constraints)


def test_tolerance_defaults_to_a_fifth_of_each_compounded_alpha() -> None:
    constraints = DescentConstraints(num_layers=4, alpha=0.5, grid=(0, 1, 4))
    assert constraints.tolerances == pytest.approx((0.1, 0.175))
    assert replace(constraints, tolerance=0.3).tolerances == pytest.approx((0.25, 0.3))


def _samples(means: Sequence[float], spread: float, n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.asarray(means) * (1 + spread * rng.standard_normal((n, len(means))))


@pytest.mark.parametrize("form", FORMS)
def test_shown_needs_enough_samples_and_every_constraint(form: Any) -> None:
    constraints = DescentConstraints(num_layers=2, alpha=0.1, form=form)
    descending, stalling = [1.0, 0.8, 0.6], [1.0, 0.8, 0.79]
    assert shown(_samples(descending, 0.5, 2000), constraints)
    assert not shown(_samples(descending, 0.5, 12), constraints)  # descends on average, but who knows
    # Layer 2 lowers the loss by less than its alpha; only the cumulative form, 0.79 <= 0.81, allows it.
    assert shown(_samples(stalling, 0.02, 2000), constraints) == (form == "cumulative")


def test_shown_asks_for_less_than_zero_not_for_the_tolerance() -> None:
    constraints = DescentConstraints(num_layers=1, alpha=0.5)
    exact = np.array([[1.0, 0.5], [2.0, 1.0], [4.0, 2.0]])
    assert feasible(exact.mean(0), constraints)
    assert not shown(exact, constraints)
    assert shown(exact * [1, 0.99], constraints)


def test_shown_reads_the_nodes_only_and_takes_seeds() -> None:
    constraints = DescentConstraints(num_layers=3, alpha=0.1, grid=(0, 3))
    bump = np.stack([_samples([1.0, 5.0, 9.0, 0.5], 0.1, 200), _samples([1.0, 7.0, 2.0, 0.5], 0.1, 200)])
    assert shown(bump, constraints)
    assert not shown(bump, DescentConstraints(num_layers=3, alpha=0.1))


# --- The feasibility rule against linear programming ------------------------------------------------------------------


def _lowest(case: Case, best: float, layer: int, fixed: dict[int, float]) -> float | None:
    """The least F_layer that meets all constraints with F_L >= best, by linear programming; None where nothing does."""
    size = len(case.losses)
    rows = []
    for previous, node in pairwise(case.nodes):
        cumulative = case.constraints.form == "cumulative"
        start = case.nodes[0] if cumulative else previous
        row = np.zeros(size)
        row[node] = 1
        row[start] = -math.prod(1 - alpha for alpha in case.alphas[start:node])
        rows.append(row)
    bounds = [(fixed.get(i, 0.0), fixed.get(i)) for i in range(size)]
    bounds[-1] = (max(best, fixed.get(size - 1, 0.0)), fixed.get(size - 1))
    result = linprog(np.eye(size)[layer], A_ub=np.array(rows), b_ub=np.zeros(len(rows)), bounds=bounds, method="highs")
    assert result.status in (0, 2), result.message
    return float(result.fun) if result.status == 0 else None


@given(cases(forms=("difference", "cumulative")), st.floats(0.1, 2))
def test_loss_floors_are_the_least_losses_that_leave_room_above(case: Case, best: float) -> None:
    floors = loss_floors(case.constraints, best)
    lowest = [_lowest(case, best, node, {}) for node in case.nodes]
    assert floors == pytest.approx(lowest, rel=1e-6)


@given(st.integers(1, 8), st.floats(0.01, 1), st.floats(0.01, 0.95))
def test_largest_alpha_is_the_border_of_what_can_be_met(L: int, ratio: float, alpha: float) -> None:
    limit = largest_alpha(ratio, L)
    assume(abs(alpha - limit) > 1e-4)
    case = Case(
        DescentConstraints(num_layers=L, alpha=alpha), [alpha] * L, list(range(L + 1)), torch.ones(L + 1), torch.ones(L)
    )
    assert (_lowest(case, ratio, L, {0: 1.0}) is not None) == (alpha < limit)


@given(cases(forms=("difference", "cumulative")), st.floats(0.05, 2))
def test_advice_says_what_linear_programming_finds(case: Case, best: float) -> None:
    F, nodes = case.losses.tolist(), case.nodes
    # Keep away from the border, where rounding decides.
    for node, floor in zip(nodes, loss_floors(case.constraints, best), strict=True):
        assume(abs(F[node] - floor) > 1e-5)
    advice = feasibility_advice(case.constraints, F, best=best)
    possible = _lowest(case, best, nodes[-1], {nodes[0]: F[nodes[0]]}) is not None
    blocked = [n for n in nodes[1:-1] if _lowest(case, best, nodes[-1], {n: F[n]}) is None]
    assert ("asks for" in advice and "below it may still fail" in advice) == (not possible)
    assert ("already so good" in advice) == (possible and bool(blocked))
    if possible and blocked:
        named = advice.split(" ", 1)[1].split(" is" if len(blocked) == 1 else " are")[0]
        assert named == ", ".join(map(str, blocked))
    assert ("this rule allows it" in advice) == (possible and not blocked)


def test_advice_is_the_sentence_promised() -> None:
    advice = feasibility_advice(DescentConstraints(num_layers=6, alpha=0.2), [1, 1, 1, 0.9, 0.8, 0.7, 0.6], best=0.5)
    assert advice == (
        "alpha above 0.109 cannot be met here: 0.2 over 6 layers asks for F_6 <= 0.26 F_0 and 0.50 F_0 was reached; "
        "below it may still fail"
    )
    schedule = DescentConstraints(num_layers=2, alpha=[0.1, 0.2])
    assert feasibility_advice(schedule, [1, 0.8, 0.5]).startswith(
        "this schedule over 2 layers asks for F_2 <= 0.72 F_0"
    )


# --- Wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 0}, "num_layers is 0"),
        ({"form": "quotient"}, "form is 'quotient'.*difference, ratio, cumulative"),
        ({"first_layer": 0}, "first_layer is 0.*1 to 3"),
        ({"first_layer": 4}, "first_layer is 4.*1 to 3"),
        ({"grid": (0, 3), "first_layer": 2}, "first_layer and grid"),
        ({"grid": (3,)}, r"grid is \[3\].*at least two"),
        ({"grid": (0, 2, 2, 3)}, "grid is .*ascending"),
        ({"grid": (0, 1.5, 3)}, "grid is .*numbers of at least two layers"),
        ({"grid": (-1, 3)}, "grid is .*within 0 to 3"),
        ({"grid": (0, 2)}, "grid is .*end at 3"),
        ({"tolerance": -0.1}, "tolerance is -0.1"),
        ({"tolerance": math.nan}, "tolerance is nan"),
        ({"alpha": 1.0}, r"alpha of layer 1 is 1: .*\[0, 1\)"),
        ({"alpha": -0.1}, "alpha of layer 1 is -0.1"),
        ({"alpha": math.nan}, "alpha of layer 1 is nan"),
        ({"alpha": [0.1, 0.2, 1.5]}, "alpha of layer 3 is 1.5"),
        ({"alpha": [0.1, 0.2]}, "alpha has 2 values for 3 layers"),
        ({"alpha": "0.1"}, "alpha is '0.1': give a number"),
        ({"alpha": True}, "alpha is True"),
        ({"alpha": [0.1, "x", 0.1]}, "alpha is 'x'"),
        ({"alpha": {"kind": "steps"}}, "kind 'steps': choose one of linear, cosine, reach"),
        ({"alpha": {"first": 0.1, "last": 0.2}}, "kind None"),
        ({"alpha": {"kind": "linear", "first": 0.1}}, r"linear takes \['first', 'last'\], given \['first'\]"),
        ({"alpha": {"kind": "reach", "ratio": 0.5, "last": 1}}, "reach takes"),
        ({"alpha": {"kind": "reach", "ratio": 0}}, "alpha.ratio is 0"),
        ({"alpha": {"kind": "reach", "ratio": 1.1}}, "alpha.ratio is 1.1"),
        ({"alpha": {"kind": "cosine", "first": "a", "last": 0.1}}, "alpha.first is 'a'"),
        ({"alpha": {"kind": "linear", "first": 0.1, "last": 1.2}}, "alpha of layer 3 is 1.2"),
    ],
)
def test_a_wrong_value_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        DescentConstraints(**{"num_layers": 3, **arguments})


def test_wrong_shapes_are_named() -> None:
    constraints = DescentConstraints(num_layers=2, alpha=0.1)
    for call in (
        constraints.violations,
        constraints.references,
        constraints.relative_violations,
        lambda losses: constraints.lagrangian(losses, torch.zeros(2)),
        lambda losses: feasible(losses, constraints),
        lambda losses: feasibility_advice(constraints, losses),
    ):
        with pytest.raises(InputError, match="2 layer losses for a model of 2 layers: give F_0 to F_2, 3 values"):
            call(torch.ones(2))
    with pytest.raises(InputError, match=r"\(3,\) multipliers for 2 constraints"):
        constraints.weights(torch.ones(3))
    for verdict in (monotone, lambda losses: feasible(losses, constraints)):
        with pytest.raises(InputError, match=r"shape \(4, 3\).*average over samples"):
            verdict(np.ones((4, 3)))


def test_the_ratio_form_needs_losses_for_its_weights() -> None:
    with pytest.raises(InputError, match="ratio form depend on the losses"):
        DescentConstraints(num_layers=2, form="ratio").weights(torch.ones(2))


@pytest.mark.parametrize("losses", [[0.0, 0.5, 0.4], [1.0, math.nan, 0.4], [1.0, 0.5, math.inf]])
def test_advice_refuses_losses_that_say_nothing(losses: list[float]) -> None:
    with pytest.raises(InputError, match="advice needs finite losses"):
        feasibility_advice(DescentConstraints(num_layers=2), losses)
