"""A Llama out of a GGUF file: ordinary weights and an ordinary tokenizer, in a folder that transformers loads.

transformers reads GGUF itself and turns blocks of few-bit integers into numbers. But the model it gives counts as
quantised and cannot be saved, and where it does not know the file's rule for splitting texts, it takes GPT-2's without
a word. Both are put right here. What the weights lost when they were rounded stays lost.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerdescent.errors import InputError

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

_ROUND_TRIP = "Two  spaces,\n\n1. caf\u00e9 \N{GRINNING FACE} \u4e2d\u6587 don't 10,000.5\t<end>"


def _single_digits() -> "PreTokenizer":
    from tokenizers import pre_tokenizers

    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


# How a text is split before its pieces are merged, by the name that `tokenizer.ggml.pre` has for it. In `smollm` every
# digit stands alone; without that, white space before a number comes out in other tokens than the model was trained on.
_SPLITS: dict[str, Callable[[], "PreTokenizer"]] = {"smollm": _single_digits}


def convert_llama(path: Path, folder: Path) -> None:
    """Write the Llama inside a GGUF file and its tokenizer as a checkpoint that `from_pretrained` loads.

    Args:
        path: The file: architecture `llama`, any quantisation that transformers reads, a byte-level BPE tokenizer.
        folder: Where `config.json`, `model.safetensors` (float32) and the tokenizer's files go; made when not there.

    Raises:
        InputError: gguf is not installed, or the file is missing, damaged, or holds something else; or its tokenizer
            does not give back what it is given, or has no chat template.
    """
    split = _split_of(path)
    model = _plain_model(path)
    tokenizer = _tokenizer(path, split, model.config.max_position_embeddings)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(f"{path} knows {len(tokenizer)} words, and its model {model.config.vocab_size}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _split_of(path: Path) -> "PreTokenizer":
    """The file's rule for splitting texts."""
    try:
        import accelerate  # noqa: F401  transformers does not read GGUF without it
        from gguf import GGUFReader
    except ImportError:
        raise InputError(
            f"reading {path} needs gguf and accelerate, which are not both installed here; "
            "run: pip install gguf accelerate"
        ) from None
    try:
        fields = GGUFReader(path).fields
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, IndexError, KeyError) as error:  # what the reader meets in a file that is cut or another one
        raise InputError(f"{path} is damaged, or no GGUF file ({error})") from None
    said = {name: fields[name].contents() if name in fields else None for name in _ARCHITECTURE}
    for name, expected in _ARCHITECTURE.items():
        if said[name] not in expected:
            raise InputError(f"{path} has {name} {said[name]!r}, and only {', '.join(expected)} can be converted")
    return _SPLITS[str(said["tokenizer.ggml.pre"])]()


_ARCHITECTURE = {
    "general.architecture": ("llama",),
    "tokenizer.ggml.model": ("gpt2",),
    "tokenizer.ggml.pre": tuple(_SPLITS),
}


def _plain_model(path: Path) -> Any:
    """The model as if it had never been quantised."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    llama: Any = LlamaForCausalLM  # whose annotations know no second result
    loaded, found = llama.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True
    )
    # Else what is missing would be drawn at random, with no more than a warning.
    wrong = sorted([*found["missing_keys"], *(name for name, *_ in found["mismatched_keys"])])
    if wrong:
        raise InputError(
            f"{path} is not a whole Llama: {len(wrong)} of its weights are missing or misshapen ({wrong[0]})"
        )
    fields = loaded.config.to_dict()
    for name in ("quantization_config", "_model_name_or_path"):
        fields.pop(name, None)
    with torch.device("meta"):  # no random numbers are drawn, and the weights are taken over as they are
        model = LlamaForCausalLM(LlamaConfig.from_dict(fields))
    model.load_state_dict(loaded.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = loaded.generation_config
    return model


def _tokenizer(path: Path, split: "PreTokenizer", max_length: int) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    tokenizer.backend_tokenizer.pre_tokenizer = split
    tokenizer.model_max_length = max_length
    back = tokenizer.decode(tokenizer(_ROUND_TRIP, add_special_tokens=False).input_ids)
    if back != _ROUND_TRIP:
        raise InputError(f"{path} has a tokenizer that makes {back!r} of {_ROUND_TRIP!r}; its vocabulary is not whole")
    if not tokenizer.chat_template:
        raise InputError(
            f"{path} has no chat template (tokenizer.chat_template); take the file of an instruction model"
        )
    return tokenizer
