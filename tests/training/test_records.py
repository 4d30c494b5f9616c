"""Log entries and the history that is read back from them."""

import pytest
import torch

from layerdescent.descent import DescentConstraints
from layerdescent.duals import Multipliers
from layerdescent.training.meters import LossMeter
from layerdescent.training.records import LogWindow, descent_history, evaluation_entries


def test_a_window_averages_losses_and_reports_the_present_multipliers() -> None:
    constraints = DescentConstraints(num_layers=2, alpha=0.5)
    multipliers = Multipliers(constraints, lr=1.0, resilience=4.0, violation_cap=0.3)
    window = LogWindow(constraints)
    for losses in (torch.tensor([1.0, 0.4, 0.4]), torch.tensor([1.0, 0.8, 0.2])):
        window.add(losses, multipliers, multipliers.ascend(losses))
    entry = window.drain(multipliers)
    assert [entry[f"layer_loss/{layer}"] for layer in range(3)] == pytest.approx([1.0, 0.6, 0.3])
    assert entry["final_layer_loss"] == pytest.approx(0.3)
    assert (entry["violation/1"], entry["violation/2"]) == pytest.approx((0.1, 0.0), abs=1e-6)
    assert entry["max_violation"] == pytest.approx(0.1)
    # c/ref: -0.1 then 0.3 (at the cap); 0.5 (capped to 0.3), then -0.2/0.44, below 0 together with the leak.
    assert (entry["active_share/1"], entry["active_share/2"]) == (0.5, 0.5)
    assert entry["capped_share"] == pytest.approx(0.25)
    assert entry["multiplier/1"] == pytest.approx(0.3)
    assert entry["slack/1"] == pytest.approx(0.3 / 4)
    assert entry["lagrangian_weight/0"] == pytest.approx(-0.15)
    assert window.drain(multipliers) == {}


def test_layers_off_the_grid_have_no_entry() -> None:
    constraints = DescentConstraints(num_layers=4, alpha=0.1, grid=(0, 2, 4))
    losses = torch.tensor([1.0, torch.nan, 0.9, torch.nan, 0.5])
    window = LogWindow(constraints)
    window.add(losses)
    entry = window.drain(None) | {"step": 7}
    assert "layer_loss/1" not in entry
    (record,) = descent_history([entry])
    assert record["layer_losses"] == pytest.approx([1.0, None, 0.9, None, 0.5])
    assert len(record["violations"]) == 2
    assert "multipliers" not in record


def test_history_keeps_many_layers_in_order() -> None:
    constraints = DescentConstraints(num_layers=12, alpha=0.01)
    losses = torch.linspace(2, 1, 13)
    entry = {"step": 1, **evaluation_entries(losses, constraints, "eval_")}
    (record,) = descent_history([{"step": 0, "loss": 1.0}, entry, {"train_runtime": 3.0, "step": 9}], "eval_")
    assert record["layer_losses"] == pytest.approx(losses.tolist())
    assert record["violations"] == pytest.approx(constraints.violations(losses).tolist())
    assert (record["monotone"], record["feasible"]) == (1.0, 1.0)
    assert descent_history([entry]) == []


def test_an_evaluation_is_monotone_where_the_constraints_ask_for_it() -> None:
    losses = torch.tensor([0.69, 0.75, 0.5, 0.6, 0.3])
    for constraints, expected in (
        (DescentConstraints(num_layers=4, alpha=0.05), 0.0),
        (DescentConstraints(num_layers=4, alpha=0.05, grid=(0, 2, 4)), 1.0),
    ):
        assert evaluation_entries(losses, constraints, "eval_")["eval_monotone"] == expected


def test_a_meter_of_nothing_has_no_mean() -> None:
    meter = LossMeter(2)
    meter.add(torch.tensor([torch.nan, torch.nan]), items=0)
    assert meter.mean() is None
    meter.add(torch.tensor([1.0, 3.0]), items=2)
    assert meter.mean(lambda sums: 2 * sums).tolist() == [1.0, 3.0]  # type: ignore[union-attr]
    meter.clear()
    assert meter.mean() is None
