"""Readouts: from a hidden state to logits and losses, through the model's own head.

`Readout` reads a model, `ReadoutSpec` says how one architecture is read, `register_readout` adds it to `READOUTS`.
"""

from layerdescent.readout.losses import ProblemType, head_losses, mean_loss, problem_type
from layerdescent.readout.readout import Readout
from layerdescent.readout.table import READOUTS, ReadoutSpec, readout_spec, register_readout

__all__ = [
    "READOUTS",
    "ProblemType",
    "Readout",
    "ReadoutSpec",
    "head_losses",
    "mean_loss",
    "problem_type",
    "readout_spec",
    "register_readout",
]
