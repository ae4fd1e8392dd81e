"""Laws of simulated runs: same seed same bytes, no rate above the link's, open loops that tell."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.records import Distribution, Record, Scalar
from weft.records.schema import to_line
from weft.simulate import Outcome, scenario_from, simulate

HEADER = {"rc": 26, "uc": 26, "ud": 34}
RATE = 56.0  # Gb/s, so that size * 8 / RATE is in ns


def run(data: dict[str, Any], **changes: Any) -> Outcome:
    return simulate(scenario_from(data | changes))


def value(record: Record, name: str) -> float:
    quantity = record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


def times(record: Record, name: str) -> Distribution:
    quantity = record.quantities[name]
    assert isinstance(quantity, Distribution)
    return quantity


def star(hosts: int, **changes: Any) -> dict[str, Any]:
    fabric = {"topology": "one_switch", "hosts": hosts, "rate": f"{RATE} Gb/s", "delay": "20 ns"}
    return {"duration": "100 us", "fabric": fabric} | changes


# ---- Same seed, same bytes --------------------------------------------------------------------


@st.composite
def kinds(draw: st.DrawFn) -> dict[str, Any]:
    """A traffic of any kind on hosts h0 to h3."""
    kind = draw(
        st.sampled_from(
            [
                "bandwidth",
                "latency",
                "paced",
                "pretend",
                "incast",
                "permutation",
                "random",
                "shuffle",
                "allreduce",
            ]
        )
    )
    table: dict[str, Any] = {"name": kind, "kind": kind, "sl": draw(st.integers(0, 15))}
    if kind in ("permutation", "random", "shuffle", "allreduce"):
        return table | {"size": draw(st.sampled_from(["64 B", "5000 B", "64 KiB"]))}
    table |= {
        "from": "h0..h2",
        "to": "h3",
        "size": draw(st.sampled_from(["64 B", "4096 B", "9 kB"])),
    }
    if kind == "paced":
        table |= {"interval": "2 us", "arrivals": draw(st.sampled_from(["fixed", "poisson"]))}
    if kind == "latency":
        table |= {
            "estimator": draw(st.sampled_from(["completion", "ping-pong", "rperf-alternating"]))
        }
    return table


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    """Jitter, host delays, lanes and mixed traffic on four hosts."""
    fabric = draw(
        st.sampled_from(
            [
                {"topology": "one_switch", "hosts": 4},
                {"topology": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2},
                {"topology": "fat_tree", "k": 4},
            ]
        )
    )
    lanes = draw(st.integers(1, 3))
    traffic = draw(st.lists(kinds(), min_size=1, max_size=3, unique_by=lambda t: t["name"]))
    return {
        "duration": "60 us",
        "warmup": draw(st.sampled_from(["0 us", "10 us"])),
        "seed": draw(st.integers(0, 2**63 - 1)),
        "system": draw(st.sampled_from(["ideal", "omnet", "sx6012"])),
        "sample_queues_every": draw(st.sampled_from(["0 ns", "1 us"])),
        "fabric": fabric | {"rate": "4xFDR", "delay": "20 ns", "lanes": lanes},
        "switch": {
            "order": draw(st.sampled_from(["fcfs", "fcfs-age", "round-robin"])),
            "virtual_output_queues": draw(st.booleans()),
        },
        "congestion": {"enabled": draw(st.booleans())},
        "traffic": traffic,
    }


@settings(max_examples=40, deadline=None)
@given(scenarios())
def test_the_same_scenario_gives_the_same_bytes_whatever_ran_before(data: dict[str, Any]) -> None:
    first = to_line(run(data).record)
    run(data, seed=12345, duration="5 us", warmup="0 us")
    assert to_line(run(data).record) == first


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**62), st.integers(1, 2**62))
def test_with_jitter_another_seed_gives_other_times_and_without_it_does_not(
    seed: int, more: int
) -> None:
    probe = {"name": "probe", "kind": "latency", "from": "h0", "to": "h1"}
    for jitter in ("25 ns", "0 ns"):
        data = star(2, switch={"jitter": jitter}, traffic=[probe])
        a, b = (times(run(data, seed=s).record, "probe.rtt").histogram for s in (seed, seed + more))
        assert (a == b) == (jitter == "0 ns")


# ---- Rates ------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    senders=st.integers(1, 5),
    size=st.integers(1, 20_000),
    mtu=st.sampled_from([256, 512, 1024, 2048, 4096]),
    transport=st.sampled_from(["rc", "uc", "ud"]),
    order=st.sampled_from(["fcfs", "round-robin"]),
    system=st.sampled_from(["ideal", "omnet", "sx6012"]),
)
def test_goodput_is_at_most_the_payload_s_share_of_the_wire(
    senders: int, size: int, mtu: int, transport: str, order: str, system: str
) -> None:
    size = min(size, mtu) if transport == "ud" else size
    load = {
        "name": "load",
        "kind": "bandwidth",
        "from": f"h1..h{senders}",
        "to": "h0",
        "size": f"{size} B",
        "mtu": mtu,
        "transport": transport,
    }
    data = star(senders + 1, system=system, switch={"order": order}, traffic=[load])
    data |= {"duration": "200 us", "warmup": "40 us"}
    wire = size + math.ceil(size / mtu) * HEADER[transport]
    edge = (mtu + 100) * 8 / 160_000  # one packet that was on the wire when the warm-up ended
    assert value(run(data).record, "load.goodput") <= RATE * size / wire + edge


def test_one_sender_on_ideal_hosts_reaches_the_bound() -> None:
    load = {"name": "load", "kind": "bandwidth", "from": "h1", "to": "h0", "size": "4096 B"}
    record = run(star(2, duration="1 ms", warmup="100 us", traffic=[load])).record
    assert value(record, "load.goodput") == pytest.approx(RATE * 4096 / 4122, rel=2e-3)


@settings(max_examples=20, deadline=None)
@given(scenarios())
def test_no_port_sends_faster_than_its_link_and_links_lose_nothing(data: dict[str, Any]) -> None:
    rows = run(data, duration="100 us").record.tables["ports"]
    seconds, packet = 100e-6, 4200
    sent, received = octets(rows, "XmitData"), octets(rows, "RcvData")
    for port, count in sent.items():
        assert count * 8 / seconds <= 54.55e9 + packet * 8 / seconds, port
    for port, peer in peers(data).items():
        # A packet is sent as its head leaves, and received once the switch or adapter has it: at
        # the end there is one leaving, one arriving, and what a cable, a pipeline of at most
        # 200 ns and its jitter hold, together less than 1 us of the link.
        under_way = sent.get(port, 0) - received.get(peer, 0)
        assert 0 <= under_way <= 2 * packet + 1e-6 * 54.55e9 / 8, port


def octets(rows: Sequence[Mapping[str, Any]], column: str) -> dict[tuple[str, int], int]:
    """A counter of data by port, all lanes together."""
    total: dict[tuple[str, int], int] = defaultdict(int)
    for row in rows:
        total[row["node"], row["port"]] += 4 * row[column]
    return total


def peers(data: dict[str, Any]) -> dict[tuple[str, int], tuple[str, int]]:
    """Every port and the one at the other end of its cable."""
    fabric = scenario_from(data).fabric
    name = [node.name for node in fabric.nodes]
    ends = [(link.a, link.b) for link in fabric.links]
    return {
        (name[a.node], a.port): (name[b.node], b.port)
        for peer, other in ends
        for a, b in ((peer, other), (other, peer))
    }


# ---- Open loop --------------------------------------------------------------------------------


def zero_load_one_way_ns(size: int) -> float:
    return 2 * 20 + 200 + (size + 26) * 8 / RATE


@settings(max_examples=15, deadline=None)
@given(
    size=st.sampled_from([64, 1000, 4096]),
    load=st.floats(0.1, 0.9),
    arrivals=st.sampled_from(["fixed", "poisson"]),
)
def test_paced_latency_is_never_below_that_of_an_idle_fabric(
    size: int, load: float, arrivals: str
) -> None:
    service = (size + 26) * 8 / RATE
    paced = {
        "name": "paced",
        "kind": "paced",
        "from": "h0",
        "to": "h1",
        "size": f"{size} B",
        "interval": f"{service / load} ns",
        "arrivals": arrivals,
    }
    one_way = times(run(star(2, traffic=[paced])).record, "paced.one_way").histogram
    floor = zero_load_one_way_ns(size)
    assert one_way.min / 1e3 >= floor - 0.01
    if arrivals == "fixed":
        assert one_way.max / 1e3 <= floor + 0.01


@settings(max_examples=15, deadline=None)
@given(overload=st.floats(1.2, 4.0), size=st.sampled_from([1000, 4096]))
def test_under_overload_paced_latency_counts_from_the_intended_time_and_grows_without_bound(
    overload: float, size: int
) -> None:
    """After time t, t (1 - 1/overload) of work is waiting: the queue is the latency."""
    service = (size + 26) * 8 / RATE
    paced = {
        "name": "paced",
        "kind": "paced",
        "from": "h0",
        "to": "h1",
        "size": f"{size} B",
        "interval": f"{service / overload} ns",
    }
    for duration in (200_000, 400_000, 800_000):
        record = run(star(2, duration=f"{duration} ns", traffic=[paced])).record
        waited = duration * (1 - 1 / overload)
        assert times(record, "paced.one_way").histogram.max / 1e3 == pytest.approx(waited, rel=0.03)


def test_a_closed_loop_omits_the_wait_that_an_open_loop_shows() -> None:
    """Coordinated omission: behind the same stall of 50 us, one bad sample in place of fifty."""
    burst = {
        "name": "burst",
        "kind": "incast",
        "from": "h2..h5",
        "to": "h1",
        "size": "100 kB",
        "start": "20 us",
    }
    closed = {"name": "probe", "kind": "latency", "from": "h0", "to": "h1", "think": "1 us"}
    paced = {"name": "probe", "kind": "paced", "from": "h0", "to": "h1", "interval": "1 us"}
    p90 = {}
    for probe in (closed, paced):
        data = star(6, duration="200 us", switch={"buffer": "128 KiB"}, traffic=[probe, burst])
        p90[probe["kind"]] = times(run(data).record, "probe.rtt").quantile(0.9)
    assert p90["paced"] > 10 * p90["latency"]


# ---- Estimators -------------------------------------------------------------------------------


def estimate(system: str, size: int = 64) -> Record:
    table = {
        "name": "est",
        "kind": "estimators",
        "from": "h0",
        "to": "h1",
        "slice": "3 ms",
        "size": f"{size} B",
    }
    return run(star(2, system=system, duration="12 ms", traffic=[table])).record


def wire_ns(size: int) -> float:
    """Flight and serialisation of a SEND and its ACK, without the switch."""
    return 4 * 20 + (size + 26 + 30) * 8 / RATE


@pytest.mark.parametrize("size", [64, 1024, 4096])
def test_on_ideal_hosts_rperf_and_the_completion_are_the_true_round_trip(size: int) -> None:
    true = wire_ns(size) + 400
    record = estimate("ideal", size)
    for name in ("rperf", "rperf_loopback_first"):
        rtt = times(record, f"est.{name}.rtt")
        assert rtt.histogram.min / 1e3 == pytest.approx(true, abs=0.1)
        # The last message of a slice may meet the first of the next.
        assert rtt.quantile(0.99) / 1e3 == pytest.approx(true, rel=1e-3)
        assert times(record, f"est.{name}.switch").histogram.min == 400_000
    probe = {"name": "probe", "kind": "latency", "from": "h0", "to": "h1", "size": f"{size} B"}
    completion = times(run(star(2, traffic=[probe])).record, "probe.rtt").histogram
    assert completion.min / 1e3 == pytest.approx(true, abs=0.1)
    assert completion.max / 1e3 == pytest.approx(true, abs=0.1)


def test_on_real_hosts_rperf_errs_by_less_than_30_ns_and_the_others_by_more_than_1_us() -> None:
    record = estimate("sx6012")

    def error_ns(name: str) -> float:
        true = times(record, f"est.{name}.switch").quantile(0.5) / 1e3 + wire_ns(64)
        return times(record, f"est.{name}.rtt").quantile(0.5) / 1e3 - true

    assert abs(error_ns("rperf")) < 30
    assert error_ns("post_poll") > 1000
    assert error_ns("ping_pong") > 1000
