"""One run of a recipe: an arm with a seed, its folder, and its training.

ROOT/runs/ARM-seedK/checkpoints/     while it trains
ROOT/runs/ARM-seedK/model/           its model, an ordinary checkpoint
ROOT/runs/ARM-seedK/run.json         written last: the run is finished when it is there
"""

import math
import re
import shutil
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from filelock import FileLock, Timeout
from pydantic import ConfigDict, TypeAdapter, ValidationError
from transformers import (
    EvalPrediction,
    PreTrainedTokenizerBase,
    TrainerCallback,
    set_seed,
)

from layerdescent.environment import describe_environment
from layerdescent.errors import InputError, RunError, no_such_field
from layerdescent.evaluation.batches import correctness
from layerdescent.files import write_json
from layerdescent.readout import ProblemType
from layerdescent.recipes import Recipe
from layerdescent.tasks import Prepared, task_of
from layerdescent.training import DescentConfig, DescentTrainer, descent_history, last_complete_checkpoint
from layerdescent.training.progress import DescentPrinter


@dataclass(frozen=True, eq=False)
class Run:
    """One arm with one seed, and where it lives."""

    recipe: Recipe
    arm: str
    seed: int
    root: Path
    overrides: tuple[tuple[str, Any], ...] = ()  # what the frontier or a search changes of the arm's settings
    width: int | None = None  # where the frontier changes the network's, which `recipe` then has as well

    @property
    def label(self) -> str:
        """The arm, with what is changed of it."""
        changed = [*self.overrides, *([] if self.width is None else [("width", self.width)])]
        return self.arm + "".join(f"@{field}={_in_a_name(value)}" for field, value in changed)

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return f"{self.label}-seed{self.seed}"

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
        """The training settings of this run: the recipe's, then the arm's, then the overrides."""
        return {**self.recipe.arm_settings(self.arm), **dict(self.overrides)}

    @property
    def objective(self) -> str:
        """What the run minimises."""
        return self.settings.get("objective", DescentConfig.objective)


def _in_a_name(value: Any) -> str:
    """A setting as part of a folder's name; schedules and long lists by their hash."""
    text = "none" if value is None else str(value)
    return text if re.fullmatch(r"[\w.+-]{1,40}", text) else blake2b(text.encode(), digest_size=6).hexdigest()


# What transformers finds out in the middle of a run, or not at all: the least and the most of a field.
_RANGES = {
    "num_train_epochs": (0, math.inf),
    "learning_rate": (0, math.inf),
    "weight_decay": (0, math.inf),
    "label_smoothing_factor": (0, 1),
    "per_device_train_batch_size": (1, math.inf),
    "per_device_eval_batch_size": (1, math.inf),
    "gradient_accumulation_steps": (1, math.inf),
    "eval_accumulation_steps": (1, math.inf),
    "dataloader_num_workers": (0, math.inf),
}


def training_config(run: Run, progress: bool) -> DescentConfig:
    """The arguments of a run: the recipe's, over defaults that make arms comparable.

    Raises:
        InputError: a field that DescentConfig does not have, or a value that it does not take.
    """
    where = f"recipe {run.recipe.name}, arm {run.label}"
    # YAML reads the strategy `no` as False.
    settings = {
        name: "no" if value is False and name.endswith("_strategy") else value for name, value in run.settings.items()
    }
    known = get_type_hints(DescentConfig)
    for name, value in settings.items():
        if name not in known:
            raise no_such_field(f"{where}: DescentConfig", name, known)
        try:
            TypeAdapter(known[name], config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            raise InputError(f"{where}: {name} is {value!r}: {error.errors()[0]['msg'].lower()}") from None
        low, high = _RANGES.get(name, (-math.inf, math.inf))
        if isinstance(value, int | float) and not low <= value <= high:
            raise InputError(
                f"{where}: {name} is {value!r}: give at least {low}" + (f", at most {high}" if high < math.inf else "")
            )
    task: str = run.recipe.data.task
    if settings.get("label_smoothing_factor") and task not in ("classification", "next-token"):
        raise InputError(f"{where}: label_smoothing_factor needs classes, and data.task is {task}")
    evaluated = settings.get("eval_strategy", "epoch")
    # The newest checkpoint serves resuming, the best one the selection on clean validation data.
    defaults: dict[str, Any] = {
        "eval_strategy": evaluated,
        "save_strategy": "epoch" if evaluated == "no" else evaluated,
        "save_steps": settings.get("eval_steps", 500),
        "save_total_limit": 2,
        "load_best_model_at_end": evaluated != "no",
        "logging_steps": 10,
        "use_cpu": not torch.accelerator.is_available(),  # bf16 on the CPU has to be told
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "report_to": "none",
        "per_device_eval_batch_size": run.recipe.evaluation.batch_size,
        # Logits of a whole validation part, of a language model, are larger than any memory.
        "prediction_loss_only": task == "next-token",
    }
    fixed = {"output_dir": str(run.checkpoints), "seed": run.seed, "data_seed": run.seed, "disable_tqdm": not progress}
    try:
        return DescentConfig(**{**defaults, **settings, **fixed})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except Exception as error:  # transformers raises whatever its checks happen to be
        raise InputError(f"{where}: {str(error) or type(error).__name__}") from None


class _StepTimer(TrainerCallback):
    """Seconds of every optimiser step, without evaluation and saving, and of every wait for its rows before it."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.waits: list[float] = []
        self._started = self._ended = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()
        if self._ended:
            self.waits.append(self._started - self._ended)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._ended = time.perf_counter()
        self.seconds.append(self._ended - self._started)

    def on_log(self, *_: Any, **__: Any) -> None:  # what stands between this step and the next is not only rows
        self._ended = 0.0

    on_evaluate = on_save = on_log


class _KeepWeights(TrainerCallback):
    """Keeps the model at the ends of all but the last of `count` equal parts of training, for the frontier."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in {state.max_steps * part // self.count for part in range(1, self.count)}:
            for part in ("model", "processing_class"):
                if kwargs[part] is not None:  # only text has a tokenizer
                    kwargs[part].save_pretrained(self.folder / f"step-{state.global_step}")


def train_run(run: Run, data: Prepared, tokenizer: PreTrainedTokenizerBase | None, *, progress: bool) -> None:
    """Train a run from where it was stopped, keep its model, and write its record last.

    Raises:
        InputError: the model cannot be loaded or has no readout.
        RunError: a loss is not a number, a checkpoint is damaged, there is no space left, or another process trains
            this run.
    """
    if not train_unless_locked(run, data, tokenizer, progress=progress):
        raise RunError(f"{run.folder} is being trained by another process: wait for it, or use another --folder")


def train_unless_locked(
    run: Run,
    data: Prepared,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    progress: bool,
    starting: Callable[[], object] | None = None,
) -> bool:
    """As `train_run`; False, and nothing done, while another process trains this run; else `starting` is called."""
    run.folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(run.folder / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        return False
    try:
        if not run.record.is_file():
            if starting is not None:
                starting()
            _train(run, data, tokenizer, progress)
    finally:
        lock.release()  # which the system does too when the process ends, however it ends
    return True


def _metric(metric: str, task: str) -> Callable[[EvalPrediction], dict[str, float]]:
    """The recipe's metric on the rows of an evaluation, for Trainer to log: {metric: value}."""

    def of_outputs(outputs: EvalPrediction) -> dict[str, float]:
        predictions: Any = outputs.predictions
        logits = torch.from_numpy(predictions[0] if isinstance(predictions, tuple) else predictions).double()
        labels = torch.from_numpy(outputs.label_ids)
        if metric == "rmse":
            return {metric: (logits.reshape(labels.shape) - labels).square().mean().sqrt().item()}
        kind: ProblemType = "multi_label_classification" if task == "multi-label" else "single_label_classification"
        hits = correctness(logits, labels, kind)
        assert hits is not None  # only a regression has none
        return {metric: hits.double().mean().item()}

    return of_outputs


def _train(run: Run, data: Prepared, tokenizer: PreTrainedTokenizerBase | None, progress: bool) -> None:
    config = training_config(run, progress)
    set_seed(run.seed)  # the new head, or the adapters, are drawn here
    timer = _StepTimer()
    callbacks: list[TrainerCallback] = [timer]
    if run.recipe.frontier and run.recipe.frontier.checkpoints and run.arm == run.recipe.baseline:
        callbacks.append(_KeepWeights(run.folder / "along", run.recipe.frontier.checkpoints))
    task, metric = task_of(run.recipe), run.recipe.metric
    trainer = DescentTrainer(
        model=task.new_model(data),
        args=config,
        train_dataset=data.train,
        eval_dataset=data.validation,
        processing_class=tokenizer,
        callbacks=callbacks,
        data_collator=task.collator(tokenizer),
        # The trainer knows the perplexity itself.
        compute_metrics=None if metric == "perplexity" else _metric(metric, run.recipe.data.task),
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
            "data_seconds": statistics.median(timer.waits) if timer.waits else None,
            "best_checkpoint_step": trainer.state.best_global_step,
            "history": _columns(trainer.descent_history),
            "validation_curve": _validation_curve(trainer.state.log_history),
            "validation": _kept_evaluation(trainer, run.recipe.metric),
            "peak_memory_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
            "environment": describe_environment(),
        },
    )
    shutil.rmtree(run.checkpoints, ignore_errors=True)


def _columns(records: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A list of records as one list for each quantity that all of them have."""
    names = ("step", "layer_losses", "violations", "weights", "multipliers", "slacks", "active_share")
    return {name: [record[name] for record in records] for name in names if all(name in record for record in records)}


def _validation_curve(log: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The loss of the last layer at every evaluation."""
    found = {entry["step"]: entry["eval_loss"] for entry in log if "eval_loss" in entry}
    return {"step": list(found), "loss": list(found.values())}


def late_fall(curve: Mapping[str, Sequence[float]], share: float = 0.2) -> float | None:
    """By what share of itself a loss fell over the last `share` of the steps; negative where it rose.

    Between evaluations it is taken as a straight line. None where there is no evaluation before that.

    >>> late_fall({"step": [40, 60, 100], "loss": [0.5, 0.4, 0.39]})  # 0.395 at step 80
    0.0126...
    """
    steps, losses = curve["step"], curve["loss"]
    if not steps or steps[0] > (start := (1 - share) * steps[-1]):
        return None
    before = float(np.interp(start, steps, losses))
    return 1 - losses[-1] / before


def _kept_evaluation(trainer: DescentTrainer, metric: str) -> dict[str, Any] | None:
    """What the evaluation of the kept checkpoint said, with the metric's value; None when there was none."""
    kept = [
        entry
        for entry in trainer.state.log_history
        if entry["step"] == trainer.state.best_global_step and "eval_loss" in entry
    ]
    return {**descent_history(kept, "eval_")[0], metric: kept[0].get(f"eval_{metric}")} if kept else None
