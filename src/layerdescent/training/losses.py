"""Layer losses as a trainer computes its own loss: same function, same count of samples, another layer's logits."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from layerdescent.readout import Readout

LossFunction = Callable[..., Tensor]
"""(outputs with logits, labels, num_items_in_batch=count) -> scalar, as `compute_loss_func` and the label smoother."""


def count_items(batch: Mapping[str, Any], shifts_labels: bool) -> Tensor:
    """How many labels of a batch count, as transformers' Trainer counts them.

    Args:
        batch: what goes into the model, with `labels`.
        shifts_labels: causal language models predict labels[..., 1:], so the first ones do not count.

    Example:
        >>> count_items({"labels": torch.tensor([[7, 8, 9], [7, -100, 9]])}, shifts_labels=True)
        tensor(3)
    """
    if "shift_labels" in batch:
        return batch["shift_labels"].ne(-100).sum()
    labels = batch["labels"]
    return (labels[..., 1:] if shifts_labels else labels).ne(-100).sum()


def losses_of_logits(
    readout: Readout, function: LossFunction | None, logits: Tensor, labels: Tensor, count: Tensor
) -> Tensor:
    """The mean losses (n,) of logits (n, B, …), in fp32 or better.

    Args:
        readout: knows the head's own loss.
        function: the trainer's loss function; None for the head's own.
        logits: one slice for each layer.
        labels: of the batch.
        count: of labels in the batch, which makes `function` return the batch's mean.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if function is None:
        return readout.mean_loss(readout.per_sample_losses(logits, labels), labels)
    outputs = [SequenceClassifierOutput(logits=layer) for layer in logits]
    return torch.stack([function(output, labels, num_items_in_batch=count) for output in outputs])
