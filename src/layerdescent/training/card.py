"""The model card: how a checkpoint was trained, and what its layers do."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from layerdescent.descent import DescentConstraints
from layerdescent.files import write_text
from layerdescent.layers import every_layer
from layerdescent.training.capture import plain_model
from layerdescent.training.records import descent_history

PAPER = "Porras-Valenzuela, Hadou, Ribeiro: *A Constrained Optimization Perspective of Unrolled Transformers*, [arXiv 2601.17257](https://arxiv.org/abs/2601.17257)"
BEGIN, END = "<!-- layerdescent: begin -->", "<!-- layerdescent: end -->"

_TITLES = {
    "descent": "fine-tuned under layerwise descent constraints: every layer has to lower the loss",
    "erm": "fine-tuned on the loss of its last layer (ERM)",
    "deep-supervision": "fine-tuned on a fixed weighted sum of the losses of its layers (deep supervision)",
    "noise": "fine-tuned on the loss of its last layer under gaussian noise on its inputs",
}
_FIELDS = {
    "descent": "alpha form first_layer grid dual_lr resilience dual_warmup_steps dual_every violation_cap "
    "multiplier_max reference detach_initial detach_previous clip_weights feasibility_tolerance constraint_gamma",
    "erm": "",
    "deep-supervision": "layer_weights",
    "noise": "noise_gamma noise_level",
}
_COMMON = "input_gamma learning_rate lr_scheduler_type weight_decay max_grad_norm seed"


def card_section(
    args: Any,
    steps: int,
    batch_size: int,
    profile: Mapping[str, Any] | None,
    constraints: DescentConstraints,
    loading: str,
) -> str:
    """The part of a model card that layerdescent writes, as Markdown.

    Args:
        args: the training arguments, with the fields of `DescentArguments`.
        steps: optimiser steps behind the checkpoint.
        batch_size: samples an optimiser step.
        profile: a record of `descent_history`, from an evaluation if there was one; None leaves the table out.
        constraints: which the violations refer to.
        loading: a sentence that says how the checkpoint is loaded.
    """
    fields = f"{_FIELDS[args.objective]} {_COMMON}".split()
    settings = "\n".join(f"| {name} | {_shown(getattr(args, name))} |" for name in fields)
    return f"""{BEGIN}
## How it was trained

This model was {_TITLES[args.objective]}.
It took {steps} optimiser steps of {batch_size} samples, with layerdescent.
{loading}

| setting | value |
|---|---|
| objective | {args.objective} |
{settings}

{_profile(profile, constraints, args.objective)}## Source

Layerwise descent constraints are due to {PAPER}.
{END}
"""


def _profile(profile: Mapping[str, Any] | None, constraints: DescentConstraints, objective: str) -> str:
    if profile is None:
        return ""
    constrained = objective == "descent"
    violations = dict(zip(constraints.nodes[1:], profile["violations"], strict=True))
    rows = (
        ["| layer | loss | alpha | violation |", "|---|---|---|---|"]
        if constrained
        else ["| layer | loss |", "|---|---|"]
    )
    for layer, loss in enumerate(profile["layer_losses"]):
        cells = [str(layer), "" if loss is None else f"{loss:.4f}"]
        if constrained:
            cells.append(f"{constraints.alphas[layer - 1]:.4g}" if layer else "")
            cells.append(f"{violations[layer]:+.4f}" if layer in violations else "")
        rows.append(f"| {' | '.join(cells)} |")
    evaluated = "feasible" in profile
    where = "validation data" if evaluated else "training data, dropout on"
    meaning = "; a violation above 0 means that the layer lowers the loss by less than its alpha" if constrained else ""
    lines = [
        "## What its layers do",
        f"Loss read from every layer by the model's own head, at step {profile['step']} on {where}{meaning}.",
        "\n".join(rows),
        *([_verdict(profile, constraints, constrained)] if evaluated else []),
    ]
    return "\n\n".join(lines) + "\n\n"


def _verdict(profile: Mapping[str, Any], constraints: DescentConstraints, constrained: bool) -> str:
    every = every_layer(constraints.nodes, constraints.num_layers)
    falls = f"The loss {'falls' if profile['monotone'] else 'does not fall'} at {every}"
    if not constrained:
        return f"{falls}."
    if profile["feasible"]:
        return f"{falls}; every constraint is met within its tolerance."
    worst = profile["max_violation"]
    return (
        f"{falls}; the largest relative violation is {worst:.3g}, so this checkpoint is **not feasible**: "
        "it was kept because no feasible one was found, or none was asked for."
    )


def write_trainer_card(trainer: Any, folder: str | None) -> None:
    """Write or update the card of the model that a trainer saves into a folder.

    The profile is that of the saved weights: of the best checkpoint once it was loaded, else of the newest evaluation,
    or of the newest training steps where there was none.
    """
    path = Path(folder or trainer.args.output_dir)
    best = trainer.state.best_global_step if trainer.best_is_loaded else None
    records = descent_history(trainer.state.log_history, "eval_") or trainer.descent_history
    if best is not None:
        records = [record for record in records if record["step"] == best]
    model = plain_model(trainer.model)
    section = card_section(
        trainer.args,
        steps=best or trainer.state.global_step,
        batch_size=trainer.get_total_train_batch_size(trainer.args),
        profile=records[-1] if records else None,
        constraints=trainer.constraints,
        loading=_loading(model),
    )
    base = getattr(model.config, "_name_or_path", "")
    write_card(
        path,
        section,
        model_name=path.resolve().name,
        base_model=base if base and not Path(base).exists() else None,
        library="transformers" if model is trainer.model else "peft",
    )


def _loading(model: Any) -> str:
    cls = type(model)
    if cls.__module__.startswith("layerdescent.") and cls._auto_class is None:
        return f"`import layerdescent.models` registers its class, {cls.__name__}; then `AutoModel` loads it."
    return "It is an ordinary checkpoint: `from_pretrained` loads it without that package."


def write_card(folder: Path, section: str, model_name: str, base_model: str | None, library: str) -> None:
    """Write the section into a folder's README.md: in place of an older one, below what others wrote, or alone."""
    path = folder / "README.md"
    if path.is_file():
        text = path.read_text(encoding="utf-8")
        before, begin, rest = text.partition(BEGIN)
        after = rest.partition(END)[2] if begin else ""
        write_text(path, f"{before.rstrip()}\n\n{section}{after.lstrip()}")
        return
    base = f"base_model: {base_model}\n" if base_model else ""
    header = f"---\nlibrary_name: {library}\n{base}tags:\n- layerdescent\n---\n"
    write_text(path, f"{header}\n# {model_name}\n\n{section}")


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return f"`{getattr(value, 'value', value)}`"
