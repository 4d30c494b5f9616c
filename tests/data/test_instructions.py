import json
from pathlib import Path
from typing import Any

import datasets
import pytest
from transformers import AutoTokenizer

from layerdescent.data import InstructionColumns, load_instructions, prepare_instructions
from layerdescent.data.prompts import IGNORED, Instruction, Turn
from layerdescent.data.readers import read_jsonl
from layerdescent.errors import InputError
from layerdescent.tasks import Prepared
from tests.data.examples import write_jsonl, write_text
from tests.data.letters import TEMPLATE, letters


def alpaca(count: int, start: int = 0) -> list[dict[str, str]]:
    """Different prompts, every other one with an input."""
    return [
        {"instruction": f"Say {number}.", "input": "Loudly." if number % 2 else "", "output": f"{number}!"}
        for number in range(start, start + count)
    ]


def turns(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


# One part as its source has it ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_alpaca_from_any_file(tmp_path: Path, name: str) -> None:
    rows = alpaca(2)
    if name.endswith("parquet"):
        datasets.Dataset.from_list(rows).to_parquet(tmp_path / name)
    elif ".jsonl" in name:
        write_jsonl(tmp_path / name, rows)
    else:
        write_text(tmp_path / name, json.dumps(rows, indent=4))
    assert load_instructions(str(tmp_path / name)) == [
        Instruction(instruction="Say 0.", output="0!"),
        Instruction(instruction="Say 1.", input="Loudly.", output="1!"),
    ]


def test_an_input_follows_after_an_empty_line_and_need_not_be_there(tmp_path: Path) -> None:
    """As in AlpacaEval, whose prompts are Alpaca's instruction and input as one text."""
    rows = [{"instruction": "Say.", "output": "a", "generator": "me", "dataset": "koala"}]
    (row,) = load_instructions(write_text(tmp_path / "a.json", json.dumps(rows)))
    assert row == Instruction(instruction="Say.", output="a")
    source = write_jsonl(tmp_path / "b.jsonl", [*alpaca(2), {"instruction": "Say 2.", "output": "2!"}])
    asked = [row.turns[-1].content for row in load_instructions(source)]
    assert asked == ["Say 0.", "Say 1.\n\nLoudly.", "Say 2."]


def test_conversations(tmp_path: Path) -> None:
    rows = [turns(("user", "a"), ("assistant", "b"))]
    rows += [turns(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))]
    expected = [
        Instruction(instruction="a", output="b"),
        Instruction(
            instruction="c", output="d", earlier=(Turn("system", "s"), Turn("user", "a"), Turn("assistant", "b"))
        ),
    ]
    assert load_instructions(write_jsonl(tmp_path / "a.jsonl", rows)) == expected
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    assert load_instructions(str(tmp_path / "a.parquet")) == expected


def test_named_columns(tmp_path: Path) -> None:
    row = {**alpaca(1)[0], "question": "q", "about": "x", "answer": "r", **turns(("user", "a"), ("assistant", "b"))}
    source = write_jsonl(tmp_path / "a.jsonl", [{**row, "chat": row["messages"]}])
    assert load_instructions(source)[0].output == "0!"
    named = InstructionColumns(instruction="question", input="about", output="answer")
    assert load_instructions(source, columns=named) == [Instruction(instruction="q", input="x", output="r")]
    assert load_instructions(source, columns=InstructionColumns(messages="chat"))[0].output == "b"


def test_hub_names(monkeypatch: pytest.MonkeyPatch) -> None:
    content = datasets.DatasetDict({"train": datasets.Dataset.from_list(alpaca(2))})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config: content)
    assert load_instructions("hub:tatsu-lab/alpaca")[1].input == "Loudly."
    content["train"] = datasets.Dataset.from_list([{"instruction": "a", "output": None}])
    with pytest.raises(InputError, match=r"row 1 of part train of hub:tatsu-lab/alpaca has no output"):
        load_instructions("hub:tatsu-lab/alpaca")


GOOD = {"instruction": "a", "output": "b"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([GOOD, {"instruction": "a"}], r"row 2 of .*a\.jsonl has no output; give it one, or take the row out"),
        ([GOOD, {"output": "a"}], r"row 2 of .*a\.jsonl has no instruction"),
        ([{**GOOD, "output": 7}], r"row 1 of .*a\.jsonl has 7 as its output, which is no text"),
        ([{**GOOD, "input": ["x"]}], r"row 1 of .*a\.jsonl has \['x'\] as its input, which is no text"),
        ([{"prompt": "a", "output": "b"}], r"has no column 'instruction'; it has prompt, output: name the columns"),
        ([{"messages": "a"}], r"row 1 of .*a\.jsonl has 'a' as its messages, where a list"),
        ([{"messages": None}], r"row 1 of .*a\.jsonl has None as its messages"),
        ([{"messages": []}], r"messages of none; the last two must be"),
        ([turns(("user", "a"))], r"row 1 of .* has messages of user; the last two must be the user's and the"),
        ([turns(("assistant", "a"), ("user", "b"))], r"has messages of assistant, user; the last two"),
        (
            [turns(("human", "a"), ("assistant", "b"))],
            r"has the message {'role': 'human'.*expected are a role \(system",
        ),
        ([{"messages": [{"role": "user", "content": ["a"]}]}], r"has the message .* and a text as content"),
        ([{"messages": ["a"]}], r"has the message 'a'; expected"),
        ([{**GOOD, "output": " "}], r"a\.jsonl has no row with text"),
        ([], r"has no column 'instruction'; it has no columns"),
    ],
)
def test_bad_rows_are_named_by_file_and_row(tmp_path: Path, rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_instructions(write_jsonl(tmp_path / "a.jsonl", rows))
    assert "\n" not in str(caught.value)


def test_a_part_must_be_chosen(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_jsonl(tmp_path / f"{part}.jsonl", alpaca(2))
    assert len(load_instructions(str(tmp_path), "test")) == 2
    for split, message in ((None, "no part is chosen of"), ("dev", "there is no part 'dev' of")):
        with pytest.raises(InputError, match=f"{message} .*; it has test, train"):
            load_instructions(str(tmp_path), split)


# Three parts ---------------------------------------------------------------------------------------------------------


def test_missing_parts_are_cut_and_the_rest_is_counted(tmp_path: Path) -> None:
    rows = [*alpaca(100), {"instruction": "Say nothing.", "output": ""}]
    data: Prepared = prepare_instructions(write_text(tmp_path / "a.json", json.dumps(rows)), letters(TEMPLATE))
    assert (len(data.train), len(data.validation), len(data.test)) == (70, 10, 20)
    assert data.train.column_names == ["input_ids", "labels"]
    report = data.report
    assert report.origin == {"train": "all", "validation": "cut from all", "test": "cut from all"}
    assert (report.rows, report.empty) == ({"train": 70, "validation": 10, "test": 20}, {"train": 1})
    assert sum(report.response_tokens.values()) == 10 * len("1!_") + 90 * len("10!_")
    assert json.loads(json.dumps(report.to_dict()))["prompt_format"] == "chat"
    assert report.summary().endswith(
        "a.json: 70 train, 10 validation, 20 test rows, chat prompts; 1 rows without text left out; "
        "0 of the training rows cut to 512 tokens"
    )


def test_the_same_settings_give_the_same_rows_in_any_order(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rows": {"train": 20}, "holdout": {"test": 0.3}, "seed": 3}
    once = prepare_instructions(write_jsonl(tmp_path / "a.jsonl", alpaca(100)), letters(), **options)
    turned = prepare_instructions(write_jsonl(tmp_path / "b.jsonl", alpaca(100)[::-1]), letters(), **options)
    assert once.report.rows == {"train": 20, "validation": 10, "test": 30}
    for part in ("train", "validation", "test"):
        assert sorted(map(str, getattr(once, part))) == sorted(map(str, getattr(turned, part)))
    other = prepare_instructions(str(tmp_path / "a.jsonl"), letters(), **{**options, "seed": 4})
    assert sorted(map(str, other.test)) != sorted(map(str, once.test))


def test_repeated_prompts_never_reach_training(tmp_path: Path) -> None:
    train, test = alpaca(20), alpaca(10, start=100)
    again = {"instruction": " say  101.\n\nLoudly. ", "output": "another answer"}  # the same as one text
    write_jsonl(tmp_path / "train.jsonl", [*train, train[0], again])
    write_jsonl(tmp_path / "validation.jsonl", [*alpaca(6, start=50), train[1]])
    write_jsonl(tmp_path / "test.jsonl", [*test, test[0]])
    report = prepare_instructions(str(tmp_path), letters()).report
    assert report.rows == {"train": 19, "validation": 7, "test": 11}
    assert report.duplicates.within == {"train": 1, "validation": 0, "test": 1}
    assert report.duplicates.between == {"train/validation": 1, "train/test": 1, "validation/test": 0}
    assert report.duplicates.conflicting == 1
    assert report.duplicates.dropped == {"train": 3, "validation": 0, "test": 0}
    assert "3 repeated prompts left out" in report.summary()


def test_parts_of_cut_rows_share_no_prompt(tmp_path: Path) -> None:
    rows = [{**row, "output": f"{turn}"} for row in alpaca(30) for turn in range(3)]
    data = prepare_instructions(write_jsonl(tmp_path / "a.jsonl", rows), letters())
    prompts = {part: {ids_of_prompt(row) for row in getattr(data, part)} for part in ("train", "validation", "test")}
    assert not prompts["train"] & prompts["test"]
    assert not prompts["train"] & prompts["validation"]
    assert data.report.duplicates.between == {"train/validation": 0, "train/test": 0, "validation/test": 0}
    assert data.report.duplicates.within["test"] == 12  # kept, and counted


def ids_of_prompt(row: Any) -> tuple[int, ...]:
    return tuple(token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label == IGNORED)


def test_what_is_too_long_is_cut_or_left_out_and_told(tmp_path: Path) -> None:
    long, asked = {"instruction": "a", "output": "b" * 50}, {"instruction": "a" * 50, "output": "b"}
    write_jsonl(tmp_path / "train.jsonl", [*alpaca(4), long, asked])
    for part, start in (("validation", 10), ("test", 20)):
        write_jsonl(tmp_path / f"{part}.jsonl", alpaca(2, start=start))
    data = prepare_instructions(str(tmp_path), letters(TEMPLATE), max_length=50)
    assert max(map(len, data.train["input_ids"])) == 50
    assert (data.report.truncated["train"], data.report.unanswered["train"], data.report.rows["train"]) == (1, 1, 5)
    assert "1 prompts of 50 or more tokens left out; 1 of the training rows cut to 50 tokens" in data.report.summary()
    with pytest.raises(InputError, match=r"every train prompt of .* has 10 or more tokens.*raise data\.max_length"):
        prepare_instructions(str(tmp_path), letters(TEMPLATE), max_length=10)
    with pytest.raises(InputError, match="max_length is 3000, and this model takes at most 2000"):
        prepare_instructions(str(tmp_path), letters(TEMPLATE), max_length=3000)


def test_parts_by_other_names_and_too_many_rows(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", alpaca(20))
    write_jsonl(tmp_path / "dev.jsonl", alpaca(5, start=50))
    data = prepare_instructions(str(tmp_path), letters(), splits={"test": "validation"})
    assert data.report.origin == {"train": "train", "validation": "cut from train", "test": "validation"}
    with pytest.raises(InputError, match=r"data\.rows\.test asks for 6 rows, and 5 are there"):
        prepare_instructions(str(tmp_path), letters(), splits={"test": "validation"}, rows={"test": 6})


# Real data ------------------------------------------------------------------------------------------------------------


@pytest.mark.shared
def test_real_instructions(shared_data: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "models" / "stories260k")
    source = shared_data / "text" / "alpaca" / "alpaca_sample.jsonl.gz"
    report = prepare_instructions(str(source), tokenizer, rows={"train": 60, "validation": 20, "test": 20}).report
    assert sum(report.available.values()) == 5_650
    assert (report.prompt_format, report.duplicates.conflicting) == ("alpaca", 0)
    judged = load_instructions(
        str(shared_data / "text" / "alpaca_eval" / "alpaca_eval.jsonl.gz"),
        columns=InstructionColumns(output="reference_v1_text_davinci_003"),
    )
    assert len(judged) == 805


@pytest.mark.shared
def test_an_input_is_joined_as_alpacaeval_does(shared_data: Path) -> None:
    """Its file has the input apart too, so repeats are found between the two."""
    table = read_jsonl(shared_data / "text" / "alpaca_eval" / "alpaca_eval.jsonl.gz")
    columns = (table.columns[name] for name in ("instruction", "farm_instruction", "farm_input"))
    apart = [(whole, asked, about) for whole, asked, about in zip(*columns, strict=True) if about]
    assert len(apart) == 208
    for whole, asked, about in apart:
        assert Instruction(instruction=asked, input=about, output="").turns[-1].content == whole
