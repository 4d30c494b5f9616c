"""Multipliers in a checkpoint folder, and which checkpoint folders are whole.

Trainer writes a checkpoint folder file by file, `trainer_state.json` last, so a kill in the middle leaves a folder that
looks like the newest checkpoint and is none. (The optimiser's, scheduler's and random states are torch files of its
own; the multipliers are safetensors.)
"""

import json
import logging
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from layerdescent.duals import Multipliers
from layerdescent.errors import RunError
from layerdescent.files import replaced

MULTIPLIERS_NAME = "multipliers.safetensors"

logger = logging.getLogger(__name__)


@contextmanager
def failed_saves_named(what: str) -> Iterator[None]:
    """Turn what a full disk or a closed folder raises into one line that says what could not be saved."""
    try:
        yield
    except RunError:
        raise
    # torch reports a full disk as a RuntimeError.
    except (OSError, SafetensorError, RuntimeError) as error:
        raise RunError(
            f"{what} could not be saved: {error}; what was saved before is whole, so make room and resume"
        ) from error


def save_multipliers(folder: str | os.PathLike[str], multipliers: Multipliers) -> Path:
    """Write the multipliers' state into a checkpoint folder, atomically."""
    path = Path(folder) / MULTIPLIERS_NAME
    constraints = multipliers.constraints
    about = {"form": constraints.form, "nodes": json.dumps(constraints.nodes), "steps": json.dumps(constraints.steps)}
    with replaced(path) as temporary:
        save_file(multipliers.state_dict(), temporary, metadata=about)
    return path


def load_multipliers(folder: str | os.PathLike[str], multipliers: Multipliers) -> None:
    """Take up the multipliers that `save_multipliers` left in a checkpoint folder.

    Raises:
        RunError: the file is missing or damaged, or belongs to other constraints; the multipliers are untouched.
    """
    path = Path(folder) / MULTIPLIERS_NAME
    if not path.is_file():
        raise RunError(
            f"{folder} holds no {MULTIPLIERS_NAME}, so training under constraints cannot go on from it: "
            "resume from a checkpoint of this objective, or start anew"
        )
    try:
        state = load_file(path)
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged ({error}): resume from an older checkpoint") from error
    multipliers.load_state_dict(state)


def problem_with(folder: str | os.PathLike[str], world_size: int = 1) -> str | None:
    """What keeps a folder from being a whole checkpoint, or None when nothing does.

    Every file that Trainer wrote is opened: weights and multipliers (safetensors, whose headers know the file's
    length), torch files (zip archives, whose directory comes last), and `trainer_state.json`, the last to be written.

    Args:
        folder: a `checkpoint-N` folder.
        world_size: processes of the run; each leaves its own random state.
    """
    folder = Path(folder)
    state_file = folder / "trainer_state.json"
    if not state_file.is_file():
        return "trainer_state.json is missing: saving did not finish"
    try:
        step = json.loads(state_file.read_text(encoding="utf-8"))["global_step"]
    except (ValueError, KeyError, TypeError):
        return "trainer_state.json is damaged"
    if re.fullmatch(r"checkpoint-\d+", folder.name) and folder.name != f"checkpoint-{step}":
        return f"trainer_state.json is that of step {step}"
    sharded = any(path.is_dir() for path in folder.iterdir())  # as FSDP and DeepSpeed leave them
    if not sharded and not any(folder.glob("*model*.safetensors")) and not any(folder.glob("*model*.bin")):
        return "it has no weights"
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.pt"), *folder.glob("*.pth"), *folder.glob("*.bin")]:
        if not (_is_safetensors(path) if path.suffix == ".safetensors" else zipfile.is_zipfile(path)):
            return f"{path.name} is damaged"
    # With weights only (save_only_model) there is none of these; else all, or it would go on as another run.
    random_states = ["rng_state.pth"] if world_size == 1 else [f"rng_state_{rank}.pth" for rank in range(world_size)]
    state_files = ["optimizer.pt", "scheduler.pt", *random_states]
    missing = [name for name in state_files if not (folder / name).is_file()]
    weights_only = len(missing) == len(state_files) and not (folder / MULTIPLIERS_NAME).is_file()
    if missing and not weights_only and not sharded:
        return f"{missing[0]} is missing"
    return None


def last_complete_checkpoint(output_dir: str | os.PathLike[str], world_size: int = 1) -> Path | None:
    """The newest whole `checkpoint-N` under a folder.

    Newer ones that are half-written or damaged are named in a warning and left alone.

    Args:
        output_dir: the `output_dir` of a run; may not exist.
        world_size: processes of the run.

    Returns:
        The folder, or None when there is no whole checkpoint.
    """
    output_dir = Path(output_dir)
    if not output_dir.is_dir():
        return None
    folders = [path for path in output_dir.iterdir() if path.is_dir() and re.fullmatch(r"checkpoint-\d+", path.name)]
    for folder in sorted(folders, key=lambda path: int(path.name.rpartition("-")[2]), reverse=True):
        problem = problem_with(folder, world_size)
        if problem is None:
            return folder
        logger.warning("%s is not used: %s", folder, problem)
    return None


def checkpoint_to_resume(wanted: str | bool, output_dir: str, world_size: int = 1) -> Path:
    """The whole checkpoint that a caller means: True for the newest one in `output_dir`, or a path.

    Raises:
        RunError: there is none, or the one named is not whole.
    """
    if wanted is True:
        found = last_complete_checkpoint(output_dir, world_size)
        if found is None:
            raise RunError(f"{output_dir} has no whole checkpoint to resume from: train without resume_from_checkpoint")
        return found
    problem = problem_with(str(wanted), world_size)
    if problem is not None:
        raise RunError(f"cannot resume from {wanted}: {problem}")
    return Path(str(wanted))


def _is_safetensors(path: Path) -> bool:
    try:
        with safe_open(path, framework="pt"):
            return True
    except (SafetensorError, OSError):
        return False
