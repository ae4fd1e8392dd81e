"""Studies of the EFA thesis: every published cell has a row, claims are judged by numbers."""

import math
import random
from collections import Counter
from collections.abc import Callable

import pytest

from weft.records import Distribution, Histogram, Provenance, Record, Scalar, Series
from weft.studies import NotHere, run_study
from weft.studies.efa import EFA
from weft.studies.efa.capability_table import OFFERS, TABLE2_1, Transport, answered
from weft.studies.efa.efa_latency_here import (
    C1_CLAIMS,
    C1_LINES,
    C2_CLAIMS,
    C2_LINES,
    C6_CLAIMS,
    C6_LINES,
    C7_CLAIMS,
    C7_LINES,
    C9_CLAIMS,
    C9_LINES,
)
from weft.studies.efa.efa_saturation import CLAIMS as C8_CLAIMS
from weft.studies.efa.efa_saturation import OVERS as C8_OVERS
from weft.studies.efa.efa_saturation import STEPS
from weft.studies.efa.efa_throughput_here import (
    C3_CLAIMS,
    C3_LINES,
    C4_CLAIMS,
    C4_LINES,
    C5_CLAIMS,
    C5_LINES,
    C10_CLAIMS,
    C10_LINES,
)
from weft.studies.published import published, table_names
from weft.studies.rounds import ROUNDS, Case, Line, in_round
from weft.studies.study import _Found

Value = Callable[[Line, int], float]


def a_record(name: str, **fields: object) -> Record:
    return Record(kind="measurement", name=name, provenance=Provenance(weft_version="0"), **fields)


def tables_of(study: str) -> list[str]:
    """The study's own table, or its sub-tables."""
    return [name for name in table_names() if name == study or name.startswith(f"{study}-")]


# ---- Published cells --------------------------------------------------------------------------

X = {"size_bytes", "depth", "queue_pairs", "threads", "wait_ns", "load_MBps"}
UNITS = {"us": "us", "MiBps": "MiB/s", "MBps": "MB/s", "Mmsgps": "M/s"}
TABULATED = [study for study in EFA if study is not TABLE2_1]


@pytest.mark.parametrize("study", TABULATED, ids=lambda study: study.name)
def test_every_published_cell_has_a_row_with_its_value_place_and_unit(study):
    cells: Counter[tuple[str, str, float]] = Counter()
    for name in tables_of(study.name):
        table = published(name)
        for column in set(table.columns) - X:
            unit = UNITS[column.rpartition("_")[2]]
            values = [v for v in table.column(column) if math.isfinite(v)]
            cells.update((table.place, unit, value) for value in values)
    rows = Counter(
        (o.place, o.unit, o.published) for o in study.observations if o.published is not None
    )
    assert rows == cells


@pytest.mark.parametrize("study", EFA, ids=lambda study: study.name)
def test_a_published_value_stands_beside_a_model_and_never_beside_a_measurement(study):
    for o in study.observations:
        assert (o.source == "model") == (o.published is not None)
        assert o.system.startswith("this machine") == (o.source == "measurement")


def test_every_cell_of_table_2_1_has_a_claim():
    table = published("efa-table2-1")
    expected = {
        f"{column}, {aspect}: {cell}"
        for column in ("SRD", "RC", "sockets")
        for aspect, cell in zip(table.cells("aspect"), table.cells(column), strict=True)
    }
    assert {claim.statement for claim in TABLE2_1.claims} == expected


# ---- Claims on records that are made up -------------------------------------------------------


def latency_record(value_us: float) -> Record:
    histogram = Histogram()
    histogram.record(round(value_us * 1e6), 100)
    quantities = {"half_rtt": Distribution("ps", histogram)}
    return a_record("latency", quantities=quantities)


def stream_record(bps: float, size_bytes: int) -> Record:
    quantities = {
        "throughput": Scalar(bps, "b/s"),
        "message_rate": Scalar(bps / 8e6 / size_bytes, "M/s"),
    }
    return a_record("rate", quantities=quantities)


def over(line: Line) -> str:
    return str(next(iter(line.cases.values())).options["over"])


def option(line: Line, name: str) -> object:
    return next(iter(line.cases.values())).options[name]


def is_latency(line: Line) -> bool:
    return line.reading.unit == "us"


def record(line: Line, case: Case, observed: float) -> Record:
    """A record off which the line reads the value in its unit."""
    if is_latency(line):
        return latency_record(observed)
    size = int(str(case.options.get("size", 64)))
    bytes_per_unit = 2**20 if line.reading.unit == "MiB/s" else 1e6 * size
    return stream_record(observed * 8 * bytes_per_unit, size)


def made_up(lines, value: Value, scatter: float = 1.0) -> _Found:
    """Records of every setting; rounds scatter to and fro, each setting by an amount of its own."""
    found = {}
    for line in lines:
        for at, case in line.cases.items():
            apart = scatter ** random.Random(case.name).uniform(-1, 1)
            for number in range(1, ROUNDS + 1):
                observed = value(line, at) * apart ** (-1) ** number
                found[in_round(case.name, number)] = record(line, case, observed)
    return _Found(found, {})


def by_transport(**values: float) -> Value:
    """tcp=..., ofi_shm=...: the same at every value."""
    return lambda line, _: values[over(line).replace(":", "_")]


CLAIMS = {
    "shared memory is below sockets": (
        C1_LINES,
        C1_CLAIMS[0],
        by_transport(tcp=9, ofi_tcp=9, ofi_shm=1),
        by_transport(tcp=1, ofi_tcp=9, ofi_shm=9),
    ),
    "small messages are alike": (
        C1_LINES,
        C1_CLAIMS[1],
        lambda *_: 9,
        lambda _, size: 9 if size < 512 else 12,
    ),
    "the gap narrows": (
        C1_LINES,
        C1_CLAIMS[2],
        lambda line, size: size / 1024 + (20 if over(line) == "tcp" else 1),
        lambda line, size: size * (20 if over(line) == "tcp" else 1),
    ),
    "one at a time is bound by latency": (
        C2_LINES,
        C2_CLAIMS[0],
        lambda line, size: 10 if is_latency(line) else 0.7 * size / 10 * 1e6 / 2**20,
        lambda line, size: 10 if is_latency(line) else 2 * size / 10 * 1e6 / 2**20,
    ),
    "reliability costs": (
        C6_LINES,
        C6_CLAIMS[0],
        lambda line, _: 12 if line.label in ("tcp", "ofi:udp rdm") else 10,
        lambda line, _: 8 if line.label in ("tcp", "ofi:udp rdm") else 10,
    ),
    "reliability costs at best": (
        C6_LINES,
        C6_CLAIMS[2],
        lambda line, _: 12 if line.label in ("tcp", "ofi:udp rdm") else 10,
        lambda line, _: 8 if line.label in ("tcp", "ofi:udp rdm") else 10,
    ),
    "reliability costs little": (
        C6_LINES,
        C6_CLAIMS[4],
        lambda line, _: 11 if line.label in ("tcp", "ofi:udp rdm") else 10,
        lambda line, _: 20 if line.label in ("tcp", "ofi:udp rdm") else 10,
    ),
    "tags are free": (
        C7_LINES,
        C7_CLAIMS[0],
        lambda *_: 5,
        lambda line, _: 6 if "tagged" in line.label else 5,
    ),
    "injecting gains nothing": (
        C7_LINES,
        C7_CLAIMS[2],
        lambda *_: 5,
        lambda line, _: 4 if "inject" in line.label else 5,
    ),
    "a split message takes a step": (
        C9_LINES,
        C9_CLAIMS[0],
        lambda _, size: 10 + size / 1e4 + 5 * (size > 1450),
        lambda _, size: 10 + size / 1e4,
    ),
    "a split is cheap": (
        C9_LINES,
        C9_CLAIMS[1],
        lambda _, size: 30 + (size > 1450),
        lambda _, size: 10 + 5 * (size > 1450),
    ),
    "depth helps": (C3_LINES, C3_CLAIMS[0], lambda _, depth: min(depth, 64), lambda *_: 5),
    "depth saturates": (
        C3_LINES,
        C3_CLAIMS[2],
        lambda _, depth: min(depth, 64),
        lambda _, depth: depth,
    ),
    "size leaves the rate": (
        C3_LINES,
        C3_CLAIMS[4],
        lambda *_: 2,
        lambda line, _: 2 if option(line, "size") == 16 else 1,
    ),
    "more connections help": (C4_LINES, C4_CLAIMS[0], lambda _, qps: qps, lambda *_: 2),
    "more connections do not help": (C4_LINES, C4_CLAIMS[2], lambda *_: 2, lambda _, qps: qps),
    "threads scale": (C5_LINES, C5_CLAIMS[0], lambda _, threads: threads, lambda *_: 2),
    "threads scale less when deep": (
        C5_LINES,
        C5_CLAIMS[1],
        lambda line, threads: threads if option(line, "depth") == 2 else 4,
        lambda line, threads: 1 if option(line, "depth") == 2 else threads,
    ),
    "a write is like a send": (
        C10_LINES,
        C10_CLAIMS[0],
        lambda *_: 100,
        lambda line, _: 50 if "write" in line.label else 100,
    ),
    "a read is slower": (
        C10_LINES,
        C10_CLAIMS[2],
        lambda line, _: 80 if "read" in line.label else 100,
        lambda *_: 100,
    ),
    "the gap of reads is wider with many outstanding": (
        C10_LINES,
        C10_CLAIMS[4],
        lambda line, _: 40 if "read of" in line.label else 80 if "read" in line.label else 100,
        lambda line, _: 90 if "read of" in line.label else 80 if "read" in line.label else 100,
    ),
}


@pytest.fixture
def many_processors(monkeypatch):
    monkeypatch.setattr("weft.studies.efa.efa_throughput_here.processors", lambda: 64)


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.usefixtures("many_processors")
def test_a_claim_is_judged_by_the_numbers(name):
    lines, claim, so, otherwise = CLAIMS[name]
    assert claim.judge(made_up(lines, so)).holds is True
    assert claim.judge(made_up(lines, otherwise)).holds is False
    unsure = claim.judge(made_up(lines, so, scatter=1e4))
    assert unsure.holds is None
    assert "undecided" in unsure.evidence


@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_whose_records_are_missing_is_not_judged(name):
    lines, claim, _, _ = CLAIMS[name]
    everything = dict.fromkeys(made_up(lines, lambda *_: 1.0), "no such provider")
    with pytest.raises(NotHere, match="no such provider"):
        claim.judge(_Found({}, everything))


def test_claims_of_threads_need_a_processor_for_each_at_both_ends(monkeypatch):
    monkeypatch.setattr("weft.studies.efa.efa_throughput_here.processors", lambda: 2)
    found = C5_CLAIMS[0].judge(made_up(C5_LINES, lambda _, threads: threads))
    assert found.holds is None
    assert "share 2 processors" in found.evidence


def test_every_measured_claim_is_judged_above():
    claims = {claim.statement for study in TABULATED for claim in study.claims}
    judged = [claim for _, claim, _, _ in CLAIMS.values()] + list(C8_CLAIMS)
    assert claims == {claim.statement for claim in judged}


def probe(latency_us: Callable[[int], float]) -> Record:
    """A saturation whose load grows by 1 Gb/s a step."""
    steps = range(STEPS + 1)
    curve = Series(
        "b/s", "ps", [step * 1e9 for step in steps], [1e6 * latency_us(s) for s in steps]
    )
    return a_record("saturation", quantities={"probe.p50": curve, "probe.p99": curve})


def loads(latency_us: Callable[[int], float]) -> dict[str, Record]:
    numbers = range(1, ROUNDS + 1)
    return {in_round(over, n): probe(latency_us) for over in C8_OVERS for n in numbers}


@pytest.mark.parametrize(
    ("claim", "so", "otherwise"),
    [
        (C8_CLAIMS[1], lambda step: 20 if step == STEPS else 10, lambda _: 10),
        (C8_CLAIMS[2], lambda step: 30 if step == STEPS else 10 + step, lambda step: 10 + 5 * step),
    ],
    ids=["latency doubles", "latency grows steeply at last"],
)
def test_a_claim_of_saturation_is_judged_by_the_numbers(claim, so, otherwise):
    assert claim.judge(loads(so)).holds is True
    assert claim.judge(loads(otherwise)).holds is False


def test_the_fitted_median_almost_doubles_and_the_tail_does():
    table = published("efa-c8-1").column("p50_us")
    assert 1.7 < table.max() / table.min() < 2
    found = C8_CLAIMS[0].judge({})
    assert found.holds is True
    assert "p50 does not double" in found.evidence
    assert "p99 doubles at" in found.evidence


# ---- Table 2.1 --------------------------------------------------------------------------------


def offered(**changes: object) -> dict[str, Record]:
    row = {
        "over": "verbs",
        "endpoint": "rc",
        "available": True,
        "operations": "send, read, write",
        "order": "",
        "link": "InfiniBand",
        "reason": "",
    }
    return {OFFERS: a_record("availability", tables={OFFERS: [row | changes]})}


@pytest.mark.parametrize(
    ("statement", "changes", "holds"),
    [
        ("RC, link: InfiniBand", {}, True),
        ("RC, link: InfiniBand", {"link": "Ethernet"}, False),
        ("RC, unit: Messages", {}, True),
        ("RC, one-sided: one-sided", {}, True),
        ("RC, one-sided: one-sided", {"operations": "send"}, False),
        ("RC, order: ordered", {}, None),
        ("SRD, one-sided: no one-sided", {"endpoint": "srd", "operations": "send"}, True),
        ("sockets, unit: Stream", {"over": "tcp", "endpoint": "stream"}, True),
    ],
)
def test_a_cell_is_judged_by_what_the_transport_offers(statement, changes, holds):
    (claim,) = (c for c in TABLE2_1.claims if c.statement == statement)
    assert claim.judge(offered(**changes)).holds is holds


def test_a_transport_without_the_order_of_sends_is_unordered():
    records = offered(over="ofi:x", endpoint="dgram", order="")
    assert answered(records, "order", Transport("ofi:x", "dgram")).value == "unordered"
    records = offered(over="ofi:x", endpoint="rdm", order="FI_ORDER_RAR, FI_ORDER_SAS")
    assert answered(records, "order", Transport("ofi:x", "rdm")).value == "ordered"


def test_what_is_not_here_is_told_with_its_reason():
    records = offered(available=False, reason="no RDMA support")
    answer = answered(records, "one-sided", Transport("verbs", "rc"))
    assert answer.value == ""
    assert "no RDMA support" in answer.how


def test_table_2_1_runs_here_and_sockets_are_what_it_says():
    result = run_study(TABLE2_1)
    words = {claim.statement: verdict.word for claim, verdict in result.judged}
    assert words["sockets, unit: Stream"] == "holds"
    assert words["sockets, place: kernel-space"] == "holds"
    assert words["sockets, one-sided: no one-sided"] == "holds"
    assert not any(word == "does not hold" for word in words.values())
