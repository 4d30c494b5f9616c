"""Answers depend on their own prompt and its noise: on no batch, order, padding or cache."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from layerdescent.data import resolve_model
from layerdescent.data.prompts import Instruction, prompt_ids
from layerdescent.errors import InputError
from layerdescent.evaluation.batches import stored_tokenizer
from layerdescent.generation import generate_answers
from layerdescent.perturbation import Perturbation, embedding_scale
from layerdescent.perturbation.noise import NoiseStream

ROWS = [
    Instruction(instruction=text, output="")
    for text in ("Why?", "Name three primes above ten.", "Tell me a story.", "Add 1 and 2.", "Go on and on and on.")
]
NOISE = Perturbation("gaussian", gamma=1.5, seed=3)

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return stored_tokenizer(resolve_model("builtin:tiny-llama"))


@pytest.fixture(scope="module")
def model(tokenizer: Any) -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        initializer_range=0.5,  # so that answers differ between prompts, and under noise
        max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id,
    )
    return LlamaForCausalLM(config).double().eval()


def answers(model: Any, tokenizer: Any, rows: list[Instruction] = ROWS, **options: Any) -> list[str]:
    options = {"max_new_tokens": 8, **options}
    found = [answer for batch in generate_answers(model, tokenizer, rows, **options) for answer in batch]
    return [answer.text for answer in sorted(found, key=lambda answer: answer.index)]


@pytest.mark.parametrize("noise_on", ["prompt", "all"])
@pytest.mark.parametrize("perturbation", [NOISE, Perturbation("discrete", gamma=1.5)], ids=["gaussian", "discrete"])
def test_answers_do_not_depend_on_cache_batch_or_order(
    model: Any, tokenizer: Any, perturbation: Perturbation, noise_on: str
) -> None:
    one = answers(model, tokenizer, perturbation=perturbation, noise_on=noise_on, batch_size=1)
    assert len(set(one)) == len(ROWS)
    assert one == answers(model, tokenizer, perturbation=perturbation, noise_on=noise_on, batch_size=4)
    assert one == answers(model, tokenizer, perturbation=perturbation, noise_on=noise_on, use_cache=False)
    turned = answers(model, tokenizer, ROWS[::-1], perturbation=perturbation, noise_on=noise_on, batch_size=2)
    assert one == turned[::-1]


def test_noise_changes_answers_and_so_does_its_place(model: Any, tokenizer: Any) -> None:
    clean = answers(model, tokenizer)
    on_prompt, on_all = (answers(model, tokenizer, perturbation=NOISE, noise_on=where) for where in ("prompt", "all"))
    assert clean != on_prompt != on_all != clean
    assert clean == answers(model, tokenizer, perturbation=Perturbation("gaussian", gamma=0.0))


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("noise_on", ["prompt", "all"])
def test_the_noise_is_the_stream_of_the_prompt(model: Any, tokenizer: Any, noise_on: str, use_cache: bool) -> None:
    """What the embedding returns, against a second computation of the noise from the prompt's ids alone."""
    (prompt,) = prompt_ids(ROWS[:1], tokenizer)
    seen: list[tuple[Tensor, Tensor]] = []
    embedding = model.get_input_embeddings()
    noise = Perturbation("gaussian", gamma=0.5, special_tokens=True)

    def look(module: Any, args: Any, output: Tensor) -> None:
        seen.append((args[0].clone(), output.clone()))

    original = Perturbation.on

    def watched(self: Perturbation, *args: Any, **options: Any) -> Any:
        context = original(self, *args, **options)
        enter = context.__enter__

        class Watched:
            def __enter__(self) -> Any:
                entered = enter()
                self.handle = embedding.register_forward_hook(look)  # after the noise's own hook
                return entered

            def __exit__(self, *error: Any) -> Any:
                self.handle.remove()
                return context.__exit__(*error)

        return Watched()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Perturbation, "on", watched)
        answers(model, tokenizer, ROWS[:1], perturbation=noise, noise_on=noise_on, use_cache=use_cache)
    ids = torch.cat([ids for ids, _ in seen], dim=1) if use_cache else seen[-1][0]
    got = torch.cat([output for _, output in seen], dim=1) if use_cache else seen[-1][1]
    unit = NoiseStream("gaussian", 0, prompt, 32).rows(ids.shape[1])
    if noise_on == "prompt":
        unit[len(prompt) :] = 0
    expected = embedding.weight[ids[0].clone()].detach() + 0.5 * embedding_scale(model) * torch.from_numpy(
        unit.astype(np.float64)
    )
    assert len(ids[0]) == len(prompt) + 7
    torch.testing.assert_close(got[0], expected, rtol=1e-5, atol=1e-6)


def test_settings_stored_beside_the_model_do_not_leak_in_and_stay(model: Any, tokenizer: Any) -> None:
    before, plain = model.generation_config, answers(model, tokenizer)
    model.generation_config = stored = GenerationConfig(do_sample=True, temperature=5.0, repetition_penalty=9.0)
    try:
        assert answers(model, tokenizer) == plain
        assert model.generation_config is stored
    finally:
        model.generation_config = before


def test_an_answer_ends_where_the_model_ends_it(model: Any, tokenizer: Any) -> None:
    [[whole]] = generate_answers(model, tokenizer, ROWS[:1], max_new_tokens=8)
    assert (whole.tokens, whole.finished) == (8, False)
    (prompt,) = prompt_ids(ROWS[:1], tokenizer)
    third = model.generate(torch.tensor([prompt]), max_new_tokens=3, do_sample=False)[0, -1].item()
    model.generation_config.eos_token_id = [third]
    try:
        [[cut]] = generate_answers(model, tokenizer, ROWS[:1], max_new_tokens=8)
    finally:
        model.generation_config.eos_token_id = tokenizer.eos_token_id
    assert cut.finished
    assert cut.tokens <= 3
    assert whole.text.startswith(cut.text)


def test_adapters_are_heard(model: Any, tokenizer: Any) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(copy.deepcopy(model), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    assert answers(adapted, tokenizer, perturbation=NOISE) == answers(model, tokenizer, perturbation=NOISE)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    assert answers(adapted, tokenizer) != answers(model, tokenizer)


def test_what_cannot_be_answered_is_said_before_anything_is(model: Any, tokenizer: Any) -> None:
    long = [*ROWS, Instruction(instruction="word " * 600, output="")]
    with pytest.raises(InputError, match=r"1 of 6 prompts leave no room for 8 new tokens .* number 6 of \d+ tokens"):
        generate_answers(model, tokenizer, long, max_new_tokens=8)
    with pytest.raises(InputError, match="both must be at least 1"):
        generate_answers(model, tokenizer, ROWS, batch_size=0)
    small = LlamaForCausalLM(
        LlamaConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )
    with pytest.raises(InputError, match="the model has embeddings for 9: take the tokenizer that belongs"):
        generate_answers(small, tokenizer, ROWS)
    with pytest.raises(InputError, match="choose prompt, with prompt_width, or all"):
        list(generate_answers(model, tokenizer, ROWS, perturbation=NOISE, noise_on="answer"))  # type: ignore[arg-type]


@pytest.mark.shared
def test_a_real_small_model_answers_the_same_in_any_batch(shared_data: Path) -> None:
    folder = str(shared_data / "models" / "stories260k")
    real, tokenizer = LlamaForCausalLM.from_pretrained(folder).eval(), stored_tokenizer(folder)
    one, four = (answers(real, tokenizer, perturbation=NOISE, batch_size=size) for size in (1, 4))
    assert one == four
