"""The loss of a head, per sample, for logits of any number of layers at once.

Which loss it is, is decided as Hugging Face decides it in the model's own forward; only the reduction is left out.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from layerdescent.errors import InputError

ProblemType = Literal["regression", "single_label_classification", "multi_label_classification"]

Losses = Callable[[Any, Tensor, Tensor], Tensor]
"""(config, logits (..., B, K), labels (B,) or (B, K)) -> losses (..., B); (T, m) instead of K for a denoiser."""

Counts = Callable[[Any, Tensor], Tensor]
"""(config, labels) -> (B,), whole numbers: how much each sample's loss counts in the mean over a batch."""

IGNORED = -100


def problem_type(config: Any, labels: Tensor) -> ProblemType:
    """Name the kind of head: what the config says, else what its number of labels and their dtype say.

    The rule of transformers, without its side effect (there the first forward with labels writes it into the config):

        1 label: regression;  integer labels: single_label_classification;  otherwise: multi_label_classification

    Args:
        config: a transformers config, read for `problem_type` and `num_labels`.
        labels: the labels of a batch.

    Returns:
        One of the three names.

    Example:
        >>> from transformers import BertConfig
        >>> problem_type(BertConfig(num_labels=3), torch.tensor([0, 2]))
        'single_label_classification'
    """
    if config.problem_type is not None:
        return config.problem_type
    if config.num_labels == 1:
        return "regression"
    return "single_label_classification" if labels.dtype in (torch.long, torch.int) else "multi_label_classification"


def head_losses(config: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the per-sample loss of a sequence or image classification head, in fp32 (fp64 for fp64 logits).

    For one layer it is the model's own loss before its mean:

        single_label_classification   cross_entropy(logits, labels, reduction="none")
        regression                    (logits - labels)**2, averaged over the K outputs
        multi_label_classification    binary_cross_entropy_with_logits(...), averaged over the K labels

    Args:
        config: a transformers config, read for `problem_type` and `num_labels`.
        logits: (..., B, K), any leading axes, for example one of layers.
        labels: (B,) or (B, 1) class numbers or values; (B, K) values or zeros and ones.

    Returns:
        (..., B). A sample whose class number is -100 counts nothing: its loss is 0, and `mean_loss` leaves it out.

    Raises:
        InputError: the config names a problem type that transformers doesn't know.

    Source: the head's own loss [C].

    Example:
        >>> from transformers import BertConfig
        >>> two_layers = torch.tensor([[[1.0], [2.0]], [[0.0], [0.0]]])
        >>> head_losses(BertConfig(num_labels=1), two_layers, torch.tensor([1.0, 0.0]))
        tensor([[0., 4.],
                [1., 0.]])
    """
    # A bf16 mean of losses is off by as much as an alpha, so no loss is ever formed below fp32.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.to(logits.device)
    match kind := problem_type(config, labels):
        case "single_label_classification":
            return _cross_entropy(logits, labels)
        case "regression" if config.num_labels == 1:
            return (logits.squeeze(-1) - labels.flatten()).square()
        case "regression":
            return (logits - labels).square().mean(-1)
        case "multi_label_classification":
            targets = labels.to(logits.dtype).expand_as(logits)
            return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(-1)
    raise InputError(
        f"config.problem_type is {kind!r}: "
        "set it to single_label_classification, multi_label_classification or regression, or to None"
    )


def deberta_losses(config: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the per-sample loss of DeBERTa's head, which goes its own way while the config names no problem type.

    Then labels of shape (B,) or (B, 1) are classes whatever their dtype, every negative one is ignored, and labels of
    shape (B, K) are a distribution over the classes: the loss is the cross entropy against it. Otherwise `head_losses`.

    Args:
        config: a transformers config, read for `problem_type` and `num_labels`.
        logits: (..., B, K), any leading axes.
        labels: (B,), (B, 1) or (B, K).

    Returns:
        (..., B).

    Source: the head's own loss [C].

    Example:
        >>> from transformers import DebertaV2Config
        >>> deberta_losses(DebertaV2Config(num_labels=2), torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]))
        tensor([0.6931])
    """
    if config.problem_type is not None or config.num_labels == 1:
        return head_losses(config, logits, labels)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels = labels.to(logits.device)
    if labels.dim() == 1 or labels.size(-1) == 1:
        return _cross_entropy(logits, labels.long().where(labels >= 0, IGNORED))
    return -(logits.log_softmax(-1) * labels).sum(-1)


def reconstruction_losses(config: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the per-sample loss of a denoiser: the squared error, averaged over frames and pixels.

        F(S) = |S - S*|_F^2 / (T m)

    Args:
        config: not used: a denoiser has no other loss.
        logits: (..., B, T, m), reconstructions; any leading axes, for example one of layers.
        labels: (B, T, m), clean sequences.

    Returns:
        (..., B), fp32 (fp64 for fp64 reconstructions).

    Source: the mean squared error; the paper reports its root [P].

    Example:
        >>> clean = torch.zeros(1, 2, 2)
        >>> reconstruction_losses(None, clean + torch.tensor([1.0, 3.0]), clean)
        tensor([5.])
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (logits - labels.to(logits)).square().mean((-2, -1))


def next_token_labels(labels: Tensor) -> Tensor:
    """Shift labels to the positions that predict them, as causal language models do.

        shifted[t] = labels[t + 1],   and -100 at the last position, which predicts nothing

    Args:
        labels: (..., S), token numbers; -100 where no loss is wanted.

    Returns:
        (..., S).

    Example:
        >>> next_token_labels(torch.tensor([[-100, 7, 8]]))
        tensor([[   7,    8, -100]])
    """
    return functional.pad(labels[..., 1:], (0, 1), value=IGNORED)


def next_token_losses(config: Any, logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the per-sample loss of a causal language model: the mean over the sample's counted tokens, in nats.

        F = mean over t, labels[t + 1] != -100, of  - log softmax(logits[t])[labels[t + 1]]

    The model's own loss is the mean over the tokens of a whole batch. It is the mean of these losses when each counts
    as many times as its sample has such tokens: see `next_token_counts` and `mean_loss`.

    Args:
        config: not used: a language model has no other loss.
        logits: (..., B, S, V), any leading axes, for example one of layers.
        labels: (B, S), token numbers, not shifted; -100 where no loss is wanted.

    Returns:
        (..., B), fp32 (fp64 for fp64 logits); 0 for a sample without a token that counts.

    Source: the head's own loss [C].

    Example:
        >>> next_token_losses(None, torch.zeros(1, 3, 2), torch.tensor([[0, 1, -100]]))
        tensor([0.6931])
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    losses = _cross_entropy(logits.flatten(-3, -2), next_token_labels(labels).to(logits.device))
    counts = next_token_counts(config, labels).to(logits.device)
    return losses.unflatten(-1, labels.shape).sum(-1) / counts.clamp(min=1)


def head_counts(config: Any, labels: Tensor) -> Tensor:
    """Tell which samples count in a classifier's loss: all, or where labels are class numbers, those not negative.

    Args:
        config: a transformers config, read for `num_labels`.
        labels: (B,), (B, 1) or (B, ...).

    Returns:
        (B,) of zeros and ones.

    Source: torch's own mean of a cross entropy [C].

    Example:
        >>> from transformers import BertConfig
        >>> head_counts(BertConfig(num_labels=2), torch.tensor([0, -100, 1]))
        tensor([1, 0, 1])
    """
    if config.num_labels > 1 and labels.numel() == len(labels):
        return (labels.flatten() >= 0).long()
    return torch.ones(len(labels), dtype=torch.long, device=labels.device)


def next_token_counts(config: Any, labels: Tensor) -> Tensor:
    """Count the tokens of each sample that a causal language model is asked to predict.

    Args:
        config: not used.
        labels: (B, S), not shifted: nothing predicts the first position. Behind padding on the left the padding would
            predict a sample's first token, in the model's own loss too: give that token -100, as a prompt has.

    Returns:
        (B,)

    Source: the head's own loss [C].

    Example:
        >>> next_token_counts(None, torch.tensor([[5, 6, 7], [5, 6, -100]]))
        tensor([2, 1])
    """
    return (labels[..., 1:] != IGNORED).sum(-1)


def mean_loss(losses: Tensor, counts: Tensor) -> Tensor:
    """Average per-sample losses as the model's own loss does.

        F = sum_b counts_b losses_b / sum_b counts_b

    Args:
        losses: (..., B).
        counts: (B,), how much each sample counts, for example its number of tokens.

    Returns:
        (...), NaN when no sample counts.

    Source: torch's own mean of a cross entropy [C].

    Example:
        >>> mean_loss(torch.tensor([1.0, 0.0, 3.0]), torch.tensor([1, 0, 3]))
        tensor(2.5000)
    """
    counts = counts.to(losses.device)
    return (losses * counts).sum(-1) / counts.sum()


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    batch = logits.shape[:-1]
    targets = labels.flatten().expand(batch)
    losses = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.view(batch)
