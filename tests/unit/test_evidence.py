"""Records become rows of settings and observed values; what cannot be one system is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.errors import InputError
from weft.measure import Peer, bandwidth, latency, open_peer, paced, rate, rma, saturation, transfer
from weft.records import (
    Distribution,
    Histogram,
    Plain,
    Provenance,
    Record,
    Run,
    Scalar,
    describe_run,
    write_records,
)
from weft.tune.rules.evidence import (
    TIME_LOST,
    Evidence,
    Row,
    gather_evidence,
    group_families,
    read_evidence,
)


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with open_peer("local") as opened:
        yield opened


def stream(bits_per_second: float, name: str = "bandwidth", **settings: Plain) -> Record:
    """A record as `weft bandwidth` would store it, of an invented speed."""
    return Record(
        kind="measurement",
        name=name,
        settings={"over": "tcp", "size_bytes": 4096, **settings},
        quantities={"throughput": Scalar(bits_per_second, "b/s")},
        provenance=Provenance(weft_version="0", seed=1),
    )


def timed(half_rtt_ps: int, **settings: Plain) -> Record:
    histogram = Histogram()
    histogram.record_many(np.full(10, half_rtt_ps, dtype=np.int64))
    return Record(
        kind="measurement",
        name="latency",
        settings={"over": "tcp", "size_bytes": 64, **settings},
        quantities={"half_rtt": Distribution("ps", histogram)},
        provenance=Provenance(weft_version="0", seed=1),
    )


def header(host: str) -> Run:
    run = describe_run(["weft"])
    return Run(**{name: getattr(run, name) for name in Run.__slots__} | {"host": host})


def only(evidence: Evidence, test: str) -> Row:
    (row,) = [row for row in evidence.rows if row.setting.test == test]
    return row


def test_a_streams_row_has_its_settings_and_what_both_ends_saw(peer: Peer, tmp_path: Path) -> None:
    run = bandwidth(peer, over="tcp", size="8 KiB", depth=4, wait="block", count=200, warmup=10)
    write_records(tmp_path / "bw.jsonl", run.records)
    row = only(read_evidence([tmp_path / "bw.jsonl"]), "bandwidth")
    assert (row.setting.over, row.setting.op, row.setting.wait) == ("tcp", "send", "block")
    assert (row.setting.size_bytes, row.setting.depth, row.setting.threads) == (8192, 4, 1)
    seen = [run.record.quantities[name] for name in ("throughput", "sender.throughput")]
    carried = min(q.value for q in seen if isinstance(q, Scalar)) / 8
    assert row.throughput_Bps is not None
    assert row.throughput_Bps.median == pytest.approx(carried)
    assert row.messages_per_s is not None


def test_cpu_seconds_per_byte_are_those_of_the_timed_loop_over_its_payload(peer: Peer) -> None:
    run = bandwidth(peer, over="tcp", size="64 KiB", depth=4, count=2000, warmup=10)
    used = [run.record.quantities[f"cpu.{part}"] for part in ("user", "system")]
    seconds = sum(q.value for q in used if isinstance(q, Scalar))
    row = only(gather_evidence(run.records), "bandwidth")
    assert row.cpu_s_per_byte is not None
    assert row.cpu_s_per_byte.median == pytest.approx(seconds / (2000 * 65536))


def test_latency_over_a_known_delay_is_the_delay() -> None:
    run = latency(None, over="delay", delay={"wire": "200 us"}, size=16, count=50, warmup=5)
    row = only(gather_evidence(run.records), "latency")
    assert row.p50_us is not None
    assert 200 <= row.p50_us.median < 2000
    assert row.setting.other == (("delay_wire", "200 us"),)


def test_every_test_gives_rows() -> None:
    short = {"over": "delay", "warmup": 2, "delay": {"wire": "1 us"}}
    runs = [
        latency(None, count=20, **short),
        rate(None, count=20, depth=2, **short),
        paced(None, count=20, **short),
        rma(None, count=20, op="read", size=8, **short),
        transfer(None, total=4096, size=64, outstanding=2, signal_every=2, **short),
        saturation(None, duration="5 ms", steps=2, **short),
    ]
    evidence = gather_evidence([record for run in runs for record in run.records])
    tests = {row.setting.test for row in evidence.rows}
    assert tests == {
        "latency",
        "bandwidth",
        "paced",
        "rma",
        "transfer",
        "saturation",
        "saturation.step",
    }
    moved = only(evidence, "transfer").setting
    assert (moved.depth, moved.signal_every) == (2, 2)
    steps = evidence.rows_of("saturation.step")
    assert sorted(row.setting.load or 0 for row in steps) == [0, 0.5, 1]
    assert all(row.setting.depth == 64 for row in steps), "told by the record that sums them up"
    idle = next(row for row in steps if row.setting.load == 0)
    assert idle.throughput_Bps is not None
    assert idle.throughput_Bps.median == 0


def test_a_receiver_that_drained_a_backlog_did_not_receive_faster_than_was_sent() -> None:
    """As seen with points of 20 ms on a busy host: 171 Gb/s received of 3.8 Gb/s sent."""
    seen = {
        "throughput": Scalar(171e9, "b/s"),
        "sender.throughput": Scalar(3.8e9, "b/s"),
        "message_rate": Scalar(5.5, "M/s"),
    }
    (row,) = gather_evidence([replace(stream(1.0), quantities=seen)]).rows
    assert row.throughput_Bps is not None
    assert row.throughput_Bps.median == pytest.approx(3.8e9 / 8)
    assert row.messages_per_s is not None
    assert row.messages_per_s.median == pytest.approx(3.8e9 / 8 / 4096)


def test_repetitions_share_a_row_and_keep_their_spread() -> None:
    records = [stream(8e9 * n, repetition=i) for i, n in enumerate((1.0, 1.2, 1.1), 1)]
    (row,) = gather_evidence(records).rows
    assert row.throughput_Bps is not None
    assert row.throughput_Bps.values == pytest.approx((1e9, 1.1e9, 1.2e9))
    assert row.throughput_Bps.relative == pytest.approx(0.2 / 2.2)


def test_rate_and_bandwidth_are_the_same_streams() -> None:
    records = [stream(8e9, depth=8), stream(8.8e9, name="rate", depth=8)]
    (row,) = gather_evidence(records).rows
    assert row.throughput_Bps is not None
    assert row.throughput_Bps.n == 2


def test_families_differ_in_the_named_setting_alone() -> None:
    records = [stream(1e9 * d, depth=d) for d in (16, 4, 1)]
    records += [stream(1e9, depth=4, wait="block")]
    evidence = gather_evidence(records)
    (by_depth,) = group_families(evidence.rows, "depth")
    assert [row.setting.depth for row in by_depth] == [1, 4, 16]
    (by_wait,) = group_families(evidence.rows, "wait")
    assert [row.setting.wait for row in by_wait] == ["block", "spin"]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match=r"empty.jsonl: the file is empty; measure first"):
        read_evidence([tmp_path / "empty.jsonl"])


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "none.jsonl", [])
    with pytest.raises(InputError, match=r"a run header and no records"):
        read_evidence([tmp_path / "none.jsonl"])


def test_simulations_are_not_measurements() -> None:
    simulated = Record(kind="simulation", name="x", provenance=Provenance(weft_version="0"))
    with pytest.raises(InputError, match=r"no measurements of a test .1 of kind simulation."):
        gather_evidence([simulated])


def test_several_transports_are_refused_until_one_is_chosen() -> None:
    records = [stream(1e9), stream(9e9, over="ofi:shm")]
    with pytest.raises(InputError, match=r"2 kinds of over .ofi:shm, tcp.*choose one with --over"):
        gather_evidence(records)
    chosen = gather_evidence(records, over="ofi:shm")
    assert [row.setting.over for row in chosen.rows] == ["ofi:shm"]
    with pytest.raises(InputError, match=r"present: ofi:shm, tcp"):
        gather_evidence(records, over="verbs")


def test_several_hosts_are_refused(tmp_path: Path) -> None:
    for host in ("node1", "node2"):
        write_records(tmp_path / f"{host}.jsonl", [stream(1e9)], header(host))
    with pytest.raises(InputError, match=r"2 hosts.*node1 .*node2.*give the files of one host"):
        read_evidence([tmp_path / "node1.jsonl", tmp_path / "node2.jsonl"])


def test_several_peers_are_refused() -> None:
    with pytest.raises(InputError, match=r"2 peers .local, node7:18000."):
        gather_evidence([stream(1e9), stream(1e9, peer="node7:18000")])


def test_records_that_contradict_each_other_are_refused_by_name(tmp_path: Path) -> None:
    write_records(tmp_path / "a.jsonl", [stream(8e9)])
    write_records(tmp_path / "b.jsonl", [stream(8e8)])
    with pytest.raises(InputError) as refused:
        read_evidence([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
    message = str(refused.value)
    for part in (
        "a.jsonl record 1",
        "b.jsonl record 1",
        "8 Gb/s",
        "800 Mb/s",
        "a factor 10.0 apart",
        "measure this point again",
    ):
        assert part in message


def test_latencies_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InputError, match=r"p50 is 5 µs.* and 50 µs"):
        gather_evidence([timed(5_000_000), timed(50_000_000)])


def test_a_noisy_host_may_differ_more_where_all_its_repetitions_do() -> None:
    quiet = [stream(8e9 * n, depth=d) for d in (1, 2, 4, 8) for n in (1.0, 1.02)]
    noisy = [stream(8e9 * n, depth=d) for d in (1, 2, 4, 8) for n in (1.0, 2.0)]
    odd = [stream(8e9, depth=16), stream(32e9, depth=16)]
    with pytest.raises(InputError, match=r"a factor 4.0 apart"):
        gather_evidence(quiet + odd)
    assert len(gather_evidence(noisy + odd).rows) == 5


def test_records_that_tell_of_a_noisy_host_may_differ_by_the_time_it_lost() -> None:
    """A loop that lost 60 % of its time is 2.5 times slower: 3 x 2.5 may lie between two runs."""
    fast, slow = stream(8e9), stream(8e9 / 6)
    lost = {"host": [{"fact": "time lost to hiccups, %", "value": 60.0}]}
    with pytest.raises(InputError, match=r"a factor 6\.0 apart"):
        gather_evidence([fast, slow])
    assert len(gather_evidence([fast, replace(slow, tables=lost)]).rows) == 1


def test_a_measurement_tells_the_time_it_lost_by_the_name_that_is_looked_for() -> None:
    run = latency(None, over="delay", delay={"wire": "1 us"}, count=10, warmup=1)
    assert TIME_LOST in {row["fact"] for row in run.record.tables["host"]}


def test_runs_that_ended_early_are_left_out_and_told() -> None:
    cut = Record(
        kind="measurement",
        name="bandwidth",
        settings=stream(1e9, depth=2).settings,
        notes=["ended: interrupted"],
        provenance=Provenance(weft_version="0"),
    )
    evidence = gather_evidence([stream(1e9), cut])
    assert len(evidence.rows) == 1
    assert evidence.left_out == ("1 record of runs that ended early",)
    with pytest.raises(InputError, match=r"every record is of a run that ended early"):
        gather_evidence([cut])


def test_settings_of_another_system_are_left_out_and_told() -> None:
    records = [stream(1e9, depth=d) for d in (1, 2)] + [stream(1e9, nagle=False)]
    evidence = gather_evidence(records)
    assert len(evidence.rows) == 2
    assert evidence.left_out == ("1 record with nagle=False, where the others have defaults",)
