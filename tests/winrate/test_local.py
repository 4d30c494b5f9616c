"""A local model as the judge: the two letters' probabilities, against a plain call for each question."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from layerdescent.errors import InputError
from layerdescent.winrate import Question, choose_judge, head_to_head
from layerdescent.winrate.local import _PLAIN_END, _TEMPLATE, LocalJudge
from tests.winrate.test_contest import answers

WORDS = ["[UNK]", "[END]", "A", "B", "Better", "answer", ":", "one", "two", "three", "four", "five", "why", "who"]
SIZES: dict[str, Any] = {"vocab_size": len(WORDS), "max_position_embeddings": 400}
CHAT = (
    "{% for m in messages %}[END] {{ m['content'] }} [END]{% endfor %}{% if add_generation_prompt %} answer {% endif %}"
)
QUESTIONS = [
    Question("why", "one two", "three"),
    Question("why", "three", "one two"),
    Question("who who who", "five {four} " * 10, "one"),
    Question("who", "five", "two " * 30),
    Question("why who", "", "five"),
]


def save(folder: Path, kind: str = "llama", words: list[str] = WORDS, chat_template: str | None = None) -> Path:
    tokens = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="[UNK]", eos_token="[END]")
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    # Larger weights than usual: the random model shall have preferences.
    model: Any
    size: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    if kind == "llama":
        model = LlamaForCausalLM(LlamaConfig(**SIZES, **size, initializer_range=0.5))
    elif kind == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**SIZES, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5))
    else:
        model = BertModel(BertConfig(**SIZES, **size))
    model.save_pretrained(folder)
    return folder


def plain_preference(judge: LocalJudge, question: Question) -> float:
    """The definition, one question at a time: logits after the prompt, softmax over the two letters."""
    prompt = _TEMPLATE.format(instruction=question.instruction, first=question.first, second=question.second)
    text = f"[END] {prompt} [END] answer " if judge.tokenizer.chat_template else prompt + _PLAIN_END
    ids = torch.tensor([judge.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        logits = judge.model(input_ids=ids).logits[0, -1]
    return float(torch.softmax(logits[[WORDS.index("A"), WORDS.index("B")]], -1)[0])


@pytest.mark.parametrize(("kind", "chat"), [("llama", None), ("llama", CHAT), ("gpt2", None)])
def test_the_preference_is_the_share_of_the_first_letter(tmp_path: Path, kind: str, chat: str | None) -> None:
    judge = LocalJudge(str(save(tmp_path, kind, chat_template=chat)), batch_size=3)
    found = dict(judge.judge(QUESTIONS))
    expected = {question: plain_preference(judge, question) for question in QUESTIONS}
    assert found == pytest.approx(expected, abs=1e-6)
    assert max(expected.values()) - min(expected.values()) > 1e-4
    judge._keeps_some = False  # as of a model whose forward cannot leave out logits
    assert dict(judge.judge(QUESTIONS)) == pytest.approx(expected, abs=1e-6)


def test_what_does_not_fit_has_no_verdict(tmp_path: Path) -> None:
    judge = LocalJudge(str(save(tmp_path)))
    long = Question("why", "one " * 500, "two")
    found = dict(judge.judge([QUESTIONS[0], long]))
    assert found[long] is None
    assert found[QUESTIONS[0]] is not None


def test_verdicts_depend_on_template_and_weights(tmp_path: Path) -> None:
    first = LocalJudge(str(save(tmp_path / "a")))
    assert first.basis == LocalJudge(str(save(tmp_path / "b"))).basis
    assert first.basis != LocalJudge(str(save(tmp_path / "c", chat_template=CHAT))).basis
    changed = save(tmp_path / "d")
    with torch.no_grad():
        first.model.lm_head.weight.mul_(2)
    first.model.save_pretrained(changed)
    assert first.basis != LocalJudge(str(changed)).basis


def test_a_contest_before_a_local_judge(tmp_path: Path) -> None:
    judge = choose_judge(f"hf:{save(tmp_path / 'model')}", dict, batch_size=2)
    a, b = answers("a", why="one two", who="three"), answers("b", why="four", who="five five")
    results = head_to_head(a, b, judge, tmp_path / "out", progress=False)
    assert results["judge"] == f"hf:{tmp_path / 'model'}"
    assert 0 < results["win_rate"]["value"] < 1
    mirrored = head_to_head(b, a, judge, tmp_path / "out", progress=False)
    assert mirrored["win_rate"]["value"] == pytest.approx(1 - results["win_rate"]["value"])
    assert mirrored["first_preferred"] == pytest.approx(results["first_preferred"])


def test_what_is_no_causal_language_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no folder here and no hub name"):
        LocalJudge(str(tmp_path / "nothing here"))
    letterless = [word for word in WORDS if word not in "AB"]
    folder = save(tmp_path / "letterless", words=letterless)
    with pytest.raises(InputError, match="no token each for A and B"):
        LocalJudge(str(folder))


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    folder = save(tmp_path, kind="bert")
    with pytest.raises(InputError, match=r"is an encoder \(bert\)"):
        LocalJudge(str(folder))
