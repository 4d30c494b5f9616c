"""Answers on disk: AlpacaEval's format, and what a kill, a second call or other settings do."""

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from layerdescent.cli import app
from layerdescent.data import resolve_model
from layerdescent.data.prompts import Instruction
from layerdescent.errors import InputError, RunError
from layerdescent.evaluation.batches import load_model
from layerdescent.generation import Prompt, generate_answers, write_answers, writing
from layerdescent.perturbation import Perturbation
from layerdescent.winrate import Question, read_answers

MODEL = "builtin:tiny-llama"
PROMPTS = [
    Prompt(row=Instruction(instruction=f"Question {number}?", output=""), dataset="drawn", reference=f"Answer {number}")
    for number in range(5)
]
NOISE = Perturbation("gaussian", gamma=1.5)

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def write(out: Path, **options: Any) -> Any:
    options = {"max_new_tokens": 3, "batch_size": 2, "perturbation": NOISE, **options}
    return write_answers(options.pop("model", MODEL), options.pop("prompts", PROMPTS), out, **options)


def test_rows_are_what_winrate_reads(tmp_path: Path) -> None:
    written = write(tmp_path / "deep" / "noisy.json")
    assert (written.answers, written.made) == (5, 5)
    answers = read_answers(written.path)
    assert answers.generator == "builtin:tiny-llama, gaussian 1.5"
    assert list(answers.outputs) == [f"Question {number}?" for number in range(5)]
    assert answers.references["Question 4?"] == "Answer 4"
    [row, *_] = json.loads(written.path.read_text())
    assert row["dataset"] == "drawn"
    assert row["asked"]["noise"]["gamma"] == 1.5
    assert [path.name for path in written.path.parent.iterdir()] == ["noisy.json"]  # and no journal is left


class Killed(BaseException):
    pass


def interrupted(batches: int) -> Any:
    """`generate_answers`, killed after so many batches."""
    original = generate_answers

    def stopping(*args: Any, **options: Any) -> Iterator[Any]:
        for number, batch in enumerate(original(*args, **options)):
            if number == batches:
                raise Killed
            yield batch

    return stopping


def test_a_killed_call_goes_on_and_the_file_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, whole = tmp_path / "killed.json", tmp_path / "whole.json"
    write(whole)
    with monkeypatch.context() as patch:
        patch.setattr(writing, "generate_answers", interrupted(1))
        with pytest.raises(Killed):
            write(out)
    journal = tmp_path / "killed.json.partial.jsonl"
    assert not out.exists()
    with journal.open("a") as file:
        file.write('{"index": 4, "te')  # the kill came while a line was written
    with pytest.raises(InputError, match=r"max_new_tokens=3, and max_new_tokens=4 is asked for: give another file"):
        write(out, max_new_tokens=4)
    written = write(out, batch_size=1)
    assert written.made == 3
    assert out.read_bytes() == whole.read_bytes()
    assert not journal.exists()


def test_killed_at_the_first_line_or_the_last_step(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    journal = tmp_path / "a.json.partial.jsonl"
    journal.write_text('{"asked": {"mod')
    assert write(out).made == 5
    journal.write_text("left over")  # killed between the file and the end of its journal
    assert write(out).made == 0
    assert not journal.exists()


def test_settings_may_change_while_nothing_is_answered(tmp_path: Path) -> None:
    out, long = tmp_path / "a.json", [Prompt(row=Instruction(instruction="word " * 1900, output=""), dataset="drawn")]
    with pytest.raises(InputError, match="fewer new tokens"):
        write(out, prompts=long, max_new_tokens=200)
    assert write(out, prompts=PROMPTS[:1], max_new_tokens=2).made == 1


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    write(out)
    before = out.read_bytes()
    assert write(out).made == 0
    for changed in ({"perturbation": None}, {"perturbation": Perturbation("gaussian", 1.0)}, {"noise_on": "all"}):
        with pytest.raises(InputError, match=r"a\.json holds answers for noise"):
            write(out, **changed)
    with pytest.raises(InputError, match="holds answers for prompts="):
        write(out, prompts=PROMPTS[:4])
    assert out.read_bytes() == before
    (tmp_path / "b.json").write_text("[1]")
    with pytest.raises(InputError, match="was not written by this command"):
        write(tmp_path / "b.json")
    (tmp_path / "c.json.partial.jsonl").write_text("[1]\n")
    with pytest.raises(RunError, match="is damaged: delete it"):
        write(tmp_path / "c.json")


def test_a_model_without_a_chat_template_says_what_it_reads(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(resolve_model(MODEL), folder)
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    written = write(tmp_path / "a.json", model=str(folder))
    assert written.notes == ("this tokenizer has no chat template, so prompts have the Alpaca format",)


def test_adapters(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model: Any = load_model(resolve_model(MODEL))
    peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "adapter")
    written = write(tmp_path / "a.json", adapter=tmp_path / "adapter")
    assert written.answers == 5
    with pytest.raises(InputError, match="there is no adapter at"):
        write(tmp_path / "b.json", adapter=tmp_path)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = "someone/else"
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(config))
    assert (
        "the adapter says that it is for someone/else"
        in write(tmp_path / "c.json", adapter=tmp_path / "adapter").notes[-1]
    )
    other = type(model)(type(model.config)(**{**model.config.to_dict(), "hidden_size": 2 * model.config.hidden_size}))
    peft.get_peft_model(other, peft.LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="it was made for another base"):
        write(tmp_path / "d.json", adapter=tmp_path / "other")


class First:
    """A judge that prefers what it is shown first."""

    name, basis, proxy = "first", "place", None

    def judge(self, questions: Sequence[Question]) -> Iterator[tuple[Question, float]]:
        yield from ((question, 1.0) for question in questions)


def test_the_command_and_the_win_rate_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"instruction": f"Question {i}?", "dataset": "ab"[i % 2], "output": f"Answer {i}"} for i in range(8)]
    (tmp_path / "asked.json").write_text(json.dumps(rows))
    runner = CliRunner()
    common = ["generate", MODEL, str(tmp_path / "asked.json"), "--max-new-tokens", "3", "--quiet", "--sample", "4"]
    for name, gamma in (("clean", "0"), ("noisy", "1.5")):
        done = runner.invoke(app, [*common, "--gamma", gamma, "-o", str(tmp_path / f"{name}.json")])
        assert done.exit_code == 0, done.output
        assert "4 answers" in done.output
    files = [str(tmp_path / "clean.json"), str(tmp_path / "noisy.json")]
    asked = ["winrate", *files, "--judge", "hf:first", "--folder", str(tmp_path / "rates"), "--quiet"]
    with monkeypatch.context() as patch:
        patch.setattr("layerdescent.winrate.choose_judge", lambda *args, **options: First())
        judged = runner.invoke(app, asked)
    assert judged.exit_code == 0, judged.output
    results = json.loads((tmp_path / "rates" / "winrate.json").read_text())
    assert results["win_rate"]["value"] == 0.5
    for option, value in (("--kind", "pink"), ("--noise-on", "answer"), ("--prompt-format", "x"), ("--limit", "2")):
        failed = runner.invoke(app, [*common, option, value, "-o", str(tmp_path / "x.json")])
        assert failed.exit_code == 2
        assert option in failed.output
