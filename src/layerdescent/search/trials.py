"""Trains the trials of a recipe's search, applies the rule, and writes down both.

    FOLDER/
      runs/ARM@FIELD=VALUE…-seedK/    one trial: a run as any other, see `layerdescent.runs`
      runs/…/failed.json              instead of run.json where a loss stopped being a number
      search.json                     every trial, the rule in words, what was chosen and why
      chosen.yaml                     the recipe with the chosen settings, for `layerdescent compare`

Whatever is finished is never done again, and several processes may work in one folder: a trial that another one trains
is left to it.
"""

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from layerdescent.errors import InputError, NonFiniteLossError, RunError
from layerdescent.experiment import check_settings, claim_folder, lambda_share, load_data, results_header
from layerdescent.files import read_json, write_json, write_text
from layerdescent.recipes import Recipe
from layerdescent.recipes.yaml_text import write_yaml
from layerdescent.runs import Run, train_unless_locked, training_config
from layerdescent.search.rule import (
    DEFAULT_PRICE,
    Candidate,
    Choice,
    choose_best,
    choose_under_constraints,
    price_paid,
    rule_in_words,
)
from layerdescent.tasks import Prepared

# The test part's rows are read only for its texts to be kept out of the others; nothing here looks at them.
_PARTS = ("train", "validation")
_PATIENCE = 2.0  # seconds between looks at what other processes are training
_WORKER = "from layerdescent.search.trials import _work; _work()"
_WRONG_INPUT = 2  # a worker's exit code, as the command line's


def search_recipe(
    recipe: Recipe, folder: Path, *, jobs: int = 1, progress: bool = True, command: str | None = None
) -> dict[str, Any]:
    """Train every trial of a recipe's `search`, and choose each arm's settings on clean validation data.

    Goes on where it was stopped. The rule is `layerdescent.search.rule`'s, and its words stand in the results.

    Args:
        recipe: with a section `search`.
        folder: where everything goes; see the module's docstring. Not that of a comparison.
        jobs: trials trained side by side, each in its own process with its share of the cores.
        progress: show progress bars, and a line for each trial.
        command: the command line to store with the results.

    Returns:
        The results, as stored in `FOLDER/search.json`: `trials` (one for each setting and seed), `candidates` (means
        over seeds), `choices` (one for each arm), `rule`, `price`, and what a result depends on.

    Raises:
        InputError: no section `search`, a setting that cannot be, or a folder with other runs; before anything trains.
        RunError: every trial of an arm failed, or a failure while training.
    """
    spec = recipe.search
    if spec is None:
        raise InputError(
            f"recipe {recipe.name} has no section search: add one, e.g. search: {{price: 0.003, arms: "
            "{erm: {learning_rate: [5e-5, 1e-4]}, descent: {alpha: [0.05, 0.1]}}}"
        )
    if jobs < 1:
        raise InputError(f"jobs is {jobs}: give at least 1")
    runs = _trials(recipe, folder)
    _check(runs)
    claim_folder(folder, recipe)
    data, tokenizer = load_data(runs[0].recipe, folder, progress, _PARTS)
    unfinished = [run for run in runs if not _finished(run)]
    if progress:
        tqdm.write(f"{len(runs)} trials, {len(runs) - len(unfinished)} of them trained already")
    if jobs > 1 and len(unfinished) > 1:
        del data, tokenizer  # every worker reads its own
        _train_side_by_side(recipe, folder, min(jobs, len(unfinished)), progress)
    else:
        _train_all(runs, data, tokenizer, keep_models=spec.keep_models, say=progress, bars=progress)
    results = _results(recipe, runs, command)
    write_json(folder / "search.json", results)
    hopeless = [choice["arm"] for choice in results["choices"] if choice["settings"] is None]
    if hopeless:
        raise RunError(
            f"every trial of {', '.join(hopeless)} failed, so nothing can be chosen: {folder / 'search.json'} says "
            "how; search other settings"
        )
    write_text(folder / "chosen.yaml", _chosen_recipe(recipe, results))
    return results


# Training ------------------------------------------------------------------------------------------------------------


def _trials(recipe: Recipe, folder: Path) -> list[Run]:
    """Every combination of every arm with every seed, in the order of the recipe."""
    spec = recipe.search
    assert spec is not None
    # The frontier is of the settings chosen, so no trial draws one.
    plain = recipe.model_copy(update={"frontier": None, "search": None})
    return [
        Run(plain, arm, seed, folder, tuple(settings.items()))
        for arm in spec.arms
        for settings in spec.grid(arm)
        for seed in spec.seeds or recipe.seeds[:1]
    ]


def _check(runs: Sequence[Run]) -> None:
    """All that can be known beforehand to be wrong with a trial."""
    check_settings(runs)
    for run in runs:
        if not training_config(run, progress=False).load_best_model_at_end:
            raise InputError(
                f"recipe {run.recipe.name}, arm {run.label}: settings are chosen by the validation values of the "
                "checkpoints kept, so eval_strategy must not be no, nor load_best_model_at_end false"
            )
    names = [run.name for run in runs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"two trials would have one folder, {twice}: give values that differ as text")


def _failure(run: Run) -> Path:
    return run.folder / "failed.json"


def _finished(run: Run) -> bool:
    return run.record.is_file() or _failure(run).is_file()


def _train_all(
    runs: Sequence[Run],
    data: Prepared,
    tokenizer: PreTrainedTokenizerBase,
    *,
    keep_models: bool,
    say: bool,
    bars: bool,
) -> None:
    """Train what is not finished, and wait for what other processes train: should they end early, it is taken over."""
    while waiting := [run for run in runs if not _finished(run)]:
        trained = 0
        for run in waiting:
            if _finished(run):
                continue
            line = f"[{1 + sum(map(_finished, runs))}/{len(runs)}] training {run.name}"
            starting = partial(tqdm.write, line) if say else None
            try:
                trained += train_unless_locked(run, data, tokenizer, progress=bars, starting=starting)
            except NonFiniteLossError as error:  # it would end so again: it counts as a trial, and is never chosen
                write_json(_failure(run), {"error": str(error)})
                shutil.rmtree(run.checkpoints, ignore_errors=True)
            if not keep_models and _finished(run):  # else another process is at it, and may be saving the model
                shutil.rmtree(run.model, ignore_errors=True)
        if not trained:
            time.sleep(_PATIENCE)


def _train_side_by_side(recipe: Recipe, folder: Path, jobs: int, say: bool) -> None:
    """Workers that each walk the list of trials; locks keep them out of each other's way."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Threads are counted when torch is imported, so they are set for the process; who has set them is obeyed.
    environment = {"OMP_NUM_THREADS": str(max(1, cores // jobs)), **os.environ}
    task = json.dumps({"recipe": recipe.to_dict(), "folder": str(folder), "say": say})
    with ExitStack() as stack:
        workers = []
        for _ in range(jobs):
            # Not a pipe, which could fill up while nobody reads.
            said = stack.enter_context(tempfile.TemporaryFile("w+"))
            worker = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _WORKER], stdin=subprocess.PIPE, stderr=said, text=True, env=environment
                )
            )
            stack.callback(worker.terminate)  # nothing happens where it has ended
            workers.append((worker, said))
            print(task, file=worker.stdin, flush=True)  # left open: it closes when this process ends, however it ends
        while running := [worker for worker, _ in workers if worker.poll() is None]:
            if any(worker.returncode for worker, _ in workers):
                break
            with suppress(subprocess.TimeoutExpired):
                running[0].wait(timeout=0.5)
        for worker, said in workers:
            code = worker.returncode or 0  # None while it runs
            if code < 0:
                raise RunError(
                    f"a worker was ended by signal {-code}: the same command goes on from there; if memory was short "
                    "(signal 9), give fewer --jobs"
                )
            if code:
                said.seek(0)
                last = (said.read().strip().splitlines() or [f"a worker ended with code {code}"])[-1]
                raise InputError(last) if code == _WRONG_INPUT else RunError(last)


def _work() -> None:
    """One worker: reads its task from standard input; its last words go to standard error."""
    task = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    recipe, folder = Recipe.model_validate(task["recipe"]), Path(task["folder"])
    runs = _trials(recipe, folder)
    assert recipe.search is not None
    try:
        data, tokenizer = load_data(runs[0].recipe, folder, False, _PARTS)
        _train_all(runs, data, tokenizer, keep_models=recipe.search.keep_models, say=task["say"], bars=False)
    except (InputError, RunError) as error:
        sys.stderr.write("\n" + " ".join(str(error).split()) + "\n")
        raise SystemExit(_WRONG_INPUT if isinstance(error, InputError) else 1) from None


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing comes any more but the end
    os._exit(1)


# Results -------------------------------------------------------------------------------------------------------------


def _results(recipe: Recipe, runs: Sequence[Run], command: str | None) -> dict[str, Any]:
    spec, metric = recipe.search, recipe.metric
    assert spec is not None
    price = DEFAULT_PRICE[metric] if spec.price is None else spec.price
    trials = {run: _trial(run, metric) for run in runs}
    groups: dict[str, dict[str, list[Run]]] = {arm: {} for arm in spec.arms}
    for run in runs:
        groups[run.arm].setdefault(run.label, []).append(run)
    candidates = {
        arm: [_candidate([trials[run] for run in same]) for same in labels.values()] for arm, labels in groups.items()
    }
    chosen = {recipe.baseline: choose_best(candidates[recipe.baseline], metric)}
    place = chosen[recipe.baseline].place
    best = None if place is None else candidates[recipe.baseline][place].value
    for arm in spec.arms:
        if arm == recipe.baseline:
            continue
        constrained = next(run for run in runs if run.arm == arm).objective == "descent"
        if constrained and best is not None:
            chosen[arm] = choose_under_constraints(candidates[arm], best, price, metric, recipe.baseline)
        elif constrained:
            chosen[arm] = Choice(None, f"every trial of {recipe.baseline} failed, so there is no price")
        else:
            chosen[arm] = choose_best(candidates[arm], metric)
    return {
        **results_header(recipe, command),
        "metric": metric,
        "baseline": recipe.baseline,
        "price": price,
        "seeds": list(dict.fromkeys(run.seed for run in runs)),
        "unequal": spec.unequal,
        "rule": rule_in_words(metric, price, recipe.baseline, unequal=spec.unequal),
        "fields": {arm: dict(fields) for arm, fields in spec.arms.items()},
        "choices": [_choice_row(arm, chosen[arm], candidates[arm], best, metric) for arm in spec.arms],
        "candidates": [
            {
                "arm": arm,
                **_candidate_row(row, best, metric),
                "chosen": chosen[arm].place == place,
                "finalist": place in chosen[arm].finalists,
            }
            for arm in spec.arms
            for place, row in enumerate(candidates[arm])
        ],
        "trials": list(trials.values()),
    }


def _trial(run: Run, metric: str) -> dict[str, Any]:
    """Everything of one trial that selection sees, and what explains it."""
    row = {"arm": run.arm, "name": run.name, "seed": run.seed, "settings": dict(run.overrides)}
    constrained = run.objective == "descent"
    if not run.record.is_file():
        empty = ("alpha", "nodes", "value", "loss", "layer_losses", "max_violation", "feasible", "multipliers")
        late = ("lambda_share", "steps", "best_checkpoint_step", "seconds")
        return {**row, **dict.fromkeys((*empty, *late)), "failed": read_json(_failure(run))["error"]}
    record = read_json(run.record)
    kept, failed = record["validation"] or {}, None
    if kept.get(metric) is None:
        if kept and metric not in kept:
            raise RunError(
                f"{run.record} holds no validation {metric}: an earlier version or another metric made it; delete its "
                "folder, and the same command trains it again"
            )
        failed = "no checkpoint with a finite validation loss"
    multipliers = record["history"].get("multipliers")
    return {
        **row,
        "alpha": record["alpha"],
        "nodes": record["nodes"],
        "value": kept.get(metric),
        "loss": kept.get("layer_losses", [None])[-1],
        "layer_losses": kept.get("layer_losses"),
        "max_violation": kept.get("max_violation") if constrained else None,
        "feasible": bool(kept["feasible"]) if constrained and kept else None,
        "multipliers": multipliers[-1] if multipliers else None,
        "lambda_share": lambda_share(record),
        **{key: record[key] for key in ("steps", "best_checkpoint_step", "seconds")},
        "failed": failed,
    }


def _candidate(trials: Sequence[Mapping[str, Any]]) -> Candidate:
    """The trials of one combination of settings, which differ in their seeds, as one row."""
    settings = trials[0]["settings"]
    if any(trial["failed"] for trial in trials):
        return Candidate(settings=settings, value=None, loss=None)
    constrained = trials[0]["alpha"] is not None
    return Candidate(
        settings=settings,
        value=statistics.fmean(trial["value"] for trial in trials),
        loss=statistics.fmean(trial["loss"] for trial in trials),
        alpha=_mean_alpha(trials[0]["alpha"], trials[0]["nodes"]) if constrained else None,
        max_violation=max(trial["max_violation"] for trial in trials) if constrained else None,
        feasible=all(trial["feasible"] for trial in trials) if constrained else None,
    )


def _mean_alpha(alphas: Sequence[float], nodes: Sequence[int]) -> float:
    """What each layer from the first constrained one on is asked on (geometric) average.

    So a schedule, a grid or a later first layer is comparable with one number.

    Args:
        alphas: alpha_1 … alpha_L.
        nodes: n_0 … n_C, as of `DescentConstraints`.

    Example:
        >>> _mean_alpha([0.0, 0.0, 0.1, 0.1], [2, 3, 4]), _mean_alpha([0.1, 0.1, 0.1, 0.1], [0, 2, 4])
        (0.1, 0.1)
    """
    asked = alphas[nodes[0] : nodes[-1]]
    return round(1 - math.prod(1 - alpha for alpha in asked) ** (1 / len(asked)), 9)


def _candidate_row(row: Candidate, best: float | None, metric: str) -> dict[str, Any]:
    price = None if row.value is None or best is None else price_paid(row.value, best, metric)
    return {
        "settings": dict(row.settings),
        "value": row.value,
        "loss": row.loss,
        "alpha": row.alpha,
        "max_violation": row.max_violation,
        "feasible": row.feasible,
        "price": price,
    }


def _choice_row(
    arm: str, choice: Choice, candidates: Sequence[Candidate], best: float | None, metric: str
) -> dict[str, Any]:
    """What was chosen for an arm, why, and among how many."""
    nothing = Candidate(settings={}, value=None, loss=None)
    row = _candidate_row(nothing if choice.place is None else candidates[choice.place], best, metric)
    if choice.place is None:
        row["settings"] = None
    told = {"within_price": choice.within_price, "reason": choice.reason, "of": len(candidates)}
    return {"arm": arm, **row, **told}


def _chosen_recipe(recipe: Recipe, results: Mapping[str, Any]) -> str:
    """The recipe with what was chosen in its arms, as YAML, with the reasons above."""
    arms = {arm: dict(settings) for arm, settings in recipe.arms.items()}
    for choice in results["choices"]:
        arms[choice["arm"]] |= choice["settings"]
    content = recipe.model_copy(update={"arms": arms}).to_dict()
    content.pop("search")
    head = [f"Written by {results['command'] or 'layerdescent search'}, on clean validation data:"]
    head += [f"{choice['arm']}: {choice['reason']}" for choice in results["choices"]]
    return "".join(f"# {line}\n" for line in head) + write_yaml(content)
