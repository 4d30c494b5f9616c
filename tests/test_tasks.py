"""What differs between text and video in an experiment."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerdescent.arrays import read_arrays
from layerdescent.errors import InputError
from layerdescent.evaluation import DescentProfile, descent_profile
from layerdescent.experiment import compare_recipe, load_data
from layerdescent.models import DustForDenoising
from layerdescent.perturbation import Perturbation
from layerdescent.recipes import Recipe, load_recipe
from layerdescent.recipes.video import WholeFramesSpec
from layerdescent.report import write_report
from layerdescent.tables import comparison_table
from layerdescent.tasks import task_of
from tests.data.video.films import film, write_images

TINY = """
name: tiny-video
title: Tiny clips
model: {architecture: dust, config: {hidden_size: 24, num_hidden_layers: 2}}
data:
  kind: video
  source: synthetic
  synthetic: {clips: 8, frames: 12, height: 24, width: 24, cameras: 2}
  frames: 4
  patch: 4
  windows: {train: 64, validation: 24, test: 40}
train:
  input_gamma: 0.2
  num_train_epochs: 2
  per_device_train_batch_size: 16
  learning_rate: 1.0e-3
  use_cpu: true
arms:
  erm: {objective: erm}
  descent: {objective: descent, alpha: 0.05, dual_lr: 0.3}
  noise: {objective: noise, noise_gamma: 1.0, noise_level: uniform}
  descent-under-noise: {objective: descent, alpha: 0.05, dual_lr: 0.3, constraint_gamma: 1.0}
seeds: [0]
evaluation:
  noise: [{kind: gaussian, gammas: [0.2, 1]}, {kind: poisson, gammas: [0.5]}, {kind: salt-and-pepper, shares: [0.1]}]
  whole_frames: {clips: 2, frames: 6, gammas: [0.2, 1]}
  batch_size: 16
frontier: {weight_decay: [0.1], width: [16], checkpoints: 2}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(TINY)
    return load_recipe(path)


@pytest.fixture(scope="module")
def compared(recipe: Recipe, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("video")
    return compare_recipe(recipe, folder, progress=False), folder


def test_video_is_compared_as_text_is(recipe: Recipe, compared: tuple[dict[str, Any], Path]) -> None:
    results, folder = compared
    assert results["base"] == {"kind": "gaussian", "gamma": 0.2}
    erm = results["runs"][0]
    assert [(row["kind"], row["gamma"], row["share"]) for row in erm["noise"]] == [
        ("gaussian", 0.2, None),
        ("gaussian", 1.0, None),
        ("poisson", 0.5, None),
        ("salt-and-pepper", 0.0, 0.1),
    ]
    # Profile and sweep measure one thing, under the noise of training.
    assert erm["noise"][0]["value"] ** 2 == pytest.approx(erm["layer_losses"]["test"][-1], rel=1e-5)
    assert erm["layer_losses"]["test"][0] == pytest.approx(0.2**2, rel=0.05)  # Phi_0 is the noisy input
    assert {row["name"] for row in results["trivial"]} >= {"constant mean", "temporal mean", "patch mean"}
    assert {(point["step"], point["weight_decay"], point["width"]) for point in results["frontier"]} == {
        (step, *variant) for step in (4, 8) for variant in ((0.0, None), (0.1, None), (0.0, 16))
    }
    narrow = DustForDenoising.from_pretrained(folder / "runs/erm@width=16-seed0/model")
    assert (narrow.config.hidden_size, recipe.to_dict()["model"]["config"]["hidden_size"]) == (16, 24)
    assert write_report(results, folder).is_file()
    assert "rmse, poisson 0.5" in comparison_table(results)


def test_a_run_tells_whether_it_had_converged_and_waited_for_data(compared: tuple[dict[str, Any], Path]) -> None:
    run = compared[0]["runs"][0]
    assert run["validation_curve"]["step"] == [4, 8]
    early, late = run["validation_curve"]["loss"]
    assert run["late_fall"] == pytest.approx(1 - late / (early + 0.6 * (late - early)))
    assert 0 < run["data_seconds"] < run["step_seconds"]


def test_a_width_that_fits_no_network_is_told_before_anything_trains(recipe: Recipe, tmp_path: Path) -> None:
    assert recipe.frontier is not None
    wrong = recipe.model_copy(update={"frontier": recipe.frontier.model_copy(update={"width": [13]})})
    with pytest.raises(InputError, match="hidden_size=13"):
        compare_recipe(wrong, tmp_path, progress=False)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "changed", ["data.synthetic.clips=4", "data.windows.test=1", "data.source={path}", "evaluation.noise_rows=1"]
)
def test_one_unit_is_too_little_to_measure_and_told_before_anything_trains(tmp_path: Path, changed: str) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    overrides = [changed.format(path=tmp_path / "clip")]
    if "source" in changed:
        write_images(tmp_path / "clip", film(60, 16, 16))
        overrides.append("data.synthetic=null")
    recipe = load_recipe(tmp_path / "tiny.yaml", overrides)
    with pytest.raises(InputError, match="come from one clip, and intervals need two clips or more"):
        compare_recipe(recipe, tmp_path / "out", progress=False)
    assert not (tmp_path / "out/runs").exists()


def test_a_network_without_weights_to_train_is_told_before_anything_trains(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    ista = "model={architecture: ista, config: {hidden_size: 24, num_hidden_layers: 2}}"
    recipe = load_recipe(tmp_path / "tiny.yaml", [ista])
    with pytest.raises(InputError, match=r"nothing to train: set model\.config\.learned=true"):
        compare_recipe(recipe, tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()
    assert task_of(load_recipe(tmp_path / "tiny.yaml", [ista, "model.config.learned=true"])).num_layers() == 2


def test_clips_are_the_units(recipe: Recipe, compared: tuple[dict[str, Any], Path]) -> None:
    results, folder = compared
    data, tokenizer = load_data(recipe, folder, False)
    clips = len(np.unique(data.test.clip))
    assert tokenizer is None
    assert 1 < clips < len(data.test)
    assert {row["n_units"] for row in results["paired"]} == {clips}
    profile = DescentProfile.load(folder / "runs/descent-seed0/profile.safetensors")
    assert len(profile.unit_losses) == clips
    assert profile.perturbation == Perturbation("gaussian", gamma=0.2).to_dict()


def test_what_is_stored_is_an_ordinary_checkpoint(recipe: Recipe, compared: tuple[dict[str, Any], Path]) -> None:
    results, folder = compared
    data, _ = load_data(recipe, folder, False)
    model = DustForDenoising.from_pretrained(folder / "runs/descent-seed0/model")
    base = task_of(recipe).base
    again = descent_profile(model, data.test, perturbation=base, groups=data.test.clip, progress=False)
    assert again.mean_losses.tolist() == pytest.approx(results["runs"][1]["layer_losses"]["test"], rel=1e-5)


def test_trivial_denoisers_by_hand(recipe: Recipe, compared: tuple[dict[str, Any], Path]) -> None:
    results, folder = compared
    data: Any = load_data(recipe, folder, False)[0]
    clean = data.test.values()
    noisy = Perturbation("gaussian", gamma=1.0).on_pixels(clean)
    expected = {
        "constant mean": np.full_like(clean, data.training_mean),
        "temporal mean": noisy.mean(axis=1, keepdims=True),
        "patch mean": noisy.mean(axis=2, keepdims=True),
    }
    found = {
        row["name"]: row["value"] for row in results["trivial"] if (row["kind"], row["gamma"]) == ("gaussian", 1.0)
    }
    for name, guess in expected.items():
        assert found[name] == pytest.approx(float(np.sqrt(((guess - clean) ** 2).mean())), rel=1e-4)


def test_whole_frames_and_pictures_of_final_models(recipe: Recipe, compared: tuple[dict[str, Any], Path]) -> None:
    results, folder = compared
    found = results["whole_frames"]
    arms = list(recipe.arms)
    assert [(row["arm"], row["gamma"]) for row in found["runs"]] == [(arm, g) for arm in arms for g in (0.2, 1.0)]
    assert [clip["frames"] for clip in found["clips"]] == [6, 6]
    assert {clip["clip"] for clip in found["clips"]} <= set(results["data"]["clips"]["test"])
    assert {row["arm"] for row in found["paired"]} == set(arms) - {"erm"}
    simple = {(row["name"], row["gamma"]): row for row in found["trivial"]}
    assert simple["noisy input", 1.0]["rmse"] == pytest.approx(1.0, rel=0.05)
    assert simple["temporal mean", 1.0]["rmse"] == pytest.approx((1 / 4 * 4 / 6 + 1 / 2 * 2 / 6) ** 0.5, rel=0.1)
    assert simple["patch mean", 1.0]["rmse"] == pytest.approx(1 / 4, rel=0.25)
    assert simple["constant mean", 0.2] == simple["constant mean", 1.0] | {"gamma": 0.2}

    pictures = results["pictures"]
    assert [noise["gamma"] for noise in pictures["noise"]] == [0.2, 1.0]  # the level of training, and a strong one
    layers = {shown["arm"]: shown["layers"] for shown in pictures["arms"]}
    assert layers == {"erm": [1, 2], "descent": [1, 2], "noise": [2], "descent-under-noise": [2]}
    arrays, header = read_arrays(folder / pictures["file"])
    assert pictures == {"file": "pictures.safetensors"} | header
    assert arrays["clean"].shape == arrays["1.noisy"].shape == (24, 24)


def test_frames_that_no_test_clip_has_are_refused_before_anything_trains(recipe: Recipe, tmp_path: Path) -> None:
    whole = recipe.evaluation.model_copy(update={"whole_frames": WholeFramesSpec(frames=13)})
    with pytest.raises(InputError, match="no test clip has 13 frames"):
        compare_recipe(recipe.model_copy(update={"evaluation": whole}), tmp_path, progress=False)
    assert not (tmp_path / "runs").exists()


def test_without_whole_frames_there_are_pictures_still_and_without_both_neither(
    recipe: Recipe, compared: tuple[dict[str, Any], Path]
) -> None:
    def asking(**fields: Any) -> dict[str, Any]:
        evaluation = recipe.evaluation.model_copy(update={"whole_frames": None} | fields)
        changed = recipe.model_copy(update={"evaluation": evaluation, "frontier": None})
        return compare_recipe(changed, compared[1], progress=False)

    only = asking(pictures=[0.5])
    assert only["whole_frames"] is None
    assert [noise["gamma"] for noise in only["pictures"]["noise"]] == [0.5]
    assert asking(pictures=[])["pictures"] is None


def test_noise_may_be_measured_on_some_windows(recipe: Recipe, compared: tuple[dict[str, Any], Path]) -> None:
    data, _ = load_data(recipe, compared[1], False)
    fewer = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"noise_rows": 20})})
    units = task_of(fewer).sweep_options(data)["noisy_units"]
    assert len(units) == len(set(units)) == 20
    assert set(data.test.clip[units]) == set(data.test.clip)  # in proportion to the clips


def test_rows_are_known_again_by_their_places_and_pixels(recipe: Recipe, compared: tuple[dict[str, Any], Path]) -> None:
    folder = compared[1]
    stored = json.loads((folder / "data.json").read_text())
    task = task_of(recipe)
    data, _ = task.prepare(progress=False)
    assert stored == {part: task.rows_hash(getattr(data, part)) for part in ("train", "validation", "test")}
    assert len(set(stored.values())) == 3
    other = recipe.model_copy(update={"data": recipe.data.model_copy(update={"seed": 1})})
    assert task_of(other).rows_hash(task_of(other).prepare(progress=False)[0].test) != stored["test"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layer": 3}, "a dust has no field 'num_hidden_layer'; did you mean num_hidden_layers?"),
        ({"num_pixels": 9}, "num_pixels follow from data.patch and data.frames"),
    ],
)
def test_a_wrong_field_of_the_network_is_named_before_anything_trains(
    recipe: Recipe, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    model: Any = recipe.model
    wrong = recipe.model_copy(update={"model": model.model_copy(update={"config": config})})
    with pytest.raises(InputError, match=message.replace("?", r"\?")):
        compare_recipe(wrong, tmp_path, progress=False)
