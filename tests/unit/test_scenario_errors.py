"""Bad scenarios: each an InputError whose one line names file or key, value and what is allowed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError
from weft.fabric import one_switch, write_toml
from weft.simulate import load_scenario, scenario_from, simulate

DATA = Path(__file__).parents[1] / "data" / "fabric"


@pytest.fixture(autouse=True)
def _no_endless_loop() -> Iterator[None]:
    """A scenario that is neither refused nor run within seconds fails its test."""

    def stop(*_: object) -> None:
        raise TimeoutError("neither refused nor run within 5 s of processor time")

    # Processor time, not the clock on the wall: a busy machine must not fail the test.
    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 5)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, previous)


def scenario(**changes: Any) -> dict[str, Any]:
    """A small scenario that runs, with top-level keys replaced."""
    return {
        "duration": "20 us",
        "fabric": {"topology": "one_switch", "hosts": 4, "rate": "56 Gb/s", "delay": "10 ns"},
        "traffic": [
            {"name": "load", "kind": "bandwidth", "from": "h0", "to": "h1", "size": "4 KiB"}
        ],
    } | changes


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in scenario().items() if k != key}


def traffic(**changes: Any) -> dict[str, Any]:
    """The same, with keys of its only traffic replaced; None removes one."""
    load = scenario()["traffic"][0] | changes
    return scenario(traffic=[{k: v for k, v in load.items() if v is not None}])


def fabric(**changes: Any) -> dict[str, Any]:
    return scenario(fabric=scenario()["fabric"] | changes)


def lanes(**changes: Any) -> dict[str, Any]:
    return fabric(lanes=2) | {"lanes": changes}


def stopping(name: str, **load: Any) -> dict[str, Any]:
    """The load, and a probe that stops with traffic of that name."""
    probe = {"name": "probe", "kind": "latency", "from": "h0", "to": "h1", "stop": name}
    return scenario(traffic=[scenario()["traffic"][0] | load, probe])


def port_buffer(**changes: Any) -> dict[str, Any]:
    port = {"node": "switch0", "port": 1, "buffer": "64 KiB"} | changes
    return scenario(switch={"port": [{k: v for k, v in port.items() if v is not None}]})


UNLINKED = """
[fabric]
rate = "56 Gb/s"
delay = "10 ns"
[[switch]]
name = "s"
ports = 3
[[host]]
name = "h0"
[[host]]
name = "h1"
[[link]]
ends = ["s:1", "h0:1"]
[[link]]
ends = ["s:3", "h1:1"]
"""


def refusal(data: dict[str, Any], base: Path = Path()) -> str:
    """The error's text; one line."""
    with pytest.raises(InputError) as caught:
        simulate(scenario_from(data, where="x.toml", base=base))
    text = str(caught.value)
    assert "\n" not in text
    assert ";" in text, f"no remedy in {text!r}"
    return text


def test_the_scenario_that_the_others_spoil_runs() -> None:
    assert simulate(scenario_from(scenario())).ended == "time up"


def test_a_buffer_of_just_enough_credits_runs() -> None:
    assert simulate(scenario_from(scenario(switch={"buffer": "4160 B"}))).ended == "time up"


@pytest.mark.parametrize(
    ("estimator", "operation"), [("completion", "write"), ("completion", "send"), ("rperf", "send")]
)
def test_a_write_is_timed_by_its_completion_and_a_send_by_any(
    estimator: str, operation: str
) -> None:
    probe = traffic(kind="latency", estimator=estimator, operation=operation)
    assert "load.rtt" in simulate(scenario_from(probe)).record.quantities


# What is wrong -> the scenario, and what the line must name: place, value, allowed.
CASES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "an optional time without a unit": (scenario(warmup=5), ("x.toml: warmup", "5", "unit")),
    "a time that is a list": (scenario(warmup=[5]), ("x.toml: warmup", "[5]")),
    "a time that is true": (traffic(start=True), ("start", "True")),
    "a fraction without a unit": (scenario(warmup=1.5), ("x.toml: warmup", "1.5")),
    "an unknown level": (scenario(level="fluid"), ("x.toml: level", "fluid", "packet", "flow")),
    "a probe at flow level": (
        traffic(kind="latency", size="64 B") | {"level": "flow"},
        ("traffic.load.kind", "latency", "flow level", "bandwidth", "packet"),
    ),
    "a limit of high priority at flow level": (
        lanes(high=[[1, 64]], high_limit=10) | {"level": "flow"},
        ("lanes.high_limit", "10", "flow level", "255"),
    ),
    "congestion control at flow level": (
        scenario(level="flow", congestion={"enabled": True}),
        ("congestion.enabled", "flow level", "packet"),
    ),
    "samples of queues at flow level": (
        scenario(level="flow", sample_queues_every="1 us"),
        ("sample_queues_every", "flow level", "packet"),
    ),
    "unknown key at the top": (scenario(warmpu="1 us"), ("x.toml: warmpu", "known here", "warmup")),
    "unknown key of a switch": (scenario(switch={"lag": "1 ns"}), ("switch.lag", "latency")),
    "unknown key of traffic": (traffic(sise="1 B"), ("traffic.load.sise", "size")),
    "unknown key of the fabric": (fabric(color="red"), ("fabric.color", "hosts")),
    "unknown key of lanes": (lanes(mid=[[0, 1]]), ("lanes.mid", "low", "high")),
    "unknown key of credits": (scenario(credits={"x": 1}), ("credits.x", "interval")),
    "unknown key of congestion": (scenario(congestion={"x": 1}), ("congestion.x", "threshold")),
    "no duration": (without("duration"), ("x.toml: duration", "missing")),
    "no traffic": (without("traffic"), ("x.toml: traffic", "missing")),
    "no fabric": (without("fabric"), ("x.toml: fabric", "missing")),
    "duration of 0": (scenario(duration="0 us"), ("x.toml: duration", "0 us")),
    "negative duration": (scenario(duration="-5 us"), ("x.toml: duration", "-5 us")),
    "time without unit": (scenario(duration=20), ("x.toml: duration", "20", "unit")),
    "time in bytes": (scenario(duration="20 KiB"), ("x.toml: duration", "20 KiB", "us")),
    "size without unit": (traffic(size=4096), ("load.size", "4096", "kB", "KiB", "MiB")),
    "warm-up as long as the run": (scenario(warmup="20 us"), ("x.toml: warmup", "duration")),
    "negative seed": (scenario(seed=-1), ("x.toml: seed", "-1", "0 to")),
    "seed as text": (scenario(seed="one"), ("x.toml: seed", "'one'", "whole number")),
    "unknown system": (scenario(system="sx9999"), ("system", "'sx9999'", "omnet", "sx6012")),
    "unknown topology": (fabric(topology="torus"), ("fabric", "'torus'", "one_switch")),
    "unknown routing": (fabric(routing="magic"), ("'magic'", "up_down")),
    "negative rate of a link": (fabric(rate="-56 Gb/s"), ("rate", "-56")),
    "rate of 0": (fabric(rate="0 Gb/s"), ("rate", "0")),
    "rate without unit": (fabric(rate=56), ("rate", "56")),
    "unknown link rate": (fabric(rate="4xFOO"), ("'4xFOO'", "FDR")),
    "negative delay": (fabric(delay="-1 ns"), ("delay", "-1")),
    "hosts as text": (fabric(hosts="four"), ("hosts", "'four'")),
    "0 lanes": (fabric(lanes=0), ("fabric.lanes", "0", "1 to 15")),
    "16 lanes": (fabric(lanes=16), ("fabric.lanes", "16", "1 to 15")),
    "MTU not in the set": (traffic(mtu=1500), ("load.mtu", "1500", "256, 512, 1024, 2048, 4096")),
    "MTU as text": (traffic(mtu="4096"), ("load.mtu", "'4096'", "whole number")),
    "switch buffer of 0": (scenario(switch={"buffer": "0 B"}), ("switch.buffer", "0", "1 to")),
    "host buffer of 0": (scenario(host={"buffer": "0 B"}), ("host.buffer", "0", "1 to")),
    "negative buffer": (scenario(switch={"buffer": "-1 KiB"}), ("switch.buffer", "-1024", "1 to")),
    "a lane without credit for a packet": (
        scenario(switch={"buffer": "4 KiB"}),
        ("switch.buffer", "4096 B", "4122 B", "4160 B"),
    ),
    "a host lane without credit": (
        scenario(host={"buffer": "4 KiB"}),
        ("host.buffer", "4096 B", "4122 B", "4160 B"),
    ),
    "a buffer whose last, incomplete credit of 64 B would be needed": (
        scenario(switch={"buffer": "4159 B"}),
        ("switch.buffer", "4159 B", "4122 B", "4160 B"),
    ),
    "an ACK larger than the buffer": (
        traffic(size="64 B", ack_size="4096 B") | {"switch": {"buffer": "1 KiB"}},
        ("switch.buffer", "1024", "4096"),
    ),
    "negative rate cap": (traffic(rate="-1 Gb/s"), ("load.rate", "-1 Gb/s", "1 kb/s")),
    "rate cap of 0": (traffic(rate="0 Gb/s"), ("load.rate", "0 Gb/s", "1 kb/s")),
    "size of 0": (traffic(size="0 B"), ("load.size", "0", "1 to")),
    "no size": (traffic(size=None), ("load.size", "missing")),
    "window of 0": (traffic(window=0), ("load.window", "0", "1 to")),
    "messages of 0": (traffic(messages=0), ("load.messages", "0", "1 to")),
    "service level 16": (traffic(sl=16), ("load.sl", "16", "0 to 15")),
    "unknown kind": (traffic(kind="chatter"), ("load.kind", "'chatter'", "bandwidth")),
    "unknown transport": (traffic(transport="tcp"), ("load.transport", "'tcp'", "rc, uc, ud")),
    "unknown operation": (traffic(operation="atomic"), ("load.operation", "'atomic'", "send")),
    "ud larger than the MTU": (
        traffic(transport="ud", size="4097 B"),
        ("load.transport", "4097", "4096"),
    ),
    "ud write": (traffic(transport="ud", operation="write"), ("load.transport", "ud", "send")),
    "uc read": (traffic(transport="uc", operation="read"), ("load.transport", "uc", "rc")),
    "unknown host": (traffic(to="h9"), ("load.to", "'h9'", "h0, h1, h2")),
    "a switch as host": (traffic(to="s0"), ("load.to", "'s0'", "hosts are")),
    "empty range": (traffic(**{"from": "h3..h1"}), ("load.from", "'h3..h1'", "lower host first")),
    "half a range": (traffic(**{"from": "h3.."}), ("load.from", "''", "hosts are")),
    "no host": (traffic(to=[]), ("load.to", "host")),
    "host as number": (traffic(to=1), ("load.to", "1", "quote")),
    "only to itself": (traffic(to="h0"), ("load.to", "own sender")),
    "no sender": (traffic(**{"from": None}), ("load.from", "missing")),
    "stop at start": (traffic(start="5 us", stop="5 us"), ("load.stop", "start")),
    "stop before start": (traffic(start="5 us", stop="2 us"), ("load.stop", "start")),
    "stop with unknown traffic": (
        stopping("shufle", messages=5),
        ("probe.stop", "'shufle'", "neither a time", "load"),
    ),
    "stop with itself": (stopping("probe", messages=5), ("probe.stop", "'probe'", "load")),
    "stop with endless traffic": (stopping("load"), ("probe.stop", "'load'", "messages")),
    "stop as a number": (traffic(stop=5), ("load.stop", "5", "unit")),
    "a port's buffer on an unknown switch": (
        port_buffer(node="s7"),
        ("x.toml: switch.port.1.node", "'s7'"),
    ),
    "a port's buffer on a host": (port_buffer(node="h0"), ("switch.port.1.node", "host.buffer")),
    "a port's buffer that holds no packet": (
        port_buffer(buffer="4 KiB"),
        ("switch.port.1.buffer", "4096 B", "4122 B", "4160 B"),
    ),
    "a port's buffer on a lane out of range": (
        port_buffer(lane=1),
        ("switch.port.1.lane", "1", "0 to 0"),
    ),
    "a port's buffer without a size": (port_buffer(buffer=None), ("port.1.buffer", "missing")),
    "unknown key of a port's buffer": (port_buffer(vl=1), ("switch.port.1.vl", "lane")),
    "a port without a link": (
        scenario(
            fabric={"toml": UNLINKED},
            switch={"port": [{"node": "s", "port": 2, "buffer": "64 KiB"}]},
        ),
        ("switch.port.1.port", "2 has no link", "1, 3"),
    ),
    "a crossbar of FIFO inputs": (
        scenario(switch={"crossbar_speedup": 2}),
        ("switch.crossbar_speedup", "2", "virtual_output_queues"),
    ),
    "a crossbar speedup of 0": (
        scenario(switch={"crossbar_speedup": 0, "virtual_output_queues": True}),
        ("switch.crossbar_speedup", "0", "1 to 254"),
    ),
    "name with a dot": (traffic(name="a.b"), ("name", "'a.b'", "no dots")),
    "one name twice": (scenario(traffic=scenario()["traffic"] * 2), ("traffic", "'load'", "twice")),
    "traffic not a list": (scenario(traffic=5), ("traffic", "5", "[[traffic]]")),
    "fabric not a table": (scenario(fabric="x"), ("fabric", "'x'", "[fabric]")),
    "paced without interval": (traffic(kind="paced", size=None), ("load.interval", "missing")),
    "interval of 0": (traffic(kind="paced", interval="0 ns"), ("load.interval", "0 ns")),
    "unknown arrivals": (
        traffic(kind="paced", interval="1 us", arrivals="x"),
        ("load.arrivals", "'x'", "poisson"),
    ),
    "estimator of a ud probe": (
        traffic(kind="latency", size="64 B", transport="ud"),
        ("load.transport", "rc"),
    ),
    "a ping-pong of writes": (
        traffic(kind="latency", estimator="ping-pong", operation="write"),
        ("load.estimator", "send"),
    ),
    "unknown estimator": (
        traffic(kind="latency", estimator="x"),
        ("load.estimator", "'x'", "ping-pong"),
    ),
    "incast to two": (traffic(kind="incast", to=["h1", "h2"]), ("load.to", "one")),
    "permutation of one host": (
        traffic(kind="permutation", hosts="h0", **{"from": None, "to": None}),
        ("load.hosts", "1", "2"),
    ),
    "permutation of one host twice": (
        traffic(kind="permutation", hosts=["h0", "h0"], **{"from": None, "to": None}),
        ("load.hosts", "h0"),
    ),
    "random peers of one host twice": (
        traffic(kind="random", hosts=["h0", "h0"], **{"from": None, "to": None}),
        ("load.hosts", "h0"),
    ),
    "allreduce of one host twice": (
        traffic(kind="allreduce", hosts=["h0", "h0"], **{"from": None, "to": None}),
        ("load.hosts", "h0"),
    ),
    "lane out of range in sl2vl": (lanes(sl2vl=[0, 2]), ("lanes.sl2vl", "2", "0 to 1")),
    "17 service levels": (lanes(sl2vl=[0] * 17), ("lanes.sl2vl", "16")),
    "lane out of range in a table": (lanes(low=[[5, 1]]), ("lanes.low", "5", "0 to 1")),
    "weight out of range": (lanes(low=[[0, 256]]), ("lanes.low", "256", "0 to 255")),
    "negative weight": (lanes(high=[[0, -1]]), ("lanes.high", "-1", "0 to 255")),
    "entry that is no pair": (lanes(high=[[0]]), ("lanes.high", "[0]", "[lane, weight]")),
    "65 entries": (lanes(low=[[0, 1]] * 65), ("lanes.low", "64")),
    "limit of high priority 256": (lanes(high_limit=256), ("lanes.high_limit", "256", "0 to 255")),
    "limit of high priority -1": (lanes(high_limit=-1), ("lanes.high_limit", "-1", "0 to 255")),
    "traffic on a lane in no table": (
        traffic(sl=1) | {"fabric": fabric(lanes=2)["fabric"], "lanes": {"low": [[0, 64]]}},
        ("lanes", "lane 1"),
    ),
    "all weights 0": (lanes(low=[[0, 0], [1, 0]]), ("lanes", "lane 0")),
    "lanes of an unknown node": (
        lanes(port=[{"node": "s7", "port": 1, "low": [[0, 1]]}]),
        ("lanes.port", "'s7'"),
    ),
    "lanes of an unknown port": (
        lanes(port=[{"node": "switch0", "port": 9, "low": [[0, 1]]}]),
        ("lanes.port", "9", "0 to 4"),
    ),
    "probability of 2": (
        scenario(host={"hiccup_probability": 2.0}),
        ("host.hiccup_probability", "2.0", "0.0 to 1.0"),
    ),
    "unknown order": (scenario(switch={"order": "lifo"}), ("switch.order", "'lifo'", "fcfs")),
    "flag as text": (
        scenario(switch={"virtual_output_queues": "yes"}),
        ("switch.virtual_output_queues", "'yes'", "true or false"),
    ),
    "sampling in negative time": (
        scenario(sample_queues_every="-1 us"),
        ("sample_queues_every", "-1 us"),
    ),
    "infinite size": (traffic(size="1e999 B"), ("load.size", "1e999")),
    "infinite duration": (scenario(duration="1e999 s"), ("duration", "1e999")),
    "duration beyond the clock": (scenario(duration="1e9 s"), ("duration", "1e9")),
    "infinite rate": (traffic(rate="1e999 Gb/s"), ("load.rate", "1e999")),
    "buffer beyond what credits can count": (
        scenario(switch={"buffer": "1 TiB"}),
        ("switch.buffer", "1 to"),
    ),
    "rate cap that is nearly 0": (traffic(rate="1e-9 b/s"), ("load.rate", "1e-9 b/s")),
    "PCIe rate that is nearly 0": (
        scenario(host={"pcie_read_rate": "1e-9 b/s"}),
        ("host.pcie_read_rate", "1e-9 b/s"),
    ),
    "rate that is nearly 0": (fabric(rate="1e-300 Gb/s"), ("rate", "1e-300")),
    "probability not a number": (
        scenario(host={"hiccup_probability": float("nan")}),
        ("host.hiccup_probability", "nan"),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_bad_scenario_is_refused_in_one_line_that_names_place_value_and_remedy(case: str) -> None:
    data, named = CASES[case]
    text = refusal(data)
    for part in named:
        assert part in text, f"{part!r} is not in {text!r}"


# ---- Files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("duration = \n", "line 1"),
        ('duration = "1 us"\nseed = = 2\n', "line 2"),
        ('duration = "1 us"\n[fabric\n', "line 2"),
        ('duration = "1 us"\nduration = "2 us"\n', "line 2"),
        ('name = "cut', "end of document"),
    ],
)
def test_malformed_toml_names_file_and_line(tmp_path: Path, text: str, named: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(InputError, match=re.escape(str(file))) as caught:
        load_scenario(file)
    assert named in str(caught.value)


def test_a_missing_scenario_file_and_a_binary_one_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for file, problem in (
        (tmp_path / "no.toml", "No such file"),
        (binary, "not UTF-8"),
        (tmp_path, ""),
    ):
        with pytest.raises(InputError, match=re.escape(str(file))) as caught:
            load_scenario(file)
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("traffic.nobody.size", "1 B", ("traffic.nobody.size", "'nobody'", "load")),
        ("traffic.load", "1 B", ("traffic.load", "add .KEY")),
        ("duration.x", "1 us", ("duration.x", "'duration'", "not a table")),
        ("traffic.load.mtu", 100, ("load.mtu", "100")),
        ("fabric.nonsense", 1, ("fabric.nonsense", "is not a known key", "topology")),
    ],
)
def test_an_override_that_fits_nowhere_is_refused(
    key: str, value: Any, named: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        scenario_from(scenario(), {key: value}, where="x.toml")
    for part in named:
        assert part in str(caught.value)


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.65, 0.8])
@pytest.mark.parametrize("dump", ["leaf_spine.ibnet", "leaf_spine.lft"])
def test_a_fabric_dump_cut_in_half_is_refused_by_name(
    tmp_path: Path, dump: str, share: float
) -> None:
    files = []
    for name in ("leaf_spine.ibnet", "leaf_spine.lft"):
        text = (DATA / name).read_text()
        (tmp_path / name).write_text(text[: int(len(text) * share)] if name == dump else text)
        files.append(name)
    text = refusal(
        scenario(
            fabric={"file": files}, traffic=[{"name": "all", "kind": "shuffle", "size": "4 KiB"}]
        ),
        tmp_path,
    )
    assert "leaf_spine" in text


def test_a_fabric_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert "nowhere.ibnet" in refusal(scenario(fabric={"file": "nowhere.ibnet"}), tmp_path)


# Three switches in a row, hosts h0 (at s0), h1 (at s1), h2 (at s2).
ROUTED = """
[fabric]
name = "lab"
rate = "56 Gb/s"
delay = "10 ns"
[[host]]
name = "h0"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[switch]]
name = "s0"
ports = 3
[[switch]]
name = "s1"
ports = 3
[[switch]]
name = "s2"
ports = 3
[[link]]
ends = ["h0:1", "s0:1"]
[[link]]
ends = ["h1:1", "s1:1"]
[[link]]
ends = ["h2:1", "s2:1"]
[[link]]
ends = ["s0:2", "s1:2"]
[[link]]
ends = ["s1:3", "s2:2"]
[[link]]
ends = ["s2:3", "s0:3"]
[[route]]
switch = "s0"
out = [[1], {s0_h1}, {s0_h2}]
[[route]]
switch = "s1"
out = [[2], [1], {s1_h2}]
[[route]]
switch = "s2"
out = [[3], [2], [1]]
"""
GOOD = {"s0_h1": "[2]", "s0_h2": "[3]", "s1_h2": "[3]"}
SEVERAL = [{"name": "all", "kind": "shuffle", "size": "4 KiB"}] + [
    {"name": f"more{i}", "kind": "shuffle", "size": "4 KiB"} for i in range(8)
]
PARALLEL = [
    {
        "name": f"flow{i}",
        "kind": "bandwidth",
        "from": "h0",
        "to": "h2",
        "size": "4 KiB",
        "messages": 1,
    }
    for i in range(20)
]


def routed(tmp_path: Path, traffic: list[dict[str, Any]], **routes: str) -> dict[str, Any]:
    (tmp_path / "lab.toml").write_text(ROUTED.format(**(GOOD | routes)))
    return scenario(fabric={"file": "lab.toml"}, traffic=traffic)


def test_the_routed_file_that_the_others_spoil_runs(tmp_path: Path) -> None:
    data = routed(tmp_path, SEVERAL)
    assert simulate(scenario_from(data, base=tmp_path)).ended == "finished"


def test_a_destination_that_cannot_be_reached_is_named_with_the_switch(tmp_path: Path) -> None:
    text = refusal(routed(tmp_path, SEVERAL, s0_h2="[]"), tmp_path)
    assert "s0" in text
    assert "no route to h2" in text


def test_a_routing_loop_is_named_switch_by_switch(tmp_path: Path) -> None:
    text = refusal(routed(tmp_path, SEVERAL, s0_h2="[2]", s1_h2="[2]"), tmp_path)
    assert "h2" in text
    assert re.search("s0 -> s1 -> s0|s1 -> s0 -> s1", text)


def test_a_route_over_an_unlinked_port_is_named(tmp_path: Path) -> None:
    text = refusal(routed(tmp_path, SEVERAL, s0_h2="[9]"), tmp_path)
    assert "s0" in text
    assert "9" in text


def test_a_route_to_the_wrong_host_is_named(tmp_path: Path) -> None:
    text = refusal(routed(tmp_path, SEVERAL, s0_h2="[1]"), tmp_path)
    assert "h0" in text
    assert "h2" in text


# Whichever of the equal ports the flows of this run happen to take.
@pytest.mark.parametrize("ports", ["[2, 3]", "[3, 2]"])
def test_a_loop_over_one_of_several_equal_ports_is_refused_not_simulated(
    tmp_path: Path, ports: str
) -> None:
    text = refusal(routed(tmp_path, PARALLEL, s0_h2=ports, s1_h2="[2]"), tmp_path)
    assert "h2" in text
    assert "s0" in text
    assert "s1" in text


@pytest.mark.parametrize("ports", ["[2, 3]", "[3, 2]"])
def test_a_dead_end_behind_one_of_several_equal_ports_is_refused_not_simulated(
    tmp_path: Path, ports: str
) -> None:
    text = refusal(routed(tmp_path, PARALLEL, s0_h2=ports, s1_h2="[]"), tmp_path)
    assert "s1" in text
    assert "no route to h2" in text


def test_a_route_to_the_wrong_host_is_found_among_thousands_of_pairs(tmp_path: Path) -> None:
    text = write_toml(one_switch(60, rate="56 Gb/s", delay="10 ns"))
    assert "[5], [6]" in text
    (tmp_path / "big.toml").write_text(text.replace("[5], [6]", "[6], [6]"))
    data = scenario(
        fabric={"file": "big.toml"}, traffic=[{"name": "all", "kind": "shuffle", "size": "4 KiB"}]
    )
    assert "h4" in refusal(data, tmp_path)


# ---- Replay -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ("time,from,to,bytes\n0,h0,h1,5\n", ("line 1", "time_ns,from,to,bytes")),
        ("", ("line 1",)),
        ("time_ns,from,to,bytes\n0,h0,h1,5\n1,h0,h9,5\n", ("line 3", "'h9'", "h0, h1")),
        ("time_ns,from,to,bytes\n0,h0,h1,x\n", ("line 2", "'x'", "bytes")),
        ("time_ns,from,to,bytes\n-1,h0,h1,5\n", ("line 2", "'-1'", "time_ns")),
        ("time_ns,from,to,bytes\nnan,h0,h1,5\n", ("line 2", "'nan'", "time_ns")),
        ("time_ns,from,to,bytes\n0,h0,h1\n", ("line 2", "4 fields")),
        ("time_ns,from,to,bytes\n0,h0,h1,5,6\n", ("line 2", "4 fields")),
        ("time_ns,from,to,bytes\n0,h0,h0,5\n", ("line 2", "itself")),
        ("time_ns,from,to,bytes\n0,h0,h1,0\n", ("line 2", "bytes", "1 or more")),
        ("time_ns,from,to,bytes\n0,h0,h1,1e30\n", ("line 2", "1e30")),
        ("time_ns,from,to,bytes\n0,all,h1,5\n", ("line 2", "'all'")),
        ("time_ns,from,to,bytes\n0,h0..h2,h1,5\n", ("line 2", "'h0..h2'")),
        ("time_ns,from,to,bytes\n", ("trace.csv", "no")),
    ],
)
def test_a_bad_line_of_a_trace_is_named(tmp_path: Path, rows: str, named: tuple[str, ...]) -> None:
    (tmp_path / "trace.csv").write_text(rows)
    replay = scenario(traffic=[{"name": "trace", "kind": "replay", "file": "trace.csv"}])
    text = refusal(replay, tmp_path)
    for part in ("trace.csv", *named):
        assert part in text, f"{part!r} is not in {text!r}"


def test_a_trace_that_is_not_text_or_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_bytes(b"time_ns,from,to,bytes\n\xff\xfe")
    for name in ("trace.csv", "none.csv"):
        replay = scenario(traffic=[{"name": "trace", "kind": "replay", "file": name}])
        assert name in refusal(replay, tmp_path)


def test_a_ud_message_of_a_trace_larger_than_the_mtu_is_refused_with_its_line(
    tmp_path: Path,
) -> None:
    (tmp_path / "trace.csv").write_text("time_ns,from,to,bytes\n0,h0,h1,5\n9,h0,h1,5000\n")
    replay = {"name": "trace", "kind": "replay", "file": "trace.csv", "transport": "ud"}
    text = refusal(scenario(traffic=[replay]), tmp_path)
    assert "line 3" in text
    assert "5000" in text
    assert "4096" in text


# ---- The command line -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("seed = = 1", "line 1"),
        ("sede = 1", "sede"),
        ('switch.buffer = "0 B"', "switch.buffer"),
        ('system = "none"', "none"),
    ],
)
def test_the_command_line_prints_one_line_and_exits_with_2(
    tmp_path: Path, line: str, named: str
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(
        line
        + """
duration = "1 us"
fabric = { topology = "back_to_back" }
traffic = [{ name = "t", kind = "bandwidth", from = "h0", to = "h1", size = "1 B" }]
"""
    )
    command = [sys.executable, "-m", "weft.cli", "simulate", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (printed,) = done.stderr.splitlines()
    assert str(file) in printed
    assert named in printed
