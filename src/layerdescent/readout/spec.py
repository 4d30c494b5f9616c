"""What the table of architectures says about one of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from layerdescent.readout.losses import Counts, Losses, head_counts, head_losses

Model = Any  # a transformers model: its submodules are named by the table, so no type says more
Rows = Callable[[Model, Tensor, Mapping[str, Any] | None], Tensor]
Head = Callable[[Model, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class ReadoutSpec:
    """How one architecture's head reads a hidden state.

    For the last layer these pieces must be the model's own forward, in its order and with its modules:

        logits = head(model, rows(model, hidden_states[-1], batch))

    Args:
        num_layers: model -> L, such that the model returns L + 1 hidden states.
        rows: (model, hidden (B, S, d), batch) -> (B, d'): what the head needs of a hidden state, picked or pooled
            without random numbers, before the head's matrix products. `batch` is what went into the model, None when
            not given. A language model or denoiser keeps every position: (B, S, d).
        head: (model, rows (N, d')) -> logits (N, K), row by row: pooler, dropout and classifier, called as modules
            (never through `.weight`), so that adapters act. A norm that the model applies after its last layer belongs
            here, or into `rows` when pooling comes after it or when `last_rows` leaves it out.
        last_rows: as `rows`, for hidden_states[-1] alone, where the model returns that one already normed.
        losses: (config, logits (..., B, K), labels) -> (..., B), the head's own loss before its mean.
        counts: (config, labels) -> (B,), how much each sample's loss counts in that mean: of a language model, its
            number of tokens with a label.

    Example:
        >>> bert = ReadoutSpec(
        ...     num_layers=lambda model: len(model.bert.encoder.layer),
        ...     rows=lambda model, hidden, batch: hidden[:, 0],
        ...     head=lambda model, rows: model.classifier(model.dropout(model.bert.pooler(rows[:, None]))),
        ... )
    """

    num_layers: Callable[[Model], int]
    rows: Rows
    head: Head
    last_rows: Rows | None = None
    losses: Losses = head_losses
    counts: Counts = head_counts
