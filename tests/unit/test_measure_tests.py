"""Every test over every transport that is here: it ends, counts add up, content is right.

Speed is never asserted: this runs on machines that others use too.
"""

import os
import signal
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from weft._core import availability
from weft.errors import InputError, WeftError
from weft.measure import (
    Measurement,
    Peer,
    bandwidth,
    latency,
    open_peer,
    paced,
    rate,
    rma,
    rperf,
    saturation,
    transfer,
)
from weft.measure.measurement import choose_over
from weft.measure.observation import Counts, sum_counts
from weft.measure.peer.channel_spec import echo_channel, encode_channel, read_channels
from weft.measure.peer.client import LocalServer
from weft.measure.peer.negotiation import Limits, find_excess
from weft.measure.settings.options import settings_from
from weft.measure.tests import saturation as saturation_test
from weft.measure.tests.bandwidth import RMA
from weft.measure.tests.latency import LATENCY
from weft.records import Distribution, Scalar, Series, from_line, to_line

BETWEEN = ("tcp", "udp", "ofi:shm", "ofi:tcp")
RELIABLE = ("tcp", "ofi:shm", "ofi:tcp", "delay")
EVERY = (*BETWEEN, "delay")


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with open_peer("local") as opened:
        yield opened


def need(over: str, op: str = "send") -> None:
    """Skip by name and reason what this machine lacks."""
    transport, _, device = over.partition(":")
    found = [a for a in availability() if a.transport == transport and a.device in ("", device)]
    named = [a for a in found if a.device == device] or found
    usable = [a for a in named if a.available]
    if not usable:
        pytest.skip(f"{over}: {named[0].reason if named else 'not here'}")
    offered = {name for a in usable for name in a.operations}
    if offered and op not in offered:
        pytest.skip(f"{over}: has no {op}")


def number(run: Measurement, name: str) -> float:
    quantity = run.record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


def samples_in(run: Measurement, name: str) -> int:
    quantity = run.record.quantities[name]
    assert isinstance(quantity, Distribution)
    return quantity.histogram.count


@pytest.mark.parametrize("over", EVERY)
def test_a_ping_pong_times_every_message_and_finds_none_corrupted(peer, over):
    need(over)
    run = latency(peer, over=over, size=100, count=200, warmup=10, samples=50, validate=True)
    lost = number(run, "lost") if over == "udp" else 0
    assert samples_in(run, "half_rtt") + lost == 200
    assert number(run, "corrupted") == 0
    assert len(run.samples) == 50
    assert (run.samples > 0).all()
    assert not run.ended


@pytest.mark.parametrize("over", ["tcp", "udp", "ofi:tcp"])
def test_a_blocking_ping_pong_ends(peer, over):
    need(over)
    run = latency(peer, over=over, count=100, warmup=10, wait="block")
    assert samples_in(run, "half_rtt") > 90


@pytest.mark.parametrize("op", ["tagged", "inject"])
@pytest.mark.parametrize("over", ["ofi:shm", "ofi:tcp"])
def test_variants_of_a_send_answer_alike(peer, over, op):
    need(over, op)
    run = latency(peer, over=over, op=op, count=100, warmup=10, validate=True)
    assert samples_in(run, "half_rtt") == 100
    assert number(run, "corrupted") == 0


def test_samples_are_the_loop_s_own_memory(peer):
    run = latency(peer, over="tcp", count=100, samples=100)
    assert run.samples.base is not None, "a view, not a copy"
    series = run.record.quantities["samples"]
    assert isinstance(series, Series)
    assert np.array_equal(series.y, run.samples)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("over", BETWEEN)
def test_a_stream_arrives_whole_or_its_loss_is_told(peer, over, both):
    need(over)
    run = bandwidth(
        peer,
        over=over,
        size="4K",
        count=300,
        warmup=10,
        depth=8,
        validate=True,
        bidirectional=both,
        duration=None,
    )
    lost = number(run, "lost") if over == "udp" else 0
    assert number(run, "messages") + lost >= 300
    assert number(run, "corrupted") == 0
    assert number(run, "throughput") > 0
    if both and over != "udp":
        assert number(run, "both.throughput") > number(run, "back.throughput") > 0


@pytest.mark.parametrize("over", BETWEEN)
def test_several_connections_threads_and_lists_send_all_that_was_asked(peer, over):
    need(over)
    run = rate(
        peer,
        over=over,
        count=100,
        warmup=10,
        qps=2,
        threads=2,
        depth=8,
        post_list=4,
        signal_every=4,
    )
    lost = number(run, "lost") if over == "udp" else 0
    assert number(run, "messages") + lost == 2 * 2 * 100


def test_what_was_lost_and_what_came_is_what_was_sent(peer):
    """Datagrams of this size overflow the socket's buffer at once."""
    run = bandwidth(peer, over="udp", size=65507, count=300, warmup=50, depth=64)
    assert number(run, "messages") + number(run, "lost") == 300
    assert number(run, "loss") == pytest.approx(number(run, "lost") / 3)


def test_a_synchronous_stream_has_one_message_outstanding(peer):
    run = bandwidth(peer, over="tcp", size="4K", count=200, depth=1)
    assert number(run, "messages") == 200


@pytest.mark.parametrize("arrivals", ["fixed", "poisson"])
@pytest.mark.parametrize("over", EVERY)
def test_an_open_loop_sends_at_its_rate_whatever_comes_back(peer, over, arrivals):
    need(over)
    run = paced(peer, over=over, rate=2000, arrivals=arrivals, count=100, warmup=5, samples=10)
    lost = number(run, "lost") if over == "udp" else 0
    assert samples_in(run, "half_rtt") + lost == 100
    assert samples_in(run, "lateness") >= samples_in(run, "half_rtt")
    latency_from_intended = run.record.quantities["half_rtt"].histogram
    service = run.record.quantities["service.half_rtt"].histogram
    assert latency_from_intended.mean >= service.mean * 0.99


@pytest.mark.parametrize("over", ["tcp", "udp"])
def test_an_open_loop_that_sleeps_reports_the_path_and_not_its_timer(peer, over):
    # A kernel's tick is 1 to 10 ms and would delay every message; loopback takes microseconds.
    # A busy machine holds up some messages, but not the fastest fifth.
    run = paced(peer, over=over, rate=200, wait="block", count=40, warmup=3)
    assert run.record.quantities["half_rtt"].histogram.quantile(0.2) < 0.5e9
    assert number(run, "cpu.percent") < 25


@pytest.mark.parametrize("op", ["write", "read", "fetch-add", "compare-swap"])
@pytest.mark.parametrize("over", ["ofi:shm", "ofi:tcp", "delay"])
def test_one_sided_operations_do_what_they_say(peer, over, op):
    need(over, op)
    run = rma(peer, over=over, op=op, count=100, warmup=10, validate=True)
    assert samples_in(run, "operation") == 100
    assert number(run, "corrupted") == 0


@pytest.mark.parametrize("over", ["ofi:shm", "ofi:tcp", "delay"])
def test_windowed_writes_all_complete(peer, over):
    need(over, "write")
    run = rma(peer, over=over, size="4K", op="write", count=200, warmup=10, depth=8)
    assert number(run, "messages") == 200


@pytest.mark.parametrize("over", RELIABLE)
def test_a_transfer_moves_its_total_and_says_what_carried_it(peer, over):
    need(over)
    run = transfer(
        peer,
        over=over,
        size="16K",
        total="1M",
        outstanding=4,
        signal_every=2,
        validate=over != "delay",
    )
    assert number(run, "messages") == 64
    assert over == "delay" or number(run, "corrupted") == 0
    assert over != "tcp" or any("no write with immediate" in note for note in run.record.notes)


def test_a_transfer_from_one_buffer_that_sleeps_for_completions_ends(peer):
    run = transfer(peer, over="tcp", size="16K", total="1M", one_buffer=True, wait="block")
    assert number(run, "messages") == 64


@pytest.mark.parametrize("order", ["wire-first", "loopback-first", "alternating"])
@pytest.mark.parametrize("over", ["ofi:shm", "ofi:tcp", "delay"])
def test_rperf_gives_all_estimates_in_one_run(peer, over, order):
    need(over)
    run = rperf(peer, over=over, count=100, warmup=10, order=order)
    for name in ("rtt", "post_poll.rtt", "loopback.rtt", "ping_pong.half_rtt"):
        assert samples_in(run, name) == 100
    assert 0 <= number(run, "negative") <= 100
    assert any(note.startswith(f"order {order}") for note in run.record.notes)


def test_saturation_has_a_record_for_each_load_and_one_curve_over_all(peer):
    run = saturation(peer, over="tcp", duration="50 ms", steps=2, wait="block")
    assert [record.settings["load"] for record in run.records[:-1]] == [0, 0.5, 1]
    for percentile in ("p50", "p99", "p99.9"):
        curve = run.record.quantities[f"probe.{percentile}"]
        assert isinstance(curve, Series)
        assert len(curve.x) == 3
        assert list(curve.x) == sorted(curve.x)
    assert number(run, "maximum") > 0
    for step in run.records[:-1]:
        timed = step.quantities["probe.half_rtt"].histogram.count
        assert step.quantities["messages"].value == timed > 0
        assert step.quantities["message_rate"].value > 0
    for step in run.records[1:-1]:
        offered, achieved = (step.quantities[name].value for name in ("offered", "achieved"))
        # A stream delivers all that it takes, but what is under way when it ends.
        assert 0.5 * achieved < offered < 5 * achieved


def test_a_record_of_a_measurement_survives_its_line(peer):
    record = latency(peer, over="tcp", count=100, samples=20).record
    assert to_line(from_line(to_line(record))) == to_line(record)
    assert record.kind == "measurement"


def test_a_record_tells_its_clock_its_host_and_both_ends(peer):
    record = latency(peer, over="tcp", count=100).record
    facts = {row["fact"]: row["value"] for row in record.tables["host"]}
    assert facts["clock error, ppm"] >= 0
    assert "time lost to hiccups, %" in facts
    assert {row["side"] for row in record.tables["endpoints"]} == {"ours", "peer"}
    assert {row["fact"] for row in record.tables["peer"]} >= {"host", "weft"}
    settings = {row["setting"]: row["value"] for row in record.tables["settings"]}
    assert settings["count"] == 100


def nagle_of(run: Measurement) -> list[object]:
    """What the sockets of both ends said."""
    return [row["nagle"] for row in run.record.tables["endpoints"]]


def test_a_stream_over_tcp_lets_the_kernel_collect_and_a_ping_pong_does_not(peer):
    timed = {"over": "tcp", "count": 20}
    assert nagle_of(latency(peer, **timed)) == ["off", "off"]
    assert nagle_of(paced(peer, **timed, rate="10k")) == ["off", "off"]
    assert nagle_of(rate(peer, **timed)) == ["on", "on"]
    assert nagle_of(bandwidth(peer, **timed)) == ["on", "on"]
    assert nagle_of(bandwidth(peer, **timed, nagle=False)) == ["off", "off"]
    assert nagle_of(latency(peer, **timed, nagle=True)) == ["on", "on"]


def test_the_probe_beside_a_stream_leaves_at_once(peer):
    run = saturation(peer, over="tcp", steps=1, duration="20 ms")
    rows = run.record.tables["endpoints"]
    assert {(row["side"], row["connections"], row["nagle"]) for row in rows} == {
        ("ours", 2, "on"),
        ("peer", 2, "on"),
        ("ours", 2, "off"),
        ("peer", 2, "off"),
    }


@pytest.mark.parametrize("over", ["ofi:shm", "ofi:tcp"])
def test_ofi_injects_what_fits_where_one_message_is_on_its_way(peer, over):
    need(over)

    def inline(run: Measurement) -> int:
        (ours,) = (r for r in run.record.tables["endpoints"] if r["side"] == "ours")
        return int(ours["inline_bytes"])

    first = latency(peer, over=over, size=1, count=10)
    limit = int(first.record.tables["endpoints"][0]["inject limit"])
    assert inline(first) == 1
    assert inline(latency(peer, over=over, size=limit, count=10)) == limit
    assert inline(latency(peer, over=over, size=limit + 1, count=10)) == 0
    assert inline(latency(peer, over=over, size=limit, inline=0, count=10)) == 0
    assert inline(latency(peer, over=over, size=limit, inline=limit - 1, count=10)) == limit - 1
    assert inline(bandwidth(peer, over=over, size=limit, count=10)) == 0


@pytest.mark.parametrize("test", [rma, rperf])
def test_a_test_that_sockets_cannot_run_chooses_a_transport_that_can(peer, test):
    need("ofi:shm", "write")
    run = test(peer, count=20, warmup=5)
    over = str(run.record.settings["over"])
    verbs = [a for a in availability("verbs") if a.available]
    assert over == ("verbs" if verbs else "ofi:shm")
    assert number(run, "messages") == 20


def test_no_transport_is_chosen_that_only_this_host_has_for_a_peer_elsewhere():
    need("ofi:tcp", "write")
    chosen = choose_over(RMA, {}, near=False)["over"]
    assert chosen in ("verbs", "ofi:tcp")
    assert choose_over(RMA, {"over": "delay"}, near=False) == {"over": "delay"}
    assert choose_over(LATENCY, {}, near=True) == {}


def test_what_no_transport_can_do_is_refused_with_its_reason():
    with pytest.raises(InputError, match="fetch-add is of 8 B"):
        choose_over(RMA, {"op": "fetch-add", "size": 16}, near=True)


def test_a_setting_that_a_test_does_not_have_is_refused_in_python_too(peer):
    with pytest.raises(InputError, match="colour: this test has no such setting"):
        latency(peer, over="tcp", colour="red")


def test_a_peer_that_dies_ends_the_run_with_what_it_has():
    server = LocalServer()
    killer = threading.Timer(1.5, os.kill, (server.pid, signal.SIGKILL))
    try:
        with open_peer(f"127.0.0.1:{server.port}", server.token) as doomed:
            killer.start()
            run = latency(doomed, over="tcp", duration="60 s", warmup=5)
    finally:
        killer.join()
        server.close()
    assert "peer lost" in run.ended
    assert samples_in(run, "half_rtt") > 0
    assert any(note.startswith("ended: ") for note in run.record.notes)


def test_an_operation_that_fails_at_once_is_an_error_and_not_a_record(peer):
    need("ofi:shm", "inject")
    with pytest.raises(WeftError, match="inject of 65536 B exceeds"):
        latency(peer, over="ofi:shm", op="inject", size="64K", count=100)


def test_the_peer_is_told_how_long_a_test_will_take():
    settings = settings_from(LATENCY.settings, {"duration": "2 s"})
    (channel,) = read_channels([encode_channel(echo_channel(settings))])[0]
    assert "seconds 2 exceeds the server's limit 1" in str(
        find_excess([channel], Limits(duration_s=1))[0]
    )


def test_a_test_without_a_peer_says_how_to_open_one():
    with pytest.raises(InputError, match="open_peer"):
        latency(None, over="tcp", count=10)


def test_a_receiver_that_was_held_up_does_not_make_the_wire_faster():
    sent = [Counts(sent=100, bytes=100_000, elapsed_ns=1_000_000)]
    backlog = [Counts(received=100, bytes=100_000, elapsed_ns=10_000)]
    carried = sum_counts(backlog, beside=sent)
    assert carried.bits_per_second == sum_counts(sent).bits_per_second
    assert sum_counts(sent, beside=backlog).elapsed_ns == 1_000_000
    assert sum_counts([Counts()], beside=sent).bits_per_second == 0


def test_a_saturation_that_was_cut_short_before_its_maximum_has_none(monkeypatch):
    rig = SimpleNamespace(ended="interrupted")
    monkeypatch.setattr(saturation_test, "measure_maximum", lambda *_: None)
    observed = saturation_test.run(rig, SimpleNamespace(steps=4))
    assert "maximum" not in observed.quantities
    assert not observed.steps
