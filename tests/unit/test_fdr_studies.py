"""The studies of the FDR paper: values of its model and equations; the peer of a run."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.measure.measurement import check_point
from weft.measure.settings.options import settings_from
from weft.measure.tests.transfer import TRANSFER
from weft.studies import Study, run_study
from weft.studies.fdr import FDR
from weft.studies.fdr.fdr_model import KI, MI, SERVED, SIZES, TURNAROUND_US, throughput
from weft.studies.fdr.host_settings import EQ2, count_lines
from weft.studies.fdr.outstanding_messages import EQ1
from weft.studies.points import RunContext
from weft.studies.published import read_statements


@pytest.mark.parametrize("study", FDR, ids=lambda study: study.name)
def test_the_model_meets_the_text_or_says_why_not(study: Study) -> None:
    result = run_study(study)
    assert not any(row.unexplained for row in result.rows)
    assert len(result.compared) == len(study.observations)


def test_what_set_the_model_is_no_prediction() -> None:
    assert set(SERVED) <= set(read_statements("fdr"))
    rows = [o for study in FDR for o in study.observations]
    assert sum(not o.predicted for o in rows) == len(SERVED) + 1  # 49 Gb/s stands in two rows


def test_equation_1_equals_what_the_paper_predicts_at_every_size() -> None:
    rows = run_study(EQ1).rows
    assert {row.observation.setting: row.ours for row in rows}["Equation 1, 8 Mi"] == 2
    assert [row.ours for row in rows] == [row.published for row in rows]
    assert len(rows) == len(SIZES) == 12


def test_equation_2_equals_the_printed_one_worked_by_hand() -> None:
    rows = run_study(EQ2).rows
    assert [row.ours for row in rows] == [row.published for row in rows]
    assert len(rows) == 10


def test_the_model_gives_back_the_statements_that_set_it() -> None:
    assert throughput(32 * KI, 1) == pytest.approx(10)
    assert throughput(MI, 4) == pytest.approx(49)
    assert throughput(MI, 5) == pytest.approx(46)
    assert throughput(MI, 5, one_buffer=True) == pytest.approx(49)
    assert pytest.approx(26.21 - 5.35, abs=0.01) == TURNAROUND_US


@pytest.mark.parametrize(("offset", "lines"), [(0, 4), (1, 5), (32, 5), (63, 5), (64, 4)])
def test_an_unaligned_packet_touches_one_cache_line_more(offset: int, lines: int) -> None:
    assert count_lines(offset) == lines


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
