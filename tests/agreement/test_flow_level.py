"""The flow level beside the packet level, where no packet can block another one behind it.

Rates and completion times agree within 5 %. Where heads of queues block, the difference is in
docs/simulate.md and not asserted here.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from weft.records import Record, Scalar
from weft.simulate import load_scenario, scenario_from, simulate

CLOSE = 0.05
VOQ = {"virtual_output_queues": True, "buffer": "256 KiB", "order": "round-robin"}


def run(data: dict[str, Any], level: str) -> Record:
    return simulate(scenario_from({**data, "level": level})).record


def values(record: Record, *ends: str) -> dict[str, float]:
    """Values of the quantities whose names end so."""
    return {
        name: quantity.value
        for name, quantity in record.quantities.items()
        if isinstance(quantity, Scalar) and name.endswith(ends)
    }


def assert_agree(data: dict[str, Any], *ends: str, close: float = CLOSE) -> dict[str, float]:
    packet, flow = (values(run(data, level), *ends) for level in ("packet", "flow"))
    assert packet
    assert packet.keys() == flow.keys()
    for name, value in packet.items():
        assert flow[name] == pytest.approx(value, rel=close), name
    return flow


def one_switch(hosts: int, **more: Any) -> dict[str, Any]:
    return {
        "duration": "20 ms",
        "fabric": {"topology": "one_switch", "hosts": hosts, "rate": "56 Gb/s", "delay": "50 ns"},
        "switch": VOQ,
        **more,
    }


def stream(name: str, source: str, target: str, **more: Any) -> dict[str, Any]:
    keys = {"name": name, "kind": "bandwidth", "from": source, "to": target, "size": "16 KiB"}
    return {**keys, **more}


@pytest.mark.parametrize("seed", range(8))
def test_random_streams_over_virtual_output_queues_have_the_same_rates(seed: int) -> None:
    """Senders do not receive, so no ACK waits for data; windows fit into the inputs' buffers."""
    rng = random.Random(seed)
    pairs = rng.sample([(a, b) for a in range(6) for b in range(6, 12)], 14)
    traffic = [stream(f"f{a}to{b}", f"h{a}", f"h{b}", window=4) for a, b in pairs]
    data = one_switch(12, warmup="1 ms", duration="4 ms", traffic=traffic)
    assert_agree(data, "goodput")


def test_an_incast_ends_at_the_same_time() -> None:
    answers = {"name": "answers", "kind": "incast", "from": "h1..h7", "to": "h0", "size": "1 MiB"}
    flow = assert_agree(one_switch(8, traffic=[answers]), "finished", "goodput")
    assert flow["answers.finished"] == pytest.approx(7 * 2**20 * 4122 / 4096 / 7e3, rel=0.01)


@pytest.mark.parametrize("operation", ["send", "write", "read"])
@pytest.mark.parametrize("size", ["1 B", "100 B", "4096 B", "64 KiB", "1 MiB"])
def test_a_message_alone_takes_the_same_time(size: str, operation: str) -> None:
    traffic = {"name": "one", "kind": "incast", "from": "h0", "to": "h1", "size": size}
    for system in ("ideal", "sx6012"):
        quiet = {"jitter": "0 ns", **VOQ}
        host = {"hiccup_probability": 0.0, "poll_jitter": "0 ns"} if system != "ideal" else {}
        data = one_switch(2, traffic=[{**traffic, "operation": operation}])
        assert_agree({**data, "system": system, "switch": quiet, "host": host}, "finished")


def test_lanes_share_a_port_by_weight() -> None:
    path = "examples/scenarios/vl-weights.toml"
    packet, flow = (
        values(simulate(load_scenario(path, {"level": level})).record, "goodput")
        for level in ("packet", "flow")
    )
    assert flow == pytest.approx(packet, rel=0.01)


def test_the_high_table_goes_first() -> None:
    fabric = {"topology": "one_switch", "hosts": 4, "rate": "100 Gb/s", "lanes": 3}
    data = {
        "duration": "3 ms",
        "warmup": "500 us",
        "fabric": fabric,
        "switch": {"buffer": "64 KiB"},
        "lanes": {"low": [[0, 128], [1, 64]], "high": [[2, 64]]},
        "traffic": [
            stream("most", "h0", "h3", sl=0),
            stream("less", "h1", "h3", sl=1),
            stream("first", "h2", "h3", sl=2, rate="40 Gb/s"),
        ],
    }
    flow = assert_agree(data, "goodput")
    assert flow["first.goodput"] == pytest.approx(40, rel=1e-6)
    assert flow["most.goodput"] == pytest.approx(2 * flow["less.goodput"], rel=1e-6)


def test_a_permutation_with_a_path_for_each_pair_ends_at_the_same_time() -> None:
    """Host i sends to the host half the tree away: destination routing gives each its own path."""
    hosts = 16
    traffic = [
        stream(f"f{i}", f"h{i}", f"h{(i + hosts // 2) % hosts}", messages=32) for i in range(hosts)
    ]
    fabric = {"topology": "fat_tree", "k": 4, "rate": "56 Gb/s", "routing": "destination_modulo"}
    data = {"duration": "20 ms", "fabric": fabric, "traffic": traffic}
    flow = assert_agree(data, "finished")
    alone = 32 * 4 * 4122 / 7e3
    assert max(flow.values()) == pytest.approx(alone, rel=CLOSE)


@pytest.mark.parametrize("topology", ["fat_tree", "leaf_spine3"])
def test_flows_take_the_same_paths_and_put_the_same_bytes_on_them(topology: str) -> None:
    """Without ACKs, every port and lane carries exactly as many bytes at both levels."""
    shape = {
        "fat_tree": {"k": 4},
        "leaf_spine3": {
            "pods": 2,
            "leaves_per_pod": 2,
            "tors_per_pod": 3,
            "spines": 4,
            "hosts_per_tor": 3,
            "uplinks_per_leaf": 4,
        },
    }[topology]
    fabric = {"topology": topology, "rate": "56 Gb/s", "routing": "ecmp", "lanes": 2, **shape}
    traffic = [
        {"name": "all", "kind": "shuffle", "size": "10000 B", "transport": "uc"},
        {
            "name": "some",
            "kind": "random",
            "size": "3001 B",
            "messages": 3,
            "sl": 1,
            "transport": "uc",
            "operation": "write-with-imm",
        },
        {
            "name": "job",
            "kind": "collective",
            "operation": "all-to-all",
            "size": "160 kB",
            "transport": "uc",
        },
    ]
    data = {"duration": "20 ms", "fabric": fabric, "traffic": traffic}
    packet, flow = (run(data, level).tables["ports"] for level in ("packet", "flow"))
    sent = {
        (row["node"], row["port"], row["vl"]): 4 * row["XmitData"] + 2 * row["XmitPkts"]
        for row in packet
        if row["XmitPkts"]
    }
    assert {(r["node"], r["port"], r["vl"]): r["wire_B"] for r in flow} == sent


@pytest.mark.parametrize("cap", ["1 Gb/s", "20 Gb/s"])
def test_a_capped_stream_leaves_the_rest_to_others(cap: str) -> None:
    traffic = [stream("slow", "h0", "h2", rate=cap, window=4), stream("fast", "h1", "h2", window=4)]
    data = one_switch(3, warmup="1 ms", duration="4 ms", traffic=traffic)
    assert_agree(data, "goodput")


@pytest.mark.parametrize("window", [1, 2, 3])
def test_a_small_window_limits_a_stream(window: int) -> None:
    data = one_switch(
        2,
        warmup="1 ms",
        duration="4 ms",
        traffic=[stream("one", "h0", "h1", size="2 KiB", window=window)],
    )
    data["fabric"]["delay"] = "1 us"
    assert_agree(data, "goodput")


@pytest.mark.parametrize(
    ("operation", "algorithm"),
    [
        ("all-reduce", "ring"),
        ("all-reduce", "halving-doubling"),
        ("all-to-all", "pairwise"),
        ("broadcast", "tree"),
    ],
)
def test_a_collective_takes_as_long(operation: str, algorithm: str) -> None:
    job = {"name": "job", "kind": "collective", "operation": operation, "size": "4 MB"}
    data = one_switch(8, traffic=[{**job, "algorithm": algorithm}])
    assert_agree(data, "completion")


def test_traffic_that_follows_another_stops_with_it() -> None:
    traffic = [stream("main", "h0", "h2", messages=64), stream("beside", "h1", "h2", stop="main")]
    flow = assert_agree(one_switch(3, traffic=traffic), "goodput", "finished")
    assert flow["beside.goodput"] == pytest.approx(flow["main.goodput"], rel=0.01)


def test_the_record_says_that_it_is_of_the_flow_level() -> None:
    data = one_switch(2, traffic=[stream("one", "h0", "h1", messages=1)])
    assert any(note.startswith("flow level") for note in run(data, "flow").notes)
    assert not any(note.startswith("flow level") for note in run(data, "packet").notes)
