"""A result in the terminal."""

from collections.abc import Mapping
from typing import Any

from layerdescent.tables import text_table


def winrate_table(results: Mapping[str, Any]) -> str:
    """Rates with their intervals, and below them what they rest on.

    Args:
        results: What `head_to_head` returns.
    """
    proxy = results["proxy"]
    rate = results["proxy_rate" if proxy else "win_rate"]
    controlled = results["length_controlled"]
    what = "nearer to the reference (proxy)" if proxy else "win rate"
    rows = [[f"{what} of A", *_percent(rate)]]
    if controlled is not None:
        rows.append(["the same at equal length", *_percent(controlled)])
    lines = [
        f"A {results['a']['generator']}: {results['a']['file']}",
        f"B {results['b']['generator']}: {results['b']['file']}",
        "",
        text_table([f"{results['judge']}, {results['n']} prompts", "", "95 % interval"], rows),
        "",
        f"- A better {results['wins']}, tie {results['ties']}, B better {results['losses']}",
    ]
    if controlled is None:
        lines.append("- no rate at equal length: one model's answers are always longer, or all differences are equal")
    lines.append(f"- mean length {results['a']['mean_length']:.0f} and {results['b']['mean_length']:.0f} characters")
    if proxy:
        lines.append(f"- this is {proxy}")
    else:
        lines.append(
            f"- {100 * results['order_inconsistency']:.1f} % of the pairs were judged otherwise when the order was "
            f"reversed; the answer shown first was preferred at {100 * results['first_preferred']:.1f} %"
        )
    if results["no_verdict"]:
        lines.append(f"- {results['no_verdict']} pairs have no verdict and are left out; the same command asks again")
    return "\n".join(lines)


def _percent(rate: Mapping[str, Any]) -> tuple[str, str]:
    low, high = rate["ci95"]
    return f"{100 * rate['value']:.1f} %", f"[{100 * low:.1f}, {100 * high:.1f}]"
