"""Two processes are one: both ranks have the multipliers that a single process has with the same global batch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from layerdescent.training import DescentTrainer, last_complete_checkpoint, problem_with
from tests.training.tiny import bert, make_trainer, rows, weights

ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {
    "max_steps": 4,
    "dual_lr": 1.0,
    "alpha": 0.1,
    "train_sampling_strategy": "sequential",
    "optim": "sgd",
    "learning_rate": 0.1,
    "max_grad_norm": 0,
    "eval_strategy": "steps",
    "eval_steps": 4,
}


def run(folder: Path, size: int, accumulation: int, **settings: Any) -> DescentTrainer:
    """An epoch of 40 rows ends with a step of 8: one micro-batch on each rank instead of two."""
    trainer = make_trainer(
        folder,
        bert(dropout=0.0),
        rows(40),
        per_device_train_batch_size=size,
        per_device_eval_batch_size=5,
        gradient_accumulation_steps=accumulation,
        **(SETTINGS | settings),
    )
    trainer.train()
    return trainer


def worker(folder: Path) -> None:
    """What each of the two processes does."""
    torch.set_num_threads(1)
    trainer = run(folder, size=4, accumulation=2, save_strategy="steps", save_steps=2)
    assert trainer.multipliers is not None
    rank = trainer.args.process_index
    model: Any = trainer.model
    torch.save({"weights": weights(model)}, folder / f"weights_{rank}.bin")
    (folder / f"rank_{rank}.json").write_text(
        json.dumps(
            {
                "multipliers": trainer.multipliers.values.tolist(),
                "history": trainer.descent_history,
                "logs": trainer.state.log_history,
            }
        )
    )
    # Resumed from the second step, both ranks take up the same multipliers.
    if rank == 0:
        (folder / "checkpoint-4").rename(folder / "gone")
    trainer.accelerator.wait_for_everyone()
    again = make_trainer(
        folder,
        bert(dropout=0.0),
        rows(40),
        per_device_train_batch_size=4,
        per_device_eval_batch_size=5,
        gradient_accumulation_steps=2,
        save_strategy="steps",
        save_steps=2,
        **SETTINGS,
    )
    again.train(resume_from_checkpoint=True)
    assert again.multipliers is not None
    (folder / f"resumed_{rank}.json").write_text(json.dumps(again.multipliers.values.tolist()))
    trainer.end()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        "--master_port=0",
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=localhost:0",
    ]
    done = subprocess.run(
        [*launch, str(Path(__file__)), str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def rank(folder: Path, index: int) -> dict[str, Any]:
    return json.loads((folder / f"rank_{index}.json").read_text())


def test_both_ranks_have_the_same_multipliers_and_history(two: Path) -> None:
    assert rank(two, 0)["multipliers"] == rank(two, 1)["multipliers"]
    assert [r["layer_losses"] for r in rank(two, 0)["history"]] == [r["layer_losses"] for r in rank(two, 1)["history"]]


def test_two_processes_do_what_one_does(two: Path, tmp_path: Path) -> None:
    one = run(tmp_path, size=16, accumulation=1)
    assert one.multipliers is not None
    theirs = rank(two, 0)
    assert theirs["multipliers"] == pytest.approx(one.multipliers.values.tolist(), rel=1e-4)
    assert max(theirs["multipliers"]) > 0.1
    for a, b in zip(theirs["history"], one.descent_history, strict=True):
        assert a["layer_losses"] == pytest.approx(b["layer_losses"], rel=1e-4)
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    model: Any = one.model
    saved = torch.load(two / "weights_0.bin", weights_only=True)["weights"]
    for name, value in weights(model).items():
        torch.testing.assert_close(saved[name], value, rtol=1e-4, atol=1e-6)
    evaluated = [entry for entry in theirs["logs"] if "eval_layer_loss/0" in entry]
    expected = [entry for entry in one.state.log_history if "eval_layer_loss/0" in entry]
    for layer in range(4):
        name = f"eval_layer_loss/{layer}"
        assert evaluated[0][name] == pytest.approx(expected[0][name], rel=1e-4)


def test_both_ranks_resume_with_the_same_multipliers(two: Path) -> None:
    resumed = [json.loads((two / f"resumed_{index}.json").read_text()) for index in (0, 1)]
    assert resumed[0] == resumed[1] == rank(two, 0)["multipliers"]
    assert problem_with(two / "checkpoint-4", world_size=2) is None
    assert last_complete_checkpoint(two, world_size=2) == two / "checkpoint-4"


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
    # Everything is written. Threads of gloo that outlive the group abort the interpreter's own exit now and then.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
