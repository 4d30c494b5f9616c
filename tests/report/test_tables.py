"""Tables as text: every number in its place, nothing where nothing was measured."""

from layerdescent.report.results import read_results
from layerdescent.report.tables import Table, shift_paired_table, shift_table
from tests.report.fixture import CLEAN, full_results, minimal_results


def texts(table: Table | None) -> list[list[str]]:
    assert table is not None
    return [table.header, *([cell.text for cell in row] for row in table.rows)]


def test_other_data_stands_beside_the_test_part() -> None:
    header, own, first, second = texts(shift_table(read_results(full_results(("erm", "descent")))))
    assert header == ["data", "erm", "descent", "trivial predictor"]
    assert [row[0] for row in (own, first, second)] == [
        "the test part",
        "rotten-tomatoes (872 rows)",
        "sst2 (872 rows)",
    ]
    low, high = 100 * (CLEAN["erm"] - 0.05), 100 * (CLEAN["erm"] - 0.05 + 0.004)
    assert second[1] == f"{(low + high) / 2:.1f} ({low:.1f}–{high:.1f})"
    assert (own[-1], second[-1]) == ("50.2 (majority)", "50.9 (majority)")


def test_differences_on_other_data_are_judged_by_their_intervals() -> None:
    assert texts(shift_paired_table(read_results(full_results(("erm", "descent"))))) == [
        ["data", "descent − erm", "in words"],
        ["rotten-tomatoes", "+2.0 (+1.0 to +4.0)", "▲ better"],
        ["sst2", "+2.0 (−4.0 to +4.0)", "unclear"],
    ]


def test_an_arm_that_was_not_measured_there_has_a_dash() -> None:
    given = full_results(("erm", "descent", "noise"), 1)
    shift = given["shift"]
    shift["runs"] = [run for run in shift["runs"] if (run["arm"], run["data"]) != ("descent", "sst2")]
    shift["paired"] = [row for row in shift["paired"] if (row["arm"], row["data"]) != ("descent", "sst2")]
    results = read_results(given)
    assert texts(shift_table(results))[-1][2] == "–"
    assert texts(shift_paired_table(results))[-1][1:3] == ["–", ""]


def test_there_is_no_table_of_nothing() -> None:
    results = read_results(minimal_results())
    assert shift_table(results) is None
    assert shift_paired_table(results) is None
