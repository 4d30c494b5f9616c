"""The profile against plain model calls, its words, and its file."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerFast, ViTConfig, ViTForImageClassification

from layerdescent.descent import DescentConstraints
from layerdescent.errors import InputError, RunError
from layerdescent.evaluation import DescentProfile, descent_profile, describe
from layerdescent.evaluation.diagnostics import Calibration
from layerdescent.layers import CALIBRATED_FALL, rises
from layerdescent.perturbation import Perturbation
from tests.evaluation.tiny import Rows, make_clips, make_denoiser, make_model, make_rows


def simulated(means: list[float], spread: float = 0.05, count: int = 500, **more: object) -> DescentProfile:
    """A profile with the given mean layer losses, exactly."""
    losses = np.random.default_rng(0).normal(means, spread, size=(count, len(means)))
    losses += np.array(means) - losses.mean(axis=0)
    fields = {
        "layer_losses": losses.astype(np.float32),
        "labels": np.arange(count) % 2,
        "kind": "single_label_classification",
        "constraints": DescentConstraints(num_layers=len(means) - 1, alpha=0.1),
    }
    return DescentProfile(**(fields | more))  # type: ignore[arg-type]


def test_the_last_layer_is_the_models_own_loss(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model().eval()
    profile = descent_profile(model, rows, processing_class=tokenizer, batch_size=7, progress=False)
    with torch.no_grad():
        outputs = [
            model(
                input_ids=torch.tensor([row["input_ids"]]),
                attention_mask=torch.tensor([row["attention_mask"]]),
                labels=torch.tensor([row["labels"]]),
            )
            for row in rows
        ]
    np.testing.assert_allclose(profile.layer_losses[:, -1], [output.loss.item() for output in outputs], atol=1e-5)
    assert profile.mean_losses[-1] == pytest.approx(np.mean([output.loss.item() for output in outputs]), abs=1e-5)
    assert profile.correct is not None
    right = [output.logits.argmax().item() == row["labels"] for output, row in zip(outputs, rows, strict=True)]
    assert profile.correct[:, -1].tolist() == right
    # Every layer's loss is its own: a readout that read one layer for all would pass all the rest.
    assert len(np.unique(profile.mean_losses.round(4))) == 4


def test_results_do_not_depend_on_batches_or_order(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model()
    noise = Perturbation("gaussian", gamma=1.0)
    options: dict[str, Any] = {"processing_class": tokenizer, "perturbation": noise, "progress": False}
    one = descent_profile(model, rows, batch_size=1, **options)
    many = descent_profile(model, rows, batch_size=16, **options)
    back = descent_profile(model, rows[::-1], batch_size=5, **options)
    np.testing.assert_allclose(many.layer_losses, one.layer_losses, atol=1e-5)
    np.testing.assert_allclose(back.layer_losses[::-1], one.layer_losses, atol=1e-5)
    assert one.perturbation == noise.to_dict()


def test_noise_changes_the_losses_and_leaves_the_model(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model()
    clean = descent_profile(model, rows, processing_class=tokenizer, progress=False)
    noisy = descent_profile(
        model, rows, processing_class=tokenizer, perturbation=Perturbation("gaussian", gamma=1.0), progress=False
    )
    after = descent_profile(model, rows, processing_class=tokenizer, progress=False)
    assert np.abs(noisy.layer_losses - clean.layer_losses).max() > 0.01
    np.testing.assert_array_equal(after.layer_losses, clean.layer_losses)


def test_a_dataset_and_a_path_give_what_a_list_and_a_model_give(
    rows: Rows, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    model = make_model()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    direct = descent_profile(model, rows, processing_class=tokenizer, progress=False)
    loaded = descent_profile(tmp_path, Dataset.from_list(rows), progress=False)
    np.testing.assert_allclose(loaded.layer_losses, direct.layer_losses, atol=1e-6)


def test_calibration_uses_validation_data_only(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model()
    validation = make_rows(40, seed=5)
    profile = descent_profile(
        model, rows, processing_class=tokenizer, validation=validation, batch_size=8, progress=False
    )
    twice = descent_profile(
        model, validation, processing_class=tokenizer, validation=validation, batch_size=8, progress=False
    )
    assert profile.temperatures is not None
    assert profile.calibrated_losses is not None
    assert twice.temperatures is not None
    np.testing.assert_allclose(profile.temperatures, twice.temperatures)
    assert twice.calibrated_losses is not None
    assert (twice.calibrated_losses <= twice.mean_losses + 1e-6).all()  # on its own data a fit is no worse than T = 1
    assert profile.verdict["calibrated"] is (not rises(profile.calibrated_losses, range(4), CALIBRATED_FALL))


def test_labels_of_validation_rows_stay_with_their_rows(tokenizer: PreTrainedTokenizerFast) -> None:
    """Batches are sorted by length; temperatures must not depend on the order in which rows were given."""
    model, validation = make_model(), make_rows(40, seed=5)
    tests = make_rows(10)
    there, back = (
        descent_profile(model, tests, processing_class=tokenizer, validation=data, batch_size=3, progress=False)
        for data in (validation, validation[::-1])
    )
    assert there.temperatures is not None
    assert back.temperatures is not None
    np.testing.assert_allclose(there.temperatures, back.temperatures, rtol=1e-3)


def test_regression_has_gain_and_offset_but_no_accuracy(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model(num_labels=1)
    data = make_rows(20, label=lambda rng: float(rng.normal()))
    profile = descent_profile(model, data, processing_class=tokenizer, validation=data, progress=False)
    assert profile.kind == "regression"
    assert profile.accuracies is None
    assert profile.temperatures is None
    assert profile.calibrated_losses is not None
    # Least squares on the same data: never worse than the best constant.
    assert (profile.calibrated_losses <= profile.constant_losses.mean() + 1e-5).all()
    assert "gain and offset" in " ".join(describe(profile))


def test_several_labels_a_row(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model(num_labels=3)
    data = make_rows(20, label=lambda rng: rng.integers(2, size=3).tolist())
    profile = descent_profile(model, data, processing_class=tokenizer, validation=data, progress=False)
    assert profile.kind == "multi_label_classification"
    assert profile.accuracies is not None
    assert profile.temperatures is not None


def test_images() -> None:
    sizes: Any = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = ViTForImageClassification(ViTConfig(**sizes, image_size=8, patch_size=4))
    data = [{"pixel_values": torch.rand(3, 8, 8), "labels": i % 2} for i in range(9)]
    profile = descent_profile(model, data, batch_size=4, progress=False)
    assert profile.layer_losses.shape == (9, 3)


@pytest.mark.parametrize("noise", [0.1, 0.0], ids=["noisy", "clean"])
def test_clips_of_a_denoiser(noise: float) -> None:
    model = make_denoiser()
    data = make_clips(12, noise)
    profile = descent_profile(model, data, validation=data[:5], batch_size=5, progress=False)
    assert (profile.kind, profile.labels.shape, profile.accuracies) == ("regression", (12, 4, 16), None)
    pixels, labels = (torch.from_numpy(np.stack([row[name] for row in data])) for name in ("pixel_values", "labels"))
    with torch.no_grad():
        states = model(pixels, output_hidden_states=True).hidden_states
    for layer, state in enumerate(states):
        expected = (state - labels).square().mean((1, 2)).numpy()
        np.testing.assert_allclose(profile.layer_losses[:, layer], expected, rtol=1e-4, atol=1e-9)
        gain, offset = np.polyfit(state[:5].numpy().ravel(), labels[:5].numpy().ravel(), 1)
        fitted = (gain * state + offset - labels).square().mean((1, 2)).numpy()
        assert profile.calibrated_layer_losses is not None
        np.testing.assert_allclose(profile.calibrated_layer_losses[:, layer], fitted, rtol=1e-3, atol=1e-9)
    constant = (labels - labels.mean(0)).square().mean((1, 2)).numpy()
    np.testing.assert_allclose(profile.constant_losses, constant, rtol=1e-4)
    assert profile.to_dict()["verdict"]["calibrated"] in (True, False)


def test_the_words() -> None:
    assert simulated([0.69, 0.5, 0.3]).verdict == {
        "monotone": True,
        "feasible": True,
        "shown": True,
        "calibrated": None,
    }
    assert describe(simulated([0.69, 0.5, 0.3]))[:2] == [
        "Every layer lowers the loss by its alpha: shown at 95 % on 500 samples.",
        "No validation data: calibration not checked.",
    ]


@pytest.mark.parametrize(
    ("means", "spread", "sentence"),
    [
        ([0.69, 0.64, 0.3], 0.05, "shown at 95 % on 500 samples; that each does so by its alpha is not shown."),
        ([0.69, 0.68, 0.3], 0.9, "monotone, but not shown at 95 % on 500 samples (layer 1)."),
        ([0.69, 0.70, 0.3], 0.05, "The loss does not fall at layer 1: not monotone on 500 samples."),
        ([0.69, 0.64, 0.3], 0.05, "The constraint is violated beyond its tolerance at layer 1: not feasible."),
        ([0.69, 0.63, 0.3], 0.05, "Every constraint is met within its tolerance: feasible."),
        ([0.80, 0.60, 0.3], 0.05, "F_0 = 0.800 lies above the best constant prediction (0.693)"),
    ],
)
def test_what_does_not_hold_is_said_in_words(means: list[float], spread: float, sentence: str) -> None:
    assert sentence in " ".join(describe(simulated(means, spread)))


def test_calibrated_descent_in_words() -> None:
    good = simulated([0.69, 0.5, 0.3])
    line = Calibration(np.ones(3), np.zeros(3))
    held = simulated([0.69, 0.5, 0.3], calibration=line, calibrated_layer_losses=good.layer_losses)
    assert "After one temperature per layer every layer still lowers the loss: shown at 95 %." in describe(held)
    flat = good.layer_losses[:, [0, 1, 1]]
    lost = simulated([0.69, 0.5, 0.3], calibration=line, calibrated_layer_losses=flat)
    assert "After one temperature per layer the loss does not fall at layer 2." in describe(lost)
    assert [flag.name for flag in lost.flags] == ["scale only"]
    assert lost.verdict["calibrated"] is False


def test_descent_is_judged_on_the_nodes() -> None:
    means = [0.69, 0.75, 0.5, 0.6, 0.3]
    grid = DescentConstraints(num_layers=4, alpha=0.05, grid=(0, 2, 4))
    assert simulated(means, constraints=grid).verdict["monotone"] is True
    assert simulated(means).verdict["monotone"] is False
    assert describe(simulated(means, constraints=grid))[0].startswith(
        "Every layer of the grid (0, 2 and 4) lowers the loss by"
    )


def test_the_share_of_descending_samples() -> None:
    losses = np.array([[3, 2, 1], [3, 3, 1], [1, 2, 3], [9, 5, 4]], dtype=np.float32)
    profile = simulated([0.0, 0.0, 0.0], count=4, layer_losses=losses)
    assert profile.share_descending == 0.5


def test_samples_of_one_group_are_one_unit(tmp_path: Path) -> None:
    alone = simulated([0.69, 0.5, 0.49], spread=0.1, count=100)
    # Every sample ten times over tells no more than once, if it is known to be one unit.
    repeated: Any = {name: np.repeat(getattr(alone, name), 10, axis=0) for name in ("layer_losses", "labels")}
    naive = replace(alone, **repeated)
    grouped = replace(alone, **repeated, groups=np.repeat(np.arange(100), 10))
    np.testing.assert_allclose(grouped.intervals, alone.intervals, rtol=1e-6)
    assert (np.diff(naive.intervals)[:, 0] < 0.5 * np.diff(alone.intervals)[:, 0]).all()
    assert grouped.to_dict()["n_units"] == 100
    assert grouped.verdict == alone.verdict
    assert "on 1000 samples in 100 independent groups" in describe(grouped)[0]
    grouped.save(tmp_path / "profile.safetensors")
    loaded = DescentProfile.load(tmp_path / "profile.safetensors").groups
    assert loaded is not None
    np.testing.assert_array_equal(loaded, grouped.groups)


def test_inflation_is_measured_against_the_erm_twin(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    erm = descent_profile(make_model(1), rows, processing_class=tokenizer, progress=False)
    profile = descent_profile(make_model(2), rows, processing_class=tokenizer, erm=erm, progress=False)
    best = np.minimum(erm.mean_losses, profile.constant_losses.mean())
    np.testing.assert_allclose(profile.inflation, profile.mean_losses - best)
    with pytest.raises(InputError, match="pair them"):
        descent_profile(make_model(), rows[:-1], processing_class=tokenizer, erm=erm, progress=False)


def test_a_profile_survives_its_file(rows: Rows, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    erm = descent_profile(make_model(1), rows, processing_class=tokenizer, progress=False)
    profile = descent_profile(
        make_model(),
        rows,
        processing_class=tokenizer,
        constraints=DescentConstraints(num_layers=3, alpha=[0.1, 0.2, 0.1], first_layer=2),
        validation=make_rows(20, seed=3),
        erm=erm,
        perturbation=Perturbation("uniform", gamma=0.5),
        lambda_share=[0.5, 0.0],
        progress=False,
    )
    path = tmp_path / "new" / "profile.safetensors"
    profile.save(path)
    again = DescentProfile.load(path)
    assert again.to_dict() == profile.to_dict()
    assert json.loads(json.dumps(profile.to_dict(), allow_nan=False)) == profile.to_dict()
    np.testing.assert_array_equal(again.layer_losses, profile.layer_losses)
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_or_missing_profile_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "profile.safetensors"
    with pytest.raises(RunError, match="is not there"):
        DescentProfile.load(path)
    simulated([0.69, 0.5, 0.3]).save(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(RunError, match="is damaged"):
        DescentProfile.load(path)


def test_no_space_left_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="could not be written"):
        simulated([0.69, 0.5, 0.3]).save(tmp_path / "file" / "profile.safetensors")


def test_data_that_cannot_have_a_profile(rows: Rows, tokenizer: PreTrainedTokenizerFast) -> None:
    same = [row | {"labels": 1} for row in rows]
    with pytest.raises(InputError, match="all 30 rows have the same label"):
        descent_profile(make_model(), same, processing_class=tokenizer, progress=False)
    with pytest.raises(InputError, match="no data"):
        descent_profile(make_model(), [], processing_class=tokenizer, progress=False)
    with pytest.raises(InputError, match="7 layers, but the model has 3"):
        descent_profile(
            make_model(),
            rows,
            processing_class=tokenizer,
            constraints=DescentConstraints(num_layers=7),
            progress=False,
        )
