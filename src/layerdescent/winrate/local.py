"""A causal language model on this machine as the judge, read by the probabilities of two letters."""

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoModelForCausalLM

from layerdescent.data.packages import resolve_model
from layerdescent.errors import InputError, RunError
from layerdescent.evaluation.batches import load_config, stored_tokenizer
from layerdescent.evaluation.shelf import content_hash
from layerdescent.winrate.judge import TEMPLATE, Question

_TEMPLATE = TEMPLATE + "Reply with one letter and nothing else: A or B."
_PLAIN_END = "\n\nBetter answer:"  # for models without a chat template
_LETTERS = ("A", "B")


class LocalJudge:
    """Asks a causal language model which answer is better, and reads how likely it is to begin with A and with B.

        preference for the first = P(A) / (P(A) + P(B))

    Questions that the model's context does not hold have no verdict.

    Args:
        source: A folder, `package:NAME` or a hub name.
        batch_size: Questions in one forward pass.

    Raises:
        InputError: There is no such causal language model, or its tokenizer does not tell the letters apart.
        RunError: The checkpoint is damaged.

    Source: reading letters rather than text makes every answer a verdict, and its strength a number [C].
    """

    proxy = None

    def __init__(self, source: str, batch_size: int = 4) -> None:
        self.name = f"hf:{source}"
        where = resolve_model(source)
        config = load_config(where)
        if type(config) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", False):
            raise InputError(
                f"{source} is an encoder ({config.model_type}), and a judge must be a causal language model"
            )
        self.tokenizer = stored_tokenizer(where)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(where, dtype="auto")
        except ValueError as error:
            raise InputError(f"{source} cannot be a judge ({str(error).splitlines()[0][:200]})") from None
        except (OSError, SafetensorError, RuntimeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise RunError(f"the model at {source} cannot be loaded ({reason}): save or download it again") from None
        self.model = model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
        self.batch_size = batch_size
        self._keeps_some = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        self.basis = "\n".join([_TEMPLATE, str(self.tokenizer.chat_template or _PLAIN_END), content_hash(where)])
        self._letters = self._letter_ids(source)

    def judge(self, questions: Sequence[Question]) -> Iterator[tuple[Question, float | None]]:
        """Yield every question with its verdict, the longest first."""
        prompts = [(question, self._tokens(question)) for question in questions]
        prompts.sort(key=lambda prompt: -len(prompt[1]))
        most = self.tokenizer.model_max_length
        fitting = [prompt for prompt in prompts if len(prompt[1]) <= most]
        yield from ((question, None) for question, _ in prompts[: len(prompts) - len(fitting)])
        for start in range(0, len(fitting), self.batch_size):
            batch = fitting[start : start + self.batch_size]
            preferences = self._preferences([tokens for _, tokens in batch])
            yield from ((question, each) for (question, _), each in zip(batch, preferences, strict=True))

    def _tokens(self, question: Question) -> list[int]:
        """The tokens before the letter."""
        return self._before_and_letter(question, _LETTERS[0])[0]

    def _before_and_letter(self, question: Question, letter: str) -> tuple[list[int], int]:
        """The prompt with the letter behind it, tokenised as one text: only so the letter is the token it should be."""
        prompt = _TEMPLATE.format(**question._asdict())
        if self.tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}]
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
            tokens = self.tokenizer(text + letter, add_special_tokens=False)["input_ids"]
        else:
            tokens = self.tokenizer(f"{prompt}{_PLAIN_END} {letter}", return_tensors=None)["input_ids"]
            if tokens[-1] == self.tokenizer.eos_token_id:  # which some add
                tokens = tokens[:-1]
        return list(tokens[:-1]), int(tokens[-1])

    def _letter_ids(self, source: str) -> list[int]:
        question = Question("?", "x", "y")
        (before_a, a), (before_b, b) = (self._before_and_letter(question, letter) for letter in _LETTERS)
        if before_a != before_b or a == b:
            raise InputError(f"the tokenizer of {source} has no token each for A and B: take another judge")
        return [a, b]

    @torch.inference_mode()
    def _preferences(self, prompts: Sequence[Sequence[int]]) -> list[float]:
        device = self.model.device
        lengths = torch.tensor([len(tokens) for tokens in prompts], device=device)
        # Padding on the right needs no position ids: causal attention keeps it from what stands before.
        ids = pad_sequence([torch.tensor(tokens) for tokens in prompts], batch_first=True).to(device)
        mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
        last, place = torch.unique(lengths - 1, return_inverse=True)
        logits: Tensor
        if self._keeps_some:  # of a long prompt, all logits are gigabytes
            logits = self.model(input_ids=ids, attention_mask=mask, logits_to_keep=last, use_cache=False).logits
        else:
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, last]
        of_letters = logits[torch.arange(len(prompts), device=device), place][:, self._letters].float()
        preferences: list[float] = of_letters.softmax(-1)[:, 0].tolist()
        return preferences
