"""The benchmarks run and write what they promise; their numbers mean nothing on a toy model."""

import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import denoise, head_inputs, lm_step_cost, step_cost
from layerdescent.errors import InputError
from layerdescent.models import DustConfig, DustForDenoising


def settings(*arguments: str) -> step_cost.Settings:
    return step_cost.parse(["--quick", *arguments])[0]


def test_step_cost_writes_its_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Five fresh processes take longer to start than everything else here; one is started below.
    peaks = {arm: [{"allocated": 100 + len(arm), "resident": 200 + len(arm)}] for arm in step_cost.ARMS}
    monkeypatch.setattr(step_cost, "measure_memory", lambda _: peaks)
    step_cost.main(["--quick", "--output", str(tmp_path / "results" / "cost.json")])
    found = json.loads((tmp_path / "results" / "cost.json").read_text())
    arms = found["arms"]
    assert set(arms) == {"erm", "profiled", "descent", "naive", "freelb"}
    assert arms["erm"]["step_time_ratio"] == arms["erm"]["peak_memory_ratio"] == 1
    assert found["step_time_ratio"] == arms["descent"]["step_time_ratio"] > 0
    assert found["peak_memory_ratio"] == pytest.approx(107 / 103)
    assert found["peak_resident_ratio"] == pytest.approx(207 / 203)
    for row in arms.values():
        seconds = row["step_seconds"]
        assert 0 < seconds["quartile_low"] <= seconds["median"] <= seconds["quartile_high"]
        assert seconds["n"] == 2  # of two rounds of three: neither the first round nor a block's first step counts
    assert {arm for arm, row in arms.items() if row["active_multipliers"] is not None} == {"descent", "naive"}
    assert found["environment"]["torch"]
    assert found["settings"]["seed"] == 0
    assert "descent" in capsys.readouterr().out


def test_peak_memory_of_a_fresh_process_is_above_nothing() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        peak = pool.submit(step_cost.peak_memory, "descent", settings()).result()
    # Parameters, gradients and two Adam moments of the toy model, in single precision, are the least there can be.
    parameters = sum(p.numel() for p in step_cost.build_model(settings()).parameters())
    assert peak["allocated"] > 4 * 4 * parameters
    assert peak["resident"] > 0


def test_the_naive_loop_minimises_what_the_package_does(tmp_path: Path) -> None:
    """Same model, same multipliers, dropout off: equal Lagrangians and equal gradients."""
    gradients = []
    for arm in ("descent", "naive"):
        trainer = step_cost.build_trainer(arm, settings(), str(tmp_path))
        multipliers = trainer.multipliers  # type: ignore[attr-defined]  # both arms have some
        multipliers.values.fill_(1.0)
        for module in trainer.model.modules():  # type: ignore[union-attr]
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        batches, count = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 1, torch.device("cpu"))
        trainer.training_step(trainer.model, batches[0], count)  # type: ignore[arg-type]
        gradients.append({n: p.grad for n, p in trainer.model.named_parameters()})  # type: ignore[union-attr]
    ours, naive = gradients
    assert ours.keys() == naive.keys()
    for name, gradient in ours.items():
        assert gradient is not None
        torch.testing.assert_close(gradient, naive[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("arm", ["freelb", "erm"])
def test_adversarial_steps_are_three_passes_of_a_perturbed_embedding(arm: str, tmp_path: Path) -> None:
    trainer = step_cost.build_trainer(arm, settings(), str(tmp_path))
    passes = []
    trainer.model.register_forward_hook(lambda *_: passes.append(1))  # type: ignore[union-attr]
    trainer.train()
    steps = settings().steps + 1
    assert len(passes) == steps * (step_cost.ASCENT_STEPS if arm == "freelb" else 1)


def test_an_unknown_arm_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no arm is called 'sgd': choose from erm"):
        step_cost.build_trainer("sgd", settings(), str(tmp_path))


def test_head_inputs_tells_information_from_scale() -> None:
    torch.manual_seed(0)
    labels = torch.arange(400) % 2
    informative = torch.randn(400, 3) + 2.0 * labels[:, None]
    states = torch.stack([torch.randn(400, 3), informative, 1e-3 * informative])
    found = list(head_inputs.layers(states[:, :300], labels[:300], states[:, 300:], labels[300:], penalty=0.03))
    assert found[0]["probe_accuracy"] < 0.65
    assert found[1]["probe_accuracy"] > 0.9
    assert found[2]["probe_loss"] == pytest.approx(found[1]["probe_loss"], abs=1e-4), "the probe rescales"
    assert found[2]["spread"] == pytest.approx(1e-3 * found[1]["spread"], rel=1e-4)


def test_a_probe_has_no_gradient_left_at_its_fit() -> None:
    torch.manual_seed(0)
    rows, labels = torch.randn(60, 4), torch.randint(3, (60,))
    strong, _ = head_inputs.probe(rows, labels, rows, labels, penalty=1e6)
    assert strong == pytest.approx(-(labels.bincount() / 60).log().mul(labels.bincount() / 60).sum().item(), abs=1e-4)


@pytest.fixture
def small_denoiser(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = DustConfig(num_pixels=16, num_frames=4, hidden_size=16, num_hidden_layers=2)
    DustForDenoising(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def run_denoise(model: Path, tmp_path: Path, *more: str) -> dict[str, Any]:
    sizes = [
        "--frames",
        "6",
        "--width",
        "24",
        "--height",
        "16",
        "--rounds",
        "2",
        "--output",
        str(tmp_path / "out.json"),
    ]
    denoise.main([str(model), *sizes, *more])
    return dict(json.loads((tmp_path / "out.json").read_text()))


def test_denoise_measures_every_method_on_one_clip(
    small_denoiser: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cv2")
    pytest.importorskip("pywt")
    found = run_denoise(small_denoiser, tmp_path, "--layers", "1", "--layers", "2")
    rows = found["methods"]
    ours = {"layerdescent, 1 layer", "layerdescent, 2 layers"}
    assert set(rows) == {"noisy", "opencv", "wavelet", "wavelet-volume", *ours}
    assert found["missing"] == {}
    assert rows["noisy"]["rmse"] == pytest.approx(0.2, rel=0.15)  # a little less than was added: bytes end at 0 and 255
    for name in ("opencv", "wavelet", "wavelet-volume"):
        assert rows[name]["rmse_clipped"] < 0.8 * rows["noisy"]["rmse_clipped"]
    for name, row in rows.items():
        assert row["psnr_clipped"] == pytest.approx(-20 * math.log10(row["rmse_clipped"]), abs=0.3)
        assert (name in ours) == ("rmse_unclipped_noise" in row)
        if name != "noisy":
            speed = row["frames_per_second"]
            assert 0 < speed["lowest"] <= speed["median"] <= speed["highest"]
    assert 0.4 <= found["chosen"]["opencv_h"] / (255 * 0.2) <= 1.5
    assert found["environment"]["scikit-image"]
    assert "opencv" in capsys.readouterr().out


def test_denoise_without_opencv_says_so(
    small_denoiser: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("cv2", "pywt"):
        monkeypatch.setitem(sys.modules, package, None)
    found = run_denoise(small_denoiser, tmp_path)
    assert set(found["methods"]) == {"noisy", "layerdescent, 2 layers"}
    assert set(found["missing"]) == {"opencv", "wavelet"}
    assert "cv2 is not installed; pip install 'layerdescent[video,benchmarks]'" in capsys.readouterr().out


def test_denoise_refuses_layers_that_are_not_there(small_denoiser: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the model has 2"):
        run_denoise(small_denoiser, tmp_path, "--layers", "3")


deprecated = pytest.mark.filterwarnings(
    "ignore:`(is_)?gradient_checkpointing(_enable)?` is deprecated:FutureWarning",
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning",
)


def lm_settings(*arguments: str) -> lm_step_cost.Settings:
    return lm_step_cost.parse(["--quick", "--threads", "1", *arguments])[0]


@deprecated
def test_lm_step_cost_writes_its_ratios(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peaks: dict[str, int | None] = {arm: 100 + len(arm) for arm in lm_step_cost.ARMS} | {"naive": None}
    monkeypatch.setattr(lm_step_cost, "measure_memory", lambda _: peaks)
    lm_step_cost.main(["--quick", "--threads", "1", "--output", str(tmp_path / "cost.json")])
    found = json.loads((tmp_path / "cost.json").read_text())
    arms = found["arms"]
    assert set(arms) == set(lm_step_cost.ARMS)
    assert arms["erm"]["step_time_ratio"] == arms["erm"]["peak_memory_ratio"] == 1
    assert found["exact_step_time_ratio"] == arms["exact"]["step_time_ratio"] > 0
    assert found["budget_step_time_ratio"] > 0
    assert found["stock_step_time_ratio"] > 0
    assert found["exact_peak_memory_ratio"] == pytest.approx(105 / 103)
    assert found["naive_peak_memory_ratio"] is found["naive_step_time_ratio"] is None  # it did not fit: not timed
    assert arms["exact"]["modelled_flops_ratio"] > arms["budget"]["modelled_flops_ratio"] > 1
    assert arms["budget"]["step_seconds"]["n"] == 2
    assert arms["exact"]["step_seconds"]["n"] == 1  # every second round
    assert "does not fit" in capsys.readouterr().out


@deprecated
def test_peak_memory_of_a_language_models_arms() -> None:
    exact, naive = (lm_step_cost.peak_memory(arm, lm_settings()) for arm in ("exact", "naive"))
    logits = 4 * 64 * 512  # bytes of one layer's; there are ten, of which the exact way needs a few copies of one
    assert naive > exact + 6 * logits
    with pytest.raises(ValueError, match="no arm is called 'sgd': choose from erm"):
        lm_step_cost.Trained("sgd", lm_settings())


@deprecated
def test_the_arms_of_a_language_model_train_on_what_they_say() -> None:
    """Same batch, same weights: stock is plain training, naive the exact Lagrangian, budget the same at full share."""

    def gradients(arm: str, *arguments: str) -> tuple[float, list[torch.Tensor]]:
        trained = lm_step_cost.Trained(arm, lm_settings(*arguments))
        for name, parameter in trained.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(0))
        loss = trained.loss(torch.arange(64).view(2, 32) % 50)
        loss.backward()
        found = [parameter.grad for parameter in trained.model.parameters() if parameter.requires_grad]
        return loss.item(), [gradient for gradient in found if gradient is not None]

    for one, other in (("erm", "stock"), ("exact", "naive")):
        (loss, ours), (expected, theirs) = gradients(one), gradients(other)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert len(ours) == len(theirs) > 0
        for gradient, wanted in zip(ours, theirs, strict=True):
            torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)
    plain, _ = gradients("erm")
    whole, _ = gradients("budget", "--share", "1", "--layers", "9")
    exact, _ = gradients("exact")
    embeddings = lm_step_cost.WEIGHT * loss_of_embeddings()
    assert whole == pytest.approx(exact - embeddings + lm_step_cost.WEIGHT * plain, rel=1e-4)


def loss_of_embeddings() -> float:
    """The loss read from the embeddings, for the batch above."""
    trained = lm_step_cost.Trained("exact", lm_settings())
    ids = torch.arange(64).view(2, 32) % 50
    with torch.no_grad():
        logits = trained._inner(trained.causal.get_input_embeddings()(ids))
        return float(nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()))
