"""The wait of a probe behind saturating senders agrees with `weft.model.queueing`.

The packet simulator knows none of its formulas: credits, buffers, turns and acknowledgements are
events there. Each test draws a switch, runs it, and compares the probe's round trip, less that of
an idle fabric, with the closed form. Small allowances are for other probes and ACKs on the way.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.model.link import Framing, on_wire
from weft.model.queueing import (
    Hotspot,
    Wait,
    closed_loop_round_robin_ns,
    fcfs_wait,
    own_lane_wait,
    round_robin_wait,
    two_hop_wait,
    zero_load_ns,
)
from weft.records import Distribution
from weft.simulate import scenario_from, simulate

HEADER = 26
PROBE_WIRE, ACK_WIRE = 64 + HEADER, 30
SIZES = (1024, 2048, 4096)
RATES = (10.0, 25.0, 54.3, 56.0, 100.0)


@st.composite
def hotspots(draw: st.DrawFn, most_packets: int = 12) -> Hotspot:
    """A saturated output: credits come back before the others' packets have left."""
    wire = draw(st.sampled_from(SIZES)) + HEADER
    blocks = -(-wire // 64)
    hotspot = Hotspot(
        senders=draw(st.integers(2, 6)),
        buffer_bytes=draw(st.integers(1, most_packets)) * blocks * 64 + draw(st.integers(0, 63)),
        packet_bytes=wire,
        rate_gbps=draw(st.sampled_from(RATES)),
        switch_ns=draw(st.integers(0, 400)),
        flight_ns=draw(st.integers(0, 800)),
        credit_delay_ns=draw(st.integers(0, 4000)),
        credit_interval_ns=draw(st.sampled_from([0, 0, 256, 1000])),
        ack_bytes=ACK_WIRE,
    )
    low, slack = float(circulation_ns(hotspot)), float(2 * hotspot.packet_ns)
    assume(low > float(hotspot.credit_loop_ns) + number(hotspot.credit_interval_ns) + slack)
    return hotspot


def number(value: Any) -> float:
    return float(value)


def circulation_ns(hotspot: Hotspot) -> float:
    return number(hotspot.senders) * number(hotspot.packets_held) * number(hotspot.packet_ns)


def one_switch(
    hotspot: Hotspot,
    *,
    order: str = "fcfs",
    loops_ns: float,
    probe: dict[str, Any] | None = None,
    lanes: dict[str, Any] | None = None,
    window: int = 256,
) -> dict[str, Any]:
    """`senders` hosts saturate the last one, the first probes it; times in circulations."""
    senders = int(number(hotspot.senders))
    sink = f"h{senders + 1}"
    return {
        "duration": f"{24 * loops_ns} ns",
        "warmup": f"{4 * loops_ns} ns",
        "fabric": {
            "topology": "one_switch",
            "hosts": senders + 2,
            "lanes": 2 if lanes else 1,
            "rate": f"{hotspot.rate_gbps} Gb/s",
            "delay": f"{hotspot.flight_ns} ns",
        },
        "switch": {
            "buffer": f"{hotspot.buffer_bytes} B",
            "latency": f"{hotspot.switch_ns} ns",
            "order": order,
        },
        "host": {"buffer": "1 MiB"},
        "credits": {
            "delay": f"{hotspot.credit_delay_ns} ns",
            "interval": f"{hotspot.credit_interval_ns} ns",
        },
        **({"lanes": lanes} if lanes else {}),
        "traffic": [
            {"name": "probe", "kind": "latency", "from": "h0", "to": sink, **(probe or {})},
            {
                "name": "load",
                "kind": "bandwidth",
                "from": f"h1..h{senders}",
                "to": sink,
                "size": f"{int(number(hotspot.packet_bytes)) - HEADER} B",
                "window": window,
            },
        ],
    }


def idle_ns(hotspot: Hotspot, switches: int = 1) -> float:
    links = switches + 1
    rates, flights = [number(hotspot.rate_gbps)] * links, [number(hotspot.flight_ns)] * links
    return sum(
        float(
            zero_load_ns(
                wire, rates_gbps=rates, flights_ns=flights, switch_ns=number(hotspot.switch_ns)
            )
        )
        for wire in (PROBE_WIRE, ACK_WIRE)
    )


def waits_ns(data: dict[str, Any], zero_load: float, least: int = 5) -> tuple[float, float, float]:
    """Least, median and greatest wait of the probe: its round trip less that of an idle fabric."""
    rtt = simulate(scenario_from(data)).record.quantities["probe.rtt"]
    assert isinstance(rtt, Distribution)
    assert rtt.histogram.count >= least
    low, mid, high = (rtt.quantile(q) / 1e3 - zero_load for q in (0.0, 0.5, 1.0))
    return low, mid, high


def small_ns(hotspot: Hotspot, typical_ns: float) -> float:
    """Other probes, ACKs, the histogram's buckets."""
    return 3 * PROBE_WIRE * 8 / number(hotspot.rate_gbps) + 0.001 * typical_ns


def assert_within(found: tuple[float, float, float], wait: Wait, small: float) -> None:
    low, _, high = found
    assert low >= float(wait.low_ns) - small
    assert high <= float(wait.high_ns) + small


@settings(max_examples=60, deadline=None)
@given(hotspots())
def test_the_fcfs_wait_is_n_buffers_at_line_rate_less_the_credit_loop(hotspot: Hotspot) -> None:
    circulation = circulation_ns(hotspot)
    data = one_switch(hotspot, loops_ns=circulation + number(hotspot.packet_ns))
    found = waits_ns(data, idle_ns(hotspot))
    assert_within(found, fcfs_wait(hotspot), small_ns(hotspot, circulation))


@settings(max_examples=20, deadline=None)
@given(senders=st.integers(2, 8), rate_gbps=st.sampled_from([25.0, 56.0, 100.0]))
def test_with_a_credit_loop_of_one_buffer_each_further_sender_adds_one_buffer(
    senders: int, rate_gbps: float
) -> None:
    packets, wire = 8, 4096 + HEADER
    packet_ns = wire * 8 / rate_gbps
    hotspot = Hotspot(
        senders=senders,
        buffer_bytes=packets * 4160,
        packet_bytes=wire,
        rate_gbps=rate_gbps,
        switch_ns=200,
        flight_ns=10,
        credit_delay_ns=round((packets - 1) * packet_ns - 220),  # tau = B/R
    )
    buffer_ns = packets * packet_ns
    data = one_switch(hotspot, loops_ns=senders * buffer_ns)
    _, median, _ = waits_ns(data, idle_ns(hotspot))
    assert abs(median - (senders - 1) * buffer_ns) <= packet_ns + 0.01 * senders * buffer_ns


@settings(max_examples=60, deadline=None)
@given(hotspots(), st.integers(1, 16))
def test_windows_smaller_than_the_buffers_shorten_the_wait(hotspot: Hotspot, window: int) -> None:
    limited = Hotspot(
        **{name: getattr(hotspot, name) for name in Hotspot.__slots__ if name != "window_packets"},
        window_packets=window,
    )
    cycle = number(hotspot.senders) * number(hotspot.packet_ns)
    assume(cycle * window > float(limited.window_loop_ns) + 2 * float(limited.packet_ns))
    data = one_switch(limited, loops_ns=circulation_ns(limited), window=window)
    found = waits_ns(data, idle_ns(limited), least=3)
    assert_within(found, fcfs_wait(limited), small_ns(limited, circulation_ns(limited)))


@settings(max_examples=60, deadline=None)
@given(hotspots())
def test_round_robin_lets_each_other_input_go_before_the_probe_once(hotspot: Hotspot) -> None:
    data = one_switch(hotspot, order="round-robin", loops_ns=circulation_ns(hotspot))
    found = waits_ns(data, idle_ns(hotspot))
    assert_within(found, round_robin_wait(hotspot), small_ns(hotspot, circulation_ns(hotspot)))


@settings(max_examples=60, deadline=None)
@given(hotspots(), st.integers(0, 5000))
def test_a_closed_loop_probe_meets_the_same_turn_of_round_robin_again(
    hotspot: Hotspot, think_ns: int
) -> None:
    idle = idle_ns(hotspot)
    loop = idle + think_ns
    cycle = number(hotspot.senders) * number(hotspot.packet_ns)
    wait = float(closed_loop_round_robin_ns(hotspot, PROBE_WIRE, loop))
    small = small_ns(hotspot, cycle)
    assume(small < wait < cycle - small)  # it neither just meets nor just misses its turn
    data = one_switch(
        hotspot,
        order="round-robin",
        loops_ns=circulation_ns(hotspot) + loop,
        probe={"think": f"{think_ns} ns"},
    )
    _, median, _ = waits_ns(data, idle)
    assert abs(median - wait) <= small


@settings(max_examples=40, deadline=None)
@given(hotspots(), st.integers(0, 255))
def test_on_a_lane_of_its_own_a_probe_waits_for_the_turn_under_way(
    hotspot: Hotspot, weight: int
) -> None:
    tables = {"low": [[0, weight], [1, 64]]} if weight else {"high": [[1, 64]], "low": [[0, 64]]}
    data = one_switch(
        hotspot,
        loops_ns=circulation_ns(hotspot) + idle_ns(hotspot),
        probe={"sl": 1},
        lanes={"sl2vl": [0, 1], **tables},
    )
    found = waits_ns(data, idle_ns(hotspot))
    wait = own_lane_wait(hotspot, load_weight=weight)
    # On its way back the probe's ACK shares the sink's cable with those of the load.
    assert_within(found, wait, small_ns(hotspot, circulation_ns(hotspot)))


def two_hops(hotspot: Hotspot, below: int, order: str, loops_ns: float) -> dict[str, Any]:
    above = int(number(hotspot.senders))
    sink = f"h{above + below + 1}"
    data = one_switch(hotspot, order=order, loops_ns=loops_ns)
    size = data["traffic"][1]["size"]
    load = {"kind": "bandwidth", "to": sink, "size": size, "window": 256}
    data["fabric"] = {
        "topology": "two_hops",
        "upstream_hosts": above + 1,
        "downstream_hosts": below + 1,
        "rate": f"{hotspot.rate_gbps} Gb/s",
        "delay": f"{hotspot.flight_ns} ns",
    }
    data["traffic"] = [
        {"name": "probe", "kind": "latency", "from": f"h{above}", "to": sink},
        {"name": "above", "from": f"h0..h{above - 1}", **load},
        {"name": "below", "from": f"h{above + 1}..h{above + below}", **load},
    ]
    return data


@settings(max_examples=50, deadline=None)
@given(hotspots(8), st.integers(1, 4), st.sampled_from(["fcfs", "round-robin"]))
def test_two_hops_add_the_cables_buffer_to_the_first_switchs_wait(
    hotspot: Hotspot, below: int, order: str
) -> None:
    second = (below + 1) * number(hotspot.packets_held) * number(hotspot.packet_ns)
    spare = number(hotspot.credit_interval_ns) + 2 * number(hotspot.packet_ns)
    assume(second > float(hotspot.credit_loop_ns) + spare)
    wait = two_hop_wait(hotspot, below, order=order)
    data = two_hops(hotspot, below, order, loops_ns=float(wait.high_ns) + idle_ns(hotspot, 2))
    found = waits_ns(data, idle_ns(hotspot, 2))
    assert_within(found, wait, small_ns(hotspot, float(wait.high_ns)))


@settings(max_examples=50, deadline=None)
@given(hotspots(8), st.integers(1, 4))
def test_two_hops_served_by_age_wait_for_what_all_buffers_hold(
    hotspot: Hotspot, below: int
) -> None:
    above, packet_ns = number(hotspot.senders), number(hotspot.packet_ns)
    buffer_ns = number(hotspot.packets_held) * packet_ns
    loop_ns = number(hotspot.credit_loop_ns) + number(hotspot.credit_interval_ns)
    assume(loop_ns <= buffer_ns)
    assume((loop_ns + packet_ns) * above <= buffer_ns * (above + below))
    wait = two_hop_wait(hotspot, below, order="fcfs-age")
    loops_ns = 3 * float(wait.high_ns) + idle_ns(hotspot, 2)
    found = waits_ns(two_hops(hotspot, below, "fcfs-age", loops_ns), idle_ns(hotspot, 2))
    assert_within(found, wait, small_ns(hotspot, float(wait.high_ns)))


@settings(max_examples=60, deadline=None)
@given(
    rates=st.lists(st.sampled_from(RATES), min_size=1, max_size=4),
    flights=st.lists(st.integers(0, 900), min_size=4, max_size=4),
    switch_ns=st.integers(0, 500),
    size=st.integers(1, 4096),
)
def test_the_idle_round_trip_is_the_sum_of_the_paths_parts(
    rates: list[float], flights: list[int], switch_ns: int, size: int
) -> None:
    flights = flights[: len(rates)]
    wires = [(-(-size // 4) * 4 + HEADER, rates, flights), (ACK_WIRE, rates[::-1], flights[::-1])]
    expected = sum(
        float(zero_load_ns(wire, rates_gbps=way, flights_ns=flown, switch_ns=switch_ns))
        for wire, way, flown in wires
    )
    with TemporaryDirectory() as folder:
        (Path(folder) / "line.toml").write_text(line_fabric(rates, flights))
        data = {
            "duration": "200 us",
            "fabric": {"file": "line.toml"},
            "switch": {"latency": f"{switch_ns} ns"},
            "traffic": [
                {
                    "name": "probe",
                    "kind": "latency",
                    "from": "h0",
                    "to": "h1",
                    "size": f"{size} B",
                    "messages": 3,
                }
            ],
        }
        rtt = simulate(scenario_from(data, base=Path(folder))).record.quantities["probe.rtt"]
    assert isinstance(rtt, Distribution)
    for q in (0.0, 1.0):
        assert rtt.quantile(q) / 1e3 == pytest.approx(expected, rel=1.5e-3, abs=0.1)


def line_fabric(rates: list[float], flights: list[int]) -> str:
    """Two hosts with a switch between every two links."""
    nodes = ["h0:1", *(f"s{i}:{p}" for i in range(len(rates) - 1) for p in (1, 2)), "h1:1"]
    switches = "".join(f'[[switch]]\nname = "s{i}"\nports = 2\n' for i in range(len(rates) - 1))
    links = "".join(
        f'[[link]]\nends = ["{a}", "{b}"]\nrate = "{rate} Gb/s"\ndelay = "{flight} ns"\n'
        for a, b, rate, flight in zip(nodes[::2], nodes[1::2], rates, flights, strict=True)
    )
    hosts = '[[host]]\nname = "h0"\n[[host]]\nname = "h1"\n'
    return f'[fabric]\nname = "line"\nrouting = "shortest_path"\n{hosts}{switches}{links}'


@settings(max_examples=40, deadline=None)
@given(hotspots(), st.integers(4097, 100_000))
def test_an_idle_message_takes_the_time_of_all_its_packets_once(
    hotspot: Hotspot, size: int
) -> None:
    rate, flight, latency = (
        number(x) for x in (hotspot.rate_gbps, hotspot.flight_ns, hotspot.switch_ns)
    )
    total = float(on_wire(size, Framing()).data_bytes)
    last = -(-((size - 1) % 4096 + 1) // 4) * 4 + HEADER
    expected = zero_load_ns(
        last,
        rates_gbps=[rate] * 2,
        flights_ns=[flight] * 2,
        switch_ns=latency,
        ahead_bytes=total - last,
    )
    data = one_switch(hotspot, loops_ns=50_000, probe={"size": f"{size} B", "messages": 2})
    data |= {
        "switch": {"latency": f"{latency} ns"},
        "traffic": data["traffic"][:1],
        "warmup": "0 ns",
    }
    data |= {"host": {"buffer": "1 MiB"}, "credits": {}}
    data["switch"]["buffer"] = "1 MiB"
    one_way = simulate(scenario_from(data)).record.quantities["probe.one_way"]
    assert isinstance(one_way, Distribution)
    assert one_way.quantile(0.5) / 1e3 == pytest.approx(float(expected), rel=1.5e-3)


def test_poisson_messages_of_one_size_wait_as_in_m_d_1() -> None:
    """W = s · ρ / (2 (1 − ρ)): the host's link is the server, s its time for a message."""
    load, rate_gbps = 0.8, 56.0
    service_ns = (4096 + HEADER) * 8 / rate_gbps
    fabric = {"topology": "one_switch", "hosts": 2, "rate": f"{rate_gbps} Gb/s", "delay": "50 ns"}
    traffic = {
        "name": "messages",
        "kind": "paced",
        "from": "h0",
        "to": "h1",
        "size": "4096 B",
        "interval": f"{service_ns / load:.3f} ns",
        "arrivals": "poisson",
    }
    data = {"duration": "200 ms", "warmup": "1 ms", "fabric": fabric, "traffic": [traffic]}
    one_way = simulate(scenario_from(data)).record.quantities["messages.one_way"]
    assert isinstance(one_way, Distribution)
    idle_ns = service_ns + 2 * 50 + 200
    wait_ns = one_way.histogram.mean / 1e3 - idle_ns
    assert wait_ns == pytest.approx(service_ns * load / (2 * (1 - load)), rel=0.03)
