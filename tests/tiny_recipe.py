"""A recipe that runs in seconds: a random BERT of two layers on made-up reviews."""

import csv
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

GOOD, BAD = ("fine", "great", "warm", "clever"), ("dull", "poor", "cold", "silly")
NEUTRAL = ("film", "story", "actor", "scene", "music", "ending", "plot", "camera")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def save_checkpoint(folder: Path) -> None:
    """A random BERT with its tokenizer, as `save_pretrained` writes them."""
    words = [*SPECIAL, *GOOD, *BAD, *NEUTRAL]
    tokenizer = Tokenizer(WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=32, **names).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertForSequenceClassification(config).save_pretrained(folder)


def write_reviews(path: Path, count: int, seed: int) -> None:
    """Reviews whose label is that of most of their words."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(count):
            label = number % 2
            words = draw.choices((BAD, GOOD)[label], k=3) + draw.choices(NEUTRAL, k=draw.randrange(1, 8))
            draw.shuffle(words)
            writer.writerow([" ".join(words), label])


def write_recipe(folder: Path, **changes: Any) -> Path:
    """A recipe file in a folder with its own checkpoint and data."""
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(folder / "checkpoint")
    for part, count in (("train", 48), ("validation", 16), ("test", 24)):
        write_reviews(folder / f"{part}.csv", count, seed=len(part))
    recipe: dict[str, Any] = {
        "name": "tiny",
        "title": "A tiny recipe",
        "description": "For tests.",
        "model": {"source": str(folder / "checkpoint")},
        "data": {
            "source": {part: str(folder / f"{part}.csv") for part in ("train", "validation", "test")},
            "max_length": 16,
        },
        "train": {
            "num_train_epochs": 2,
            "per_device_train_batch_size": 8,
            "learning_rate": 1e-3,
            "logging_steps": 1,
            "use_cpu": True,
        },
        "arms": {"erm": {"objective": "erm"}, "descent": {"objective": "descent", "alpha": 0.05, "dual_lr": 0.3}},
        "seeds": [0],
        "evaluation": {"noise": [{"kind": "gaussian", "gammas": [1.0]}], "batch_size": 16},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe | changes))
    return path


@dataclass(frozen=True)
class NoTestPart:
    """The data, whose test part nobody may even ask for."""

    whole: Any

    def __getattr__(self, name: str) -> Any:
        assert name != "test", "the test part was touched"
        return getattr(self.whole, name)
