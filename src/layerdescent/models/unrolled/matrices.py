"""Dictionaries and measurement matrices, each fixed by its shape and, where it is random, by a seed."""

import math

import torch
from torch import Tensor

from layerdescent.errors import InputError


def overcomplete_dct(num_pixels: int, num_atoms: int) -> Tensor:
    """A two-dimensional overcomplete discrete cosine dictionary for square patches: unit columns, the first constant.

        D = C_q1 (x) C_q2,    C_q[i, k] proportional to cos(pi (2 i + 1) k / (2 q)),    q1 q2 = number of atoms

    For as many atoms as pixels it is the orthonormal DCT-II.

    Args:
        num_pixels: n = p^2, a square number.
        num_atoms: h = q1 q2 with q1, q2 >= p; the two nearest to each other are taken.

    Returns:
        (n, h) float64.

    Raises:
        InputError: n is no square, or h has no such factors.

    Source: [C].

    Example:
        >>> overcomplete_dct(4, 6).shape
        torch.Size([4, 6])
    """
    p = patch_side(num_pixels)
    root = math.isqrt(num_atoms)
    q1 = next((q for q in range(root, p - 1, -1) if num_atoms % q == 0), None)
    if q1 is None:
        raise InputError(
            f"hidden_size={num_atoms} atoms of a DCT dictionary for {p}x{p} patches must be a product of two whole "
            f"numbers of at least {p} each: take for example {p * p}, {2 * p * p} or {4 * p * p}, "
            "or dictionary='random'"
        )
    return torch.kron(_cosines(p, q1), _cosines(p, num_atoms // q1))


def _cosines(p: int, q: int) -> Tensor:
    i = torch.arange(p, dtype=torch.float64)[:, None]
    k = torch.arange(q, dtype=torch.float64)[None, :]
    waves = torch.cos(math.pi * (2 * i + 1) * k / (2 * q))
    return waves / waves.norm(dim=0)


def random_dictionary(num_pixels: int, num_atoms: int, seed: int = 0) -> Tensor:
    """A dictionary of random directions: gaussian columns of unit length.

    Args:
        num_pixels: n.
        num_atoms: h.
        seed: the same seed gives the same matrix, on any machine with the same torch.

    Returns:
        (n, h) float64.

    Source: [C].

    Example:
        >>> random_dictionary(4, 6).norm(dim=0).allclose(torch.ones(6, dtype=torch.float64))
        True
    """
    columns = _gaussian(num_pixels, num_atoms, seed)
    return columns / columns.norm(dim=0)


def gaussian_measurements(num_measurements: int, num_pixels: int, seed: int = 0) -> Tensor:
    """A matrix for compressive measurements: entries N(0, 1 / m), so that E |A x|^2 = |x|^2.

    Args:
        num_measurements: m.
        num_pixels: n.
        seed: the same seed gives the same matrix.

    Returns:
        A (m, n) float64; frames S (..., T, n) are measured as S A^T.

    Source: compressive recovery is DUST's original task; this scale is ours [C].

    Example:
        >>> gaussian_measurements(2, 4).shape
        torch.Size([2, 4])
    """
    return _gaussian(num_measurements, num_pixels, seed) / math.sqrt(num_measurements)


def _gaussian(rows: int, columns: int, seed: int) -> Tensor:
    # On the CPU whatever the default device, so that the numbers are everywhere the same.
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu")


def patch_side(num_pixels: int) -> int:
    """The side p of square patches of n = p^2 pixels.

    Raises:
        InputError: n is no square number.

    Example:
        >>> patch_side(64)
        8
    """
    p = math.isqrt(num_pixels)
    if p * p != num_pixels:
        raise InputError(f"num_pixels={num_pixels} makes no square patch: take a square number, such as {(p + 1) ** 2}")
    return p
