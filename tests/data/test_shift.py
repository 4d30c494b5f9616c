"""Other data for trained models: nothing they have seen, classes under the models' ids, and every row accounted for."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from layerdescent.data import PreparedText, prepare, prepare_shift
from layerdescent.errors import InputError
from layerdescent.recipes.text import DataSpec, ShiftSpec
from tests.data.examples import data_spec, reviews, write_jsonl, write_text

NAMED = {0: "bad", 1: "good"}


@pytest.fixture
def data(tmp_path: Path) -> DataSpec:
    """Twelve reviews to train on, labelled by words; numbers up to 19 are in the training part or the others."""
    rows = [row | {"label": NAMED[row["label"]]} for row in reviews(20)]
    parts = {"train": rows[:12], "validation": rows[12:16], "test": rows[16:]}
    return data_spec({part: write_jsonl(tmp_path / f"{part}.jsonl", some) for part, some in parts.items()})


@pytest.fixture
def trained_on(data: DataSpec, tokenizer: PreTrainedTokenizerFast) -> PreparedText:
    return prepare(data, tokenizer)


def spec(source: str, **fields: Any) -> ShiftSpec:
    return ShiftSpec.model_validate({"source": source, **fields})


def test_texts_of_the_training_rows_are_left_out_and_counted(
    tmp_path: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    seen = [row | {"text": f"  FILM {row['text'].removeprefix('film')}"} for row in reviews(5)]
    fresh, again = reviews(8, start=100), reviews(2, start=100)
    odd: list[dict[str, Any]] = [{"text": " ", "label": 0}, {"text": "unlabelled film", "label": None}]
    source = write_jsonl(tmp_path / "other.jsonl", [*seen, *fresh, *again, *odd])
    rows, report = prepare_shift("other", spec(source), data, trained_on, tokenizer)
    assert (len(rows), report.rows, report.available) == (10, 10, 10)
    assert (report.in_training, report.repeated, report.empty, report.unlabelled) == (5, 2, 1, 1)
    assert report.label_counts == {"bad": 5, "good": 5}
    assert set(rows.column_names) >= {"input_ids", "attention_mask", "labels"}
    assert report.to_dict()["name"] == "other"


def test_rows_that_the_models_were_not_trained_on_stay(
    tmp_path: Path, data: DataSpec, tokenizer: PreTrainedTokenizerFast
) -> None:
    """A training part that was thinned is known by the rows that were used."""
    thin = data.model_copy(update={"rows": data.rows.model_copy(update={"train": 4})})
    source = write_jsonl(tmp_path / "same.jsonl", reviews(12))
    _, report = prepare_shift("same", spec(source), thin, prepare(thin, tokenizer), tokenizer)
    assert (report.in_training, report.rows) == (4, 8)


def test_classes_are_matched_by_name(
    tmp_path: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [{"text": f"film {number}", "label": ("GOOD", "Bad", "Bad")[number % 3]} for number in range(9)]
    source = write_jsonl(tmp_path / "other.jsonl", rows)
    turned, report = prepare_shift("other", spec(source), data, trained_on, tokenizer)
    assert turned["labels"][:] == [1, 0, 0] * 3
    assert (report.labels, report.label_counts) == ("by name", {"bad": 6, "good": 3})
    numbers = [row | {"label": int(row["label"] == "Bad")} for row in rows]
    source = write_jsonl(tmp_path / "numbers.jsonl", numbers)
    named, report = prepare_shift("n", spec(source, label_names=["good", "bad"]), data, trained_on, tokenizer)
    assert (named["labels"][:], report.labels) == ([1, 0, 0] * 3, "by name")


def test_numbers_are_the_models_ids(
    tmp_path: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    source = write_jsonl(tmp_path / "other.jsonl", [row | {"label": 1} for row in reviews(4, start=100)])
    rows, report = prepare_shift("other", spec(source), data, trained_on, tokenizer)
    assert (rows["labels"][:], report.labels) == ([1] * 4, "by number")


def test_other_names_must_be_put_in_the_models_order(
    tmp_path: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    rows = [row | {"label": ("pos", "neg")[row["label"]]} for row in reviews(4, start=100)]
    source = write_jsonl(tmp_path / "other.jsonl", rows)
    message = r"evaluation\.shift\.other: its classes are neg, pos, .* bad, good; .*\.label_names"
    with pytest.raises(InputError, match=message):
        prepare_shift("other", spec(source), data, trained_on, tokenizer)
    ordered, report = prepare_shift("other", spec(source, label_names=["neg", "pos"]), data, trained_on, tokenizer)
    assert (ordered["labels"][:], report.labels) == ([1, 0, 1, 0], "by number")


def test_rows_are_drawn_as_everywhere(
    tmp_path: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    source = write_jsonl(
        tmp_path / "other.jsonl", [row | {"label": int(n % 4 == 0)} for n, row in enumerate(reviews(40))]
    )
    rows, report = prepare_shift("other", spec(source, rows=8), data, trained_on, tokenizer)
    assert (report.available, report.in_training, report.label_counts) == (28, 12, {"bad": 6, "good": 2})
    again, _ = prepare_shift("another", spec(source, rows=8), data, trained_on, tokenizer)
    assert again.to_list() == rows.to_list()
    more, _ = prepare_shift("other", spec(source, rows=16), data, trained_on, tokenizer)
    assert all(row in more.to_list() for row in rows.to_list())


def test_length_and_cleaning_are_those_of_data_unless_said(
    tmp_path: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    text = "film<br /><br />number " * 20
    source = write_jsonl(tmp_path / "other.jsonl", [{"text": text, "label": 0}, {"text": "film", "label": 1}])
    fields: list[tuple[dict[str, Any], int]] = [({}, 16), ({"max_length": 8}, 8)]
    for field, length in fields:
        rows, report = prepare_shift("other", spec(source, **field), data, trained_on, tokenizer)
        assert (len(rows["input_ids"][0]), report.max_length, report.truncated) == (length, length, 0.5)
    clean = data.model_copy(update={"strip_html": True})
    film_number = [2, *[4, 5] * 7, 3]
    for given, own, stripped in ((None, clean, True), (False, clean, False), (None, data, False)):
        rows, _ = prepare_shift("other", spec(source, strip_html=given), own, trained_on, tokenizer)
        assert (rows["input_ids"][0] == film_number) is stripped


def test_columns_and_parts_are_named(
    tmp_path: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    for part, count in (("train", 6), ("dev", 4)):
        rows = [{"body": row["text"], "stars": row["label"]} for row in reviews(count, start=100)]
        write_jsonl(tmp_path / "other" / f"{part}.jsonl.gz", rows)
    columns = {"text": "body", "label": "stars"}
    source = str(tmp_path / "other")
    chosen = spec(source, columns=columns, part="validation")
    rows, report = prepare_shift("other", chosen, data, trained_on, tokenizer)
    assert (len(rows), report.part) == (4, "validation")
    for wrong, message in ((None, "part says nothing"), ("test", "part is 'test'")):
        with pytest.raises(InputError, match=rf"evaluation\.shift\.other\.{message}, .* the parts .*train"):
            prepare_shift("other", spec(source, columns=columns, part=wrong), data, trained_on, tokenizer)


def test_a_source_without_parts_is_read_whole(
    tmp_path: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    source = write_jsonl(tmp_path / "other.jsonl", reviews(4, start=100))
    for part in (None, "train"):
        assert prepare_shift("other", spec(source, part=part), data, trained_on, tokenizer)[1].rows == 4
    with pytest.raises(InputError, match=r"part is 'test', and .* has no parts: leave it out"):
        prepare_shift("other", spec(source, part="test"), data, trained_on, tokenizer)


@pytest.mark.parametrize(
    ("start", "fields", "message"),
    [
        (0, {}, r"evaluation\.shift\.other: all texts of .* are among the training rows"),
        (10, {"rows": 1}, r"evaluation\.shift\.other comes to one row.*give two or more"),
        (10, {"rows": 9}, r"evaluation\.shift\.other\.rows asks for 9 rows, and 8 are there \(2 more"),
        (100, {"label_names": ["a", "b", "c"]}, r"its classes are a, b, c, and the model's are bad, good"),
        (100, {"max_length": 65}, "max_length is 65, and this model takes at most 64"),
    ],
)
def test_what_cannot_be_measured_is_one_clear_line(
    tmp_path: Path,
    data: DataSpec,
    trained_on: PreparedText,
    tokenizer: PreTrainedTokenizerFast,
    start: int,
    fields: dict[str, Any],
    message: str,
) -> None:
    source = write_jsonl(tmp_path / "other.jsonl", reviews(10, start=start))
    with pytest.raises(InputError, match=message) as caught:
        prepare_shift("other", spec(source, **fields), data, trained_on, tokenizer)
    assert "\n" not in str(caught.value)


def test_numbers_to_predict_have_no_classes(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    for name, start in (("train", 0), ("other", 100)):
        lines = [f"film number {number},{number / 7}" for number in range(start, start + 30)]
        write_text(tmp_path / f"{name}.csv", "\n".join(["text,label", *lines]))
    data = data_spec(str(tmp_path / "train.csv"), task="regression")
    rows, report = prepare_shift("other", spec(str(tmp_path / "other.csv")), data, prepare(data, tokenizer), tokenizer)
    assert rows["labels"][0] == pytest.approx(100 / 7)
    assert (report.labels, report.label_counts) == (None, {})


@pytest.mark.shared
def test_sst2_for_a_model_of_other_reviews(
    shared_data: Path, data: DataSpec, trained_on: PreparedText, tokenizer: PreTrainedTokenizerFast
) -> None:
    source = str(shared_data / "text" / "sst2")
    rows, report = prepare_shift("sst2", spec(source, part="validation", rows=200), data, trained_on, tokenizer)
    assert (len(rows), report.available, report.labels) == (200, 872, "by number")
