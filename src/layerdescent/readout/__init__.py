"""Readouts: from a hidden state to logits and losses, through the model's own head.

`Readout` reads a model, `ReadoutSpec` says how one architecture is read, `register_readout` adds it to `READOUTS`.
Import `fused` (large vocabularies) by itself, for torch's compiler comes with it, and `sampling` beside it.
"""

from layerdescent.readout.losses import (
    ProblemType,
    head_counts,
    head_losses,
    mean_loss,
    next_token_counts,
    next_token_labels,
    next_token_losses,
    problem_type,
)
from layerdescent.readout.readout import Readout
from layerdescent.readout.spec import ReadoutSpec
from layerdescent.readout.table import READOUTS, readout_spec, register_readout

__all__ = [
    "READOUTS",
    "ProblemType",
    "Readout",
    "ReadoutSpec",
    "head_counts",
    "head_losses",
    "mean_loss",
    "next_token_counts",
    "next_token_labels",
    "next_token_losses",
    "problem_type",
    "readout_spec",
    "register_readout",
]
