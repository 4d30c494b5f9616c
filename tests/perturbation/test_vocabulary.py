"""The embedding matrix as a set of points, against brute force in float64."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel, BertConfig, BertModel, GPT2Config, GPT2Model, ViTConfig, ViTModel

from layerdescent.errors import InputError
from layerdescent.perturbation import vocabulary
from layerdescent.perturbation.vocabulary import (
    embedding_scale,
    embedding_table,
    exit_scales,
    nearest_rows,
    special_ids,
    word_embedding,
)

TINY: dict[str, Any] = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}


def brute_force(points: Tensor, table: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    squared = (points.double()[:, None] - table.double()).square().sum(dim=-1)
    best = squared.masked_fill(~allowed, torch.inf).min(dim=1)
    return best.indices, best.values


@pytest.fixture(params=[(3, 5), (1024, 4096)], ids=["chunked", "whole"])
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with chunks that cut through points and rows, and with the real sizes."""
    points, rows = request.param
    monkeypatch.setattr(vocabulary, "_POINT_CHUNK", points)
    monkeypatch.setattr(vocabulary, "_ROW_CHUNK", rows)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nearest_rows_equal_brute_force(dtype: torch.dtype) -> None:
    table = torch.randn(203, 12).to(dtype)
    allowed = torch.rand(203) > 0.2
    points = table[torch.randint(203, (50,))].float() + 0.8 * torch.randn(50, 12)
    rows, squared = nearest_rows(points, table, allowed)
    expected_rows, expected_squared = brute_force(points, table, allowed)
    assert torch.equal(rows, expected_rows)
    torch.testing.assert_close(squared, expected_squared)


@pytest.mark.usefixtures("chunks")
def test_of_equally_near_rows_an_allowed_one_is_found() -> None:
    table = torch.tensor([[9.0, 9.0], [1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 0.0]])
    allowed = torch.ones(7, dtype=torch.bool)
    assert nearest_rows(torch.zeros(4, 2), table, allowed)[1].tolist() == [1, 1, 1, 1]
    allowed[[1, 6]] = False
    assert nearest_rows(torch.tensor([[0.9, 0.0]]), table, allowed)[0].tolist() == [3]


def test_far_rows_are_told_apart_to_the_last_digit() -> None:
    """|w|^2 - 2 <x, w> alone cancels here: the distances differ by less than float32 can hold of |w|^2."""
    table = torch.tensor([[1000.0, 0.0], [1000.0, 0.02], [1000.0, 0.05], [-1000.0, 0.0]])
    rows, _ = nearest_rows(torch.tensor([[1000.0, 0.019]]), table[:2], torch.ones(2, dtype=torch.bool))
    assert rows.item() == 1


def test_autocast_does_not_touch_the_distances() -> None:
    table, points = torch.randn(300, 32), torch.randn(40, 32)
    allowed = torch.ones(300, dtype=torch.bool)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows, _ = nearest_rows(points, table, allowed)
        exits = exit_scales(rows, points, table, allowed)
    assert torch.equal(rows, brute_force(points, table, allowed)[0])
    assert torch.equal(exits, exit_scales(rows, points, table, allowed))


@pytest.mark.usefixtures("chunks")
def test_a_point_leaves_its_cell_at_the_exit_scale() -> None:
    table = torch.randn(90, 6)
    allowed = torch.rand(90) > 0.3
    own = torch.nonzero(allowed).flatten()[torch.randint(int(allowed.sum()), (70,))]
    noise = torch.randn(70, 6)
    exits = exit_scales(own, noise, table, allowed)
    assert exits.isfinite().any()
    for factor, stays in ((0.999, True), (1.001, False)):
        crossing = exits.isfinite()
        points = table[own].double() + factor * exits[:, None].double() * noise.double()
        rows, _ = brute_force(points[crossing], table, allowed)
        assert torch.equal(rows == own[crossing], torch.full_like(rows, stays, dtype=torch.bool))
    never = ~exits.isfinite()
    far = table[own].double() + 1e4 * noise.double()
    assert torch.equal(brute_force(far, table, allowed)[0] == own, never)


def test_twins_and_rows_that_are_not_allowed_never_take_over() -> None:
    table = torch.tensor([[0.3, 0.1], [0.3, 0.1], [1.3, 0.1], [5.3, 0.1]])
    ray = torch.tensor([[1.0, 0.0]])
    allowed = torch.tensor([True, True, False, True])
    assert exit_scales(torch.tensor([0]), ray, table, allowed).item() == pytest.approx(2.5)
    assert exit_scales(torch.tensor([0]), -ray, table, allowed).item() == torch.inf
    alone = torch.tensor([True, False, False, False])
    assert exit_scales(torch.tensor([0]), ray, table, alone).item() == torch.inf


def test_scale_is_the_rms_of_the_matrix() -> None:
    model = AlbertModel(AlbertConfig(vocab_size=50, embedding_size=6, num_hidden_groups=1, **TINY))
    weight = model.get_input_embeddings().weight
    assert embedding_scale(model) == pytest.approx(weight.double().square().mean().sqrt().item(), rel=1e-6)
    half = embedding_scale(model.bfloat16())
    assert half == pytest.approx(weight.double().square().mean().sqrt().item(), rel=1e-6)


def test_table_is_what_the_embedding_puts_out() -> None:
    class Scaled(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return 3 * super().forward(input)

    plain, scaled = nn.Embedding(5, 2), Scaled(5, 2)
    assert embedding_table(plain).data_ptr() == plain.weight.data_ptr()
    assert torch.equal(embedding_table(scaled), 3 * scaled.weight)


def test_special_ids_come_from_the_tokenizer_or_the_config() -> None:
    bert = BertModel(BertConfig(vocab_size=20, **TINY))
    tokenizer = SimpleNamespace(all_special_ids=[0, 3, 2], pad_token_id=0)
    assert special_ids(bert, tokenizer) == [0, 2, 3]
    assert special_ids(bert, SimpleNamespace(tokenizer=tokenizer)) == [0, 2, 3]
    bert.config.update({"sep_token_id": 7, "eos_token_id": [8, 9], "bos_token_id": -1})
    assert special_ids(bert) == [0, 7, 8, 9]
    gpt2 = GPT2Model(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=1, bos_token_id=19, eos_token_id=19))
    assert special_ids(gpt2) == [19]


def test_special_ids_are_never_guessed() -> None:
    bert = BertModel(BertConfig(vocab_size=20, **TINY))
    with pytest.raises(InputError, match=r"BertModel are special is not known.*give the tokenizer"):
        special_ids(bert)
    with pytest.raises(InputError, match="SimpleNamespace names no special tokens"):
        special_ids(bert, SimpleNamespace())


@pytest.mark.parametrize(
    "model",
    [ViTModel(ViTConfig(image_size=8, patch_size=4, **TINY)), nn.Linear(3, 3), nn.DataParallel(nn.Linear(3, 3))],
)
def test_a_model_without_word_embedding_is_refused(model: nn.Module) -> None:
    with pytest.raises(InputError, match=f"{type(model).__name__} has none"):
        word_embedding(model)
