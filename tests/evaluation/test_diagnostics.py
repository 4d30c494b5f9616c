"""Constructed cheats must be flagged, an honest descent must not; the fits are what they claim to be."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_softmax

from layerdescent.descent import DescentConstraints
from layerdescent.errors import InputError
from layerdescent.evaluation.diagnostics import (
    Flag,
    constant_predictor_losses,
    find_flags,
    fit_calibration,
    inflation,
    log_share,
    tightness,
)
from layerdescent.layers import rises
from layerdescent.readout import ProblemType

Array = NDArray[np.float64]
LABELS = np.arange(4000) % 2
ALPHA = DescentConstraints(num_layers=4, alpha=0.1)
HONEST = (0.0, 0.5, 0.75, 1.0, 1.25)


def layer_logits(
    signal: Sequence[float] = HONEST, scale: ArrayLike = 1.0, loud: ArrayLike = 0.0, seed: int = 0, shared: bool = False
) -> Array:
    """Logits (L+1, N, 2) of layers that see the label `signal` times through unit noise, and weigh it rightly.

    `scale` multiplies these logits, `loud` adds noise to them; with `shared` noise all layers see the same draw.
    """
    rng = np.random.default_rng(seed)
    size = (len(signal), len(LABELS))
    noise = rng.normal(size=(1, size[1]) if shared else size)
    s, by, louder = (
        np.broadcast_to(np.asarray(part, dtype=float), len(signal))[:, None] for part in (signal, scale, loud)
    )
    evidence = by * 2 * s * (s * (2 * LABELS - 1) + noise) + louder * rng.normal(size=size)
    return np.stack([-evidence / 2, evidence / 2], axis=-1)


def cross_entropy(logits: Array, labels: NDArray[np.int_] = LABELS) -> Array:
    """Per-sample losses (N, L+1)."""
    return -np.take_along_axis(log_softmax(logits, axis=-1), labels[None, :, None], axis=-1)[..., 0].T


def flags_of(
    signal: Sequence[float] = HONEST,
    scale: ArrayLike = 1.0,
    loud: ArrayLike = 0.0,
    *,
    constraints: DescentConstraints = ALPHA,
    lambda_share: Sequence[float] | None = None,
) -> dict[str, Flag]:
    """Flags of a simulated model, temperatures fitted on a second draw of it."""
    test, validation = (layer_logits(signal, scale, loud, seed) for seed in (0, 1))
    line = fit_calibration(validation, LABELS, "single_label_classification")
    calibrated = cross_entropy(line.scale[:, None, None] * test).mean(axis=0)
    found = find_flags(cross_entropy(test), constraints, CONSTANT, calibrated=calibrated, lambda_share=lambda_share)
    return {flag.name: flag for flag in found}


CONSTANT = constant_predictor_losses(LABELS, "single_label_classification")


def test_an_honest_descent_raises_no_flag() -> None:
    assert flags_of(HONEST) == {}


def test_an_inflated_start_is_flagged() -> None:
    found = flags_of(HONEST, 1, (1.5, 0, 0, 0, 0))
    assert set(found) == {"inflated"}
    assert found["inflated"].layers == (0,)
    assert "F_0 = 0.93" in found["inflated"].sentence


def test_an_inflated_layer_within_the_model_is_flagged() -> None:
    found = flags_of(HONEST, 1, (0, 0, 4, 0, 0))
    assert found["inflated"].layers == (2,)


def test_layers_worse_than_the_erm_twin_are_inflated() -> None:
    honest = cross_entropy(layer_logits())
    twin = honest - 0.02 * np.array([0, 1, 0, 0, 0])  # 2 % of the constant predictor's loss is 0.014
    assert [flag.layers for flag in find_flags(honest, ALPHA, CONSTANT, erm=twin)] == [(1,)]
    assert find_flags(honest, ALPHA, CONSTANT, erm=honest + 0.1) == []
    dearer = honest - 0.05 * np.array([0, 0, 0, 0, 1])
    assert find_flags(honest, ALPHA, CONSTANT, erm=dearer) == []  # a price at the last layer is no inflation


def test_a_difference_within_noise_is_no_inflation() -> None:
    one = DescentConstraints(num_layers=1, alpha=0.2)
    for count, names in ((50, []), (50_000, ["inflated"])):
        losses = np.random.default_rng(0).normal([0.75, 0.5], [1.5, 0.1], size=(count, 2))
        losses += [0.75, 0.5] - losses.mean(axis=0)
        assert [flag.name for flag in find_flags(losses, one, np.full(count, 0.6931))] == names


def test_a_vacuous_start_is_flagged() -> None:
    found = flags_of((0, 0, 0.75, 1, 1.25), 1, (8, 3, 0, 0, 0))
    assert {"inflated", "vacuous start"} <= set(found)
    assert found["vacuous start"].layers == (0, 1)
    assert "vacuous start" not in flags_of(HONEST, 1, (8, 0, 0, 0, 0))  # layer 1 is better than a constant


def test_pure_logit_scaling_is_flagged() -> None:
    """Every layer has the same evidence and only sharpens it: the loss falls, what is known does not grow."""
    scale = (0.02, 0.12, 0.25, 0.4, 0.7)
    test, validation = (layer_logits((1.0,) * 5, scale, seed=seed, shared=True) for seed in (0, 1))
    line = fit_calibration(validation, LABELS, "single_label_classification")
    calibrated = cross_entropy(line.scale[:, None, None] * test).mean(axis=0)
    losses, constraints = cross_entropy(test), DescentConstraints(num_layers=4, alpha=0.05)
    assert rises(losses.mean(axis=0), range(5)) == ()
    found = find_flags(losses, constraints, CONSTANT, calibrated=calibrated)
    assert [flag.name for flag in found] == ["scale only"]
    assert found[0].layers == (1, 2, 3, 4)
    assert "layers 1, 2, 3 and 4" in found[0].sentence
    assert find_flags(losses, constraints, CONSTANT) == []  # it cannot be seen without validation data


def test_a_cliff_is_flagged() -> None:
    found = flags_of((0, 0.2, 0.3, 0.38, 1.25))
    assert set(found) == {"cliff"}
    assert found["cliff"].layers == (4,)


def test_two_layers_are_too_few_for_a_cliff() -> None:
    losses = np.random.default_rng(0).normal([0.69, 0.65, 0.3], 0.01, size=(100, 3))
    assert find_flags(losses, DescentConstraints(num_layers=2, alpha=0.15), np.full(100, 0.6931)) == []


def test_a_slack_alpha_is_flagged() -> None:
    found = flags_of(HONEST, constraints=DescentConstraints(num_layers=4, alpha=0.01))
    assert set(found) == {"slack alpha"}
    assert "ask for 4 %" in found["slack alpha"].sentence


def test_multipliers_that_never_rose_mean_a_slack_alpha() -> None:
    assert set(flags_of(HONEST, lambda_share=[0.0] * 4)) == {"slack alpha"}
    assert flags_of(HONEST, lambda_share=[0.0, 0.1, 0.0, 0.0]) == {}


def test_a_violated_constraint_is_not_slack() -> None:
    losses = np.random.default_rng(0).normal([0.69, 0.3, 0.31, 0.1], 0.001, size=(100, 4))
    constraints = DescentConstraints(num_layers=3, alpha=0.01)
    assert tightness(losses.mean(axis=0), constraints) == pytest.approx(0.0156, rel=0.01)
    assert find_flags(losses, constraints, np.full(100, 0.6931)) == []


@given(st.floats(0.05, 20), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_temperature_undoes_a_scale(scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(1, 300, 3))
    labels = np.array([rng.choice(3, p=np.exp(row)) for row in log_softmax(logits[0], axis=-1)])
    plain = fit_calibration(logits, labels, "single_label_classification")
    scaled = fit_calibration(scale * logits, labels, "single_label_classification")
    np.testing.assert_allclose(scaled.temperatures, scale * plain.temperatures, rtol=1e-5)


@given(st.integers(0, 10_000), st.floats(0.01, 100))
@settings(max_examples=30, deadline=None)
def test_no_other_temperature_is_better_on_the_validation_data(seed: int, other: float) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, size=80)
    logits = rng.normal(size=(2, 80, 2)) * 3
    best = fit_calibration(logits, labels, "single_label_classification").scale[:, None, None]
    fitted, tried = (cross_entropy(b * logits, labels).mean(axis=0) for b in (best, other))
    assert (fitted <= tried + 1e-9).all()


def test_a_layer_that_knows_less_than_nothing_goes_to_the_end_of_the_range() -> None:
    logits = layer_logits((-1.0, 5.0), (-1.0, 1.0))
    line = fit_calibration(logits, LABELS, "single_label_classification")
    assert line.scale[0] == 1e-4
    assert np.isfinite(line.temperatures).all()


def test_multi_label_temperatures_are_fitted_to_the_binary_losses() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, 4000, 3))
    labels = (rng.random((4000, 3)) < expit(logits[0])).astype(np.float32)
    line = fit_calibration(5 * logits, labels, "multi_label_classification")
    assert line.temperatures[0] == pytest.approx(5, rel=0.1)


def test_regression_gets_gain_and_offset_by_least_squares() -> None:
    labels = np.random.default_rng(0).normal(3, 2, size=200)
    logits = np.stack([(labels - 1) / 4, np.full(200, 7.0)])[..., None]
    line = fit_calibration(logits, labels, "regression")
    np.testing.assert_allclose(line.scale, [4, 0], atol=1e-12)
    np.testing.assert_allclose(line.offset, [1, labels.mean()])


def test_calibration_refuses_logits_of_other_samples() -> None:
    with pytest.raises(InputError, match="5 labels"):
        fit_calibration(np.zeros((2, 4, 2)), np.zeros(5, int), "single_label_classification")


@pytest.mark.parametrize(
    ("labels", "kind", "loss"),
    [
        ([0, 0, 0, 1], "single_label_classification", -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))),
        ([[0, 1], [1, 1]], "multi_label_classification", np.log(2) / 2),
        ([1.0, 3.0], "regression", 1.0),
        ([[1.0, 0.0], [3.0, 0.0]], "regression", 0.5),
    ],
)
def test_the_constant_predictor(labels: list[float], kind: ProblemType, loss: float) -> None:
    assert constant_predictor_losses(labels, kind).mean() == pytest.approx(loss)


@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=8, unique=True))
def test_shares_of_the_descent_sum_to_one(losses: list[float]) -> None:
    shares = log_share(losses)
    if losses[-1] < losses[0]:
        assert shares is not None
        assert shares.sum() == pytest.approx(1)
    else:
        assert shares is None


def test_tightness_counts_the_constrained_nodes_only() -> None:
    losses = [9.0, 1.0, 0.9, 0.81]
    later = DescentConstraints(num_layers=3, alpha=0.1, first_layer=2)
    assert tightness(losses, later) == pytest.approx(1)
    assert tightness([1.0, 1.1], DescentConstraints(num_layers=1)) is None


def test_inflation_is_against_the_better_reference() -> None:
    np.testing.assert_allclose(inflation([0.9, 0.5], [0.6, 0.8], erm=[0.8, 0.3]), [0.2, 0.2])
    np.testing.assert_allclose(inflation([0.9, 0.5], 0.7), [0.2, -0.2])
