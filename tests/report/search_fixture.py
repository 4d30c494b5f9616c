"""A search as `layerdescent search` stores it, with made-up trials put through the real rule."""

from itertools import product
from typing import Any

from layerdescent.search import Candidate, choose_best, choose_under_constraints
from layerdescent.search.rule import price_paid, rule_in_words

GRIDS: dict[str, dict[str, list[Any]]] = {
    "erm": {"learning_rate": [5e-5, 1e-4, 2e-4, 4e-4], "num_train_epochs": [1, 2], "weight_decay": [0.01, 0.1]},
    "descent": {"alpha": [0.02, 0.05, 0.1, 0.2], "dual_lr": [0.1, 1], "resilience": [None, 10]},
    "deep-supervision": {"learning_rate": [5e-5, 1e-4, 2e-4, 4e-4], "weight_decay": [0.0, 0.01, 0.1, 0.3]},
}


def search_results(
    grids: dict[str, dict[str, list[Any]]] = GRIDS, seeds: tuple[int, ...] = (0,), metric: str = "accuracy"
) -> dict[str, Any]:
    """Settings and what they came to; the alpha of 0.2 is feasible only with resilience, and one trial failed."""
    price, trials, candidates = 0.003 if metric == "accuracy" else 0.01, [], {}
    for arm, fields in grids.items():
        rows = []
        for place, values in enumerate(product(*fields.values())):
            settings = dict(zip(fields, values, strict=True))
            row = _candidate(settings, arm, place, metric)
            rows.append(row)
            trials += [_trial(arm, settings, row, seed) for seed in seeds]
        candidates[arm] = rows
    best = choose_best(candidates["erm"], metric)
    assert best.place is not None
    value = candidates["erm"][best.place].value
    assert value is not None
    choices = {
        arm: choose_under_constraints(rows, value, price, metric)
        if "alpha" in grids[arm]
        else choose_best(rows, metric)
        for arm, rows in candidates.items()
    }
    return {
        "experiment": "imdb-minilm",
        "title": "MiniLM on IMDb reviews",
        "command": "layerdescent search imdb-minilm --jobs 2",
        "recipe": {"name": "imdb-minilm", "search": {"price": price, "arms": grids}},
        "environment": {"layerdescent": "0.1.0", "torch": "2.9.1", "machine": "a test", "cores": 2},
        "metric": metric,
        "baseline": "erm",
        "price": price,
        "seeds": list(seeds),
        "unequal": False,
        "rule": rule_in_words(metric, price, "erm"),
        "fields": grids,
        "choices": [
            {
                "arm": arm,
                "settings": dict(rows[choice.place].settings) if choice.place is not None else None,
                "value": rows[choice.place].value if choice.place is not None else None,
                "price": None,
                "reason": choice.reason,
                "of": len(rows),
            }
            for (arm, rows), choice in zip(candidates.items(), choices.values(), strict=True)
        ],
        "candidates": [
            {
                "arm": arm,
                "settings": dict(row.settings),
                "value": row.value,
                "loss": row.loss,
                "alpha": row.alpha,
                "max_violation": row.max_violation,
                "feasible": row.feasible,
                "price": None if row.value is None else price_paid(row.value, value, metric),
                "chosen": choices[arm].place == place,
                "finalist": place in choices[arm].finalists,
            }
            for arm, rows in candidates.items()
            for place, row in enumerate(rows)
        ],
        "trials": trials,
    }


def _candidate(settings: dict[str, Any], arm: str, place: int, metric: str) -> Candidate:
    if arm == "deep-supervision" and place == 3:
        return Candidate(settings=settings, value=None, loss=None)
    alpha = settings.get("alpha")
    wobble = (7 * place % 5) / 1000
    cost = 0.001 + 0.4 * alpha**2 + 0.002 * settings.get("dual_lr", 0) if alpha is not None else wobble
    value = 0.845 - cost - wobble / 4
    soft = settings.get("resilience", 10) is not None
    return Candidate(
        settings=settings,
        value=value if metric == "accuracy" else 0.036 * (1 + cost),
        loss=0.38 + 2 * cost,
        alpha=alpha,
        max_violation=None if alpha is None else (alpha - 0.12 if soft else alpha - 0.06),
        feasible=None if alpha is None else alpha < (0.15 if not soft else 0.3),
    )


def _trial(arm: str, settings: dict[str, Any], row: Candidate, seed: int) -> dict[str, Any]:
    failed, constrained = row.value is None, row.alpha is not None
    name = arm + "".join(f"@{field}={value}" for field, value in settings.items())
    return {
        "arm": arm,
        "name": f"{name}-seed{seed}",
        "seed": seed,
        "settings": settings,
        "alpha": [row.alpha] * 6 if constrained else None,
        "value": row.value,
        "loss": row.loss,
        "layer_losses": None if failed else [0.69 - 0.05 * layer for layer in range(6)] + [row.loss],
        "max_violation": row.max_violation,
        "feasible": row.feasible,
        "multipliers": [0.0, 0.0, 1.2, 3.4, 0.0, 0.1] if constrained else None,
        "lambda_share": [0.1, 0.2, 0.9, 0.95, 0.3, 0.4] if constrained else None,
        "steps": 200,
        "best_checkpoint_step": 200,
        "seconds": 61.0 + seed,
        "failed": "the loss of layer 6 is nan at optimiser step 12" if failed else None,
    }
