"""The wait of a probe behind saturating senders agrees with N B/R - tau, for any N, B, R, tau.

With first come, first served, every packet that starts to leave the switch makes room for one of
the same sender, which may leave itself tau later at the earliest: its own serialisation T until
the space is free, the credit's flight d and delay c, the replacement's flight d, the switch's
latency L. N senders with buffers of P packets keep N P packets circulating, one leaves every T,
so the replacement leaves N P T after the packet it replaces and has waited N P T - tau. A probe
that arrives between two packets waits up to one T more, for the one before it.

P is what fits: floor(B / 64) blocks hold floor(blocks / blocks of a packet) packets.
"""

from __future__ import annotations

import math
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.records import Distribution
from weft.simulate import scenario_from, simulate

HEADER = 26
PROBE_WIRE, ACK_WIRE = 64 + HEADER, 30


def one_switch(
    *, senders: int, buffer: int, rate_gbps: float, delay_ns: int, latency_ns: int,
    credit_delay_ns: int, credit_interval_ns: int, size: int, loops: float,
) -> dict[str, Any]:  # fmt: skip
    """`senders` hosts saturate the last one, the first probes it; times in circulations."""
    sink = f"h{senders + 1}"
    return {
        "duration": f"{24 * loops} ns",
        "warmup": f"{4 * loops} ns",
        "fabric": {
            "topology": "one_switch", "hosts": senders + 2,
            "rate": f"{rate_gbps} Gb/s", "delay": f"{delay_ns} ns",
        },
        "switch": {"buffer": f"{buffer} B", "latency": f"{latency_ns} ns", "order": "fcfs"},
        "host": {"buffer": "1 MiB"},
        "credits": {"delay": f"{credit_delay_ns} ns", "interval": f"{credit_interval_ns} ns"},
        "traffic": [
            {"name": "probe", "kind": "latency", "from": "h0", "to": sink},
            {"name": "load", "kind": "bandwidth", "from": f"h1..h{senders}", "to": sink,
             "size": f"{size} B", "window": 256},
        ],
    }  # fmt: skip


def waits_ns(data: dict[str, Any], zero_load_ns: float) -> tuple[float, float, float]:
    """Least, median and greatest wait of the probe: its round trip less that of an idle fabric."""
    rtt = simulate(scenario_from(data)).record.quantities["probe.rtt"]
    assert isinstance(rtt, Distribution)
    assert rtt.histogram.count >= 5
    low, mid, high = (rtt.quantile(q) / 1e3 - zero_load_ns for q in (0.0, 0.5, 1.0))
    return low, mid, high


@settings(max_examples=60, deadline=None)
@given(
    senders=st.integers(2, 6),
    packets=st.integers(1, 12),
    slack=st.integers(0, 63),
    rate_gbps=st.sampled_from([10.0, 25.0, 54.3, 56.0, 100.0]),
    delay_ns=st.integers(0, 800),
    latency_ns=st.integers(0, 400),
    credit_delay_ns=st.integers(0, 4000),
    credit_interval_ns=st.sampled_from([0, 0, 256, 1000]),
    size=st.sampled_from([1024, 2048, 4096]),
)
def test_the_fcfs_wait_is_n_buffers_at_line_rate_less_the_credit_loop(
    senders: int, packets: int, slack: int, rate_gbps: float, delay_ns: int, latency_ns: int,
    credit_delay_ns: int, credit_interval_ns: int, size: int,
) -> None:  # fmt: skip
    wire = size + HEADER
    blocks = math.ceil(wire / 64)
    buffer = packets * blocks * 64 + slack
    packet_ns, probe_ns = wire * 8 / rate_gbps, PROBE_WIRE * 8 / rate_gbps
    tau = packet_ns + 2 * delay_ns + credit_delay_ns + latency_ns
    circulation = senders * packets * packet_ns
    # Saturated: credits come back before the others' packets have left.
    assume(circulation > tau + credit_interval_ns + 2 * packet_ns)
    zero_load = 4 * delay_ns + 2 * latency_ns + (PROBE_WIRE + ACK_WIRE) * 8 / rate_gbps
    data = one_switch(
        senders=senders, buffer=buffer, rate_gbps=rate_gbps, delay_ns=delay_ns,
        latency_ns=latency_ns, credit_delay_ns=credit_delay_ns,
        credit_interval_ns=credit_interval_ns, size=size, loops=circulation + packet_ns,
    )  # fmt: skip
    low, _, high = waits_ns(data, zero_load)
    small = 3 * probe_ns + 0.001 * circulation  # other probes, ACKs, the histogram's buckets
    assert low >= circulation - tau - credit_interval_ns - small
    assert high <= circulation - tau + packet_ns + small


@settings(max_examples=20, deadline=None)
@given(senders=st.integers(2, 8), rate_gbps=st.sampled_from([25.0, 56.0, 100.0]))
def test_with_a_credit_loop_of_one_buffer_each_further_sender_adds_one_buffer(
    senders: int, rate_gbps: float
) -> None:
    packets, size = 8, 4096
    packet_ns = (size + HEADER) * 8 / rate_gbps
    buffer_ns = packets * packet_ns
    credit_delay = round(buffer_ns - packet_ns - 220)  # tau = B/R with 10 ns cables and 200 ns
    data = one_switch(
        senders=senders, buffer=packets * 4160, rate_gbps=rate_gbps, delay_ns=10, latency_ns=200,
        credit_delay_ns=credit_delay, credit_interval_ns=0, size=size, loops=senders * buffer_ns,
    )  # fmt: skip
    zero_load = 440 + (PROBE_WIRE + ACK_WIRE) * 8 / rate_gbps
    _, median, _ = waits_ns(data, zero_load)
    assert abs(median - (senders - 1) * buffer_ns) <= packet_ns + 0.01 * senders * buffer_ns
