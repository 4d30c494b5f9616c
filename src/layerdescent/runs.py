"""One run of a recipe: an arm with a seed, its folder, and its training.

ROOT/runs/ARM-seedK/checkpoints/     while it trains
ROOT/runs/ARM-seedK/model/           its model, an ordinary checkpoint
ROOT/runs/ARM-seedK/run.json         written last: the run is finished when it is there
"""

import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    set_seed,
)

from layerdescent.data import PreparedText, resolve_model
from layerdescent.environment import describe_environment
from layerdescent.errors import InputError
from layerdescent.files import write_json
from layerdescent.recipes import Recipe
from layerdescent.training import DescentConfig, DescentTrainer, descent_history, last_complete_checkpoint
from layerdescent.training.progress import DescentPrinter


@dataclass(frozen=True, eq=False)
class Run:
    """One arm with one seed, and where it lives."""

    recipe: Recipe
    arm: str
    seed: int
    root: Path
    overrides: tuple[tuple[str, Any], ...] = ()  # of the frontier: one setting of the baseline changed

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        changed = "".join(f"@{field}={value}" for field, value in self.overrides)
        return f"{self.arm}{changed}-seed{self.seed}"

    @property
    def folder(self) -> Path:
        """Everything of this run."""
        return self.root / "runs" / self.name

    @property
    def checkpoints(self) -> Path:
        """Where the run can be resumed from, while it trains."""
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        """The finished model."""
        return self.folder / "model"

    @property
    def record(self) -> Path:
        """There when the run is finished."""
        return self.folder / "run.json"

    @property
    def settings(self) -> dict[str, Any]:
        """The training settings of this run: the recipe's, then the arm's, then what the frontier changed."""
        return {**self.recipe.arm_settings(self.arm), **dict(self.overrides)}

    @property
    def objective(self) -> str:
        """What the run minimises."""
        return self.settings.get("objective", DescentConfig.objective)


def training_config(run: Run, progress: bool) -> DescentConfig:
    """The arguments of a run: the recipe's, over defaults that make arms comparable."""
    settings = run.settings
    known = {field.name for field in fields(DescentConfig)}
    for name in settings:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"recipe {run.recipe.name}, arm {run.arm}: DescentConfig has no field {name!r}{hint}")
    # The newest checkpoint serves resuming, the best one the selection on clean validation data.
    defaults: dict[str, Any] = {
        "eval_strategy": "epoch",
        "save_strategy": settings.get("eval_strategy", "epoch"),
        "save_steps": settings.get("eval_steps", 500),
        "save_total_limit": 2,
        "load_best_model_at_end": True,
        "logging_steps": 10,
        "use_cpu": not torch.accelerator.is_available(),  # bf16 on the CPU has to be told
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "report_to": "none",
        "per_device_eval_batch_size": run.recipe.evaluation.batch_size,
    }
    return DescentConfig(
        output_dir=str(run.checkpoints),
        seed=run.seed,
        data_seed=run.seed,
        disable_tqdm=not progress,
        **{**defaults, **settings},
    )


class _StepTimer(TrainerCallback):
    """Seconds of every optimiser step, without evaluation and saving."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.seconds.append(time.perf_counter() - self._started)


class _KeepWeights(TrainerCallback):
    """Keeps the model at the ends of all but the last of `count` equal parts of training, for the frontier."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in {state.max_steps * part // self.count for part in range(1, self.count)}:
            for part in ("model", "processing_class"):
                kwargs[part].save_pretrained(self.folder / f"step-{state.global_step}")


def _load_model(run: Run, data: PreparedText) -> PreTrainedModel:
    source = resolve_model(run.recipe.model.source)
    names = dict(enumerate(data.label_names or ["value"]))
    config = AutoConfig.from_pretrained(
        source,
        revision=run.recipe.model.revision,
        id2label=names,
        label2id={name: number for number, name in names.items()},
        problem_type=data.problem_type,
    )
    try:
        return AutoModelForSequenceClassification.from_pretrained(
            source, revision=run.recipe.model.revision, config=config
        )
    except OSError as error:
        raise InputError(f"model {run.recipe.model.source} cannot be loaded: {error}") from None


def train_run(run: Run, data: PreparedText, tokenizer: PreTrainedTokenizerBase, *, progress: bool) -> None:
    """Train a run from where it was stopped, keep its model, and write its record last.

    Raises:
        InputError: the model cannot be loaded or has no readout.
        RunError: a loss is not a number, a checkpoint is damaged, or there is no space left.
    """
    config = training_config(run, progress)
    set_seed(run.seed)  # the new head is drawn here
    timer = _StepTimer()
    callbacks: list[TrainerCallback] = [timer]
    if run.recipe.frontier and run.recipe.frontier.checkpoints and run.arm == run.recipe.baseline:
        callbacks.append(_KeepWeights(run.folder / "along", run.recipe.frontier.checkpoints))
    trainer = DescentTrainer(
        model=_load_model(run, data),
        args=config,
        train_dataset=data.train,
        eval_dataset=data.validation,
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    if not progress:
        trainer.remove_callback(DescentPrinter)
    checkpoint = last_complete_checkpoint(run.checkpoints)
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    seconds = time.perf_counter() - started
    shutil.rmtree(run.model, ignore_errors=True)  # half of a model, from a stop in the middle of this save
    trainer.save_model(str(run.model))
    (run.model / "training_args.bin").unlink(missing_ok=True)  # a pickle, and run.json says more
    constraints = trainer.constraints
    write_json(
        run.record,
        {
            "arm": run.arm,
            "seed": run.seed,
            "settings": run.settings,
            "alpha": list(constraints.alphas) if config.objective == "descent" else None,
            "nodes": list(constraints.nodes),
            "steps": trainer.state.global_step,
            "resumed_from": checkpoint.name if checkpoint else None,
            "seconds": seconds,
            "step_seconds": statistics.median(timer.seconds) if timer.seconds else None,
            "best_checkpoint_step": trainer.state.best_global_step,
            "history": _columns(trainer.descent_history),
            "validation": _kept_evaluation(trainer),
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
            "environment": describe_environment(),
        },
    )
    shutil.rmtree(run.checkpoints, ignore_errors=True)


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A list of records as one list for each quantity that all of them have."""
    names = ("step", "layer_losses", "violations", "weights", "multipliers", "slacks", "active_share")
    return {name: [record[name] for record in records] for name in names if all(name in record for record in records)}


def _kept_evaluation(trainer: DescentTrainer) -> dict[str, Any] | None:
    """What the evaluation of the kept checkpoint said; None when there was none."""
    records = descent_history(trainer.state.log_history, "eval_")
    return next((record for record in records if record["step"] == trainer.state.best_global_step), None)
