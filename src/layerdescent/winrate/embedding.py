"""A stand-in for a judge that needs no network and no key: which answer is nearer to a reference answer."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers import AutoModel

from layerdescent.data.packages import MINILM
from layerdescent.evaluation.batches import collate, length_sorted, stored_tokenizer
from layerdescent.models.pooled import mean_over_positions
from layerdescent.winrate.judge import Question

MAX_TOKENS = 256  # what this model was trained on; its configuration allows more


class EmbeddingProxy:
    """Prefers the answer whose embedding is nearer to that of a reference answer.

        1 where cos(e(first), e(reference)) > cos(e(second), e(reference)), 0 where it is smaller, 0.5 where equal

    e is the mean of the last hidden states of all-MiniLM-L6-v2 over the first 256 tokens.

    Args:
        references: The reference answer to every instruction.
        batch_size: Texts in one forward pass.

    Raises:
        InputError: The package with the model is not installed.

    Source: a proxy of our own [C]. Being near to one good answer is not being good, and no judge was asked.
    """

    name = "proxy:embedding"
    proxy = (
        "a proxy, no win rate of a judge: the share of answers that lie nearer to a reference answer (MiniLM, cosine)"
    )

    def __init__(self, references: Mapping[str, str], batch_size: int = 32) -> None:
        folder = MINILM.locate()
        self.references = references
        self.batch_size = batch_size
        listed = json.dumps(sorted(references.items())).encode()
        self.basis = (
            f"{MINILM.distribution} {MINILM.version}, {MAX_TOKENS} tokens, {hashlib.sha256(listed).hexdigest()}"
        )
        self.tokenizer = stored_tokenizer(folder)
        self.model = AutoModel.from_pretrained(folder).to("cuda" if torch.cuda.is_available() else "cpu").eval()

    def judge(self, questions: Sequence[Question]) -> Iterator[tuple[Question, float | None]]:
        """Yield every question with its verdict; every text is embedded once."""
        texts = {text for question in questions for text in (question.first, question.second)}
        texts |= {self.references[question.instruction] for question in questions}
        embedded = self.embed(sorted(texts))
        for question in questions:
            reference = embedded[self.references[question.instruction]]
            first, second = (float(embedded[text] @ reference) for text in (question.first, question.second))
            yield question, 0.5 if first == second else float(first > second)

    @torch.inference_mode()
    def embed(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """The embedding of every text, (d,) of length 1."""
        rows = [dict(self.tokenizer(text, truncation=True, max_length=MAX_TOKENS)) for text in texts]
        embedded: dict[str, Tensor] = {}
        for batch in length_sorted(rows, self.batch_size):
            inputs = collate([rows[index] for index in batch], self.tokenizer)
            inputs = {name: value.to(self.model.device) for name, value in inputs.items()}
            hidden = self.model(**inputs).last_hidden_state
            pooled = torch.nn.functional.normalize(mean_over_positions(hidden, inputs["attention_mask"]), dim=-1)
            embedded |= {texts[index]: row for index, row in zip(batch, pooled.cpu(), strict=True)}
        return embedded
