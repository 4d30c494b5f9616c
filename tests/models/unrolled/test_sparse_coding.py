"""ISTA, LISTA and DUST against plain numpy, written down a second time."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerdescent.models.unrolled import joint_objective, lasso_objective
from tests.models.unrolled.tiny import inputs, make

Array = NDArray[np.float64]


def shrink(v: Array, theta: float) -> Array:
    return np.where(v > theta, v - theta, np.where(v < -theta, v + theta, 0.0))


def ista(X: Array, D: Array, A: Array, l1: float, layers: int) -> tuple[list[Array], list[float]]:
    """The estimates of H_0 … H_L and their lasso objectives, column by column as textbooks have it."""
    B = A @ D
    c = 1.05 * np.linalg.svd(B, compute_uv=False)[0] ** 2
    estimates, objectives = [], []
    codes = [np.zeros(D.shape[1]) for _ in X]
    for _ in range(layers + 1):
        codes = [shrink(h - B.T @ (B @ h - x) / c, l1 / c) for h, x in zip(codes, X, strict=True)]
        estimates.append(np.stack([D @ h for h in codes]))
        pairs = zip(codes, X, strict=True)
        objectives.append(sum(np.sum((x - B @ h) ** 2) / 2 + l1 * np.abs(h).sum() for h, x in pairs))
    return estimates, objectives


AS_ISTA: dict[str, tuple[str, int, dict[str, Any]]] = {
    "classical": ("ista", 5, {}),
    "classical, measured": ("ista-measured", 5, {}),
    "LISTA": ("lista", 5, {}),
    "DUST, attention off": ("dust-off", 5, {}),
    "DUST, attention off, tied": ("dust-off", 5, {"free": False}),
    "DUST, attention off, measured": ("dust-measured", 5, {"attention": False}),
    "DUST, one frame": ("dust", 1, {}),
    "DUST, one frame, tied": ("dust-tied", 1, {}),
    "DUST, one frame, heads": ("dust-heads", 1, {}),
    "DUST, one frame, measured": ("dust-measured", 1, {}),
}


@torch.no_grad()
@pytest.mark.parametrize("case", AS_ISTA)
def test_where_nothing_attends_the_start_is_ista_layer_by_layer(case: str) -> None:
    kind, T, config = AS_ISTA[case]
    model = make(kind, move=0.0, num_hidden_layers=6, **config)
    x = inputs(model, 2, T)
    A = np.eye(16) if model.measurement is None else model.measurement.numpy()
    states = model(x, output_hidden_states=True).hidden_states
    for row in range(2):
        expected, objectives = ista(x[row].numpy(), model.dictionary.numpy(), A, model.config.l1, layers=6)
        for layer in range(0 if model.config.num_measurements else 1, 7):
            np.testing.assert_allclose(states[layer][row], expected[layer], rtol=1e-10, atol=1e-12)
        assert all(after < before for before, after in pairwise(objectives))


@torch.no_grad()
@pytest.mark.parametrize("case", AS_ISTA)
def test_its_lasso_objective_falls(case: str) -> None:
    kind, T, config = AS_ISTA[case]
    model = make(kind, move=0.0, num_hidden_layers=6, **config)
    x, AD = inputs(model, 2, T), model.measured_dictionary()
    H = model._start(x)
    for layer in range(6):
        after = model._layer(layer, H, x)
        values = [lasso_objective(x, codes, AD, model.config.l1) for codes in (H, after)]
        assert (values[1] < values[0]).all()
        H = after


@torch.no_grad()
def test_attention_over_several_frames_is_not_ista() -> None:
    x = inputs(make("dust"), 2, 5)
    on, off = (make("dust", move=0.0, attention=attention)(x).logits for attention in (True, False))
    assert (on - off).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dust", "dust-tied", "dust-heads", "dust-measured"])
def test_a_layer_of_dust_by_hand(kind: str) -> None:
    model = make(kind, num_hidden_layers=2)
    x = inputs(model, 1, 5)
    X, D = x[0].numpy(), model.dictionary.numpy()
    A = np.eye(16) if model.measurement is None else model.measurement.numpy()

    def plain(value: torch.Tensor) -> Array:
        return value.numpy()

    def softplus(value: torch.Tensor) -> float:
        return float(np.log1p(np.exp(float(value))))

    def matrices(step: Any) -> tuple[Array, Array | None, float]:
        theta = softplus(step.threshold_bias)
        if step.step_bias is None:
            return plain(step.U), None if step.V is None else plain(step.V), theta
        size = softplus(step.step_bias)
        return size * A @ D, np.eye(24) - size * D.T @ A.T @ A @ D, theta

    U, _, theta = matrices(model.first)
    H = shrink(X @ U, theta)
    states = model(x, output_hidden_states=True).hidden_states
    for layer in range(2):
        attention = model.attention[layer]
        a, k = 1 / (1 + np.exp(-float(attention.attention_bias))), len(attention.W)
        Z = np.empty_like(H)
        for head in range(k):
            part = slice(head * 24 // k, (head + 1) * 24 // k)
            values, W = H[:, part], plain(attention.W[head])
            tokens = values / np.sqrt(np.sum(values**2, 1, keepdims=True) + 1e-6) if kind == "dust-heads" else values
            for i in range(5):
                near = np.exp([-np.sum(((tokens[i] - tokens[j]) @ W) ** 2) / 2 for j in range(5)])
                Z[i, part] = (1 - a) * values[i] + a * near @ values / near.sum()
        U, V, theta = matrices(model.layers[layer])
        assert V is not None
        H = shrink(Z @ V + X @ U, theta)
        np.testing.assert_allclose(states[layer + 1][0], H @ D.T, rtol=1e-9, atol=1e-11)


@torch.no_grad()
@pytest.mark.parametrize("measured", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_joint_layer_lowers_its_joint_objective_whatever_was_learnt(measured: bool, seed: int) -> None:
    config: dict[str, Any] = {"num_measurements": 10} if measured else {}
    model = make("dust-joint", move=1.0, seed=seed, num_hidden_layers=4, **config)
    x, AD = inputs(model, 3, 5, seed=seed), model.measured_dictionary()
    H = model._start(x)
    for layer, step in enumerate(model.layers):
        after = model._layer(layer, H, x)
        l1, l2 = step.weights()
        values = [joint_objective(x, codes, AD, step.W, l1, l2) for codes in (H, after)]
        assert (values[1] < values[0]).all()
        H = after


@torch.no_grad()
def test_the_start_of_a_joint_layer_is_the_configurations() -> None:
    model = make("dust-joint", move=0.0, l1=0.03, l2=0.4)
    for step in model.layers:
        assert [float(value) for value in step.weights()] == pytest.approx([0.03, 0.4])


@torch.no_grad()
def test_the_attention_step_starts_where_the_configuration_says() -> None:
    model = make("dust", move=0.0, initial_attention=0.2)
    assert [float(attention.attention_bias.sigmoid()) for attention in model.attention] == pytest.approx([0.2] * 3)


def test_one_seed_means_one_measurement_whatever_the_model() -> None:
    dust, ista = make("dust-measured"), make("ista-measured")
    assert torch.equal(dust.measurement, ista.measurement)
    assert not torch.equal(dust.measurement, make("dust-measured", measurement_seed=7).measurement)
    frames = torch.rand(2, 5, 16).double()
    torch.testing.assert_close(dust.measure(frames), torch.einsum("mn,btn->btm", dust.measurement, frames))
    assert make("dust").measure(frames) is frames


@torch.no_grad()
def test_sparse_signals_come_back_from_few_measurements() -> None:
    sizes: dict[str, Any] = {"num_pixels": 64, "num_measurements": 40, "hidden_size": 96, "num_hidden_layers": 400}
    model = make("ista-measured", move=0.0, l1=0.05, **sizes)
    codes = torch.zeros(1, 6, 96).double()
    for t in range(6):
        codes[0, t, [t, 5 * t + 20]] = torch.tensor([1.0, -2.0]).double()
    frames = codes @ model.dictionary.T
    recovered = model(model.measure(frames)).logits
    assert (recovered - frames).square().mean().sqrt() < 0.05 * frames.square().mean().sqrt()


def test_a_fixed_dictionary_is_not_trained() -> None:
    assert make("dust").dictionary.requires_grad
    assert not make("dust-off").dictionary.requires_grad
    assert not make("dust-measured").measurement.requires_grad
