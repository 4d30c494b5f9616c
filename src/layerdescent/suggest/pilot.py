"""The pilot and its checks: trains both, measures them on validation rows, and writes down what follows.

    FOLDER/
      runs/pilot@max_steps=N-seedK/    the descent arm of the recipe without its constraints, for N steps
      runs/check@max_steps=N@…-seedK/  the same once more under a proposal
      runs/…/profile.safetensors       layer losses on the validation rows
      runs/…/measured.json             how far what the head reads varies, and in which process the run was trained
      suggestion.json                  everything measured, the proposal, its reasons, the expected cost
      suggested.yaml                   the recipe with the proposal in its first descent arm

Whatever is finished is never done again. The test part is not looked at.
"""

import inspect
import math
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from layerdescent.data import resolve_model
from layerdescent.errors import InputError, NonFiniteLossError, RunError
from layerdescent.evaluation import DescentProfile, descent_profile
from layerdescent.evaluation.batches import Rows, collate, evaluating, length_sorted, load_config, load_model
from layerdescent.experiment import check_settings, claim_folder, load_data, results_header
from layerdescent.files import read_json, write_json, write_text
from layerdescent.models import MEAN_POOLED_BACKBONES
from layerdescent.readout import Readout
from layerdescent.recipes import InstructionsRecipe, Recipe, VideoRecipe
from layerdescent.recipes.yaml_text import write_yaml
from layerdescent.runs import Run, train_run, training_config
from layerdescent.search.rule import price_paid
from layerdescent.statistics import paired_difference
from layerdescent.suggest.rules import Measured, Proposal, judge, propose, proposed_dual_lr, revise, spread
from layerdescent.tables import settings_line
from layerdescent.tasks import Prepared
from layerdescent.training import DescentArguments, DescentConfig

PILOT_SHARE = 0.2
"""The pilot's steps as a share of the recipe's … [C]"""
PILOT_STEPS = (60, 300)
"""… but at least and at most so many. [C]"""
RETRIES = 2
"""How often a proposal that was stuck in its check is revised. [C]"""
SPREAD_ROWS = 1000
"""Validation rows on which spreads are measured."""

# The test part's rows are read only for its texts to be kept out of the others.
_PARTS = ("train", "validation")
# Times of two runs are compared only where one process took both.
_PROCESS = uuid.uuid4().hex
# What an arm says about constraints or about evaluating and saving is not the pilot's.
_CONSTRAINT_FIELDS = {field.name for field in fields(DescentArguments)}
_EVALUATION_FIELDS = {
    "eval_steps",
    "eval_delay",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
}


def suggest_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    steps: int | None = None,
    check: bool = True,
    progress: bool = True,
    command: str | None = None,
) -> dict[str, Any]:
    """Train a short pilot of a recipe without constraints, and propose settings for its first descent arm.

    Goes on where it was stopped. The rules are `layerdescent.suggest.rules`'.

    Args:
        recipe: whose model, data and training; it needs no descent arm.
        folder: where everything goes; see the module's docstring. Not that of a comparison.
        steps: optimiser steps of the pilot; None takes `PILOT_SHARE` of the recipe's own, within `PILOT_STEPS`, never
            more than the recipe's.
        check: train once more for as many steps under the proposal, measure what it costs, and revise a proposal whose
            constraints are stuck.
        progress: show progress bars and stages.
        command: the command line to store with the results.

    Returns:
        The results, as stored in `FOLDER/suggestion.json`.

    Raises:
        InputError: a setting that cannot be, or a folder with other runs; before anything trains.
        RunError: the pilot diverged, or has not learnt enough to propose anything; its numbers are stored all the same.
    """
    if steps is not None and steps < 1:
        raise InputError(f"steps is {steps}: give at least 1")
    if isinstance(recipe, VideoRecipe | InstructionsRecipe):
        of = "video" if isinstance(recipe, VideoRecipe) else "instructions"
        raise InputError(f"recipe {recipe.name} is one of {of}, and suggest knows texts only; search serves both")
    plain = recipe.model_copy(update={"frontier": None, "search": None})
    arm = descent_arm(plain)
    check_settings([Run(plain, arm or plain.baseline, plain.seeds[0], folder)])
    claim_folder(folder, plain)
    data, tokenizer = load_data(plain, folder, progress, _PARTS)
    plan = _Plan.of(plain, arm or plain.baseline, folder, len(data.train), steps)

    def say(message: str) -> None:
        if progress:
            tqdm.write(message)

    pilot_run = plan.pilot()
    check_settings([pilot_run])
    say(f"pilot: {plan.steps} of {plan.total} steps without constraints")
    pilot = _measure(pilot_run, data, tokenizer, progress)
    measured = Measured(
        layer_losses=tuple(pilot.losses),
        spreads=pilot.spreads,
        constant_loss=float(pilot.profile.constant_losses.mean()),
        dual_steps=plan.dual_steps(plan.total),
    )
    mean_pooling = _could_pool(plain)
    proposal = propose(measured, mean_pooling=mean_pooling)
    checks: list[dict[str, Any]] = []
    while check and proposal.alpha is not None:
        say(f"check {len(checks) + 1}: {plan.steps} steps with {settings_line(proposal.settings)}")
        checks.append(_check(plan, proposal, pilot, data, tokenizer, progress))
        revised = revise(proposal, measured, checks[-1]["states"], mean_pooling=mean_pooling)
        if revised is None or len(checks) > RETRIES:
            break
        proposal = revised
    results = _results(recipe, plan, data, pilot, measured, proposal, checks, command)
    write_json(folder / "suggestion.json", results)
    if proposal.alpha is None:
        raise RunError(_too_short(plan, proposal, folder))
    write_text(folder / "suggested.yaml", _suggested_recipe(recipe, arm, results))
    return results


def descent_arm(recipe: Recipe) -> str | None:
    """The recipe's first arm under descent constraints, which gets the proposal."""
    arms = (
        arm for arm in recipe.arms if recipe.arm_settings(arm).get("objective", DescentConfig.objective) == "descent"
    )
    return next(arms, None)


def recipe_steps(config: DescentConfig, num_rows: int) -> int:
    """Optimiser steps of a training on so many rows, as Trainer counts them in one process."""
    if config.max_steps > 0:
        return config.max_steps
    whole, rest = divmod(num_rows, config.train_batch_size)
    batches = whole + (rest > 0 and not config.dataloader_drop_last)
    return max(1, math.ceil(config.num_train_epochs * max(1, math.ceil(batches / config.gradient_accumulation_steps))))


def pilot_steps(total: int, asked: int | None = None) -> int:
    """How long a pilot is: what was asked for, or `PILOT_SHARE` of the recipe's steps within `PILOT_STEPS`.

    Example:
        >>> pilot_steps(375), pilot_steps(1000), pilot_steps(10_000), pilot_steps(12), pilot_steps(375, asked=10)
        (75, 200, 300, 12, 10)
    """
    low, high = PILOT_STEPS
    return min(total, max(low, min(high, round(PILOT_SHARE * total)))) if asked is None else asked


@dataclass(frozen=True)
class _Plan:
    """What the pilot and its checks train: the settings of an arm, its schedules shrunk to the pilot's length."""

    recipe: Recipe
    arm: str
    folder: Path
    config: DescentConfig
    total: int
    steps: int

    @classmethod
    def of(cls, recipe: Recipe, arm: str, folder: Path, num_rows: int, steps: int | None) -> "_Plan":
        config = training_config(Run(recipe, arm, recipe.seeds[0], folder), progress=False)
        total = recipe_steps(config, num_rows)
        return cls(recipe, arm, folder, config, total, pilot_steps(total, steps))

    def _run(self, name: str, settings: Mapping[str, Any], overrides: Mapping[str, Any]) -> Run:
        own = {
            **{field: value for field, value in settings.items() if field not in _EVALUATION_FIELDS},
            "eval_strategy": "no",
            "save_strategy": "steps",
            "save_steps": math.ceil(self.steps / 2),
            "logging_strategy": "steps",
            "logging_steps": max(1, self.steps // 20),
        }
        for field in ("warmup_steps", "dual_warmup_steps"):
            if settings.get(field, 0) >= 1:  # below 1 it is a share already
                own[field] = round(settings[field] * self.steps / self.total)
        recipe = self.recipe.model_copy(update={"train": {}, "arms": {name: own}, "baseline": name})
        return Run(recipe, name, recipe.seeds[0], self.folder, (("max_steps", self.steps), *overrides.items()))

    def pilot(self) -> Run:
        """The arm without its constraints."""
        settings = self.recipe.arm_settings(self.arm)
        own = {name: value for name, value in settings.items() if name not in _CONSTRAINT_FIELDS}
        return self._run("pilot", own | {"objective": "erm"}, {})

    def check(self, proposal: Proposal) -> Run:
        """The arm under a proposal; its multipliers go as far in these steps as they would in the whole training."""
        settings = self.recipe.arm_settings(self.arm)
        own = {name: value for name, value in settings.items() if name not in (*proposal.settings, "grid")}
        assert proposal.alpha is not None
        faster = {"dual_lr": proposed_dual_lr(proposal.alpha, self.dual_steps(self.steps))}
        return self._run("check", own | {"objective": "descent"}, proposal.settings | faster)

    def dual_steps(self, steps: int) -> int:
        """Dual steps of a training of so many optimiser steps."""
        every = self.config.dual_every
        if every == "epoch":
            return max(1, round(self.config.num_train_epochs * steps / self.total))
        assert isinstance(every, int)
        return max(1, (steps - round(self.config.dual_warmup_steps * steps / self.total)) // every)


# Measuring -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trained:
    """A run of the pilot's length, and what was measured of it."""

    record: Mapping[str, Any]
    profile: DescentProfile
    spreads: tuple[float, ...]
    process: str

    @property
    def losses(self) -> list[float]:
        return self.profile.mean_losses.tolist()


def _measure(run: Run, data: Prepared, tokenizer: PreTrainedTokenizerBase, progress: bool) -> _Trained:
    """Train a run and measure it on the validation rows; what is there already is read."""
    profile, measured = run.folder / "profile.safetensors", run.folder / "measured.json"
    if not (profile.is_file() and measured.is_file()):
        if not run.model.is_dir():
            run.record.unlink(missing_ok=True)  # measured once, and its weights are gone
        train_run(run, data, tokenizer, progress=progress)
        model, size = load_model(run.model), run.recipe.evaluation.batch_size
        descent_profile(
            model,
            data.validation,
            processing_class=tokenizer,
            constraints=training_config(run, progress=False).constraints(Readout.for_model(model).num_layers),
            batch_size=size,
            progress=progress,
        ).save(profile)
        rows: Any = data.validation
        some = rows.select(range(0, len(rows), math.ceil(len(rows) / SPREAD_ROWS)))
        spreads = layer_spreads(model, some, tokenizer, size)
        write_json(measured, {"spreads": spreads, "process": _PROCESS})
        shutil.rmtree(run.model)  # nothing needs its weights any more
    stored = read_json(measured)
    return _Trained(read_json(run.record), DescentProfile.load(profile), tuple(stored["spreads"]), stored["process"])


def layer_spreads(model: Any, rows: Rows, tokenizer: Any, batch_size: int = 64) -> list[float]:
    """How far what the head reads from each layer varies between inputs; see `rules.spread`.

    Args:
        model: a model with a readout.
        rows: tokenised rows.
        tokenizer: for padding.
        batch_size: rows in a batch.

    Returns:
        L + 1 numbers, for layers 0 … L.
    """
    readout = Readout.for_model(model)
    accepted = set(inspect.signature(readout.model.forward).parameters)
    device = next(model.parameters()).device
    read = []
    with evaluating(model), torch.inference_mode():
        for indices in length_sorted(rows, batch_size):
            batch = {name: part.to(device) for name, part in collate([rows[i] for i in indices], tokenizer).items()}
            inputs = {name: part for name, part in batch.items() if name in accepted}
            states = model(**inputs, **readout.needs_hidden_states).hidden_states
            read.append(readout.rows(states, batch).float().cpu())
    return [spread(layer.numpy()) for layer in torch.cat(read, dim=1)]


def _check(
    plan: _Plan,
    proposal: Proposal,
    pilot: _Trained,
    data: Prepared,
    tokenizer: PreTrainedTokenizerBase,
    progress: bool,
) -> dict[str, Any]:
    """Train under a proposal; what it came to. Without states where a loss stopped being a number."""
    run = plan.check(proposal)
    check_settings([run])
    told: dict[str, Any] = {
        "settings": proposal.settings,
        "dual_lr": run.settings["dual_lr"],
        "states": {},
        "failed": None,
    }
    failure = run.folder / "failed.json"
    if failure.is_file():
        return {**told, "failed": read_json(failure)["error"]}
    try:
        trained = _measure(run, data, tokenizer, progress)
    except NonFiniteLossError as error:
        write_json(failure, {"error": str(error)})
        shutil.rmtree(run.checkpoints, ignore_errors=True)
        return {**told, "failed": str(error)}
    constraints, history = trained.profile.constraints, trained.record["history"]
    states = judge(constraints, pilot.losses, trained.losses, history["multipliers"], history["weights"])
    return {
        **told,
        "states": dict(zip(constraints.nodes[1:], states, strict=True)),
        "layer_losses": trained.losses,
        "accuracies": None if trained.profile.accuracies is None else trained.profile.accuracies.tolist(),
        "relative_violations": trained.profile.relative_violations.tolist(),
        "tolerances": list(constraints.tolerances),
        "multipliers": history["multipliers"][-1],
        "weights": history["weights"][-1],
        "spreads": list(trained.spreads),
        "cost": _cost(pilot, trained, plan),
    }


def _value(trained: _Trained) -> float:
    """The recipe's metric on the validation rows."""
    accuracies = trained.profile.accuracies
    return math.sqrt(trained.losses[-1]) if accuracies is None else float(accuracies[-1])


def _cost(pilot: _Trained, check: _Trained, plan: _Plan) -> dict[str, Any]:
    """What the constraints cost in this check, against the pilot: same rows, seed and steps."""
    metric, value, against = plan.recipe.metric, _value(check), _value(pilot)
    loss = paired_difference(check.profile.layer_losses[:, -1], pilot.profile.layer_losses[:, -1])
    hits = (check.profile.correct, pilot.profile.correct)
    right = None if hits[0] is None or hits[1] is None else paired_difference(hits[0][:, -1], hits[1][:, -1])
    times = [trained.record["step_seconds"] for trained in (pilot, check)]
    ratio = times[1] / times[0] if all(times) else None
    return {
        "metric": metric,
        "value": value,
        "value_without": against,
        "price": price_paid(value, against, metric),
        "value_difference_ci95": None if right is None else [right.low, right.high],
        "loss_difference": loss.value,
        "loss_difference_ci95": [loss.low, loss.high],
        "step_seconds": times[1],
        "step_seconds_without": times[0],
        "step_time_ratio": ratio,
        "one_process": pilot.process == check.process,
        "training_seconds": None if times[1] is None else times[1] * plan.total,
        "training_seconds_without": None if times[0] is None else times[0] * plan.total,
    }


# Results -------------------------------------------------------------------------------------------------------------


def _could_pool(recipe: Recipe) -> bool:
    """Whether `model.pooling: mean` is there to be chosen."""
    spec = recipe.model
    if spec.pooling != "own":
        return False
    return load_config(resolve_model(spec.source), spec.revision).model_type in MEAN_POOLED_BACKBONES


def _results(
    recipe: Recipe,
    plan: _Plan,
    data: Prepared,
    pilot: _Trained,
    measured: Measured,
    proposal: Proposal,
    checks: Sequence[dict[str, Any]],
    command: str | None,
) -> dict[str, Any]:
    profile = pilot.profile
    last = checks[-1] if checks else None  # under the proposal itself, refuted or not
    return {
        **results_header(recipe, command),
        "arm": plan.arm,
        "seed": plan.recipe.seeds[0],
        "metric": recipe.metric,
        "steps": {"recipe": plan.total, "pilot": plan.steps, "dual": measured.dual_steps},
        "rows": {part: len(getattr(data, part)) for part in _PARTS},
        "layers": list(range(measured.num_layers + 1)),
        "pilot": {
            "layer_losses": list(measured.layer_losses),
            "layer_losses_ci95": profile.intervals.tolist(),
            "accuracies": None if profile.accuracies is None else profile.accuracies.tolist(),
            "constant_loss": measured.constant_loss,
            "spreads": list(measured.spreads),
            "relative_spreads": list(measured.relative_spreads),
            "value": _value(pilot),
            "step_seconds": pilot.record["step_seconds"],
            "seconds": pilot.record["seconds"],
        },
        "proposal": proposal.settings or None,
        "alpha_max": proposal.alpha_max,
        "reasons": [asdict(reason) for reason in proposal.reasons],
        "changes": [asdict(change) for change in proposal.changes],
        "checks": list(checks),
        "states": None if last is None else last["states"],
        "cost": None if last is None else last.get("cost"),
    }


def _too_short(plan: _Plan, proposal: Proposal, folder: Path) -> str:
    why = next(reason.text for reason in reversed(proposal.reasons) if reason.about == "alpha")
    longer = min(plan.total, 4 * plan.steps)
    advice = (
        f"run it again with --steps {longer}"
        if longer > plan.steps
        else "the pilot was as long as the recipe's own training, which has to learn more first: more epochs, another "
        "learning_rate or more rows"
    )
    return f"{why} after {plan.steps} steps: {advice} (numbers: {folder / 'suggestion.json'})"


def _suggested_recipe(recipe: Recipe, arm: str | None, results: Mapping[str, Any]) -> str:
    """The recipe with the proposal in its first descent arm, or in a new one, as YAML, with the reasons above."""
    arms = {name: dict(settings) for name, settings in recipe.arms.items()}
    target = arm or next(name for name in ("descent", "descent-suggested", "descent-constrained") if name not in arms)
    own = {name: value for name, value in arms.get(target, {"objective": "descent"}).items() if name != "grid"}
    if "grid" in recipe.train:
        own["grid"] = None
    arms[target] = own | results["proposal"]
    head = [f"Written by {results['command'] or 'layerdescent suggest'}, on clean validation data; arm {target}:"]
    told = (*results["reasons"], *results["changes"])
    head += [f"{reason['about']}: {reason['text']} [{reason['mark']}]" for reason in told]
    content = recipe.model_copy(update={"arms": arms}).to_dict()
    return "".join(f"# {line}\n" for line in head) + write_yaml(content)
