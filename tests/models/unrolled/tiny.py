"""Tiny denoisers of every kind, with weights moved away from where they start."""

from typing import Any

import torch

from layerdescent import models
from layerdescent.models.unrolled import DenoiserModel

SIZES: dict[str, Any] = {"num_pixels": 16, "num_frames": 4, "hidden_size": 24, "num_hidden_layers": 3}
MEASURED: dict[str, Any] = {"num_measurements": 10}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dust": ("DustForDenoising", {}),
    "dust-tied": ("DustForDenoising", {"free": False}),
    "dust-heads": ("DustForDenoising", {"num_attention_heads": 3, "normalize_tokens": True}),
    "dust-joint": ("DustForDenoising", {"free": False, "joint": True, "num_attention_heads": 2}),
    "dust-off": ("DustForDenoising", {"attention": False, "learn_dictionary": False}),
    "dust-measured": ("DustForDenoising", {"dictionary": "random", **MEASURED}),
    "ista": ("IstaForDenoising", {}),
    "ista-measured": ("IstaForDenoising", {"dictionary": "random", **MEASURED}),
    "lista": ("IstaForDenoising", {"learned": True}),
    "ut": ("UtForDenoising", {}),
    "ut-tied": ("UtForDenoising", {"tied": True}),
    "ut-plain": ("UtForDenoising", {"beta": False, "normalize_tokens": True, "relu": False}),
    "ut-measured": ("UtForDenoising", MEASURED),
    "transformer": ("TransformerForDenoising", {}),
    "transformer-measured": ("TransformerForDenoising", MEASURED),
}
UNORDERED = [kind for kind in KINDS if not kind.startswith("transformer")]
LEARNT = [kind for kind in KINDS if not kind.startswith("ista")]


def make(kind: str, move: float = 0.1, seed: int = 0, dtype: torch.dtype = torch.float64, **config: Any) -> Any:
    """A model of one of the kinds, in eval mode.

    Args:
        kind: a key of KINDS.
        move: standard deviation of what is added to every trainable weight.
        seed: of the weights.
        dtype: of the weights from the start, so that nothing was rounded to fp32 on the way.
        config: further fields of the configuration.
    """
    name, settings = KINDS[kind]
    cls: type[DenoiserModel] = getattr(models, name)
    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        model = cls(cls.config_class(**(SIZES | settings | config))).eval()
    finally:
        torch.set_default_dtype(default)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(move * torch.randn_like(parameter))
    return model


def inputs(model: Any, *shape: int, seed: int = 1) -> torch.Tensor:
    """Random inputs (B, T, m) for a model."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*(shape or (3, 5)), model.config.num_inputs, generator=generator, dtype=torch.float64)
