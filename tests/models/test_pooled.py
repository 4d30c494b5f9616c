"""The mean-pooled classifier: its arithmetic, and that its checkpoints are whole."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, BertModel

from layerdescent.evaluation.batches import load_model
from layerdescent.models import MeanPooledConfig, MeanPooledForSequenceClassification

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 40,
}


def _model(**config: Any) -> MeanPooledForSequenceClassification:
    torch.manual_seed(0)
    return MeanPooledForSequenceClassification(MeanPooledConfig(backbone_config=BertConfig(**SIZES), **config)).eval()


BATCH = {
    "input_ids": torch.tensor([[2, 7, 9, 3], [2, 5, 3, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
}


@torch.no_grad()
def test_logits_are_the_head_of_each_rows_mean_over_its_own_tokens() -> None:
    model = _model(num_labels=3)
    for row in range(2):
        length = int(BATCH["attention_mask"][row].sum())
        hidden = model.encoder(input_ids=BATCH["input_ids"][row : row + 1, :length]).last_hidden_state[0]
        by_hand = sum(hidden[position] for position in range(length)) / length
        expected = model.head.out_proj(torch.tanh(model.head.dense(by_hand)))
        torch.testing.assert_close(model(**BATCH).logits[row], expected, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_padding_says_nothing() -> None:
    model = _model()
    longer = {name: torch.nn.functional.pad(value, (0, 5)) for name, value in BATCH.items()}
    torch.testing.assert_close(model(**longer).logits, model(**BATCH).logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("problem_type", "labels", "expected"),
    [
        ("single_label_classification", torch.tensor([0, 2]), torch.nn.functional.cross_entropy),
        ("regression", torch.tensor([[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]]), torch.nn.functional.mse_loss),
        (
            "multi_label_classification",
            torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]),
            torch.nn.functional.binary_cross_entropy_with_logits,
        ),
    ],
)
def test_the_loss_is_the_one_of_its_problem(problem_type: str, labels: torch.Tensor, expected: Any) -> None:
    outputs = _model(num_labels=3, problem_type=problem_type)(**BATCH, labels=labels)
    torch.testing.assert_close(outputs.loss, expected(outputs.logits, labels))


def test_an_encoder_is_taken_as_it_is_and_its_unread_pooler_is_gone() -> None:
    encoder = BertModel(BertConfig(**SIZES))
    model = MeanPooledForSequenceClassification.around(encoder, num_labels=2)
    assert model.encoder is encoder
    assert not [name for name, _ in model.named_parameters() if "pooler" in name]
    loss = model(**BATCH, labels=torch.tensor([0, 1])).loss
    loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@torch.no_grad()
def test_a_checkpoint_gives_the_same_model_back(tmp_path: Path) -> None:
    model = _model(id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    model.save_pretrained(tmp_path)
    again: Any
    for again in (AutoModelForSequenceClassification.from_pretrained(tmp_path), load_model(tmp_path)):
        assert torch.equal(again(**BATCH).logits, model(**BATCH).logits)
        assert again.config.id2label == {0: "no", 1: "yes"}


def test_a_checkpoint_loads_where_layerdescent_is_not(tmp_path: Path) -> None:
    model = _model()
    model.save_pretrained(tmp_path / "saved")
    code = (
        "import sys; sys.modules['layerdescent'] = None; import torch, transformers;"
        "model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1], trust_remote_code=True);"
        "print(model(input_ids=torch.tensor([[2, 7, 9, 3]])).logits[0].tolist())"
    )
    environment = {"HF_MODULES_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    expected = model(input_ids=torch.tensor([[2, 7, 9, 3]])).logits[0].tolist()
    assert torch.allclose(torch.tensor(json.loads(done.stdout)), torch.tensor(expected))
