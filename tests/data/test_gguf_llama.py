"""A GGUF file becomes the checkpoint that its blocks stand for, or one line says why not."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from layerdescent.data.gguf_llama import convert_llama
from layerdescent.errors import InputError
from tests.data.tiny_gguf import POSITIONS, WORDS, TinyLlama


@pytest.fixture(scope="module")
def llama() -> TinyLlama:
    torch.manual_seed(5)
    return TinyLlama()


@pytest.fixture(scope="module")
def checkpoint(llama: TinyLlama, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    path = llama.save(folder / "tiny.gguf")
    before = torch.get_rng_state()
    convert_llama(path, folder / "model")
    assert torch.equal(torch.get_rng_state(), before)  # a first run draws what a second one draws
    return folder / "model"


def test_every_weight_is_what_its_blocks_stand_for(llama: TinyLlama, checkpoint: Path) -> None:
    weights = load_file(checkpoint / "model.safetensors")
    expected = {name: weight for name, weight in llama.model.state_dict().items() if name != "lm_head.weight"}
    assert weights.keys() == expected.keys()  # the head is the embedding matrix, stored once
    for name, weight in expected.items():
        assert weights[name].dtype == torch.float32
        torch.testing.assert_close(weights[name], weight, rtol=0, atol=0, msg=name)


def test_the_checkpoint_is_an_ordinary_model(llama: TinyLlama, checkpoint: Path, tmp_path: Path) -> None:
    loader: Any = AutoModelForCausalLM
    model, found = loader.from_pretrained(checkpoint, output_loading_info=True)
    assert not any(found.values())
    assert getattr(model, "hf_quantizer", None) is None
    ids = torch.tensor([[1, 9, 40, 7, 200, 2]])
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(ids).logits, llama.model(ids).logits, rtol=1e-6, atol=1e-6)
    model(ids, labels=ids).loss.backward()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.model.layers[0].self_attn.q_proj.weight.grad is not None
    model.save_pretrained(tmp_path)
    assert "quantization_config" not in (tmp_path / "config.json").read_text()
    assert (model.generation_config.eos_token_id, model.config.rope_parameters["rope_theta"]) == (2, 500.0)


def test_the_tokenizer_splits_digits_and_gives_texts_back(checkpoint: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    # Of two line breaks before a number GPT-2's rule makes two tokens.
    assert tokenizer.convert_ids_to_tokens(tokenizer("\n\n12").input_ids) == ["\u010a\u010a", "1", "2"]
    assert tokenizer("<end>").input_ids == [2]
    text = "A \N{GRINNING FACE}  for  9 caf\u00e9s"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.model_max_length == POSITIONS
    assert (tokenizer.eos_token, tokenizer.pad_token, len(tokenizer)) == ("<end>", "<end>", len(WORDS))
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert asked == "<start>user\nhi<end>\n<start>assistant\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "falcon"}, "has general.architecture 'falcon', and only llama can be converted"),
        ({"splits": "llama-bpe"}, "has tokenizer.ggml.pre 'llama-bpe', and only smollm can be converted"),
        ({"template": None}, "has no chat template"),
        (
            {"words": tuple(word for word in WORDS if word != "5")},
            "has a tokenizer that makes .* its vocabulary is not whole",
        ),
        ({"words": (*WORDS, "extra")}, f"knows {len(WORDS) + 1} words, and its model {len(WORDS)}"),
        ({"left_out": "model.layers.1.mlp.up_proj.weight"}, r"is not a whole Llama: 1 of .* missing .*1\.mlp\.up_proj"),
    ],
)
def test_another_file(tmp_path: Path, change: dict[str, str], message: str) -> None:
    path = TinyLlama(**change).save(tmp_path / "other.gguf")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=rf"other\.gguf {message}") as caught:
        convert_llama(path, tmp_path / "model")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "model").exists()


def test_missing_and_damaged_files(llama: TinyLlama, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"gone\.gguf cannot be read: No such file"):
        convert_llama(tmp_path / "gone.gguf", tmp_path / "model")
    path = llama.save(tmp_path / "cut.gguf")
    whole = path.read_bytes()
    for content in (whole[:1000], whole[:-5000], b"GGUF", b"no such thing" * 9):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"cut\.gguf is damaged, or no GGUF file"):
            convert_llama(path, tmp_path / "model")


@pytest.mark.parametrize("package", ["gguf", "accelerate"])
def test_a_missing_package_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=r"needs gguf and accelerate.*; run: pip install gguf accelerate$"):
        convert_llama(tmp_path / "tiny.gguf", tmp_path / "model")
