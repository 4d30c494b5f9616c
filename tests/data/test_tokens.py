from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from layerdescent.data import load_text, renumbered, tokenise
from layerdescent.errors import InputError
from tests.data.examples import reviews, write_jsonl


def test_one_part_as_a_model_takes_it(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [
        {"premise": "film film", "hypothesis": "number", "label": 1},
        {"premise": "film", "hypothesis": "x", "label": 0},
    ]
    part = tokenise(load_text(write_jsonl(tmp_path / "a.jsonl", rows)), tokenizer, max_length=6)
    assert part["input_ids"][:] == [[2, 4, 4, 3, 5, 3], [2, 4, 3, 1, 3]]
    assert part["labels"][:] == [1, 0]


@pytest.mark.parametrize(("task", "labels"), [("regression", [0.5, 2.0]), ("multi-label", [[1.0, 0.0], [1.0, 1.0]])])
def test_labels_of_every_task(tmp_path: Path, tokenizer: PreTrainedTokenizerFast, task: Any, labels: list[Any]) -> None:
    rows = [{"text": str(label), "label": label} for label in labels]
    part = tokenise(load_text(write_jsonl(tmp_path / "a.jsonl", rows), task=task), tokenizer, max_length=6, limit=2)
    assert part["labels"][:] == labels


def test_a_limit_keeps_the_classes_in_proportion(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = load_text(write_jsonl(tmp_path / "a.jsonl", reviews(40)))
    some = tokenise(rows, tokenizer, 8, limit=10)
    assert sorted(some["labels"][:]) == [0] * 5 + [1] * 5
    assert some[:] == tokenise(rows, tokenizer, 8, limit=10)[:]
    assert len(tokenise(rows, tokenizer, 8, limit=1000)) == 40
    with pytest.raises(InputError, match="at most 0 rows are asked for; give 1 or more"):
        tokenise(rows, tokenizer, 8, limit=0)
    with pytest.raises(InputError, match="max_length is 65, and this model takes at most 64 tokens"):
        tokenise(rows, tokenizer, 65)


@pytest.mark.parametrize(
    ("labels", "names", "wanted", "expected"),
    [
        ([0, 1, 1], ["a", "b"], ["B", "A"], [1, 0, 0]),
        ([0, 1], ["b", "c"], ["a", "b", "c"], [1, 2]),  # a class without rows
        ([[1, 0, 0], [0, 1, 1]], ["a", "b", "c"], ["c", "a", "b"], [[0, 1, 0], [1, 0, 1]]),
        ([0, 1], ["0", "1"], ["label_0", "label_1"], [0, 1]),
        ([0, 1], ["a", "b"], ["a", "c"], [0, 1]),
        ([0.5, 0.1], None, ["value"], [0.5, 0.1]),
    ],
)
def test_classes_get_the_ids_of_the_model_that_knows_their_names(
    labels: list[Any], names: list[str] | None, wanted: list[str], expected: list[Any]
) -> None:
    rows = Dataset.from_dict({"input_ids": [[1]] * len(labels), "labels": labels})
    assert renumbered(rows, names, wanted)["labels"][:] == expected
