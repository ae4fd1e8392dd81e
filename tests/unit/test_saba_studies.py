"""Figs. 4.3, 4.4 and 4.13 of the Saba thesis: what stated samples give, and whose speedup it is."""

from __future__ import annotations

import numpy as np
import pytest

from weft.records import Provenance, Record, Scalar
from weft.sensitivity.application import PAPER_SHARES
from weft.sensitivity.model import Sample, fit_polynomial, r_squared
from weft.studies import Result, run_study
from weft.studies.saba.model_fits import COMPLETED, FIG4_3, FIG4_4, STATED
from weft.studies.saba.speedup_cases import Size
from weft.studies.saba.speedups import build_fig4_13
from weft.studies.saba.stated_values import (
    WORKLOADS,
    complete_samples,
    find_r_squared,
    find_samples,
)


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    return {study.name: run_study(study) for study in (FIG4_3, FIG4_4)}


def test_every_row_is_within_tolerance_or_has_a_reason(results: dict[str, Result]) -> None:
    rows = [row for result in results.values() for row in result.compared]
    assert len(rows) == 22
    assert not [row.observation.setting for row in rows if row.unexplained]


def test_a_reason_stands_only_where_a_row_of_its_fit_is_outside(results: dict[str, Result]) -> None:
    rows = [row for row in results[FIG4_3.name].rows if row.observation.reason]
    for reason in {row.observation.reason for row in rows}:
        assert any(not row.within for row in rows if row.observation.reason == reason)


def test_r_squared_of_partial_samples_is_not_judged(results: dict[str, Result]) -> None:
    rows = results[FIG4_4.name].compared
    assert {row.system for row in rows if row.judged} == {COMPLETED}
    assert {row.system for row in rows if not row.judged} == {STATED}


def test_r_squared_of_stated_samples_is_that_of_numpy(results: dict[str, Result]) -> None:
    samples = find_samples("LR")
    b, d = (np.array([getattr(s, name) for s in samples]) for name in ("share", "slowdown"))
    (ours,) = [
        row.ours
        for row in results[FIG4_4.name].rows
        if row.observation.setting == "LR, stated samples, degree 1"
    ]
    assert ours == pytest.approx(np.corrcoef(b, d)[0, 1] ** 2, rel=1e-9)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_chosen_samples_keep_the_stated_ones_and_never_rise_with_bandwidth(workload: str) -> None:
    found = {sample.share: sample.slowdown for sample in complete_samples(workload)}
    assert tuple(found) == PAPER_SHARES
    for sample in find_samples(workload):
        assert found[sample.share] == sample.slowdown
    slowdowns = list(found.values())
    assert slowdowns == sorted(slowdowns, reverse=True)
    assert found[0.05] <= 2 * found[0.1]


def test_what_cannot_be_judged_on_the_stated_samples_is_not(results: dict[str, Result]) -> None:
    words = [
        verdict.word
        for result in results.values()
        for claim, verdict in result.judged
        if claim.source == "model"
    ]
    assert words == ["holds", "holds", "not judged", "holds", "not judged"]


def test_published_r_squared_are_as_the_text_has_them() -> None:
    assert find_r_squared("SQL") == {1: 0.63, 3: 0.96}
    assert find_r_squared("LR") == {1: 0.84, 2: 0.94, 3: 0.95}


def test_r_squared_of_what_grows_as_one_over_the_share_does_not_depend_on_how_much() -> None:
    for part in (0.1, 0.9):
        samples = [Sample(share=b, slowdown=1 + part * (1 / b - 1)) for b in PAPER_SHARES]
        found = [r_squared(fit_polynomial(samples, k), samples) for k in (1, 2, 3)]
        assert found == pytest.approx([0.625, 0.843, 0.933], abs=0.001)


def test_speedups_of_fig_4_13_are_those_of_all_jobs_and_of_each_workload() -> None:
    speedups = {"Saba.speedup": 1.7, "Saba.RF.speedup": 3.1, "Saba.LR.speedup": 2.9}
    record = Record(
        kind="simulation",
        name="testbed",
        settings={},
        quantities={name: Scalar(value, "") for name, value in speedups.items()},
        provenance=Provenance(weft_version="1"),
    )
    read = {row.quantity: row.read for row in build_fig4_13(Size()).observations}
    records = {"testbed": record}
    assert read["speedup of all"](records) == 1.7
    assert read["speedup of RF"](records) == 3.1
    assert read["speedup of LR"](records) == 2.9
