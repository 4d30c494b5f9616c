"""Every family of the readout table trains: without constraints as plain Trainer does, with them on all layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import default_data_collator

from layerdescent.evaluation.batches import load_model
from layerdescent.readout import Readout
from tests.evaluation.tiny import make_clips, make_denoiser
from tests.readout.conftest import FAMILIES, Family
from tests.training.tiny import make_trainer, plain_trainer, same, weights


def data(family: Family) -> list[dict[str, Tensor]]:
    torch.manual_seed(1)
    batch = family.batch(4) | {"labels": family.labels()}
    return [{name: value[row] for name, value in batch.items()} for row in range(4)]


def stack(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_trains(tmp_path: Path, name: str) -> None:
    family = FAMILIES[name]
    rows = data(family)
    settings: dict[str, Any] = {"max_steps": 2, "optim": "sgd", "per_device_train_batch_size": 4}
    given = {"data_collator": stack, "eval_dataset": rows}

    plain = plain_trainer(tmp_path / "plain", family.model(), rows, given, **settings)
    plain.train()
    ours = make_trainer(tmp_path / "ours", family.model(), rows, given=given, dual_lr=0.0, **settings)
    ours.train()
    assert same(weights(ours.model), weights(plain.model))  # type: ignore[arg-type]

    trainer = make_trainer(tmp_path / "descent", family.model(), rows, given=given, dual_lr=1.0, alpha=0.3, **settings)
    before = trainer.evaluate()
    model = family.model()
    batch = stack(rows)
    with torch.no_grad():
        expected = Readout.for_model(model).layer_losses(
            model(**batch, output_hidden_states=True), batch["labels"], batch
        )
    read = [before[f"eval_layer_loss/{layer}"] for layer in range(len(expected))]
    assert read == pytest.approx(expected.tolist(), rel=1e-5)
    trainer.train()
    assert max(trainer.descent_history[-1]["multipliers"]) > 0
    assert not same(weights(trainer.model), weights(plain.model))  # type: ignore[arg-type]


@pytest.mark.parametrize("noise", [0.1, 0.0], ids=["noisy", "clean"])
def test_a_denoiser_trains_on_rows_of_clips(tmp_path: Path, noise: float) -> None:
    rows = make_clips(16, noise)
    given = {"data_collator": default_data_collator, "eval_dataset": rows[:5]}
    trainer = make_trainer(tmp_path, make_denoiser(), rows, given=given, dual_lr=1.0, alpha=0.3, max_steps=2)
    trainer.train()
    losses = trainer.evaluate()
    clean = torch.stack([torch.as_tensor(row["labels"]) for row in rows[:5]])
    noisy = torch.stack([torch.as_tensor(row["pixel_values"]) for row in rows[:5]])
    assert losses["eval_layer_loss/0"] == pytest.approx(float((noisy - clean).square().mean()), rel=1e-5)
    assert losses["eval_layer_loss/3"] == pytest.approx(losses["eval_loss"], rel=1e-5)
    trainer.save_model(str(tmp_path / "saved"))
    again = load_model(tmp_path / "saved")
    assert same(weights(again), weights(trainer.model))  # type: ignore[arg-type]
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert "`import layerdescent.models` registers its class, DustForDenoising" in card
    assert max(len(line) for line in card.splitlines()) < 500
