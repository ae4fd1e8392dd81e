"""Recommendations from stored records of an invented fabric whose best setting is known."""

import math
from collections.abc import Mapping

import pytest

from weft.errors import InputError
from weft.records import Plain, Provenance, Record, Scalar
from weft.tune.rules.evidence import Evidence, gather_evidence
from weft.tune.search.from_records import find_nearest_records, tune_records
from weft.tune.search.space import GOALS
from weft.tune.search.tuning_report import (
    BY_RECORDS,
    NOT_CONFIRMED,
    build_stored_record,
    format_stored,
)

THROUGHPUT = GOALS["throughput"]


def speed_Bps(size: int, depth: int, wait: str) -> float:
    """A thread busy 1 us with each message and 0.1 ns with each byte; a message is away 20 us."""
    busy = 1e-6 + 1e-10 * size
    return min(1 / busy, depth / (20e-6 + busy)) * size * (1.0 if wait == "spin" else 0.8)


def record(bytes_per_s: float, repetition: int = 1, **settings: Plain) -> Record:
    at: Mapping[str, Plain] = {"over": "tcp", "repetition": repetition, **settings}
    return Record(
        kind="measurement",
        name="bandwidth",
        settings=at,
        quantities={"throughput": Scalar(8 * bytes_per_s, "b/s")},
        provenance=Provenance(weft_version="0"),
    )


def swept(scale: float = 1.0, skip: tuple[int, int, str] | None = None) -> list[Record]:
    return [
        record(scale * speed_Bps(size, depth, wait), size_bytes=size, depth=depth, wait=wait)
        for size in (4096, 16384, 65536, 262144)
        for depth in (1, 8, 64)
        for wait in ("spin", "block")
        if (size, depth, wait) != skip
    ]


def test_the_best_of_a_full_sweep_is_recommended() -> None:
    tuning = tune_records(gather_evidence(swept()), THROUGHPUT).tuning
    chosen = tuning.recommendation
    best = max(row.value for row in tuning.rows)
    at = chosen.setting
    gives = speed_Bps(int(at["size_bytes"] or 0), int(at["depth"] or 0), str(at["wait"]))
    assert gives >= 0.97 * best
    assert chosen.predicted.value == pytest.approx(gives, rel=0.15)


def test_a_setting_without_a_record_can_be_recommended() -> None:
    stored = tune_records(gather_evidence(swept(skip=(262144, 64, "spin"))), THROUGHPUT)
    at = stored.tuning.recommendation.setting
    gives = speed_Bps(int(at["size_bytes"] or 0), int(at["depth"] or 0), str(at["wait"]))
    assert gives >= 0.95 * speed_Bps(262144, 64, "spin")


def test_nothing_is_confirmed_and_the_text_says_so() -> None:
    evidence = gather_evidence(swept())
    stored = tune_records(evidence, THROUGHPUT)
    assert stored.tuning.confirmation == ()
    assert stored.tuning.schedule is None
    text = format_stored(stored)
    assert NOT_CONFIRMED in text
    assert "--over tcp --size" in text
    made = build_stored_record(stored)
    assert NOT_CONFIRMED in made.notes
    assert len(made.tables["advice"]) == len(stored.tuning.advice)
    assert len(made.tables["nearest records"]) == 3


def test_the_nearest_records_are_those_at_the_recommendation_first() -> None:
    tuning = tune_records(gather_evidence(swept()), THROUGHPUT).tuning
    first = find_nearest_records(tuning)[0]
    assert dict(first.setting) == tuning.recommendation.setting


def test_only_what_the_records_vary_is_a_choice() -> None:
    space = tune_records(gather_evidence(swept()), THROUGHPUT).tuning.space
    assert [factor.name for factor in space.factors] == ["size_bytes", "depth", "wait"]
    assert any("qps" in refused.name for refused in space.refusals)


def test_choices_can_be_limited() -> None:
    stored = tune_records(gather_evidence(swept()), THROUGHPUT, {"depth": [1, 8]})
    assert stored.tuning.recommendation.setting["depth"] == 8


def test_records_win_where_all_repetitions_beat_the_model() -> None:
    """A setting that is three times as fast as any model of its neighbours would have it."""
    odd = {"size_bytes": 16384, "depth": 8, "wait": "block"}
    records = [r for r in swept() if dict(r.settings) | odd != dict(r.settings)]
    records += [record(4.9e10, n, **odd) for n in (1, 2)]
    evidence = gather_evidence(records)
    stored = tune_records(evidence, THROUGHPUT)
    assert stored.tuning.recommendation.setting == odd
    if not stored.by_model:
        assert BY_RECORDS in format_stored(stored)


def test_records_of_another_operation_are_left_out_and_told() -> None:
    tagged = [record(1e9, size_bytes=4096, depth=8, op="tagged")]
    stored = tune_records(gather_evidence([*swept(), *tagged]), THROUGHPUT)
    assert stored.left_out == ("1 record with op tagged (used: op send)",)


def test_too_few_settings_are_refused_with_the_command_that_measures_more() -> None:
    few = [record(1e9, size_bytes=4096, depth=d) for d in (1, 8)]
    with pytest.raises(InputError) as refused:
        tune_records(gather_evidence(few), THROUGHPUT)
    message = str(refused.value)
    assert "2 settings measured, but a model needs 4 or more" in message
    assert "weft bandwidth local --over tcp --sweep size=" in message


def test_a_goal_that_no_record_measured_is_refused() -> None:
    with pytest.raises(InputError, match=r"goal latency: 0 settings.*weft latency local"):
        tune_records(gather_evidence(swept()), GOALS["latency"])


def test_the_message_rate_is_of_one_size() -> None:
    records = [
        Record(
            kind="measurement",
            name="rate",
            provenance=Provenance(weft_version="0"),
            settings={"over": "tcp", "size_bytes": size, "depth": depth, "wait": wait},
            quantities={"message_rate": Scalar(depth / (20 + depth) * slow, "M/s")},
        )
        for size in (64, 4096)
        for depth in (1, 4, 16, 64)
        for wait, slow in (("spin", 1.0), ("block", 0.5))
    ]
    stored = tune_records(gather_evidence(records), GOALS["message-rate"])
    assert stored.tuning.space.fixed == {"size_bytes": 64}
    assert stored.tuning.recommendation.setting["wait"] == "spin"
    assert stored.left_out == ("8 records with size 4 KiB (used: size 64 B)",)


def test_the_order_of_records_does_not_change_the_recommendation() -> None:
    def chosen(evidence: Evidence) -> tuple[object, float]:
        result = tune_records(evidence, THROUGHPUT).tuning.recommendation
        return result.setting, result.predicted.value

    forward, backward = chosen(gather_evidence(swept())), chosen(gather_evidence(swept()[::-1]))
    assert forward[0] == backward[0]
    assert math.isclose(forward[1], backward[1])
