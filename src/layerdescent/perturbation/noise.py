"""Unit noise, drawn so that a token's noise depends on nothing but its own text.

The noise of the token at position p of a sample is row p of a stream that is keyed by (seed, kind, the sample's
unpadded token ids). So it is the same in any batch, order, padding, device and number of threads, and the same for any
two models of one width [C].
"""

import math
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerdescent.errors import InputError
from layerdescent.noise_kinds import Kind


def epsilon(gamma: float, scale: float, dim: int) -> float:
    """Give the metric-privacy parameter that discrete noise of strength gamma stands for.

        epsilon = sqrt(dim + 1) / (gamma * scale)

    Noise with density proportional to exp(-epsilon |z|) makes any two words w, w' of embedding distance |w - w'|
    indistinguishable up to a factor exp(epsilon |w - w'|), and taking the nearest word afterwards keeps that. Its norm
    is Gamma(dim, rate epsilon), so the variance of a coordinate is E|z|^2 / dim = (dim + 1) / epsilon^2; the equation
    sets this to (gamma * scale)^2.

    The promise holds for a seed that nobody else knows and that is used for one message only; whoever knows the seed
    can undo the noise, so noise with a published seed measures what privacy costs and gives none.

    Args:
        gamma: noise strength in units of `scale`; at least 0.
        scale: RMS of the embedding matrix's entries.
        dim: width of the embedding.

    Returns:
        epsilon per unit of embedding distance; infinite (no privacy) at gamma = 0.

    Raises:
        InputError: gamma below 0, scale not above 0, dim below 1.

    Source: the mechanism is Feyisetan et al. 2020; matching it to gamma by variance is ours [C].

    Example:
        >>> epsilon(gamma=2.0, scale=0.5, dim=3)
        2.0
    """
    if not gamma >= 0 or not scale > 0 or dim < 1:
        raise InputError(
            f"epsilon needs gamma >= 0, scale > 0 and dim >= 1; it was given gamma={gamma}, scale={scale}, dim={dim}"
        )
    return math.sqrt(dim + 1) / (gamma * scale) if gamma > 0 else math.inf


class NoiseStream:
    """The unit noise of one sample, row by row: E n = 0 and E n^2 = 1 in every coordinate.

    gaussian: n ~ N(0, 1); uniform: n ~ U(-sqrt 3, sqrt 3); discrete: a direction uniform on the sphere times a radius
    Gamma(dim, 1) / sqrt(dim + 1), which is metric-privacy noise with epsilon = sqrt(dim + 1).

    Row p does not depend on how many rows are drawn, nor in how many calls.

    Args:
        kind: one of `KINDS`.
        seed: noise seed.
        ids: the sample's token ids without padding, special tokens included.
        dim: width of a row.

    Example:
        >>> stream = NoiseStream("gaussian", seed=0, ids=[101, 7592, 102], dim=4)
        >>> first, last = stream.rows(1), stream.rows(2)
        >>> bool((NoiseStream("gaussian", 0, [101, 7592, 102], 4).rows(3)[1:] == last).all())
        True
    """

    def __init__(self, kind: Kind, seed: int, ids: ArrayLike, dim: int) -> None:
        self.kind, self.dim = kind, dim
        text = f"{seed}:{kind}:".encode() + np.asarray(ids, dtype="<i8").tobytes()
        self._key = int.from_bytes(blake2b(text, digest_size=16).digest(), "little")
        self._rewind()

    def rows(self, count: int, start: int | None = None) -> NDArray[np.float32]:
        """Draw `count` rows of shape (count, dim), from position `start` or from where the last call ended."""
        if start is not None and start != self.position:
            if start < self.position:
                self._rewind()
            self._draw(start - self.position)
        return self._draw(count)

    def _rewind(self) -> None:
        self.position = 0
        self._coordinates = self._generator(0)
        self._radii = self._generator(1)  # a stream of its own, so that rows stay independent of their number

    def _generator(self, stream: int) -> np.random.Generator:
        # The counter has 256 bits: streams that start 2^192 blocks apart never meet.
        return np.random.Generator(np.random.Philox(key=self._key, counter=stream << 192))

    def _draw(self, count: int) -> NDArray[np.float32]:
        self.position += count
        if self.kind == "uniform":
            unit = self._coordinates.random((count, self.dim), dtype=np.float32)
            return (2 * unit - 1) * np.float32(math.sqrt(3))
        normal = self._coordinates.standard_normal((count, self.dim), dtype=np.float32)
        if self.kind == "gaussian":
            return normal
        radii = self._radii.standard_gamma(self.dim, count) / math.sqrt(self.dim + 1)
        norms = np.linalg.norm(normal, axis=1)
        return normal * (radii / norms).astype(np.float32)[:, None]
