"""The InfiniBand benchmarks of 2016: rows beside published values, claims, figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.model.fit import ErrorSummary
from weft.plot import to_svg
from weft.records import Series
from weft.studies.ib2016 import IB2016
from weft.studies.ib2016.send import TABLE1
from weft.studies.published import find_statement, find_table
from weft.studies.report import study_figures, study_table
from weft.studies.study import Result, run_study
from weft.studies.table_curves import OURS, row_errors

BY_NAME = {study.name: study for study in IB2016}
TABLES = [name for name in BY_NAME if "table" in name]


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {name: run_study(study) for name, study in BY_NAME.items()}


def verdicts(result: Result) -> dict[str, bool | None]:
    return {claim.statement: verdict.holds for claim, verdict in result.judged}


def test_every_table_and_every_figure_with_a_statement_is_a_study() -> None:
    tables, figures = range(1, 9), range(5, 11)
    assert list(BY_NAME) == [
        *(f"ib2016-table{n}" for n in tables),
        *(f"ib2016-fig{n}" for n in figures),
    ]


# ---- Rows -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_every_published_cell_of_a_table_is_a_row(results, name: str) -> None:
    table = find_table(name)
    cells = np.concatenate([table.column(column) for column in table.columns[1:]])
    rows = results[name].compared
    assert sorted(row.published for row in rows) == sorted(cells[~np.isnan(cells)])


def test_link_rates_are_those_of_table_1_to_its_last_digit(results) -> None:
    for row in results[TABLE1.name].rows:
        assert abs(row.ours - row.published) < 0.01


def test_latency_of_tables_2_to_4_is_met_as_the_issue_asks(results) -> None:
    rows = [row for n in (2, 3, 4) for row in results[f"ib2016-table{n}"].compared]
    error = ErrorSummary.of([row.ratio - 1 for row in rows])
    assert len(rows) == 88 + 88 + 44
    assert error.median <= 0.05
    assert error.p90 <= 0.12


@pytest.mark.parametrize("name", ["ib2016-table6", "ib2016-table8"])
def test_latency_over_ipoib_is_met(results, name: str) -> None:
    error = row_errors(results[name])
    assert error.median <= 0.05
    assert error.p90 <= 0.12


def test_throughput_of_udp_in_datagram_mode_is_met(results) -> None:
    error = row_errors(results["ib2016-table5"])
    assert error.median <= 0.10
    assert error.p90 <= 0.20


def test_datagram_mode_is_ahead_of_connected_mode(results) -> None:
    assert all(verdicts(results["ib2016-table7"]).values())


@pytest.mark.parametrize("name", TABLES[1:])
def test_a_model_tells_its_error_and_that_of_rows_left_out(results, name: str) -> None:
    told = " ".join(results[name].remarks)
    assert "median" in told
    assert "p90" in told
    assert "worst" in told
    assert "left out of the fit" in told


def test_stated_throughput_follows_from_the_latency_tables(results) -> None:
    by_model = [r for r in results["ib2016-fig5"].compared if r.observation.source == "model"]
    assert [row.published for row in by_model] == [
        find_statement("ib2016", f"{transport}-throughput-32Ki").value for transport in ("rc", "uc")
    ]
    assert all(row.within for row in by_model)


def test_rows_of_a_fit_are_not_counted_as_predictions(results) -> None:
    roles = {
        name: [row.observation.role for row in result.rows] for name, result in results.items()
    }
    assert roles["ib2016-table1"] == ["check"] * 40
    assert roles["ib2016-fig5"] == ["prediction"] * 4
    assert roles["ib2016-fig7"] == roles["ib2016-fig9"] == ["repeat"] * 2
    assert set(roles["ib2016-table2"]) == {"fit"}


def test_large_values_are_printed_as_numbers(results) -> None:
    assert "e+0" not in study_table(results["ib2016-table2"]).partition("claim")[0]


def test_nothing_is_outside_its_tolerance_without_a_reason(results) -> None:
    assert not [row for result in results.values() for row in result.rows if row.unexplained]


# ---- Claims -----------------------------------------------------------------------------------


def test_throughput_reaches_the_data_rate_of_each_signal_rate(results) -> None:
    for name in ("ib2016-fig7", "ib2016-fig9"):
        assert all(verdicts(results[name]).values())


@pytest.mark.parametrize("name", ["ib2016-fig6", "ib2016-fig8", "ib2016-fig10"])
def test_the_fall_past_8_mib_is_that_of_a_cache_which_the_simulator_has_not(
    results, name: str
) -> None:
    falls = [v.word for c, v in results[name].judged if "8 MiB" in c.statement]
    assert falls == ["not modelled"]
    assert "46.9" in " ".join(results[name].remarks)  # Gb/s by the paper's own latency


def test_uc_is_like_rc_and_modes_of_ipoib_are_alike_when_small(results) -> None:
    assert verdicts(results["ib2016-table3"]) == {"UC is very similar to RC.": True}
    assert all(verdicts(results["ib2016-table8"]).values())


def test_modes_of_ipoib_are_alike_only_if_they_are_for_udp_and_for_tcp(results) -> None:
    table8 = results["ib2016-table8"]
    setting = "TCP (Hpcbench), connected (Table 8)"
    record = table8.records[setting]
    series = record.quantities[OURS]
    assert isinstance(series, Series)
    slow = replace(series, y=tuple(2 * y for y in series.y))
    changed = replace(record, quantities={**record.quantities, OURS: slow})
    alike, _ = table8.study.claims
    assert alike.judge(table8.records).holds
    assert not alike.judge({**table8.records, setting: changed}).holds


def test_the_header_of_ud_does_not_explain_its_latency(results) -> None:
    said = verdicts(results["ib2016-table4"])
    assert said["The cause is UD's further header, DETH."] is False


# ---- Text and figures -------------------------------------------------------------------------


def test_settings_of_a_study_are_told_apart() -> None:
    for study in IB2016:
        settings = [point.setting for point in study.points]
        assert len(settings) == len(set(settings)), study.name


@pytest.mark.parametrize("name", list(BY_NAME))
def test_a_study_can_be_printed_and_drawn(results, name: str) -> None:
    assert BY_NAME[name].title in study_table(results[name])
    for number, figure in enumerate(study_figures(results[name])):
        assert to_svg(figure, salt=str(number), title="t").startswith(("<svg", "<?xml"))
