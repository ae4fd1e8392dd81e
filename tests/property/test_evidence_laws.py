"""Evidence is a set of observations: neither their order nor their copies count."""

import random

from hypothesis import given
from hypothesis import strategies as st

from weft.records import Provenance, Record, Scalar
from weft.tune.rules.evidence import Row, gather_evidence

# Within a factor of two, as repetitions are.
SPEEDS = st.floats(1e9, 1.9e9)
DEPTHS = st.sampled_from([1, 4, 16])
RUNS = st.lists(st.tuples(DEPTHS, SPEEDS), min_size=1, max_size=12)


def record(depth: int, bits_per_second: float) -> Record:
    return Record(
        kind="measurement",
        name="bandwidth",
        settings={"over": "tcp", "size_bytes": 4096, "depth": depth},
        quantities={"throughput": Scalar(bits_per_second, "b/s")},
        provenance=Provenance(weft_version="0"),
    )


def spreads(rows: tuple[Row, ...]) -> list[tuple[int, tuple[float, ...]]]:
    return [(row.setting.depth, row.throughput_Bps.values) for row in rows if row.throughput_Bps]


@given(RUNS, st.randoms(use_true_random=False))
def test_the_order_of_records_does_not_matter(
    runs: list[tuple[int, float]], shuffle: random.Random
) -> None:
    records = [record(*run) for run in runs]
    other = records.copy()
    shuffle.shuffle(other)
    assert spreads(gather_evidence(records).rows) == spreads(gather_evidence(other).rows)


@given(RUNS)
def test_the_same_record_twice_is_one_observation(runs: list[tuple[int, float]]) -> None:
    records = [record(*run) for run in runs]
    assert spreads(gather_evidence(records).rows) == spreads(
        gather_evidence(records + records).rows
    )


@given(st.lists(SPEEDS, min_size=2, max_size=8, unique=True), st.floats(0, 1))
def test_a_repetition_between_the_others_never_widens_the_spread(
    speeds: list[float], place: float
) -> None:
    between = min(speeds) + place * (max(speeds) - min(speeds))
    (before,) = gather_evidence([record(1, s) for s in speeds]).rows
    (after,) = gather_evidence([record(1, s) for s in (*speeds, between)]).rows
    assert before.throughput_Bps is not None
    assert after.throughput_Bps is not None
    assert after.throughput_Bps.high - after.throughput_Bps.low <= (
        before.throughput_Bps.high - before.throughput_Bps.low
    )
    assert after.throughput_Bps.n >= before.throughput_Bps.n
