"""The sweep: the same noise for every model, differences by hand, and picking up where it stopped."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
)

from layerdescent.arrays import read_arrays, write_arrays
from layerdescent.errors import InputError
from layerdescent.evaluation import Measurement, Setting, SweepResult, robustness_sweep, sweep
from layerdescent.evaluation.batches import load_model
from layerdescent.evaluation.shelf import Shelf
from layerdescent.evaluation.sweep_result import trivial_predictors
from layerdescent.perturbation import Perturbation
from layerdescent.statistics import paired_difference
from tests.evaluation.tiny import Rows, make_clips, make_denoiser, make_model, make_rows

Models = dict[tuple[str, int], BertForSequenceClassification]


@pytest.fixture(scope="module")
def models() -> Models:
    return {(arm, seed): make_model(10 * i + seed) for i, arm in enumerate(("erm", "descent")) for seed in (0, 1)}


@pytest.fixture
def options(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    return {"processing_class": tokenizer, "batch_size": 8, "progress": False}


def test_values_are_those_of_plain_calls_under_noise(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    model = models["erm", 0].eval()
    result = robustness_sweep({"erm": model}, rows, gammas=(0, 1.0), noise_seeds=(3,), **options)
    assert [setting.kind for setting in result.settings] == ["none", "gaussian"]  # gamma 0 is the clean setting, once
    for place, noise in enumerate([Perturbation("gaussian", gamma=0.0), Perturbation("gaussian", gamma=1.0, seed=3)]):
        right, losses = [], []
        for row in rows:
            with noise.on(model, options["processing_class"]), torch.no_grad():
                output = model(input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]]))
            right.append(float(output.logits.argmax() == row["labels"]))
            losses.append(output.loss.item())
        found = result.measurements["erm", 0][place]
        assert found.values.tolist() == right
        np.testing.assert_allclose(found.losses, losses, atol=1e-4)
        assert found.layer_losses[-1] == pytest.approx(np.mean(losses), abs=1e-4)
        assert found.layer_losses.shape == (4,)


def test_every_model_meets_the_same_noise(rows: Rows, options: dict[str, Any]) -> None:
    twins = {"erm": make_model(4), "descent": make_model(4)}
    result = robustness_sweep(twins, rows, kinds=("gaussian", "uniform"), gammas=(1.0,), noise_seeds=(0, 1), **options)
    for one, other in zip(result.measurements["erm", 0], result.measurements["descent", 0], strict=True):
        np.testing.assert_array_equal(one.losses, other.losses)
    losses = [found.losses.mean() for found in result.measurements["erm", 0]]
    assert len(set(losses)) == 3  # clean, gaussian and uniform differ


def test_a_model_alone_gets_what_it_gets_among_others(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    alone = robustness_sweep({("descent", 1): models["descent", 1]}, rows, gammas=(1.0,), **options)
    among = robustness_sweep(models, rows, gammas=(1.0,), **(options | {"batch_size": 3}))
    np.testing.assert_allclose(
        alone.measurements["descent", 1][1].losses, among.measurements["descent", 1][1].losses, atol=1e-5
    )
    assert alone.baseline is None
    assert alone.paired() == []


def test_paired_differences_by_hand(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    result = robustness_sweep(models, rows, gammas=(0.5, 1.0), **options)
    table = {
        arm: np.array([[m.values.mean() for m in result.measurements[arm, seed]] for seed in (0, 1)], dtype=float)
        for arm in result.arms
    }
    for place, entry in enumerate(result.paired()):
        assert entry["difference"] == pytest.approx((table["descent"] - table["erm"])[:, place].mean())
        values, against = (
            np.stack([result.measurements[arm, seed][place].values for seed in (0, 1)]) for arm in ("descent", "erm")
        )
        estimate = paired_difference(values, against)
        assert entry["ci95"] == [estimate.low, estimate.high]
        assert (entry["n_units"], entry["n_seeds"]) == (30, 2)
        assert entry["against"] == "erm"


def result_of(
    curves: Mapping[str, Sequence[Sequence[float]]], levels: list[float], trivial: list[float]
) -> SweepResult:
    """A sweep of one seed an arm with the given per-unit values (settings x units)."""
    return SweepResult(
        kind="single_label_classification",
        settings=[Setting("none", 0.0), *(Setting("gaussian", level) for level in levels)],
        measurements={
            (arm, 0): [
                Measurement(np.array(row, np.float32), np.zeros(len(row), np.float32), np.zeros(2), None)
                for row in curve
            ]
            for arm, curve in curves.items()
        },
        baseline="erm",
        trivial={"majority": [np.array(trivial, np.float32)] * (1 + len(levels))},
        noise_seeds=[0],
    )


def test_the_area_is_the_mean_value_over_levels() -> None:
    curves = {"erm": [[1, 1], [1, 0], [0, 0]], "descent": [[1, 1], [1, 1], [1, 0]]}
    erm, descent = result_of(curves, [1.0, 3.0], [1, 0]).areas()
    assert erm["value"] == pytest.approx((0.5 * (1 + 0.5) * 1 + 0.5 * (0.5 + 0) * 2) / 3)
    assert descent["value"] == pytest.approx((1 + 0.75 * 2) / 3)
    assert descent["difference"] == pytest.approx(descent["value"] - erm["value"])
    assert (descent["against"], descent["upto"], descent["n_units"]) == ("erm", 3.0, 2)
    assert "difference" not in erm


def test_the_area_does_not_depend_on_the_order_of_levels() -> None:
    up = result_of({"erm": [[1, 1], [1, 0], [0, 0]]}, [1.0, 3.0], [1, 0]).areas()
    down = result_of({"erm": [[1, 1], [0, 0], [1, 0]]}, [3.0, 1.0], [1, 0]).areas()
    assert up == down


def test_a_trivial_predictor_that_wins_is_named() -> None:
    result = result_of({"erm": [[1, 1], [1, 0]], "descent": [[1, 1], [0, 0]]}, [2.0], [1, 0])
    assert result.beaten_by_trivial() == [
        "gaussian 2: no arm beats the trivial predictor 'majority' (accuracy 0.5; the best arm has 0.5)."
    ]
    assert [entry["value"] for entry in result.trivial_values()] == [0.5, 0.5]
    shares = replace(result, settings=[Setting("none", 0.0), Setting("discrete", 3.1, 0.25)])
    assert shares.beaten_by_trivial()[0].startswith("discrete 25 %: no arm")


def test_trivial_predictors_know_the_training_labels_only() -> None:
    assert trivial_predictors([0, 1, 1], "single_label_classification", [0, 0, 1])["majority"].tolist() == [1, 0, 0]
    assert trivial_predictors([0, 1, 1], "single_label_classification", None)["majority"].tolist() == [0, 1, 1]
    assert trivial_predictors([1.0, 3.0], "regression", [2.0, 4.0])["mean"].tolist() == [4, 0]
    several = trivial_predictors([[1, 0], [1, 1]], "multi_label_classification", [[1, 0], [1, 0], [0, 1]])
    assert several["majority"].tolist() == [1, 0]


def test_noise_seeds_are_averaged_unit_by_unit(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    model = {"erm": models["erm", 0]}
    both = robustness_sweep(model, rows, gammas=(1.0,), noise_seeds=(0, 1), **options)
    one, other = (robustness_sweep(model, rows, gammas=(1.0,), noise_seeds=(seed,), **options) for seed in (0, 1))
    pair = [result.measurements["erm", 0][1] for result in (one, other)]
    assert not np.array_equal(pair[0].losses, pair[1].losses)
    np.testing.assert_allclose(both.measurements["erm", 0][1].losses, (pair[0].losses + pair[1].losses) / 2, rtol=1e-6)
    assert len(both.measurements["erm", 0][1].values) == len(rows)


def test_discrete_noise_is_calibrated_once_on_the_baseline(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    validation = make_rows(60, seed=9)
    result = robustness_sweep(models, rows, kinds=("discrete",), shares=(0.25, 0.75), validation=validation, **options)
    samples = [row["input_ids"] for row in validation]
    calibrated = Perturbation("discrete", share=0.25).calibrate(models["erm", 0], samples, options["processing_class"])
    assert result.settings[1] == Setting("discrete", calibrated.gamma or 0.0, 0.25)
    for share, setting in zip((0.25, 0.75), result.noise("erm", 0)[1:], strict=True):
        assert setting["realised_share"] == pytest.approx(share, abs=0.15)
        assert setting["share"] == share
    assert result.noise("erm", 0)[0]["realised_share"] is None
    with pytest.raises(InputError, match="pass validation rows"):
        robustness_sweep(models, rows, kinds=("discrete",), **options)


def test_the_result_is_json_in_the_form_of_a_results_file(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    result = robustness_sweep(models, rows, gammas=(1.0,), train_labels=[1, 1, 0], **options).to_dict()
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["metric"] == "accuracy"
    assert [(run["arm"], run["seed"]) for run in result["runs"]] == list(models)
    assert set(result["runs"][0]["noise"][1]) == {
        *("kind", "gamma", "share", "value", "loss", "layer_losses", "realised_share"),
    }
    assert set(result["paired"][0]) == {
        *("arm", "against", "kind", "gamma", "share", "difference", "ci95", "n_units", "n_seeds", "method"),
    }
    assert {(entry["name"], entry["kind"]) for entry in result["trivial"]} == {
        ("majority", "none"),
        ("majority", "gaussian"),
    }
    assert {(entry["arm"], entry["kind"]) for entry in result["auc"]} == {("erm", "gaussian"), ("descent", "gaussian")}


def test_no_noise_at_all_is_a_clean_comparison(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    clean = robustness_sweep(models, rows, kinds=(), **options).to_dict()
    noisy = robustness_sweep(models, rows, gammas=(1.0,), **options).to_dict()
    assert [run["noise"] for run in clean["runs"]] == [run["noise"][:1] for run in noisy["runs"]]
    assert clean["paired"] == noisy["paired"][:1]
    assert clean["auc"] == []


def test_units_of_one_group_are_resampled_together(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    groups = np.arange(len(rows)) // 3
    result = robustness_sweep(models, rows, gammas=(1.0,), groups=groups, **options)
    plain = robustness_sweep(models, rows, gammas=(1.0,), **options)
    for place, entry in enumerate(result.paired()):
        values, against = (
            np.stack([result.measurements[arm, seed][place].values for seed in (0, 1)]) for arm in ("descent", "erm")
        )
        estimate = paired_difference(values.reshape(2, -1, 3).mean(axis=2), against.reshape(2, -1, 3).mean(axis=2))
        assert entry["ci95"] == pytest.approx([estimate.low, estimate.high])
        assert entry["difference"] == pytest.approx(plain.paired()[place]["difference"])
        assert entry["n_units"] == len(rows) / 3
    some = robustness_sweep(models, rows, gammas=(1.0,), groups=groups, noisy_units=[0, 1, 2, 9, 10, 11], **options)
    assert [entry["n_units"] for entry in some.paired()] == [len(rows) / 3, 2]
    with pytest.raises(InputError, match="groups must be one integer for each of the 30 rows"):
        robustness_sweep(models, rows, groups=[0.5] * 30, **options)


def test_a_base_takes_the_place_of_clean_inputs(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    base = Perturbation("gaussian", gamma=0.5, special_tokens=True)
    settings: dict[str, Any] = {"gammas": {"gaussian": (0.25, 0.5, 1.0), "uniform": (1.0,)}} | options
    kinds = ("gaussian", "uniform")
    result = robustness_sweep(models, rows, kinds=kinds, base=base, special_tokens=True, **settings)
    plain = robustness_sweep(models, rows, kinds=kinds, special_tokens=True, **settings)
    assert [(s.kind, s.gamma) for s in result.settings] == [
        ("gaussian", 0.5),
        ("gaussian", 0.25),
        ("gaussian", 1.0),
        ("uniform", 1.0),
    ]
    np.testing.assert_array_equal(
        result.measurements["erm", 0][0].losses,
        plain.measurements["erm", 0][2].losses,
    )
    assert {entry["kind"] for entry in result.areas()} == {"gaussian"}  # of uniform noise there is one level
    weak, middle, strong = (plain._value(plain.values("erm", place)) for place in (1, 2, 3))
    area = next(entry["value"] for entry in result.areas() if entry["arm"] == "erm")
    assert area == pytest.approx(((weak + middle) / 2 * 0.25 + (middle + strong) / 2 * 0.5) / 0.75)


def test_trivial_predictors_may_know_the_noise(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    def trivial(at: Any, noise: Perturbation | None) -> dict[str, Any]:
        return {"place": at + (0.0 if noise is None else 100 * (noise.gamma or 0))}

    result = robustness_sweep(models, rows, gammas=(0.5, 1.0), trivial=trivial, noisy_units=[3, 4], **options)
    assert [entry["value"] for entry in result.trivial_values()] == [14.5, 53.5, 103.5]


def test_regression_is_measured_by_the_root_of_the_mean_squared_error(tokenizer: PreTrainedTokenizerFast) -> None:
    data = make_rows(12, label=lambda rng: float(rng.normal()))
    models = {"erm": make_model(num_labels=1), "descent": make_model(seed=1, num_labels=1)}
    result = robustness_sweep(models, data, gammas=(1.0,), processing_class=tokenizer, progress=False)
    squared = {arm: result.measurements[arm, 0][0].losses for arm in models}
    np.testing.assert_array_equal(result.measurements["erm", 0][0].values, squared["erm"])
    assert result.metric == "rmse"
    assert list(result.trivial) == ["mean"]
    rmse = {arm: float(np.sqrt(losses.mean(dtype=np.float64))) for arm, losses in squared.items()}
    assert result.noise("erm", 0)[0]["value"] == pytest.approx(rmse["erm"])
    paired = result.paired()[0]
    assert paired["difference"] == pytest.approx(rmse["descent"] - rmse["erm"])
    assert paired["ci95"][0] < paired["difference"] < paired["ci95"][1]


def test_an_interrupted_sweep_goes_on_where_it_was(
    models: Models, rows: Rows, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = robustness_sweep(models, rows, gammas=(0.5, 1.0), **options)
    measured: list[object] = []
    run = sweep._Evaluation._run

    def counted(self: Any, model: Any, part: Any, noise: Any, bar: Any) -> Any:
        if len(measured) == 4:
            raise KeyboardInterrupt
        measured.append(noise)
        return run(self, model, part, noise, bar)

    monkeypatch.setattr(sweep._Evaluation, "_run", counted)
    with pytest.raises(KeyboardInterrupt):
        robustness_sweep(models, rows, gammas=(0.5, 1.0), store=tmp_path, **options)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 4
    files[0].write_bytes(files[0].read_bytes()[:100])  # killed in the middle of a save, on a file system without order
    measured.clear()
    measured.extend([None] * 5)  # never interrupted again
    resumed = robustness_sweep(models, rows, gammas=(0.5, 1.0), store=tmp_path, **options)
    assert len(measured) - 5 == 4 * 3 - 3
    assert resumed.to_dict() == whole.to_dict()


def test_what_is_stored_is_used_for_the_same_model_and_data_only(
    rows: Rows, options: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model(1)
    store = tmp_path / "store"
    first = robustness_sweep({"erm": model}, rows, gammas=(1.0,), store=store, **options)
    with torch.no_grad():
        model.classifier.bias.add_(torch.tensor([0.5, -0.5]))
    changed = robustness_sweep({"erm": model}, rows, gammas=(1.0,), store=store, **options)
    assert not np.array_equal(first.measurements["erm", 0][0].losses, changed.measurements["erm", 0][0].losses)
    flipped = [row | {"labels": 1 - row["labels"]} for row in rows]
    other = robustness_sweep({"erm": model}, flipped, gammas=(1.0,), store=store, **options)
    np.testing.assert_array_equal(other.measurements["erm", 0][0].values, 1 - changed.measurements["erm", 0][0].values)


def test_what_is_stored_is_used_for_the_same_precision_only(
    models: Models, rows: Rows, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"erm": models["erm", 0]}
    settings: dict[str, Any] = {"gammas": (1.0,), "store": tmp_path} | options
    exact = robustness_sweep(model, rows, **settings)
    named = {path.name for path in tmp_path.iterdir()}
    coarse = robustness_sweep(model, rows, bf16=True, **settings)
    assert len(list(tmp_path.iterdir())) == 2 * len(named) == 4
    for one, other in zip(exact.measurements["erm", 0], coarse.measurements["erm", 0], strict=True):
        assert not np.array_equal(one.losses, other.losses)
        np.testing.assert_allclose(one.losses, other.losses, atol=0.1, rtol=0.05)
    assert (exact.to_dict()["bf16"], coarse.to_dict()["bf16"]) == (False, True)

    monkeypatch.setattr(sweep._Evaluation, "_run", None)  # everything is there
    assert robustness_sweep(model, rows, **settings).to_dict() == exact.to_dict()
    assert robustness_sweep(model, rows, bf16=True, **settings).to_dict() == coarse.to_dict()


def test_pieces_stored_before_there_was_a_choice_of_precision_are_found(
    models: Models, rows: Rows, options: dict[str, Any], tmp_path: Path
) -> None:
    model = models["erm", 0]
    robustness_sweep({"erm": model}, rows, kinds=(), store=tmp_path, **options)
    shelf = Shelf(tmp_path)
    assert [shelf.path(shelf.identity(data=rows, model=model) | {"noise": None})] == list(tmp_path.iterdir())


def test_noise_on_some_rows_is_what_a_sweep_of_these_rows_measures(
    models: Models, rows: Rows, options: dict[str, Any], tmp_path: Path
) -> None:
    units = [7, 1, 4, 8, 3]
    settings: dict[str, Any] = {"gammas": (0.5, 1.0), "train_labels": [0, 1, 1]} | options
    whole = robustness_sweep(models, rows, **settings)
    some = robustness_sweep(models, rows, noisy_units=units, store=tmp_path, **settings)
    alone = robustness_sweep(models, [rows[unit] for unit in units], **settings)
    for key in models:
        clean, *noisy = some.measurements[key]
        np.testing.assert_array_equal(clean.values, whole.measurements[key][0].values)
        for found, expected in zip(noisy, alone.measurements[key][1:], strict=True):
            np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-5)
    as_dict, only = some.to_dict(), alone.to_dict()
    assert as_dict["auc"] == only["auc"]
    assert [entry["n_units"] for entry in as_dict["paired"][:3]] == [len(rows), 5, 5]
    assert as_dict["paired"][1:3] == only["paired"][1:3]
    assert as_dict["trivial"] == [whole.to_dict()["trivial"][0], *only["trivial"][1:]]
    assert (as_dict["n_units"], as_dict["n_noisy_units"]) == (len(rows), 5)
    assert robustness_sweep(models, rows, noisy_units=units, store=tmp_path, **settings).to_dict() == as_dict


@pytest.mark.parametrize("units", [[], [0, 0], [-1], [10_000], [0.5], [[0, 1]]])
def test_positions_that_are_not_there_are_refused(models: Models, rows: Rows, units: Any) -> None:
    with pytest.raises(InputError, match="noisy_units must be one or more different positions"):
        robustness_sweep(models, rows, noisy_units=units, progress=False)


def test_discrete_noise_replaces_the_same_tokens_in_bf16(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"kinds": ("discrete",), "shares": (0.5,), "validation": make_rows(60, seed=9)}
    exact, coarse = (
        robustness_sweep({"erm": models["erm", 0]}, rows, bf16=bf16, **settings, **options) for bf16 in (False, True)
    )
    assert exact.settings == coarse.settings
    assert exact.noise("erm", 0)[1]["realised_share"] == coarse.noise("erm", 0)[1]["realised_share"]


def test_paths_are_loaded_one_at_a_time_and_only_when_needed(
    models: Models,
    rows: Rows,
    tokenizer: PreTrainedTokenizerFast,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths: dict[str, Any] = {}
    for arm in ("erm", "descent"):
        paths[arm] = tmp_path / arm
        models[arm, 0].save_pretrained(paths[arm])
        tokenizer.save_pretrained(paths[arm])
    loaded = []

    def load(path: Path) -> Any:
        loaded.append(path)
        return load_model(path)

    monkeypatch.setattr(sweep, "load_model", load)
    options: dict[str, Any] = {"gammas": (1.0,), "store": tmp_path / "store", "progress": False}
    first = robustness_sweep(paths, rows, **options)
    assert loaded == [paths["erm"], paths["descent"]]
    again = robustness_sweep(paths, rows, **options)
    assert loaded == [paths["erm"], paths["descent"]]
    assert again.to_dict() == first.to_dict()


def test_the_bar_counts_every_batch(
    models: Models, rows: Rows, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    robustness_sweep(models, rows, gammas=(1.0,), noise_seeds=(0, 1), **(options | {"progress": True}))
    assert "100%" in (shown := capsys.readouterr().err)
    assert f"{4 * 3 * 4}/{4 * 3 * 4}" in shown


def test_clips_of_denoisers_without_noise(tmp_path: Path) -> None:
    data, denoisers = make_clips(7), {"erm": make_denoiser(0), "descent": make_denoiser(1, joint=True, free=False)}
    result = robustness_sweep(denoisers, data, kinds=(), batch_size=3, progress=False, store=tmp_path)
    assert (result.metric, len(result.settings)) == ("rmse", 1)
    pixels, labels = (torch.from_numpy(np.stack([row[name] for row in data])) for name in ("pixel_values", "labels"))
    for arm, model in denoisers.items():
        with torch.no_grad():
            squares = (model(pixels).logits - labels).square()
        (found,) = result.noise(arm, 0)
        assert found["value"] == pytest.approx(float(squares.mean().sqrt()), rel=1e-5)
        np.testing.assert_allclose(result.values(arm, 0)[0], squares.mean((1, 2)), rtol=1e-4)
    mean = (labels - labels.mean(0)).square().mean().sqrt()
    assert result.trivial_values()[0]["value"] == pytest.approx(float(mean), rel=1e-5)
    again = robustness_sweep(denoisers, data, kinds=(), batch_size=3, progress=False, store=tmp_path)
    assert again.to_dict() == result.to_dict()


def test_denoisers_are_measured_with_clipped_outputs_too() -> None:
    data = make_clips(9, noise=0.0)
    denoisers = {("erm", 0): make_denoiser(0), ("descent", 0): make_denoiser(1, num_hidden_layers=1)}
    base, strong = Perturbation("gaussian", gamma=0.5), Perturbation("gaussian", gamma=2.0)
    clips = np.arange(9) // 3
    options: dict[str, Any] = {"base": base, "groups": clips, "batch_size": 4, "progress": False}
    result = robustness_sweep(denoisers, data, gammas=(2.0,), **options)
    labels = torch.from_numpy(np.stack([row["labels"] for row in data]))
    squares: dict[tuple[str, int, bool], Any] = {}
    for (arm, seed), model in denoisers.items():
        for place, noise in enumerate((base, strong)):
            with noise.on(model), torch.no_grad():
                output = model.eval()(torch.from_numpy(np.stack([row["pixel_values"] for row in data]))).logits
            assert bool((output < 0).any()) or bool((output > 1).any())  # else clipping would do nothing
            for clipped, estimate in ((False, output), (True, output.clip(0, 1))):
                squares[arm, place, clipped] = (estimate - labels).square().mean((1, 2)).numpy()
                np.testing.assert_allclose(
                    result.values(arm, place, clipped=clipped)[0], squares[arm, place, clipped], rtol=1e-4
                )
            row = result.noise(arm, seed)[place]
            for key, clipped in (("value", False), ("value_clipped", True)):
                assert row[key] == pytest.approx(np.sqrt(squares[arm, place, clipped].mean()), rel=1e-5)
    for place, entry in enumerate(result.paired()):
        ours, theirs = (squares[arm, place, True] for arm in ("descent", "erm"))
        roots = np.sqrt(ours.mean()) + np.sqrt(theirs.mean())
        estimate = paired_difference(ours.reshape(3, 3).mean(1), theirs.reshape(3, 3).mean(1))
        assert entry["clipped"]["difference"] == pytest.approx(estimate.value / roots, rel=1e-4)
        assert entry["clipped"]["ci95"] == pytest.approx([estimate.low / roots, estimate.high / roots], rel=1e-4)
        assert entry["clipped"]["difference"] != pytest.approx(entry["difference"], rel=0.01)
    for area in result.areas():
        weak, strong_one = (squares[area["arm"], place, True] for place in (0, 1))
        assert area["value_clipped"] == pytest.approx(np.sqrt((weak + strong_one).mean() / 2), rel=1e-5)
    assert [entry["value"] for entry in result.trivial_values()] == [
        entry["value_clipped"] for entry in result.trivial_values()
    ]


def test_trivial_predictors_may_be_clipped_too() -> None:
    def trivial(at: Any, noise: Perturbation | None) -> dict[str, Any]:
        return {"loud": np.stack([at + 400.0, at * 0.0]), "quiet": np.stack([at * 0.0, at * 0.0 + 1e-9])}

    result = robustness_sweep(
        {"erm": make_denoiser(0)}, make_clips(3), kinds=(), trivial=trivial, batch_size=3, progress=False
    )
    loud, quiet = result.trivial_values()
    assert (loud["value"], loud["value_clipped"]) == (pytest.approx(np.sqrt(401)), 0)
    assert quiet["value"] == 0
    beaten = [(sentence.partition(":")[0], sentence.split("'")[1]) for sentence in result.beaten_by_trivial()]
    assert beaten == [("no noise", "quiet"), ("no noise, clipped", "loud"), ("no noise, clipped", "quiet")]


def test_denoisers_stored_without_clipped_values_are_measured_again(tmp_path: Path) -> None:
    models, data = {"erm": make_denoiser(0)}, make_clips(5)
    options: dict[str, Any] = {"kinds": (), "batch_size": 5, "progress": False, "store": tmp_path}
    first = robustness_sweep(models, data, **options)
    (piece,) = tmp_path.iterdir()
    arrays, header = read_arrays(piece)
    del arrays["clipped"]
    write_arrays(piece, arrays, header)
    assert robustness_sweep(models, data, **options).to_dict() == first.to_dict()
    assert "clipped" in read_arrays(piece)[0]


def test_numbers_about_pictures_are_not_clipped() -> None:
    """A model that reads pixels and predicts several numbers: they need not lie in [0, 1]."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=4, patch_size=2, num_channels=1, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8, problem_type="regression",
    )  # fmt: skip
    config.num_labels = 2
    rows = [{"pixel_values": np.full((1, 4, 4), 0.1 * i, np.float32), "labels": [3.0 + i, 5.0]} for i in range(4)]
    result = robustness_sweep({"erm": ViTForImageClassification(config)}, rows, kinds=(), batch_size=4, progress=False)
    assert not result.restores_pixels
    assert "value_clipped" not in result.noise("erm", 0)[0]
    assert "value_clipped" not in result.trivial_values()[0]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kinds": ("pink",)}, "'pink'"),
        ({"gammas": (-1.0,)}, "gamma=-1"),
        ({"noise_seeds": ()}, "noise_seeds is empty"),
        ({"baseline": "sgd"}, "baseline is 'sgd', but the models are erm, descent"),
    ],
)
def test_bad_input_is_one_clear_line(
    models: Models, rows: Rows, options: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        robustness_sweep(models, rows, **(options | more))


def test_pairs_need_a_common_seed(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="common seed"):
        robustness_sweep({("erm", 0): models["erm", 0], ("descent", 1): models["descent", 1]}, rows, **options)
    with pytest.raises(InputError, match="0 models"):
        robustness_sweep({}, rows, **options)


def test_labels_out_of_range_are_named(models: Models, rows: Rows, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="row 29 has 7"):
        robustness_sweep({"erm": models["erm", 0]}, [*rows[:-1], rows[-1] | {"labels": 7}], **options)
