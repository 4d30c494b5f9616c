"""A suggestion as text for the terminal."""

from collections.abc import Mapping
from typing import Any

from layerdescent.layers import layers_in_words
from layerdescent.search.rule import price_text
from layerdescent.tables import plain, text_table

QUICKER_THAN_PLAIN = 0.95
"""A step under constraints does all that a plain one does; below this ratio something else was measured."""


def suggestion_text(results: Mapping[str, Any]) -> str:
    """The layers, the proposal, its reasons and what it is expected to cost.

    Args:
        results: as `suggest_recipe` returns them, with a proposal.
    """
    steps, proposal = results["steps"], results["proposal"]
    settings = "\n".join(f"  {name:<12} {plain(value)}" for name, value in proposal.items())
    told = {"reasons ([D] derived, [C] our choice)": results["reasons"], "changed by the check": results["changes"]}
    parts = [
        f"{title}:\n" + "\n".join(f"* {each['about']}: {each['text']} [{each['mark']}]" for each in listed)
        for title, listed in told.items()
        if listed
    ]
    return "\n\n".join(
        [
            layer_table(results),
            f"pilot of {steps['pilot']} steps (the recipe has {steps['recipe']}), seed {results['seed']}, "
            f"{results['rows']['validation']} validation rows",
            f"proposal for arm {results['arm']}:\n{settings}",
            *parts,
            "expected cost:\n" + "\n".join(f"* {sentence}" for sentence in cost_sentences(results)),
        ]
    )


def layer_table(results: Mapping[str, Any]) -> str:
    """One line a layer: the pilot's loss and relative spread, and the last check's loss, multiplier and state."""
    pilot = results["pilot"]
    done = [check for check in results["checks"] if check["failed"] is None]
    check = done[-1] if done else None
    header = ["layer", "loss, pilot", "relative spread"]
    if check is not None:
        header += ["loss, check", "multiplier", "constraint"]
        constrained = list(check["states"])
    rows = []
    for layer in results["layers"]:
        row = [str(layer), f"{pilot['layer_losses'][layer]:.4f}", f"{pilot['relative_spreads'][layer]:.3f}"]
        if check is not None:
            place = constrained.index(layer) if layer in constrained else None
            row.append(f"{check['layer_losses'][layer]:.4f}")
            row.append("" if place is None else f"{check['multipliers'][place]:.3g}")
            row.append("" if place is None else check["states"][layer])
        rows.append(row)
    return text_table(header, rows)


def cost_sentences(results: Mapping[str, Any]) -> list[str]:
    """What the last check says about cost and constraints, in sentences."""
    if not results["checks"]:
        return ["not measured (--no-check)"]
    check, steps = results["checks"][-1], results["steps"]["pilot"]
    if check["failed"] is not None:
        return [f"not measured: {check['failed']}"]
    return [_time(results["cost"]), *_prices(results["cost"], steps), *_constraints(check["states"])]


def _time(cost: Mapping[str, Any]) -> str:
    ratio = cost["step_time_ratio"]
    if ratio is None:
        return "time: not measured"
    where = (
        "one after the other in one process" if cost["one_process"] else "at different times: run it anew to compare"
    )
    told = f"time: a step takes {ratio:.2f} times as long as without constraints (medians, {where})"
    if ratio < QUICKER_THAN_PLAIN:
        return f"{told}; it cannot be quicker, so the machine had other work, and this is no measure of the cost"
    return f"{told}; the whole training about {_duration(cost['training_seconds'])} here, without evaluation"


def _prices(cost: Mapping[str, Any], steps: int) -> list[str]:
    low, high = cost["loss_difference_ci95"]
    sentences = [
        f"loss of the last layer after {steps} steps: {cost['loss_difference']:+.4f} [{low:+.4f}, {high:+.4f}]"
    ]
    price, metric = cost["price"], cost["metric"]
    size = f"{'costs' if price > 0 else 'gains'} {price_text(abs(price), metric)}" if price else "costs nothing"
    interval = ""
    if cost["value_difference_ci95"] is not None:
        low, high = (100 * end for end in cost["value_difference_ci95"])
        interval = f", 95 % interval of the difference [{low:+.1f}, {high:+.1f}] points"
    return [
        *sentences,
        f"{metric} after {steps} steps: it {size} ({cost['value_without']:.4g} without, {cost['value']:.4g} with"
        f"{interval})",
    ]


def _constraints(states: Mapping[int, str]) -> list[str]:
    told = {
        "met": "met at",
        "moving": "not met yet, but moving, at",
        "stuck": "stuck, with multipliers that only grow, at",
        "waiting": "not met, in a training too short to push them hard, at",
    }
    parts = []
    for state, words in told.items():
        layers = [layer for layer, each in states.items() if each == state]
        if layers:
            parts.append(f"{words} {layers_in_words(layers)}")
    return [f"constraints: {'; '.join(parts)}"]


def _duration(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> _duration(42), _duration(500), _duration(9000)
        ('42 s', '8 min', '2.5 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
