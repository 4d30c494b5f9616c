"""Runs a recipe: arms x seeds, trained, evaluated and compared, in one folder that can be picked up at any time.

    FOLDER/
      recipe.yaml                          the recipe as resolved, with the arms of earlier ones
      runs/ARM-seedK/                      one run: see `layerdescent.runs`
      runs/ARM-seedK/profile.safetensors   its layer losses on the test part
      sweep/                               what the models do under noise, saved as it comes
      results.json                         everything that the page shows
      pictures.safetensors                 its pictures, of models of video

Whatever is finished is never done again; what another recipe made is never mixed in.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from layerdescent.arrays import write_arrays
from layerdescent.data import PreparedText, ShiftReport, prepare_shift
from layerdescent.descent import DescentConstraints
from layerdescent.environment import describe_environment
from layerdescent.errors import InputError, RunError
from layerdescent.evaluation import DescentProfile, SweepResult, descent_profile, robustness_sweep
from layerdescent.evaluation.batches import load_config
from layerdescent.files import read_json, write_json, write_text
from layerdescent.recipes import Recipe, VideoRecipe, load_recipe
from layerdescent.recipes.common import PARTS
from layerdescent.recipes.schema import NoiseSpec
from layerdescent.runs import Run, late_fall, train_run, training_config
from layerdescent.tasks import Prepared, WholeFrames, task_of
from layerdescent.whole_frames import frame_quality, layer_pictures

PICTURES = "pictures.safetensors"

logger = logging.getLogger(__name__)


def train_recipe(recipe: Recipe, arm: str, seed: int | None, folder: Path, *, progress: bool = True) -> Path:
    """Train one arm of a recipe with one seed; goes on from the last complete checkpoint.

    Args:
        recipe: what to train.
        arm: one of the recipe's arms.
        seed: None takes the recipe's first.
        folder: where the recipe's runs live.
        progress: show progress bars.

    Returns:
        The folder of the model.

    Raises:
        InputError: no such arm, a setting that DescentConfig does not have, or a folder with another recipe's runs.
    """
    run = Run(recipe, _known_arm(recipe, arm), recipe.seeds[0] if seed is None else seed, folder)
    check_settings([run])
    claim_folder(folder, recipe)
    if not run.record.is_file():
        train_run(run, *load_data(recipe, folder, progress), progress=progress)
    return run.model


def compare_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    trained_only: bool = False,
    progress: bool = True,
    command: str | None = None,
) -> dict[str, Any]:
    """Train and evaluate arms x seeds of a recipe and store what came out; goes on where it was stopped.

    Args:
        recipe: what to compare.
        folder: where everything goes; see the module's docstring.
        arms: some of the recipe's arms; None takes all. The baseline is always among them.
        seeds: instead of the recipe's.
        trained_only: evaluate the runs that are finished and train nothing: an early look, or arms with unequal seeds.
        progress: show progress bars and stages.
        command: the command line to store with the results.

    Returns:
        The results, as stored in `FOLDER/results.json`.

    Raises:
        InputError: see `train_recipe`; the test part has fewer than two independent units; or only trained runs were
            asked for and there is none of the baseline's.
    """
    names = dict.fromkeys([recipe.baseline, *(_known_arm(recipe, arm) for arm in arms or recipe.arms)])
    runs = [Run(recipe, arm, seed, folder) for seed in dict.fromkeys(seeds or recipe.seeds) for arm in names]
    extra = _frontier_runs(recipe, runs)
    if trained_only:
        runs, extra = _trained(runs), [run for run in extra if run.record.is_file()]
    check_settings([*runs, *extra])
    claim_folder(folder, recipe)
    say = _Stages(len(runs) + len(extra) + 2, show=progress)

    say("reading and tokenising the data")
    data, tokenizer = load_data(recipe, folder, progress)
    elsewhere = [
        prepare_shift(name, shift, recipe.data, cast("PreparedText", data), tokenizer, progress=progress)
        for name, shift in recipe.evaluation.shift.items()
    ]
    _check_units(recipe, data)
    frames = task_of(recipe).whole_frames(data)
    for run in [*runs, *extra]:
        say(f"training {run.name}" if not run.record.is_file() else f"{run.name} is trained already")
        if not run.record.is_file():
            train_run(run, data, tokenizer, progress=progress)
    say("evaluating on the test part")
    bench = _Bench(recipe, folder, data, tokenizer, progress)
    profiles = _profiles(bench, runs)
    models = {(run.arm, run.seed): run.model for run in runs}
    sweep = _sweep(bench, models, recipe.baseline, recipe.evaluation.noise)
    frontier = _frontier(bench, [*runs, *extra])
    shift = _shift(bench, models, elsewhere)
    results = _results(recipe, runs, profiles, sweep, frontier, shift, data, command)
    if frames is not None:
        results |= _whole_frames(bench, runs, models, frames)
    write_json(folder / "results.json", results)
    return results


def _trained(runs: Sequence[Run]) -> list[Run]:
    """The finished runs of every seed whose baseline is finished, as all others are compared with it."""
    finished = [run for run in runs if run.record.is_file()]
    recipe = runs[0].recipe
    seeds = {run.seed for run in finished if run.arm == recipe.baseline}
    if not seeds:
        raise InputError(
            f"no run of {recipe.baseline}, the baseline, is finished in {runs[0].root}: train it first, or leave "
            "trained-only out"
        )
    return [run for run in finished if run.seed in seeds]


# Settings ------------------------------------------------------------------------------------------------------------


def _known_arm(recipe: Recipe, arm: str) -> str:
    if arm not in recipe.arms:
        raise InputError(f"recipe {recipe.name} has no arm {arm!r}: choose among {', '.join(recipe.arms)}")
    return arm


def claim_folder(folder: Path, recipe: Recipe) -> None:
    """Make the folder this recipe's, or refuse where runs of other settings lie in it."""
    stored, arms = folder / "recipe.yaml", dict(recipe.arms)
    if stored.is_file() and any((folder / "runs").glob("*")):
        try:
            earlier = load_recipe(str(stored))
        except InputError as error:
            raise RunError(f"{stored} is damaged ({error}): use another --folder, or delete this one") from None
        shared = [arm for arm in recipe.arms if arm in earlier.arms]
        differing = [arm for arm in shared if earlier.arm_fingerprint(arm) != recipe.arm_fingerprint(arm)]
        if differing or not shared:
            raise InputError(
                f"{folder} holds runs of recipe {earlier.name} with other settings "
                f"({', '.join(differing) or 'other arms'}): "
                "results of different settings are never mixed; use another --folder, or delete this one"
            )
        # Arms that this recipe lacks may have runs here all the same, and hold their names.
        arms |= {arm: earlier.arm_settings(arm) for arm in earlier.arms if arm not in arms}
    write_text(stored, recipe.model_copy(update={"arms": arms}).to_yaml())


def check_settings(runs: Sequence[Run]) -> None:
    """A wrong setting of the last arm is told before the first one trains."""
    for run in runs:
        num_layers = task_of(run.recipe).num_layers()
        config = training_config(run, progress=False)
        config.constraints(num_layers)
        config.fixed_weights(num_layers)


def load_data(recipe: Recipe, folder: Path, progress: bool, parts: Sequence[str] = PARTS) -> tuple[Prepared, Any]:
    """The recipe's data, which must be those of the runs that lie in the folder, and the tokenizer if there is one.

    Args:
        recipe: whose data.
        folder: the folder, which remembers the rows.
        progress: show bars.
        parts: the parts that will be used; no other one is compared.

    Raises:
        InputError: rows of these parts have changed since the folder's runs were trained.
    """
    task = task_of(recipe)
    data, tokenizer = task.prepare(progress=progress)
    if progress:
        tqdm.write(data.report.summary())
    stored, found = folder / "data.json", {part: task.rows_hash(getattr(data, part)) for part in parts}
    earlier = read_json(stored) if stored.is_file() else {}
    if any((folder / "runs").glob("*")):
        changed = [part for part in parts if earlier.get(part, found[part]) != found[part]]
        if changed:
            raise InputError(
                f"{folder} holds runs on other rows: those of {data.report.source} have changed since "
                f"({', '.join(changed)}); results of different data are never mixed: use another --folder"
            )
    if earlier | found != earlier:
        write_json(stored, earlier | found)
    return data, tokenizer


def _check_units(recipe: Recipe, data: Prepared) -> None:
    """Too little to measure on is told before anything trains: intervals need two independent units."""
    task = task_of(recipe)
    units, noisy = task.units(data.test), task.sweep_options(data)["noisy_units"]
    independent = np.arange(len(data.test)) if units is None else units
    measured = [independent, *([independent[noisy]] if noisy is not None and recipe.evaluation.noise else [])]
    if min(len(np.unique(part)) for part in measured) > 1:
        return
    if units is None:
        raise InputError(
            "one test row is measured, and intervals need two or more: give more test rows, or more to "
            "evaluation.noise_rows"
        )
    raise InputError(
        "all test windows that are measured come from one clip, and intervals need two clips or more: give more clips "
        "(data.clips names those that test), or more windows (data.windows.test, evaluation.noise_rows); "
        "`layerdescent train` does with one"
    )


class _Stages:
    """Says which of how many stages begins."""

    def __init__(self, total: int, show: bool) -> None:
        self.total, self.show, self.count = total, show, 0

    def __call__(self, message: str) -> None:
        self.count += 1
        if self.show:
            tqdm.write(f"[{self.count}/{self.total}] {message}")


# Evaluation ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Bench:
    """What every evaluation of a comparison takes."""

    recipe: Recipe
    folder: Path
    data: Prepared
    tokenizer: PreTrainedTokenizerBase | None
    progress: bool

    @property
    def store(self) -> Path:
        """Where finished pieces are kept."""
        return self.folder / "sweep"


def _profiles(bench: _Bench, runs: Sequence[Run]) -> dict[Run, DescentProfile]:
    """The test profile of every run, paired with the baseline's of its seed; stored ones are read."""
    task, data = task_of(bench.recipe), bench.data
    profiles: dict[Run, DescentProfile] = {}
    baselines: dict[int, DescentProfile] = {}
    for run in runs:  # the baseline comes first in every seed
        stored, constraints, erm = run.folder / "profile.safetensors", _yardstick(run), baselines.get(run.seed)
        profile = DescentProfile.load(stored) if stored.is_file() else None
        if profile is None or not _measures(profile, constraints, erm):
            record = read_json(run.record)
            profile = descent_profile(
                run.model,
                data.test,
                processing_class=bench.tokenizer,
                constraints=constraints,
                validation=data.validation,
                erm=erm,
                batch_size=run.recipe.evaluation.batch_size,
                perturbation=task.base,
                groups=task.units(data.test),
                lambda_share=lambda_share(record),
                progress=bench.progress,
            )
            profile.save(stored)
        profiles[run] = profile
        if run.arm == run.recipe.baseline:
            baselines[run.seed] = profile
    return profiles


def _measures(profile: DescentProfile, constraints: DescentConstraints, erm: DescentProfile | None) -> bool:
    """Whether a stored profile is the one asked for: another baseline or first descent arm asks for another."""
    stored, asked = profile.erm_layer_losses, None if erm is None else erm.layer_losses
    same_pair = stored is asked is None or (stored is not None and asked is not None and np.array_equal(stored, asked))
    return profile.constraints == constraints and same_pair


def _yardstick(run: Run) -> DescentConstraints:
    """What *feasible* means for a run: its own constraints; for other arms those of the recipe's first descent arm."""
    candidates = [run, *(Run(run.recipe, arm, run.seed, run.root) for arm in run.recipe.arms)]
    measured = next((each for each in candidates if each.objective == "descent"), run)
    config = training_config(measured, progress=False)
    return config.constraints(load_config(run.model).num_hidden_layers)


def lambda_share(record: dict[str, Any]) -> list[float] | None:
    """For every constraint, the share of training steps with its multiplier above 0."""
    windows = record["history"].get("active_share")
    if not windows:
        return None
    steps = np.diff(record["history"]["step"], prepend=0)
    return np.average(windows, axis=0, weights=steps).tolist()


def _sweep(
    bench: _Bench, models: Mapping[tuple[str, int], Path], baseline: str, noise: Sequence[NoiseSpec]
) -> SweepResult:
    evaluation = bench.recipe.evaluation
    return robustness_sweep(
        models,
        bench.data.test,
        kinds=[part.kind for part in noise],
        gammas={
            part.kind: sorted({g for same in noise if same.kind == part.kind for g in same.gammas}) for part in noise
        },
        shares=sorted({share for part in noise for share in part.shares}),
        noise_seeds=evaluation.noise_seeds,
        special_tokens=evaluation.special_tokens,
        processing_class=bench.tokenizer,
        validation=bench.data.validation,
        baseline=baseline,
        batch_size=evaluation.batch_size,
        bf16=evaluation.bf16,
        **task_of(bench.recipe).sweep_options(bench.data),
        store=bench.store,
        progress=bench.progress,
    )


def _shift(
    bench: _Bench, models: Mapping[tuple[str, int], Path], elsewhere: Sequence[tuple[Dataset, ShiftReport]]
) -> dict[str, list[dict[str, Any]]] | None:
    """What the models do on other data sets, without noise; the trivial predictor knows each one's majority class."""
    if not elsewhere:
        return None
    found: dict[str, list[dict[str, Any]]] = {"runs": [], "paired": [], "trivial": [], "data": []}
    for rows, report in elsewhere:
        swept = robustness_sweep(
            models,
            rows,
            kinds=(),
            processing_class=bench.tokenizer,
            baseline=bench.recipe.baseline,
            batch_size=bench.recipe.evaluation.batch_size,
            bf16=bench.recipe.evaluation.bf16,
            store=bench.store,
            progress=bench.progress,
        )
        data = {"data": report.name}
        for arm, seed in models:
            (clean,) = swept.noise(arm, seed)
            measured = {key: clean[key] for key in ("value", "loss", "layer_losses")}
            found["runs"].append({"arm": arm, "seed": seed} | data | measured | {"n_units": len(rows)})
        for key, entries in (("paired", swept.paired()), ("trivial", swept.trivial_values())):
            noise = ("kind", "gamma", "share")
            found[key] += [data | {name: value for name, value in row.items() if name not in noise} for row in entries]
        found["data"].append(report.to_dict())
    return found


def _whole_frames(
    bench: _Bench, runs: Sequence[Run], models: Mapping[tuple[str, int], Path], frames: WholeFrames
) -> dict[str, Any]:
    """What the models make of whole frames: quality, and pictures that go into a file of their own."""
    found: dict[str, Any] = {"whole_frames": None, "pictures": None}
    baseline = bench.recipe.baseline
    if frames.stretches:
        found["whole_frames"] = frame_quality(
            models,
            frames.stretches,
            frames.noises,
            trivial=frames.trivial,
            baseline=baseline,
            store=bench.store,
            progress=bench.progress,
        )
    if frames.shown_under:
        descent = [run.arm for run in runs if run.objective == "descent" and run.arm != baseline]
        every_layer = [baseline, *descent[:1]]
        arrays, header = layer_pictures(
            models, frames.picture, frames.shown_under, every_layer=every_layer, store=bench.store
        )
        write_arrays(bench.folder / PICTURES, arrays, header)
        found["pictures"] = {"file": PICTURES} | header
    return found


# The frontier: what ordinary training buys by stopping early or regularising more ------------------------------------

_VALUES = ("value", "value_clipped")  # clipped to [0, 1], of models that restore pixels


def _frontier_runs(recipe: Recipe, runs: Sequence[Run]) -> list[Run]:
    """The baseline again, one setting changed, with the first seed."""
    if recipe.frontier is None:
        return []
    first = runs[0]
    changes = {"weight_decay": recipe.frontier.weight_decay, "label_smoothing_factor": recipe.frontier.label_smoothing}
    baseline = partial(Run, arm=recipe.baseline, seed=first.seed, root=first.root)
    return [
        *(baseline(recipe, overrides=((field, value),)) for field, values in changes.items() for value in values),
        *(baseline(_of_width(recipe, width), width=width) for width in recipe.frontier.width),
    ]


def _of_width(recipe: Recipe, width: int) -> Recipe:
    """The same experiment with a wider or narrower network."""
    assert isinstance(recipe, VideoRecipe)
    config = {**recipe.model.config, "hidden_size": width}
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"config": config})})


def _frontier(bench: _Bench, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """In-distribution against noisy values of the baseline's checkpoints along training and of its variants."""
    recipe = bench.recipe
    if recipe.frontier is None:
        return []
    seed = runs[0].seed
    baselines = [run for run in runs if run.arm == recipe.baseline and run.seed == seed]
    places: dict[str, dict[str, Any]] = {}
    models: dict[tuple[str, int], Path] = {}
    for run in baselines:
        if recipe.frontier.checkpoints > 1 and not (run.folder / "along").is_dir():
            logger.warning(
                "%s was trained before frontier.checkpoints was asked for, so its frontier is one point: "
                "another --folder trains it again",
                run.name,
            )
        steps = [(int(path.name.removeprefix("step-")), path) for path in (run.folder / "along").glob("step-*")]
        for step, path in [*sorted(steps), (read_json(run.record)["steps"], run.model)]:
            name = f"{run.name}@{step}"
            models[name, seed] = path
            places[name] = {
                "step": step,
                "weight_decay": run.settings.get("weight_decay", 0.0),
                "label_smoothing": run.settings.get("label_smoothing_factor", 0.0),
                "width": run.width,
            }
    # The baseline's final model calibrates discrete noise here too: the frontier meets the noise that the arms meet.
    reference = next(name for (name, _), path in models.items() if path == baselines[0].model)
    noise = recipe.evaluation.noise if recipe.frontier.noise is None else recipe.frontier.noise
    swept = _sweep(bench, models, reference, noise)
    points = []
    for name, place in places.items():
        clean, *noisy = swept.noise(name, seed)
        in_distribution = {key.replace("value", "in_distribution"): clean[key] for key in _VALUES if key in clean}
        points += [
            {
                **place,
                **in_distribution,
                **{key: row[key] for key in ("kind", "gamma", "share", *_VALUES) if key in row},
            }
            for row in noisy
        ]
    return points


# Results -------------------------------------------------------------------------------------------------------------


def results_header(recipe: Recipe, command: str | None) -> dict[str, Any]:
    """What every results file begins with: which experiment, by which command, from which recipe, on which machine."""
    return {
        "experiment": recipe.name,
        "title": recipe.title,
        "command": command,
        "recipe": recipe.to_dict(),
        "environment": describe_environment(),
    }


def _results(
    recipe: Recipe,
    runs: Sequence[Run],
    profiles: Mapping[Run, DescentProfile],
    sweep: SweepResult,
    frontier: list[dict[str, Any]],
    shift: dict[str, list[dict[str, Any]]] | None,
    data: Prepared,
    command: str | None,
) -> dict[str, Any]:
    swept = sweep.to_dict()
    records = {run: read_json(run.record) for run in runs}
    baselines = {run.seed: records[run] for run in runs if run.arm == recipe.baseline}
    rows = [_row(run, records[run], baselines[run.seed], profiles[run], sweep) for run in runs]
    return {
        **results_header(recipe, command),
        "metric": recipe.metric,
        "bf16": sweep.bf16,
        "base": None if (base := task_of(recipe).base) is None else {"kind": base.kind, "gamma": base.gamma},
        "baseline": recipe.baseline,
        "seeds": sorted({run.seed for run in runs}),
        "arms": {run.arm: run.settings for run in runs},
        "data": data.report.to_dict(),
        "runs": rows,
        "paired": swept["paired"],
        "trivial": swept["trivial"],
        "auc": swept["auc"],
        "frontier": frontier,
        "shift": shift,
        "cost": None,
    }


def _row(
    run: Run,
    record: dict[str, Any],
    baseline: dict[str, Any],
    profile: DescentProfile,
    sweep: SweepResult,
) -> dict[str, Any]:
    """One run in the results; `baseline` is the record of the baseline's run of the same seed."""
    measured = profile.to_dict()
    return {
        "arm": run.arm,
        "seed": run.seed,
        "alpha": record["alpha"],
        "feasible_checkpoint": _feasible_checkpoint(record),
        **{key: measured[key] for key in ("layers", "nodes", "inflation", "tightness", "verdict", "log_share")},
        **{key: measured[key] for key in ("share_descending", "constant_loss", "sentences", "temperatures")},
        "layer_losses": {
            "validation": (record["validation"] or {}).get("layer_losses"),
            "test": measured["layer_losses"],
        },
        "layer_losses_ci95": {"test": measured["layer_losses_ci95"]},
        "violations": {"test": measured["violations"]},
        "calibrated_losses": {"test": measured["calibrated_losses"]},
        "accuracies": {"test": measured["accuracies"]},
        "flags": [flag.text for flag in profile.flags],
        "noise": sweep.noise(run.arm, run.seed),
        "history": record["history"],
        "step_time_ratio": _ratio(record["step_seconds"], baseline["step_seconds"]),
        "peak_memory_ratio": _ratio(record["peak_memory_bytes"], baseline["peak_memory_bytes"]),
        **{key: record[key] for key in ("seconds", "step_seconds", "steps", "best_checkpoint_step", "resumed_from")},
        # Runs of before these were kept have none.
        "data_seconds": record.get("data_seconds"),
        "validation_curve": (curve := record.get("validation_curve")),
        "late_fall": late_fall(curve) if curve else None,
        "validation": record["validation"],
        "environment": record["environment"],
    }


def _feasible_checkpoint(record: dict[str, Any]) -> bool | None:
    """Whether the checkpoint kept of a constrained run was feasible on validation data; None where none was chosen."""
    if record["alpha"] is None or record["validation"] is None:
        return None
    return bool(record["validation"]["feasible"])


def _ratio(value: float | None, baseline: float | None) -> float | None:
    return value / baseline if value and baseline else None
