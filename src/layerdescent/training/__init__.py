"""Training under descent constraints, on transformers' Trainer.

`DescentTrainer` with a `DescentConfig`; `DescentMixin` and `DescentArguments` for other Trainer subclasses and their
configurations.
"""

from layerdescent.training.checkpoints import last_complete_checkpoint, problem_with
from layerdescent.training.config import OBJECTIVES, DescentArguments, DescentConfig
from layerdescent.training.mixin import DescentMixin
from layerdescent.training.records import descent_history
from layerdescent.training.selection import descent_score
from layerdescent.training.trainer import DescentTrainer

__all__ = [
    "OBJECTIVES",
    "DescentArguments",
    "DescentConfig",
    "DescentMixin",
    "DescentTrainer",
    "descent_history",
    "descent_score",
    "last_complete_checkpoint",
    "problem_with",
]
