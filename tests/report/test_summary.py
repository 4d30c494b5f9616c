"""Means, ranges and judgements against numbers worked out by hand."""

from typing import Any

import pytest

from layerdescent.report.results import Paired, read_results
from layerdescent.report.summary import (
    Condition,
    NoiseAxis,
    Variant,
    beyond_frontier,
    frontier_variants,
    layer_band,
    loss_digits,
    noise_axes,
    noise_band,
    sign,
)
from tests.report.fixture import minimal_results


def two_seeds(**fields: Any) -> dict[str, Any]:
    runs = [
        {"arm": "erm", "seed": seed, "layers": [0, 1], "layer_losses": {"test": losses}, "noise": noise}
        for seed, losses, noise in (
            (0, [0.7, 0.4], [{"kind": "none", "value": 0.8}, {"kind": "gaussian", "gamma": 1.0, "value": 0.6}]),
            (1, [0.7, 0.2], [{"kind": "none", "value": 0.9}, {"kind": "gaussian", "gamma": 1.0, "value": 0.8}]),
        )
    ]
    return {"experiment": "x", "metric": "accuracy", "runs": runs, **fields}


def test_a_band_is_the_range_over_seeds() -> None:
    band = layer_band(read_results(two_seeds()), "erm")
    assert band.x == (0, 1)
    assert band.mean == pytest.approx((0.7, 0.3))
    assert (band.low, band.high) == ((0.7, 0.2), (0.7, 0.4))


def test_one_seed_has_its_stored_interval_or_no_band() -> None:
    results = minimal_results()
    assert layer_band(read_results(results), "erm").low is None
    results["runs"][0]["layer_losses_ci95"] = {"test": [[0.6, 0.8], [0.7, 0.74], [0.3, 0.5]]}
    band = layer_band(read_results(results), "erm")
    assert (band.low, band.high) == ((0.6, 0.7, 0.3), (0.8, 0.74, 0.5))


def test_draws_of_one_noise_are_averaged_before_the_range() -> None:
    given = two_seeds()
    given["runs"][0]["noise"].append({"kind": "gaussian", "gamma": 1.0, "value": 0.7})
    band = noise_band(read_results(given), "erm", NoiseAxis("gaussian", by_share=False))
    assert band.x == (0.0, 1.0)
    assert band.mean == pytest.approx((0.85, (0.65 + 0.8) / 2))
    assert band.low == pytest.approx((0.8, 0.65))


def test_shares_and_gammas_of_one_kind_are_two_axes() -> None:
    given = two_seeds()
    given["runs"][0]["noise"] += [
        {"kind": "discrete", "gamma": 3.0, "share": 0.25, "value": 0.7},
        {"kind": "discrete", "gamma": 3.0, "value": 0.7},
    ]
    assert noise_axes(read_results(given)) == [("gaussian", False), ("discrete", False), ("discrete", True)]


@pytest.mark.parametrize(
    ("interval", "lower_is_better", "expected"),
    [
        ((0.1, 0.2), False, 1),
        ((0.1, 0.2), True, -1),
        ((-0.2, -0.1), False, -1),
        ((-0.2, -0.1), True, 1),
        ((-0.1, 0.2), False, 0),
        ((0.0, 0.2), False, 0),
        (None, False, 0),
    ],
)
def test_better_and_worse_follow_the_metric(
    interval: tuple[float, float] | None, lower_is_better: bool, expected: int
) -> None:
    row = Paired(arm="a", against="b", kind="none", difference=0.1, ci95=interval)
    assert sign(row, lower_is_better) == expected


@pytest.mark.parametrize(
    ("metric", "point", "beyond"),
    [
        ("accuracy", (0.86, 0.72), False),  # as good in both
        ("accuracy", (0.86, 0.69), True),
        ("accuracy", (0.84, 0.72), True),
        ("rmse", (0.84, 0.69), False),
        ("rmse", (0.86, 0.69), True),
    ],
)
def test_an_arm_lies_beyond_the_frontier_where_no_point_is_as_good_in_both(
    metric: str, point: tuple[float, float], beyond: bool
) -> None:
    clean, noisy = point
    frontier = [{"step": 1, "in_distribution": clean, "kind": "gaussian", "gamma": 1.0, "value": noisy}]
    results = read_results(two_seeds(frontier=frontier) | {"metric": metric})
    assert beyond_frontier(results, "erm") == {Condition("gaussian", 1.0, False): beyond}


@pytest.mark.parametrize(("loss", "digits"), [(0.7, 3), (3.0, 3), (0.014, 4), (0.0014, 5)])
def test_small_losses_get_more_digits(loss: float, digits: int) -> None:
    results = minimal_results()
    results["runs"][0]["layer_losses"]["test"] = [loss, None, loss / 2]
    assert loss_digits(read_results(results)) == digits


def test_runs_of_the_frontier_are_told_apart_by_what_differs_from_the_baseline() -> None:
    rows: list[dict[str, Any]] = [
        {"step": 8, "weight_decay": 0.3, "label_smoothing": 0.0},
        {"step": 8, "weight_decay": 0.1, "label_smoothing": 0.2},
        {"step": 8, "weight_decay": 0.1, "label_smoothing": 0.0},
        {"step": 4, "weight_decay": 0.1},  # as it was written before there was label smoothing
        {"step": 8, "weight_decay": 0.0},
        {"step": 2, "weight_decay": 0.1, "value": None},
        {"step": 8, "weight_decay": 0.1, "width": 64},
    ]
    frontier = [{"in_distribution": 0.8, "kind": "gaussian", "gamma": 1.0, "value": 0.7} | row for row in rows]
    results = read_results(two_seeds(frontier=frontier, arms={"erm": {"weight_decay": 0.1}}))
    found = {variant: [point.step for point in points] for variant, points in frontier_variants(results).items()}
    assert list(found.items()) == [
        (Variant("training", 0.1), [4, 8]),
        (Variant("weight decay", 0.0), [8]),
        (Variant("weight decay", 0.3), [8]),
        (Variant("label smoothing", 0.2), [8]),
        (Variant("width", 64), [8]),
    ]
