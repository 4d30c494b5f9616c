"""Settings that people really train with: bf16, gradient checkpointing, adapters, noise, other model families."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification

from layerdescent.readout import Readout
from layerdescent.training import DescentTrainer
from layerdescent.training.capture import capture_hidden_states, clean_positions, embedding_noise
from tests.training.tiny import bert, make_trainer, pad, plain_trainer, rows, same, weights


def trained(trainer: Any) -> Any:
    trainer.train()
    return trainer


def losses_of(trainer: DescentTrainer) -> list[list[float]]:
    return [record["layer_losses"] for record in trainer.descent_history]


def test_bf16_autocast(tmp_path: Path) -> None:
    plain = trained(plain_trainer(tmp_path / "a", bert(), bf16=True))
    erm = trained(make_trainer(tmp_path / "b", dual_lr=0.0, bf16=True))
    assert same(weights(plain.model), weights(erm.model))
    constrained = trained(make_trainer(tmp_path / "c", dual_lr=1.0, alpha=0.1, bf16=True))
    full = trained(make_trainer(tmp_path / "d", dual_lr=1.0, alpha=0.1))
    for low, high in zip(losses_of(constrained), losses_of(full), strict=True):
        assert low == pytest.approx(high, rel=2e-2)
    assert constrained.multipliers.values.dtype == torch.float32
    assert constrained.multipliers.values.max() > 0.1
    # The value of a loss is not rounded to bf16.
    values = torch.tensor(losses_of(constrained)[0])
    assert (values.bfloat16().float() != values).any()


def test_every_layer_is_read_under_the_same_autocast(tmp_path: Path) -> None:
    metrics = make_trainer(tmp_path, bert(dropout=0.0), bf16=True, per_device_eval_batch_size=20).evaluate()
    model, batch = bert(dropout=0.0).eval(), pad(rows(20, seed=1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        outputs = model(**batch, output_hidden_states=True)
        expected = Readout.for_model(model).layer_losses(outputs, batch["labels"], batch)
    read = [metrics[f"eval_layer_loss/{layer}"] for layer in range(4)]
    assert read == pytest.approx(expected.tolist(), rel=1e-6)


def test_weights_in_bf16(tmp_path: Path) -> None:
    """transformers rounds the loss of such a model to bf16, here by 0.5 %; ours are fp32 means."""
    plain = trained(plain_trainer(tmp_path / "a", bert(dropout=0.0).bfloat16(), max_steps=2))
    erm = trained(make_trainer(tmp_path / "b", bert(dropout=0.0).bfloat16(), dual_lr=0.0, max_steps=2))
    assert same(weights(plain.model), weights(erm.model))
    rounded = plain.state.log_history[0]["loss"]
    exact = losses_of(erm)[0][-1]
    assert exact == pytest.approx(rounded, rel=8e-3)
    assert torch.tensor(exact).bfloat16().item() != exact
    trained(make_trainer(tmp_path / "c", bert().bfloat16(), dual_lr=1.0))


def test_gradient_checkpointing(tmp_path: Path) -> None:
    settings = {"dual_lr": 1.0, "alpha": 0.1}
    plain = trained(make_trainer(tmp_path / "a", **settings))
    thrifty = trained(make_trainer(tmp_path / "b", activation_checkpointing=True, **settings))
    for name, value in weights(plain.model).items():
        torch.testing.assert_close(thrifty.model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert torch.equal(plain.multipliers.values, thrifty.multipliers.values)


def lora() -> Any:
    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"], init_lora_weights=False)
    return peft.get_peft_model(bert(), config)


# peft 0.17 asks for a name that transformers 5.24 calls deprecated.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters(tmp_path: Path) -> None:
    plain = trained(plain_trainer(tmp_path / "a", lora()))
    assert same(weights(plain.model), weights(trained(make_trainer(tmp_path / "b", lora(), objective="erm")).model))
    assert same(weights(plain.model), weights(trained(make_trainer(tmp_path / "c", lora(), dual_lr=0.0)).model))
    before = weights(lora())
    settings = {"save_strategy": "steps", "save_steps": 2}
    trainer = trained(make_trainer(tmp_path / "d", lora(), dual_lr=1.0, alpha=0.1, **settings))
    after = weights(trainer.model)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert all("lora" in name or "modules_to_save" in name for name in moved)
    assert {name.partition(".layer.")[2][0] for name in moved if "lora" in name} == {"0", "1", "2"}
    card = (tmp_path / "d" / "checkpoint-4" / "README.md").read_text()
    assert "library_name: peft" in card
    assert "How it was trained" in card
    again = make_trainer(tmp_path / "d", lora(), dual_lr=1.0, alpha=0.1, **settings)
    (tmp_path / "d" / "checkpoint-4").rename(tmp_path / "gone")
    again.train(resume_from_checkpoint=True)
    assert same(weights(again.model), after)  # type: ignore[arg-type]
    assert torch.equal(again.multipliers.values, trainer.multipliers.values)  # type: ignore[union-attr]


def test_a_family_without_a_pooler(tmp_path: Path) -> None:
    def distilbert() -> DistilBertForSequenceClassification:
        torch.manual_seed(0)
        config = DistilBertConfig(
            vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=32
        )
        return DistilBertForSequenceClassification(config)

    data = [row | {"labels": row["labels"] % 2} for row in rows(40)]
    plain = trained(plain_trainer(tmp_path / "a", distilbert(), data))
    assert same(
        weights(plain.model), weights(trained(make_trainer(tmp_path / "b", distilbert(), data, dual_lr=0.0)).model)
    )
    assert len(losses_of(trained(make_trainer(tmp_path / "c", distilbert(), data, dual_lr=1.0)))[0]) == 3


def embeddings(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    seen: list[torch.Tensor] = []
    handle = model.get_input_embeddings().register_forward_hook(lambda module, given, output: seen.append(output))
    model(**batch)
    handle.remove()
    return seen[0]


def test_training_noise_has_its_size_and_leaves_special_tokens_alone() -> None:
    model = bert().eval()
    batch = pad(rows(400))
    clean = clean_positions(batch["input_ids"], batch["attention_mask"], (1,))
    with torch.no_grad():
        before = embeddings(model, batch)
        with embedding_noise(model, 0.5, clean):
            first, second = embeddings(model, batch), embeddings(model, batch)
    scale = 0.5 * model.get_input_embeddings().weight.square().mean().sqrt()
    assert torch.equal(first[clean], before[clean])
    assert ((first - before)[~clean]).std().item() == pytest.approx(scale.item(), rel=0.02)
    assert not torch.equal(first, second)
    assert torch.equal(embeddings(model, batch), before)


def test_the_noise_objective_trains_with_noise_and_evaluates_without(tmp_path: Path) -> None:
    class Tokenizer:
        all_special_ids = (0, 1)

        def save_pretrained(self, folder: str) -> None: ...

    def losses(**settings: Any) -> tuple[list[float], float]:
        trainer = make_trainer(
            tmp_path, bert(dropout=0.0), given={"processing_class": Tokenizer()}, max_steps=1, **settings
        )
        metrics = trainer.evaluate()
        trainer.train()
        return losses_of(trainer)[0], metrics["eval_layer_loss/3"]

    noisy, evaluated = losses(objective="noise", noise_gamma=1.0)
    clean, expected = losses(objective="erm")
    assert evaluated == expected
    # Layer 0 sees the special first token alone; the layers above see the others through attention.
    assert noisy[0] == clean[0]
    assert noisy[1] != clean[1]


def test_a_uniform_noise_level_is_drawn_anew_for_every_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    levels: list[float] = []

    def noise(model: Any, gamma: float, clean: Any) -> Any:
        levels.append(gamma)
        return nullcontext()

    monkeypatch.setattr("layerdescent.training.mixin.embedding_noise", noise)
    steps: dict[str, Any] = {"objective": "noise", "noise_gamma": 3.0, "max_steps": 40, "num_train_epochs": 40}
    make_trainer(tmp_path, noise_level="fixed", **steps).train()
    assert levels == [3.0] * len(levels)
    levels.clear()
    make_trainer(tmp_path, noise_level="uniform", **steps).train()
    assert len(set(levels)) == len(levels) >= 40
    assert 0 <= min(levels) < 0.6
    assert 2.4 < max(levels) < 3
    assert np.mean(levels) == pytest.approx(1.5, abs=0.5)


def test_constraints_under_noise_have_losses_of_their_own_and_leave_the_objective_alone(tmp_path: Path) -> None:
    def run(**settings: Any) -> Any:
        return trained(make_trainer(tmp_path, bert(dropout=0.0), **settings))

    plain, erm = run(dual_lr=0.3), run(objective="erm")
    # Without multipliers a second pass changes nothing that is learnt, to the last bit.
    assert same(weights(run(dual_lr=0.0, constraint_gamma=2.0).model), weights(erm.model))
    # Hardly any noise is hardly any difference: the objective enters once, the constraints as ever.
    for ours, expected in zip(
        weights(run(dual_lr=0.3, constraint_gamma=1e-6).model).values(), weights(plain.model).values(), strict=True
    ):
        torch.testing.assert_close(ours, expected, atol=2e-5, rtol=1e-3)
    noisy = run(dual_lr=0.3, constraint_gamma=2.0)
    assert not same(weights(noisy.model), weights(plain.model))
    assert losses_of(noisy)[0][1] != losses_of(plain)[0][1]  # the multipliers see the losses under noise
    assert same(weights(run(dual_lr=0.3, constraint_gamma=2.0).model), weights(noisy.model))
    assert noisy.evaluate()["eval_layer_loss/3"] == noisy.evaluate()["eval_layer_loss/3"]  # evaluation has no noise


def test_hidden_states_are_captured_and_do_not_leave() -> None:
    model = bert(dropout=0.0)
    batch = pad(rows(3))
    expected = model(**batch, output_hidden_states=True)
    with capture_hidden_states(model) as captured:
        outputs = model(**batch, output_hidden_states=True)
        model(**pad(rows(3, seed=5)), output_hidden_states=True)
    assert outputs.hidden_states is None
    assert captured.logits is not None
    assert torch.equal(captured.logits, expected.logits)
    assert all(torch.equal(a, b) for a, b in zip(captured.hidden_states, expected.hidden_states, strict=True))
    assert model(**batch, output_hidden_states=True).hidden_states is not None
