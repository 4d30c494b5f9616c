"""The readout around its contract: wrapped models, precision, chosen layers, registration, wrong use."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from layerdescent.errors import InputError
from layerdescent.readout import READOUTS, Readout, ReadoutSpec, register_readout

# peft 0.21 still asks transformers by its former name whether a model checkpoints.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

LABELS = torch.tensor([0, 1, 2, 1])


def adapted(model: PreTrainedModel, **settings: Any) -> PeftModel:
    """LoRA with every adapter and every saved module moved away from where it starts."""
    wrapped = get_peft_model(model, LoraConfig(r=2, lora_dropout=0.2, **settings))
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return wrapped.eval()


PEFT = {
    "saved classifier": ("bert", {"target_modules": ["query", "value"], "modules_to_save": ["classifier"]}),
    "adapters on pooler and classifier": ("bert", {"target_modules": ["query", "pooler.dense", "classifier"]}),
    "saved head of two layers": ("roberta", {"target_modules": ["query"], "modules_to_save": ["classifier"]}),
    "adapters inside the head": ("roberta", {"target_modules": ["classifier.dense", "classifier.out_proj"]}),
}


@pytest.mark.parametrize("case", PEFT)
def test_adapters_of_a_head_act_at_every_layer(families: dict[str, Any], case: str) -> None:
    name, settings = PEFT[case]
    family = families[name]
    model, batch = adapted(family.model(), **settings), family.batch()
    readout = Readout.for_model(model)
    with torch.no_grad():
        outputs = model(**batch, **readout.needs_hidden_states)
        read = readout.logits(outputs.hidden_states, batch)
        bare = family.model()
        unadapted = Readout.for_model(bare).logits(outputs.hidden_states, batch)
    alone = readout.logits(outputs.hidden_states, batch, layers=[readout.num_layers])[0]
    assert torch.equal(alone, outputs.logits)
    for layer in family.cuts:
        cut = family.cut(model.get_base_model(), layer)
        torch.testing.assert_close(read[layer], cut(**batch).logits, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(read, unadapted, atol=1e-3)


@pytest.mark.parametrize("case", PEFT)
def test_adapters_train_through_the_readout(families: dict[str, Any], case: str) -> None:
    name, settings = PEFT[case]
    model, batch = adapted(families[name].model(), **settings).train(), families[name].batch()
    readout = Readout.for_model(model)
    torch.manual_seed(1)
    plain = model(**batch, labels=LABELS).loss
    state = torch.get_rng_state()
    torch.manual_seed(1)
    outputs = model(**batch, labels=LABELS, **readout.needs_hidden_states)
    losses = readout.layer_losses(outputs, LABELS, batch)
    assert torch.equal(losses[-1], plain)
    assert torch.equal(torch.get_rng_state(), state)
    losses[1].backward()
    head = [p for n, p in model.named_parameters() if p.requires_grad and ("classifier" in n or "pooler" in n)]
    assert head
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, on importing its compiler
def test_wrappers_of_parallel_and_compiled_models_are_seen_through(bert: Any) -> None:
    model = bert.model()
    compiled: Any = torch.compile(model)
    for wrapped in (nn.DataParallel(model), compiled, nn.DataParallel(adapted(model, target_modules=["query"]))):
        assert Readout.for_model(wrapped).model is model


@pytest.mark.parametrize("layers", [[0, 2, 3], [1], [0, 1]])
def test_chosen_layers_are_slices_of_all(family: Any, layers: list[int]) -> None:
    model, batch, labels = family.model().train(), family.batch(), family.labels()
    readout = Readout.for_model(model)
    outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
    every = readout.layer_losses(outputs, labels, batch)
    some = readout.layer_losses(outputs, labels, batch, layers=layers)
    torch.testing.assert_close(some, every[layers], rtol=1e-6, atol=1e-6)


def test_layer_logits_end_with_the_models_own(bert: Any) -> None:
    model, batch = bert.model().train(), bert.batch()
    readout = Readout.for_model(model)
    outputs = model(**batch, **readout.needs_hidden_states)
    logits = readout.layer_logits(outputs, batch)
    assert torch.equal(logits[3], outputs.logits)
    assert torch.equal(logits[:3], readout.layer_logits(outputs, batch, layers=[0, 1, 2]))
    assert torch.equal(readout.layer_logits(outputs, batch, layers=[3])[0], outputs.logits)


def test_losses_without_labels_in_the_forward_are_the_same(bert: Any) -> None:
    model, batch = bert.model(), bert.batch()
    readout = Readout.for_model(model)
    without = readout.layer_losses(model(**batch, **readout.needs_hidden_states), LABELS)
    own = readout.layer_losses(model(**batch, labels=LABELS, **readout.needs_hidden_states), LABELS)
    torch.testing.assert_close(without, own)


@pytest.mark.parametrize("outside", [False, True], ids=["read under autocast", "read outside of it"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_autocast_gives_fp32_losses(family: Any, training: bool, outside: bool) -> None:
    model, batch, labels = family.model().train(training), family.batch(), family.labels()
    readout = Readout.for_model(model)
    torch.manual_seed(1)
    exact = readout.layer_losses(model(**batch, labels=labels, **readout.needs_hidden_states), labels, batch)
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = model(**batch, labels=labels, **readout.needs_hidden_states)
        inside = readout.layer_losses(outputs, labels, batch)
    losses = readout.layer_losses(outputs, labels, batch) if outside else inside
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, exact, rtol=0.1, atol=0.1)
    losses.sum().backward()


def test_a_bf16_model_gives_fp32_losses_and_its_own_gradient(bert: Any) -> None:
    model, batch = bert.model().to(torch.bfloat16), bert.batch()
    readout = Readout.for_model(model)
    outputs = model(**batch, labels=LABELS, **readout.needs_hidden_states)
    losses = readout.layer_losses(outputs, LABELS, batch)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses[-1], nn.functional.cross_entropy(outputs.logits.float(), LABELS))
    assert losses[-1] != outputs.loss.float(), "the fp32 value is not the rounded one"
    (own,) = torch.autograd.grad(outputs.loss, model.classifier.weight, retain_graph=True)
    (read,) = torch.autograd.grad(losses[-1], model.classifier.weight)
    assert torch.equal(read, own)


def test_an_fp64_model_keeps_its_precision(bert: Any) -> None:
    model, batch = bert.model().double(), bert.batch()
    readout = Readout.for_model(model)
    outputs = model(**batch, labels=LABELS, **readout.needs_hidden_states)
    assert readout.layer_losses(outputs, LABELS, batch).dtype == torch.float64


class _StackConfig(PreTrainedConfig):
    model_type = "stack"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)


class StackForSequenceClassification(PreTrainedModel):
    """A residual stack with a final norm and a mean over positions: nothing the table knows."""

    config_class = _StackConfig

    def __init__(self, config: _StackConfig) -> None:
        super().__init__(config)
        self.embed = nn.Embedding(32, 8)
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.norm = nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.5)
        self.score = nn.Linear(8, 3)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor | None = None, **kwargs: Any
    ) -> SequenceClassifierOutput:
        states = [self.embed(input_ids)]
        for block in self.blocks:
            states.append(states[-1] + torch.tanh(block(states[-1])))
        mask = attention_mask[..., None].float()
        logits = self.score(self.dropout((self.norm(states[-1]) * mask).sum(1) / mask.sum(1)))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=tuple(states))


def _stack_rows(model: Any, hidden: Tensor, batch: Any) -> Tensor:
    mask = batch["attention_mask"][..., None].float()
    return (model.norm(hidden) * mask).sum(1) / mask.sum(1)


STACK = ReadoutSpec(
    num_layers=lambda model: len(model.blocks),
    rows=_stack_rows,
    head=lambda model, rows: model.score(model.dropout(rows)),
)


@pytest.fixture
def registered() -> Iterator[None]:
    register_readout("StackForSequenceClassification", STACK)
    yield
    del READOUTS["StackForSequenceClassification"]


@pytest.mark.usefixtures("registered")
def test_a_registered_architecture_is_read_and_trained(bert: Any) -> None:
    model, batch = StackForSequenceClassification(_StackConfig(num_labels=3)), bert.batch()
    readout = Readout.for_model(model.eval())
    assert readout.num_layers == 2
    outputs = model(**batch, labels=LABELS, **readout.needs_hidden_states)
    read = readout.logits(outputs.hidden_states, batch, layers=[2])
    assert torch.equal(read[0], outputs.logits)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    sums = []
    for _ in range(30):
        losses = readout.layer_losses(model(**batch, labels=LABELS), LABELS, batch)
        optimizer.zero_grad()
        losses.sum().backward()
        optimizer.step()
        sums.append(losses.sum().item())
    assert sums[-1] < 0.5 * sums[0]


def test_an_unknown_architecture_is_told_how_to_register() -> None:
    model = StackForSequenceClassification(_StackConfig(num_labels=3))
    with pytest.raises(InputError, match="no readout for StackForSequenceClassification") as error:
        Readout.for_model(model)
    message = str(error.value)
    assert "\n" not in message
    assert "BertForSequenceClassification" in message
    call = re.search(r"layerdescent\.(register_readout\(.*\))$", message)
    assert call is not None
    try:  # what the message shows is code that runs
        exec(call[1], {"register_readout": register_readout, "ReadoutSpec": ReadoutSpec})
        assert isinstance(READOUTS["StackForSequenceClassification"], ReadoutSpec)
    finally:
        READOUTS.pop("StackForSequenceClassification", None)


@pytest.mark.usefixtures("registered")
def test_a_wrong_layer_count_of_a_registered_readout_is_named(bert: Any) -> None:
    register_readout(
        "StackForSequenceClassification",
        ReadoutSpec(num_layers=lambda model: 5, rows=STACK.rows, head=STACK.head),
    )
    model, batch = StackForSequenceClassification(_StackConfig(num_labels=3)), bert.batch()
    with pytest.raises(InputError, match="of 5 layers returned 3 hidden states, not 6"):
        Readout.for_model(model).layer_losses(model(**batch), LABELS, batch)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([0, 7], "layer 7 was asked for, but BertForSequenceClassification has layers 0 … 3"),
        ([-1], "layer -1 was asked for"),
        ([2, 1], "in rising order"),
        ([1, 1], "each once"),
        ([], "at least one"),
    ],
)
def test_layers_that_cannot_be_read_are_named(bert: Any, layers: list[int], message: str) -> None:
    model, batch = bert.model(), bert.batch()
    readout = Readout.for_model(model)
    outputs = model(**batch, labels=LABELS, **readout.needs_hidden_states)
    for read in (
        lambda: readout.logits(outputs.hidden_states, batch, layers),
        lambda: readout.layer_logits(outputs, batch, layers),
        lambda: readout.layer_losses(outputs, LABELS, batch, layers),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            read()


def test_outputs_without_hidden_states_are_refused(bert: Any) -> None:
    model = bert.model()
    with pytest.raises(InputError, match="needs_hidden_states"):
        Readout.for_model(model).layer_losses(model(**bert.batch(), labels=LABELS), LABELS)


def test_a_head_that_averages_over_positions_asks_for_the_batch(families: dict[str, Any]) -> None:
    family = families["modernbert-mean"]
    model = family.model()
    readout = Readout.for_model(model)
    outputs = model(**family.batch(), labels=LABELS, **readout.needs_hidden_states)
    with pytest.raises(InputError, match="give the readout the batch"):
        readout.layer_losses(outputs, LABELS)


@torch.no_grad()
def test_a_batch_without_attention_mask_is_read_as_the_model_reads_it(families: dict[str, Any]) -> None:
    family = families["modernbert-mean"]
    model, batch = family.model(), {"input_ids": torch.randint(4, 32, (2, 5))}
    readout = Readout.for_model(model)
    outputs = model(**batch, **readout.needs_hidden_states)
    assert torch.equal(readout.logits(outputs.hidden_states, batch, layers=[3])[0], outputs.logits)


def test_a_config_that_changes_which_states_are_normed_is_refused(families: dict[str, Any]) -> None:
    model = families["modernbert-cls"].model()
    model.config.tie_last_hidden_states = False
    with pytest.raises(InputError, match="tie_last_hidden_states"):
        Readout.for_model(model)


@torch.no_grad()
def test_layer_0_read_at_the_first_token_is_the_same_for_every_input(families: dict[str, Any]) -> None:
    for name, constant in (("bert", True), ("vit", True), ("dinov2", False), ("modernbert-mean", False)):
        family = families[name]
        model, batch = family.model(), family.batch()
        readout = Readout.for_model(model)
        first = readout.logits(model(**batch, **readout.needs_hidden_states).hidden_states, batch, layers=[0])[0]
        assert torch.allclose(first, first[:1], atol=1e-6) == constant, name
