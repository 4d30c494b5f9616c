"""Plain-text tables for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; the first is aligned to the left, the others to the right.

    Example:
        >>> print(text_table(["arm", "accuracy"], [["erm", "0.812"], ["descent", "0.815"]]))
        arm      accuracy
        erm         0.812
        descent     0.815
    """
    lines = [list(header), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def comparison_table(results: Mapping[str, Any]) -> str:
    """A comparison at a glance: loss per layer, what holds, the metric under noise, and the paired differences."""
    arms = list(results["arms"])
    runs = {arm: [run for run in results["runs"] if run["arm"] == arm] for arm in arms}
    layers = results["runs"][0]["layers"]
    losses = [
        [
            f"test loss, layer {layer}",
            *(_mean([run["layer_losses"]["test"][layer] for run in runs[arm]]) for arm in arms),
        ]
        for layer in layers
    ]
    words = [
        [word, *(_votes([run["verdict"][word] for run in runs[arm]]) for arm in arms)]
        for word in ("monotone", "feasible", "shown", "calibrated")
    ]
    noise = []
    for at, row in enumerate(runs[arms[0]][0]["noise"]):
        noise.append(
            [
                f"{results['metric']}, {condition(row)}",
                *(_mean([run["noise"][at]["value"] for run in runs[arm]]) for arm in arms),
            ]
        )
    shift = results.get("shift") or {"runs": [], "paired": []}
    elsewhere = [
        [
            f"{results['metric']} on {name}",
            *(
                _mean([run["value"] for run in shift["runs"] if (run["arm"], run["data"]) == (arm, name)])
                for arm in arms
            ),
        ]
        for name in dict.fromkeys(run["data"] for run in shift["runs"])
    ]
    tables = [text_table(["", *arms], [*losses, *words, *noise, *elsewhere])]
    if results["paired"]:
        paired = [[f"{row['arm']} - {row['against']}, {condition(row)}", difference(row)] for row in results["paired"]]
        paired += [[f"{row['arm']} - {row['against']}, {row['data']}", difference(row)] for row in shift["paired"]]
        tables.append(text_table(["paired difference", "with 95 % interval"], paired))
    return "\n\n".join(tables)


def profile_table(profile: Mapping[str, Any]) -> str:
    """One line a layer: loss with its interval, accuracy, loss after calibration, inflation, violation."""
    violations = dict(zip(profile["nodes"][1:], profile["violations"], strict=True))
    inflation = [profile["initial_inflation"], *profile["inflation"]]
    rows = []
    for layer in profile["layers"]:
        low, high = profile["layer_losses_ci95"][layer]
        rows.append(
            [
                str(layer),
                f"{profile['layer_losses'][layer]:.4f} [{low:.4f}, {high:.4f}]",
                _cell(profile["accuracies"], layer, ".3f"),
                _cell(profile["calibrated_losses"], layer, ".4f"),
                f"{inflation[layer]:+.4f}",
                f"{violations[layer]:+.4f}" if layer in violations else "",
            ]
        )
    return text_table(["layer", "loss (95 %)", "accuracy", "calibrated", "inflation", "violation"], rows)


def sweep_table(sweep: Mapping[str, Any]) -> str:
    """One line a noise level: every model's value, and the paired differences below."""
    names = [run["arm"] for run in sweep["runs"]]
    rows = []
    for at, row in enumerate(sweep["runs"][0]["noise"]):
        rows.append([condition(row), *(f"{run['noise'][at]['value']:.3f}" for run in sweep["runs"])])
    # Paths are too long for columns: they are numbered, and named below.
    short = [f"({number})" for number in range(1, len(names) + 1)]
    legend = "\n".join(f"{number} {name}" for number, name in zip(short, names, strict=True))
    parts = [text_table([sweep["metric"], *short], rows), legend]
    if sweep["paired"]:
        number_of = dict(zip(names, short, strict=True))
        paired = [
            [f"{number_of[row['arm']]} - {number_of[row['against']]}, {condition(row)}", difference(row)]
            for row in sweep["paired"]
        ]
        parts.append(text_table(["paired difference", "with 95 % interval"], paired))
    return "\n\n".join([*parts, *sweep["sentences"]])


def search_table(search: Mapping[str, Any]) -> str:
    """One line a combination of settings, the chosen ones starred, and below them why they were chosen."""
    rows = [
        [
            f"{'*' if row['chosen'] else ' '} {row['arm']}: {settings_line(row['settings'])}",
            *(_number(row[key], form) for key, form in (("value", ".4f"), ("loss", ".4f"), ("max_violation", "+.4f"))),
            {None: "", True: "yes", False: "no"}[row["feasible"]],
            _number(row["price"], "+.4f"),
        ]
        for row in search["candidates"]
    ]
    header = ["  settings", search["metric"], "loss, last layer", "largest violation", "feasible", "price"]
    reasons = [f"* {choice['arm']}: {choice['reason']}" for choice in search["choices"]]
    return "\n".join([text_table(header, rows), "", "all on clean validation data", *reasons])


def settings_line(settings: Mapping[str, Any]) -> str:
    """Settings as `name value` pairs.

    Example:
        >>> settings_line({"dual_lr": 0.1, "resilience": None})
        'dual_lr 0.1, resilience none'
    """
    return ", ".join(f"{name} {plain(value)}" for name, value in settings.items())


def plain(value: Any) -> str:
    """A setting in words.

    Example:
        >>> plain({"kind": "linear", "last": 0.1}), plain([1, None]), plain(True)
        ('{kind: linear, last: 0.1}', '[1, none]', 'yes')
    """
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list | tuple):
        return "[" + ", ".join(plain(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {plain(item)}" for name, item in value.items()) + "}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value + 0.0, form)


def condition(row: Mapping[str, Any]) -> str:
    """The noise of a row in words.

    Example:
        >>> condition({"kind": "gaussian", "gamma": 1.5, "share": None})
        'gaussian 1.5'
        >>> condition({"kind": "discrete", "gamma": 3.1, "share": 0.25})
        'discrete 25 %'
    """
    if row["kind"] == "none":
        return "no noise"
    return f"{row['kind']} {100 * row['share']:g} %" if row["share"] is not None else f"{row['kind']} {row['gamma']:g}"


def difference(row: Mapping[str, Any]) -> str:
    """A paired difference with its interval."""
    low, high = row["ci95"]
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*(round(value, 3) + 0.0 for value in (row["difference"], low, high)))


def _cell(values: Sequence[float] | None, at: int, form: str) -> str:
    return "" if values is None else format(values[at], form)


def _mean(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.3f}"


def _votes(values: Sequence[bool | None]) -> str:
    """One word for one seed; how many of them for several."""
    known = [value for value in values if value is not None]
    if not known:
        return "not checked"
    return ("yes" if known[0] else "no") if len(known) == 1 else f"{sum(known)} of {len(known)}"
