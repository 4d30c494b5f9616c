"""Fewer tokens through the head: layer losses of a part of the tokens that are right on average.

One mask serves all constrained layers. It is cheaper than one for each, and better: a violation compares two layers
token by token, so its error has the variance of the tokens' differences, not of their losses.
"""

import torch
from torch import Tensor

from layerdescent.errors import InputError
from layerdescent.readout.losses import IGNORED


def sample_tokens(labels: Tensor, probability: float, generator: torch.Generator) -> tuple[Tensor, float]:
    """Keep every token that counts with the same probability, independently of the others.

    With N counted tokens of losses f_i, and b_i = 1 for a kept one, the estimate of F = sum_i f_i / N is

        sum_i b_i f_i / (p N)           bias 0,   variance (1 - p) / (p N^2) * sum_i f_i^2

    It is a sum over an expected number of tokens, so that it varies even where all losses are equal;
    `sample_fixed_tokens` does not. It needs no count of the tokens, which may lie on several processes.

    Args:
        labels: (...), -100 where none counts.
        probability: p, in (0, 1].
        generator: where the random numbers come from; one on the CPU gives the same mask on every device.

    Returns:
        The labels, with -100 for the tokens left out too, and p: divide a sum over the kept tokens by p times the
        number of all that count.

    Raises:
        InputError: a probability outside (0, 1].

    Source: Bernoulli sampling with the estimator of Horvitz and Thompson [C].

    Example:
        >>> labels = torch.tensor([4, -100, 5, 6])
        >>> kept, share = sample_tokens(labels, 0.5, torch.Generator().manual_seed(1))
        >>> kept, share
        (tensor([-100, -100,    5, -100]), 0.5)
        >>> num_items = share * labels.ne(-100).sum()  # for fused_layer_losses, with `kept` as its labels
    """
    if not 0 < probability <= 1:
        raise InputError(f"tokens are to be kept with probability {probability:g}: it must lie in (0, 1]")
    drawn = torch.rand(labels.shape, generator=generator, device=generator.device)
    return labels.where(drawn.to(labels.device) < probability, IGNORED), probability


def sample_fixed_tokens(labels: Tensor, tokens: int, generator: torch.Generator) -> tuple[Tensor, float]:
    """Keep a fixed number of the tokens that count, every such subset with the same probability.

    With N counted tokens of losses f_i, mean F, and n of them kept in S, the estimate of F is

        sum_{i in S} f_i / n            bias 0,   variance (1 - n/N) / n * sum_i (f_i - F)^2 / (N - 1)

    Args:
        labels: (...), -100 where none counts.
        tokens: n, at least 1; all are kept where fewer count.
        generator: where the random numbers come from; one on the CPU gives the same mask on every device.

    Returns:
        The labels, with -100 for the tokens left out too, and the share n/N that was kept: divide a sum over the kept
        tokens by n/N times the number of all that count. It is 1 where none counts.

    Raises:
        InputError: no token is to be kept.

    Source: simple random sampling without replacement [C].

    Example:
        >>> sample_fixed_tokens(torch.tensor([4, -100, 5, 6, 7]), 1, torch.Generator().manual_seed(0))
        (tensor([   4, -100, -100, -100, -100]), 0.25)
    """
    if tokens < 1:
        raise InputError(f"{tokens} tokens are to be kept: keep at least one")
    counted = labels.flatten().ne(IGNORED).nonzero().squeeze(1)
    N = len(counted)
    order = torch.randperm(N, generator=generator, device=generator.device)
    left_out = counted[order[tokens:].to(labels.device)]
    return labels.flatten().index_fill(0, left_out, IGNORED).view(labels.shape), min(tokens, N) / N if N else 1.0
