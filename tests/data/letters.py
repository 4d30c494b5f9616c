"""A tokenizer of single bytes: every text comes back as it was, and one ASCII letter is one token."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ["<start>", "<end>", "<stop>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<start>' + message['role'] + '\n' + message['content'] + '<stop>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start>assistant\n' }}{% endif %}"
)


def letters(
    template: str | None = None, *, opening: bool = False, padding_side: str = "right", end: str | None = "<end>"
) -> PreTrainedTokenizerFast:
    """The tokenizer, with a chat template if one is given and no padding; `opening` begins every text with <start>."""
    words = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(SPECIAL)
    if opening:
        core.post_processor = processors.TemplateProcessing(single="<start> $A", special_tokens=[("<start>", 0)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<start>",
        padding_side=padding_side,
        model_max_length=2000,
        **({} if end is None else {"eos_token": end}),
    )
    made.chat_template = template
    return made
