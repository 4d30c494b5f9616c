"""The multipliers against a dual step in plain Python, torch's own SGD, and small problems with a known end."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from layerdescent.descent import DescentConstraints
from layerdescent.duals import REFERENCE_DECAY, Multipliers
from layerdescent.errors import InputError, NonFiniteLossError, RunError

F64 = torch.float64


def multipliers(num_layers: int, alpha: float | list[float] = 0.1, **arguments: Any) -> Multipliers:
    """Double precision multipliers; what `DescentConstraints` takes goes there."""
    names = ("form", "first_layer", "grid")
    constraints = {name: arguments.pop(name) for name in names if name in arguments}
    arguments.setdefault("dtype", F64)
    return Multipliers(DescentConstraints(num_layers=num_layers, alpha=alpha, **constraints), **arguments)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# --- One dual step, written a second time ---------------------------------------------------------


def plain_path(
    stream: Sequence[Sequence[float]],
    alphas: Sequence[float],
    *,
    lr: float,
    rho: float | None,
    cap: float | None,
    top: float | None,
    warmup: int,
    every: int,
    initial: bool,
) -> list[list[float]]:
    """The multipliers after every optimiser step, one number at a time."""
    values = [0.0] * len(alphas)
    references: list[float | None] = [None] * len(alphas)
    window: list[Sequence[float]] = []
    path = []
    for count, losses in enumerate(stream, start=1):
        if count > warmup:
            window.append(losses)
        if len(window) == every:
            F = [sum(column) / every for column in zip(*window, strict=True)]
            window = []
            for j, ((before, after), alpha) in enumerate(zip(pairwise(F), alphas, strict=True)):
                new = F[0] if initial else before
                old = references[j]
                reference = new if old is None else REFERENCE_DECAY * old + (1 - REFERENCE_DECAY) * new
                references[j] = reference
                relative = (after - (1 - alpha) * before) / reference
                if cap is not None and relative > cap:
                    relative = cap
                leak = 0.0 if rho is None else values[j] / rho
                values[j] = max(0.0, values[j] + lr * (relative - leak))
                if top is not None and values[j] > top:
                    values[j] = top
        path.append(list(values))
    return path


@given(st.data())
def test_the_path_is_that_of_the_plain_loop(data: st.DataObject) -> None:
    L = data.draw(st.integers(1, 4))
    alphas = data.draw(st.lists(st.floats(0, 0.9), min_size=L, max_size=L))
    losses = st.lists(st.floats(0.05, 5), min_size=L + 1, max_size=L + 1)
    stream = data.draw(st.lists(losses, min_size=1, max_size=8))
    lr = data.draw(st.floats(0, 2))
    rho = data.draw(st.one_of(st.none(), st.floats(lr * 1.1 + 0.1, 50)))
    cap = data.draw(st.one_of(st.none(), st.floats(0.01, 2)))
    top = data.draw(st.one_of(st.none(), st.floats(0.01, 2)))
    warmup, every, initial = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3)), data.draw(st.booleans())

    ours = multipliers(
        L,
        alphas,
        lr=lr,
        resilience=rho,
        violation_cap=cap,
        max_value=top,
        warmup_steps=warmup,
        dual_every=every,
        reference="initial" if initial else "previous",
    )
    path = []
    for numbers in stream:
        ours.ascend(vector(*numbers))
        path.append(ours.values)
    expected = plain_path(stream, alphas, lr=lr, rho=rho, cap=cap, top=top, warmup=warmup, every=every, initial=initial)
    torch.testing.assert_close(torch.stack(path), torch.tensor(expected, dtype=F64), rtol=1e-9, atol=1e-12)


def test_a_dual_step_reports_what_it_saw_and_did() -> None:
    ours = multipliers(2, 0.5, lr=0.5, resilience=2.0, violation_cap=0.4)
    step = ours.ascend(vector(2, 1.5, 1.5))
    assert step is not None
    torch.testing.assert_close(step.violations, vector(0.5, 0.75))  # raw
    torch.testing.assert_close(step.relative, vector(0.25, 0.4))  # 0.75 / 1.5 = 0.5 is capped
    assert step.capped.tolist() == [False, True]
    torch.testing.assert_close(step.multipliers, vector(0.125, 0.2))
    torch.testing.assert_close(step.slacks, vector(0.0625, 0.1))
    ours.ascend(vector(2, 1.5, 1.5))
    torch.testing.assert_close(step.multipliers, vector(0.125, 0.2))  # a record, not a view of the state


def test_the_reference_is_a_running_mean_and_the_violation_is_not() -> None:
    ours = multipliers(1, 0.5, lr=1.0)
    ours.ascend(vector(1.0, 0.1))
    step = ours.ascend(vector(2.0, 1.2))
    assert step is not None
    assert step.violations.item() == pytest.approx(0.2)
    assert step.relative.item() == pytest.approx(0.2 / (0.9 * 1.0 + 0.1 * 2.0))


def test_the_initial_reference_is_the_first_nodes_loss_for_all() -> None:
    ours = multipliers(3, 0.5, reference="initial", first_layer=2)
    step = ours.ascend(vector(100.0, 4.0, 3.0, 2.5))
    assert step is not None
    torch.testing.assert_close(step.relative, vector((3 - 2) / 4, (2.5 - 1.5) / 4))


def test_the_ratio_form_moves_by_the_ratio_itself() -> None:
    ours = multipliers(2, 0.1, form="ratio", lr=1.0)
    ours.ascend(vector(4, 4, 4))
    torch.testing.assert_close(ours.values, vector(0.1, 0.1))


def test_on_a_grid_there_is_one_multiplier_for_each_gap() -> None:
    ours = multipliers(4, 0.5, lr=1.0, grid=(0, 2, 4))
    ours.ascend(vector(1, 9, 0.5, 9, 0.25))  # what lies between the nodes plays no part
    torch.testing.assert_close(ours.values, vector(0.25, 0.25))


def test_the_state_is_single_precision_on_the_cpu_whatever_comes_in() -> None:
    ours = Multipliers(DescentConstraints(num_layers=2, alpha=0.5))
    losses = torch.tensor([1.0, 1.0, 1.0], dtype=torch.bfloat16, requires_grad=True)
    step = ours.ascend(losses)
    assert step is not None
    assert {entry.dtype for entry in (ours.values, step.violations, step.slacks)} == {torch.float32}
    assert not ours.values.requires_grad


def test_the_lagrangian_holds_the_multipliers_constant_and_the_violations_raw() -> None:
    ours = multipliers(2, 0.5, lr=1.0)
    ours.ascend(vector(10, 8, 6))  # relative violations 0.3 and 0.25
    losses = vector(10, 8, 6).requires_grad_()
    value = ours.lagrangian(losses)
    value.backward()
    assert value.item() == pytest.approx(6 + 0.3 * 3 + 0.25 * 2)
    assert losses.grad is not None
    torch.testing.assert_close(losses.grad, vector(0, 0.3 - 0.5 * 0.25, 1.25))


# --- Free of units --------------------------------------------------------------------------------


def _stack_path(scale: float, steps: int = 40) -> Tensor:
    """The multipliers' path of a small stack with a shared head; loss times `scale`, learning rate divided by it."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)).double()
    head = nn.Linear(6, 1).double()
    data, target = torch.randn(64, 6, dtype=F64), torch.randn(64, 1, dtype=F64)
    optimizer = torch.optim.SGD([*layers.parameters(), *head.parameters()], lr=0.05 / scale)
    ours = multipliers(4, 0.2, lr=0.3, resilience=5.0)
    path = []
    for _ in range(steps):
        states = [data]
        for layer in layers:
            states.append(layer(states[-1]))
        losses = torch.stack([scale * (head(state) - target).square().mean() for state in states])
        optimizer.zero_grad()
        ours.lagrangian(losses).backward()
        optimizer.step()
        ours.ascend(losses)
        path.append(ours.values)
    return torch.stack(path)


def test_a_loss_a_hundred_times_as_large_leaves_the_path_of_the_multipliers() -> None:
    path = _stack_path(1.0)
    assert (path[:, 1:].max(0).values > 0.1).all()
    assert (path[1:] < path[:-1]).any()  # a path that turns, not a straight line
    torch.testing.assert_close(_stack_path(100.0), path, rtol=1e-9, atol=1e-11)


# --- Resilience -----------------------------------------------------------------------------------


@given(st.floats(0, 5), st.floats(-1, 1), st.floats(0.2, 5), st.floats(0.5, 20), st.floats(0.01, 0.4))
def test_the_leak_is_the_best_slack(value: float, relative: float, reference: float, rho: float, lr: float) -> None:
    # The slack's share of the relaxed Lagrangian: rho/2 ref u^2 - lambda ref u, minimised over u >= 0.
    best = minimize_scalar(
        lambda u: rho / 2 * reference * u**2 - value * reference * u, bounds=(0, 50), method="bounded"
    ).x
    ours = multipliers(1, 0.0, lr=lr, resilience=rho)
    ours.values = vector(value)
    assert ours.slacks.item() == pytest.approx(best, abs=2e-5)
    ours.ascend(reference * vector(1, 1 + relative))
    assert ours.values.item() == pytest.approx(max(0.0, value + lr * (relative - best)), abs=2e-5)


def test_resilience_is_sgd_ascent_with_weight_decay_and_projection() -> None:
    rho, lr = 4.0, 0.5
    ours = multipliers(3, 0.2, lr=lr, resilience=rho, violation_cap=None)
    theirs = nn.Parameter(torch.zeros(3, dtype=F64))
    sgd = torch.optim.SGD([theirs], lr=lr, momentum=0.0, weight_decay=1 / rho, maximize=True)
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for _ in range(200):
        step = ours.ascend(torch.rand(4, generator=generator, dtype=F64) + 0.1)
        assert step is not None
        theirs.grad = step.relative.clone()
        sgd.step()
        theirs.data.clamp_(min=0)
        largest = max(largest, theirs.max().item())
        torch.testing.assert_close(ours.values, theirs.detach(), rtol=2e-15, atol=2e-15)
    assert largest > 0.5


INFEASIBLE = vector(1.0, 1.2, 1.2)  # no layer lowers the loss, whatever the multipliers do


def test_an_infeasible_alpha_drives_hard_multipliers_up_in_a_straight_line() -> None:
    ours = multipliers(2, 0.1, lr=0.5)
    path = [ours.ascend(INFEASIBLE) and ours.values for _ in range(300)]
    for k in (1, 10, 100, 300):
        torch.testing.assert_close(path[k - 1], 0.5 * k * vector(0.3, 0.1))


def test_with_resilience_they_stay_below_rho_times_the_violation_and_come_to_rest_there() -> None:
    ours = multipliers(2, 0.1, lr=0.5, resilience=10.0)
    for _ in range(1000):
        ours.ascend(INFEASIBLE)
        assert (ours.values <= 10.0 * vector(0.3, 0.1) + 1e-12).all()
    torch.testing.assert_close(ours.values, 10.0 * vector(0.3, 0.1))
    torch.testing.assert_close(ours.slacks, vector(0.3, 0.1))  # the violation is what is granted


@given(st.lists(st.floats(0.01, 100), min_size=20, max_size=20), st.floats(0.1, 2), st.floats(0.01, 1))
def test_no_stream_of_losses_lifts_resilient_multipliers_above_rho_times_the_cap(
    stream: list[float], cap: float, share: float
) -> None:
    rho = 3.0
    ours = multipliers(1, 0.1, lr=share * 0.99 * rho, resilience=rho, violation_cap=cap)
    for previous, current in pairwise(stream):
        ours.ascend(vector(previous, current))
        assert 0 <= ours.values.item() <= rho * cap * (1 + 1e-12)


def _train(alpha: float, steps: int, **arguments: Any) -> tuple[list[float], Tensor]:
    """Plain gradient descent on F_l = theta_l^2 + 0.3, F_0 = 1, with one multiplier that matters: layer 1's."""
    theta = vector(1.0, 0.8).requires_grad_()
    ours = multipliers(2, alpha, lr=0.1, **arguments)
    path = []
    for _ in range(steps):
        losses = torch.cat([vector(1.0), theta.square() + 0.3])
        (gradient,) = torch.autograd.grad(ours.lagrangian(losses), theta)
        theta.data -= 0.02 * gradient
        ours.ascend(losses)
        path.append(ours.values[0].item())
    return path, losses.detach()


def test_a_feasible_alpha_lifts_the_multiplier_and_lets_it_fall_to_zero() -> None:
    path, losses = _train(0.1, 400)
    assert max(path) > 0.3
    assert path.index(max(path)) < 200
    assert path[-1] == 0
    assert losses[1] <= 0.9 * losses[0]


def test_an_alpha_out_of_reach_keeps_it_rising_unless_resilient() -> None:
    hard, _ = _train(0.8, 800)  # asks F_1 <= 0.2, but F_1 >= 0.3
    assert hard[-1] > hard[len(hard) // 2] + 3
    soft, losses = _train(0.8, 800, resilience=5.0)
    assert soft[-1] == pytest.approx(soft[-100], abs=0.05)
    assert 0 < soft[-1] <= 5.0
    assert losses[1] > 0.2


# --- Cap, bound, warm-up, rhythm ------------------------------------------------------------------


def test_a_spike_moves_a_multiplier_by_no_more_than_the_cap_allows() -> None:
    calm, spike = vector(1.0, 0.8), vector(1.0, 500.0)
    capped, free = multipliers(1, 0.1, lr=0.5), multipliers(1, 0.1, lr=0.5, violation_cap=None)
    for ours in (capped, free):
        ours.ascend(spike)
    assert capped.values.item() == 0.5
    assert free.values.item() == pytest.approx(0.5 * 499.1)
    for ours in (capped, free):
        for _ in range(10):
            ours.ascend(calm)
    assert capped.values.item() == pytest.approx(0, abs=1e-12)
    assert free.values.item() > 200  # the wind-up that the cap is for


def test_the_cap_holds_back_rises_only() -> None:
    ours = multipliers(1, 0.1, lr=1.0, violation_cap=0.05)
    ours.values = vector(1.0)
    ours.ascend(vector(1.0, 0.1))
    assert ours.values.item() == pytest.approx(1 - 0.8)


def test_max_value_bounds_every_multiplier() -> None:
    ours = multipliers(2, 0.1, lr=0.5, max_value=0.3)
    for _ in range(10):
        ours.ascend(INFEASIBLE)
    assert ours.values.tolist() == [0.3, 0.3]


def test_warm_up_is_erm_and_its_losses_are_forgotten() -> None:
    ours = multipliers(1, 0.5, lr=1.0, warmup_steps=2)
    assert [ours.ascend(vector(9, 9)) for _ in range(2)] == [None, None]
    assert ours.values.item() == 0
    step = ours.ascend(vector(1.0, 0.6))
    assert step is not None
    assert step.relative.item() == pytest.approx(0.1)


def test_every_third_step_the_multipliers_see_the_mean_of_three() -> None:
    ours = multipliers(1, 0.5, lr=1.0, dual_every=3)
    stream = [vector(1, 1), vector(2, 1), vector(3, 1), vector(1, 1)]
    steps = [ours.ascend(losses) for losses in stream]
    assert [step is not None for step in steps] == [False, False, True, False]
    assert steps[2] is not None
    assert steps[2].violations.item() == pytest.approx(1 - 0.5 * 2)
    assert ours.end_epoch() is None  # an epoch's end means nothing to a rhythm of steps
    ours.ascend(vector(5, 4))
    last = ours.ascend(vector(6, 4))
    assert last is not None
    assert last.violations.item() == pytest.approx(3 - 0.5 * 4)  # the window began anew


def test_an_epochs_dual_step_sees_the_mean_of_the_epoch() -> None:
    ours = multipliers(1, 0.5, lr=1.0, dual_every="epoch")
    assert ours.end_epoch() is None  # nothing was counted yet
    assert [ours.ascend(vector(k, 1)) for k in (1, 2, 3)] == [None] * 3
    step = ours.end_epoch()
    assert step is not None
    assert step.violations.item() == pytest.approx(0)
    assert ours.end_epoch() is None
    ours.ascend(vector(1, 1))
    assert ours.end_epoch() is not None
    assert ours.values.item() > 0


def test_at_rate_zero_the_multipliers_stay_zero() -> None:
    ours = multipliers(2, 0.1, lr=0.0)
    for _ in range(5):
        ours.ascend(INFEASIBLE)
    assert ours.values.tolist() == [0, 0]


# --- Losses that are no numbers -------------------------------------------------------------------


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize("rhythm", [{}, {"dual_every": 3}, {"dual_every": "epoch"}, {"warmup_steps": 9}])
def test_a_broken_loss_is_refused_and_nothing_changes(broken: float, at: int, rhythm: dict[str, Any]) -> None:
    ours, untouched = (multipliers(2, 0.1, lr=0.5, **rhythm) for _ in range(2))
    bad = vector(1.0, 1.1, 1.2)
    bad[at] = broken
    for k in range(4):
        losses = vector(1, 1.2 + k, 1.1)
        ours.ascend(losses)
        untouched.ascend(losses)
        before = ours.state_dict()
        with pytest.raises(NonFiniteLossError, match=f"loss at layer {at} is {broken} at optimiser step {k + 2}"):
            ours.ascend(bad)
        assert same(before, ours.state_dict())
    assert same(ours.state_dict(), untouched.state_dict())


def test_a_broken_loss_outside_the_constraints_does_no_harm() -> None:
    ours = multipliers(3, 0.5, lr=1.0, first_layer=3, dual_every=2)
    ours.ascend(vector(math.nan, math.inf, 1, 1))
    other = multipliers(3, 0.5, lr=1.0, first_layer=3, dual_every=2)
    other.load_state_dict(ours.state_dict())  # pending as it is
    for each in (ours, other):
        each.ascend(vector(math.nan, math.inf, 1, 1))
        assert each.values.tolist() == [0.5]


@pytest.mark.parametrize(
    ("arguments", "losses"),
    [
        ({"form": "ratio"}, (0.0, 0.0)),  # 0 / 0
        ({"violation_cap": None}, (0.0, 10.0)),  # without bound above a loss of 0
        ({"violation_cap": None, "form": "ratio"}, (0.0, 1.0)),
    ],
)
def test_no_dual_step_may_end_in_something_that_is_no_number(
    arguments: dict[str, Any], losses: tuple[float, float]
) -> None:
    ours = multipliers(1, 0.1, dual_every=2, **arguments)
    ours.ascend(vector(*losses))
    before = ours.state_dict()
    with pytest.raises(NonFiniteLossError, match=r"multiplier of layer 1 would become .* unchanged"):
        ours.ascend(vector(*losses))
    assert same(before, ours.state_dict())


def test_a_loss_of_zero_is_a_number() -> None:
    ours = multipliers(2, 0.1, lr=0.5)
    ours.ascend(vector(1.0, 0.0, 0.2))
    torch.testing.assert_close(ours.values, vector(0, 0.5))  # layer 2 undid layer 1: as bad as the cap allows


# --- State ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rhythm", [{"dual_every": 3}, {"dual_every": "epoch"}, {"dual_every": 2, "warmup_steps": 3}])
def test_a_run_resumed_in_the_middle_of_a_window_goes_on_as_if_never_stopped(
    rhythm: dict[str, Any], tmp_path: Path
) -> None:
    def new() -> Multipliers:
        return Multipliers(DescentConstraints(num_layers=3, alpha=0.2), lr=0.5, resilience=4.0, **rhythm)

    def go(ours: Multipliers, steps: range) -> None:
        for k in steps:
            ours.ascend(torch.rand(4, generator=torch.Generator().manual_seed(k)) + 0.1)
            if k % 4 == 3:
                ours.end_epoch()

    whole, first, second = new(), new(), new()
    go(whole, range(13))
    go(first, range(5))
    save_file(first.state_dict(), tmp_path / "multipliers.safetensors")
    second.load_state_dict(load_file(tmp_path / "multipliers.safetensors"))
    assert same(second.state_dict(), first.state_dict())
    go(second, range(5, 13))
    assert same(second.state_dict(), whole.state_dict())
    assert whole.values.max() > 0


def test_the_state_is_a_copy_both_ways() -> None:
    ours = multipliers(2, 0.1, lr=0.5)
    ours.ascend(INFEASIBLE)
    state = ours.state_dict()
    other = multipliers(2, 0.1, lr=0.5)
    other.load_state_dict(state)
    for entry in state.values():
        entry.zero_()
    assert ours.values.tolist() == other.values.tolist() == pytest.approx([0.15, 0.05])


def _without(name: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda state: {key: value for key, value in state.items() if key != name}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((_without(name), f"lack '{name}'") for name in ("values", "references", "pending", "pending_steps", "steps")),
        (
            lambda s: s | {"values": torch.zeros(5)},
            r"values has shape \(5,\), these constraints need \(2,\).*resume with",
        ),
        (lambda s: s | {"pending": torch.zeros(2)}, "pending has shape"),
        (lambda s: s | {"values": vector(math.nan, 0)}, "values is not finite"),
        (lambda s: s | {"references": vector(1, math.inf)}, "references is not finite"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_whole(
    damage: Callable[[dict[str, Tensor]], dict[str, Tensor]], message: str
) -> None:
    source, ours = multipliers(2, 0.1, lr=0.5), multipliers(2, 0.1, lr=0.5)
    for _ in range(3):
        source.ascend(INFEASIBLE)
    ours.ascend(vector(1, 1, 1))
    before = ours.state_dict()
    with pytest.raises(RunError, match=message):
        ours.load_state_dict(damage(source.state_dict()))
    assert same(before, ours.state_dict())


# --- Wrong input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": -0.1}, "lr of the multipliers is -0.1"),
        ({"lr": math.inf}, "lr of the multipliers is inf"),
        ({"lr": math.nan}, "lr of the multipliers is nan"),
        ({"lr": 0.5, "resilience": 0.5}, "resilience is 0.5 with lr 0.5: rho must exceed"),
        ({"lr": 0.0, "resilience": 0.0}, "resilience is 0"),
        ({"resilience": math.nan}, "resilience is nan"),
        ({"reference": "next"}, "reference is 'next': choose one of previous, initial"),
        ({"violation_cap": 0.0}, "violation_cap is 0"),
        ({"violation_cap": math.nan}, "violation_cap is nan"),
        ({"max_value": -1.0}, "max_value is -1"),
        ({"warmup_steps": -1}, "warmup_steps is -1"),
        ({"dual_every": 0}, "dual_every is 0"),
        ({"dual_every": "batch"}, "dual_every is 'batch'"),
        ({"dual_every": 1.5}, "dual_every is 1.5"),
    ],
)
def test_a_wrong_value_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        multipliers(2, **arguments)


@pytest.mark.parametrize("shape", [(2,), (4,), (5, 3), ()])
def test_losses_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    ours = multipliers(2)
    before = ours.state_dict()
    with pytest.raises(InputError, match=r"layer losses of shape .*F_0 to F_2, averaged over the step"):
        ours.ascend(torch.ones(shape))
    assert same(before, ours.state_dict())
