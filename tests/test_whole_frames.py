"""Whole frames through final models: numbers by hand, the same frames for all, and going on where it stopped."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layerdescent import whole_frames
from layerdescent.data.video import Clip, psnr, ssim, synthetic_clips
from layerdescent.errors import InputError, NonFiniteLossError
from layerdescent.models import DustForDenoising, VideoDenoiser
from layerdescent.perturbation import Perturbation
from layerdescent.statistics import paired_difference, paired_root_difference
from layerdescent.whole_frames import (
    Frames,
    Stretch,
    busiest_part,
    frame_quality,
    layer_pictures,
    sampled_stretches,
)
from tests.evaluation.tiny import make_denoiser

WEAK, STRONG = Perturbation("gaussian", gamma=0.2), Perturbation("gaussian", gamma=1.0)


@pytest.fixture(scope="module")
def clips() -> list[Clip]:
    return synthetic_clips(clips=5, frames=12, height=18, width=22, seed=0)


@pytest.fixture(scope="module")
def stretches(clips: list[Clip]) -> list[Stretch]:
    return sampled_stretches(clips, 3, frames=6, seed=0)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], Path]:
    folder = tmp_path_factory.mktemp("models")
    paths = {(arm, seed): folder / f"{arm}-{seed}" for arm in ("erm", "descent", "noise") for seed in (0, 1)}
    del paths["noise", 1]
    for number, path in enumerate(paths.values()):
        model = make_denoiser(number)
        with torch.no_grad():  # as trained models differ
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
        model.save_pretrained(path)
    return paths


def estimate(path: Path, stretch: Stretch, noise: Perturbation, layers: int | None = None) -> Frames:
    denoiser = VideoDenoiser(DustForDenoising.from_pretrained(path))
    return denoiser(torch.from_numpy(stretch.under(noise))[None], layers)[0].numpy()


def test_stretches_are_frames_of_the_clips_without_a_break(clips: list[Clip]) -> None:
    broken = Clip(name="broken", store=clips[0].pixels, stretches=((0, 4), (5, 12)), camera="a")
    (stretch,) = sampled_stretches([broken], 3, frames=7, seed=4)
    assert stretch.first == 5
    np.testing.assert_array_equal(stretch.values, clips[0].frames(5, 12))
    with pytest.raises(InputError, match=r"no test clip has 8 frames .* longest stretch has 7: set .* to fewer"):
        sampled_stretches([broken], 1, frames=8, seed=0)


def test_more_clips_leave_the_first_ones_what_they_are(clips: list[Clip]) -> None:
    few, many, all_of_them = (sampled_stretches(clips, count, frames=6, seed=0) for count in (2, 4, 99))
    assert [len(found) for found in (few, many, all_of_them)] == [2, 4, 5]
    assert {(one.clip.name, one.first) for one in few} < {(one.clip.name, one.first) for one in many}
    assert [one.clip.name for one in all_of_them] == [clip.name for clip in clips]
    assert {one.clip.name for one in sampled_stretches(clips, 2, frames=6, seed=1)} | {one.clip.name for one in few} > {
        one.clip.name for one in few
    }


@given(st.integers(0, 100), st.integers(1, 9), st.integers(3, 8), st.integers(3, 8))
def test_the_busiest_part_varies_most(seed: int, side: int, height: int, width: int) -> None:
    (clip,) = synthetic_clips(clips=1, frames=1, height=16, width=16, seed=0)
    values = np.random.default_rng(seed).random((3, height, width)).astype(np.float32)
    part = busiest_part(Stretch(clip, 0, values), side)
    rows, columns = min(side, height), min(side, width)
    totals = {
        (row, column): values[:, row : row + rows, column : column + columns].astype(float).var(axis=0).sum()
        for row in range(height - rows + 1)
        for column in range(width - columns + 1)
    }
    assert totals[part.row, part.column] == pytest.approx(max(totals.values()))
    expected = values[:, part.row : part.row + rows, part.column : part.column + columns]
    np.testing.assert_array_equal(part.values, expected)


def test_numbers_by_hand(models: dict[tuple[str, int], Path], stretches: list[Stretch]) -> None:
    found = frame_quality(models, stretches, [WEAK, STRONG], baseline="erm", progress=False)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [(row["arm"], row["seed"], row["gamma"]) for row in found["runs"]] == [
        (*key, gamma) for key in models for gamma in (0.2, 1.0)
    ]
    tables: dict[tuple[str, int, float], dict[str, Any]] = {}
    for row in found["runs"]:
        noise = {0.2: WEAK, 1.0: STRONG}[row["gamma"]]
        outputs = [estimate(models[row["arm"], row["seed"]], stretch, noise) for stretch in stretches]
        pairs = [(stretch.values, output) for stretch, output in zip(stretches, outputs, strict=True)]
        inside = [(clean, output.clip(0, 1)) for clean, output in pairs]
        squares = np.array([((clean - output) ** 2).mean() for clean, output in pairs])
        clipped = np.array([((clean - output) ** 2).mean() for clean, output in inside])
        assert row["rmse"] == pytest.approx(np.sqrt(squares.mean()), rel=1e-5)
        assert row["rmse_clipped"] == pytest.approx(np.sqrt(clipped.mean()), rel=1e-5)
        assert row["rmse_clipped"] < row["rmse"]
        assert row["by_clip"]["mse"] == pytest.approx(squares.tolist(), rel=1e-5)
        assert row["by_clip"]["psnr"] == pytest.approx([psnr(*pair).mean() for pair in inside], rel=1e-5)
        assert row["by_clip"]["ssim"] == pytest.approx([ssim(*pair).mean() for pair in inside], rel=1e-5)
        for name in ("psnr", "ssim"):
            assert row[name] == pytest.approx(np.mean(row["by_clip"][name]))
        tables[row["arm"], row["seed"], row["gamma"]] = row["by_clip"]
    pairs_found = [
        (row["arm"], row["against"], row["gamma"], row["n_seeds"], row["n_units"]) for row in found["paired"]
    ]
    assert pairs_found == [
        (arm, "erm", gamma, seeds, 3) for arm, seeds in (("descent", 2), ("noise", 1)) for gamma in (0.2, 1.0)
    ]
    entry = found["paired"][1]
    for name, measure, difference in (
        ("rmse_clipped", "mse_clipped", paired_root_difference),
        ("ssim", "ssim", paired_difference),
    ):
        ours, theirs = (np.array([tables[arm, seed, 1.0][measure] for seed in (0, 1)]) for arm in ("descent", "erm"))
        expected = difference(ours, theirs)
        assert entry[name]["difference"] == pytest.approx(expected.value)
        assert entry[name]["ci95"] == pytest.approx([expected.low, expected.high])


def test_trivial_denoisers_meet_the_same_noise(models: dict[tuple[str, int], Path], stretches: list[Stretch]) -> None:
    def trivial(stretch: Stretch, noisy: Frames) -> Mapping[str, Frames]:
        np.testing.assert_array_equal(noisy, stretch.under(STRONG))
        return {"noisy": noisy, "exact": stretch.values}

    only = {("erm", 0): models["erm", 0]}
    found = frame_quality(only, stretches, [STRONG], trivial=trivial, progress=False)
    noisy, exact = found["trivial"]
    assert (noisy["name"], exact["name"]) == ("noisy", "exact")
    assert noisy["rmse"] == pytest.approx(1.0, rel=0.05)
    assert (exact["rmse"], exact["ssim"], exact["psnr"]) == (0, 1, np.inf)
    assert found["paired"] == []


def test_one_clip_has_no_interval(models: dict[tuple[str, int], Path], stretches: list[Stretch]) -> None:
    found = frame_quality(models, stretches[:1], [WEAK], baseline="erm", progress=False)
    assert len(found["runs"]) == len(models)
    assert found["paired"] == []


def test_an_interrupted_evaluation_goes_on_where_it_was(
    models: dict[tuple[str, int], Path], stretches: list[Stretch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trivial(stretch: Stretch, noisy: Frames) -> Mapping[str, Frames]:
        return {"noisy": noisy}

    settings: dict[str, Any] = {"trivial": trivial, "baseline": "erm", "progress": False}
    whole = frame_quality(models, stretches, [WEAK, STRONG], **settings)
    calls: list[object] = []
    under = whole_frames._Denoiser.__call__

    def counted(self: Any, stretch: Stretch, noise: Perturbation) -> Frames:
        calls.append(noise)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return under(self, stretch, noise)

    monkeypatch.setattr(whole_frames._Denoiser, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        frame_quality(models, stretches, [WEAK, STRONG], store=tmp_path, **settings)
    assert len(list(tmp_path.iterdir())) == 2  # of three clips each
    assert frame_quality(models, stretches, [WEAK, STRONG], store=tmp_path, **settings) == whole
    assert len(calls) - 8 == 3 * (2 * len(models) - 2)
    monkeypatch.setattr(whole_frames, "load_model", None)  # everything is there
    monkeypatch.setattr(whole_frames, "_measures", None)
    assert frame_quality(models, stretches, [WEAK, STRONG], store=tmp_path, **settings) == whole


def test_what_is_stored_is_of_these_frames_and_this_model_only(
    models: dict[tuple[str, int], Path], stretches: list[Stretch], tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"store": tmp_path, "progress": False}
    first = frame_quality({("erm", 0): models["erm", 0]}, stretches, [WEAK], **settings)
    other = frame_quality({("erm", 0): models["erm", 1]}, stretches, [WEAK], **settings)
    fewer = frame_quality({("erm", 0): models["erm", 0]}, stretches[:2], [WEAK], **settings)
    assert first["runs"][0]["rmse"] != other["runs"][0]["rmse"]
    assert first["runs"][0]["by_clip"]["mse"][:2] == fewer["runs"][0]["by_clip"]["mse"]


def test_without_ssim_the_rest_is_measured(
    models: dict[tuple[str, int], Path],
    stretches: list[Stretch],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    only = {("erm", 0): models["erm", 0]}
    settings: dict[str, Any] = {"store": tmp_path, "progress": False}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "skimage.metrics", None)
        without = frame_quality(only, stretches, [WEAK], **settings)
    assert "measured without SSIM" in caplog.text
    assert "pip install 'layerdescent[video]'" in caplog.text
    with_it = frame_quality(only, stretches, [WEAK], **settings)["runs"][0]
    assert without["runs"][0]["ssim"] is None
    assert 0 < with_it["ssim"] < 1  # measured again, now that it can be had
    assert without["runs"][0]["psnr"] == with_it["psnr"]


def test_pictures_hold_what_each_layer_makes_of_the_frame(
    models: dict[tuple[str, int], Path], stretches: list[Stretch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stretch = stretches[0]
    settings: dict[str, Any] = {"every_layer": ["erm", "descent"], "store": tmp_path}
    arrays, header = layer_pictures(models, stretch, [WEAK, STRONG], **settings)
    assert header["frame"] == stretch.first + 3
    assert [noise["gamma"] for noise in header["noise"]] == [0.2, 1.0]
    assert header["arms"] == [
        {"arm": "erm", "seed": 0, "layers": [1, 2, 3]},
        {"arm": "descent", "seed": 0, "layers": [1, 2, 3]},
        {"arm": "noise", "seed": 0, "layers": [3]},
    ]
    np.testing.assert_array_equal(arrays["clean"], stretch.values[3])
    for at, noise in enumerate((WEAK, STRONG)):
        np.testing.assert_array_equal(arrays[f"{at}.noisy"], stretch.under(noise)[3])
        for number, shown in enumerate(header["arms"]):
            pictures = arrays[f"{at}.{number}"]
            assert len(pictures) == len(shown["layers"])
            for layer, picture in zip(shown["layers"], pictures, strict=True):
                expected = estimate(models[shown["arm"], 0], stretch, noise, layers=layer)[3]
                np.testing.assert_allclose(picture, expected, atol=1e-5)
    monkeypatch.setattr(whole_frames, "load_model", None)
    again, same = layer_pictures(models, stretch, [WEAK, STRONG], **settings)
    assert same == header
    assert all(np.array_equal(again[name], array) for name, array in arrays.items())


def test_a_diverged_model_is_named(
    models: dict[tuple[str, int], Path], stretches: list[Stretch], tmp_path: Path
) -> None:
    model = make_denoiser(0)
    with torch.no_grad():
        next(model.parameters()).fill_(float("inf"))
    model.save_pretrained(tmp_path)
    with pytest.raises(NonFiniteLossError, match=r"clip-\d+ under gaussian 0.2 is not finite"):
        frame_quality({("erm", 0): tmp_path}, stretches, [WEAK], progress=False)
