"""A tiny language model and tiny instructions that the program makes itself, for tests and first looks."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from layerdescent.data.readers import Table

INSTRUCTIONS = "builtin:instructions"
TINY_LLAMA = "builtin:tiny-llama"

_WORDS = (
    "apple",
    "river",
    "stone",
    "cloud",
    "green",
    "seven",
    "music",
    "paper",
    "light",
    "table",
    "winter",
    "garden",
    "silver",
    "morning",
    "bridge",
    "window",
    "yellow",
    "forest",
    "copper",
    "island",
)
_VOCABULARY, _POSITIONS = 384, 256


def instructions() -> Table:
    """Three hundred instructions about words, each with the only right response.

    Example:
        >>> table = instructions()
        >>> table.columns["instruction"][0], table.columns["output"][0]
        ('Say apple in capital letters.', 'APPLE')
    """
    asked, answered = zip(*_questions(), strict=True)
    return Table({"instruction": list(asked), "output": list(answered)}, INSTRUCTIONS)


def _questions() -> Iterator[tuple[str, str]]:
    for word in _WORDS:
        yield f"Say {word} in capital letters.", word.upper()
        yield f"Spell {word}.", "-".join(word)
        yield f"Write the first letter of {word}.", word[0]
        for times in (2, 3, 4):
            yield f"Repeat {word} {times} times.", " ".join([word] * times)
    for number, (first, second) in enumerate(product(_WORDS[:12], _WORDS[5:20])):
        if first != second:
            yield (
                (f"Put {first} before {second}.", f"{first} {second}")
                if number % 2
                else (f"Put {first} after {second}.", f"{second} {first}")
            )


def write_tiny_llama(folder: Path) -> None:
    """Write a Llama of four layers with random weights, the same each time, and a tokenizer of bytes and a few words.

    Args:
        folder: to write; it may not exist.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator([" ".join(pair) for pair in _questions()], trainer)
    names = dict(zip(("bos_token", "eos_token", "pad_token"), special, strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=_POSITIONS, **names)
    config = LlamaConfig(
        vocab_size=_VOCABULARY,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=128,
        max_position_embeddings=_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
