"""The embedding matrix as a set of points: its scale, which rows are special, and which row is nearest."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from layerdescent.errors import InputError

_SPECIAL_FIELDS = ("pad", "cls", "sep", "bos", "eos", "mask", "unk")
# 1,024 x 4,096 scores are 16 MiB: the fastest of the sizes measured on one core, at any size of the vocabulary.
_POINT_CHUNK = 1024
_ROW_CHUNK = 4096


def word_embedding(model: nn.Module) -> nn.Module:
    """Return the module that turns token ids into vectors, or say why there is none.

    Raises:
        InputError: the model has no word embedding (an image model, a plain module, a wrapper around the model).
    """
    try:
        embedding = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        embedding = None
    weight = getattr(embedding, "weight", None)
    if isinstance(embedding, nn.Linear) or not isinstance(weight, Tensor) or weight.dim() != 2:
        raise InputError(
            "embedding noise needs a model with a word embedding behind get_input_embeddings(); "
            f"{type(model).__name__} has none: "
            "give the text model itself, not a wrapper around it"
        )
    return embedding


@torch.no_grad()
def embedding_table(embedding: nn.Module) -> Tensor:
    """Return the (V, d) matrix of everything the embedding can put out, adapters and scale factors included."""
    weight: Tensor = embedding.weight  # type: ignore[assignment]
    if type(embedding) is nn.Embedding:
        return weight.detach()
    return embedding.forward(torch.arange(len(weight), device=weight.device))


def embedding_scale(model: nn.Module) -> float:
    """Give the unit of embedding noise: the RMS of the entries of the model's embedding matrix.

        scale = table.square().mean().sqrt()

    Args:
        model: a Hugging Face model with a word embedding.

    Returns:
        The RMS, accumulated in float64.

    Raises:
        InputError: the model has no word embedding.

    Source: measuring gamma in units of this RMS is ours [C].

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1))
        >>> _ = torch.nn.init.constant_(model.get_input_embeddings().weight, -0.5)
        >>> embedding_scale(model)
        0.5
    """
    table = embedding_table(word_embedding(model))
    norms = torch.linalg.vector_norm(table, dim=1, dtype=torch.promote_types(table.dtype, torch.float32))
    return float((norms.double().square().sum() / table.numel()).sqrt())


def pad_id(model: nn.Module, tokenizer: Any = None) -> int | None:
    """Return the id of the padding token, the tokenizer's before the model's; None if neither names one."""
    named = getattr(_text_tokenizer(tokenizer), "pad_token_id", None)
    return named if named is not None else getattr(_text_config(model), "pad_token_id", None)


def special_ids(model: nn.Module, tokenizer: Any = None) -> list[int]:
    """Return the ids of the special tokens: all that the tokenizer names, else those that the model's config names.

    Raises:
        InputError: no tokenizer, and the config names none but padding (BERT's never does), so that [CLS] would be
            taken for a word.
    """
    if tokenizer is not None:
        ids = getattr(_text_tokenizer(tokenizer), "all_special_ids", None)
        if ids is None:
            raise InputError(
                f"tokenizer={type(tokenizer).__name__} names no special tokens: give the model's tokenizer"
            )
        return sorted(set(ids))
    config = _text_config(model)
    named = {field: getattr(config, f"{field}_token_id", None) for field in _SPECIAL_FIELDS}
    if all(named[field] is None for field in _SPECIAL_FIELDS if field != "pad"):
        raise InputError(
            f"which tokens of {type(model).__name__} are special is not known (its config names none): "
            "give the tokenizer, or special_tokens=True to put noise on all of them"
        )
    ids = {i for value in named.values() if value is not None for i in (value if isinstance(value, list) else [value])}
    return sorted(i for i in ids if i >= 0)


def word_rows(embedding: nn.Module, special: list[int], tokenizer: Any = None) -> Tensor:
    """Return a (V,) mask of the rows that are words: not special, and known to the tokenizer if there is one."""
    weight: Tensor = embedding.weight  # type: ignore[assignment]
    words = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
    words[[i for i in special if i < len(words)]] = False
    if hasattr(_text_tokenizer(tokenizer), "__len__"):
        words[len(_text_tokenizer(tokenizer)) :] = False  # rows that only round the matrix up to a convenient size
    return words


def nearest_rows(points: Tensor, table: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Find the allowed row of the table that is nearest to each point, exactly.

        torch.where(allowed, torch.cdist(points, table), inf).min(dim=1)

    The search goes through the vocabulary in chunks, with |w|^2 - 2 <x, w> in float32, and keeps the two best rows of
    every chunk; their distances are then taken again in float64 from the differences themselves. A wrong answer would
    need three rows of one chunk whose squared distances agree to about 1e-6 of |w|^2. Which of two equally near rows
    is found is not promised: twins give the same embedding, and other ties have probability 0.

    Args:
        points: (n, d).
        table: (V, d), any float type.
        allowed: (V,) bool, rows that may be found; at least two.

    Returns:
        Row ids (n,) and squared distances (n,) in float64.

    Example:
        >>> table = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 5.0]])
        >>> nearest_rows(torch.tensor([[0.1, 0.0], [4.0, 9.0]]), table, torch.tensor([False, True, True]))[0]
        tensor([1, 2])
    """
    ids = torch.empty(len(points), dtype=torch.long, device=points.device)
    squared = torch.empty(len(points), dtype=torch.float64, device=points.device)
    for at, x in _chunks(points, _POINT_CHUNK):
        candidates = []
        for first, rows, norms in _row_chunks(table, allowed, x):
            with _exact_matmul(x):
                scores = torch.addmm(norms, x.to(rows.dtype), rows.T, alpha=-2)
            candidates.append(first + scores.topk(min(2, len(rows)), dim=1, largest=False).indices)
        best, best_squared = _nearest_candidate(x, table, allowed, torch.cat(candidates, dim=1))
        ids[at], squared[at] = best, best_squared
    return ids, squared


def exit_scales(own: Tensor, noise: Tensor, table: Tensor, allowed: Tensor) -> Tensor:
    """Give the scale t at which the nearest allowed row of `table[own] + t * noise` stops being `own`.

    A row's cell is convex and holds the row itself, so a ray from the row leaves its cell once and for all: at

        t = min over w with <n, w - e> > 0 of |w - e|^2 / (2 <n, w - e>)

    Args:
        own: (n,) row ids.
        noise: (n, d) float32, the direction of each ray.
        table: (V, d).
        allowed: (V,) bool, the rows that may take over.

    Returns:
        (n,) float32; infinite where no row ever takes over.

    Source: [D].

    Example:
        >>> table = torch.tensor([[0.0], [1.0], [-4.0]])
        >>> exit_scales(torch.tensor([0, 0]), torch.tensor([[1.0], [-1.0]]), table, torch.ones(3, dtype=torch.bool))
        tensor([0.5000, 2.0000])
    """
    exits = torch.empty(len(own), dtype=torch.float32, device=table.device)
    for at, n in _chunks(noise, _POINT_CHUNK):
        e = table[own[at]].float()
        rate = torch.zeros(len(n), dtype=torch.float32, device=table.device)  # 1 / t, largest over the rows so far
        for _, rows, norms in _row_chunks(table, allowed, e):
            e_, n_ = e.to(rows.dtype), n.to(rows.dtype)
            with _exact_matmul(e):
                along = n_ @ rows.T - (n_ * e_).sum(dim=1, keepdim=True)
                apart = torch.addmm(norms, e_, rows.T, alpha=-2) + e_.square().sum(dim=1, keepdim=True)
            # What rounding leaves of a distance of 0 is the row itself or its twin, which takes nothing over.
            same = apart <= 1e-6 * e_.square().sum(dim=1, keepdim=True)
            rates = torch.where(same, 0.0, 2 * along / apart)
            rate = torch.maximum(rate, rates.amax(dim=1).float())
        exits[at] = torch.where(rate > 0, 1 / rate, torch.inf)
    return exits


def _nearest_candidate(x: Tensor, table: Tensor, allowed: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
    columns = []
    for column in candidates.unbind(dim=1):
        squared = (x.double() - table[column].double()).square().sum(dim=1)
        columns.append(torch.where(allowed[column], squared, torch.inf))
    best = torch.stack(columns, dim=1).min(dim=1)
    return candidates.gather(1, best.indices[:, None])[:, 0], best.values


def _chunks(rows: Tensor, size: int) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, len(rows), size):
        at = slice(start, min(start + size, len(rows)))
        yield at, rows[at]


def _row_chunks(table: Tensor, allowed: Tensor, like: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield (first id, rows, squared norms); the norm of a row that is not allowed is infinite, so it is never near."""
    # On a GPU the Trainer switches TF32 on, which is too coarse for distances; float64 knows no such mode.
    dtype = torch.float64 if like.is_cuda else torch.float32
    for at, rows in _chunks(table, _ROW_CHUNK):
        rows = rows.to(dtype)
        yield at.start, rows, torch.where(allowed[at], rows.square().sum(dim=1), torch.inf)


@contextmanager
def _exact_matmul(like: Tensor) -> Iterator[None]:
    """Keep autocast from turning the distances into bfloat16."""
    with torch.autocast(like.device.type, enabled=False):
        yield


def _text_tokenizer(tokenizer: Any) -> Any:
    """A processor of text and images carries its tokenizer inside."""
    return getattr(tokenizer, "tokenizer", tokenizer)


def _text_config(model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config
