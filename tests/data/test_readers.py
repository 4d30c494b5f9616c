import gzip
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from layerdescent.data.readers import (
    MULTINLI,
    Layout,
    read_csv,
    read_json,
    read_jsonl,
    read_parquet,
    read_tsv,
    suffix_format,
)
from layerdescent.errors import InputError
from tests.data.examples import write_jsonl, write_text


def test_csv_with_quotes_and_long_fields(tmp_path: Path) -> None:
    long = "word " * 40_000  # longer than the csv module takes by default
    path = Path(write_text(tmp_path / "a.csv", f'text,label\n"a ""fine"" film,\nreally",1\n{long},0\n'))
    assert read_csv(path).columns == {"text": ['a "fine" film,\nreally', long], "label": ["1", "0"]}


def test_gzip_and_byte_order_mark(tmp_path: Path) -> None:
    path = Path(write_text(tmp_path / "a.csv.gz", "\ufefftext,label\ngood,1\n"))
    assert read_csv(path).columns == {"text": ["good"], "label": ["1"]}


def test_tsv_takes_quotes_as_they_are_and_short_lines_as_missing(tmp_path: Path) -> None:
    path = Path(write_text(tmp_path / "train.tsv", 'sentence\tlabel\n"a film\t1\nonly text\n'))
    assert read_tsv(path).columns == {"sentence": ['"a film', "only text"], "label": ["1", None]}


def test_cola_has_no_header(tmp_path: Path) -> None:
    path = Path(write_text(tmp_path / "train.tsv", "gj04\t1\t\tThey drank.\ngj04\t0\t*\tDrank they.\n"))
    table = read_tsv(path)
    assert table.layout() == Layout("sentence", None, "label")
    assert table.columns["sentence"] == ["They drank.", "Drank they."]


def test_jsonl_fields_may_be_missing(tmp_path: Path) -> None:
    path = Path(write_text(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b"}\n'))
    assert read_jsonl(path).columns == {"text": ["a", "b"], "label": [1, None]}


def test_multinli_says_which_labels_are_none(tmp_path: Path) -> None:
    rows = [{"gold_label": "-", "sentence1": "a", "sentence2": "b", "pairID": "1"}]
    table = read_jsonl(Path(write_jsonl(tmp_path / "multinli_1.0_train.jsonl", rows)))
    assert table.layout() == MULTINLI
    assert "-" in table.unlabelled
    assert table.class_names["gold_label"] == ("entailment", "neutral", "contradiction")


def test_parquet(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a"], "label": [1]}), tmp_path / "a.parquet")
    assert read_parquet(tmp_path / "a.parquet").columns == {"text": ["a"], "label": [1]}


@pytest.mark.parametrize(
    ("columns", "layout"),
    [
        ("index question sentence label", Layout("question", "sentence", "label")),
        ("sentence label", Layout("sentence", None, "label")),
        ("index sentence1 sentence2 label", Layout("sentence1", "sentence2", "label")),
        ("index genre sentence1 sentence2 score", Layout("sentence1", "sentence2", "score")),
        ("id qid1 qid2 question1 question2 is_duplicate", Layout("question1", "question2", "is_duplicate")),
        ("index promptID sentence1 sentence2 label1 gold_label", MULTINLI),
    ],
)
def test_the_layouts_of_glue_are_known(tmp_path: Path, columns: str, layout: Layout) -> None:
    header = columns.replace(" ", "\t")
    table = read_tsv(Path(write_text(tmp_path / "train.tsv", f"{header}\n{header}\n")))
    assert table.layout() == layout


def test_mrpc_is_known(tmp_path: Path) -> None:
    path = write_text(tmp_path / "train.tsv", "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\ta\tb\n")
    assert read_tsv(Path(path)).layout() == Layout("#1 String", "#2 String", "Quality")


def test_malformed_json_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = Path(write_text(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": \n'))
    with pytest.raises(InputError, match=r"a\.jsonl:2 is not valid JSON: Expecting value"):
        read_jsonl(path)
    path = Path(write_text(tmp_path / "b.jsonl", "[1, 2]\n"))
    with pytest.raises(InputError, match=r"b\.jsonl:1 holds list, and a JSON object is expected"):
        read_jsonl(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a \\uD800 b"}', "surrogates not allowed"),
        ("[" * 100_000, "recursion"),
        ('{"label": ' + "9" * 5000 + "}", "limit"),
    ],
)
def test_json_that_python_cannot_hold_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    path = Path(write_text(tmp_path / "a.jsonl", '{"text": "a"}\n' + line + "\n"))
    with pytest.raises(InputError, match=rf"a\.jsonl:2 cannot be read: .*{message}"):
        read_jsonl(path)


def test_a_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    path = Path(write_text(tmp_path / "a.jsonl", '{"text": "\\ud83d\\ude00"}\n'))
    assert read_jsonl(path).columns["text"] == ["\N{GRINNING FACE}"]


@pytest.mark.parametrize(("read", "between"), [(read_csv, ","), (read_tsv, "\t")])
def test_a_column_given_twice_is_a_mistake(tmp_path: Path, read: Any, between: str) -> None:
    path = Path(write_text(tmp_path / "a.csv", between.join(["text", "label", "label"]) + "\n"))
    with pytest.raises(InputError, match=r"a\.csv has two columns called 'label'"):
        read(path)


def test_malformed_csv_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = Path(write_text(tmp_path / "a.csv", "text,label\ngood,1\nbad,0,extra\n"))
    with pytest.raises(InputError, match=r"a\.csv:3 has more fields than the header \(text, label\)"):
        read_csv(path)
    path = Path(write_text(tmp_path / "b.csv", 'text,label\n"never closed,1\n'))
    with pytest.raises(InputError, match=r"b\.csv:1 is no valid CSV"):
        read_csv(path)


@pytest.mark.parametrize("damage", ["cut", "not gzip", "flipped"])
def test_broken_gzip(tmp_path: Path, damage: str) -> None:
    whole = gzip.compress(b'{"text": "a", "label": 1}\n' * 1000)
    flipped = whole[:40] + bytes([whole[40] ^ 0xFF]) + whole[41:]
    content = {"cut": whole[: len(whole) // 2], "not gzip": b"plain text", "flipped": flipped}[damage]
    (tmp_path / "a.jsonl.gz").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.jsonl\.gz is a broken gzip file"):
        read_jsonl(tmp_path / "a.jsonl.gz")


def test_what_is_not_text_or_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text,label\n\xff\xfe,1\n")
    with pytest.raises(InputError, match=r"a\.csv is not UTF-8 text"):
        read_csv(tmp_path / "a.csv")
    (tmp_path / "a.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match=r"a\.parquet is no readable Parquet file"):
        read_parquet(tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"gone\.csv cannot be read: No such file"):
        read_csv(tmp_path / "gone.csv")


def test_a_json_array_is_a_table(tmp_path: Path) -> None:
    path = Path(write_text(tmp_path / "a.json.gz", '\ufeff[{"text": "a", "label": 1},\n{"text": "b"}]\n'))
    assert read_json(path).columns == {"text": ["a", "b"], "label": [1, None]}
    assert suffix_format(path) == "json"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[{"text": "a"},\n{"text": ]', r"a\.json:2 is not valid JSON: Expecting value at column 10$"),
        (
            '{"text": "a"}\n{"text": "b"}',
            r"a\.json:2 is not valid JSON: Extra data .*one object a line is called \.jsonl",
        ),
        ('{"text": "a"}', r"a\.json holds dict, and a JSON array of objects is expected"),
        ('[{"text": "a"}, 7]', r"row 2 of .*a\.json is int, and a JSON object is expected"),
        ('[{"text": "a \\uD800 b"}]', r"a\.json cannot be read: .*surrogates not allowed"),
        ("[" * 100_000, r"a\.json cannot be read: .*recursion"),
    ],
)
def test_a_bad_json_array_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_json(Path(write_text(tmp_path / "a.json", text)))
    assert "\n" not in str(caught.value)
