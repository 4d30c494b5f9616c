"""The hooks: which tokens of which lookups a rewrite sees, and that nothing of them stays behind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
)

from layerdescent.errors import InputError
from layerdescent.perturbation.lookups import Tokens, rewritten_lookups

TINY: dict[str, Any] = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
IDS = torch.tensor([[2, 7, 8, 3], [2, 9, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])


class Recorder:
    def __init__(self) -> None:
        self.seen: list[Tokens] = []

    def __call__(self, tokens: Tokens, embeddings: Tensor) -> None:
        self.seen.append(tokens)


def bert(cls: type[Any] = BertForSequenceClassification) -> Any:
    return cls(BertConfig(intermediate_size=8, **TINY)).eval()


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def watched(model: nn.Module, recorder: Any, pad_id: int | None = None) -> Any:
    return rewritten_lookups(model, model.get_input_embeddings(), recorder, pad_id)  # type: ignore[operator]


@pytest.mark.parametrize("how", ["keywords", "positions"])
def test_the_mask_comes_from_the_forward_pass(how: str) -> None:
    model, recorder = bert(), Recorder()
    with watched(model, recorder, pad_id=7):
        model(IDS, MASK) if how == "positions" else model(input_ids=IDS, attention_mask=MASK)
    (tokens,) = recorder.seen
    np.testing.assert_array_equal(tokens.ids, IDS)
    np.testing.assert_array_equal(tokens.real, MASK)
    assert tokens.before is None


def test_without_a_mask_padding_is_the_padding_token() -> None:
    model, recorder = bert(), Recorder()
    with watched(model, recorder, pad_id=0):
        model(IDS)
        model.bert(IDS[:1])  # an inner module called by itself is seen too
    with watched(model, recorder):
        model(IDS)
    np.testing.assert_array_equal(recorder.seen[0].real, IDS != 0)
    np.testing.assert_array_equal(recorder.seen[1].real, IDS[:1] != 0)
    assert recorder.seen[2].real.all()


def test_multiple_choice_inputs_are_flattened_as_the_model_does() -> None:
    model, recorder = bert(BertForMultipleChoice), Recorder()
    with watched(model, recorder):
        model(input_ids=IDS.repeat(3, 1, 1), attention_mask=MASK.repeat(3, 1, 1))
    np.testing.assert_array_equal(recorder.seen[0].real, MASK.repeat(3, 1))


def test_hooks_are_gone_after_the_context_and_after_an_exception() -> None:
    model = bert()
    before = hooks(model)
    with watched(model, Recorder()):
        assert hooks(model) > before
    assert hooks(model) == before

    def failing(tokens: Tokens, embeddings: Tensor) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watched(model, failing):
        model(IDS)
    assert hooks(model) == before
    with watched(model, Recorder()):  # and the model is free again
        model(IDS)


def test_a_failed_forward_pass_leaves_the_next_one_right() -> None:
    model, recorder = bert(), Recorder()
    with watched(model, recorder):
        with pytest.raises(Exception, match="index out of range"):
            model(torch.full((1, 3), 99))
        model.bert(IDS)  # would be taken for a part of the failed pass, had that not been forgotten
        model(IDS, MASK)
    np.testing.assert_array_equal(recorder.seen[-1].real, MASK)


class Wrapper(nn.Module):
    """What PEFT's wrapper was before 0.18: it goes past the hooks of the model inside."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.base = base

    def get_base_model(self) -> nn.Module:
        return self.base

    def get_input_embeddings(self) -> nn.Module:
        return self.base.get_input_embeddings()  # type: ignore[operator]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base.forward(*args, **kwargs)


def test_a_wrapper_and_the_model_inside_are_both_followed() -> None:
    model, recorder = Wrapper(bert()), Recorder()
    with watched(model, recorder):
        model(IDS, MASK)
        model(input_ids=IDS, attention_mask=MASK)
        model.base(IDS, MASK)
    assert len(recorder.seen) == 3
    for tokens in recorder.seen:
        np.testing.assert_array_equal(tokens.real, MASK)
    assert hooks(model) == 0


def test_two_at_once_are_refused() -> None:
    model = bert()
    with (
        watched(model, Recorder()),
        pytest.raises(InputError, match="already on this Bert"),
        watched(model, Recorder()),
    ):
        pass
    with watched(model, Recorder()), watched(bert(), Recorder()):  # two models are fine
        pass


def test_embeddings_instead_of_ids_are_refused() -> None:
    model = bert()
    with watched(model, Recorder()), pytest.raises(InputError, match=r"inputs_embeds .* give input_ids"):
        model(inputs_embeds=torch.zeros(1, 3, 8))
    assert hooks(model) == 0


@pytest.mark.parametrize("mask", [torch.ones(2, 1, 4, 4), torch.ones(2, 3), {"full_attention": MASK}])
def test_a_mask_that_does_not_fit_is_refused(mask: Any) -> None:
    model = bert()
    with watched(model, Recorder()), pytest.raises(InputError, match=r"attention_mask of shape \(2, 4\)"):
        model(input_ids=IDS, attention_mask=mask)


class Plain(nn.Module):
    """A model whose forward does with its ids what a test wants."""

    def __init__(self, forward: Callable[[nn.Embedding, Tensor], Tensor]) -> None:
        super().__init__()
        self.embedding, self.looking_up = nn.Embedding(30, 4), forward

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.looking_up(self.embedding, input_ids)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda embedding, ids: nn.functional.embedding(ids, embedding.weight), "did not look its input_ids up"),
        (lambda embedding, ids: embedding(nn.functional.pad(ids, (0, 2))), r"asked for ids of shape \(2, 6\)"),
        (lambda embedding, ids: embedding(ids + 1), "not the input_ids the model was given"),
        (lambda embedding, ids: embedding(ids.flatten()), r"shape \(batch, length\), this lookup has \(8,\)"),
    ],
)
def test_better_no_result_than_one_that_looks_robust_because_no_noise_arrived(forward: Any, message: str) -> None:
    model = Plain(forward)
    with watched(model, Recorder()), pytest.raises(InputError, match=message):
        model(input_ids=IDS)
