"""Files of answers: matched by prompt, and one clear line for everything that does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest

from layerdescent.errors import InputError
from layerdescent.winrate import match, read_answers, references_for
from tests.winrate.files import write_answers

PROMPTS = {"Why?": "Because.", "2 + 2?": "4", "Who?": ""}


def test_answers_are_matched_by_prompt_whatever_their_order(tmp_path: Path) -> None:
    a = read_answers(write_answers(tmp_path / "a.json", PROMPTS, "ours", dataset="helpful_base"))
    b = read_answers(write_answers(tmp_path / "b.json", dict(reversed(PROMPTS.items())) | {"Why?": "Ask."}))
    assert (a.generator, b.generator) == ("ours", "b")
    assert [tuple(pair) for pair in match(a, b)] == [
        ("Why?", "Because.", "Ask."),
        ("2 + 2?", "4", "4"),
        ("Who?", "", ""),
    ]


ROW = {"instruction": "Why?", "output": "So.", "generator": "x"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([], "an empty list; expected"),
        ({"instruction": ["Why?"]}, "holds a dict; expected is a JSON list"),
        ([ROW, "text"], "row 2 is a str"),
        ([ROW, {"instruction": "Who?"}], "row 2 has no field 'output'; it has instruction"),
        ([ROW, {"output": "Me."}], "row 2 has no field 'instruction'"),
        ([ROW | {"output": ["So."]}], "row 1: 'output' must be a text, but it is a list"),
        ([ROW, ROW | {"output": "Else."}], "row 2 has the same instruction as a row before: 'Why?'"),
        ([ROW, ROW | {"instruction": "Who?", "generator": "y"}], "several generators (x, y)"),
        ([ROW | {"reference": 3}], "row 1: 'reference' must be a text"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_answers(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b'{"instruction": "a"}\n{"instruction": "b"}\n', b"[{", b"\xff\xfe\x00", None])
def test_what_is_no_json_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="expected is a JSON list"):
        read_answers(path)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_prompt_in_one_file_only_is_named(tmp_path: Path, swapped: bool) -> None:
    a = read_answers(write_answers(tmp_path / "a.json", PROMPTS))
    b = read_answers(write_answers(tmp_path / "b.json", {"Why?": "x", "2 + 2?": "y"}))
    with pytest.raises(InputError, match=r"1 of the 3 prompts in .*a\.json are not in .*b\.json, such as 'Who\?'"):
        match(*((b, a) if swapped else (a, b)))


def test_one_prompt_is_too_few(tmp_path: Path) -> None:
    a = read_answers(write_answers(tmp_path / "a.json", {"Why?": "x"}))
    with pytest.raises(InputError, match="at least 2"):
        match(a, a)


def test_references_come_from_the_third_file_or_the_field(tmp_path: Path) -> None:
    plain = read_answers(write_answers(tmp_path / "a.json", PROMPTS))
    with_field = read_answers(write_answers(tmp_path / "b.json", PROMPTS, reference="The field."))
    third = read_answers(write_answers(tmp_path / "r.json", PROMPTS | {"More?": "x"}))
    assert references_for(plain, with_field, third) == PROMPTS
    assert references_for(plain, with_field, None) == dict.fromkeys(PROMPTS, "The field.")
    assert references_for(with_field, plain, None) == dict.fromkeys(PROMPTS, "The field.")
    with pytest.raises(InputError, match="3 of 3 prompts have no reference answer in the field reference"):
        references_for(plain, plain, None)
    other = read_answers(write_answers(tmp_path / "c.json", PROMPTS, reference="Another."))
    with pytest.raises(InputError, match="different references for 'Why"):
        references_for(with_field, other, None)
