"""A run that skips what repeats leaves the same record as one that simulates everything."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.records import Scalar, to_line
from weft.simulate import scenario_from, simulate

Data = dict[str, Any]

TIMES = st.sampled_from(["0 ns", "7 ns", "100 ns", "333 ns", "1 us"])
SIZES = st.sampled_from(["1 B", "64 B", "1000 B", "4096 B", "10 kB"])


@st.composite
def fabrics(draw: st.DrawFn) -> Data:
    shape = draw(
        st.sampled_from(
            [
                {"topology": "back_to_back"},
                {"topology": "one_switch", "hosts": 4},
                {"topology": "two_hops", "upstream_hosts": 3, "downstream_hosts": 2},
                {"topology": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 2},
            ]
        )
    )
    rate = draw(st.sampled_from(["56 Gb/s", "4xFDR", "10 Gb/s"]))
    return {
        **shape,
        "rate": rate,
        "delay": draw(st.sampled_from(["0 ns", "50 ns", "1 us"])),
        "lanes": draw(st.integers(1, 3)),
        "routing": draw(st.sampled_from(["ecmp", "up_down"])),
    }


@st.composite
def streams(draw: st.DrawFn, name: str, sender: str, receiver: str) -> Data:
    transport = draw(st.sampled_from(["rc", "rc", "rc", "uc", "ud"]))
    operations = {"rc": ["send", "write", "read"], "uc": ["send", "write"], "ud": ["send"]}
    table: Data = {
        "name": name,
        "kind": "bandwidth",
        "from": sender,
        "to": receiver,
        "transport": transport,
        "operation": draw(st.sampled_from(operations[transport])),
        "size": "1000 B" if transport == "ud" else draw(SIZES),
        "mtu": draw(st.sampled_from([1024, 4096])),
        "sl": draw(st.integers(0, 3)),
        "window": draw(st.integers(1, 9)),
        "batch": draw(st.integers(1, 3)),
        "ack_every": draw(st.sampled_from([0, 1, 1, 3])),
    }
    if draw(st.booleans()):
        table["messages"] = draw(st.integers(1, 400))
    if draw(st.integers(0, 3)) == 0:
        table["rate"] = draw(st.sampled_from(["1 Gb/s", "7 Gb/s"]))
    if draw(st.integers(0, 3)) == 0:
        table["stop"] = draw(st.sampled_from(["20 us", "150 us"]))
    return table


@st.composite
def probes(draw: st.DrawFn, name: str, sender: str, receiver: str) -> Data:
    kind = draw(st.sampled_from(["latency", "paced"]))
    table: Data = {"name": name, "kind": kind, "from": sender, "to": receiver}
    table |= {"size": draw(SIZES), "sl": draw(st.integers(0, 3))}
    if kind == "paced":
        return {**table, "interval": draw(st.sampled_from(["1 us", "2500 ns"]))}
    estimators = ["completion", "ping-pong", "rperf", "rperf-loopback-first"]
    return {
        **table,
        "estimator": draw(st.sampled_from([*estimators, "rperf-alternating"])),
        "think": draw(TIMES),
    }


@st.composite
def scenarios(draw: st.DrawFn) -> Data:
    fabric = draw(fabrics())
    last = {"back_to_back": 1, "two_hops": 4}.get(fabric["topology"], 3)
    traffic: list[Data] = []
    for number in range(draw(st.integers(1, 4))):
        sender = draw(st.integers(0, last))
        receiver = draw(st.integers(0, last).filter(lambda host, sender=sender: host != sender))
        kind = draw(st.sampled_from([streams, streams, probes]))
        traffic.append(draw(kind(f"t{number}", f"h{sender}", f"h{receiver}")))
    if draw(st.integers(0, 4)) == 0:
        traffic.append({"name": "ring", "kind": "allreduce", "size": "100 kB", "sl": 1})
    queues = draw(st.booleans())
    host = {key: draw(TIMES) for key in ("post", "poll", "pcie_read", "pcie_write", "tx", "rx")}
    return {
        "name": "steady",
        "duration": draw(st.sampled_from(["150 us", "400 us", "1001 us"])),
        "warmup": draw(st.sampled_from(["0 us", "0 us", "30 us"])),
        "fabric": fabric,
        "switch": {
            "order": draw(st.sampled_from(["fcfs", "fcfs-age", "round-robin"])),
            "virtual_output_queues": queues,
            "latency": draw(TIMES),
            "buffer": draw(st.sampled_from(["8 KiB", "64 KiB"])),
            **({"crossbar_speedup": 1} if queues and draw(st.booleans()) else {}),
        },
        "credits": {"interval": draw(TIMES), "delay": draw(TIMES)},
        "host": {
            **host,
            "packet_gap": draw(TIMES),
            "message_gap": draw(TIMES),
            "inline": draw(st.sampled_from(["0 B", "64 B"])),
            "pcie_write_rate": draw(st.sampled_from(["30 Gb/s", "100 Gb/s"])),
        },
        "congestion": {"enabled": draw(st.integers(0, 3)) == 0, "threshold": "4 KiB"},
        "traffic": traffic,
    }


@settings(deadline=None, max_examples=150)
@given(scenarios())
def test_the_record_is_the_same_with_and_without_the_skip(data: Data) -> None:
    try:
        scenario = scenario_from(data)
    except InputError:
        return  # such as a stop before the start
    full, skipping = simulate(scenario), simulate(scenario, skip_steady=True)
    assert to_line(skipping.record) == to_line(full.record)
    assert (skipping.ended, skipping.events) == (full.ended, full.events)


LINK = {"rate": "56 Gb/s", "delay": "50 ns"}
SENDERS = {"name": "senders", "kind": "bandwidth", "from": "h0..h4", "to": "h6", "size": "4096 B"}
PROBE = {"name": "probe", "kind": "latency", "from": "h5", "to": "h6"}
PERIODIC: dict[str, Data] = {
    "converged": {"fabric": {"topology": "one_switch", "hosts": 7}, "traffic": [SENDERS, PROBE]},
    "permutation": {
        "fabric": {"topology": "one_switch", "hosts": 16},
        "traffic": [{"name": "p", "kind": "permutation", "size": "64 KiB", "messages": 2000}],
    },
    "shared links": {
        "fabric": {"topology": "fat_tree", "k": 4},
        "traffic": [
            {
                "name": "p",
                "kind": "permutation",
                "size": "4 KiB",
                "messages": 4000,
                "transport": "uc",
            }
        ],
    },
    "ping-pong": {
        "fabric": {"topology": "two_hops", "upstream_hosts": 2, "downstream_hosts": 1},
        "traffic": [PROBE | {"from": "h0", "to": "h2", "estimator": "ping-pong"}],
    },
    "reads": {
        "fabric": {"topology": "one_switch", "hosts": 3},
        "traffic": [
            SENDERS | {"from": "h0..h1", "to": "h2", "operation": "read", "size": "100 kB"}
        ],
    },
    "lanes": {
        "fabric": {"topology": "one_switch", "hosts": 4, "lanes": 2},
        "traffic": [
            SENDERS | {"from": "h0..h1", "to": "h3"},
            SENDERS | {"name": "others", "from": "h2", "to": "h3", "sl": 1},
        ],
    },
}


@pytest.mark.parametrize("name", PERIODIC)
def test_most_of_a_periodic_run_is_skipped(name: str) -> None:
    data = PERIODIC[name] | {"name": name, "duration": "20 ms"}
    scenario = scenario_from(data | {"fabric": data["fabric"] | LINK})
    full, skipping = simulate(scenario), simulate(scenario, skip_steady=True)
    assert to_line(skipping.record) == to_line(full.record)
    end_ps = full.record.quantities.get("p.finished")
    simulated_ps = end_ps.value * 1e6 if end_ps else scenario.duration_ps
    assert skipping.skipped_ps > 0.8 * simulated_ps


@pytest.mark.parametrize(
    "change",
    [
        {"sample_queues_every": "1 us"},
        {"switch": {"jitter": "1 ns"}},
        {"host": {"poll_jitter": "1 ns"}},
    ],
)
def test_random_times_and_samples_keep_a_run_from_being_skipped(change: Data) -> None:
    base = PERIODIC["converged"]
    data = {**base, "fabric": base["fabric"] | LINK, "name": "x", "duration": "1 ms", **change}
    assert simulate(scenario_from(data), skip_steady=True).skipped_ps == 0


BEYOND = 2**32
SHORT = {"topology": "back_to_back", "rate": "400 Gb/s", "delay": "1 ns"}
ENDLESS_KINDS: dict[str, Data] = {
    "stream": SENDERS | {"window": 3},
    "rarely acknowledged": SENDERS | {"window": 8, "ack_every": 5},
    "read": SENDERS | {"operation": "read"},
    "ping-pong": PROBE | {"estimator": "ping-pong"},
}


@pytest.mark.parametrize("kind", ENDLESS_KINDS)
def test_messages_beyond_the_bits_of_their_numbers_take_as_long_as_the_first(kind: str) -> None:
    """In a steady state, time is linear in messages: also across 2^32."""

    def finish_us(messages: int) -> float:
        ends = {"name": "p", "from": "h0", "to": "h1"}
        entry = ENDLESS_KINDS[kind] | ends | {"size": "64 B", "messages": messages}
        data = {"name": "x", "duration": "1000 s", "fabric": SHORT}
        scenario = scenario_from({**data, "traffic": [entry]})
        outcome = simulate(scenario, skip_steady=True)
        assert outcome.ended == "finished"
        finished = outcome.record.quantities["p.finished"]
        assert isinstance(finished, Scalar)
        return finished.value

    first_us = finish_us(1000)
    per_message_us = (finish_us(3000) - first_us) / 2000
    # The last messages are simulated: across 2^32, or from there on.
    for messages in (BEYOND + 2, BEYOND + 9000):
        expected_us = first_us + per_message_us * (messages - 1000)
        assert finish_us(messages) == pytest.approx(expected_us, rel=1e-9)
