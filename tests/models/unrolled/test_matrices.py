"""Dictionaries and measurement matrices: what they are, and that a seed says which."""

import math

import numpy as np
import pytest
import scipy.fft
import torch

from layerdescent.errors import InputError
from layerdescent.models.unrolled import gaussian_measurements, overcomplete_dct, random_dictionary
from layerdescent.models.unrolled.matrices import patch_side


def test_a_complete_dct_is_the_orthonormal_one() -> None:
    waves = scipy.fft.dct(np.eye(4), norm="ortho", axis=0).T  # columns are the waves
    np.testing.assert_allclose(overcomplete_dct(16, 16), np.kron(waves, waves), atol=1e-12)


@pytest.mark.parametrize(("n", "h", "factors"), [(16, 24, (4, 6)), (64, 128, (8, 16)), (16, 36, (6, 6))])
def test_an_overcomplete_dct_has_unit_waves_of_finer_steps(n: int, h: int, factors: tuple[int, int]) -> None:
    D, p = overcomplete_dct(n, h).numpy(), math.isqrt(n)
    np.testing.assert_allclose(np.linalg.norm(D, axis=0), 1)
    np.testing.assert_allclose(D[:, 0], 1 / p)
    assert np.linalg.matrix_rank(D) == n
    k1, k2 = 3, 2
    y, x = np.meshgrid(np.arange(p) + 0.5, np.arange(p) + 0.5, indexing="ij")
    wave = (np.cos(np.pi * y * k1 / factors[0]) * np.cos(np.pi * x * k2 / factors[1])).ravel()
    np.testing.assert_allclose(D[:, k1 * factors[1] + k2], wave / np.linalg.norm(wave))


def test_a_dct_that_cannot_be_names_one_that_can() -> None:
    with pytest.raises(InputError, match=r"hidden_size=26 .* at least 4 each: take for example 16, 32"):
        overcomplete_dct(16, 26)
    with pytest.raises(InputError, match="num_pixels=15 makes no square patch: take a square number, such as 16"):
        overcomplete_dct(15, 30)
    assert patch_side(1) == 1


def test_random_matrices_are_fixed_by_their_seed_and_leave_the_global_one() -> None:
    state = torch.get_rng_state()
    for make in (random_dictionary, gaussian_measurements):
        assert torch.equal(make(5, 7, 3), make(5, 7, 3))
        assert not torch.equal(make(5, 7, 3), make(5, 7, 4))
    assert torch.equal(torch.get_rng_state(), state)


def test_random_columns_have_unit_length_and_measurements_keep_energy() -> None:
    np.testing.assert_allclose(random_dictionary(5, 7).norm(dim=0), 1)
    A = gaussian_measurements(200, 400)
    assert A.shape == (200, 400)
    assert float(A.square().sum(0).mean()) == pytest.approx(1, rel=0.05)
