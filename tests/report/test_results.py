"""Reading results: what is missing is allowed, what is wrong is named."""

import json
from pathlib import Path
from typing import Any

import pytest

from layerdescent.errors import InputError, RunError
from layerdescent.report.results import read_results
from tests.report.fixture import full_results, minimal_results


def changed(**run_fields: Any) -> dict[str, Any]:
    results = minimal_results()
    results["runs"][0].update(run_fields)
    return results


def test_reads_a_dictionary_a_file_and_a_folder_alike(tmp_path: Path) -> None:
    given = full_results()
    (tmp_path / "results.json").write_text(json.dumps(given), encoding="utf-8")
    expected = read_results(given)
    assert read_results(tmp_path) == read_results(tmp_path / "results.json") == expected
    assert expected.arm_names == ["erm", "descent", "deep-supervision"]


def test_the_baseline_comes_first() -> None:
    results = read_results(full_results(("descent", "erm")))
    assert results.arm_names == ["erm", "descent"]


def test_null_and_not_a_number_are_missing() -> None:
    given = changed(accuracies=None, verdict=None, tightness=float("nan"), inflation=[0.1, float("inf"), None])
    run = read_results(given).runs[0]
    assert run.tightness is None
    assert run.by_layer(run.inflation) == {0: 0.1}
    assert run.verdict.monotone is None


def test_values_of_layers_one_to_last_start_at_the_second_layer() -> None:
    run = read_results(changed(violations={"test": [0.01, -0.2]})).runs[0]
    assert run.by_layer(run.violations["test"]) == {1: 0.01, 2: -0.2}


def test_values_of_a_grid_belong_to_its_nodes() -> None:
    run = read_results(changed(nodes=[0, 2], violations={"test": [-0.2]})).runs[0]
    assert run.by_layer(run.violations["test"]) == {2: -0.2}


def test_history_as_records_equals_history_as_columns() -> None:
    columns = {"step": [1, 2], "multipliers": [[0.0, 0.1], [0.2, 0.3]]}
    records = [{"step": 1, "multipliers": [0.0, 0.1], "loss": 3.0}, {"step": 2, "multipliers": [0.2, 0.3]}]
    assert read_results(changed(history=records)) == read_results(changed(history=columns))


def test_flags_are_sentences_or_carry_one() -> None:
    given = changed(flags=["cliff: late", {"name": "inflated", "layers": [1], "sentence": "layer 1 is inflated"}])
    assert read_results(given).runs[0].flags == ["cliff: late", "layer 1 is inflated"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"layers": "six"}, "runs[0].layers"),
        ({"layers": None}, "runs[0].layers: field required"),
        ({"layer_losses": {"test": [0.7, "much", 0.4]}}, "runs[0].layer_losses.test[1]"),
        ({"layer_losses": {"test": [0.7, 0.4]}}, "layer_losses.test has 2 values for 3 layers"),
        ({"noise": [{"gamma": 1.0}]}, "runs[0].noise[0].kind"),
        ({"history": {"step": [1, 2], "weights": [[0.0]]}}, "weights has 1 rows for 2 steps"),
    ],
)
def test_a_wrong_field_is_named_with_the_file(tmp_path: Path, wrong: dict[str, Any], field: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(json.dumps(changed(**wrong)), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_results(tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert field in message
    assert "\n" not in message


@pytest.mark.parametrize("content", ["[1, 2]", '"text"', '{"experiment": "x"}'])
def test_json_of_another_kind_is_an_input_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"results\.json: ") as caught:
        read_results(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b'{"experiment": "x", "runs": [', b"", b"\xff\xfe\x00"])
def test_a_damaged_file_is_a_run_error_with_its_place(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(RunError, match=r"results\.json: not (JSON \(line 1, column|a text file)") as caught:
        read_results(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_what_writes_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"results\.json: no such results file; `layerdescent compare"):
        read_results(tmp_path)
