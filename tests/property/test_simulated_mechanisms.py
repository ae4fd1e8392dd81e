"""Mechanisms that one flow alone does not show: marks, lanes of hosts, queues per output."""

from __future__ import annotations

from typing import Any

import pytest

from weft.simulate import scenario_from, simulate


def run(fabric: dict[str, Any], traffic: list[dict[str, Any]], **sections: Any) -> Any:
    data = {"name": "t", "duration": "1 ms", "warmup": "200 us", "fabric": fabric, **sections}
    return simulate(scenario_from({**data, "traffic": traffic})).record


def switch(hosts: int, **more: Any) -> dict[str, Any]:
    return {"topology": "one_switch", "hosts": hosts, "rate": "56 Gb/s", "delay": "10 ns", **more}


CONGESTED = {"congestion": {"enabled": True, "threshold": "8 KiB", "increase": 8, "timer": "50 us"}}


@pytest.mark.parametrize(
    "kind",
    [
        {"size": "1 MiB", "ack_every": 1},
        {"size": "1 MiB", "ack_every": 0},
        {"size": "1 MiB", "ack_every": 16},
        {"size": "1 MiB", "transport": "uc"},
        {"size": "4096 B", "transport": "ud", "window": 256},
        {"size": "1 MiB", "operation": "read"},
    ],
    ids=lambda kind: " ".join(str(v) for v in kind.values()),
)
def test_a_mark_slows_its_sender_whatever_carries_the_notice(kind: dict[str, Any]) -> None:
    # A READ's data flows towards who asks for it.
    hot = (
        {"from": "h0..h2", "to": "h3"}
        if kind.get("operation") != "read"
        else {"from": "h3", "to": "h0..h2"}
    )
    traffic = [{"name": "load", "kind": "bandwidth", **hot, **kind}]
    free = run(switch(4), traffic)
    throttled = run(switch(4), traffic, **CONGESTED)
    assert sum(row["MarkFECN"] for row in throttled.tables["ports"]) > 0
    slow, fast = (r.quantities["load.goodput"].value for r in (throttled, free))
    assert slow < 0.9 * fast


def test_a_host_maps_service_levels_to_lanes_as_its_own_table_says() -> None:
    traffic = [{"name": "load", "kind": "bandwidth", "from": "h0", "to": "h1", "size": "4 KiB"}]
    lanes = {"port": [{"node": "h0", "port": 1, "sl2vl": [1]}]}
    record = run(switch(2, lanes=2), traffic, lanes=lanes)
    sent = {(r["node"], r["vl"]): r["XmitPkts"] for r in record.tables["ports"]}
    assert sent["h0", 1] > 0
    assert sent.get(("h0", 0), 0) == 0


FAST_AND_SLOW = """
[fabric]
name = "mixed"
delay = "10 ns"
routing = "shortest_path"
[[switch]]
name = "s"
ports = 3
[[host]]
name = "h0"
[[host]]
name = "h1"
[[host]]
name = "h2"
[[link]]
ends = ["s:1", "h0:1"]
rate = "100 Gb/s"
[[link]]
ends = ["s:2", "h1:1"]
rate = "1 Gb/s"
[[link]]
ends = ["s:3", "h2:1"]
rate = "100 Gb/s"
"""


def test_a_slow_output_holds_up_no_other_with_a_queue_per_output(tmp_path: Any) -> None:
    (tmp_path / "fabric.toml").write_text(FAST_AND_SLOW)
    fabric = {"file": str(tmp_path / "fabric.toml")}
    fast = {"name": "fast", "kind": "bandwidth", "from": "h0", "to": "h2", "size": "4 KiB"}
    slow = {**fast, "name": "slow", "to": "h1", "rate": "500 Mb/s", "window": 1}
    # Room for both, or the slow output's packet would hold the only buffer.
    queues = {"switch": {"virtual_output_queues": True, "buffer": "64 KiB"}}
    alone = run(fabric, [fast], **queues).quantities["fast.goodput"].value
    both = run(fabric, [fast, slow], **queues).quantities["fast.goodput"].value
    assert both > 0.95 * alone


def test_rates_count_only_the_time_in_which_traffic_could_flow() -> None:
    late = {
        "name": "late",
        "kind": "bandwidth",
        "from": "h0",
        "to": "h1",
        "size": "4 KiB",
        "start": "900 us",
    }
    record = run(switch(2), [late])
    assert record.quantities["late.goodput"].value == pytest.approx(55.6, rel=0.03)


@pytest.mark.parametrize("every", [1, 4, 16])
def test_coalescing_divides_the_number_of_acknowledgements(every: int) -> None:
    load = {"name": "load", "kind": "bandwidth", "from": "h0", "to": "h1", "size": "64 B"}
    record = run(switch(2), [{**load, "window": 64, "ack_every": every}])
    sent = {r["node"]: r["XmitPkts"] for r in record.tables["ports"] if r["node"] in ("h0", "h1")}
    assert sent["h0"] / sent["h1"] == pytest.approx(every, rel=0.1)
