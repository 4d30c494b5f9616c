from pathlib import Path
from typing import Any

import datasets
import pytest

from layerdescent.data.packages import InstalledPackage
from layerdescent.data.sources import Source, open_source
from layerdescent.errors import InputError
from tests.data.examples import reviews, write_jsonl, write_text


def write_acl_imdb(folder: Path) -> Path:
    """The layout of the unpacked data set, unlabelled reviews and bag-of-words files included."""
    for part in ("train", "test"):
        for polarity, stars in (("neg", 2), ("pos", 9)):
            for number in range(2):
                write_text(folder / part / polarity / f"{number}_{stars}.txt", f"{part} {polarity} {number}")
        write_text(folder / part / "labeledBow.feat", "9 0:9")
    write_text(folder / "train" / "unsup" / "0_0.txt", "nobody said")
    return folder


def test_acl_imdb_folder(tmp_path: Path) -> None:
    parts = open_source(str(write_acl_imdb(tmp_path / "aclImdb")))
    assert list(parts) == ["train", "test"]
    table = parts["test"]()
    assert table.columns == {
        "text": ["test neg 0", "test neg 1", "test pos 0", "test pos 1"],
        "label": [0, 0, 1, 1],
    }
    assert table.class_names["label"] == ("negative", "positive")


def test_glue_folder(tmp_path: Path) -> None:
    for name, text in (("train", "a film\t1"), ("dev", "b film\t0")):
        write_text(tmp_path / "SST-2" / f"{name}.tsv", f"sentence\tlabel\n{text}\n")
    write_text(tmp_path / "SST-2" / "test.tsv", "index\tsentence\n0\tc film\n")
    write_text(tmp_path / "SST-2" / "original" / "train.tsv", "not this one\n")
    parts = open_source(str(tmp_path / "SST-2"))
    assert sorted(parts) == ["test", "train", "validation"]
    assert parts["validation"]().columns == {"sentence": ["b film"], "label": ["0"]}


def test_multinli_folder(tmp_path: Path) -> None:
    row = {"gold_label": "neutral", "sentence1": "a", "sentence2": "b"}
    for name in ("train", "dev_matched", "dev_mismatched"):
        write_jsonl(tmp_path / f"multinli_1.0_{name}.jsonl", [row])
        write_text(tmp_path / f"multinli_1.0_{name}.txt", "the same once more")
    parts = open_source(str(tmp_path))
    assert sorted(parts) == ["train", "validation_matched", "validation_mismatched"]
    assert "-" in parts["train"]().unlabelled


@pytest.mark.parametrize("name", ["reviews.csv", "reviews.csv.gz", "reviews.tsv", "reviews.jsonl", "reviews.jsonl.gz"])
def test_one_file_is_one_part(tmp_path: Path, name: str) -> None:
    text = {"csv": "text,label\na,1\n", "tsv": "text\tlabel\na\t1\n", "jsonl": '{"text": "a", "label": "1"}\n'}
    parts = open_source(write_text(tmp_path / name, text[name.split(".")[1]]))
    assert list(parts) == ["all"]
    assert parts["all"]().columns == {"text": ["a"], "label": ["1"]}


def test_a_mapping_names_its_parts_and_format_beats_suffix(tmp_path: Path) -> None:
    train = write_text(tmp_path / "one.txt", "text,label\na,1\n")
    test = write_text(tmp_path / "two.txt", "text,label\nb,0\n")
    parts = open_source({"train": train, "test": test}, format="csv")
    assert parts["test"]().columns == {"text": ["b"], "label": ["0"]}


def test_movie_reviews_by_subset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write_text(tmp_path / "r.csv", "text,label,source\na,1,imdb\nb,0,rotten_tomatoes\nc,0,imdb\n"))
    monkeypatch.setattr(InstalledPackage, "locate", lambda self: path)
    assert open_source("package:movie-reviews", subset="imdb")["all"]().columns == {
        "text": ["a", "c"],
        "label": ["1", "0"],
    }
    assert len(open_source("package:movie-reviews")["all"]().columns["text"]) == 3
    with pytest.raises(InputError, match="no subset 'imbd'; it has imdb, rotten_tomatoes"):
        open_source("package:movie-reviews", subset="imbd")["all"]()


def test_hub_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["negative", "positive"])}
    )
    part = datasets.Dataset.from_dict({"sentence": ["a", "b"], "label": [1, -1]}, features=features)

    def load(name: str, config: str | None) -> datasets.DatasetDict:
        asked.append((name, config))
        return datasets.DatasetDict({"train": part})

    monkeypatch.setattr(datasets, "load_dataset", load)
    table = open_source("hub:nyu-mll/glue/sst2")["train"]()
    assert table.columns == {"sentence": ["a", "b"], "label": [1, -1]}
    assert table.class_names == {"label": ["negative", "positive"]}
    assert -1 in table.unlabelled
    open_source("hub:stanfordnlp/imdb")
    open_source("hub:nyu-mll/glue", subset="rte")
    assert asked == [("nyu-mll/glue", "sst2"), ("stanfordnlp/imdb", None), ("nyu-mll/glue", "rte")]


def test_hub_offline_is_one_clear_line() -> None:
    with pytest.raises(
        InputError, match=r"hub:nobody/nothing could not be loaded .*give a downloaded folder"
    ) as caught:
        open_source("hub:nobody/nothing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("gone", {}, r"'.*gone' is no file or folder here; give package:movie-reviews, hub:NAME"),
        ("package:movie-review", {}, "no data package is called 'movie-review'; there is package:movie-reviews"),
        ("package:movie-reviews", {"format": "csv"}, "format 'csv' is given, and package:movie-reviews has none"),
        ("hub:a/b/c", {"subset": "d"}, "names the configuration 'c' and subset says 'd'"),
        ("empty", {}, "holds no data that is recognised; expected are train/pos"),
        ("empty", {"format": "aclimdb"}, "is no aclImdb folder: expected are train/pos"),
        ("twice", {}, r"two files for the part train: train\.csv and train\.jsonl"),
        ("twice", {"format": "parquet"}, "no data that is recognised of format parquet"),
        ("notes.txt", {}, r"notes\.txt cannot be read as auto; a file ends in"),
        ("twice/train.csv", {"subset": "imdb"}, "subset 'imdb' is given, and .* is no package or hub data set"),
    ],
)
def test_what_is_no_source_is_said(tmp_path: Path, source: str, options: dict[str, str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    write_text(tmp_path / "notes.txt", "no data")
    write_text(tmp_path / "twice" / "train.csv", "text,label\n")
    write_jsonl(tmp_path / "twice" / "train.jsonl", reviews(2))
    given: Source = source if ":" in source else str(tmp_path / source)
    with pytest.raises(InputError, match=message):
        open_source(given, **options)
