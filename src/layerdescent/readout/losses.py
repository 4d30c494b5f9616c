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


def mean_loss(config: Any, losses: Tensor, labels: Tensor) -> Tensor:
    """Average per-sample losses over the samples that count, as the model's own loss does.

    Args:
        config: a transformers config, read for `num_labels`.
        losses: (..., B).
        labels: the batch's labels; where they are class numbers, negative ones mark samples to leave out.

    Returns:
        (...), NaN when no sample counts.

    Source: torch's own mean of a cross entropy [C].

    Example:
        >>> from transformers import BertConfig
        >>> mean_loss(BertConfig(num_labels=2), torch.tensor([1.0, 0.0, 3.0]), torch.tensor([0, -100, 1]))
        tensor(2.)
    """
    classes = config.num_labels > 1 and labels.numel() == losses.shape[-1]
    if not classes:
        return losses.mean(-1)
    return losses.sum(-1) / (labels >= 0).sum().to(losses.device)


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    batch = logits.shape[:-1]
    targets = labels.flatten().expand(batch)
    losses = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none", ignore_index=IGNORED)
    return losses.view(batch)
