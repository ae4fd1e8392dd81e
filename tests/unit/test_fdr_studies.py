"""The studies of the FDR paper: values of its model and equations; the peer of a run."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.measure.measurement import check_point
from weft.measure.settings.options import settings_from
from weft.measure.tests.transfer import TRANSFER
from weft.records import Series
from weft.studies import Result, Study, run_study
from weft.studies.fdr import FDR
from weft.studies.fdr.fdr_studies import (
    KI,
    MI,
    OURS,
    SERVED,
    SIZES,
    TURNAROUND_US,
    count_lines,
    throughput,
)
from weft.studies.points import RunContext
from weft.studies.published import read_statements


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {study.name: run_study(study) for study in FDR}


@pytest.mark.parametrize("study", FDR, ids=lambda study: study.name)
def test_the_model_meets_the_text_or_says_why_not(results: dict[str, Result], study: Study) -> None:
    assert not any(row.unexplained for row in results[study.name].rows)


def test_what_set_the_model_is_no_prediction() -> None:
    assert set(SERVED) <= set(read_statements("fdr"))
    rows = [o for study in FDR for o in study.observations]
    assert sum(o.role == "fit" for o in rows) == len(SERVED) + 1  # 49 Gb/s stands in two rows


# Equation 1 worked by hand: B by size.
BEST_B = {32 * KI: 96, 64 * KI: 48, 128 * KI: 24, 256 * KI: 16, 512 * KI: 8, MI: 4}


def test_equation_1_equals_the_printed_one_worked_by_hand(results: dict[str, Result]) -> None:
    rows = results["fdr-eq1"].rows
    assert [row.ours for row in rows] == [BEST_B.get(size, 2) for size in SIZES]
    stated = {row.observation.setting: row.published for row in results["fdr-eq1"].compared}
    assert stated == {"Equation 1, 8 Mi": 2}  # the one B that the text gives


def test_equation_2_equals_the_printed_one_worked_by_hand(results: dict[str, Result]) -> None:
    periods = [row.ours for row in results["fdr-eq2"].rows if row.observation.quantity == "S"]
    # 32 and 64 Ki; 128 Ki to 64 Mi; a queue of 32 less 24; of 16 less 16, which is 0: 1 is ours.
    assert periods == [1, 1, 64, 64, 64, 64, 64, 64, 8, 1]
    assert "is ours" in " ".join(results["fdr-eq2"].remarks)


def test_more_than_is_a_bound_and_is_missed_where_a_mechanism_is(
    results: dict[str, Result],
) -> None:
    rows = [row for result in results.values() for row in result.compared]
    bounds = {row.published: row for row in rows if row.observation.bound == ">"}
    assert set(bounds) == {45.0, 50.0}
    assert bounds[45.0].within
    assert not bounds[50.0].within
    assert "not > 50" in " ".join(results["fdr-eq2"].remarks)


def test_the_simulated_switch_makes_nearly_no_difference(results: dict[str, Result]) -> None:
    (verdict,) = results["fdr-switch"].verdicts
    assert verdict.holds
    rates = [
        results["fdr-switch"].records[f"{path}, 1 Mi, B = 1"] for path in ("switch", "back to back")
    ]
    through, direct = (record.quantities["writes.goodput"].value for record in rates)
    assert 0.97 * direct < through < direct  # the switch's time is added to each message


def test_the_model_gives_back_the_statements_that_set_it() -> None:
    assert throughput(32 * KI, 1) == pytest.approx(10)
    assert throughput(MI, 4) == pytest.approx(49)
    assert throughput(MI, 5) == pytest.approx(46)
    assert throughput(MI, 5, one_buffer=True) == pytest.approx(49)
    assert pytest.approx(26.21 - 5.35, abs=0.01) == TURNAROUND_US


@pytest.mark.parametrize(("offset", "lines"), [(0, 4), (1, 5), (32, 5), (63, 5), (64, 4)])
def test_an_unaligned_packet_touches_one_cache_line_more(offset: int, lines: int) -> None:
    assert count_lines(offset) == lines


def test_the_models_lines_are_over_powers_of_two_outstanding(results: dict[str, Result]) -> None:
    records = results["fdr-outstanding"].records
    for size in ("32 Ki", "512 Ki", "8 Mi"):
        line = records[size].quantities[OURS]
        assert isinstance(line, Series)
        assert list(line.x) == [1, 2, 4, 8, 16, 32]


def test_a_peer_that_was_lost_is_not_lost_to_the_points_after() -> None:
    with RunContext() as context:
        first = context.peer
        assert context.peer is first
        first._lose("killed")
        assert context.peer is not first
        context.peer.check()


def test_a_device_need_not_be_named_where_a_transport_has_some() -> None:
    over = settings_from(TRANSFER.settings, {"over": "verbs"}).route
    assert over.has("rxe0")
    assert settings_from(TRANSFER.settings, {"over": "verbs:rxe0"}).route.has("rxe0")
    assert not settings_from(TRANSFER.settings, {"over": "verbs:rxe1"}).route.has("rxe0")
    with pytest.raises(InputError, match="not available"):
        check_point(TRANSFER, settings_from(TRANSFER.settings, {"over": "verbs:none"}))
