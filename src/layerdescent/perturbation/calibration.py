"""Find the gamma at which discrete noise replaces a given share of the tokens."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerdescent.errors import InputError
from layerdescent.perturbation.noise import NoiseStream
from layerdescent.perturbation.vocabulary import exit_scales

MAX_SAMPLES = 512
MAX_TOKENS = 4096


def replacing_scale(
    samples: Sequence[Sequence[int]],
    share: float,
    *,
    seed: int,
    table: Tensor,
    allowed: Tensor,
    untouched: Sequence[int],
) -> float:
    """Find the noise scale gamma * s at which discrete noise replaces `share` of the tokens.

    Under a fixed draw n a token is replaced at every scale above its exit scale and at none below (`exit_scales`), so
    the wanted scale is a quantile of the exit scales: one pass through the vocabulary, no search.

    At most 512 samples, evenly spaced, are read; of their tokens at most 4,096, evenly spaced in the order of their
    ids, so that frequent words have their exact share [C]. Nothing in it is random but the noise, which is what these
    samples will get.

    Args:
        samples: token ids without padding.
        share: expected share of replaced tokens, in (0, 1).
        seed: noise seed.
        table: (V, d) embedding matrix.
        allowed: (V,) bool, rows that may replace a token.
        untouched: ids that never get noise.

    Returns:
        The scale.

    Raises:
        InputError: no token to replace, or a share that no scale reaches.

    Source: indexing discrete noise by share is ours [C]; the exit scale [D].
    """
    spread = np.linspace(0, len(samples) - 1, min(len(samples), MAX_SAMPLES)).round().astype(int)
    chosen = [np.asarray(samples[i], dtype=np.int64) for i in spread]
    owner, position = _eligible(chosen, untouched)
    if len(owner) == 0:
        raise InputError(
            f"calibration needs samples with words in them; the {len(samples)} given hold none but special tokens"
        )
    ids = np.array([chosen[o][p] for o, p in zip(owner, position, strict=True)])
    if len(ids) > MAX_TOKENS:
        by_id = np.argsort(ids, kind="stable")
        kept = np.sort(by_id[((np.arange(MAX_TOKENS) + 0.5) * len(ids) / MAX_TOKENS).astype(int)])
        ids, owner, position = ids[kept], owner[kept], position[kept]
    noise = np.concatenate(
        [
            NoiseStream("discrete", seed, chosen[o], table.shape[1]).rows(position[owner == o].max() + 1)[
                position[owner == o]
            ]
            for o in np.unique(owner)
        ]
    )
    on = table.device
    exits = exit_scales(torch.from_numpy(ids).to(on), torch.from_numpy(noise).to(on), table, allowed)
    return _between(np.sort(exits.cpu().double().numpy()), share)


def _eligible(
    samples: list[NDArray[np.int64]], untouched: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sample and the position of every token that may be replaced, sample by sample."""
    positions = [np.flatnonzero(~np.isin(ids, untouched)) for ids in samples]
    owners = [np.full(len(p), i) for i, p in enumerate(positions)]
    empty = [np.empty(0, dtype=np.int64)]
    return np.concatenate(owners or empty), np.concatenate(positions or empty)


def _between(exits: NDArray[np.float64], share: float) -> float:
    """Return a scale that lies above `share` of the sorted exit scales and below the others."""
    count = max(1, round(share * len(exits)))
    below = exits[count - 1]
    above = exits[count] if count < len(exits) and np.isfinite(exits[count]) else 1.01 * below
    if not np.isfinite(below):
        reach = np.isfinite(exits).mean()
        raise InputError(
            f"share={share:g} cannot be reached: noise of any strength replaces at most {reach:.3f} of these tokens"
        )
    return float((below + above) / 2)
