"""Rows to batches, and what is said when they do not fit."""

from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import HfHubHTTPError
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import (
    AlbertConfig,
    AlbertForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
)

from layerdescent.errors import InputError, NonFiniteLossError, RunError
from layerdescent.evaluation.batches import (
    collate,
    correctness,
    evaluating,
    labels_of,
    layer_outputs,
    length_sorted,
    load_config,
    load_model,
    load_tokenizer,
    problem_type,
    stored_tokenizer,
)
from layerdescent.readout import ProblemType, Readout
from tests.evaluation.tiny import Rows, make_model, make_rows


@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.integers(1, 8))
def test_every_row_is_in_one_batch_and_the_longest_come_first(lengths: list[int], batch_size: int) -> None:
    batches = length_sorted([{"input_ids": [0] * length} for length in lengths], batch_size)
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    assert all(len(batch) == batch_size for batch in batches[:-1])


def test_rows_are_padded_by_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = collate([{"input_ids": [2, 7, 3], "labels": 1}, {"input_ids": [2, 3], "labels": 0}], tokenizer)
    assert batch["input_ids"].tolist() == [[2, 7, 3], [2, 3, 0]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert "labels" not in batch


def test_pixels_are_stacked() -> None:
    pixels = [[[0.0, 1.0], [2.0, 3.0]]]
    assert collate([{"pixel_values": pixels}] * 3)["pixel_values"].shape == (3, 1, 2, 2)


def test_rows_of_different_length_need_a_tokenizer() -> None:
    with pytest.raises(InputError, match="pass processing_class"):
        collate([{"input_ids": [1, 2]}, {"input_ids": [1]}])


def test_rows_without_inputs_name_their_columns() -> None:
    with pytest.raises(InputError, match="text, label"):
        collate([{"text": "fine", "label": 1}])


def test_no_rows_and_no_batch_size() -> None:
    with pytest.raises(InputError, match="no data"):
        length_sorted([], 4)
    with pytest.raises(InputError, match="batch_size"):
        length_sorted([{"input_ids": [1]}], 0)


def test_the_problem_type_is_the_heads() -> None:
    def kind(label: object, **config: Any) -> str:
        return problem_type(Readout.for_model(make_model(**config)), [{"labels": label}])

    assert kind(1) == "single_label_classification"
    assert kind([0, 1]) == "multi_label_classification"
    assert kind(0.5, num_labels=1) == "regression"
    assert kind(1, problem_type="regression") == "regression"


def test_labels_are_checked() -> None:
    one: ProblemType = "single_label_classification"
    with pytest.raises(InputError, match=r"0 … 1, but row 1 has 2"):
        labels_of([{"labels": 0}, {"labels": 2}], one, 2)
    with pytest.raises(InputError, match="one integer a row"):
        labels_of([{"labels": "good"}], one, 2)
    with pytest.raises(InputError, match="rename yours"):
        labels_of([{"label": 1}], one, 2)
    with pytest.raises(InputError, match="3 labels each"):
        labels_of([{"labels": [0, 1]}], "multi_label_classification", 3)


def test_correctness_of_several_labels_needs_all_of_them() -> None:
    logits = torch.tensor([[2.0, -1.0], [2.0, 1.0]])
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    right = correctness(logits, labels, "multi_label_classification")
    assert right is not None
    assert right.tolist() == [True, False]
    assert correctness(logits, labels, "regression") is None


def test_every_module_gets_its_own_mode_back() -> None:
    model = make_model().train()
    model.bert.encoder.layer[0].eval()
    before = [module.training for module in model.modules()]
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == before


def test_an_unfinished_stream_leaves_the_model_as_it_was(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model().train()
    stream = layer_outputs(
        model, rows, length_sorted(rows, 8), "single_label_classification", processing_class=tokenizer
    )
    next(stream)
    assert not torch.is_inference_mode_enabled()
    stream.close()  # type: ignore[attr-defined]
    assert model.training


def test_a_loss_that_is_not_finite_is_named(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model()
    with torch.no_grad():
        model.get_parameter("bert.encoder.layer.1.output.dense.bias").fill_(float("nan"))
    batches = [[4, 7]]
    with pytest.raises(NonFiniteLossError, match="layer 2 is nan on row 4"):
        list(layer_outputs(model, rows, batches, "single_label_classification", processing_class=tokenizer))


def test_a_checkpoint_is_loaded_by_its_own_class(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model(num_labels=5)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = load_model(tmp_path)
    assert isinstance(loaded, BertForSequenceClassification)
    assert torch.equal(loaded.classifier.weight, model.classifier.weight)
    assert load_tokenizer(None, tmp_path, make_rows(1)).pad_token == "[PAD]"


def test_missing_and_damaged_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no model at"):
        load_model(tmp_path / "nowhere")
    make_model().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(RunError, match="damaged"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["nosuchfolder", "runs/nosuchfolder"])
def test_a_misspelt_folder_is_named_at_once_where_no_hub_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers would try six times, and sleep 23 s in between."""
    asked = []

    def unreachable(request: Any, *_: object, **__: object) -> None:
        asked.append(request)
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(type(huggingface_hub.get_session()), "send", unreachable)
    with pytest.raises(InputError, match=f"no model at {name}: .*no such folder here, and the hub does not answer"):
        load_model(name)
    assert len(asked) == 1


@pytest.mark.parametrize("answer", [True, False, HfHubHTTPError("gated", response=MagicMock())])
def test_a_hub_that_answers_is_left_to_transformers(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.file_exists", MagicMock(side_effect=[answer]))
    loading = MagicMock(return_value="its configuration")
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", loading)
    assert load_config("owner/name", "v1") == "its configuration"
    loading.assert_called_once_with("owner/name", revision="v1")


def test_a_model_in_the_hub_s_cache_is_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models--owner--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "snapshots" / "abc" / "config.json").write_text("{}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.file_exists", lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda name, revision: f"{name}, cached")
    assert load_config("owner/name") == "owner/name, cached"


@pytest.mark.parametrize("change", [{"num_hidden_layers": 4}, {"vocab_size": 7}, {"num_labels": 3}])
def test_a_checkpoint_whose_weights_do_not_fit_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """transformers would fill the gaps with random weights."""
    model = make_model()
    model.save_pretrained(tmp_path)
    model.config.update(change)
    model.config.save_pretrained(tmp_path)
    with pytest.raises(RunError, match=r"does not fit its config\.json"):
        load_model(tmp_path)


def test_a_tokenizer_made_up_where_files_are_missing_is_refused(tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path)
    with pytest.raises(InputError, match="knows 5 tokens, the special ones"):
        stored_tokenizer(tmp_path)


def test_a_tokenizer_gives_no_more_than_the_model_has_positions(
    tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    make_model(max_position_embeddings=20).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert stored_tokenizer(tmp_path).model_max_length == 20
    RobertaConfig(max_position_embeddings=22, pad_token_id=1).save_pretrained(tmp_path)
    assert stored_tokenizer(tmp_path).model_max_length == 20


def test_a_model_without_a_head_is_refused(tmp_path: Path) -> None:
    BertModel(BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)).save_pretrained(
        tmp_path
    )
    with pytest.raises(InputError, match="BertModel"):
        Readout.for_model(load_model(tmp_path))


def test_bf16_is_the_models_forward_alone(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model(2).eval()
    batches = length_sorted(rows, 8)
    stream: dict[str, Any] = {"processing_class": tokenizer}
    exact, coarse = (
        list(layer_outputs(model, rows, batches, "single_label_classification", **stream, bf16=bf16))
        for bf16 in (False, True)
    )
    for one, other in zip(exact, coarse, strict=True):
        inputs = collate([rows[index] for index in other.indices], tokenizer)
        with torch.no_grad():
            with torch.autocast("cpu", torch.bfloat16):
                states = model(**inputs, output_hidden_states=True).hidden_states
            logits = torch.stack([model.classifier(model.bert.pooler(state.float())) for state in states])
        assert other.logits.dtype == other.losses.dtype == torch.float32
        torch.testing.assert_close(other.logits, logits)
        for layer, losses in enumerate(other.losses):
            torch.testing.assert_close(losses, functional.cross_entropy(logits[layer], other.labels, reduction="none"))
        assert not torch.equal(one.losses[-1], other.losses[-1])
        torch.testing.assert_close(one.losses, other.losses, atol=0.1, rtol=0.05)


def test_readouts_get_states_of_the_models_precision_in_bf16(
    rows: Rows, tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ALBERT's embeddings leave a linear layer, so autocast hands them out in bfloat16."""
    sizes: dict[str, Any] = {"vocab_size": 60, "hidden_size": 16, "embedding_size": 8, "intermediate_size": 24}
    torch.manual_seed(0)
    model = AlbertForSequenceClassification(AlbertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2))
    seen: list[torch.dtype] = []
    read = Readout.logits

    def spied(self: Readout, hidden_states: Any, batch: Any = None) -> Any:
        seen.extend(state.dtype for state in hidden_states)
        return read(self, hidden_states, batch)

    monkeypatch.setattr(Readout, "logits", spied)
    list(layer_outputs(model, rows, [[0]], "single_label_classification", processing_class=tokenizer, bf16=True))
    assert seen == [torch.float32] * 3
