"""Prompts out of files, and samples of them."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from layerdescent.data.prompts import Instruction
from layerdescent.errors import InputError
from layerdescent.generation import Prompt, read_prompts, sample_prompts


def test_alpaca_eval_and_alpaca_as_a_list_or_by_lines(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Why?", "output": "So.", "generator": "someone", "dataset": "koala"},
        {"instruction": "Add them.", "input": "1, 2", "output": "3"},
    ]
    (tmp_path / "asked.json").write_text(json.dumps(rows))
    with gzip.open(tmp_path / "asked.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("asked.json", "asked.jsonl.gz"):
        found = read_prompts(tmp_path / name)
        assert [(prompt.instruction, prompt.dataset, prompt.reference) for prompt in found] == [
            ("Why?", "koala", "So."),
            ("Add them.\n\n1, 2", "asked", "3"),
        ]
    assert [prompt.reference for prompt in read_prompts(tmp_path / "asked.json", reference="dataset")] == [
        "koala",
        None,
    ]


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("a.txt", "Why?\nHow?\n\nWhy?\n", r"a\.txt holds a prompt twice, as number 1 and 3: 'Why\?'"),
        ("a.txt", "\n\n", "holds no prompts"),
        ("a.json", '[{"question": "Why?"}]', "no column 'instruction'; it has question"),
        ("a.jsonl", '{"instruction": 5}', "row 1 of .* has 5 as its instruction; give it a text"),
        ("a.jsonl", '{"instruction": " "}', "as its instruction; give it a text"),
        ("a.jsonl", '{"instruction": "Why?", "input": ["x"]}', "as its input; give it a text"),
        ("a.json", "{", "is not valid JSON"),
    ],
)
def test_bad_files_are_one_line(tmp_path: Path, name: str, content: str, error: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=error):
        read_prompts(tmp_path / name)


def test_missing_files_and_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "a.jsonl").write_text('{"instruction": "Why?"}')
    with pytest.raises(InputError, match="no column 'answer'"):
        read_prompts(tmp_path / "a.jsonl", reference="answer")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InputError, match="is not UTF-8"):
        read_prompts(tmp_path / "b.txt")


def test_a_sample_has_the_shares_of_the_data_sets_whatever_the_order() -> None:
    prompts = [
        Prompt(row=Instruction(instruction=f"{dataset} {number}", output=""), dataset=dataset)
        for dataset, count in (("koala", 30), ("vicuna", 10))
        for number in range(count)
    ]
    chosen = sample_prompts(prompts, 8)
    assert Counter(prompt.dataset for prompt in chosen) == {"koala": 6, "vicuna": 2}
    assert chosen == [prompt for prompt in prompts if prompt in chosen]
    assert set(sample_prompts(prompts[::-1], 8)) == set(chosen)
    with pytest.raises(InputError, match="sample of 41 prompts is asked for, and there are 40"):
        sample_prompts(prompts, 41)
