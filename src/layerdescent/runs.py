"""One run of a recipe: an arm with a seed, its folder, and its training.

ROOT/runs/ARM-seedK/checkpoints/     while it trains
ROOT/runs/ARM-seedK/model/           its model, an ordinary checkpoint
ROOT/runs/ARM-seedK/run.json         written last: the run is finished when it is there
"""

import math
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_type_hints

import torch
from filelock import FileLock, Timeout
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError
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
from layerdescent.errors import InputError, RunError
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
    where = f"recipe {run.recipe.name}, arm {run.arm}"
    # YAML reads the strategy `no` as False.
    settings = {
        name: "no" if value is False and name.endswith("_strategy") else value for name, value in run.settings.items()
    }
    known = get_type_hints(DescentConfig)
    for name, value in settings.items():
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise InputError(f"{where}: DescentConfig has no field {name!r}{hint}")
        try:
            TypeAdapter(known[name], config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)
        except ValidationError as error:
            raise InputError(f"{where}: {name} is {value!r}: {error.errors()[0]['msg'].lower()}") from None
        low, high = _RANGES.get(name, (-math.inf, math.inf))
        if isinstance(value, int | float) and not low <= value <= high:
            raise InputError(
                f"{where}: {name} is {value!r}: give at least {low}" + (f", at most {high}" if high < math.inf else "")
            )
    if settings.get("label_smoothing_factor") and run.recipe.data.task != "classification":
        raise InputError(f"{where}: label_smoothing_factor needs classes, and data.task is {run.recipe.data.task}")
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
    }
    fixed = {"output_dir": str(run.checkpoints), "seed": run.seed, "data_seed": run.seed, "disable_tqdm": not progress}
    try:
        return DescentConfig(**{**defaults, **settings, **fixed})
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    except Exception as error:  # transformers raises whatever its checks happen to be
        raise InputError(f"{where}: {str(error) or type(error).__name__}") from None


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
    name = f"model {run.recipe.model.source}"
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            source,
            revision=run.recipe.model.revision,
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise InputError(f"{name} cannot be loaded: {error}") from None
    of_encoder = f"{model.base_model_prefix}."
    # The head may be new, and with it the pooler that only the head uses.
    wrong = [weight for weight in info["missing_keys"] if ".pooler." not in weight]
    wrong += [weight for weight, *_ in info["mismatched_keys"]]
    wrong = sorted(weight for weight in wrong if weight.startswith(of_encoder))
    if wrong:
        raise InputError(
            f"{name} does not fit its config.json: {len(wrong)} of its weights are missing or of another shape "
            f"({wrong[0]}); give a whole checkpoint"
        )
    for weight, stored, wanted in info["mismatched_keys"]:
        raise InputError(
            f"{name} has a head of its own ({weight} is {tuple(stored)}), and these data have {len(names)} labels: "
            f"{', '.join(names.values())} (it would be {tuple(wanted)}); take a model without a head, or data that fit"
        )
    return model


def train_run(run: Run, data: PreparedText, tokenizer: PreTrainedTokenizerBase, *, progress: bool) -> None:
    """Train a run from where it was stopped, keep its model, and write its record last.

    Raises:
        InputError: the model cannot be loaded or has no readout.
        RunError: a loss is not a number, a checkpoint is damaged, there is no space left, or another process trains
            this run.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(
            run.folder / "lock", timeout=0
        ):  # the system lets go of it when the process ends, however it ends
            if not run.record.is_file():
                _train(run, data, tokenizer, progress)
    except Timeout:
        raise RunError(
            f"{run.folder} is being trained by another process: wait for it, or use another --folder"
        ) from None


def _train(run: Run, data: PreparedText, tokenizer: PreTrainedTokenizerBase, progress: bool) -> None:
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
