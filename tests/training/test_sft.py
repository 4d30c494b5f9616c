"""The mixin on TRL's SFTTrainer: another loss, another trainer, a causal language model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]  # exported lazily

from layerdescent.training import DescentArguments, DescentMixin
from tests.training.tiny import QUIET, same, weights

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


class DescentSFTTrainer(DescentMixin, SFTTrainer):  # type: ignore[misc]  # TRL leaves a class attribute untyped
    pass


@dataclass
class DescentSFTConfig(DescentArguments, SFTConfig):
    pass


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", *(f"w{i}" for i in range(30))]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")


def llama(dropout: float) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=32,
        pad_token_id=0,
        eos_token_id=1,
        attention_dropout=dropout,
    )
    return LlamaForCausalLM(config)


def examples(count: int = 24) -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def text(low: int, high: int) -> str:
        length = int(torch.randint(low, high, (), generator=generator))
        return " ".join(f"w{int(i)}" for i in torch.randint(0, 30, (length,), generator=generator))

    return Dataset.from_list([{"prompt": text(2, 5), "completion": " " + text(3, 9)} for _ in range(count)])


def config(kind: type, folder: Path, **settings: Any) -> Any:
    shared = QUIET | {"output_dir": str(folder), "max_steps": 3, "per_device_train_batch_size": 4, "bf16": False}
    return kind(**(shared | settings))


def trained(kind: type, arguments: Any, dropout: float = 0.1) -> Any:
    trainer = kind(
        model=llama(dropout),
        args=arguments,
        train_dataset=examples(),
        eval_dataset=examples(6),
        processing_class=tokenizer(),
    )
    trainer.train()
    return trainer


def test_without_constraints_it_is_sft(tmp_path: Path) -> None:
    plain = trained(SFTTrainer, config(SFTConfig, tmp_path / "a"))
    for settings in ({"objective": "erm"}, {"dual_lr": 0.0}):
        ours = trained(DescentSFTTrainer, config(DescentSFTConfig, tmp_path / "b", **settings))
        assert same(weights(ours.model), weights(plain.model))


def test_constraints_train_every_layer(tmp_path: Path) -> None:
    trainer = trained(DescentSFTTrainer, config(DescentSFTConfig, tmp_path, dual_lr=1.0, alpha=0.1))
    record = trainer.descent_history[-1]
    assert len(record["layer_losses"]) == 4
    assert max(record["multipliers"]) > 0
    # SFT's own metrics are still logged.
    assert "mean_token_accuracy" in trainer.state.log_history[-2]


def test_layer_losses_are_token_means_of_the_completions(tmp_path: Path) -> None:
    """Each layer through the same token mean that SFT takes of the last one."""
    trainer = trained(
        DescentSFTTrainer, config(DescentSFTConfig, tmp_path, objective="erm", learning_rate=0.0, max_steps=1)
    )
    metrics = trainer.evaluate()
    model = trainer.model.eval()
    sums, count = torch.zeros(4), 0
    for batch in trainer.get_eval_dataloader():
        with torch.no_grad():
            outputs = model(
                input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True
            )
            states = [*(model.model.norm(h) for h in outputs.hidden_states[:-1]), outputs.hidden_states[-1]]
            for layer, state in enumerate(states):
                logits = model.lm_head(state)[:, :-1].flatten(0, 1)
                sums[layer] += functional.cross_entropy(logits, batch["labels"][:, 1:].flatten(), reduction="sum")
        count += int((batch["labels"][:, 1:] != -100).sum())
    expected = (sums / count).tolist()
    assert [metrics[f"eval_layer_loss/{layer}"] for layer in range(4)] == pytest.approx(expected, rel=1e-5)


def test_accumulation_counts_tokens(tmp_path: Path) -> None:
    settings = {"dual_lr": 1.0, "alpha": 0.1, "optim": "sgd", "max_grad_norm": 0, "learning_rate": 0.1}
    whole = trained(
        DescentSFTTrainer, config(DescentSFTConfig, tmp_path / "a", **settings, per_device_train_batch_size=8), 0.0
    )
    pieces = trained(
        DescentSFTTrainer,
        config(
            DescentSFTConfig, tmp_path / "b", **settings, per_device_train_batch_size=2, gradient_accumulation_steps=4
        ),
        0.0,
    )
    torch.testing.assert_close(pieces.multipliers.values, whole.multipliers.values, rtol=1e-4, atol=1e-6)
    for name, value in weights(whole.model).items():
        torch.testing.assert_close(pieces.model.state_dict()[name], value, rtol=1e-4, atol=1e-6)


def test_an_adapter_under_constraints_measured_on_a_part_of_the_tokens(tmp_path: Path) -> None:
    before = weights(llama(0.0))
    trainer = DescentSFTTrainer(
        model=llama(0.0),
        args=config(DescentSFTConfig, tmp_path, dual_lr=1.0, alpha=0.1, token_share=0.5),
        train_dataset=examples(),
        processing_class=tokenizer(),
        peft_config=LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj"], init_lora_weights=False),
    )
    trainer.train()
    assert max(trainer.descent_history[-1]["multipliers"]) > 0
    adapted: Any = trainer.model
    for name, value in adapted.get_base_model().state_dict().items():
        if "lora" not in name:
            assert torch.equal(value, before[name.replace(".base_layer", "")])
