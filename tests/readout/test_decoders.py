"""What decoders add to the contract: tokens that count, padding on either side, capped and tied heads, adapters."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, TaskType, get_peft_model
from torch import Tensor, nn

from layerdescent.errors import InputError
from layerdescent.readout import Readout, mean_loss, next_token_counts, next_token_labels, next_token_losses

# peft 0.21 still asks transformers by its former name whether a model checkpoints.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

PADDING, IGNORED = 1, -100


def all_losses(model: Any, batch: dict[str, Tensor], labels: Tensor) -> Tensor:
    """Per-sample losses of every layer, (L + 1, B)."""
    readout = Readout.for_model(model)
    states = model(**batch, **readout.needs_hidden_states).hidden_states
    return readout.per_sample_losses(readout.logits(states, batch), labels)


def padded(samples: list[Tensor], labels: list[Tensor], side: str) -> tuple[dict[str, Tensor], Tensor]:
    """Samples of unequal length as one batch, with positions that count from a sample's first token."""
    longest = max(len(ids) for ids in samples)

    def pad(rows: list[Tensor], value: int) -> Tensor:
        gaps = [torch.full((longest - len(row),), value) for row in rows]
        pairs = zip(rows, gaps, strict=True)
        return torch.stack([torch.cat([gap, row] if side == "left" else [row, gap]) for row, gap in pairs])

    mask = pad([torch.ones_like(ids) for ids in samples], 0)
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    return {"input_ids": pad(samples, PADDING), "attention_mask": mask, "position_ids": positions}, pad(labels, IGNORED)


def samples_of(family: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The family's batch and labels without their padding."""
    batch, labels = family.batch(), family.labels()
    lengths = batch["attention_mask"].sum(-1).tolist()
    ids = [row[:length] for row, length in zip(batch["input_ids"], lengths, strict=True)]
    return ids, [row[: len(one)] for row, one in zip(labels, ids, strict=True)] if labels.dim() == 2 else list(labels)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_no_samples_loss(language_model: Any, side: str) -> None:
    model = language_model.model()
    samples, labels = samples_of(language_model)
    together = all_losses(model, *padded(samples, labels, side))
    for row, (ids, wanted) in enumerate(zip(samples, labels, strict=True)):
        alone = all_losses(model, {"input_ids": ids[None]}, wanted[None])
        torch.testing.assert_close(together[:, row], alone[:, 0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_classifier_reads_the_last_token_wherever_the_padding_is(decoder_classifier: Any, side: str) -> None:
    model = decoder_classifier.model()
    samples, classes = samples_of(decoder_classifier)
    batch, _ = padded(samples, samples, side)
    together = all_losses(model, batch, torch.stack(classes))
    for row, (ids, label) in enumerate(zip(samples, classes, strict=True)):
        alone = all_losses(model, {"input_ids": ids[None]}, label[None])
        torch.testing.assert_close(together[:, row], alone[:, 0], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["fp32", "fp64"])
def test_losses_are_those_of_models_that_end_there(language_model: Any, dtype: torch.dtype) -> None:
    model, batch, labels = language_model.model().to(dtype), language_model.batch(), language_model.labels()
    readout = Readout.for_model(model)
    outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
    losses = readout.layer_losses(outputs, labels, batch)
    per_sample = all_losses(model, batch, labels)
    assert losses.dtype == per_sample.dtype == dtype
    assert per_sample.shape == (readout.num_layers + 1, 4)
    weighted = readout.mean_loss(per_sample, labels)
    for layer in language_model.cuts:
        own = language_model.cut(model, layer)(**batch, labels=labels).loss.to(dtype)  # fp32, whatever the model is
        torch.testing.assert_close(losses[layer], own, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(weighted[layer], own, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(weighted, per_sample.mean(-1), rtol=1e-3), "samples of equal weight would show nothing"


def test_gradients_are_those_of_models_that_end_there(language_model: Any) -> None:
    model, batch, labels = language_model.model(), language_model.batch(), language_model.labels()
    readout = Readout.for_model(model)
    outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
    losses = readout.layer_losses(outputs, labels, batch)
    for layer in language_model.cuts:
        cut = language_model.cut(model, layer)
        cut(**batch, labels=labels).loss.backward()
        own = {name: parameter.grad for name, parameter in cut.named_parameters()}
        read = torch.autograd.grad(losses[layer], list(model.parameters()), retain_graph=True, allow_unused=True)
        for (name, parameter), gradient in zip(model.named_parameters(), read, strict=True):
            nothing = torch.zeros_like(parameter)  # for layers above, which are not in the model that ends here
            expected, actual = (nothing if given is None else given for given in (own.get(name), gradient))
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, msg=f"{name} at layer {layer}")


@torch.no_grad()
def test_soft_caps_hold_at_every_layer(families: dict[str, Any]) -> None:
    for name, capped in (("gemma2", True), ("gemma3-capped", True), ("gemma3", False)):
        model, batch = families[name].model(), families[name].batch()
        readout = Readout.for_model(model)
        logits = readout.logits(model(**batch, **readout.needs_hidden_states).hidden_states, batch)
        assert all((layer.abs().max() <= 2.0) == capped for layer in logits), name


def adapted(family: Any, **settings: Any) -> Any:
    """LoRA with every adapter and every saved module moved away from where it starts."""
    task = TaskType.CAUSAL_LM if family.language_model else TaskType.SEQ_CLS
    wrapped = get_peft_model(family.model(), LoraConfig(r=2, task_type=task, **settings))
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return wrapped.eval()


def check_adapted(family: Any, model: Any) -> None:
    """A wrapped model reads as itself, and as its own cuts."""
    batch = family.batch()
    readout = Readout.for_model(model)
    with torch.no_grad():
        outputs = model(**batch, **readout.needs_hidden_states)
        read = readout.logits(outputs.hidden_states, batch)
        for layer in family.cuts:
            cut = family.cut(model.get_base_model(), layer)
            torch.testing.assert_close(read[layer], cut(**batch).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")  # GPT-2's layers are Conv1D
def test_a_model_with_lora_finds_its_row(decoder: Any) -> None:
    model = adapted(decoder, target_modules="all-linear")
    assert Readout.for_model(model).model is model.get_base_model()
    check_adapted(decoder, model)


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning")
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", {"target_modules": ["q_proj", "lm_head"]}),
        ("llama", {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}),
        ("llama-tied", {"target_modules": ["q_proj", "lm_head"]}),
        ("llama-classifier", {"target_modules": ["q_proj"], "modules_to_save": ["score"]}),
        ("opt-projected", {"target_modules": ["q_proj", "project_out", "lm_head"]}),
    ],
)
def test_adapters_of_a_head_act_and_train_at_every_layer(
    families: dict[str, Any], name: str, settings: dict[str, Any]
) -> None:
    family = families[name]
    model = adapted(family, **settings)
    check_adapted(family, model)
    labels, batch = family.labels(), family.batch()
    readout = Readout.for_model(model.train())
    outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
    losses = readout.layer_losses(outputs, labels, batch)
    heads = ("lm_head", "score", "project_out")
    head = [p for n, p in model.named_parameters() if p.requires_grad and any(part in n for part in heads)]
    assert head
    for loss in losses:
        gradients = torch.autograd.grad(loss, head, retain_graph=True)
        assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_a_tied_weight_is_trained_as_embedding_and_as_head(families: dict[str, Any]) -> None:
    family = families["llama-tied"]
    model, batch, labels = family.model(), family.batch(), family.labels()
    weight = model.model.embed_tokens.weight
    assert model.lm_head.weight is weight
    readout = Readout.for_model(model)
    states = model(**batch, **readout.needs_hidden_states).hidden_states

    def gradient(states: tuple[Tensor, ...]) -> Tensor:
        losses = readout.per_sample_losses(readout.logits(states, batch, layers=[1]), labels)
        return torch.autograd.grad(losses.sum(), weight, retain_graph=True)[0]

    both, head = gradient(states), gradient(tuple(state.detach() for state in states))
    assert head.abs().sum() > 0
    assert not torch.allclose(both, head, atol=1e-3)


def test_a_classifier_without_its_batch_asks_for_it(families: dict[str, Any]) -> None:
    family = families["llama-classifier"]
    model, batch, labels = family.model(), family.batch(), family.labels()
    outputs = model(**batch, **Readout.for_model(model).needs_hidden_states)
    with pytest.raises(InputError, match="LlamaForSequenceClassification reads the last token before padding: give"):
        Readout.for_model(model).layer_losses(outputs, labels)


@torch.no_grad()
@pytest.mark.parametrize("why", ["no padding token", "no ids"])
def test_without_padding_to_find_the_last_position_is_read(families: dict[str, Any], why: str) -> None:
    model = families["llama-classifier"].model()
    ids = torch.randint(4, 32, (1, 5))
    batch = {"input_ids": ids} if why == "no padding token" else {"inputs_embeds": model.get_input_embeddings()(ids)}
    if why == "no padding token":
        model.config.pad_token_id = None
    readout = Readout.for_model(model)
    outputs = model(**batch, **readout.needs_hidden_states)
    read = readout.logits(outputs.hidden_states, batch, layers=[3])[0]
    torch.testing.assert_close(read, outputs.logits, rtol=1e-6, atol=1e-6)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.integers(2, 5), st.integers(0, 1000))
def test_token_losses_are_torchs_cross_entropy(layers: int, B: int, S: int, V: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(layers, B, S, V, dtype=torch.float64, generator=generator)
    labels = torch.randint(V, (B, S), generator=generator)
    labels = labels.where(torch.rand(B, S, generator=generator) < 0.6, IGNORED)
    losses, counts = next_token_losses(None, logits, labels), next_token_counts(None, labels)
    assert losses.shape == (layers, B)
    means = mean_loss(losses, counts)
    for layer in range(layers):
        rows = logits[layer, :, :-1].flatten(0, 1)
        torch.testing.assert_close(
            means[layer], nn.functional.cross_entropy(rows, labels[:, 1:].flatten()), equal_nan=True
        )
        for b in range(B):
            one = nn.functional.cross_entropy(logits[layer, b, :-1], labels[b, 1:], reduction="sum")
            torch.testing.assert_close(losses[layer, b] * counts[b], one)
    assert torch.equal(next_token_labels(labels)[:, :-1], labels[:, 1:])


def test_a_sample_without_a_token_that_counts_costs_nothing_and_leaves_the_mean(families: dict[str, Any]) -> None:
    family = families["llama"]
    model, batch, labels = family.model(), family.batch(), family.labels()
    labels[1] = IGNORED
    losses = all_losses(model, batch, labels)
    readout = Readout.for_model(model)
    assert readout.counts(labels).tolist() == [4, 0, 3, 2]
    assert (losses[:, 1] == 0).all()
    own = model(**batch, labels=labels).loss
    torch.testing.assert_close(readout.mean_loss(losses, labels)[-1], own)
    assert readout.mean_loss(losses, torch.full_like(labels, IGNORED)).isnan().all()


def test_bf16_logits_give_fp32_losses() -> None:
    logits = torch.randn(4, 8, 16).bfloat16()
    labels = torch.randint(16, (4, 8))
    losses = next_token_losses(None, logits, labels)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, next_token_losses(None, logits.float(), labels))
