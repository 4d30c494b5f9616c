"""A tokenizer that pads, and rows for it."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from transformers import PreTrainedTokenizerFast

from tests.evaluation.tiny import SPECIAL, WORDS, Rows, make_rows


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *(f"w{i}" for i in range(WORDS))])}
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordPiece(vocabulary, unk_token="[UNK]")), **names)


@pytest.fixture(scope="session")
def rows() -> Rows:
    return make_rows(30)
