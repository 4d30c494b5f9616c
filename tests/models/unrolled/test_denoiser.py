"""What holds for every denoiser: its outputs, its layers, its checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModel, Trainer

from layerdescent.errors import InputError
from layerdescent.evaluation.batches import load_model
from layerdescent.models import DENOISERS, DustConfig, IstaConfig, TransformerDenoiserConfig, UtConfig
from layerdescent.models.unrolled.denoiser import inverse_softplus
from tests.models.unrolled.tiny import KINDS, LEARNT, UNORDERED, inputs, make

every_kind = pytest.mark.parametrize("kind", KINDS)


@torch.no_grad()
@every_kind
def test_every_layer_is_returned_in_pixels_and_the_last_is_the_reconstruction(kind: str) -> None:
    model = make(kind)
    x, labels = inputs(model), torch.rand(3, 5, 16).double()
    outputs = model(x, labels=labels, output_hidden_states=True)
    assert [state.shape for state in outputs.hidden_states] == [(3, 5, 16)] * 4
    assert outputs.logits is outputs.hidden_states[-1]
    assert float(outputs.loss) == pytest.approx(float((outputs.logits - labels).square().mean()), rel=1e-12)
    without = model(x)
    assert without.hidden_states is None
    assert without.loss is None
    assert torch.equal(without.logits, outputs.logits)
    assert outputs.logits.dtype == torch.float64


@torch.no_grad()
@every_kind
def test_a_model_stopped_early_gives_what_that_layer_says(kind: str) -> None:
    model = make(kind)
    x = inputs(model)
    states = model(x, output_hidden_states=True).hidden_states
    for k in range(4):
        stopped = model(x, num_layers=k, output_hidden_states=True)
        assert torch.equal(stopped.logits, states[k])
        assert len(stopped.hidden_states) == k + 1
        assert torch.equal(model(x, num_layers=k).logits, states[k])
    assert not any(torch.equal(states[k], states[k + 1]) for k in range(3)), "layers must differ, or this shows nothing"


@torch.no_grad()
@every_kind
def test_the_first_estimate_is_the_input_itself_or_the_decoded_start(kind: str) -> None:
    model = make(kind)
    x = inputs(model)
    first = model(x, num_layers=0).logits
    if model.config.num_measurements is None:
        assert torch.equal(first, x)
    elif hasattr(model, "dictionary"):
        H = model.first(None, x, model.measurement @ model.dictionary)
        torch.testing.assert_close(first, H @ model.dictionary.T)
    else:
        torch.testing.assert_close(first, model._decode(model._start(x)))


@torch.no_grad()
@every_kind
def test_a_sequence_does_not_see_the_others_of_its_batch(kind: str) -> None:
    model = make(kind)
    x = inputs(model, 4, 5)
    together = model(x, output_hidden_states=True).hidden_states
    for order in ([0], [2], [3, 1], [1, 3, 0, 2]):
        for state, other in zip(together, model(x[order], output_hidden_states=True).hidden_states, strict=True):
            torch.testing.assert_close(state[order], other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", UNORDERED)
@settings(max_examples=10)
@given(order=st.permutations(range(6)), seed=st.integers(0, 1000))
@torch.no_grad()
def test_permuting_frames_permutes_the_result(kind: str, order: list[int], seed: int) -> None:
    model = make(kind)
    x = inputs(model, 2, 6, seed=seed)
    torch.testing.assert_close(model(x[:, order]).logits, model(x).logits[:, order], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_an_ordinary_transformer_knows_the_order_of_the_frames() -> None:
    model = make("transformer")
    x, order = inputs(model), [1, 0, 2, 3, 4]
    assert not torch.allclose(model(x[:, order]).logits, model(x).logits[:, order], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("kind", [kind for kind in LEARNT if kind not in ("lista", "dust-off")])
def test_frames_see_each_other(kind: str) -> None:
    model = make(kind)
    x = inputs(model, 1, 5)
    other = x.clone()
    other[:, 4] += 0.5
    assert (model(other).logits - model(x).logits)[:, :4].abs().max() > 1e-6


@torch.no_grad()
@every_kind
@pytest.mark.parametrize("T", [1, 2, 9])
def test_any_number_of_frames(kind: str, T: int) -> None:
    model = make(kind)
    assert model(inputs(model, 2, T)).logits.shape == (2, T, 16)


@pytest.mark.parametrize("kind", LEARNT)
def test_gradients_are_right_in_double_precision(kind: str) -> None:
    config: dict[str, Any] = {"num_pixels": 4, "hidden_size": 6, "num_hidden_layers": 2}
    config |= {"num_measurements": 3} if "measured" in kind else {}
    config |= {"num_attention_heads": 2} if kind.startswith("transformer") else {}
    model = make(kind, **config)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    values = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, weights, strict=True))
        outputs: Any = torch.func.functional_call(model, given, (x,), {"output_hidden_states": True})
        return torch.stack(outputs.hidden_states)

    x = inputs(model, 2, 3).requires_grad_(True)
    assert torch.autograd.gradcheck(layers, (x, *values), fast_mode=True)


@pytest.mark.parametrize("kind", LEARNT)
def test_the_loss_of_the_last_layer_reaches_every_weight(kind: str) -> None:
    model = make(kind)
    x = inputs(model)
    model(x, labels=torch.rand(3, 5, 16)).loss.backward()
    still = [name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not p.grad.any())]
    assert still == []


def test_classical_ista_has_nothing_to_train() -> None:
    assert not any(parameter.requires_grad for parameter in make("ista").parameters())


@torch.no_grad()
@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_checkpoint_gives_the_same_model_back(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = make(kind, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():  # the fixed ones too: they must come from the file, not from the config
            parameter.add_(0.01)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    x = inputs(model)
    for again in (AutoModel.from_pretrained(tmp_path), load_model(tmp_path)):
        assert type(again) is type(model)
        mine, its = dict(model.named_parameters()), dict(again.named_parameters())
        assert {name: p.requires_grad for name, p in its.items()} == {name: p.requires_grad for name, p in mine.items()}
        assert all(torch.equal(mine[name], its[name]) for name in mine)
        # Weights that a file was mapped into lie elsewhere in memory, and products may round otherwise there.
        rounding = 1e-5 if dtype == torch.float32 else 1e-12
        torch.testing.assert_close(again(x).logits, model(x).logits, rtol=rounding, atol=rounding)
    config = AutoConfig.from_pretrained(tmp_path)
    assert (config.problem_type, config.num_labels, config.num_hidden_layers) == ("regression", 1, 3)
    own = set(type(config).__dataclass_fields__) - {"architectures", "dtype", "transformers_version"}
    assert {name: getattr(config, name) for name in own} == {name: getattr(model.config, name) for name in own}


def test_each_class_is_the_one_of_its_model_type() -> None:
    found = {cls.config_class.model_type: cls.__name__ for cls in DENOISERS}
    assert found == {
        "dust": "DustForDenoising",
        "ista": "IstaForDenoising",
        "transformer-denoiser": "TransformerForDenoising",
        "ut": "UtForDenoising",
    }
    assert {cls.main_input_name for cls in DENOISERS} == {"pixel_values"}


def test_weight_decay_spares_steps_and_thresholds() -> None:
    trainer: Any = Trainer.__new__(Trainer)
    for kind in LEARNT:
        model = make(kind)
        decayed = {name for name in trainer.get_decay_parameter_names(model) if model.get_parameter(name).ndim < 2}
        assert decayed == set()
        assert any(parameter.ndim == 0 for parameter in model.parameters()) != kind.startswith("transformer")


@torch.no_grad()
def test_inputs_are_taken_in_the_models_precision() -> None:
    model = make("dust", dtype=torch.float32)
    assert model(inputs(model)).logits.dtype == torch.float32


@torch.no_grad()
def test_a_tuple_where_one_is_asked_for() -> None:
    model = make("ut")
    x = inputs(model)
    logits, states = model(x, output_hidden_states=True, return_dict=False)
    assert torch.equal(logits, states[-1])


def test_wrong_inputs_and_depths_are_one_clear_line() -> None:
    model = make("dust")
    for x in (torch.rand(2, 3, 15), torch.rand(3, 16)):
        with pytest.raises(InputError, match=r"takes pixel_values of shape \(B, T, 16\), but they are"):
            model(x)
    for k in (-1, 4):
        with pytest.raises(InputError, match=f"{k} layers were asked for, but this DustForDenoising has 0 … 3"):
            model(inputs(model), num_layers=k)


@pytest.mark.parametrize(
    ("cls", "fields", "message"),
    [
        (UtConfig, {"num_pixels": 0}, "num_pixels=0 of a UtConfig must be a whole number of at least 1"),
        (UtConfig, {"num_hidden_layers": -1}, "num_hidden_layers=-1"),
        (UtConfig, {"num_measurements": 64}, "num_measurements=64 of a UtConfig must be fewer than num_pixels=64"),
        (UtConfig, {"num_measurements": 0}, "num_measurements=0"),
        (UtConfig, {"initial_step": 1.0}, "initial_step=1.0"),
        (IstaConfig, {"l1": 0.0}, "l1=0.0 of a IstaConfig must be a number above 0"),
        (IstaConfig, {"dictionary": "haar"}, "dictionary='haar' of a IstaConfig must be 'dct' or 'random'"),
        (IstaConfig, {"num_pixels": 15}, "num_pixels=15 makes no square patch"),
        (DustConfig, {"num_attention_heads": 3}, "num_attention_heads=3 .* divide hidden_size=128"),
        (DustConfig, {"initial_attention": 0.0}, "initial_attention=0.0 .* attention=False is 0"),
        (DustConfig, {"joint": True}, "free=True of a DustConfig must be False for the joint step"),
        (DustConfig, {"joint": True, "free": False, "attention": False}, "attention=False"),
        (DustConfig, {"joint": True, "free": False, "normalize_tokens": True}, "normalize_tokens=True"),
        (DustConfig, {"l2": 0.0}, "l2=0.0"),
        (TransformerDenoiserConfig, {"hidden_size": 15, "num_attention_heads": 3}, "hidden_size=15 .* even"),
        (TransformerDenoiserConfig, {"num_attention_heads": 5}, "num_attention_heads=5"),
    ],
)
def test_configurations_that_cannot_be_name_the_field(cls: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        cls(**fields)


@given(st.floats(1e-6, 50))
def test_inverse_softplus(x: float) -> None:
    back = torch.nn.functional.softplus(inverse_softplus(torch.tensor(x, dtype=torch.float64)))
    assert float(back) == pytest.approx(x, rel=1e-8)
