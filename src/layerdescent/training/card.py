"""The model card: how a checkpoint was trained, and what its layers do."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerdescent.files import write_text

PAPER = "Porras-Valenzuela, Hadou, Ribeiro: *A Constrained Optimization Perspective of Unrolled Transformers*, [arXiv 2601.17257](https://arxiv.org/abs/2601.17257)"
BEGIN, END = "<!-- layerdescent: begin -->", "<!-- layerdescent: end -->"

_TITLES = {
    "descent": "fine-tuned under layerwise descent constraints: every layer has to lower the loss",
    "erm": "fine-tuned on the loss of its last layer (ERM)",
    "deep-supervision": "fine-tuned on a fixed weighted sum of the losses of its layers (deep supervision)",
    "noise": "fine-tuned on the loss of its last layer under gaussian noise on the word embeddings",
}
_FIELDS = {
    "descent": (
        "alpha form first_layer grid dual_lr resilience dual_warmup_steps dual_every violation_cap multiplier_max reference "
        "detach_initial detach_previous clip_weights feasibility_tolerance"
    ),
    "erm": "",
    "deep-supervision": "layer_weights",
    "noise": "noise_gamma",
}
_COMMON = "learning_rate lr_scheduler_type weight_decay max_grad_norm seed"


def card_section(
    args: Any,
    steps: int,
    batch_size: int,
    profile: Mapping[str, Any] | None,
    nodes: Sequence[int],
    alphas: Sequence[float],
) -> str:
    """The part of a model card that layerdescent writes, as Markdown.

    Args:
        args: the training arguments, with the fields of `DescentArguments`.
        steps: optimiser steps behind the checkpoint.
        batch_size: samples an optimiser step.
        profile: a record of `descent_history`, from an evaluation if there was one; None leaves the table out.
        nodes: the layers that the constraints tie, n_0 … n_C.
        alphas: alpha_1 … alpha_L.
    """
    fields = f"{_FIELDS[args.objective]} {_COMMON}".split()
    settings = "\n".join(f"| {name} | {_shown(getattr(args, name))} |" for name in fields)
    return f"""{BEGIN}
## How it was trained

This model was {_TITLES[args.objective]}. {steps} optimiser steps of {batch_size} samples, with layerdescent.
It is an ordinary checkpoint: `from_pretrained` loads it without that package.

| setting | value |
|---|---|
| objective | {args.objective} |
{settings}

{_profile(profile, nodes, alphas, args.objective)}## Source

Layerwise descent constraints are due to {PAPER}.
{END}
"""


def _profile(profile: Mapping[str, Any] | None, nodes: Sequence[int], alphas: Sequence[float], objective: str) -> str:
    if profile is None:
        return ""
    losses, violations = profile["layer_losses"], dict(zip(nodes[1:], profile["violations"], strict=True))
    evaluated = "feasible" in profile
    rows = []
    for layer, loss in enumerate(losses):
        alpha = f"{alphas[layer - 1]:.4g}" if layer else ""
        violation = f"{violations[layer]:+.4f}" if layer in violations else ""
        rows.append(f"| {layer} | {'' if loss is None else f'{loss:.4f}'} | {alpha} | {violation} |")
    where = "validation data" if evaluated else "training data, dropout on"
    return "\n".join(
        [
            "## What its layers do",
            "",
            f"Loss read from every layer by the model's own head, at step {profile['step']} on {where}; "
            "a violation above 0 means that the layer lowers the loss by less than its alpha.",
            "",
            "| layer | loss | alpha | violation |",
            "|---|---|---|---|",
            *rows,
            "",
            *([_verdict(profile, objective), ""] if evaluated else []),
            "",
        ]
    )


def _verdict(profile: Mapping[str, Any], objective: str) -> str:
    monotone = "The loss falls at every layer" if profile["monotone"] else "The loss does not fall at every layer"
    if profile["feasible"]:
        return f"{monotone}; every constraint is met within its tolerance."
    missed = f"{monotone}; the largest relative violation is {profile['max_violation']:.3f}, so this checkpoint is **not feasible**."
    return (
        f"{missed} It is the one kept because no feasible one was found or asked for."
        if objective == "descent"
        else missed
    )


def write_card(folder: Path, section: str, model_name: str, base_model: str | None, library: str) -> None:
    """Write the section into the folder's README.md: in place of an older one, below what others wrote, or as a new card."""
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
