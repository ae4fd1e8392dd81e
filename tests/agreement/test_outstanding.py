"""Outstanding messages of the simulator fill the line exactly where the model says.

One sender with a window of B messages over a switch; a message's credit is its acknowledgement.
Its loop without its own time on the line is two cables and a switch each way and the ACK's time.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.model.link import Framing, answer_packet_bytes, on_wire
from weft.model.outstanding import Pipe, count_covering, throughput_gbps
from weft.records import Scalar
from weft.simulate import scenario_from, simulate

FRAMING = Framing(transport="rc", mtu_bytes=4096)


def simulated_gbps(size: int, window: int, rate: float, flight_ns: int, switch_ns: int) -> float:
    data = {
        "duration": "3 ms",
        "warmup": "1 ms",
        "fabric": {
            "topology": "one_switch",
            "hosts": 2,
            "rate": f"{rate} Gb/s",
            "delay": f"{flight_ns} ns",
        },
        "switch": {"buffer": "4 MiB", "latency": f"{switch_ns} ns"},
        "host": {"buffer": "4 MiB"},
        "traffic": [
            {
                "name": "stream",
                "kind": "bandwidth",
                "from": "h0",
                "to": "h1",
                "size": f"{size} B",
                "window": window,
                "ack_every": 0,
            }
        ],
    }
    found = simulate(scenario_from(data)).record.quantities["stream.goodput"]
    assert isinstance(found, Scalar)
    return found.value


def pipe_of(size: int, rate: float, flight_ns: int, switch_ns: int) -> Pipe:
    on_line = float(on_wire(size, FRAMING).data_bytes)
    ack_ns = answer_packet_bytes("rc") * 8 / rate
    return Pipe(
        line_rate_gbps=rate * size / on_line,
        base_latency_us=(4 * flight_ns + 2 * switch_ns + ack_ns) / 1e3,
        most=10_000,
    )


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(64, 60_000),
    window=st.integers(1, 40),
    rate=st.sampled_from([10.0, 25.0, 56.0, 100.0]),
    flight_ns=st.integers(0, 3000),
    switch_ns=st.integers(0, 500),
)
def test_a_window_moves_its_messages_over_the_loop_up_to_the_line(
    size: int, window: int, rate: float, flight_ns: int, switch_ns: int
) -> None:
    pipe = pipe_of(size, rate, flight_ns, switch_ns)
    found = simulated_gbps(size, window, rate, flight_ns, switch_ns)
    assert found == pytest.approx(float(throughput_gbps(size, window, pipe)), rel=0.02)


@settings(max_examples=30, deadline=None)
@given(size=st.integers(256, 60_000), flight_ns=st.integers(100, 3000))
def test_the_fewest_covering_messages_fill_the_simulated_line_and_two_fewer_do_not(
    size: int, flight_ns: int
) -> None:
    pipe = pipe_of(size, 100.0, flight_ns, 200)
    fewest = int(count_covering(size, pipe))
    assert simulated_gbps(size, fewest, 100.0, flight_ns, 200) == pytest.approx(
        pipe.line_rate_gbps, rel=0.01
    )
    if fewest > 2:
        fewer = simulated_gbps(size, fewest - 2, 100.0, flight_ns, 200)
        assert fewer < pipe.line_rate_gbps * (1 - 0.5 / fewest)
