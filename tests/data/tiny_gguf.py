"""A small Llama as a GGUF file of 4-bit blocks, written with the library that defines the format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

HEADS, POSITIONS = 2, 64
SPECIAL = ["<|endoftext|>", "<start>", "<end>"]
MERGES = [("\u010a", "\u010a"), ("\u0120", "\u0120")]  # two line breaks, two spaces
WORDS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, MERGES)]
TEMPLATE = (
    "{% for message in messages %}{{ '<start>' + message['role'] + '\n' + message['content'] + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start>assistant\n' }}{% endif %}"
)

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@dataclass
class TinyLlama:
    """What is written, each part to be changed before it is; `model` gets the weights that the file stands for."""

    architecture: str = "llama"
    splits: str = "smollm"
    template: str | None = TEMPLATE
    left_out: str | None = None
    words: tuple[str, ...] = tuple(WORDS)

    def __post_init__(self) -> None:
        config = LlamaConfig(
            vocab_size=len(WORDS),
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=1,
            max_position_embeddings=POSITIONS,
            rms_norm_eps=1e-6,
            rope_parameters={"rope_type": "default", "rope_theta": 500.0},
            tie_word_embeddings=True,
            initializer_range=0.2,
        )
        self.model: Any = LlamaForCausalLM(config).eval()

    def save(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        config = self.model.config
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(POSITIONS)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(1)
        writer.add_rope_freq_base(500.0)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_vocab_size(config.vocab_size)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.splits)
        writer.add_token_list(list(self.words))
        writer.add_token_types([3] * len(SPECIAL) + [1] * (len(self.words) - len(SPECIAL)))
        writer.add_token_merges([" ".join(pair) for pair in MERGES])
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(2)
        if self.template is not None:
            writer.add_chat_template(self.template)
        for name, weight in self.model.state_dict().items():
            if name != "lm_head.weight" and name != self.left_out:
                self._write(writer, name, weight)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _write(self, writer: gguf.GGUFWriter, name: str, weight: Any) -> None:
        *start, module = name.removesuffix(".weight").split(".", 3)
        theirs = f"blk.{start[2]}.{NAMES[module]}" if name.startswith("model.layers") else NAMES[name[:-7]]
        numbers: NDArray[np.float32] = weight.numpy()
        if numbers.ndim == 1:  # norms are never rounded
            writer.add_tensor(f"{theirs}.weight", numbers)
            return
        blocks = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q4_1)
        rounded = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType.Q4_1)
        weight.copy_(weight.new_tensor(rounded))
        heads = {"attn_q": HEADS, "attn_k": 1}.get(theirs.rpartition(".")[2])
        if heads is not None:  # the format pairs neighbours in its rotary embedding, transformers the two halves
            blocks = blocks.reshape(heads, 2, -1, blocks.shape[-1]).swapaxes(1, 2).reshape(blocks.shape)
        writer.add_tensor(f"{theirs}.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.Q4_1)
