"""Greedy decoding in batches, with noise that depends on a prompt alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedTokenizerBase

from layerdescent.data.prompts import Instruction, PromptFormat, prompt_ids
from layerdescent.errors import InputError
from layerdescent.evaluation.batches import evaluating
from layerdescent.generation.prompts import short
from layerdescent.perturbation import NoiseOn, Perturbation


@dataclass(frozen=True)
class Answer:
    """What a model answers to one prompt.

    Attributes:
        index: the place of the prompt among those given.
        text: without special tokens, and without spaces around it.
        tokens: how many were made, the end of the answer included.
        finished: whether the model ended its answer itself.
    """

    index: int
    text: str
    tokens: int
    finished: bool


def generate_answers(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Instruction],
    *,
    perturbation: Perturbation | None = None,
    noise_on: NoiseOn = "prompt",
    max_new_tokens: int = 64,
    batch_size: int = 8,
    prompt_format: PromptFormat = "auto",
    use_cache: bool = True,
) -> Iterator[list[Answer]]:
    """Answer prompts greedily, batch by batch, the longest prompts first.

    A token's noise is fixed by the seed, the token ids of its prompt and its position, so it is the same in any batch,
    order and padding, with the cache or without. So are the answers, but for the last digits of the logits, which a
    batch may change: in 16 bits that can tip the choice between two words that are almost equally likely.

    Args:
        model: a causal language model, or one that PEFT wraps.
        tokenizer: its own.
        rows: the prompts; what they have as a response is not used.
        perturbation: noise on the word embeddings; none by default.
        noise_on: "prompt", or "all" for the answer's tokens too as they are read again.
        max_new_tokens: most tokens of an answer.
        batch_size: prompts at a time, padded on the left.
        prompt_format: as for `prompt_text`.
        use_cache: keep keys and values; without, everything is computed again for every token.

    Yields:
        The answers of one batch. All prompts are checked before the first.

    Raises:
        InputError: as for `prompt_ids` and `Perturbation.on`; or a prompt that leaves no room for the answer, token
            ids that the model has no embeddings for, numbers below 1.

    Example:
        >>> from layerdescent.data import resolve_model
        >>> from layerdescent.evaluation.batches import load_model, stored_tokenizer
        >>> folder = resolve_model("builtin:tiny-llama")
        >>> model, tokenizer = load_model(folder), stored_tokenizer(folder)
        >>> rows = [Instruction(instruction="Why?", output="")]
        >>> noise = Perturbation("gaussian", gamma=0.5)
        >>> [[answer]] = generate_answers(model, tokenizer, rows, perturbation=noise, max_new_tokens=2)
        >>> answer.index, answer.tokens
        (0, 2)
    """
    if max_new_tokens < 1 or batch_size < 1:
        raise InputError(f"max_new_tokens is {max_new_tokens} and batch_size {batch_size}: both must be at least 1")
    prompts = prompt_ids(rows, tokenizer, prompt_format)
    _check(prompts, rows, model, tokenizer, max_new_tokens)
    order = sorted(range(len(prompts)), key=lambda row: (-len(prompts[row]), row))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    # Not a generator itself, so that what is wrong is said at the call.
    return _batches(model, tokenizer, prompts, batches, perturbation, noise_on, max_new_tokens, use_cache)


def _batches(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[int]],
    batches: Sequence[Sequence[int]],
    perturbation: Perturbation | None,
    noise_on: NoiseOn,
    max_new_tokens: int,
    use_cache: bool,
) -> Iterator[list[Answer]]:
    inner: Any = model.get_base_model() if hasattr(model, "get_base_model") else model  # type: ignore[operator]
    ends = _ends(inner, tokenizer)
    known = (tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    filler = next(token for token in known if token is not None)
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        use_cache=use_cache,
        eos_token_id=ends or None,
        pad_token_id=filler,
    )
    device = inner.get_input_embeddings().weight.device
    for batch in batches:
        ids, mask = _padded_left([prompts[row] for row in batch], filler)
        width = ids.shape[1]
        noise = (
            nullcontext()
            if perturbation is None
            else perturbation.on(model, tokenizer, prompt_width=width, noise_on=noise_on)
        )
        with evaluating(model), _settings(inner, settings), noise, torch.inference_mode():
            made = inner.generate(input_ids=ids.to(device), attention_mask=mask.to(device))[:, width:].tolist()
        yield [_answer(row, tokens, ends, tokenizer) for row, tokens in zip(batch, made, strict=True)]


def _answer(row: int, tokens: list[int], ends: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> Answer:
    length = next((place for place, token in enumerate(tokens) if token in ends), None)
    text = str(tokenizer.decode(tokens[:length], skip_special_tokens=True)).strip()
    made = len(tokens) if length is None else length + 1
    return Answer(row, text, made, length is not None)


def _check(
    prompts: Sequence[Sequence[int]],
    rows: Sequence[Instruction],
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    max_new_tokens: int,
) -> None:
    config: Any = model.config
    positions = getattr(config.get_text_config(), "max_position_embeddings", None)
    most = min(tokenizer.model_max_length, positions or tokenizer.model_max_length)
    long = [row for row, ids in enumerate(prompts) if len(ids) + max_new_tokens > most]
    if long:
        raise InputError(
            f"{len(long)} of {len(prompts)} prompts leave no room for {max_new_tokens} new tokens in this model's "
            f"context of {most}, such as number {long[0] + 1} of {len(prompts[long[0]])} tokens "
            f"({short(rows[long[0]].instruction)}): leave them out, or ask for fewer new tokens"
        )
    vocabulary = model.get_input_embeddings().weight.shape[0]  # type: ignore[operator]
    highest = max(max(ids, default=0) for ids in prompts) if prompts else 0
    if highest >= vocabulary:
        raise InputError(
            f"the tokenizer made the token id {highest}, and the model has embeddings for {vocabulary}: "
            "take the tokenizer that belongs to the model"
        )
    if any(not ids for ids in prompts):
        raise InputError("a prompt has no tokens at all: give every prompt some text")


def _ends(model: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The tokens that end an answer: the model's, and the tokenizer's, which in a chat is the end of the turn."""
    own = getattr(model.generation_config, "eos_token_id", None)
    own = own if isinstance(own, list) else [own]
    return sorted({token for token in [*own, tokenizer.eos_token_id] if token is not None})


def _padded_left(prompts: Sequence[Sequence[int]], filler: int) -> tuple[Tensor, Tensor]:
    width = max(map(len, prompts))
    ids = torch.tensor([[filler] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    return ids, mask


@contextmanager
def _settings(model: Any, settings: GenerationConfig) -> Iterator[None]:
    # Passed as an argument they would be filled up with what is stored beside the model: temperatures, penalties.
    before = model.generation_config
    model.generation_config = settings
    try:
        yield
    finally:
        model.generation_config = before
