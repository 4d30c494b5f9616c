"""`layerdescent winrate`: from two files to a table and a result."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from layerdescent.cli import app
from layerdescent.winrate.endpoint import KEY
from tests.winrate.files import write_answers
from tests.winrate.server import Reply, serve

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SECRET = "sk-very-secret-0123456789"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    prompts = [f"Prompt {number}?" for number in range(8)]
    a = write_answers(tmp_path / "a.json", {prompt: "long " * (n + 1) for n, prompt in enumerate(prompts)}, "ours")
    b = write_answers(tmp_path / "b.json", dict.fromkeys(prompts, "long long long"), "theirs")
    return a, b


def test_a_run_against_an_endpoint_and_again_from_disk(
    files: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, SECRET)
    folder = tmp_path / "out"
    with serve(lambda number, body: Reply("A")) as got:
        command = ("winrate", *files, "--judge", f"openai:judge@{got.url}", "--folder", folder, "--quiet")
        result = run(*command)
        assert result.exit_code == 0, result.output
        assert len(got.bodies) == 16
        again = run(*command)
        assert len(got.bodies) == 16
    assert again.output == result.output
    assert "win rate of A" in result.output
    assert "50.0 %" in result.output
    assert "100.0 % of the pairs were judged otherwise when the order was reversed" in result.output
    assert f"results: {folder / 'winrate.json'}" in result.output
    results = json.loads((folder / "winrate.json").read_text())
    assert results["command"].startswith("layerdescent winrate")
    assert (results["n"], len(results["verdicts"])) == (8, 8)
    assert SECRET not in result.output + (folder / "winrate.json").read_text()


def test_a_server_that_refuses_the_key_is_one_line(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, SECRET)
    with serve(lambda number, body: Reply(status=401, body=SECRET)) as got:
        result = run("--debug", "winrate", *files, "--judge", f"openai:judge@{got.url}", "--quiet")
        assert SECRET not in result.output + repr(result.exception)
        result = run("winrate", *files, "--judge", f"openai:judge@{got.url}", "--quiet")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert "[key]" in result.stderr
    assert SECRET not in result.output


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        ("gpt-4", "no judge is called 'gpt-4'; give openai:MODEL@BASE_URL"),
        ("openai:gpt-4", "no judge is called"),
        ("hf:", "no judge is called"),
        ("proxy:length", "no judge is called"),
        ("proxy:embedding", "8 of 8 prompts have no reference answer in the field reference"),
    ],
)
def test_a_judge_that_is_none_is_one_line(files: tuple[Path, Path], judge: str, words: str) -> None:
    result = run("winrate", *files, "--judge", judge)
    assert result.exit_code == 2
    assert words in result.stderr


def test_files_that_do_not_fit_are_told_before_the_judge_is_loaded(files: tuple[Path, Path], tmp_path: Path) -> None:
    other = write_answers(tmp_path / "other.json", {"Prompt 0?": "x", "Who?": "y"})
    result = run("winrate", files[0], other, "--judge", "hf:nowhere/there")
    assert result.exit_code == 2
    assert "prompts in" in result.stderr
    result = run("winrate", *files, "--judge", "hf:nowhere/there", "--reference", other)
    assert result.exit_code == 2
    assert "--reference is given" in result.stderr
