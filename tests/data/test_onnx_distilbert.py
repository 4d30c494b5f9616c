"""A quantised graph becomes the checkpoint whose weights it stands for, or one line says why not."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator
from safetensors.numpy import load_file
from tokenizers import Tokenizer
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, DistilBertModel

from layerdescent.data.onnx_distilbert import convert_distilbert, dequantise, read_distilbert
from layerdescent.errors import InputError
from tests.data.tiny_onnx import HEADS, HIDDEN, LAYERS, POSITIONS, WIDTH, WORDS, TinyGraph, write_tokenizer


@pytest.fixture(scope="module")
def graph() -> TinyGraph:
    return TinyGraph()


@pytest.fixture(scope="module")
def checkpoint(graph: TinyGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    path, words = graph.save(folder / "tagger.onnx"), write_tokenizer(folder / "words.json")
    before = torch.get_rng_state()
    convert_distilbert(path, words, folder / "model")
    assert torch.equal(torch.get_rng_state(), before)  # a first run draws the head that a second one draws
    return folder / "model"


def test_every_weight_is_what_its_integers_stand_for(graph: TinyGraph, checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    assert weights.keys() == graph.truth.keys()
    for name, expected in graph.truth.items():
        assert weights[name].dtype == np.float32
        np.testing.assert_allclose(weights[name], expected, rtol=1e-7, atol=1e-7, err_msg=name)


def test_the_checkpoint_computes_what_the_graph_computes(graph: TinyGraph, checkpoint: Path) -> None:
    """By onnx's own evaluator, with padding: so the sizes, the heads and the order of all parts are right too."""
    ids = np.array([[2, 6, 7, 5, 3], [2, 8, 3, 0, 0]])
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    evaluated: Any = ReferenceEvaluator(graph.model()).run(None, {"input_ids": ids, "mask": mask})
    *expected, labels = evaluated
    model = AutoModel.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        outputs = model(torch.tensor(ids), attention_mask=torch.tensor(mask), output_hidden_states=True)
    assert labels.shape == (2, 5, 3)
    assert len(outputs.hidden_states) == len(expected) == 1 + LAYERS
    for ours, theirs in zip(outputs.hidden_states, expected, strict=True):
        np.testing.assert_allclose(ours[mask == 1], theirs[mask == 1], atol=2e-5)


def test_transformers_finds_all_of_it_and_only_a_new_head_is_missing(checkpoint: Path) -> None:
    model, found = AutoModel.from_pretrained(checkpoint, output_loading_info=True)
    assert isinstance(model, DistilBertModel)
    assert not any(found.values())
    _, found = AutoModelForSequenceClassification.from_pretrained(checkpoint, output_loading_info=True, num_labels=3)
    assert {name.split(".")[0] for name in found["missing_keys"]} == {"pre_classifier", "classifier"}
    config = json.loads((checkpoint / "config.json").read_text())
    sizes = {"dim": WIDTH, "hidden_dim": HIDDEN, "n_heads": HEADS, "n_layers": LAYERS, "pad_token_id": 0}
    assert config.items() >= {**sizes, "max_position_embeddings": POSITIONS, "vocab_size": len(WORDS)}.items()


def test_the_tokenizer_keeps_case_and_length(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    assert tokenizer("Film film fine dull bad") == {"input_ids": [2, 5, 6, 7, 8, 1, 3], "attention_mask": [1] * 7}
    assert tokenizer.model_max_length == POSITIONS
    assert Tokenizer.from_file(str(checkpoint / "tokenizer.json")).truncation is None
    assert (tokenizer.pad_token_id, tokenizer.mask_token_id) == (0, 4)


@given(
    st.lists(st.integers(-128, 127), min_size=6, max_size=6),
    st.lists(st.integers(-128, 127), min_size=3, max_size=3),
    st.integers(0, 1),
    st.booleans(),
)
def test_dequantising_is_the_formula_along_any_axis(q: list[int], zeros: list[int], axis: int, negative: bool) -> None:
    integers = np.array(q, np.int8).reshape((3, 2) if axis == 0 else (2, 3))
    scales = np.array([0.5, 0.25, 2], np.float32)
    numbers = dequantise(integers, scales, np.array(zeros, np.int8), axis - 2 if negative else axis)
    for place, integer in np.ndenumerate(integers):
        assert numbers[place] == (int(integer) - zeros[place[axis]]) * float(scales[place[axis]])
    assert np.array_equal(dequantise(integers, scales[:1], None), integers * np.float32(0.5))


def test_scales_that_fit_no_axis() -> None:
    with pytest.raises(InputError, match=r"scales of shape \(3,\) do not fit axis 1 of a tensor of shape \(3, 2\)"):
        dequantise(np.zeros((3, 2), np.int8), np.ones(3, np.float32))


# What is refused -----------------------------------------------------------------------------------------------------


def without(name: str) -> Callable[[onnx.GraphProto], None]:
    return lambda graph: [graph.node.remove(node) for node in list(graph.node) if node.name == name]  # type: ignore[return-value]


def renamed(old: str, new: str) -> Callable[[onnx.GraphProto], None]:
    def change(graph: onnx.GraphProto) -> None:
        for node in graph.node:
            node.name = node.name.replace(old, new)

    return change


def one_more(graph: onnx.GraphProto) -> None:
    table = onnx.numpy_helper.from_array(np.ones((2, WIDTH), np.float32), "distilbert.embeddings.token_types")
    graph.initializer.append(table)


def other_epsilon(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f = 1e-5


def cut_tensor(graph: onnx.GraphProto) -> None:
    tensor = next(tensor for tensor in graph.initializer if tensor.name.endswith("lin1.bias"))
    tensor.raw_data = tensor.raw_data[:-3]


def wrong_shape(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        if tensor.name.endswith("layer.1.ffn.lin1.bias"):
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.zeros(HIDDEN + 1, np.float32), tensor.name))


def scale_elsewhere(graph: onnx.GraphProto) -> None:
    """The integers themselves are looked up, and scaled behind that."""
    for node in graph.node:
        if node.name == "/distilbert/embeddings/word_embeddings/Gather":
            node.input[0] = "distilbert.embeddings.word_embeddings.weight_quantized"


def computed_weight(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        if node.name == "/distilbert/transformer/layer.0/attention/k_lin/MatMul":
            node.input[1] = "input_ids"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (renamed("/distilbert/", "/bert/"), "no node /distilbert/embeddings/word_embeddings/Gather"),
        (renamed("layer.0/", "layer.7/"), "it has no layer"),
        (without("/distilbert/transformer/layer.1/attention/v_lin/MatMul"), "no node .*layer.1/attention/v_lin/MatMul"),
        (without("/distilbert/transformer/layer.0/ffn/activation/Erf"), "no node .*/Erf"),
        (without("/distilbert/transformer/layer.0/attention/Concat"), "no node .*layer.0/attention/Concat"),
        (one_more, r"no place for 1 of its tensors \(distilbert.embeddings.token_types\)"),
        (other_epsilon, "epsilon 1e-05 and not 1e-12"),
        (wrong_shape, r"layer.1.ffn.lin1.bias has shape \(13,\), where \(12,\) is needed"),
        (scale_elsewhere, r"input 0 of .*word_embeddings/Gather is int8 of shape \(9, 8\)"),
        (computed_weight, "input 1 of .*k_lin/MatMul is no stored weight"),
    ],
)
def test_another_architecture(
    graph: TinyGraph, tmp_path: Path, change: Callable[[onnx.GraphProto], None], message: str
) -> None:
    model = graph.model()
    change(model.graph)
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(
        InputError, match=f"other[.]onnx is not the ONNX graph of a DistilBERT: .*({message})"
    ) as caught:
        read_distilbert(tmp_path / "other.onnx")
    assert "\n" not in str(caught.value)


def test_missing_and_damaged_graphs(graph: TinyGraph, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.onnx cannot be read: No such file"):
        read_distilbert(tmp_path / "gone.onnx")
    path = graph.save(tmp_path / "cut.onnx")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match=r"cut\.onnx is damaged, or no ONNX file"):
        read_distilbert(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="not the ONNX graph of a DistilBERT"):
        read_distilbert(path)
    model = graph.model()
    cut_tensor(model.graph)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InputError, match=r"is damaged: its tensor distilbert\..*lin1.bias cannot be read"):
        read_distilbert(path)


def test_a_missing_onnx_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InputError, match=r"needs onnx, which is not installed here; run: pip install onnx$"):
        read_distilbert(tmp_path / "tagger.onnx")


def test_a_tokenizer_that_does_not_belong(graph: TinyGraph, tmp_path: Path) -> None:
    path, words = graph.save(tmp_path / "tagger.onnx"), write_tokenizer(tmp_path / "tokenizer.json")
    content = json.loads(words.read_text())
    content["model"]["vocab"]["extra"] = len(WORDS)
    words.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"tokenizer\.json knows 10 words, and the model 9"):
        convert_distilbert(path, words, tmp_path / "model")
    for text in ("{}", "{"):
        words.write_text(text)
        with pytest.raises(InputError, match=r"tokenizer\.json is no tokenizer"):
            convert_distilbert(path, words, tmp_path / "model")
    assert not (tmp_path / "model").exists()
