"""The rule by which claims are judged on measured rounds: interval, rounds, busy or not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest

from weft.records import Distribution, Histogram, Provenance, Record, Scalar
from weft.studies import Unavailable, Verdict
from weft.studies.experiment import (
    CONFIDENCE,
    READINGS,
    ROUNDS,
    RULE,
    Reading,
    Rounds,
    all_of,
    any_of,
    judge_gain,
    judge_range,
    read_rounds,
    round_name,
)

RATE = READINGS["throughput"]


def rounds(*values: float, lost: float = 0.0) -> Rounds:
    numbers = range(1, len(values) + 1)
    return Rounds(dict(zip(numbers, values, strict=True)), dict.fromkeys(numbers, lost))


def at(median: float, least: float, most: float) -> Rounds:
    return rounds(least, least, median, most, most)


def ratio(records: Mapping[str, Record], reading: Reading) -> Rounds:
    return read_rounds(records, "a", reading) / read_rounds(records, "b", reading)


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
def test_a_ratio_is_surely_inside_surely_outside_or_nany_of(
    found: Rounds, holds: bool | None
) -> None:
    assert judge_range(found, "a over b", 1, 3).holds is holds


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
    assert judge_gain(found, "a over b", 0.05).holds is holds


def test_fewer_rounds_than_the_confidence_needs_decide_nothing() -> None:
    found = judge_range(rounds(2, 2, 2, 2), "a over b", low=1)
    assert found.holds is None
    assert found.evidence == "a over b: ratio 2 (2–2), of only 4 of 5 rounds"


def test_all_of_several_hold_or_any_of_them() -> None:
    yes, no, open_ = (
        judge_range(found, "x", low=1) for found in (at(1, 1, 1), at(0.5, 0.5, 0.5), at(1, 0.5, 2))
    )
    assert all_of(yes, yes).holds is True
    assert all_of(yes, open_).holds is None
    assert all_of(yes, open_, no).holds is False
    assert any_of(no, no).holds is False
    assert any_of(no, open_).holds is None
    assert any_of(no, open_, yes).holds is True
    assert all_of(yes, no).evidence == "x: ratio 1 (1–1); x: ratio 0.5 (0.5–0.5)"


# ---- Others on the machine --------------------------------------------------------------------


@pytest.mark.parametrize(
    "judge",
    [
        lambda found: judge_gain(found, "a over b", 0.05),
        lambda found: judge_range(found, "a over b", 1),
    ],
)
def test_on_a_busy_machine_nothing_is_decided_and_the_reason_told(
    judge: Callable[[Rounds], Verdict],
) -> None:
    verdict = judge(rounds(2, 2, 2, 2, 2, lost=0.45))
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
    [(RATE, True), (READINGS["latency"], False), (READINGS["least latency"], False)],
    ids=lambda value: getattr(value, "quantity", None),
)
def test_a_throughput_is_doubtful_on_a_busy_machine_and_the_median_of_latencies_is_not(
    reading: Reading, exposed: bool
) -> None:
    records = {round_name(case, n): busy_record(30) for case in "ab" for n in range(1, ROUNDS + 1)}
    found = ratio(records, reading)
    assert judge_range(found, "a over b", 0.9, 1.1).holds is (None if exposed else True)


def test_what_is_exposed_makes_a_quotient_so() -> None:
    quotient = rounds(1, 1, 1, 1, 1, lost=0.5) / rounds(1, 1, 1, 1, 1)
    assert judge_range(quotient, "x", low=1).holds is None


def test_a_record_without_host_facts_was_not_disturbed() -> None:
    records = records_of("a", [1, 1, 1, 1, 1])
    assert set(read_rounds(records, "a", RATE).lost.values()) == {0.0}


# ---- Rounds -----------------------------------------------------------------------------------


class _Records(dict[str, Record]):
    def __missing__(self, setting: str) -> Record:
        raise Unavailable(f"{setting} failed")


def records_of(case: str, values: Sequence[float | None]) -> _Records:
    return _Records(
        {
            round_name(case, n): Record(
                kind="measurement",
                name="x",
                quantities={"throughput": Scalar(v * 1e9, "b/s")},
                provenance=Provenance(weft_version="0"),
            )
            for n, v in enumerate(values, 1)
            if v is not None
        }
    )


def test_two_cases_are_compared_round_by_round() -> None:
    # The machine slows by a factor of ten; the ratio does not.
    records = _Records(records_of("a", [20, 10, 4, 2, 2]) | records_of("b", [10, 5, 2, 1, 1]))
    found, alone = ratio(records, RATE), read_rounds(records, "a", RATE)
    assert (found.median, found.least, found.most) == (2, 2, 2)
    assert (alone.median, alone.least, alone.most) == (4, 2, 20)


def test_a_round_that_failed_is_left_out_and_all_of_them_are_the_reason() -> None:
    records = _Records(records_of("a", [20, None, 4, 2, 2]) | records_of("b", [10, 5, None, 1, 1]))
    assert ratio(records, RATE).values == {1: 2, 4: 2, 5: 2}
    with pytest.raises(Unavailable, match="c, round 5 failed"):
        read_rounds(records, "c", RATE)


def test_a_busy_machine_is_told_by_the_median_of_the_rounds_and_above_a_fifth() -> None:
    ratio = Rounds(dict.fromkeys(range(1, 6), 2.0), {1: 0.9, 2: 0.9, 3: 0.2, 4: 0.0, 5: 0.0})
    assert judge_range(ratio, "x", low=1).holds is True
