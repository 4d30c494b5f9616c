"""Tiny models and data for the tests of training."""

from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from layerdescent.training import DescentConfig, DescentTrainer

Rows = list[dict[str, Any]]


def bert(num_layers: int = 3, dropout: float = 0.1, seed: int = 0, **config: Any) -> BertForSequenceClassification:
    """A random BERT of hidden size 32; the same seed gives the same weights."""
    torch.manual_seed(seed)
    settings = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 32,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "num_labels": 3,
    }
    return BertForSequenceClassification(BertConfig(**(settings | config)))


def rows(count: int, seed: int = 0, num_labels: int = 3) -> Rows:
    """Sentences of unequal length whose label is the residue class of their second token."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        length = int(torch.randint(4, 12, (), generator=generator))
        ids = torch.randint(5, 50, (length,), generator=generator)
        ids[0] = 1
        made.append({"input_ids": ids.tolist(), "labels": int(ids[1]) % num_labels})
    return made


def pad(batch: Rows) -> dict[str, torch.Tensor]:
    """Collate rows: pad with 0, mask."""
    longest = max(len(row["input_ids"]) for row in batch)
    ids = [row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in batch]
    mask = [[1] * len(row["input_ids"]) + [0] * (longest - len(row["input_ids"])) for row in batch]
    return {
        "input_ids": torch.tensor(ids),
        "attention_mask": torch.tensor(mask),
        "labels": torch.tensor([row["labels"] for row in batch]),
    }


QUIET: dict[str, Any] = {
    "use_cpu": True,
    "disable_tqdm": True,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "max_steps": 4,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 8,
    "learning_rate": 1e-3,
    "dataloader_pin_memory": False,
}


def make_trainer(
    folder: Path,
    model: Any = None,
    data: Any = None,
    cls: Any = DescentTrainer,
    given: Any = None,
    **settings: Any,
) -> DescentTrainer:
    """A DescentTrainer on the tiny BERT.

    Args:
        folder: of the run.
        model: instead of the tiny BERT.
        data: training rows instead of 40 of the usual ones.
        cls: a subclass of DescentTrainer.
        given: further arguments of the trainer.
        **settings: fields of DescentConfig.
    """
    arguments = {
        "model": bert() if model is None else model,
        "args": DescentConfig(**({"output_dir": str(folder)} | QUIET | settings)),
        "data_collator": pad,
        "train_dataset": rows(40) if data is None else data,
        "eval_dataset": rows(20, seed=1),
    }
    return cls(**(arguments | (given or {})))


def plain_trainer(folder: Path, model: Any, data: Any = None, given: Any = None, **settings: Any) -> Trainer:
    """transformers' own Trainer on the same model, data and arguments."""
    arguments = {
        "model": model,
        "args": TrainingArguments(**({"output_dir": str(folder)} | QUIET | settings)),
        "data_collator": pad,
        "train_dataset": rows(40) if data is None else data,
        "eval_dataset": rows(20, seed=1),
    }
    return Trainer(**(arguments | (given or {})))


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A copy of a model's state."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two states agree to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
