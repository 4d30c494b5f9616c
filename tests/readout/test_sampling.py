"""Sampled tokens: right on average, with the variance of the formulas, one mask for every layer."""

import itertools
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from layerdescent.errors import InputError
from layerdescent.readout.fused import fused_layer_losses
from layerdescent.readout.sampling import sample_fixed_tokens, sample_tokens

LABELS = torch.tensor([[0, -100, 1, 2, 3], [4, 5, -100, 6, 7]])
N = 8
DRAWS = 4000


def losses_of_tokens(layers: int = 2) -> Tensor:
    """f (layers, N): far apart between tokens, near between layers."""
    generator = torch.Generator().manual_seed(0)
    common = torch.rand(N, generator=generator, dtype=torch.double) * 3 + 0.5
    return common + 0.1 * torch.randn(layers, N, generator=generator, dtype=torch.double)


@cache
def estimates(kind: str, size: float) -> Tensor:
    """(DRAWS, layers): the estimate under each mask, all layers under the same one."""
    generator = torch.Generator().manual_seed(5)
    f, found = losses_of_tokens(), []
    for _ in range(DRAWS):
        if kind == "share":
            kept, share = sample_tokens(LABELS, size, generator)
        else:
            kept, share = sample_fixed_tokens(LABELS, int(size), generator)
        mask = kept[LABELS != -100] != -100
        found.append(f[:, mask].sum(1) / (share * N))
    return torch.stack(found)


def variance(f: Tensor, kind: str, size: float) -> Tensor:
    """The formulas of the docstrings, for any quantity of tokens (..., N)."""
    if kind == "share":
        return (1 - size) / (size * N**2) * f.square().sum(-1)
    return (1 - size / N) / size * f.var(-1)


CASES = [("share", 0.25), ("share", 0.7), ("fixed", 1), ("fixed", 3)]


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_the_mean_is_the_full_value_and_the_variance_the_formulas(kind: str, size: float) -> None:
    f = losses_of_tokens()
    found, expected = estimates(kind, size), variance(f, kind, size)
    deviation = (found.mean(0) - f.mean(1)) / (expected / DRAWS).sqrt()
    assert deviation.abs().max() < 4
    torch.testing.assert_close(found.var(0), expected, rtol=0.1, atol=0)


@pytest.mark.parametrize(("kind", "size"), CASES)
def test_one_mask_compares_layers_token_by_token(kind: str, size: float) -> None:
    f = losses_of_tokens()
    found = estimates(kind, size)
    violation = found[:, 1] - 0.95 * found[:, 0]
    of_tokens = f[1] - 0.95 * f[0]
    torch.testing.assert_close(violation.var(), variance(of_tokens, kind, size), rtol=0.1, atol=0)
    own_masks = variance(f[1], kind, size) + 0.95**2 * variance(f[0], kind, size)
    assert violation.var() < own_masks / 10


def test_the_formula_of_a_fixed_number_is_exact_over_all_subsets() -> None:
    f = losses_of_tokens(1)[0]
    means = torch.stack([f[list(subset)].mean() for subset in itertools.combinations(range(N), 3)])
    torch.testing.assert_close(means.mean(), f.mean())
    torch.testing.assert_close(means.var(correction=0), variance(f, "fixed", 3))


def test_every_pair_of_tokens_is_kept_as_often() -> None:
    generator = torch.Generator().manual_seed(2)
    together = torch.zeros(N, N)
    for _ in range(DRAWS):
        kept = (sample_fixed_tokens(LABELS, 3, generator)[0][LABELS != -100] != -100).float()
        together += torch.outer(kept, kept)
    pairs = together[~torch.eye(N, dtype=torch.bool)] / DRAWS
    p = 3 * 2 / (N * (N - 1))
    assert (pairs - p).abs().max() < 5 * (p * (1 - p) / DRAWS) ** 0.5
    torch.testing.assert_close(together.diagonal().sum(), torch.tensor(3.0 * DRAWS))


@given(st.integers(0, 10), st.integers(1, 12), st.integers(0, 1000))
def test_a_fixed_number_is_kept_and_no_label_is_changed(counted: int, tokens: int, seed: int) -> None:
    labels = torch.full((2, 6), -100)
    labels.view(-1)[torch.randperm(12, generator=torch.Generator().manual_seed(seed))[:counted]] = 3
    before = labels.clone()
    kept, share = sample_fixed_tokens(labels, tokens, torch.Generator().manual_seed(seed))
    assert torch.equal(labels, before)
    assert set(zip(kept.flatten().tolist(), labels.flatten().tolist(), strict=True)) <= {(3, 3), (-100, 3), (-100,) * 2}
    assert int((kept != -100).sum()) == min(tokens, counted)
    assert share == (min(tokens, counted) / counted if counted else 1)


def test_all_tokens_are_kept_where_that_is_asked() -> None:
    assert torch.equal(sample_tokens(LABELS, 1, torch.Generator())[0], LABELS)
    assert torch.equal(sample_fixed_tokens(LABELS, N, torch.Generator())[0], LABELS)


def test_the_global_random_state_does_not_move() -> None:
    before = torch.get_rng_state()
    sample_tokens(LABELS, 0.5, torch.Generator())
    sample_fixed_tokens(LABELS, 2, torch.Generator())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", ["share", "fixed"])
def test_losses_and_gradients_of_sampled_layers_are_right_on_average(kind: str) -> None:
    torch.manual_seed(0)
    head = nn.Linear(3, N, dtype=torch.double)
    hidden = torch.randn(2, *LABELS.shape, 3, dtype=torch.double, requires_grad=True)

    def read(labels: Tensor, num_items: float) -> Tensor:
        losses, total = fused_layer_losses(hidden, head, labels, (-0.5, 1.5), num_items=num_items)
        of_head, of_hidden = torch.autograd.grad(total, [head.weight, hidden])
        return torch.cat([losses, of_head.flatten(), of_hidden.flatten()])

    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(200):
        sample = sample_tokens(LABELS, 0.5, generator) if kind == "share" else sample_fixed_tokens(LABELS, 4, generator)
        found.append(read(sample[0], sample[1] * N))
    draws = torch.stack(found)
    error = draws.mean(0) - read(LABELS, N)
    assert (error.abs() <= 5 * draws.std(0) / len(draws) ** 0.5 + 1e-12).all()


def test_what_cannot_be_is_an_error() -> None:
    for probability in (0, 1.5):
        with pytest.raises(InputError, match="probability"):
            sample_tokens(LABELS, probability, torch.Generator())
    with pytest.raises(InputError, match="at least one"):
        sample_fixed_tokens(LABELS, 0, torch.Generator())
