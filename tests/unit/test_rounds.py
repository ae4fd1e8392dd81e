"""The rule by which claims are judged on what was measured here: interval, rounds, busy or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from matplotlib.figure import Figure

from weft.measure import bandwidth
from weft.records import Distribution, Histogram, Provenance, Record, Scalar
from weft.studies import NotHere
from weft.studies.ib2016.send_throughput import FIG5
from weft.studies.rounds import (
    CONFIDENCE,
    LEAST_US,
    MEDIAN_US,
    ROUNDS,
    RULE,
    Rounds,
    alike,
    either,
    gains,
    highest,
    in_round,
    in_rounds,
    mib_per_s,
    ratio,
    rounds_of,
    scalar,
    together,
    varied,
    within,
)
from weft.studies.rounds_draw import spread_panel
from weft.studies.study import Result

RATE = scalar("throughput", "b/s", "bandwidth", "throughput")


def rounds(*values: float, lost: float = 0.0) -> Rounds:
    numbers = range(1, len(values) + 1)
    return Rounds(dict(zip(numbers, values, strict=True)), dict.fromkeys(numbers, lost))


def at(median: float, least: float, most: float) -> Rounds:
    return rounds(least, least, median, most, most)


# ---- The interval -----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7])
def test_least_and_most_of_n_rounds_miss_the_median_only_if_all_are_on_one_side(n: int) -> None:
    # Each round is above the true median with probability 1/2: all n above it, or all n below.
    outside = sum(math.comb(n, above) for above in (0, n)) / 2**n if n else 1
    assert rounds(*range(1, n + 1)).confidence == 1 - outside


def test_a_whole_study_has_the_confidence_that_its_note_tells() -> None:
    assert rounds(*[1.0] * ROUNDS).confidence >= CONFIDENCE
    assert "94% confidence" in RULE


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (at(2, 1.9, 2.1), True),
        (at(2, 1.0, 3.0), True),
        (at(2, 0.9, 2.1), None),
        (at(2, 1.9, 3.1), None),
        (at(5, 4, 6), False),
        (at(0.5, 0.4, 0.6), False),
    ],
)
def test_a_ratio_is_surely_inside_surely_outside_or_neither(
    found: Rounds, holds: bool | None
) -> None:
    assert within(found, "a over b", 1, 3).holds is holds


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (at(1.3, 1.1, 1.4), True),
        (at(1.3, 0.9, 1.4), None),
        (at(1.0, 0.9, 1.04), False),
        (at(1.02, 1.01, 1.03), False),  # there, but smaller than the paper's least
        (at(0.8, 0.7, 0.9), False),
    ],
)
def test_a_gain_is_decided_by_the_interval_alone(found: Rounds, holds: bool | None) -> None:
    assert gains(found, 0.05, "a over b").holds is holds


@pytest.mark.parametrize(
    ("found", "holds"),
    [
        (at(1.0, 0.95, 1.05), True),
        (at(1.0, 0.5, 1.05), None),
        (at(0.5, 0.4, 0.6), False),
        (at(1.5, 1.4, 1.6), False),
    ],
)
def test_two_are_alike_if_the_whole_interval_is_near_one(found: Rounds, holds: bool | None) -> None:
    assert alike(found, 0.1, "a over b").holds is holds


def test_fewer_rounds_than_the_confidence_needs_decide_nothing() -> None:
    found = within(rounds(2, 2, 2, 2), "a over b", low=1)
    assert found.holds is None
    assert found.evidence == "a over b: ratio 2 (2–2), of only 4 of 5 rounds"


def test_all_of_several_hold_or_any_of_them() -> None:
    yes, no, open_ = (
        within(found, "x", low=1) for found in (at(1, 1, 1), at(0.5, 0.5, 0.5), at(1, 0.5, 2))
    )
    assert together(yes, yes).holds is True
    assert together(yes, open_).holds is None
    assert together(yes, open_, no).holds is False
    assert either(no, no).holds is False
    assert either(no, open_).holds is None
    assert either(no, open_, yes).holds is True
    assert together(yes, no).evidence == "x: ratio 1 (1–1); x: ratio 0.5 (0.5–0.5)"


# ---- Others on the machine --------------------------------------------------------------------


@pytest.mark.parametrize("judge", [partial(gains, least_gain=0.05), partial(alike, share=0.05)])
def test_on_a_busy_machine_nothing_is_decided_and_the_reason_told(judge: Any) -> None:
    verdict = judge(rounds(2, 2, 2, 2, 2, lost=0.45), what="a over b")
    assert verdict.holds is None
    assert verdict.evidence == "a over b: ratio 2 (2–2), while others took 45% of a processor"


def busy_record(lost_percent: float) -> Record:
    histogram = Histogram()
    histogram.record(5_000_000, 100)
    host = [
        {"fact": "clock", "value": "tsc"},
        {"fact": "time lost to hiccups, %", "value": lost_percent},
    ]
    return Record(
        kind="measurement",
        name="x",
        tables={"host": host},
        quantities={"throughput": Scalar(1e9, "b/s"), "half_rtt": Distribution("ps", histogram)},
        provenance=Provenance(weft_version="0"),
    )


@pytest.mark.parametrize(
    ("reading", "exposed"),
    [(RATE, True), (mib_per_s("bandwidth"), True), (MEDIAN_US, False), (LEAST_US, False)],
    ids=lambda value: getattr(value, "quantity", None),
)
def test_a_throughput_is_doubtful_on_a_busy_machine_and_the_median_of_latencies_is_not(
    reading: Any, exposed: bool
) -> None:
    records = {in_round(case, n): busy_record(30) for case in "ab" for n in range(1, ROUNDS + 1)}
    found = ratio(records, "a", "b", reading)
    assert within(found, "a over b", 0.9, 1.1).holds is (None if exposed else True)


def test_what_is_exposed_makes_a_quotient_so() -> None:
    quotient = rounds(1, 1, 1, 1, 1, lost=0.5) / rounds(1, 1, 1, 1, 1)
    assert within(quotient, "x", low=1).holds is None


def test_a_record_without_host_facts_was_not_disturbed() -> None:
    records = records_of("a", [1, 1, 1, 1, 1])
    assert set(rounds_of(records, "a", RATE).lost.values()) == {0.0}


# ---- Rounds -----------------------------------------------------------------------------------


class _Records(dict[str, Record]):
    def __missing__(self, setting: str) -> Record:
        raise NotHere(f"{setting} failed")


def records_of(case: str, values: Sequence[float | None]) -> _Records:
    return _Records(
        {
            in_round(case, n): Record(
                kind="measurement",
                name="x",
                quantities={"throughput": Scalar(v, "b/s")},
                provenance=Provenance(weft_version="0"),
            )
            for n, v in enumerate(values, 1)
            if v is not None
        }
    )


def test_two_cases_are_compared_round_by_round() -> None:
    # The machine slows by a factor of ten; the ratio does not.
    records = _Records(records_of("a", [20, 10, 4, 2, 2]) | records_of("b", [10, 5, 2, 1, 1]))
    found, alone = ratio(records, "a", "b", RATE), rounds_of(records, "a", RATE)
    assert (found.median, found.least, found.most) == (2, 2, 2)
    assert (alone.median, alone.least, alone.most) == (4, 2, 20)


def test_a_round_that_failed_is_left_out_and_all_of_them_are_the_reason() -> None:
    records = _Records(records_of("a", [20, None, 4, 2, 2]) | records_of("b", [10, 5, None, 1, 1]))
    assert ratio(records, "a", "b", RATE).values == {1: 2, 4: 2, 5: 2}
    with pytest.raises(NotHere, match="c, round 5 failed"):
        rounds_of(records, "c", RATE)


def test_the_highest_of_several_is_that_of_each_round() -> None:
    found = highest([rounds(1, 5, 2), rounds(3, 4, 1, lost=0.3)])
    assert list(found.values.values()) == [3, 5, 2]
    assert set(found.lost.values()) == {0.3}


def test_every_case_is_measured_once_in_each_round_to_and_fro() -> None:
    line = varied("udp", RATE, bandwidth, "size", (8, 64, 1024), over="udp")
    names = [case.name for case in line.cases.values()]
    points = in_rounds(tuple(line.cases.values()))
    there = [in_round(name, 1) for name in names]
    back = [in_round(name, 2) for name in reversed(names)]
    assert names[0] == "udp, 8 B"
    assert [p.setting for p in points[:6]] == there + back
    assert len(points) == ROUNDS * len(names)


# ---- Drawing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("log_y", [False, True])
def test_a_round_that_others_spoiled_leaves_the_axis_to_the_medians(log_y: bool) -> None:
    spreads = {
        "udp": [(8.0, lambda _: rounds(9, 10, 10, 11, 5000)), (64.0, lambda _: at(12, 11, 13))]
    }
    drawn = Figure().subplots()
    result = Result(study=FIG5, records={}, rows=(), verdicts=(), missing={}, packet_hops=0)
    spread_panel(spreads, "payload (B)", "latency (us)", log_y=log_y)(drawn, result)
    low, high = drawn.get_ylim()
    assert low < 9
    assert 13 < high < 200
