"""Fused layer losses against the plain computation: all logits at once, torch's cross entropy, ordinary autograd."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from layerdescent.errors import InputError
from layerdescent.readout.fused import fused_layer_losses

D, V = 6, 11
WEIGHTS = (-0.4, 0.0, 2.5, 1.3)
LABELS = torch.tensor([[3, -100, 7, 0, 10], [-100, 1, 1, 5, -100], [2, 9, 4, -100, 6]])
COUNTED = 11


class Head(nn.Module):
    """As a decoder's: final norm, lm_head, soft-cap. Keeps the shapes of its logits, and how many it finds alive."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.lm_head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.shapes: list[tuple[int, ...]] = []
        self.alive: list[int] = []
        self._made: list[weakref.ref[Tensor]] = []

    def forward(self, rows: Tensor) -> Tensor:
        self.alive.append(sum(logits() is not None for logits in self._made))
        logits = 2 * torch.tanh(self.lm_head(self.dropout(self.norm(rows))) / 2)
        self.shapes.append(tuple(logits.shape))
        self._made.append(weakref.ref(logits))
        return logits


class LowRank(nn.Module):
    """An adapter around a frozen linear layer, as LoRA's: its `.weight` alone is not what the layer computes."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(D, V).requires_grad_(False)
        self.a, self.b = nn.Linear(D, 2, bias=False), nn.Linear(2, V, bias=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self.base(rows) + 3 * self.b(self.a(rows))


def hidden_states(K: int = 4, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(K, *LABELS.shape, D, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()


def double(module: nn.Module) -> Any:
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module.double()


def plain(
    hidden: Tensor | Sequence[Tensor],
    head: Callable[[Tensor], Tensor],
    labels: Tensor,
    weights: Sequence[float],
    num_items: float | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor]:
    count = labels.ne(-100).sum() if num_items is None else num_items
    losses = [
        functional.cross_entropy(
            head(h.flatten(0, -2)), labels.flatten(), reduction="sum", label_smoothing=label_smoothing
        )
        / count
        for h in hidden
    ]
    return torch.stack(losses).detach(), torch.stack([w * f for w, f in zip(weights, losses, strict=True)]).sum()


def gradients(total: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(total, tensors, materialize_grads=True))


def learning(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def assert_same(
    head: nn.Module, hidden: Tensor, labels: Tensor = LABELS, weights: Sequence[float] = WEIGHTS, **given: Any
) -> None:
    max_logits = given.pop("max_logits", 3 * V)
    expected, expected_total = plain(hidden, head, labels, weights, **given)
    losses, total = fused_layer_losses(hidden, head, labels, weights, max_logits=max_logits, **given)
    assert not losses.requires_grad
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(total, expected_total)
    tensors = [hidden, *learning(head)] if hidden.requires_grad else learning(head)
    torch.testing.assert_close(gradients(total, tensors), gradients(expected_total, tensors))


@pytest.mark.parametrize("tokens", [1, 7, COUNTED, 1000])
@pytest.mark.parametrize("make", [Head, LowRank, lambda: nn.Linear(D, V)])
def test_losses_and_gradients_are_those_of_the_plain_computation(tokens: int, make: Callable[[], nn.Module]) -> None:
    assert_same(double(make()), hidden_states(), max_logits=tokens * V + V - 1)


@pytest.mark.parametrize("given", [{"num_items": 40}, {"label_smoothing": 0.2}])
def test_other_counts_and_label_smoothing(given: dict[str, Any]) -> None:
    assert_same(double(Head()), hidden_states(), **given)


@settings(max_examples=40, deadline=None)
@given(
    shape=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    weights=st.lists(st.sampled_from([0.0, 1.0, -2.0, 0.3]), min_size=1, max_size=4),
    max_logits=st.integers(1, 8 * V),
    learns=st.tuples(st.booleans(), st.booleans()),
    share=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_any_shape(
    shape: list[int], weights: list[float], max_logits: int, learns: tuple[bool, bool], share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    head = double(Head()).requires_grad_(learns[1])
    hidden = torch.randn(len(weights), *shape, D, generator=generator, dtype=torch.float64).requires_grad_(learns[0])
    labels = torch.randint(V, shape, generator=generator)
    labels[torch.rand(shape, generator=generator) < share] = -100
    losses, total = fused_layer_losses(hidden, head, labels, weights, max_logits=max_logits)
    expected, expected_total = plain(hidden, head, labels, weights, num_items=max(1, int(labels.ne(-100).sum())))
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(total, expected_total)
    assert total.requires_grad == (any(learns) and any(weights))
    if total.requires_grad:
        tensors = [hidden, *learning(head)] if learns[0] else learning(head)
        torch.testing.assert_close(gradients(total, tensors), gradients(expected_total, tensors))


def test_gradcheck() -> None:
    head = double(nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 3)))
    hidden = torch.randn(2, 4, 2, dtype=torch.double, requires_grad=True)
    labels = torch.tensor([0, -100, 2, 1])
    assert torch.autograd.gradcheck(
        lambda hidden, *_: fused_layer_losses(hidden, head, labels, (-0.5, 1.5), max_logits=2 * 3)[1],
        (hidden, *head.parameters()),
    )


def test_layers_may_come_as_a_list_of_slices_and_not_all_of_them_learn() -> None:
    head, whole = double(Head()), hidden_states()
    layers = [whole[0], whole[1].detach(), whole.transpose(1, 2)[2].transpose(0, 1), whole[3].detach()]
    losses, total = fused_layer_losses(layers, head, LABELS, torch.tensor(WEIGHTS, dtype=torch.double))
    expected, expected_total = plain(layers, head, LABELS, WEIGHTS)
    torch.testing.assert_close(losses, expected)
    tensors = [whole, *head.parameters()]
    torch.testing.assert_close(gradients(total, tensors), gradients(expected_total, tensors))


def test_the_incoming_gradient_is_respected() -> None:
    head, hidden = double(Head()), hidden_states()
    expected = gradients(plain(hidden, head, LABELS, WEIGHTS)[1], [hidden, *head.parameters()])
    total = fused_layer_losses(hidden, head, LABELS, WEIGHTS)[1]
    (total / 4).backward(retain_graph=True)
    (total * 3 / 4).backward()
    for tensor, gradient in zip([hidden, *head.parameters()], expected, strict=True):
        torch.testing.assert_close(tensor.grad, gradient)


def test_micro_batches_add_up_to_the_batch() -> None:
    head, hidden = double(Head()), hidden_states()
    expected, expected_total = plain(hidden, head, LABELS, WEIGHTS)
    losses = torch.zeros(4, dtype=torch.double)
    for row in range(len(LABELS)):
        part = fused_layer_losses(hidden[:, row], head, LABELS[row], WEIGHTS, num_items=torch.tensor(COUNTED))
        part[1].backward()
        losses = losses + part[0]
    torch.testing.assert_close(losses, expected)
    tensors = [hidden, *head.parameters()]
    torch.testing.assert_close([tensor.grad for tensor in tensors], gradients(expected_total, tensors))


def test_a_tied_embedding_gets_the_gradients_of_both_uses() -> None:
    table = nn.Parameter(torch.randn(V, D, dtype=torch.double))
    head = nn.Linear(D, V, bias=False)
    head.weight = table

    def layers() -> list[Tensor]:
        hidden = functional.embedding(LABELS.clamp_min(0), table)
        return [hidden, hidden.sin(), hidden.cumsum(1), hidden**2]

    expected = gradients(plain(layers(), head, LABELS, WEIGHTS)[1], [table])
    total = fused_layer_losses(layers(), head, LABELS, WEIGHTS, max_logits=2 * V)[1]
    torch.testing.assert_close(gradients(total, [table]), expected)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's
@pytest.mark.parametrize("adapted", [False, True])
def test_a_tied_or_adapted_decoder_learns_what_its_own_loss_teaches(adapted: bool) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=not adapted,
    )
    model: Any = LlamaForCausalLM(config).double()
    if adapted:
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "lm_head"], init_lora_weights=False))
        model = model.base_model.model
    input_ids = torch.randint(40, (2, 9))
    labels = input_ids.masked_fill(torch.arange(9) < 3, -100)
    outputs = model(input_ids, output_hidden_states=True)
    own = functional.cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    shifted = functional.pad(labels[:, 1:], (0, 1), value=-100)
    losses, total = fused_layer_losses(outputs.hidden_states[-1:], model.lm_head, shifted, [1.0], max_logits=5 * 40)
    torch.testing.assert_close(losses[0], own.detach())
    tensors = learning(model)
    found = torch.autograd.grad(total, tensors, retain_graph=True)
    torch.testing.assert_close(list(found), gradients(own, tensors))


def test_a_function_says_what_learns_and_more_does_no_harm() -> None:
    head, hidden = double(Head()), hidden_states()
    other = nn.Parameter(torch.zeros(3))
    expected = gradients(plain(hidden, head, LABELS, WEIGHTS)[1], [*head.parameters()])
    doubled = [other, *head.parameters(), *head.norm.parameters()]
    fused_layer_losses(hidden, head.forward, LABELS, WEIGHTS, parameters=doubled)[1].backward()
    torch.testing.assert_close([parameter.grad for parameter in head.parameters()], expected)
    assert other.grad is None
    with pytest.raises(InputError, match="parameters"):
        fused_layer_losses(hidden, head.forward, LABELS, WEIGHTS)


def test_what_learns_elsewhere_costs_nothing() -> None:
    """A frozen head on frozen embeddings, with all of a model's parameters named."""
    head, hidden = double(Head()).requires_grad_(False), hidden_states()
    other = nn.Parameter(torch.zeros(3))
    layers = [hidden[0].detach(), hidden[1]]
    losses, total = fused_layer_losses(layers, head, LABELS, (-0.5, 2.0), parameters=[other])
    expected, expected_total = plain(layers, head, LABELS, (-0.5, 2.0))
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradients(total, [hidden]), gradients(expected_total, [hidden]))


def test_where_no_label_counts_everything_is_zero() -> None:
    head, hidden = double(Head()), hidden_states()
    for num_items in (None, 0):
        losses, total = fused_layer_losses(hidden, head, torch.full_like(LABELS, -100), WEIGHTS, num_items=num_items)
        assert torch.equal(losses, torch.zeros(4, dtype=torch.double))
        assert total == 0
        total.backward()
        assert hidden.grad is not None
        assert not hidden.grad.any()
    fused_layer_losses(hidden.detach(), head, torch.full_like(LABELS, -100), WEIGHTS)[1].backward()
    assert head.lm_head.weight.grad is None
    assert head.shapes == []


def test_a_layer_of_weight_zero_may_be_infinite() -> None:
    head, hidden = double(nn.Linear(D, V)), hidden_states().detach()
    hidden[1, 0, 0] = torch.inf
    hidden.requires_grad_()
    losses, total = fused_layer_losses(hidden, head, LABELS, WEIGHTS)
    assert not losses[1].isfinite()
    assert total.isfinite()
    found = gradients(total, [hidden, *head.parameters()])
    assert all(gradient.isfinite().all() for gradient in found)


@pytest.mark.parametrize(("tokens", "chunks"), [(1, [1] * 11), (4, [4, 4, 3]), (11, [11])])
def test_never_more_than_one_chunk_of_logits_and_no_call_too_many(tokens: int, chunks: list[int]) -> None:
    head = double(Head())
    fused_layer_losses(hidden_states(), head, LABELS, WEIGHTS, max_logits=tokens * V)[1].backward()
    # One row to learn what V is; nothing is read again in the backward pass.
    assert head.shapes == [(1, V)] + [(n, V) for n in chunks] * len(WEIGHTS)
    assert not any(head.alive)


def test_backward_only_where_something_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    backward = Mock(wraps=torch.autograd.grad)
    monkeypatch.setattr(torch.autograd, "grad", backward)

    def passes(hidden: Tensor, head: nn.Module, weights: Sequence[float] = WEIGHTS) -> int:
        backward.reset_mock()
        fused_layer_losses(hidden, head, LABELS, weights)
        return backward.call_count

    head, hidden = double(Head()), hidden_states()
    assert passes(hidden, head) == 3
    assert passes(hidden, head, (0, 0, 0, 1)) == 1
    assert passes(hidden, head, (0, 0, 0, 0)) == 0
    assert passes(hidden.detach(), head) == 3
    with torch.no_grad():
        assert passes(hidden, head) == 0
    head.requires_grad_(False)
    assert passes(hidden, head) == 3
    assert passes(hidden.detach(), head) == 0


def test_a_frozen_head_gets_no_gradient() -> None:
    assert_same(double(Head()).requires_grad_(False), hidden_states())


def test_dropout_in_the_head_is_the_same_for_every_layer_and_leaves_the_random_state() -> None:
    head = double(Head(dropout=0.5))
    hidden = hidden_states(1).expand(4, -1, -1, -1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    losses, _ = fused_layer_losses(hidden, head, LABELS, WEIGHTS, max_logits=4 * V)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(losses, losses[:1].expand(4))
    assert losses[0] != fused_layer_losses(hidden, head.eval(), LABELS, WEIGHTS)[0][0]


def test_bfloat16_is_as_near_to_fp32_as_its_own_rounding_allows() -> None:
    torch.manual_seed(0)
    head = nn.Linear(16, 64, bias=False).bfloat16()
    hidden = torch.randn(3, 600, 16).bfloat16().requires_grad_()
    labels = torch.randint(64, (600,))
    exact, exact_hidden = nn.Linear(16, 64, bias=False), hidden.detach().float().requires_grad_()
    exact.weight.data = head.weight.detach().float()
    weights = (-0.5, 0.75, 1.25)
    losses, total = fused_layer_losses(hidden, head, labels, weights, max_logits=8 * 64)
    expected, expected_total = plain(exact_hidden, exact, labels, weights)
    assert losses.dtype == total.dtype == torch.float32
    torch.testing.assert_close(losses, expected, rtol=5e-4, atol=0)  # a bf16 mean would be off by up to 4e-3
    of_hidden, of_head = gradients(total, [hidden, head.weight])
    assert of_hidden.dtype == of_head.dtype == torch.bfloat16
    exact_of_hidden, exact_of_head = gradients(expected_total, [exact_hidden, exact.weight])
    for found, wanted in ((of_hidden.float(), exact_of_hidden), (of_head.float(), exact_of_head)):
        assert (found - wanted).norm() < 6e-3 * wanted.norm()


def test_the_gradient_of_a_bfloat16_head_is_summed_in_fp32() -> None:
    # 600 chunks of one token, each a gradient of 1 - p on the same row: in bf16 the sum would stop at 256.
    head = nn.Linear(1, 2, bias=False).bfloat16().requires_grad_()
    head.weight.data.zero_()
    _, total = fused_layer_losses(
        torch.ones(1, 600, 1).bfloat16(), head, torch.zeros(600, dtype=torch.long), [1.0], max_logits=2
    )
    torch.testing.assert_close(gradients(total, [head.weight])[0], torch.tensor([[-0.5], [0.5]]).bfloat16())


def test_half_precision_does_not_lose_small_gradients() -> None:
    # Divided by the count first, a gradient of 1e-3 per token would be 1e-9, below what fp16 can hold.
    head = nn.Linear(4, 8, bias=False).half()
    hidden = (torch.randn(1, 16, 4) / 100).half().requires_grad_()
    total = fused_layer_losses(hidden, head, torch.zeros(16, dtype=torch.long), [1.0], num_items=1e6)[1]
    exact = hidden.detach().double().requires_grad_()
    weight = head.weight.detach().double()
    expected = plain(exact, lambda rows: rows @ weight.T, torch.zeros(16, dtype=torch.long), [1.0], num_items=1e6)[1]
    scaled = gradients(total * 2.0**16, [hidden])[0].double()  # as a loss scaler does
    torch.testing.assert_close(scaled, gradients(expected * 2.0**16, [exact])[0], rtol=2e-2, atol=1e-4)


def test_autocast() -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(16, 64), torch.randn(3, 40, 16, requires_grad=True)
    labels, weights = torch.randint(64, (40,)), (0.0, -0.5, 1.5)
    expected, expected_total = plain(hidden, head, labels, weights)
    with torch.autocast("cpu", torch.bfloat16):
        losses, total = fused_layer_losses(hidden, head, labels, weights, max_logits=7 * 64)
    assert losses.dtype == torch.float32
    assert not torch.equal(losses, expected)  # it was bf16 inside
    torch.testing.assert_close(losses, expected, rtol=1e-2, atol=0)
    tensors = [hidden, *head.parameters()]
    for found, wanted in zip(gradients(total, tensors), gradients(expected_total, tensors), strict=True):
        assert found.dtype == torch.float32
        assert (found - wanted).norm() < 1e-2 * wanted.norm()


# Dynamo looks at .grad of whatever crosses a graph break, and hides the warning by means that "error" overrules.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_inside_a_compiled_function_and_with_a_compiled_head() -> None:
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        seen.append(" ".join(str(node.target) for node in graph.graph.nodes))
        return graph.forward

    head, hidden = double(nn.Linear(D, V)), hidden_states()
    tensors = [hidden, *head.parameters()]
    expected = gradients(plain(2 * hidden, head, LABELS, WEIGHTS)[1].sin(), tensors)
    compiled_head = torch.compile(head, backend=backend)

    @torch.compile(backend=backend)
    def objective(hidden: Tensor) -> Tensor:
        return fused_layer_losses(2 * hidden, compiled_head, LABELS, WEIGHTS)[1].sin()

    torch.testing.assert_close(gradients(objective(hidden), tensors), expected)
    # What comes before, the head for one row and for many, what comes after: one break, and nothing in between.
    assert ["mul" in seen[0], "sin" in seen[-1]] == [True, True]
    assert all("linear" in graph for graph in seen[1:-1])


def test_there_is_no_second_derivative() -> None:
    hidden = hidden_states()
    total = fused_layer_losses(hidden, double(Head()), LABELS, WEIGHTS)[1]
    with pytest.raises(InputError, match="only once"):
        torch.autograd.grad(total, [hidden], create_graph=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weights": (1.0, 2.0)}, "2 weights for the hidden states of 4 layers"),
        ({"hidden_states": [], "weights": ()}, "0 layers"),
        ({"labels": LABELS[:, 1:]}, r"labels of shape \(3, 4\) for hidden states \(3, 5, 6\)"),
        ({"num_items": 0}, "num_items is 0"),
        ({"head": nn.Identity(), "hidden_states": torch.zeros(4, 3, 5, 6, 1)}, "labels of shape"),
        ({"head": nn.Flatten(0)}, r"the head made \(6,\) of one row \(1, 6\)"),
    ],
)
def test_what_does_not_fit_is_an_error(given: dict[str, Any], message: str) -> None:
    fitting = {"hidden_states": hidden_states(), "head": double(Head()), "labels": LABELS, "weights": WEIGHTS}
    with pytest.raises(InputError, match=message):
        fused_layer_losses(**(fitting | given))
