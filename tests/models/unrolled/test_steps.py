"""The half-steps lower their own energies, under the conditions that are said and not under others."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from layerdescent.models.unrolled import (
    attention_step,
    ista_step,
    joint_objective,
    joint_step,
    lasso_objective,
    mlp_energy,
    mlp_step,
    pair_energy,
    soft_threshold,
)
from layerdescent.models.unrolled.steps import lipschitz, merge_heads, pair_weights, split_heads, unit_rows

Array = NDArray[np.float64]
SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from([0.01, 0.1, 1.0, 3.0, 10.0])


def gaussian(seed: int, *shape: int, scale: float = 1.0) -> Tensor:
    return torch.from_numpy(scale * np.random.default_rng(seed).normal(size=shape))


def pairwise(Y: Array, W: Array) -> float:
    """E1 by its definition, one pair at a time."""
    energy = 0.0
    for i in range(len(Y)):
        for j in range(i + 1, len(Y)):
            energy -= np.exp(-np.sum(((Y[i] - Y[j]) @ W) ** 2) / 2)
    return energy


def rises(before: Tensor, after: Tensor) -> bool:
    return float(after - before) > 1e-10 * (1 + abs(float(before)))


# ---- attention ----


@given(SEEDS, st.integers(1, 6), st.integers(1, 4), SCALES)
def test_the_energies_are_their_definitions(seed: int, T: int, d: int, scale: float) -> None:
    Y, W, b = gaussian(seed, T, d, scale=scale), gaussian(seed + 1, d, d), gaussian(seed + 2, d)
    assert float(pair_energy(Y, W)) == pytest.approx(pairwise(Y.numpy(), W.numpy()), rel=1e-9, abs=1e-9)
    second = np.trace(Y.numpy() @ W.numpy() @ Y.numpy().T) / 2 + np.sum((Y.numpy() - b.numpy()) ** 2) / 2
    assert float(mlp_energy(Y, W, b)) == pytest.approx(second, rel=1e-9, abs=1e-9)


def test_every_leading_index_is_a_sequence_of_its_own() -> None:
    Y, W, b = gaussian(0, 2, 3, 4, 5), gaussian(1, 5, 5), gaussian(2, 5)
    X, AD = gaussian(3, 2, 3, 4, 6), gaussian(4, 6, 5)
    heads = gaussian(5, 1, 5, 5)
    for i in range(2):
        for j in range(3):
            for of_all, of_one in (
                (pair_energy(Y, W), pair_energy(Y[i, j], W)),
                (mlp_energy(Y, W, b), mlp_energy(Y[i, j], W, b)),
                (attention_step(Y, W, 0.5), attention_step(Y[i, j], W, 0.5)),
                (lasso_objective(X, Y, AD, 0.1), lasso_objective(X[i, j], Y[i, j], AD, 0.1)),
                (joint_objective(X, Y, AD, heads, 0.1, 2.0), joint_objective(X[i, j], Y[i, j], AD, heads, 0.1, 2.0)),
                (joint_step(Y, X, AD, heads, 0.1, 2.0), joint_step(Y[i, j], X[i, j], AD, heads, 0.1, 2.0)),
            ):
                torch.testing.assert_close(of_all[i, j], of_one)


@pytest.mark.parametrize("beta", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_attention_by_hand(beta: bool, normalize: bool) -> None:
    Y, W = gaussian(0, 5, 3).numpy(), gaussian(1, 3, 2).numpy()
    for_weights = Y / np.linalg.norm(Y, axis=1, keepdims=True) if normalize else Y
    expected = np.empty_like(Y)
    for i in range(5):
        weights = np.array([np.exp(for_weights[i] @ W @ W.T @ for_weights[j]) for j in range(5)])
        if beta:
            weights *= np.array([np.exp(-np.sum((for_weights[j] @ W) ** 2) / 2) for j in range(5)])
        expected[i] = 0.7 * Y[i] + 0.3 * weights @ Y / weights.sum()
    found = attention_step(torch.from_numpy(Y), torch.from_numpy(W), 0.3, beta=beta, normalize_tokens=normalize)
    np.testing.assert_allclose(found, expected, rtol=1e-5 if normalize else 1e-12)


@given(SEEDS, st.integers(2, 8), st.integers(1, 5), st.integers(1, 5), SCALES, SCALES, st.floats(0.01, 2))
def test_the_beta_softmax_step_never_raises_the_pair_energy(
    seed: int, T: int, d: int, r: int, tokens: float, weights: float, a: float
) -> None:
    Y, W = gaussian(seed, T, d, scale=tokens), gaussian(seed + 1, d, r, scale=weights)
    assert not rises(pair_energy(Y, W), pair_energy(attention_step(Y, W, a), W))


def test_the_plain_softmax_step_can_raise_it() -> None:
    Y, W = torch.tensor([[-1.0], [0.0], [4.0]]).double(), torch.ones(1, 1).double()
    for a in (0.5, 1.0):
        assert rises(pair_energy(Y, W), pair_energy(attention_step(Y, W, a, beta=False), W))
        assert not rises(pair_energy(Y, W), pair_energy(attention_step(Y, W, a), W))


def test_unit_tokens_are_not_enough_for_plain_softmax() -> None:
    Y = unit_rows(torch.tensor([[0.0, -1.0], [0.28, 0.96], [-1.0, 0.0]]).double())
    W = torch.diag(torch.tensor([3.0, 0.2]).double())
    assert rises(pair_energy(Y, W), pair_energy(attention_step(Y, W, 1.0, beta=False), W))


@given(SEEDS, st.integers(2, 8), st.integers(1, 4), SCALES, st.floats(0.01, 2))
def test_equal_lengths_after_w_are(seed: int, T: int, d: int, scale: float, a: float) -> None:
    Y, W = gaussian(seed, T, d), torch.eye(d, dtype=torch.float64)
    Y = scale * Y / Y.norm(dim=1, keepdim=True)
    plain, with_beta = attention_step(Y, W, a, beta=False), attention_step(Y, W, a)
    torch.testing.assert_close(plain, with_beta)
    assert not rises(pair_energy(Y, W), pair_energy(plain, W))


def test_the_literatures_further_term_can_rise_and_another_step_lowers_it() -> None:
    Y, W = torch.tensor([[-30.0], [-29.0], [-27.0]]).double(), torch.ones(1, 1).double()

    def energy(Y: Tensor) -> Tensor:
        return pair_energy(Y, W) + (Y @ W).square().sum() / 2

    Z = attention_step(Y, W, 1.0)
    assert float(energy(Y)) == pytest.approx(1234.247, abs=1e-3)
    assert float(energy(Z)) == pytest.approx(1234.877, abs=1e-3)
    assert pair_energy(Z, W) < pair_energy(Y, W)
    w = pair_weights(Y, W).fill_diagonal_(0)
    assert energy(w @ Y / (1 + w.sum(1, keepdim=True))) < energy(Y)


def test_without_a_weight_matrix_attention_is_the_mean() -> None:
    Y = gaussian(0, 4, 3)
    torch.testing.assert_close(attention_step(Y, torch.zeros(3, 3).double(), 1.0), Y.mean(0).expand(4, 3))


def test_far_tokens_stay_finite() -> None:
    Y = 1e4 * gaussian(0, 4, 3).float()
    for beta in (True, False):
        assert attention_step(Y, torch.eye(3), 0.5, beta=beta).isfinite().all()


def test_a_row_of_zeros_stays_and_its_gradient_is_finite() -> None:
    Y = torch.zeros(2, 3, requires_grad=True)
    unit_rows(Y).sum().backward()
    assert Y.grad is not None
    assert Y.grad.isfinite().all()
    torch.testing.assert_close(unit_rows(torch.tensor([[3.0, 4.0]])), torch.tensor([[0.6, 0.8]]))


# ---- the MLP ----


def symmetric_top(W: Tensor) -> float:
    return float(np.linalg.eigvalsh((W + W.T).numpy() / 2)[-1])


@given(SEEDS, st.integers(1, 4), st.integers(1, 5), SCALES, SCALES)
def test_the_mlp_step_is_the_projected_gradient_step(seed: int, T: int, d: int, tokens: float, weights: float) -> None:
    Z, W, b = gaussian(seed, T, d, scale=tokens), gaussian(seed + 1, d, d, scale=weights), gaussian(seed + 2, d)
    Z.requires_grad_(True)
    (gradient,) = torch.autograd.grad(mlp_energy(Z, W, b), Z)
    torch.testing.assert_close(mlp_step(Z, W, b, 0.3), torch.relu(Z - 0.3 * gradient))
    torch.testing.assert_close(mlp_step(Z, W, b, 0.3, relu=False), Z - 0.3 * gradient)


@given(SEEDS, st.integers(1, 4), st.integers(1, 5), SCALES, SCALES, st.floats(0.01, 1))
def test_the_mlp_step_never_raises_its_energy(
    seed: int, T: int, d: int, tokens: float, weights: float, share: float
) -> None:
    Z, W, b = gaussian(seed, T, d, scale=tokens).relu(), gaussian(seed + 1, d, d, scale=weights), gaussian(seed + 2, d)
    curvature = 1 + symmetric_top(W)
    a = share * (min(1.0, 2 / curvature) if curvature > 0 else 1.0)
    assert not rises(mlp_energy(Z, W, b), mlp_energy(mlp_step(Z, W, b, a), W, b))
    assert not rises(mlp_energy(Z, W, b), mlp_energy(mlp_step(Z, W, b, a, relu=False), W, b))


def test_a_longer_mlp_step_or_a_start_below_zero_can_raise_it() -> None:
    one, b = torch.ones(1, 1).double(), torch.zeros(1).double()
    W = torch.full((1, 1), 4.0).double()  # 2 / (1 + 4) = 0.4
    assert not rises(mlp_energy(one, W, b), mlp_energy(mlp_step(one, W, b, 0.39, relu=False), W, b))
    assert rises(mlp_energy(one, W, b), mlp_energy(mlp_step(one, W, b, 0.41, relu=False), W, b))
    below, zero = -one, torch.zeros(1, 1).double()
    assert rises(mlp_energy(below, zero, below[0]), mlp_energy(mlp_step(below, zero, below[0], 0.5), zero, below[0]))


# ---- sparse coding ----


@given(SEEDS, st.floats(0, 3))
def test_soft_threshold_is_the_proximal_step(seed: int, theta: float) -> None:
    v = gaussian(seed, 20)
    found = soft_threshold(v, theta)
    np.testing.assert_allclose(found, np.sign(v.numpy()) * np.maximum(np.abs(v.numpy()) - theta, 0), atol=1e-15)
    nearby = found[:, None] + torch.linspace(-1, 1, 41).double()[None]

    def objective(u: Tensor) -> Tensor:
        return (u - v[:, None]).square() / 2 + theta * u.abs()

    assert (objective(found[:, None]) <= objective(nearby) + 1e-12).all()


@given(SEEDS, st.integers(1, 4), st.integers(1, 5), st.integers(1, 7), SCALES, st.floats(0.001, 3))
def test_ista_never_raises_the_lasso(seed: int, T: int, m: int, h: int, scale: float, l1: float) -> None:
    X, AD, H = gaussian(seed, T, m), gaussian(seed + 1, m, h, scale=scale), gaussian(seed + 2, T, h)
    step = 1 / np.linalg.svd(AD.numpy(), compute_uv=False)[0] ** 2
    assume(step < 1e9)
    for _ in range(3):
        after = ista_step(H, X, AD, step, l1 * step)
        assert not rises(lasso_objective(X, H, AD, l1), lasso_objective(X, after, AD, l1))
        H = after


@given(
    SEEDS, st.integers(1, 6), st.integers(1, 3), st.integers(1, 3), SCALES, SCALES, st.floats(0, 2), st.floats(0, 20)
)
def test_the_joint_step_never_raises_the_joint_objective(
    seed: int, T: int, heads: int, width: int, codes: float, weights: float, l1: float, l2: float
) -> None:
    m, h = 4, heads * width
    X, AD, H = gaussian(seed, T, m), gaussian(seed + 1, m, h), gaussian(seed + 2, T, h, scale=codes)
    W = gaussian(seed + 3, heads, width, width, scale=weights)
    for _ in range(3):
        after = joint_step(H, X, AD, W, l1, l2)
        assert not rises(joint_objective(X, H, AD, W, l1, l2), joint_objective(X, after, AD, W, l1, l2))
        H = after


@given(SEEDS, st.integers(1, 5), st.integers(1, 3))
def test_the_joint_step_is_a_proximal_gradient_step_of_the_stated_length(seed: int, T: int, heads: int) -> None:
    X, AD, H = gaussian(seed, T, 4), gaussian(seed + 1, 4, 2 * heads), gaussian(seed + 2, T, 2 * heads)
    W = gaussian(seed + 3, heads, 2, 2)
    l1, l2 = 0.2, 0.7
    H.requires_grad_(True)
    (gradient,) = torch.autograd.grad(joint_objective(X, H, AD, W, 0.0, l2), H)
    c = 1.05 * np.linalg.norm(AD.numpy(), 2) ** 2
    eta = float(1 / (c + l2 * T * max(np.linalg.norm(head, 2) for head in W.numpy()) ** 2))
    assert float(lipschitz(AD)) == pytest.approx(c)
    torch.testing.assert_close(joint_step(H, X, AD, W, l1, l2), soft_threshold(H - eta * gradient, eta * l1))


def test_the_joint_objective_sums_the_heads_energies() -> None:
    X, AD, H, W = gaussian(0, 4, 3), gaussian(1, 3, 6), gaussian(2, 4, 6), gaussian(3, 2, 3, 3)
    expected: Any = float(lasso_objective(X, H, AD, 0.3))
    expected += 0.5 * (pairwise(H[:, :3].numpy(), W[0].numpy()) + pairwise(H[:, 3:].numpy(), W[1].numpy()))
    assert float(joint_objective(X, H, AD, W, 0.3, 0.5)) == pytest.approx(expected)


def test_heads_are_slices_of_the_codes_and_come_back() -> None:
    H = gaussian(0, 2, 4, 6)
    heads = split_heads(H, 3)
    torch.testing.assert_close(heads[:, 1], H[..., 2:4])
    assert torch.equal(merge_heads(heads), H)
