"""Layer losses of a causal language model in training: response tokens only, and never the logits of all layers.

Below its last layer a language model is read for the constraints alone, so what is kept of a layer is its loss and its
gradient; see `layerdescent.readout.fused`. The last layer's loss stays the trainer's own.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from layerdescent.readout import Readout, next_token_labels
from layerdescent.readout.fused import fused_layer_losses
from layerdescent.readout.sampling import sample_fixed_tokens


def shifted_labels(batch: Mapping[str, Any]) -> Tensor:
    """What each position of a batch is to predict, (B, S); -100 where nothing.

    Example:
        >>> shifted_labels({"labels": torch.tensor([[-100, 7, 8]])})
        tensor([[   7,    8, -100]])
    """
    given = batch.get("shift_labels")
    return next_token_labels(batch["labels"]) if given is None else given


def sampled_labels(labels: Tensor, share: float, key: str) -> Tensor:
    """Labels of a part of the tokens that count, at least one; the others become -100.

    The same key draws the same tokens, so a resumed run draws what it would have drawn, and nothing is taken from the
    global random streams.

    Args:
        labels: (...), -100 where none counts.
        share: of the tokens that count, in (0, 1]; their number is rounded.
        key: what the draw depends on.

    Example:
        >>> sampled_labels(torch.tensor([4, -100, 5, 6, 7]), 0.5, "step 3").ne(-100).sum()
        tensor(2)
    """
    counted = int(labels.ne(-100).sum())
    seed = int.from_bytes(blake2b(key.encode(), digest_size=8).digest()) >> 1
    generator = torch.Generator().manual_seed(seed)
    return sample_fixed_tokens(labels, max(1, round(share * counted)), generator)[0]


def token_layer_losses(
    readout: Readout,
    hidden_states: Sequence[Tensor],
    labels: Tensor,
    weights: Mapping[int, float],
    *,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The mean losses of layers over the tokens that count, and their weighted sum with its gradient.

    Equal, without holding the logits of more than a chunk of tokens, to

        losses = [cross_entropy(readout of layer l, labels) for l in weights]
        total = sum(w * loss for w, loss in zip(weights.values(), losses) if w != 0)

    Args:
        readout: of a causal language model.
        hidden_states: Phi_0 … Phi_L as the model returned them, each (B, S, d).
        labels: (B, S), what each position is to predict; -100 where nothing.
        weights: by layer, rising. A layer of weight 0 is read forward only.
        label_smoothing: share of the target that is spread over the vocabulary.

    Returns:
        The losses in the order of `weights`, detached, and the weighted sum, differentiable where something learns;
        zeros when no token counts.
    """
    L, model, spec = readout.num_layers, readout.model, readout.spec
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    finished = spec.last_rows or spec.rows  # the backbone returns the last hidden state as its head takes it
    groups = (
        ([layer for layer in weights if layer < L], lambda rows: spec.head(model, spec.rows(model, rows, None))),
        ([layer for layer in weights if layer == L], lambda rows: spec.head(model, finished(model, rows, None))),
    )
    losses, totals = [], []
    for layers, head in groups:
        if layers:
            found, total = fused_layer_losses(
                [_as_the_head_takes_it(hidden_states[layer], model) for layer in layers],
                head,
                labels,
                [weights[layer] for layer in layers],
                parameters=parameters,
                label_smoothing=label_smoothing,
            )
            losses.append(found)
            totals.append(total)
    return torch.cat(losses), torch.stack(totals).sum()


def _as_the_head_takes_it(state: Tensor, model: Any) -> Tensor:
    # A forward under autocast hands out states of another precision than the model's; there autocast decides again.
    return state if torch.is_autocast_enabled(state.device.type) else state.to(model.dtype)
