"""RPerf finds the link where ping-pong and post-poll find the host; the simulator says so too.

One set of parameters, the RPerf testbed's with every time a hundred times as long (a poll of ours
is nothing beside it then), goes into the packet simulator and into the delay transport. The
simulator computes what each estimator would find; on the delay transport the estimators of
weft.measure run in real time. Neither knows of the other. `pytest -s` shows the table.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from weft import _core, simulate, units
from weft.measure.accuracy import Judgement, judge_completion, judge_ping_pong, judge_rperf
from weft.records import Distribution

SCALE = 100
SIZE, HEADER, RETH = 64, 26, 16  # bytes
RATE_GBPS, CABLE_NS = 56.0, 10.0
CHUNKS, RPERF_CHUNK, PING_PONG_CHUNK, WRITE_CHUNK = 3, 4500, 3000, 2500  # below 0.9 s each
LOOP_PS = 150_000  # of our own loop per message
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Host:
    """Of the testbed, times in ns, rates in Gb/s, before scaling."""

    post: float
    hiccup: float
    hiccup_probability: float
    poll: float
    poll_jitter: float
    pcie_write: float
    pcie_write_rate: float
    tx: float
    rx: float
    write_ack: float
    packet_gap: float
    loopback_rate: float


def parameters() -> tuple[Host, float, float]:
    """The host, and the switch's latency and jitter in ns, as systems.toml has them."""
    text = files("weft.simulate").joinpath("systems.toml").read_text()
    system = tomllib.loads(text)["sx6012"]

    def number(value: str | float) -> float:
        if isinstance(value, float):
            return value
        if value.endswith("b/s"):
            return units.parse_rate(value) / 1e9
        return units.parse_time(value) / 1e3

    host = Host(**{f.name: number(system["host"][f.name]["value"]) for f in fields(Host)})
    return (
        host,
        number(system["switch"]["latency"]["value"]),
        number(system["switch"]["jitter"]["value"]),
    )


HOST, SWITCH_NS, JITTER_NS = parameters()


def us(ns: float) -> str:
    """A time as it is in the scaled world."""
    return f"{ns * SCALE / 1e3:.6f} us"


def wire_ns(wire_bytes: int) -> float:
    """Two cables, the switch less its jitter, the bytes once (it cuts through)."""
    return 2 * CABLE_NS + SWITCH_NS + wire_bytes * 8 / RATE_GBPS


def delay_config(wire_bytes: int = SIZE + HEADER) -> dict[str, Any]:
    """The testbed for the delay transport, whose adapter's time is part of a message's way."""
    hiccup = f"{HOST.hiccup_probability} * exponential({us(HOST.hiccup)})"
    seen = f"{us(HOST.pcie_write + HOST.poll)} + exponential({us(HOST.poll_jitter)})"
    loopback_ns = SIZE * 8 / HOST.loopback_rate
    store_ns = SIZE * 8 / HOST.pcie_write_rate
    return {
        "wire": f"{us(wire_ns(wire_bytes))} + exponential({us(JITTER_NS)})",
        "loopback": us(loopback_ns),
        "host_post": f"{us(HOST.post + HOST.tx - HOST.packet_gap)} + {hiccup}",
        "host_complete": seen,
        "remote_host": f"{seen} + {us(HOST.post + HOST.tx)} + {hiccup}",
        "remote_memory": us(HOST.write_ack + store_ns),
        "adapter_ns": round(HOST.packet_gap * SCALE),
        "receive_ns": round(HOST.rx * SCALE),
    }


def simulated(estimator: str, operation: str = "send") -> _core.Histogram:
    """What the simulator says an estimator finds; ACKs are as long as messages, both ways alike."""
    host = {f.name: getattr(HOST, f.name) for f in fields(Host)}
    scaled: dict[str, Any] = {k: us(v) for k, v in host.items()}
    for name in ("pcie_write_rate", "loopback_rate"):
        scaled[name] = f"{host[name] / SCALE} Gb/s"
    scaled["hiccup_probability"] = HOST.hiccup_probability
    wire_bytes = SIZE + HEADER + (RETH if operation == "write" else 0)
    data = {
        "system": "sx6012",
        "duration": "1000 s",
        "fabric": {
            "topology": "one_switch",
            "hosts": 2,
            "rate": f"{RATE_GBPS / SCALE} Gb/s",
            "delay": us(CABLE_NS),
        },
        "switch": {"latency": us(SWITCH_NS), "jitter": us(JITTER_NS)},
        "host": scaled,
        "traffic": [
            {
                "name": "probe",
                "kind": "latency",
                "from": "h0",
                "to": "h1",
                "messages": 200_000,
                "estimator": estimator,
                "operation": operation,
                "ack_size": f"{wire_bytes} B",
            }
        ],
    }
    rtt = simulate.simulate(simulate.scenario_from(data)).record.quantities["probe.rtt"]
    assert isinstance(rtt, Distribution)
    return rtt.histogram


@dataclass(frozen=True, slots=True)
class Measured:
    """Samples of the undisturbed messages of all chunks, ps."""

    samples: np.ndarray[Any, np.dtype[np.int64]]
    histogram: _core.Histogram


def measured(judgements: list[Judgement], factor: int = 1) -> Measured:
    kept = np.concatenate([factor * j.samples_ps[j.undisturbed] for j in judgements])
    histogram = _core.Histogram()
    histogram.record_many(np.ascontiguousarray(kept))
    return Measured(kept, histogram)


@pytest.fixture(scope="module")
def table() -> dict[str, tuple[Measured, _core.Histogram]]:
    """By estimator: found on the delay transport, and by the simulator."""
    config, write = delay_config(), delay_config(SIZE + HEADER + RETH)
    seeds = range(1, CHUNKS + 1)
    rows = {}
    for order, name in (
        ("wire-first", "rperf"),
        ("loopback-first", "rperf-loopback-first"),
        ("alternating", "rperf-alternating"),
    ):
        both = [judge_rperf({**config, "seed": s}, RPERF_CHUNK, order) for s in seeds]
        rows[name] = (measured([rperf for rperf, _ in both]), simulated(name))
        if order == "wire-first":
            post_poll = measured([post_poll for _, post_poll in both])
            rows["post-poll of send"] = (post_poll, simulated("completion"))
    writes = [judge_completion({**write, "seed": s}, WRITE_CHUNK, "write") for s in seeds]
    rows["post-poll of write"] = (measured(writes), simulated("completion", "write"))
    pings = [judge_ping_pong({**config, "seed": s}, PING_PONG_CHUNK) for s in seeds]
    rows["ping-pong"] = (measured(pings, factor=2), simulated("ping-pong"))
    show(rows)
    return rows


def show(rows: dict[str, tuple[Measured, _core.Histogram]]) -> None:
    link = 2 * (wire_ns(SIZE + HEADER) + JITTER_NS)
    print(f"\nmean round trip on the link: {us(link)}; every time is {SCALE} times the testbed's\n")
    print(f"{'estimator':<22}" + "".join(f"   p{100 * q:g} simulated, measured" for q in QUANTILES))
    for name, (ours, theirs) in rows.items():
        pairs = (
            f"{theirs.quantile(q) / 1e6:15.2f}{ours.histogram.quantile(q) / 1e6:10.2f}"
            for q in QUANTILES
        )
        print(f"{name:<22}" + "".join(pairs))


NAMES = (
    "rperf",
    "rperf-loopback-first",
    "rperf-alternating",
    "post-poll of send",
    "post-poll of write",
    "ping-pong",
)


@pytest.mark.parametrize("q", QUANTILES)
@pytest.mark.parametrize("name", NAMES)
def test_measurement_and_simulator_find_the_same_by_each_estimator(
    table: dict[str, tuple[Measured, _core.Histogram]], name: str, q: float
) -> None:
    ours, theirs = table[name]
    assert len(ours.samples) > 4000
    low, high = ours.histogram.quantile_interval(q, 0.999)
    assert low is not None
    assert high is not None
    expected = theirs.quantile(q)
    allowed = 0.01 * expected + LOOP_PS
    assert low - allowed <= expected <= high + allowed


@pytest.mark.parametrize(
    ("name", "bias_ns"),
    [
        # The loopback message has to be copied; the second of a pair waits for the first.
        ("rperf", -SIZE * 8 / HOST.loopback_rate - HOST.packet_gap),
        ("rperf-loopback-first", -SIZE * 8 / HOST.loopback_rate + HOST.packet_gap),
        ("rperf-alternating", -SIZE * 8 / HOST.loopback_rate),
    ],
)
def test_rperf_finds_the_link_but_for_the_loopbacks_own_time_and_the_pairs_order(
    table: dict[str, tuple[Measured, _core.Histogram]], name: str, bias_ns: float
) -> None:
    # The sum of two exponentials has its median at 1.678 times the mean of each.
    link_ns = 2 * wire_ns(SIZE + HEADER) + 1.678 * JITTER_NS
    found_ps = table[name][0].histogram.quantile(0.5)
    expected_ps = (link_ns + bias_ns) * SCALE * 1e3
    assert found_ps == pytest.approx(expected_ps, rel=0.01, abs=LOOP_PS)
    assert found_ps == pytest.approx(link_ns * SCALE * 1e3, rel=0.04)


@pytest.mark.parametrize("name", ["post-poll of send", "post-poll of write", "ping-pong"])
def test_the_other_estimators_find_the_host_at_least_twice_the_link(
    table: dict[str, tuple[Measured, _core.Histogram]], name: str
) -> None:
    link_ps = 2 * (wire_ns(SIZE + HEADER) + JITTER_NS) * SCALE * 1e3
    assert table[name][0].histogram.quantile(0.5) > 2 * link_ps
