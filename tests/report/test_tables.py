"""Tables as text: every number in its place, nothing where nothing was measured."""

from layerdescent.report.results import read_results
from layerdescent.report.summary import clipped
from layerdescent.report.tables import (
    CLIPPED,
    Table,
    cost_table,
    frame_paired_table,
    frame_tables,
    layer_table,
    paired_table,
    shift_paired_table,
    shift_table,
    value_table,
)
from tests.report.fixture import CLEAN, full_results, minimal_results, video_results


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


def test_clipped_values_have_tables_of_their_own() -> None:
    results = read_results(video_results(1))
    inside = clipped(results)
    assert inside is not None
    raw, clip = texts(value_table(results)), texts(value_table(inside, CLIPPED))
    assert [row[0] for row in raw] == [row[0] for row in clip]
    at = [row[0] for row in raw].index("gaussian, γ = 1.5")
    assert raw[at][1:] == ["0.8000", "0.6000", "0.1000", "0.0600 (patch mean)"]
    assert clip[at][1:] == ["0.4000", "0.3600", "0.0900", "0.0540 (patch mean)"]
    raw, clip = texts(paired_table(results)), texts(paired_table(inside, CLIPPED))
    at = [row[0] for row in raw].index("gaussian, γ = 1.5")
    assert raw[at][1:3] == ["−0.2000 (−0.2100 to −0.1900)", "▲ better"]
    assert clip[at][1:3] == ["−0.0400 (−0.0900 to +0.0100)", "unclear"]
    assert clipped(read_results(full_results())) is None


def test_layers_of_denoisers_have_their_rmse() -> None:
    header, *rows = texts(layer_table(read_results(video_results(1)), "erm"))
    assert header[:3] == ["layer", "loss", "RMSE"]
    assert rows[0][:3] == ["0", "0.04000", "0.2000"]
    assert rows[-1][:3] == ["6", "0.00090", "0.0300"]
    assert "RMSE" not in texts(layer_table(read_results(full_results()), "erm"))[0]


def test_whole_frames_are_told_level_by_level() -> None:
    results = read_results(video_results(2))
    tables = frame_tables(results)
    assert [table.caption for table in tables] == [
        "gaussian, γ = 0.2 (in distribution)",
        "gaussian, γ = 1",
        "gaussian, γ = 1.5",
    ]
    assert texts(tables[1]) == [
        ["", "RMSE", "RMSE, clipped", "PSNR (dB)", "SSIM"],
        ["erm", "0.5000", "0.3000", "10.46", "0.700"],
        ["descent", "0.4000", "0.2800", "11.06", "0.720"],
        ["noise", "0.0700", "0.0700", "23.10", "0.930"],
        ["patch mean", "0.0600", "0.0500", "26.02", "0.950"],
    ]
    header, *rows = texts(frame_paired_table(results))
    assert header[1:3] == ["descent − erm", "in words"]
    assert rows[:3] == [
        ["gaussian, γ = 0.2: RMSE", *["−0.0200 (−0.0300 to −0.0100)", "▲ better"] * 2],
        ["gaussian, γ = 0.2: PSNR (dB)", *["+2.00 (+1.00 to +3.00)", "▲ better"] * 2],
        ["gaussian, γ = 0.2: SSIM", *["−0.020 (−0.030 to −0.010)", "▼ worse"] * 2],
    ]


def test_without_ssim_there_is_no_column_of_it() -> None:
    given = video_results(1)
    for row in [*given["whole_frames"]["runs"], *given["whole_frames"]["trivial"]]:
        row["ssim"] = None
    assert texts(frame_tables(read_results(given))[0])[0] == ["", "RMSE", "RMSE, clipped", "PSNR (dB)"]
    assert frame_tables(read_results(full_results())) == []
    assert frame_paired_table(read_results(full_results())) is None


def test_the_wait_for_data_is_a_share_of_the_whole_step() -> None:
    given = full_results(seeds=1)
    assert len(texts(cost_table(read_results(given)))[0]) == 4
    given["runs"][0] |= {"step_seconds": 0.03, "data_seconds": 0.01, "late_fall": 0.004}
    _, erm, descent, *_ = texts(cost_table(read_results(given)))
    assert erm[-2:] == ["25.0", "0.4"]
    assert descent[-2:] == ["–", "–"]
