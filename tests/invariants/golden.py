"""Two short training runs whose numbers are kept: `golden.json` holds what they were.

When the numbers are meant to change, write them anew and say in the commit why:

    python -m tests.invariants.golden
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

from layerdescent.environment import describe_environment
from layerdescent.files import write_json
from layerdescent.training import DescentConfig, DescentTrainer

GOLDEN = Path(__file__).with_name("golden.json")
STEPS = 8
ARMS: dict[str, dict[str, Any]] = {
    "erm": {"objective": "erm"},
    "descent": {"objective": "descent", "alpha": 0.2, "dual_lr": 1.0, "resilience": 5.0},
}


def _model() -> BertForSequenceClassification:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        initializer_range=0.3,  # large enough that layers differ from the start
    )
    return BertForSequenceClassification(config)


def _rows() -> list[dict[str, Any]]:
    """Sixteen batches' worth of sentences; the label says whether their second token is odd."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 60, (128, 12), generator=generator)
    return [{"input_ids": row, "labels": int(row[1]) % 2} for row in ids]


def run(arm: str) -> dict[str, list[Any]]:
    """Layer losses, and multipliers where there are some, after every step of an arm; dropout on."""
    with tempfile.TemporaryDirectory() as folder:
        args = DescentConfig(
            folder,
            **ARMS[arm],
            seed=0,
            max_steps=STEPS,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            lr_scheduler_type="constant",
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = DescentTrainer(model=_model(), args=args, train_dataset=_rows())
        trainer.train()
        history = trainer.descent_history
    kept = {"layer_losses": [entry["layer_losses"] for entry in history]}
    if arm == "descent":
        kept["multipliers"] = [entry["multipliers"] for entry in history]
    return kept


if __name__ == "__main__":
    torch.set_num_threads(1)
    write_json(GOLDEN, {"environment": describe_environment(), "runs": {arm: run(arm) for arm in ARMS}})
    sys.stdout.write(f"written to {GOLDEN}\n")
