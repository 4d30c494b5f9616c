"""Language models on texts: the mean loss of every text's response tokens at every layer, in nats, and temperatures.

A row is `{"input_ids": [...], "labels": [...]}`, labels of -100 where nothing is predicted. A mean over texts counts
each as often as it has tokens to predict, so that it is one over tokens.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from tqdm import tqdm

from layerdescent.errors import InputError, NonFiniteLossError
from layerdescent.evaluation.batches import Rows, evaluating
from layerdescent.perturbation import Perturbation
from layerdescent.readout import Readout, next_token_labels
from layerdescent.readout.fused import MAX_LOGITS
from layerdescent.readout.losses import IGNORED

Array = NDArray[np.float64]

INVERSE_TEMPERATURES = (1e-3, *np.geomspace(0.02, 10.0, 16).tolist())
"""Where the mean loss is looked at for the best 1/T of a layer; in between it is a parabola in log(1/T). [C]"""


@dataclass(frozen=True)
class TextLosses:
    """One batch: places of its rows, mean nats a token (n layers, m temperatures, B), and tokens that count (B,)."""

    indices: list[int]
    losses: Tensor
    counts: Tensor


def token_counts(data: Rows) -> NDArray[np.int64]:
    """How many tokens of each text a language model is asked to predict, (N,).

    Raises:
        InputError: A row's labels do not fit its tokens, or none of them counts.

    Example:
        >>> token_counts([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}])
        array([2])
    """
    counts = np.empty(len(data), np.int64)
    for place, row in enumerate(data):
        labels = row.get("labels")
        if labels is None or np.ndim(labels) != 1 or len(labels) != len(row["input_ids"]):
            raise InputError(
                f"row {place} has {'no labels' if labels is None else 'other labels than one a token'}: a language "
                "model needs the token itself where a loss is wanted, and -100 elsewhere"
            )
        counts[place] = int((np.asarray(labels)[1:] != IGNORED).sum())
        if counts[place] == 0:
            raise InputError(
                f"row {place} has no response token: leave it out, or raise the length that rows are cut to"
            )
    return counts


def text_losses(
    model: nn.Module,
    data: Rows,
    batches: Sequence[Sequence[int]],
    *,
    layers: Sequence[int],
    scales: ArrayLike | None = None,
    processing_class: Any = None,
    perturbation: Perturbation | None = None,
    bf16: bool = False,
    bar: "tqdm[Any] | None" = None,
    max_logits: int = MAX_LOGITS,
) -> Iterator[TextLosses]:
    """Stream the losses of texts at some layers over the batches; never more than one chunk of logits is held.

    Args:
        model: A causal language model.
        data: The rows.
        batches: Positions in the rows, as `length_sorted` gives them.
        layers: Which layers are read.
        scales: (n layers, m) inverse temperatures, logits are multiplied by them; None is 1 for every layer.
        processing_class: The tokenizer, which names special tokens to the noise.
        perturbation: Noise on the embeddings; None for clean inputs.
        bf16: Whether the model's forward pass runs under autocast to bfloat16; the head never does.
        bar: Advanced by one a batch.
        max_logits: How many logits may be held at a time.

    Raises:
        InputError: Rows that do not fit the model.
        NonFiniteLossError: A loss is NaN or infinite.
    """
    readout = Readout.for_model(model)
    plain, spec, L = readout.model, readout.spec, readout.num_layers
    device = next(model.parameters()).device
    accepted = set(inspect.signature(plain.forward).parameters)
    b = torch.ones(len(layers), 1) if scales is None else torch.as_tensor(np.asarray(scales), dtype=torch.float32)
    noise: AbstractContextManager[Any] = nullcontext()
    if perturbation is not None:
        noise = perturbation.on(model, processing_class)
    with evaluating(model), noise:
        for indices in batches:
            rows = [data[index] for index in indices]
            batch = _padded(rows, plain.config.vocab_size, device)
            labels = next_token_labels(batch.pop("labels")).flatten()
            # Entered anew for every batch: a generator must not leave the caller in inference mode.
            with torch.inference_mode():
                inputs = {name: value for name, value in batch.items() if name in accepted}
                with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
                    states = (
                        plain(**inputs, **readout.needs_hidden_states, logits_to_keep=1, use_cache=False)
                        if "logits_to_keep" in accepted
                        else plain(**inputs, **readout.needs_hidden_states)
                    )
                at = labels.ne(IGNORED).nonzero().squeeze(1)
                owner = at // batch["input_ids"].shape[1]
                counts = torch.bincount(owner, minlength=len(rows))
                sums = torch.zeros(*b.shape, len(rows), dtype=torch.float64, device=device)
                for place, layer in enumerate(layers):
                    finish = (spec.last_rows or spec.rows) if layer == L else spec.rows
                    hidden = states.hidden_states[layer].to(plain.dtype).flatten(0, 1).index_select(0, at)
                    size = max(1, max_logits // plain.config.vocab_size)
                    for start in range(0, len(at), size):
                        part = slice(start, start + size)
                        logits = spec.head(plain, finish(plain, hidden[part], None)).float()
                        right = logits.gather(1, labels[at[part], None]).squeeze(1)
                        for number, scale in enumerate(b[place].tolist()):
                            scaled = logits if scale == 1 else scale * logits
                            losses = scaled.logsumexp(1) - scale * right
                            sums[place, number].index_add_(0, owner[part], losses.double())
                means = sums / counts
            if not bool(torch.isfinite(means).all()):
                place, _, text = (int(axis[0]) for axis in torch.nonzero(~torch.isfinite(means), as_tuple=True))
                raise NonFiniteLossError(
                    f"the loss of layer {layers[place]} is not a number on row {indices[text]}: "
                    "the model has diverged or its precision is too low; use an earlier checkpoint or float32"
                )
            yield TextLosses(list(indices), means.cpu(), counts.cpu())
            if bar is not None:
                bar.update()


def fit_inverse_temperatures(losses: ArrayLike, scales: Sequence[float] = INVERSE_TEMPERATURES) -> Array:
    """The inverse temperature with the least mean loss of each layer, from the losses at a few of them.

    The loss is convex in 1/T. Around the best of the given ones it is taken as a parabola in log(1/T), which misses its
    least value by less than a thousandth of it; at an end of the range that end is taken.

    Args:
        losses: (n layers, m) mean losses at the given inverse temperatures.
        scales: The inverse temperatures (m,), rising.

    Returns:
        (n layers,).

    Source: temperature scaling is Guo et al. 2017; this way of finding it is ours [C].

    Example:
        >>> fit_inverse_temperatures([[3.0, 1.0, 3.0]], [0.5, 1.0, 2.0]).tolist()
        [1.0]
    """
    x, found = np.log(np.asarray(scales, dtype=np.float64)), []
    for y in np.asarray(losses, dtype=np.float64):
        best = int(y.argmin())
        if best in (0, len(x) - 1):
            found.append(x[best])
            continue
        (a, b, c), (fa, fb, fc) = x[best - 1 : best + 2], y[best - 1 : best + 2]
        above, below = (b - a) ** 2 * (fb - fc) - (b - c) ** 2 * (fb - fa), (b - a) * (fb - fc) - (b - c) * (fb - fa)
        found.append(b - above / (2 * below) if below != 0 else b)
    return np.exp(found)


def unigram_losses(data: Rows, train_labels: Sequence[Sequence[int]], vocabulary: int) -> Array:
    """Mean nats a token of each text under the frequencies of the training responses' tokens, plus one each.

        p(v) = (count of v + 1) / (tokens + V)

    Args:
        data: The rows to predict.
        train_labels: Labels of training rows, -100 where nothing counts.
        vocabulary: V.

    Returns:
        (N,).

    Example:
        >>> rows = [{"input_ids": [0, 1], "labels": [-100, 1]}]
        >>> unigram_losses(rows, [[-100, 1, 1]], 2).round(3).tolist()
        [0.288]
    """
    counts = np.ones(vocabulary)
    for labels in train_labels:
        counted = np.asarray(labels)[1:]
        np.add.at(counts, counted[counted != IGNORED], 1)
    return _nats(data, counts / counts.sum())


def best_unigram_losses(data: Rows, vocabulary: int) -> Array:
    """As `unigram_losses`, with the frequencies of these rows themselves: the best constant predictor's loss."""
    counts = np.zeros(vocabulary)
    for row in data:
        counted = np.asarray(row["labels"])[1:]
        np.add.at(counts, counted[counted != IGNORED], 1)
    return _nats(data, counts / counts.sum())


def _nats(data: Rows, probabilities: Array) -> Array:
    losses = []
    for row in data:
        counted = np.asarray(row["labels"])[1:]
        losses.append(-np.log(probabilities[counted[counted != IGNORED]]).mean())
    return np.array(losses)


def _padded(rows: Rows, vocabulary: int, device: torch.device) -> dict[str, Tensor]:
    """Rows on the right of which padding is, known by the mask alone."""
    longest = max(len(row["input_ids"]) for row in rows)
    shape = (len(rows), longest)
    batch = {
        "input_ids": torch.zeros(shape, dtype=torch.long),
        "attention_mask": torch.zeros(shape, dtype=torch.long),
        "labels": torch.full(shape, IGNORED),
    }
    for place, row in enumerate(rows):
        ids = torch.as_tensor(row["input_ids"], dtype=torch.long)
        if int(ids.max()) >= vocabulary:
            raise InputError(
                f"a row has the token {int(ids.max())}, and the model knows {vocabulary}: its tokenizer is not that "
                "of the rows; take the model's own"
            )
        batch["input_ids"][place, : len(ids)] = ids
        batch["attention_mask"][place, : len(ids)] = 1
        batch["labels"][place, : len(ids)] = torch.as_tensor(row["labels"], dtype=torch.long)
    return {name: value.to(device) for name, value in batch.items()}
