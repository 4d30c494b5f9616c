"""From rows of a data set to per-sample outputs of every layer, a batch at a time.

A row is `{"input_ids": [...], "attention_mask": [...], "labels": ...}` (with `token_type_ids` where the model has them)
or `{"pixel_values": ..., "labels": ...}`. Rows of similar length share a batch, so that little is padded; what comes
out carries the rows' positions in the data, so that results can be put back in order.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import huggingface_hub
import numpy as np
import torch
import transformers
from huggingface_hub.errors import HfHubHTTPError
from numpy.typing import ArrayLike, NDArray
from safetensors import SafetensorError
from torch import Tensor, nn
from tqdm import tqdm
from transformers.data.data_collator import pad_without_fast_tokenizer_warning

from layerdescent import models
from layerdescent.adapters import adapter_base, load_adapter
from layerdescent.errors import InputError, NonFiniteLossError, RunError
from layerdescent.perturbation import Perturbation
from layerdescent.readout import READOUTS, ProblemType, Readout, next_token_losses
from layerdescent.readout import problem_type as problem_type_of_head

Kind = ProblemType | Literal["next_token"]
"""What a head predicts; of a language model, the next token."""

Row = Mapping[str, Any]
Rows = Sequence[Row]
ModelOrPath = nn.Module | str | Path

_POSITIONS_AFTER_PADDING = ("roberta", "xlm-roberta", "mpnet")  # which count positions from the padding's id on
MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pixel_values")


@dataclass(frozen=True)
class LayerOutputs:
    """What every layer says about one batch: `logits` (n, B, …), `losses` (n, B) fp32, labels, and the rows' places."""

    indices: list[int]
    logits: Tensor
    losses: Tensor
    labels: Tensor


def length_sorted(data: Rows, batch_size: int) -> list[list[int]]:
    """Positions of the rows in batches of similar length, the longest first: too little memory shows at once.

    Args:
        data: The rows.
        batch_size: Rows in a batch.

    Returns:
        Lists of positions; together every position once.

    Raises:
        InputError: No rows, or a batch size below 1.

    Example:
        >>> length_sorted([{"input_ids": [1] * n} for n in (2, 9, 3, 8)], batch_size=2)
        [[1, 3], [2, 0]]
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, but it is {batch_size}")
    if len(data) == 0:
        raise InputError("there is no data to evaluate on: 0 rows were given")
    order = list(range(len(data)))
    if "input_ids" in data[0]:  # else rows are of one length, and looking at each may mean decoding a video
        lengths = [len(row["input_ids"]) for row in data]
        order.sort(key=lambda position: -lengths[position])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def collate(rows: Rows, processing_class: Any = None) -> dict[str, Tensor]:
    """Stack the model inputs of a few rows; token rows are padded by the tokenizer.

    Args:
        rows: Rows of one batch; columns that no model takes (texts, identifiers, labels) are left out.
        processing_class: A tokenizer; it may be missing where all rows have one length.

    Returns:
        The inputs, each (B, …).

    Raises:
        InputError: No model input among the columns, or rows of different length and no tokenizer to pad them.

    Example:
        >>> batch = collate([{"input_ids": [5, 6], "attention_mask": [1, 1], "text": "a"}])
        >>> sorted(batch), batch["input_ids"].shape
        (['attention_mask', 'input_ids'], torch.Size([1, 2]))
    """
    features = [{name: row[name] for name in MODEL_INPUTS if name in row} for row in rows]
    if not features[0]:
        given = ", ".join(rows[0]) or "none"
        raise InputError(f"rows must have input_ids or pixel_values, but their columns are: {given}; tokenize first")
    if "input_ids" in features[0] and processing_class is not None:
        return dict(pad_without_fast_tokenizer_warning(processing_class, features, padding=True, return_tensors="pt"))
    if len({len(feature.get("input_ids", ())) for feature in features}) > 1:
        raise InputError("rows have different lengths and no tokenizer was given to pad them: pass processing_class")
    return {name: torch.stack([torch.as_tensor(feature[name]) for feature in features]) for name in features[0]}


def problem_type(readout: Readout, data: Rows) -> ProblemType:
    """Which loss a model's head has: a list of labels in a row is several labels, whatever its type.

    Raises:
        InputError: The rows have no labels.
    """
    dtype = torch.int64 if np.ndim(_label(data[0])) == 0 else torch.float32
    return problem_type_of_head(readout.model.config, torch.empty(0, dtype=dtype))


def labels_of(data: Rows, kind: ProblemType, num_labels: int | None = None) -> NDArray[Any]:
    """The labels of all rows: (N,) int64 for one label a row, else float32 (N,), (N, K) or, for a denoiser, (N, T, m).

    Args:
        data: The rows.
        kind: The problem type.
        num_labels: The head's number of outputs, to check against; None to take the labels as they are.

    Raises:
        InputError: Missing labels, or labels that the head has no output for.
    """
    labels = np.asarray([_label(row) for row in data])
    if kind != "single_label_classification":
        if kind == "multi_label_classification" and num_labels is not None and labels.shape[1:] != (num_labels,):
            raise InputError(
                f"multi-label rows need {num_labels} labels each, but the labels' shape is {labels.shape[1:]}"
            )
        return labels.astype(np.float32)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"labels must be one integer a row, but row 0 has {data[0]['labels']!r}; number the classes")
    if num_labels is not None:
        wrong = np.flatnonzero((labels < 0) | (labels >= num_labels))
        if wrong.size:
            raise InputError(
                f"labels must lie in 0 … {num_labels - 1}, but row {wrong[0]} has {labels[wrong[0]]}; "
                "load a model with that many labels, or map them"
            )
    return labels.astype(np.int64)


def one_group_a_row(groups: ArrayLike, count: int) -> NDArray[np.int64]:
    """The groups of the rows, (count,) integers.

    Raises:
        InputError: They are something else.
    """
    checked = np.asarray(groups)
    if checked.shape != (count,) or not np.issubdtype(checked.dtype, np.integer):
        raise InputError(
            f"groups must be one integer for each of the {count} rows; got {checked.dtype} {checked.shape}"
        )
    return checked.astype(np.int64)


def correctness(logits: Tensor, labels: Tensor, kind: ProblemType) -> Tensor | None:
    """Which samples are right, (…, B) bool: the largest logit is the label's; with several labels, all are right.

    Args:
        logits: (…, B, K).
        labels: (B,) or (B, K).
        kind: The problem type; regression has no right and wrong.

    Example:
        >>> correctness(torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1]), "single_label_classification")
        tensor([ True, False])
    """
    if kind == "regression":
        return None
    if kind == "single_label_classification":
        return logits.argmax(-1) == labels
    return ((logits > 0) == (labels > 0.5)).all(-1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in eval mode, and afterwards each as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def layer_outputs(
    model: nn.Module,
    data: Rows,
    batches: Sequence[Sequence[int]],
    kind: ProblemType,
    *,
    processing_class: Any = None,
    perturbation: Perturbation | None = None,
    bf16: bool = False,
    bar: "tqdm[Any] | None" = None,
) -> Iterator[LayerOutputs]:
    """Stream a model's per-sample outputs at every layer over the batches, in eval mode and without gradients.

    Args:
        model: A model with a readout.
        data: The rows.
        batches: Positions in the rows, as `length_sorted` gives them.
        kind: The problem type.
        processing_class: The tokenizer, for padding and for the noise's special tokens.
        perturbation: Noise on the embeddings; None for clean inputs.
        bf16: Whether the model's forward pass runs under autocast to bfloat16. The head, which reads the layers, and
            the losses stay in the model's own precision, so that layers differ by more than rounding.
        bar: Advanced by one a batch.

    Yields:
        One `LayerOutputs` a batch, n = L+1 layers.

    Raises:
        NonFiniteLossError: A loss is NaN or infinite; the line names layer and row.
    """
    readout = Readout.for_model(model)
    device = next(model.parameters()).device
    accepted = set(inspect.signature(readout.model.forward).parameters)
    noise: AbstractContextManager[Any] = nullcontext()
    if perturbation is not None:
        noise = perturbation.on(model, processing_class)
    with evaluating(model), noise:
        for indices in batches:
            rows = [data[index] for index in indices]
            dtype = torch.int64 if kind == "single_label_classification" else torch.float32
            labels = torch.as_tensor(np.asarray([_label(row) for row in rows]), dtype=dtype, device=device)
            batch = {name: value.to(device) for name, value in collate(rows, processing_class).items()}
            # Entered anew for every batch: a generator must not leave the caller in inference mode.
            with torch.inference_mode():
                inputs = {name: value for name, value in batch.items() if name in accepted}
                with torch.autocast(device.type, torch.bfloat16) if bf16 else nullcontext():
                    states = model(**inputs, **readout.needs_hidden_states).hidden_states
                if bf16:  # a norm that a readout puts before the head wants its own precision
                    states = [state.to(readout.model.dtype) for state in states]
                logits = readout.logits(states, batch).float()
                losses = readout.per_sample_losses(logits, labels).float()
            if not bool(torch.isfinite(losses).all()):
                layer, place = (int(axis[0]) for axis in torch.nonzero(~torch.isfinite(losses), as_tuple=True))
                raise NonFiniteLossError(
                    f"the loss of layer {layer} is {float(losses[layer, place])} on row {indices[place]}: "
                    "the model has diverged or its precision is too low; use an earlier checkpoint or float32"
                )
            yield LayerOutputs(list(indices), logits, losses, labels)
            if bar is not None:
                bar.update()


def load_config(model: str | Path, revision: str | None = None) -> Any:
    """The configuration of a checkpoint; of an adapter, that of the model it is for.

    Raises:
        InputError: There is no such checkpoint.
    """
    base = adapter_base(model)
    if base is not None:
        model, revision = base
    try:
        if not Path(model).exists():
            _ask_hub_once(str(model), revision)
        return transformers.AutoConfig.from_pretrained(model, revision=revision)
    except Exception as error:  # transformers and the hub's client raise a dozen kinds
        raise InputError(
            f"no model at {model}: give a folder with config.json, or a hub name ({_line(error)})"
        ) from None


def _ask_hub_once(name: str, revision: str | None) -> None:
    # transformers asks a hub that is out of reach six times, for 23 s: long to wait for word of a misspelt path.
    if isinstance(huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision), str):
        return
    try:
        huggingface_hub.file_exists(name, "config.json", revision=revision)
    except HfHubHTTPError:
        pass  # an answer, and transformers explains it
    except Exception as error:  # of the library that carries the request, which changes with the client's version
        raise ConnectionError(f"no such folder here, and the hub does not answer: {_line(error)}") from None


def load_model(model: ModelOrPath) -> nn.Module:
    """A model as it is, or loaded from a checkpoint with the class that its configuration names.

    An adapter is loaded with the model it is for, and merged into it where that loses no precision.

    Raises:
        InputError: There is no such checkpoint.
        RunError: The checkpoint is damaged.
    """
    if isinstance(model, nn.Module):
        return model
    if (base := adapter_base(model)) is not None:
        return load_adapter(_loaded(*base), model)
    return _loaded(model)


def _loaded(model: str | Path, revision: str | None = None) -> nn.Module:
    config = load_config(model, revision)
    name = (config.architectures or ["?"])[0]
    architecture = getattr(transformers, name, None) or getattr(models, name, None)
    if architecture is None:
        raise InputError(f"{model} was saved as {name}, which transformers does not have; load it and pass the model")
    try:
        loaded, info = architecture.from_pretrained(
            model, revision=revision, output_loading_info=True, ignore_mismatched_sizes=True
        )
    except (OSError, SafetensorError, RuntimeError) as error:
        raise RunError(f"the checkpoint at {model} is damaged ({_line(error)}): save or download it again") from None
    wrong = sorted([*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])])
    if wrong:
        raise RunError(
            f"the checkpoint at {model} does not fit its config.json: {len(wrong)} weights of {name} are missing or of "
            f"another shape ({wrong[0]}): save it again, or train it first"
        )
    return loaded.to("cuda" if torch.cuda.is_available() else "cpu")


def reads_tokens(model: ModelOrPath) -> bool:
    """Whether a model is a causal language model; a checkpoint is asked for its configuration alone.

    Raises:
        InputError: There is no such checkpoint.
    """
    if isinstance(model, nn.Module):
        return Readout.for_model(model).reads_tokens
    name = (load_config(model).architectures or ["?"])[0]
    return name in READOUTS and READOUTS[name].losses is next_token_losses


def load_tokenizer(processing_class: Any, model: ModelOrPath, data: Rows) -> Any:
    """The tokenizer that was given, or the one stored with the checkpoint; None where the rows are not tokens."""
    if processing_class is not None or isinstance(model, nn.Module) or "input_ids" not in data[0]:
        return processing_class
    return stored_tokenizer(model)


def stored_tokenizer(model: str | Path, revision: str | None = None) -> Any:
    """The tokenizer stored with a checkpoint; its `model_max_length` is never above the positions of the model.

    Raises:
        InputError: There is none.
    """
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, revision=revision)
    except Exception as error:  # as above; of a file cut short too
        raise InputError(f"no tokenizer at {model}: pass processing_class ({_line(error)})") from None
    # Where the files are missing, transformers makes up a tokenizer that knows no word.
    if len(tokenizer) < 2 * len(tokenizer.all_special_tokens):
        raise InputError(f"no tokenizer at {model}: it knows {len(tokenizer)} tokens, the special ones; add its files")
    config = load_config(model, revision)
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and getattr(config, "position_biased_input", True):  # DeBERTa can do without
        offset = config.pad_token_id + 1 if config.model_type in _POSITIONS_AFTER_PADDING else 0
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions - offset)
    return tokenizer


def _label(row: Row) -> Any:
    if "labels" not in row:
        raise InputError(f"rows must have labels, but their columns are: {', '.join(row)}; rename yours to labels")
    return row["labels"]


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
