"""A DistilBERT out of a quantised ONNX graph: its weights as ordinary numbers, in a folder that transformers loads.

Quantisation for ONNX stores a weight as integers and puts a DequantizeLinear node between them and the node that uses
them (QDQ). Those nodes are undone here, number by number; the ones that round activations carry no weights and are left
behind. What the weights lost when they were rounded stays lost.

Which tensor belongs to which parameter is read off the graph: PyTorch's exporter names a node after the module it came
from. Whatever does not match DistilBERT exactly, one weight missing or one left over, is an error.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from layerdescent.errors import InputError

if TYPE_CHECKING:
    from onnx import NodeProto, TensorProto

Array = NDArray[np.float32]

# The modules of DistilBertModel, each with the name of the node that uses its parameters.
_EMBEDDINGS = ("embeddings.word_embeddings", "embeddings.position_embeddings")
_EMBEDDINGS_NORM = "embeddings.LayerNorm"
_LINEAR = ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "ffn.lin1", "ffn.lin2")
_NORMS = ("sa_layer_norm", "output_layer_norm")

_ENCODER = "/distilbert/"  # all other modules of the graph are the head of the task it was trained for
_NORM_EPSILON = 1e-12  # DistilBERT has no field for it


def dequantise(
    quantised: NDArray[Any], scale: NDArray[Any], zero_point: NDArray[Any] | None = None, axis: int = 1
) -> Array:
    """The numbers that integers stand for, as ONNX defines DequantizeLinear: `w = (q - zero_point) * scale`.

    Args:
        quantised: q, integers of any shape.
        scale: One number for the whole tensor, or one for each index along `axis`.
        zero_point: The integer that stands for 0, of the shape of `scale`; None for 0.
        axis: Which axis several scales run along.

    Returns:
        w, float32, of q's shape.

    Raises:
        InputError: The number of scales fits neither.

    Example:
        >>> q = np.array([[1, 2], [3, 4]], dtype=np.int8)
        >>> dequantise(q, scale=np.array([0.25, 10]), zero_point=np.array([1, 0]))
        array([[ 0. , 20. ],
               [ 0.5, 40. ]], dtype=float32)
    """
    zero = np.zeros(np.shape(scale), dtype=np.int32) if zero_point is None else zero_point
    if scale.size == 1:
        shape = (1,) * quantised.ndim
    elif -quantised.ndim <= axis < quantised.ndim and scale.shape == (quantised.shape[axis],):
        shape = tuple(length if at == axis % quantised.ndim else 1 for at, length in enumerate(quantised.shape))
    else:
        raise InputError(f"scales of shape {scale.shape} do not fit axis {axis} of a tensor of shape {quantised.shape}")
    # Subtracted with room to spare: in int8, 127 - (-1) would be -128.
    difference = quantised.astype(np.int32) - zero.astype(np.int32).reshape(shape)
    return difference.astype(np.float32) * scale.astype(np.float32).reshape(shape)


@dataclass(frozen=True)
class Encoder:
    """DistilBERT as a graph holds it: the fields of `DistilBertConfig` that say how large, and the weights by name."""

    sizes: dict[str, int]
    weights: dict[str, Array]


def read_distilbert(path: Path) -> Encoder:
    """The encoder inside an ONNX graph that PyTorch's exporter wrote from a DistilBERT with any head.

    Args:
        path: The graph, float or quantised.

    Returns:
        Sizes and weights; the names and shapes are those of `DistilBertModel`, all of them and no others.

    Raises:
        InputError: onnx is not installed, or the file is missing, damaged, or no DistilBERT.
    """
    graph = _load(path)
    weights: dict[str, NDArray[Any]] = {}

    def take_norm(module: str) -> None:
        node = graph.node(module, "LayerNormalization")
        epsilon = _attributes(node).get("epsilon", 1e-5)
        if not np.isclose(epsilon, _NORM_EPSILON, rtol=1e-6, atol=0):
            raise graph.unlike(f"{node.name} has epsilon {epsilon:g} and not {_NORM_EPSILON:g}")
        weights[f"{module}.weight"] = graph.weight(node, 1, rank=1)
        weights[f"{module}.bias"] = graph.weight(node, 2, rank=1)

    def take_linear(module: str) -> None:
        weights[f"{module}.weight"] = graph.weight(graph.node(module, "MatMul"), 1, rank=2).T  # x W there, x Wᵀ here
        weights[f"{module}.bias"] = graph.bias(graph.node(module, "Add"))

    for module in _EMBEDDINGS:
        weights[f"{module}.weight"] = graph.weight(graph.node(module, "Gather"), 0, rank=2)
    take_norm(_EMBEDDINGS_NORM)
    layers = 0
    while graph.has_layer(layers):
        for part in _LINEAR:
            take_linear(f"transformer.layer.{layers}.{part}")
        for part in _NORMS:
            take_norm(f"transformer.layer.{layers}.{part}")
        graph.node(f"transformer.layer.{layers}.ffn.activation", "Erf")  # the exact GELU, as DistilBERT has by default
        layers += 1
    if layers == 0:
        raise graph.unlike("it has no layer")

    words, width = weights["embeddings.word_embeddings.weight"].shape
    sizes = {
        "vocab_size": words,
        "max_position_embeddings": len(weights["embeddings.position_embeddings.weight"]),
        "n_layers": layers,
        "n_heads": width // graph.head_size(width),
        "dim": width,
        "hidden_dim": len(weights["transformer.layer.0.ffn.lin1.bias"]),
    }
    _check_that_all_fits(graph, sizes, weights)
    _check_that_nothing_is_left(graph)
    return Encoder(sizes, {name: np.ascontiguousarray(found, dtype=np.float32) for name, found in weights.items()})


def convert_distilbert(graph: Path, tokenizer: Path, folder: Path) -> None:
    """Write the encoder of an ONNX graph and its tokenizer as a checkpoint that `from_pretrained` loads.

    Args:
        graph: The graph, as for `read_distilbert`.
        tokenizer: The `tokenizer.json` that belongs to it.
        folder: Where `config.json`, `model.safetensors` and the tokenizer's files go; made when it is not there.

    Raises:
        InputError: As for `read_distilbert`, or the tokenizer is missing, damaged, or knows words the model does not.
    """
    from safetensors.numpy import save_file

    encoder = read_distilbert(graph)
    words = _load_tokenizer(tokenizer, encoder.sizes)
    config = _config(encoder.sizes, pad_token_id=words.pad_token_id, architectures=["DistilBertModel"], dtype="float32")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(encoder.weights, folder / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(folder)
    words.save_pretrained(folder)


@dataclass(frozen=True)
class _Graph:
    """An ONNX graph, looked up by name; it remembers which of its stored tensors were asked for."""

    path: Path
    nodes: "list[NodeProto]"
    named: "dict[str, NodeProto]"
    makers: "dict[str, NodeProto]"  # by the name of what they give
    stored: "dict[str, TensorProto]"
    asked: set[str] = field(default_factory=set)

    def unlike(self, what: str) -> InputError:
        return InputError(f"{self.path} is not the ONNX graph of a DistilBERT: {what}")

    def has_layer(self, number: int) -> bool:
        return any(node.name.startswith(f"{_ENCODER}transformer/layer.{number}/") for node in self.nodes)

    def node(self, module: str, kind: str) -> "NodeProto":
        name = f"{_ENCODER}{module.replace('.', '/').replace('layer/', 'layer.')}/{kind}"
        if name not in self.named:
            raise self.unlike(f"it has no node {name}")
        return self.named[name]

    def constant(self, name: str) -> NDArray[Any] | None:
        """The tensor of this name, dequantised where it is quantised; None when it depends on the inputs."""
        from onnx import numpy_helper

        if name in self.stored:
            self.asked.add(name)
            try:
                return numpy_helper.to_array(self.stored[name])
            except (TypeError, ValueError) as error:
                raise InputError(f"{self.path} is damaged: its tensor {name} cannot be read ({error})") from None
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == "Constant":
            return numpy_helper.to_array(_attributes(maker)["value"])
        if maker is not None and maker.op_type == "DequantizeLinear":
            quantised, scale, zero_point = [*(self.constant(given) for given in maker.input), None][:3]
            if quantised is not None and scale is not None:
                attributes = _attributes(maker)
                if attributes.get("block_size", 0):
                    raise InputError(f"{self.path} has weights quantised in blocks ({name}), which is not supported")
                return dequantise(quantised, scale, zero_point, attributes.get("axis", 1))
        return None

    def weight(self, node: "NodeProto", place: int, rank: int) -> NDArray[Any]:
        """The parameter that a node has at one of its inputs."""
        found = self.constant(node.input[place]) if place < len(node.input) else None
        if found is None:
            raise self.unlike(f"input {place} of {node.name} is no stored weight")
        # Integers here have their scale somewhere behind this node, where it would be missed.
        if found.ndim != rank or not np.issubdtype(found.dtype, np.floating):
            raise self.unlike(f"input {place} of {node.name} is {found.dtype} of shape {found.shape}")
        return found

    def bias(self, node: "NodeProto") -> NDArray[Any]:
        """The parameter that an Add node has at either of its inputs."""
        places = [place for place, name in enumerate(node.input) if self.constant(name) is not None]
        return self.weight(node, places[0] if places else 0, rank=1)

    def head_size(self, width: int) -> int:
        """The last of the lengths that queries are reshaped to: batch, tokens, heads, head size."""
        node = self.node("transformer.layer.0.attention", "Concat")
        found = self.constant(node.input[-1]) if node.input else None
        if found is None or found.size != 1 or int(found.item()) < 1 or width % int(found.item()):
            raise self.unlike(f"{node.name} does not end in a head size that divides {width}")
        return int(found.item())


def _load(path: Path) -> _Graph:
    try:
        import onnx
        from google.protobuf.message import DecodeError
    except ImportError:
        raise InputError(f"reading {path} needs onnx, which is not installed here; run: pip install onnx") from None
    try:
        graph = onnx.load(path, load_external_data=False).graph
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except DecodeError:
        raise InputError(f"{path} is damaged, or no ONNX file") from None
    return _Graph(
        path,
        nodes=list(graph.node),
        named={node.name: node for node in graph.node},
        makers={output: node for node in graph.node for output in node.output},
        stored={tensor.name: tensor for tensor in graph.initializer},
    )


def _attributes(node: "NodeProto") -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


def _config(sizes: dict[str, int], **others: Any) -> Any:
    from transformers import DistilBertConfig

    fields: dict[str, Any] = {**sizes, **others}
    return DistilBertConfig(**fields)


def _check_that_all_fits(graph: _Graph, sizes: dict[str, int], weights: dict[str, NDArray[Any]]) -> None:
    import torch
    from transformers import DistilBertModel

    with torch.device("meta"):  # shapes only: no memory, and no random numbers drawn
        model = DistilBertModel(_config(sizes))
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(expected.keys() | weights.keys()):
        shape = weights[name].shape if name in weights else None
        if shape != expected.get(name):
            raise graph.unlike(f"{name} has shape {shape}, where {expected.get(name)} is needed")


def _check_that_nothing_is_left(graph: _Graph) -> None:
    roundings: set[str] = set()  # scale and zero point, of activations too
    for node in graph.nodes:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            roundings.update(node.input[1:])
        if node.name.startswith("/") and not node.name.startswith(_ENCODER):
            for name in node.input:  # the head's: asked for, and dropped
                graph.constant(name)
    left = sorted(graph.stored.keys() - graph.asked - roundings)
    if left:
        raise graph.unlike(f"there is no place for {len(left)} of its tensors ({left[0]})")


def _load_tokenizer(path: Path, sizes: dict[str, int]) -> Any:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    try:
        core = Tokenizer.from_file(str(path))
    except Exception as error:  # of type Exception itself, whatever is wrong
        raise InputError(f"{path} is no tokenizer: {error}") from None
    core.no_truncation()  # whoever tokenises says how long
    core.no_padding()
    words = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=sizes["max_position_embeddings"],
        model_input_names=["input_ids", "attention_mask"],
    )
    if len(words) > sizes["vocab_size"]:
        raise InputError(f"{path} knows {len(words)} words, and the model {sizes['vocab_size']}")
    return words
