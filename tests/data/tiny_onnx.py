"""A small DistilBERT as a quantised ONNX graph, node by node as PyTorch's exporter names them."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "Film", "film", "fine", "dull"]
POSITIONS, WIDTH, HIDDEN, HEADS, LAYERS = 7, 8, 12, 2, 2


@dataclass
class TinyGraph:
    """The graph, and what its encoder's parameters are, by the names of `DistilBertModel`."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    stored: list[onnx.TensorProto] = field(default_factory=list)
    truth: dict[str, NDArray[Any]] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._encoder()
        self._head()

    def model(self) -> onnx.ModelProto:
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, [None, None]) for n in ("input_ids", "mask")]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "tiny", inputs, outputs, self.stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        onnx.checker.check_model(model)
        return model

    def save(self, path: Path) -> Path:
        path.write_bytes(self.model().SerializeToString())
        return path

    # Pieces ----------------------------------------------------------------------------------------------------------

    def node(self, kind: str, name: str, inputs: list[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"{name}_output_0"], name=name, **attributes))
        return f"{name}_output_0"

    def store(self, name: str, value: Any) -> str:
        self.stored.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def constant(self, name: str, value: Any) -> str:
        return self.node("Constant", name, [], value=numpy_helper.from_array(np.asarray(value)))

    def quantised(self, name: str, shape: tuple[int, int], kind: type, per_column: bool) -> tuple[str, NDArray[Any]]:
        """A stored integer tensor behind a DequantizeLinear node, and the numbers it stands for."""
        limits = np.iinfo(kind)
        q = self.rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
        scale = self.rng.uniform(0.002, 0.01, shape[1] if per_column else ()).astype(np.float32)
        zero = self.rng.integers(limits.min, limits.max, scale.shape, kind, endpoint=True)
        self.store(f"{name}_quantized", q)
        self.store(f"{name}_scale", scale)
        self.store(f"{name}_zero_point", zero)
        inputs = [f"{name}_{part}" for part in ("quantized", "scale", "zero_point")]
        numbers = (q.astype(float) - zero.astype(float)) * scale.astype(float)  # columns lie along the last axis
        return self.node("DequantizeLinear", f"{name}_DequantizeLinear", inputs, axis=1), numbers

    def linear(self, x: str, module: str, shape: tuple[int, int], kind: type = np.int8) -> str:
        """A MatMul and an Add; the bias comes first, as the quantiser leaves it."""
        path = f"/{module.replace('.', '/').replace('layer/', 'layer.')}"
        weight, numbers = self.quantised(f"onnx::MatMul_{len(self.stored)}", shape, kind, per_column=kind is np.uint8)
        bias = self.rng.normal(size=shape[1]).astype(np.float32)
        self.truth[f"{module}.weight"], self.truth[f"{module}.bias"] = numbers.T, bias
        product = self.node("MatMul", f"{path}/MatMul", [x, weight])
        return self.node("Add", f"{path}/Add", [self.store(f"{module}.bias", bias), product])

    def norm(self, x: str, module: str) -> str:
        path = f"/{module.replace('.', '/').replace('layer/', 'layer.')}"
        inputs = [x]
        for name in ("weight", "bias"):
            self.truth[f"{module}.{name}"] = self.rng.normal(size=WIDTH).astype(np.float32)
            inputs.append(self.store(f"{module}.{name}", self.truth[f"{module}.{name}"]))
        return self.node("LayerNormalization", f"{path}/LayerNormalization", inputs, axis=-1, epsilon=1e-12)

    def rounded(self, x: str) -> str:
        """An activation's QuantizeLinear and DequantizeLinear."""
        rounding = [self.store(f"{x}_scale", np.float32(0.05)), self.store(f"{x}_zero_point", np.int8(4))]
        quantised = self.node("QuantizeLinear", f"{x}_QuantizeLinear", [x, *rounding])
        return self.node("DequantizeLinear", f"{x}_DequantizeLinear", [quantised, *rounding])

    # The whole -------------------------------------------------------------------------------------------------------

    def _encoder(self) -> None:
        tables = {"word": len(WORDS), "position": POSITIONS}
        found = {}
        for (name, rows), kind in zip(tables.items(), (np.int8, np.uint8), strict=True):
            module = f"distilbert.embeddings.{name}_embeddings"
            table, self.truth[f"{module}.weight"] = self.quantised(f"{module}.weight", (rows, WIDTH), kind, False)
            ids = "input_ids" if name == "word" else self._positions()
            found[name] = self.node("Gather", f"/distilbert/embeddings/{name}_embeddings/Gather", [table, ids])
        x = self.node("Add", "/distilbert/embeddings/Add", [found["word"], found["position"]])
        x = self.norm(x, "distilbert.embeddings.LayerNorm")
        self.outputs.append(x)
        open_ = self.node("Cast", "/distilbert/Cast", ["mask"], to=TensorProto.FLOAT)
        axes = self.constant("/distilbert/Constant_1", [1, 2])
        open_ = self.node("Unsqueeze", "/distilbert/Unsqueeze", [open_, axes])
        one = self.constant("/distilbert/Constant_2", np.float32(1))
        shut = self.node("Sub", "/distilbert/Sub", [open_, one])
        far = self.constant("/distilbert/Constant_3", np.float32(1e9))
        shut = self.node("Mul", "/distilbert/Mul", [shut, far])
        for number in range(LAYERS):
            x = self._layer(x, shut, f"distilbert.transformer.layer.{number}", (np.int8, np.uint8)[number])
            self.outputs.append(x)
        self.truth = {name.removeprefix("distilbert."): value for name, value in self.truth.items()}

    def _positions(self) -> str:
        """0 … tokens - 1, from the ids: a sum along the row of ones before."""
        ones = self.node("Mul", "/distilbert/embeddings/Mul", ["mask", self.constant("/distilbert/Constant_4", [[0]])])
        ones = self.node("Add", "/distilbert/embeddings/Add_1", [ones, self.constant("/distilbert/Constant_5", [[1]])])
        axis = self.constant("/distilbert/Constant_6", np.int64(1))
        return self.node("CumSum", "/distilbert/embeddings/CumSum", [ones, axis], exclusive=1)

    def _layer(self, x: str, shut: str, module: str, kind: type) -> str:
        path = f"/{module.replace('.', '/').replace('layer/', 'layer.')}"
        heads = {}
        for letter in "qkv":
            flat = self.linear(x, f"{module}.attention.{letter}_lin", (WIDTH, WIDTH), kind)
            suffix = {"q": "", "k": "_1", "v": "_2"}[letter]
            lengths = [[0], [0], [-1], [WIDTH // HEADS]]
            names = [f"{path}/attention/Constant{suffix}_{place}" for place in range(4)]
            parts = [self.constant(name, length) for name, length in zip(names, lengths, strict=True)]
            shape = self.node("Concat", f"{path}/attention/Concat{suffix}", parts, axis=0)
            split = self.node("Reshape", f"{path}/attention/Reshape{suffix}", [flat, shape])
            order = [0, 2, 3, 1] if letter == "k" else [0, 2, 1, 3]
            heads[letter] = self.node("Transpose", f"{path}/attention/Transpose{suffix}", [split], perm=order)
        scale = self.constant(f"{path}/attention/Constant_6", np.float32((WIDTH // HEADS) ** -0.5))
        scores = self.node("MatMul", f"{path}/attention/MatMul", [heads["q"], heads["k"]])
        scores = self.node("Mul", f"{path}/attention/Mul", [scores, scale])
        scores = self.node("Add", f"{path}/attention/Add", [scores, shut])
        shares = self.node("Softmax", f"{path}/attention/Softmax", [scores], axis=-1)
        mixed = self.node("MatMul", f"{path}/attention/MatMul_1", [shares, heads["v"]])
        mixed = self.node("Transpose", f"{path}/attention/Transpose_3", [mixed], perm=[0, 2, 1, 3])
        whole = self.constant(f"{path}/attention/Constant_7", [0, 0, WIDTH])
        mixed = self.node("Reshape", f"{path}/attention/Reshape_3", [mixed, whole])
        mixed = self.linear(mixed, f"{module}.attention.out_lin", (WIDTH, WIDTH), kind)
        x = self.norm(self.node("Add", f"{path}/Add", [mixed, x]), f"{module}.sa_layer_norm")
        inner = self.linear(x, f"{module}.ffn.lin1", (WIDTH, HIDDEN), kind)
        root = self.constant(f"{path}/ffn/activation/Constant", np.float32(2**0.5))
        bent = self.node("Div", f"{path}/ffn/activation/Div", [inner, root])
        bent = self.node("Erf", f"{path}/ffn/activation/Erf", [bent])
        one = self.constant(f"{path}/ffn/activation/Constant_1", np.float32(1))
        bent = self.node("Add", f"{path}/ffn/activation/Add", [bent, one])
        bent = self.node("Mul", f"{path}/ffn/activation/Mul", [inner, bent])
        half = self.constant(f"{path}/ffn/activation/Constant_2", np.float32(0.5))
        bent = self.node("Mul", f"{path}/ffn/activation/Mul_1", [bent, half])
        outer = self.linear(bent, f"{module}.ffn.lin2", (HIDDEN, WIDTH), kind)
        return self.norm(self.node("Add", f"{path}/Add_1", [outer, x]), f"{module}.output_layer_norm")

    def _head(self) -> None:
        """The task's: a label for each token, whose parameters are not the encoder's."""
        encoder = dict(self.truth)
        self.outputs.append(self.linear(self.rounded(self.outputs[-1]), "classifier", (WIDTH, 3)))
        self.truth = encoder


def write_tokenizer(path: Path) -> Path:
    """Whole words in their own case, cut at three tokens, as whoever packed the file liked it."""
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=False)
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    core.enable_truncation(3)
    core.save(str(path))
    return path
