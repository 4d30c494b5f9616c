"""Resuming to the last bit, whole and half checkpoints, and a kill in the middle of a save."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from layerdescent.descent import DescentConstraints
from layerdescent.duals import Multipliers
from layerdescent.errors import RunError
from layerdescent.training import DescentTrainer, last_complete_checkpoint, problem_with
from layerdescent.training.checkpoints import MULTIPLIERS_NAME, load_multipliers, save_multipliers
from tests.training.tiny import bert, make_trainer, rows, same, weights

ROOT = Path(__file__).parents[2]


def six_steps(folder: Path, resume: Any = None, **settings: Any) -> DescentTrainer:
    """Six steps of two micro-batches, saved every three; an epoch has five and a half."""
    trainer = make_trainer(
        folder,
        data=rows(42),
        **(
            {
                "dual_lr": 1.0,
                "alpha": 0.1,
                "resilience": 4.0,
                "max_steps": 6,
                "save_strategy": "steps",
                "save_steps": 3,
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 2,
            }
            | settings
        ),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def assert_equal_to_the_last_bit(a: DescentTrainer, b: DescentTrainer, folders: tuple[Path, Path]) -> None:
    assert same(weights(a.model), weights(b.model))  # type: ignore[arg-type]
    if a.multipliers is not None and b.multipliers is not None:
        ours, theirs = a.multipliers.state_dict(), b.multipliers.state_dict()
        assert same(ours, theirs)
        assert ours["values"].max() > 0
    assert a.descent_history == b.descent_history
    states = [torch.load(folder / "checkpoint-6" / "rng_state.pth", weights_only=False) for folder in folders]
    assert torch.equal(states[0]["cpu"], states[1]["cpu"])


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[DescentTrainer, Path]:
    folder = tmp_path_factory.mktemp("straight")
    torch.set_num_threads(1)
    return six_steps(folder), folder


def test_a_resumed_run_is_the_same_run(tmp_path: Path, straight: tuple[DescentTrainer, Path]) -> None:
    whole, folder = straight
    shutil.copytree(folder / "checkpoint-3", tmp_path / "checkpoint-3")
    resumed = six_steps(tmp_path, resume=True)
    assert_equal_to_the_last_bit(whole, resumed, (folder, tmp_path))


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "noise"},
        {"objective": "deep-supervision"},
        {"dual_every": 2},
        {"dual_every": "epoch", "max_steps": 6, "save_steps": 3, "per_device_train_batch_size": 7},
    ],
    ids=str,
)
def test_so_is_every_other_kind(tmp_path: Path, settings: dict[str, Any]) -> None:
    """With 14 rows a step an epoch has three steps: a checkpoint at its end holds the epoch's dual step."""
    whole = six_steps(tmp_path / "whole", **settings)
    shutil.copytree(tmp_path / "whole" / "checkpoint-3", tmp_path / "again" / "checkpoint-3")
    resumed = six_steps(tmp_path / "again", resume=True, **settings)
    assert_equal_to_the_last_bit(whole, resumed, (tmp_path / "whole", tmp_path / "again"))


def test_resuming_takes_the_newest_whole_checkpoint(
    tmp_path: Path, straight: tuple[DescentTrainer, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """The newest one was cut off while its weights were written."""
    whole, folder = straight
    shutil.copytree(folder / "checkpoint-3", tmp_path / "checkpoint-3")
    half = tmp_path / "checkpoint-6"
    half.mkdir()
    content = (folder / "checkpoint-6" / "model.safetensors").read_bytes()
    (half / "model.safetensors").write_bytes(content[: len(content) // 2])
    with caplog.at_level(logging.WARNING, logger="layerdescent"):
        resumed = six_steps(tmp_path, resume=True)
    assert f"{half} is not used: trainer_state.json is missing" in caplog.text
    assert resumed._initial_global_step == 3
    assert_equal_to_the_last_bit(whole, resumed, (folder, tmp_path))
    assert problem_with(half) is None


def damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", MULTIPLIERS_NAME],
)
@pytest.mark.parametrize("gone", [True, False])
def test_a_damaged_file_is_noticed(
    tmp_path: Path, straight: tuple[DescentTrainer, Path], name: str, gone: bool
) -> None:
    _, folder = straight
    copy = tmp_path / "checkpoint-6"
    shutil.copytree(folder / "checkpoint-6", copy)
    assert problem_with(copy) is None
    (copy / name).unlink() if gone else damage(copy / name)
    problem = problem_with(copy)
    if gone and name == MULTIPLIERS_NAME:
        # Other objectives have none, so the folder is whole; this objective refuses it.
        assert problem is None
        with pytest.raises(RunError, match=f"holds no {MULTIPLIERS_NAME}"):
            six_steps(tmp_path, resume=str(copy), max_steps=8)
        return
    assert problem is not None
    assert name in problem or "weights" in problem
    with pytest.raises(RunError, match=r"cannot resume from .*checkpoint-6"):
        six_steps(tmp_path, resume=str(copy))


def test_a_checkpoint_of_weights_only_is_whole(tmp_path: Path) -> None:
    trainer = six_steps(tmp_path, save_only_model=True)
    assert problem_with(tmp_path / "checkpoint-6") is None
    with pytest.raises(RunError, match="holds no multipliers"):
        trainer.train(resume_from_checkpoint=True)


def test_the_state_of_another_step_is_noticed(tmp_path: Path, straight: tuple[DescentTrainer, Path]) -> None:
    _, folder = straight
    shutil.copytree(folder / "checkpoint-6", tmp_path / "checkpoint-9")
    assert problem_with(tmp_path / "checkpoint-9") == "trainer_state.json is that of step 6"
    assert last_complete_checkpoint(tmp_path) is None
    assert last_complete_checkpoint(tmp_path / "nowhere") is None
    assert last_complete_checkpoint(folder) == folder / "checkpoint-6"
    assert "rng_state_0.pth is missing" in str(problem_with(folder / "checkpoint-6", world_size=2))


def test_nothing_to_resume_from_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="has no whole checkpoint to resume from"):
        six_steps(tmp_path, resume=True)


def test_multipliers_of_other_constraints_are_refused(tmp_path: Path, straight: tuple[DescentTrainer, Path]) -> None:
    _, folder = straight
    with pytest.raises(RunError, match=r"multipliers' values has shape \(3,\), these constraints need \(1,\)"):
        six_steps(tmp_path, resume=str(folder / "checkpoint-3"), grid=[0, 3])


def test_multipliers_travel_and_damage_leaves_them_alone(tmp_path: Path) -> None:
    constraints = DescentConstraints(num_layers=2, alpha=0.1)
    first, second = Multipliers(constraints, lr=1.0), Multipliers(constraints, lr=1.0)
    first.ascend(torch.tensor([1.0, 1.1, 1.2]))
    path = save_multipliers(tmp_path, first)
    assert [file.name for file in tmp_path.iterdir()] == [MULTIPLIERS_NAME]
    load_multipliers(tmp_path, second)
    assert same(first.state_dict(), second.state_dict())
    untouched = second.state_dict()
    for spoil in (
        lambda: damage(path),
        lambda: save_file({"values": torch.zeros(2)}, path),
        lambda: save_file(first.state_dict() | {"values": torch.tensor([torch.nan, 0.0])}, path),
        path.unlink,
    ):
        save_multipliers(tmp_path, first)
        spoil()
        with pytest.raises(RunError, match=MULTIPLIERS_NAME + "|multipliers"):
            load_multipliers(tmp_path, second)
        assert same(second.state_dict(), untouched)


def test_a_full_disk_is_said_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(RunError, match=r"checkpoint-3 could not be saved: .*No space left on device.*resume"):
        six_steps(tmp_path)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from tests.training.test_checkpoints import six_steps
    import torch
    torch.set_num_threads(1)
    save, writes = torch.save, 0

    def save_until_killed(value, file, *args, **kwargs):
        # The second checkpoint's optimiser is half written when the process dies.
        if "checkpoint-6" in str(file) and str(file).endswith("optimizer.pt"):
            save(value, file, *args, **kwargs)
            with open(file, "r+b") as half:
                half.truncate(os.path.getsize(file) // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        save(value, file, *args, **kwargs)

    torch.save = save_until_killed
    six_steps(Path(sys.argv[1]))
"""


def test_a_run_killed_in_the_middle_of_a_save_goes_on(tmp_path: Path, straight: tuple[DescentTrainer, Path]) -> None:
    whole, folder = straight
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (tmp_path / "checkpoint-6" / "optimizer.pt").is_file()
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-3"
    resumed = six_steps(tmp_path, resume=True)
    assert_equal_to_the_last_bit(whole, resumed, (folder, tmp_path))


def test_our_file_says_what_it_belongs_to(straight: tuple[DescentTrainer, Path]) -> None:
    _, folder = straight
    from safetensors import safe_open

    with safe_open(folder / "checkpoint-6" / MULTIPLIERS_NAME, framework="pt") as file:
        about = file.metadata()
    assert json.loads(about["nodes"]) == [0, 1, 2, 3]
    assert about["form"] == "difference"
    assert set(load_file(folder / "checkpoint-6" / MULTIPLIERS_NAME)) >= {"values", "references", "steps"}


def test_the_weights_need_nothing_of_ours(straight: tuple[DescentTrainer, Path]) -> None:
    """A checkpoint holds the names and shapes of the model alone."""
    _, folder = straight
    saved = load_file(folder / "checkpoint-6" / "model.safetensors")
    model = weights(bert())
    assert {name: value.shape for name, value in saved.items()} == {name: value.shape for name, value in model.items()}
