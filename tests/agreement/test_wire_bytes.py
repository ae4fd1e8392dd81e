"""The model's packets and bytes of a message are those that the packet simulator sends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.model.link import TRANSPORTS, Framing, goodput_gbps, on_wire
from weft.records import Record, Scalar
from weft.simulate import scenario_from, simulate
from weft.simulate.traffic import MTUS, OPERATIONS
from weft.simulate.traffic import TRANSPORTS as SIMULATED

PAIRS = [(t, o) for t in SIMULATED for o in OPERATIONS if o in TRANSPORTS[t].operations]


def sent(traffic: dict[str, Any], duration: str = "1 ms", warmup: str = "0 us") -> Record:
    """Host h0 sends to (or reads from) h1 over one cable."""
    data = {
        "duration": duration,
        "warmup": warmup,
        "fabric": {"topology": "back_to_back", "rate": "100 Gb/s", "delay": "10 ns"},
        "host": {"buffer": "1 MiB"},
        "traffic": [{"name": "flow", "kind": "bandwidth", "from": "h0", "to": "h1", **traffic}],
    }
    return simulate(scenario_from(data)).record


def bytes_sent(record: Record, node: str) -> tuple[int, int]:
    """Packets and bytes; InfiniBand counts words of four bytes without each packet's VCRC."""
    for row in record.tables["ports"]:
        if row["node"] == node:
            packets, words = row["XmitPkts"], row["XmitData"]
            assert isinstance(packets, int)
            assert isinstance(words, int)
            return packets, 4 * words + 2 * packets
    return 0, 0


@settings(max_examples=40, deadline=None)
@given(
    size=st.one_of(st.integers(1, 40_000), st.sampled_from([255, 256, 257, 4095, 4096, 4097])),
    mtu=st.sampled_from(MTUS),
    ack_every=st.integers(0, 3),
)
@pytest.mark.parametrize(("transport", "operation"), PAIRS)
def test_a_message_costs_what_the_simulator_sends(
    transport: str, operation: str, size: int, mtu: int, ack_every: int
) -> None:
    if transport == "ud":
        size = min(size, mtu)
    framing = Framing(
        transport=transport, operation=operation, mtu_bytes=mtu, packets_per_ack=ack_every
    )
    cost = on_wire(size, framing)
    record = sent(
        {
            "size": f"{size} B",
            "mtu": mtu,
            "transport": transport,
            "operation": operation,
            "messages": 1,
            "ack_every": ack_every,
        }
    )
    data, answers = ("h1", "h0") if operation == "read" else ("h0", "h1")
    assert bytes_sent(record, data) == (cost.packets, cost.data_bytes)
    if ack_every <= 1 or operation == "read":  # else the last ACK is sent ahead of its turn
        assert bytes_sent(record, answers)[1] == cost.answer_bytes


@settings(max_examples=25, deadline=None)
@given(size=st.integers(64, 20_000), mtu=st.sampled_from(MTUS[2:]), both=st.booleans())
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_full_simulated_link_moves_the_bound(
    operation: str, size: int, mtu: int, both: bool
) -> None:
    ways = ["h0", "h1"] if both else ["h0"]
    framing = Framing(operation=operation, mtu_bytes=mtu, packets_per_ack=1)
    bound = float(goodput_gbps(size, 100.0, framing, both_ways=both))
    record = sent(
        {
            "from": ways,
            "to": ["h0", "h1"] if both else "h1",
            "size": f"{size} B",
            "mtu": mtu,
            "operation": operation,
            "window": 512,
        },
        duration="600 us",
        warmup="200 us",
    )
    goodput = record.quantities["flow.goodput"]
    assert isinstance(goodput, Scalar)
    assert goodput.value / len(ways) == pytest.approx(bound, rel=0.01)
