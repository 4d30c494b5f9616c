"""Instructions as a language model reads them: two prompt formats, token ids with the loss on the response, batches.

Prompt and response are tokenised apart: the ids of a prompt are the ones that generation starts from.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from datasets import Dataset, Features, List, Value
from jinja2 import TemplateError
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from layerdescent.data.tokens import check_length
from layerdescent.errors import InputError

PromptFormat = Literal["auto", "alpaca", "chat"]

IGNORED = -100
"""The label of a token that no loss counts, as PyTorch's cross entropy has it."""

_BATCH = 1000  # rows tokenised at once

_ALPACA = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:"
)
_ALPACA_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)


class Turn(NamedTuple):
    """What one side of a conversation says."""

    role: str
    content: str


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """A prompt and the response to it.

    Attributes:
        instruction: what is asked, in a conversation by the last turn of the user.
        input: what it is asked about, where that is given apart.
        output: the response.
        earlier: a system prompt and the turns before, in a conversation.
    """

    instruction: str
    input: str = ""
    output: str
    earlier: tuple[Turn, ...] = ()

    @property
    def turns(self) -> tuple[Turn, ...]:
        r"""All that comes before the response; an input follows its instruction after an empty line.

        Example:
            >>> Instruction(instruction="Add them.", input="1, 2", output="3").turns
            (Turn(role='user', content='Add them.\n\n1, 2'),)
        """
        asked = f"{self.instruction}\n\n{self.input}" if self.input.strip() else self.instruction
        return (*self.earlier, Turn("user", asked))


def chosen_format(prompt_format: PromptFormat, tokenizer: PreTrainedTokenizerBase) -> Literal["alpaca", "chat"]:
    """What "auto" stands for: "chat" where the tokenizer has a chat template, else "alpaca".

    Raises:
        InputError: "chat" is asked for and there is no template.
    """
    if prompt_format == "auto":
        return "chat" if tokenizer.chat_template else "alpaca"
    if prompt_format == "chat" and not tokenizer.chat_template:
        raise InputError(
            "prompts are to follow the chat template, and this tokenizer has none: take the model's instruction-tuned "
            "version, or the format alpaca"
        )
    return prompt_format


def prompt_text(row: Instruction, tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat = "auto") -> str:
    """The text that a model reads before it responds.

    Args:
        row: the instruction.
        tokenizer: the model's.
        prompt_format: "chat" is the tokenizer's chat template, "alpaca" the prompt of the Alpaca data; see
            `chosen_format`.

    Returns:
        The prompt. That of a chat has all its special tokens; that of Alpaca lacks the token that texts begin with.

    Raises:
        InputError: no template, one that does not take the row, or a conversation that no Alpaca prompt can hold.
    """
    if chosen_format(prompt_format, tokenizer) == "alpaca":
        return _alpaca_prompt(row)
    return _rendered(row.turns, tokenizer, add_generation_prompt=True)


def prompt_ids(
    rows: Sequence[Instruction], tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat = "auto"
) -> list[list[int]]:
    """The token ids that generation starts from; arguments and errors as for `prompt_text`."""
    opening = _opening(tokenizer) if chosen_format(prompt_format, tokenizer) == "alpaca" else []
    texts = [prompt_text(row, tokenizer, prompt_format) for row in rows]
    return [opening + ids for ids in _ids(texts, tokenizer)]


@dataclass(frozen=True, kw_only=True)
class EncodedInstructions:
    """Rows as token ids.

    Attributes:
        rows: columns `input_ids` and `labels`: a label is the token itself in the response and the end of the turn,
            `IGNORED` in the prompt. (The loss of a causal language model shifts them by one place itself.)
        truncated: of these, rows cut to the length asked for; they lack the end of the turn.
        unanswered: rows left out because their prompt alone is as long.
    """

    rows: Dataset
    truncated: int
    unanswered: int


def encode_instructions(
    rows: Sequence[Instruction],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    prompt_format: PromptFormat = "auto",
    *,
    title: str = "tokenise",
    progress: bool = False,
) -> EncodedInstructions:
    """Rows as token ids, one a row: nothing is packed.

    Args:
        rows: prompts and responses.
        tokenizer: the model's.
        max_length: tokens a row; what is beyond is cut off.
        prompt_format: as for `prompt_text`.
        title: of the bar.
        progress: show it.

    Returns:
        The rows that have a token of their response left, in order, and how many were cut or left out. The response
        ends in the template's end of the turn, or in the tokenizer's end of text where there is no such end.

    Raises:
        InputError: as for `prompt_text`; or a `max_length` that the model does not take, a template that changes
            responses, or a tokenizer without an end of text where it is needed.
    """
    check_length(max_length, tokenizer)
    content: dict[str, list[list[int]]] = {"input_ids": [], "labels": []}
    truncated = unanswered = 0
    with tqdm(total=len(rows), desc=title, unit="row", disable=not progress, leave=False) as bar:
        for start in range(0, len(rows), _BATCH):
            some = rows[start : start + _BATCH]
            for prompt, response in _prompts_and_responses(some, tokenizer, prompt_format):
                if len(prompt) >= max_length:
                    unanswered += 1
                    continue
                truncated += len(prompt) + len(response) > max_length
                content["input_ids"].append((prompt + response)[:max_length])
                content["labels"].append(([IGNORED] * len(prompt) + response)[:max_length])
            bar.update(len(some))
    features = Features({name: List(Value("int64")) for name in content})
    return EncodedInstructions(
        rows=Dataset.from_dict(content, features=features), truncated=truncated, unanswered=unanswered
    )


@dataclass(frozen=True)
class InstructionCollator:
    """Makes a batch of encoded rows: `input_ids`, `attention_mask` and `labels`, each (rows, longest row).

    Rows are padded on the tokenizer's `padding_side`. Padding is known by the mask alone, so its id may be one that
    means something elsewhere: the padding token's, or without one the end of text's, or 0.

    Attributes:
        tokenizer: the model's.
    """

    tokenizer: PreTrainedTokenizerBase

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """The batch of these rows, each with `input_ids` and `labels`."""
        known = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id, 0)
        filler = next(token for token in known if token is not None)
        longest = max(len(row["input_ids"]) for row in rows)
        return {
            "input_ids": self._stacked([row["input_ids"] for row in rows], filler, longest),
            "attention_mask": self._stacked([[1] * len(row["input_ids"]) for row in rows], 0, longest),
            "labels": self._stacked([row["labels"] for row in rows], IGNORED, longest),
        }

    def _stacked(self, rows: Sequence[Sequence[int]], filler: int, longest: int) -> Tensor:
        left = self.tokenizer.padding_side == "left"
        padding = [[filler] * (longest - len(row)) for row in rows]
        pairs = zip(padding, rows, strict=True) if left else zip(rows, padding, strict=True)
        return torch.tensor([[*first, *second] for first, second in pairs])


# Texts ----------------------------------------------------------------------------------------------------------------


def _alpaca_prompt(row: Instruction) -> str:
    if row.earlier:
        raise InputError(
            f"a conversation of several turns, or with a system prompt, fits no Alpaca prompt ({_short(row)}); "
            "take the format chat"
        )
    template = _ALPACA_WITH_INPUT if row.input.strip() else _ALPACA
    return template.format(instruction=row.instruction, input=row.input)


def _rendered(turns: Sequence[Turn], tokenizer: PreTrainedTokenizerBase, *, add_generation_prompt: bool) -> str:
    messages = [turn._asdict() for turn in turns]
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt))
    except TemplateError as error:
        roles = ", ".join(turn.role for turn in turns)
        raise InputError(f"the chat template does not take turns of {roles}: {error}") from None


class _Frame(NamedTuple):
    """What a chat template puts around a response."""

    before: str
    end: str  # of the turn
    after: str  # all that follows the response, `end` first

    @classmethod
    def of(cls, row: Instruction, prompt: str, tokenizer: PreTrainedTokenizerBase) -> "_Frame":
        whole = _rendered((*row.turns, Turn("assistant", _ANY)), tokenizer, add_generation_prompt=False)
        before, _, after = whole.removeprefix(prompt).partition(_ANY)
        ends = [after.index(token) + len(token) for token in _special_tokens(tokenizer) if token in after]
        return cls(before, after[: min(ends, default=0)], after)

    def around(self, row: Instruction, prompt: str, tokenizer: PreTrainedTokenizerBase) -> str:
        """The response up to the end of the turn, as the template has it."""
        whole = _rendered((*row.turns, Turn("assistant", row.output)), tokenizer, add_generation_prompt=False)
        response = whole.removeprefix(prompt).removeprefix(self.before).removesuffix(self.after)
        if whole != prompt + self.before + response + self.after or response.strip() != row.output.strip():
            raise InputError(
                f"the chat template does not put the response behind the prompt as it is ({_short(row)}); "
                "take the format alpaca"
            )
        return self.before + response + self.end


_ANY = "\N{WHITE SQUARE}response\N{WHITE SQUARE}"  # stands for one


def _chat_responses(
    rows: Sequence[Instruction], prompts: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> Iterator[tuple[str, bool]]:
    """The responses with the end of their turn, and whether the template has one."""
    frames: dict[tuple[str, ...], _Frame] = {}  # by the roles, on which templates depend; each row is checked
    for row, prompt in zip(rows, prompts, strict=True):
        roles = tuple(turn.role for turn in row.turns)
        if roles not in frames:
            frames[roles] = _Frame.of(row, prompt, tokenizer)
        yield frames[roles].around(row, prompt, tokenizer), bool(frames[roles].end)


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    return {token for token in {*added, *tokenizer.all_special_tokens} if token}


def _short(row: Instruction) -> str:
    return f"{row.instruction[:40]!r}…" if len(row.instruction) > 40 else repr(row.instruction)


# Ids ------------------------------------------------------------------------------------------------------------------


def _prompts_and_responses(
    rows: Sequence[Instruction], tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat
) -> Iterator[tuple[list[int], list[int]]]:
    prompts = [prompt_text(row, tokenizer, prompt_format) for row in rows]
    if chosen_format(prompt_format, tokenizer) == "alpaca":
        opening, responses = _opening(tokenizer), [(row.output, False) for row in rows]
    else:
        opening, responses = [], list(_chat_responses(rows, prompts, tokenizer))
    end = tokenizer.eos_token_id
    if end is None and not all(ended for _, ended in responses):
        raise InputError("this tokenizer has no end of text (eos_token), so a model could not learn where to stop")
    ids = zip(_ids(prompts, tokenizer), _ids([text for text, _ in responses], tokenizer), responses, strict=True)
    for prompt, response, (_, ended) in ids:
        yield opening + prompt, response if ended else [*response, end]


def _ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    found: list[list[int]] = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    return found


def _opening(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The token that every text begins with, where the tokenizer adds one."""
    first: list[int] = tokenizer("")["input_ids"][:1]
    return first if first == [tokenizer.bos_token_id] else []
