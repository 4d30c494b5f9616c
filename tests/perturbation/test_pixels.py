"""Noise on pixels: its size, its keys, and the models that it is for."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, ViTConfig, ViTForImageClassification

from layerdescent.errors import InputError
from layerdescent.noise_kinds import PIXEL_KINDS
from layerdescent.perturbation import Perturbation
from layerdescent.perturbation.pixels import noisy_sample, training_pixel_noise

GREY = np.full((200, 300), 0.25, dtype=np.float32)


class Identity(torch.nn.Module):
    """A model of images that gives back what it read."""

    main_input_name = "pixel_values"

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        return pixel_values


def read(model: torch.nn.Module, perturbation: Perturbation, pixels: torch.Tensor) -> torch.Tensor:
    with perturbation.on(model):
        seen: torch.Tensor = model(pixel_values=pixels)
    return seen


@pytest.mark.parametrize(("kind", "deviation"), [("gaussian", 0.4), ("uniform", 0.4), ("poisson", 0.4 * 0.25**0.5)])
def test_noise_has_its_mean_and_size(kind: Any, deviation: float) -> None:
    noise = noisy_sample(kind, 0.4, 0, GREY) - GREY
    assert abs(noise.mean()) < 4 * deviation / noise.size**0.5
    assert noise.std() == pytest.approx(deviation, rel=0.02)
    if kind == "uniform":
        assert abs(noise).max() == pytest.approx(0.4 * 3**0.5, rel=1e-3)


def test_poisson_counts_are_whole_and_the_noise_grows_with_the_light() -> None:
    dark, light = (noisy_sample("poisson", 0.2, 0, np.full_like(GREY, value)) for value in (0.1, 0.9))
    np.testing.assert_allclose(light / 0.2**2, np.round(light / 0.2**2), atol=1e-4)
    assert light.var() / dark.var() == pytest.approx(9, rel=0.05)
    assert noisy_sample("poisson", 0.2, 0, np.full((1, 1), -0.3, dtype=np.float32)) == 0


def test_salt_and_pepper_replaces_its_share_evenly_and_a_smaller_share_within_a_larger() -> None:
    few, many = (noisy_sample("salt-and-pepper", share, 0, GREY) for share in (0.1, 0.3))
    changed = many != GREY
    assert changed.mean() == pytest.approx(0.3, abs=0.01)
    assert set(np.unique(many[changed])) == {0.0, 1.0}
    assert many[changed].mean() == pytest.approx(0.5, abs=0.02)
    assert (changed | (few == GREY)).all()
    np.testing.assert_array_equal(few[few != GREY], many[few != GREY])


@pytest.mark.parametrize("kind", PIXEL_KINDS)
def test_noise_depends_on_seed_kind_and_sample_alone(kind: Any) -> None:
    pixels = torch.rand(4, 5, 16)
    strength: Any = {"share": 0.5} if kind == "salt-and-pepper" else {"gamma": 0.7}
    model = Identity()
    whole = read(model, Perturbation(kind, seed=3, **strength), pixels)
    torch.testing.assert_close(read(model, Perturbation(kind, seed=3, **strength), pixels[2:3]), whole[2:3])
    assert not torch.equal(read(model, Perturbation(kind, seed=4, **strength), pixels), whole)
    changed = pixels.clone()
    changed[0, 0, 0] += 0.5
    assert not torch.equal(read(model, Perturbation(kind, seed=3, **strength), changed)[0, 1:], whole[0, 1:])
    assert torch.equal(model(pixels), pixels)  # the hook is gone


def test_levels_share_one_draw() -> None:
    pixels = torch.rand(2, 8, 8)
    weak, strong = (read(Identity(), Perturbation("gaussian", gamma=gamma), pixels) - pixels for gamma in (0.1, 1.0))
    torch.testing.assert_close(10 * weak, strong, atol=1e-5, rtol=1e-4)
    assert torch.equal(read(Identity(), Perturbation("gaussian", gamma=0.0), pixels), pixels)


def test_the_share_that_changed_is_counted() -> None:
    perturbation = Perturbation("salt-and-pepper", share=0.25)
    read(Identity(), perturbation, torch.from_numpy(GREY)[None])
    assert perturbation.realised_share == pytest.approx(0.25, abs=0.01)


def test_gradients_reach_the_pixels() -> None:
    pixels = torch.rand(1, 3, 3, requires_grad=True)
    read(Identity(), Perturbation("gaussian", gamma=0.5), pixels).sum().backward()
    assert pixels.grad is not None
    assert torch.equal(pixels.grad, torch.ones_like(pixels))


def test_an_image_classifier_is_disturbed_too() -> None:
    config = ViTConfig(image_size=8, patch_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
    model = ViTForImageClassification(config).eval()
    pixels = torch.rand(1, 3, 8, 8)
    with torch.no_grad():
        clean = model(pixel_values=pixels).logits
        with Perturbation("uniform", gamma=1.0).on(model):
            noisy, again = model(pixels).logits, model(pixel_values=pixels).logits
    assert torch.equal(noisy, again)
    assert not torch.equal(noisy, clean)


def test_training_noise_is_fresh_and_has_its_size() -> None:
    model, pixels = Identity(), torch.zeros(1, 100, 100)
    with training_pixel_noise(model, 0.3):
        first, second = model(pixels), model(pixels)
    assert first.std().item() == pytest.approx(0.3, rel=0.03)
    assert not torch.equal(first, second)


def test_every_kind_has_its_models() -> None:
    bert = BertModel(BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1))
    with (
        pytest.raises(InputError, match="poisson noise is not for BertModel, which reads tokens"),
        Perturbation("poisson", gamma=1.0).on(bert),
    ):
        pass
    with (
        pytest.raises(InputError, match="discrete noise is not for Identity, which reads pixels"),
        Perturbation("discrete", gamma=1.0).on(Identity()),
    ):
        pass


def test_wrong_strengths_two_at_once_and_no_pixels_are_refused() -> None:
    with pytest.raises(InputError, match="salt-and-pepper noise has a share of pixels"):
        Perturbation("salt-and-pepper", gamma=0.5)
    model = Identity()
    noise = Perturbation("gaussian", gamma=0.5)
    with noise.on(model):
        with pytest.raises(InputError, match="a perturbation is already on this Identity"), noise.on(model):
            pass
        with pytest.raises(InputError, match="was given no pixel_values"):
            model()
