"""Noise on the pixels that a model reads, fixed by the sample itself and the noise seed."""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerdescent.errors import InputError
from layerdescent.noise_kinds import Kind

_noisy: WeakSet[nn.Module] = WeakSet()


def reads_pixels(model: nn.Module) -> bool:
    """Whether a model's input is images or frames: its `main_input_name` is `pixel_values`."""
    return getattr(model, "main_input_name", None) == "pixel_values"


def noisy_sample(kind: Kind, level: float, seed: int, sample: NDArray[np.float32]) -> NDArray[np.float32]:
    """Disturb one sample of pixels; its noise depends on (seed, kind, the sample) and on nothing else.

        gaussian          x + gamma n,  n ~ N(0, 1)
        uniform           x + gamma n,  n ~ U(-sqrt 3, sqrt 3), so of unit variance
        poisson           Poisson(x / gamma^2) gamma^2: mean x and variance gamma^2 x (x below 0 counts as 0)
        salt-and-pepper   0 or 1, evenly, in the share of pixels that `level` is; the others stay

    Nothing is clipped. The same n serves every gamma, and the pixels that a smaller share replaces are among those of a
    larger one.

    Args:
        kind: one of `PIXEL_KINDS`.
        level: gamma, in the unit of the pixels (1 is white for pixels in [0, 1]); for salt-and-pepper the share.
        seed: noise seed.
        sample: pixels of any shape, without noise.

    Returns:
        The disturbed pixels, of the same shape.

    Source: gaussian pixel noise of strength gamma [P]; the other kinds and the keys are ours [C].

    Example:
        >>> grey = np.full((100, 100), 0.25, dtype=np.float32)
        >>> noise = noisy_sample("poisson", 0.2, 0, grey) - grey
        >>> round(float(noise.std()), 2)  # 0.2 * sqrt(0.25)
        0.1
    """
    if level == 0:
        return sample
    content = np.ascontiguousarray(sample, dtype="<f4").tobytes()
    key = blake2b(f"{seed}:{kind}:".encode() + content, digest_size=16).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
    if kind == "gaussian":
        return sample + np.float32(level) * generator.standard_normal(sample.shape, dtype=np.float32)
    if kind == "uniform":
        unit = 2 * generator.random(sample.shape, dtype=np.float32) - 1
        return sample + np.float32(level * math.sqrt(3)) * unit
    if kind == "poisson":
        counts = generator.poisson(np.maximum(sample, 0).astype(np.float64) / level**2)
        return (counts * level**2).astype(np.float32)
    chosen = generator.random(sample.shape, dtype=np.float32) < level
    white = generator.random(sample.shape, dtype=np.float32) < 0.5
    return np.where(chosen, white.astype(np.float32), sample)


@contextmanager
def rewritten_pixels(model: nn.Module, rewrite: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Pass the `pixel_values` of every forward pass of the model through `rewrite`, until the context ends.

    Args:
        model: the model that will be called.
        rewrite: takes and gives pixels (B, …).

    Raises:
        InputError: the model's pixels are being rewritten already, or a forward pass gets none.
    """
    if model in _noisy:
        raise InputError(
            f"a perturbation is already on this {type(model).__name__}: "
            "leave its `with` block before entering another one"
        )
    names = tuple(inspect.signature(model.forward).parameters)

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        given = dict(zip(names, args, strict=False)) | kwargs
        pixels = given.get("pixel_values")
        if not isinstance(pixels, Tensor):
            raise InputError(f"{type(module).__name__} was given no pixel_values, which the noise belongs on")
        return (), given | {"pixel_values": rewrite(pixels)}

    handle = model.register_forward_pre_hook(enter, with_kwargs=True)
    _noisy.add(model)
    try:
        yield
    finally:
        _noisy.discard(model)
        handle.remove()


@contextmanager
def training_pixel_noise(model: nn.Module, gamma: float) -> Iterator[None]:
    """Add fresh gaussian noise to the pixels of every forward pass made inside: x~ = x + gamma n.

    The noise comes from the global generator of the pixels' device, so a resumed run continues the same stream.

    Args:
        model: the model, outside any distributed wrapper.
        gamma: standard deviation, in the unit of the pixels.
    """
    with rewritten_pixels(model, lambda pixels: pixels + gamma * torch.randn_like(pixels)):
        yield
