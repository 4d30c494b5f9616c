"""One optimiser step of DescentTrainer, against plain arithmetic and against transformers' Trainer."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments, ViTConfig, ViTForImageClassification, default_data_collator

from layerdescent.errors import InputError, NonFiniteLossError
from layerdescent.evaluation import descent_profile
from layerdescent.perturbation import Perturbation
from layerdescent.readout import Readout
from layerdescent.training import DescentTrainer
from tests.training.tiny import bert, make_trainer, pad, plain_trainer, rows, same, weights


def trained(trainer: Any) -> dict[str, torch.Tensor]:
    trainer.train()
    return weights(trainer.model)


@pytest.fixture
def erm(tmp_path: Path) -> dict[str, torch.Tensor]:
    """What transformers' Trainer makes of the tiny BERT, dropout on."""
    return trained(plain_trainer(tmp_path / "plain", bert()))


@pytest.mark.parametrize(
    "settings",
    [
        {"objective": "erm"},
        {"objective": "descent", "dual_lr": 0.0},
        {"objective": "descent", "dual_lr": 1.0, "dual_warmup_steps": 100},
        {"objective": "descent", "dual_lr": 0.0, "form": "ratio"},
        {"objective": "descent", "dual_lr": 0.0, "grid": [0, 3]},
        {"objective": "noise", "noise_gamma": 0.0, "hidden_dropout_prob": 0.0},
        {"objective": "deep-supervision", "layer_weights": [0.0, 0.0, 1.0]},
    ],
    ids=str,
)
def test_without_constraints_it_is_the_plain_trainer_to_the_last_bit(
    tmp_path: Path, erm: dict[str, torch.Tensor], settings: dict[str, Any]
) -> None:
    dropout = settings.pop("hidden_dropout_prob", 0.1)
    if dropout != 0.1:  # training noise draws from the stream that dropout draws from
        erm = trained(plain_trainer(tmp_path / "plain0", bert(dropout=dropout)))
    assert same(trained(make_trainer(tmp_path / "ours", bert(dropout=dropout), **settings)), erm)


def test_with_constraints_it_is_not(tmp_path: Path, erm: dict[str, torch.Tensor]) -> None:
    assert not same(trained(make_trainer(tmp_path / "ours", dual_lr=1.0)), erm)


def test_an_image_model_is_trained_alike(tmp_path: Path) -> None:
    def vit() -> ViTForImageClassification:
        torch.manual_seed(0)
        config = ViTConfig(
            image_size=8,
            patch_size=4,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            hidden_dropout_prob=0.1,
            num_labels=3,  # type: ignore[call-arg]  # every config takes it
        )
        return ViTForImageClassification(config)

    data = [{"pixel_values": torch.randn(3, 8, 8), "labels": torch.tensor(i % 3)} for i in range(40)]
    given = {"data_collator": default_data_collator, "eval_dataset": data[:8]}
    plain = trained(plain_trainer(tmp_path / "plain", vit(), data, given))
    assert same(trained(make_trainer(tmp_path / "erm", vit(), data, given=given, objective="erm")), plain)
    constrained = make_trainer(tmp_path / "descent", vit(), data, given=given, dual_lr=1.0)
    assert not same(trained(constrained), plain)
    noisy = make_trainer(tmp_path / "noise", vit(), data, given=given, objective="noise")
    assert not same(trained(noisy), plain)
    with pytest.raises(InputError, match=r"training under noise on a batch of words: give input_ids or pixel_values"):
        noisy._noise(vit(), {"words": 1}, 0.5)


def test_one_step_is_the_gradient_of_the_lagrangian(tmp_path: Path) -> None:
    """SGD with the multipliers set by hand, against autograd of the formula on the readout's losses (no dropout)."""
    model = bert(dropout=0.0)
    reference = bert(dropout=0.0)
    trainer = make_trainer(
        tmp_path, model, rows(8), max_steps=1, optim="sgd", learning_rate=0.1, max_grad_norm=0, alpha=0.1, dual_lr=0.0
    )
    multipliers = torch.tensor([0.5, 2.0, 1.0])
    begin = trainer._begin_training

    def begin_with_multipliers() -> None:
        begin()
        assert trainer.multipliers is not None
        trainer.multipliers.values = multipliers

    trainer._begin_training = begin_with_multipliers  # type: ignore[method-assign]
    trainer.train()

    reference.train()
    batch = pad(rows(8))
    outputs = reference(**batch, output_hidden_states=True)
    F = Readout.for_model(reference).layer_losses(outputs, batch["labels"], batch)
    constraints = [F[1] - 0.9 * F[0].detach(), F[2] - 0.9 * F[1], F[3] - 0.9 * F[2]]
    (F[3] + sum(m * c for m, c in zip(multipliers, constraints, strict=True))).backward()
    for name, parameter in reference.named_parameters():
        step = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(model.get_parameter(name), parameter - 0.1 * step, rtol=1e-5, atol=1e-7)


def test_multipliers_follow_the_dual_step(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, alpha=0.1, dual_lr=0.5, max_steps=3)
    trainer.train()
    history = trainer.descent_history
    values = torch.zeros(3)
    reference = None
    for record in history:
        losses = torch.tensor(record["layer_losses"])
        reference = losses[:-1] if reference is None else 0.9 * reference + 0.1 * losses[:-1]
        values = (values + 0.5 * (losses[1:] - 0.9 * losses[:-1]) / reference).clamp(min=0)
        torch.testing.assert_close(torch.tensor(record["multipliers"]), values, rtol=1e-4, atol=1e-6)
    assert len(history) == 3


def gathered(folder: Path, size: int, accumulation: int, data: int, **settings: Any) -> DescentTrainer:
    trainer = make_trainer(
        folder,
        bert(dropout=0.0),
        rows(data),
        per_device_train_batch_size=size,
        gradient_accumulation_steps=accumulation,
        **({"dual_lr": 1.0, "alpha": 0.1, "max_steps": 6, "train_sampling_strategy": "sequential"} | settings),
    )
    trainer.train()
    return trainer


def assert_alike(a: DescentTrainer, b: DescentTrainer) -> None:
    ours, theirs = weights(a.model), weights(b.model)  # type: ignore[arg-type]
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-4, atol=1e-6)
    if a.multipliers is not None and b.multipliers is not None:
        torch.testing.assert_close(a.multipliers.values, b.multipliers.values, rtol=1e-4, atol=1e-6)
        assert a.multipliers.values.max() > 0.1
    for x, y in zip(a.descent_history, b.descent_history, strict=True):
        assert x["layer_losses"] == pytest.approx(y["layer_losses"], rel=1e-4)
        assert x["loss"] == pytest.approx(y["loss"], rel=1e-4)


# 40 rows in steps of 16 end an epoch with two micro-batches of 4; 42 rows end it with micro-batches of 4, 4 and 2.
@pytest.mark.parametrize("data", [48, 40, 42])
@pytest.mark.parametrize("form", ["difference", "cumulative"])
def test_accumulation_is_exact(tmp_path: Path, data: int, form: str) -> None:
    whole = gathered(tmp_path / "whole", 16, 1, data, form=form)
    pieces = gathered(tmp_path / "pieces", 4, 4, data, form=form)
    assert_alike(whole, pieces)


def test_accumulation_is_exact_with_sgd(tmp_path: Path) -> None:
    """Adam and clipping hide a gradient of the wrong size; SGD without clipping does not."""
    plain = {"optim": "sgd", "max_grad_norm": 0, "learning_rate": 0.1}
    assert_alike(gathered(tmp_path / "whole", 16, 1, 42, **plain), gathered(tmp_path / "pieces", 4, 4, 42, **plain))


@pytest.mark.parametrize("objective", ["erm", "deep-supervision"])
def test_accumulation_is_exact_for_the_other_objectives(tmp_path: Path, objective: str) -> None:
    settings = {"objective": objective, "optim": "sgd", "max_grad_norm": 0, "learning_rate": 0.1}
    assert_alike(
        gathered(tmp_path / "whole", 16, 1, 42, **settings), gathered(tmp_path / "pieces", 4, 4, 42, **settings)
    )


def test_deep_supervision_weighs_the_layers_equally(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, objective="deep-supervision", max_steps=2)
    trainer.train()
    for record in trainer.descent_history:
        assert record["loss"] == pytest.approx(sum(record["layer_losses"][1:]) / 3, rel=1e-5)
    assert trainer.multipliers is None


def test_a_grid_reads_only_its_own_layers(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, grid=[1, 3], dual_lr=1.0)
    trainer.train()
    record = trainer.descent_history[-1]
    assert [loss is None for loss in record["layer_losses"]] == [True, False, True, False]
    assert len(record["multipliers"]) == 1
    assert record["weights"][0] == record["weights"][2] == 0
    # Evaluation reads every layer: it makes the profile.
    assert "eval_layer_loss/0" in trainer.evaluate()


@pytest.mark.parametrize("objective", ["erm", "noise", "deep-supervision"])
def test_a_grid_does_not_disturb_the_other_objectives(tmp_path: Path, objective: str) -> None:
    """One recipe's grid serves all its arms: their violations are measured on it."""
    trainer = make_trainer(tmp_path, grid=[0, 2, 3], objective=objective)
    trainer.train()
    record = trainer.descent_history[-1]
    assert [loss is None for loss in record["layer_losses"]] == [False, objective != "deep-supervision", False, False]
    assert len(record["violations"]) == 2


def test_every_input_has_its_noise_in_training_and_the_same_in_every_evaluation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = ViTConfig(image_size=8, patch_size=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
    model = ViTForImageClassification(config).eval()
    data = [{"pixel_values": torch.rand(3, 8, 8), "labels": i % 2} for i in range(24)]
    given = {"data_collator": default_data_collator, "eval_dataset": data[:10]}

    def evaluated(gamma: float, batch_size: int = 4) -> dict[str, float]:
        settings: dict[str, Any] = {"objective": "erm", "input_gamma": gamma, "per_device_eval_batch_size": batch_size}
        trainer = make_trainer(tmp_path, deepcopy(model), data, given=given, **settings)
        return trainer.evaluate()

    noisy, clean = evaluated(0.7), evaluated(0.0)
    noise = Perturbation("gaussian", gamma=0.7)
    expected = descent_profile(model, data[:10], perturbation=noise, progress=False).mean_losses
    for layer in range(3):
        assert noisy[f"eval_layer_loss/{layer}"] == pytest.approx(expected[layer], rel=1e-5)
        assert evaluated(0.7, 10)[f"eval_layer_loss/{layer}"] == pytest.approx(expected[layer], rel=1e-5)
    assert noisy["eval_layer_loss/2"] != clean["eval_layer_loss/2"]

    def after(gamma: float) -> dict[str, torch.Tensor]:
        settings: dict[str, Any] = {"objective": "erm", "input_gamma": gamma, "max_steps": 2}
        return trained(make_trainer(tmp_path, deepcopy(model), data, given=given, **settings))

    assert same(after(0.7), after(0.7))
    assert not same(after(0.7), after(0.0))


def test_a_loss_outside_of_training_is_that_of_the_batch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, bert(dropout=0.0), objective="erm", max_steps=1)
    trainer.train()
    model: Any = trainer.model
    batch = pad(rows(3))
    expected = model(**batch).loss
    assert trainer.compute_loss(model.train(), batch).item() == pytest.approx(expected.item())


def test_no_dual_step_when_the_optimizer_step_was_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, dual_lr=1.0, max_steps=3)
    skipped = property(lambda accelerator: trainer.state.global_step == 1)
    monkeypatch.setattr(type(trainer.accelerator), "optimizer_step_was_skipped", skipped)
    trainer.train()
    first, second, third = (record["multipliers"] for record in trainer.descent_history)
    assert first == second
    assert third != second


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_nan_stops_before_anything_is_learnt(tmp_path: Path, accumulation: int) -> None:
    """The second step's last micro-batch meets a poisoned embedding."""
    model = bert()
    data = rows(16 * accumulation)
    for row in data:
        row["input_ids"] = [min(i, 48) for i in row["input_ids"]]
    data[-1]["input_ids"] = [1, 49, 49, 49]
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[49] = torch.nan
    settings = {"gradient_accumulation_steps": accumulation, "train_sampling_strategy": "sequential"}
    trainer = make_trainer(tmp_path, model, data, dual_lr=1.0, save_strategy="steps", save_steps=1, **settings)
    with pytest.raises(NonFiniteLossError, match=r"the loss of layer 1 is nan at optimiser step 2.*whole"):
        trainer.train()
    clean = make_trainer(tmp_path / "clean", bert(), data, dual_lr=1.0, **(settings | {"max_steps": 1}))
    # The schedule of one step starts at the same learning rate.
    clean.train()
    with torch.no_grad():
        trained_model: Any = clean.model
        trained_model.bert.embeddings.word_embeddings.weight[49] = torch.nan
    ours, theirs = weights(model), weights(clean.model)  # type: ignore[arg-type]
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0, equal_nan=True)
    assert trainer.multipliers is not None
    assert trainer.multipliers.values.isfinite().all()
    assert (tmp_path / "checkpoint-1" / "trainer_state.json").is_file()


def test_an_unused_layer_may_be_infinite(tmp_path: Path) -> None:
    """Under ERM the losses of the layers below are only watched."""
    trainer = make_trainer(tmp_path, objective="erm", max_steps=1)
    losses = torch.tensor([torch.inf, torch.nan, 1.0, 1.0])
    trainer._step_meter.add(losses, 4)
    trainer._before_optimizer_step()
    trainer.args.objective = "descent"  # type: ignore[attr-defined]
    trainer._set_up_descent()
    trainer._step_meter.add(losses, 4)
    with pytest.raises(NonFiniteLossError, match="layer 0 is inf"):
        trainer._before_optimizer_step()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_rows_without_a_label_do_not_count(tmp_path: Path, smoothing: float) -> None:
    """-100 marks them; a micro-batch of nothing else changes nothing and breaks nothing."""
    data = rows(16)
    for row in data[4:8]:
        row["labels"] = -100
    settings = {"max_steps": 1, "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0}
    settings |= {"label_smoothing_factor": smoothing, "logging_nan_inf_filter": False}
    pieces = gathered(tmp_path / "a", 4, 4, 16, **settings)
    trainer = make_trainer(
        tmp_path / "b",
        bert(dropout=0.0),
        data,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        train_sampling_strategy="sequential",
        **settings,
    )
    trainer.train()
    kept = make_trainer(
        tmp_path / "c",
        bert(dropout=0.0),
        data[:4] + data[8:],
        per_device_train_batch_size=12,
        train_sampling_strategy="sequential",
        **settings,
    )
    kept.train()
    assert trainer.descent_history[0]["layer_losses"] == pytest.approx(
        kept.descent_history[0]["layer_losses"], rel=1e-5
    )
    assert trainer.descent_history[0]["loss"] == pytest.approx(kept.descent_history[0]["loss"], rel=1e-5)
    for name, value in weights(trainer.model).items():  # type: ignore[arg-type]
        torch.testing.assert_close(value, kept.model.state_dict()[name], rtol=1e-5, atol=1e-7)  # type: ignore[union-attr]
    assert pieces.descent_history[0]["layer_losses"] != trainer.descent_history[0]["layer_losses"]


def test_labels_are_needed(tmp_path: Path) -> None:
    def without_labels(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        collated = pad(batch)
        del collated["labels"]
        return collated

    with pytest.raises(InputError, match="input_ids, attention_mask without labels"):
        make_trainer(tmp_path, given={"data_collator": without_labels}).train()


def test_several_gpus_in_one_process_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "n_gpu", property(lambda args: 2))
    with pytest.raises(InputError, match=r"2 GPUs in one process.*torchrun"):
        make_trainer(tmp_path)


def test_each_training_starts_with_multipliers_of_zero(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, dual_lr=1.0, max_steps=2)
    trainer.train()
    first = trainer.descent_history[0]["multipliers"]
    trainer.train()
    again = trainer.descent_history[0]["multipliers"]
    assert max(again) < 1.5 * max(first)


def test_the_dual_step_of_an_epoch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, data=rows(24), dual_lr=1.0, dual_every="epoch", max_steps=6)
    trainer.train()
    history = [record["multipliers"] for record in trainer.descent_history]
    assert history[0] == history[1] == [0.0] * 3
    assert max(history[2]) > 0
    assert history[2] == history[3] == history[4] != history[5]
    logged = [entry for entry in trainer.state.log_history if "layer_loss/0" in entry]
    assert ["capped_share" in entry for entry in logged] == [False, False, True] * 2
