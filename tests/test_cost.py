"""The cost model against what PyTorch counts, on models that hold no numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

from layerdescent.adapters import add_lora
from layerdescent.cli import app
from layerdescent.cost import (
    Mode,
    ModelShape,
    Step,
    all_layers,
    cost_table,
    flops_ratio,
    plan_budget,
    step_flops,
    step_memory,
)
from layerdescent.errors import InputError
from layerdescent.readout import next_token_labels
from layerdescent.readout.fused import fused_layer_losses

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning"),
]

TINY = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
)
LLAMA_8B = LlamaConfig(
    vocab_size=128256,
    hidden_size=4096,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    intermediate_size=14336,
    max_position_embeddings=8192,
)
SHAPE_8B = ModelShape.of(LLAMA_8B)


def network(config: Any, rank: int | None, device: str = "meta") -> Any:
    with torch.device(device):
        model: Any = LlamaForCausalLM(config)
    if rank:
        model = add_lora(model, r=rank, alpha=2 * rank, dropout=0.0, targets="all-linear").get_base_model()  # type: ignore[operator]
    model.set_attn_implementation("eager")
    return model.train()


def counted(model: Any, step: Step, layers: list[int]) -> int:
    """What PyTorch counts in a step whose layers are read one by one, on all tokens."""
    if step.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    shape = (step.sequences, step.length)
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape[0], 1, shape[1], shape[1])
        if step.lora and step.checkpointing:
            model.enable_input_require_grads()
        states = model.model(ids, attention_mask=mask, use_cache=False, output_hidden_states=True).hidden_states
        total = sum((model.lm_head(states[layer]).sum() for layer in layers), torch.zeros(()))
        total.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("rank", [None, 4])
def test_operations_of_a_tiny_model_are_exactly_what_is_counted(rank: int | None, checkpointing: bool) -> None:
    shape, step = ModelShape.of(TINY), Step(sequences=2, length=16, lora=rank, checkpointing=checkpointing)
    for mode in (Mode(), all_layers(shape), Mode(layers=(1,))):
        assert counted(network(TINY, rank), step, [*mode.layers, 3]) == step_flops(shape, step, mode), mode


@pytest.mark.parametrize("rank", [None, 16])
def test_operations_of_an_8b_model_are_exactly_what_is_counted(rank: int | None) -> None:
    """The shape of Llama 3.1 8B, which would take 16 GB if it held numbers."""
    step = Step(sequences=1, length=512, lora=rank)
    mode = Mode.grid(SHAPE_8B, 4)
    assert counted(network(LLAMA_8B, rank), step, [*mode.layers, 32]) == step_flops(SHAPE_8B, step, mode)


@pytest.mark.parametrize("rank", [None, 4])
def test_the_fused_head_takes_the_operations_of_the_model(rank: int | None) -> None:
    """On the CPU, with labels on a part of the tokens; one row more a call, to learn the vocabulary's size."""
    shape = ModelShape.of(TINY)
    model = network(TINY, rank, "cpu")
    ids = torch.randint(96, (2, 16))
    labels = next_token_labels(ids.where(torch.arange(16) >= 4, -100))
    step = Step(sequences=2, length=16, lora=rank, responses=12 / 16)
    weights = (-0.1, 0.3, 0.0, 0.8)  # layer 2 is read forward only
    weight = model.lm_head.weight
    with FlopCounterMode(display=False) as counter:
        states = model.model(ids, attention_mask=torch.zeros(2, 1, 16, 16), use_cache=False, output_hidden_states=True)
        # A function, for the counter's hooks on modules do not stand gradients taken inside the forward pass.
        fused_layer_losses(states.hidden_states, lambda rows: rows @ weight.T, labels, weights, parameters=[weight])[
            1
        ].backward()
    mode = Mode(layers=(0, 1))
    forward_only = 2 * 24 * 32 * 96
    assert counter.get_total_flops() == step_flops(shape, step, mode) + forward_only + 2 * 32 * 96


def test_inactive_layers_are_read_forward_and_seldom() -> None:
    shape, step = ModelShape.of(TINY), Step(sequences=2, length=16)
    plain, every = step_flops(shape, step), step_flops(shape, step, all_layers(shape)) - step_flops(shape, step)
    calm = Mode(layers=(0, 1, 2), inactive=1.0, refresh=4)
    assert step_flops(shape, step, calm) - plain == pytest.approx(every / 3 / 4)
    sampled = Mode(layers=(0, 1, 2), token_share=0.25)
    assert step_flops(shape, step, sampled) - plain == pytest.approx((every + every / 3) / 4)


def kept_for_backward(config: Any, rank: int | None, shape: tuple[int, int]) -> int:
    """Bytes that the layers keep, each storage once, weights aside."""
    model = network(config, rank)
    model.set_attn_implementation("sdpa")
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in weights:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    with torch.device("meta"), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mask = torch.zeros(shape[0], 1, shape[1], shape[1])
        outputs = model.model(torch.zeros(shape, dtype=torch.long), attention_mask=mask, use_cache=False)
    del outputs
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_activations_are_about_what_autograd_keeps(rank: int | None, dtype: torch.dtype) -> None:
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=1408,
    )
    torch.set_default_dtype(dtype)
    try:
        kept = kept_for_backward(config, rank, (2, 16))
    finally:
        torch.set_default_dtype(torch.float32)
    step = Step(sequences=2, length=16, lora=rank, bytes_each=dtype.itemsize)
    assert step_memory(ModelShape.of(config), step).activations == pytest.approx(kept, rel=0.2)


def test_memory_of_an_8b_model_is_weights_first() -> None:
    parameters = sum(parameter.numel() for parameter in network(LLAMA_8B, None).parameters())
    assert SHAPE_8B.parameters == pytest.approx(parameters, rel=1e-4)  # norms are left aside
    step = Step(sequences=8, length=1024, lora=16, checkpointing=True)
    exact = step_memory(SHAPE_8B, step, all_layers(SHAPE_8B))
    assert exact.weights == pytest.approx(2 * parameters, rel=0.02)
    assert exact.total < 1.15 * step_memory(SHAPE_8B, step).total
    naive = step_memory(SHAPE_8B, step, all_layers(SHAPE_8B), fused=False)
    assert naive.logits > 33 * 8192 * 128256 * 2  # the 69 GB of logits in bf16, and their fp32 copies
    full = step_memory(SHAPE_8B, Step(sequences=8, length=1024))
    assert full.optimizer == 2 * 2 * SHAPE_8B.parameters


def test_a_budget_is_met_as_exactly_as_it_allows() -> None:
    step = Step(sequences=8, length=1024, lora=16)
    words = [plan_budget(SHAPE_8B, step, budget).mode.words(SHAPE_8B) for budget in (4.0, 2.2, 1.6, 1.3, 1.1, 1.02)]
    assert words[:3] == ["all layers", "16 layers", "8 layers"]
    shares = [plan_budget(SHAPE_8B, step, budget).mode.token_share for budget in (1.3, 1.1, 1.02)]
    assert shares == sorted(shares, reverse=True)
    for budget in (4.0, 1.6, 1.1, 1.02):
        plan = plan_budget(SHAPE_8B, step, budget)
        assert plan.ratio == flops_ratio(SHAPE_8B, step, plan.mode) <= budget
        assert all(ratio > budget for _, ratio in plan.considered)
        assert plan.mode.words(SHAPE_8B) in plan.why
    with pytest.raises(InputError, match=r"no mode stays within 1\.001 of plain training: the cheapest, "):
        plan_budget(SHAPE_8B, Step(sequences=1, length=64, lora=16), 1.001)
    with pytest.raises(InputError, match="the budget is 1: plain training costs 1"):
        plan_budget(SHAPE_8B, step, 1.0)


def test_shapes_of_other_families_and_bad_input() -> None:
    gpt2 = ModelShape.of(GPT2Config())
    assert gpt2.parameters == pytest.approx(124e6, rel=0.01)
    assert not gpt2.gated
    with pytest.raises(InputError, match=r"is modelled for llama.*this model is a vit"):
        ModelShape.of(type("Config", (), {"model_type": "vit"}))
    with pytest.raises(InputError, match="counts must be at least 1"):
        Step(sequences=0, length=4)
    with pytest.raises(InputError, match="they must lie in"):
        Mode(token_share=0.0)
    with pytest.raises(InputError, match="5 layers are to be read, and the model has 3"):
        Mode.grid(ModelShape.of(TINY), 5)


def test_the_command_prints_a_table_and_a_mode(tmp_path: Path) -> None:
    LlamaConfig(**{**LLAMA_8B.to_dict(), "architectures": ["LlamaForCausalLM"]}).save_pretrained(tmp_path)
    asked = ["cost", str(tmp_path), "--lora", "16", "--length", "1024"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "within 1.1: 8 layers, 1/8 of the tokens: 1.066 of plain training's operations" in done.output
    assert "settings: grid: [4, 8, 12, 16, 20, 24, 28, 32], token_share: 0.125" in done.output
    failed = CliRunner().invoke(app, [*asked, "--bytes", "3"])
    assert failed.exit_code == 2
    assert "--bytes is 3: choose 2" in failed.output


def test_the_table_compares_with_plain_training() -> None:
    step = Step(sequences=8, length=1024, lora=16, checkpointing=True)
    lines = cost_table(SHAPE_8B, step, [Mode.grid(SHAPE_8B, 8, 1 / 8)]).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "plain training",
        "8 layers, 1/8 of the tokens",
        "all layers, all logits kept",
    ]
