"""Tiny random encoders and denoisers, rows of random words, and random clips."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification

from layerdescent.models import DustConfig, DustForDenoising

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = 40
Rows = list[dict[str, Any]]


def make_rows(count: int, seed: int = 0, label: Callable[[np.random.Generator], Any] | None = None) -> Rows:
    """Rows of 3 to 14 tokens; the label is random, or what `label` draws."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        words = rng.integers(len(SPECIAL), len(SPECIAL) + WORDS, size=rng.integers(1, 13)).tolist()
        ids = [2, *words, 3]
        row = {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids), "text": "unused"}
        rows.append(row | {"labels": int(rng.integers(2)) if label is None else label(rng)})
    return rows


def make_model(seed: int = 0, **config: Any) -> BertForSequenceClassification:
    """A BERT of 3 layers with random weights large enough that its layers differ."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": len(SPECIAL) + WORDS,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 20,
        "initializer_range": 0.3,
    }
    return BertForSequenceClassification(BertConfig(**(sizes | config)))


def make_clips(count: int, noise: float = 0.1, seed: int = 0) -> Rows:
    """Rows of 4 frames of 16 pixels: a random patch that stands still, and noise on the inputs."""
    rng = np.random.default_rng(seed)
    clean = np.repeat(rng.uniform(size=(count, 1, 16)), 4, axis=1).astype(np.float32)
    noisy = (clean + noise * rng.normal(size=clean.shape)).astype(np.float32)
    return [{"pixel_values": x, "labels": y} for x, y in zip(noisy, clean, strict=True)]


def make_denoiser(seed: int = 0, **config: Any) -> DustForDenoising:
    """A DUST of 3 layers on patches of 4 x 4 pixels."""
    torch.manual_seed(seed)
    sizes = {"num_pixels": 16, "num_frames": 4, "hidden_size": 24, "num_hidden_layers": 3}
    return DustForDenoising(DustConfig(**(sizes | config)))
