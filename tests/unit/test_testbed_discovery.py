"""The fabric of a testbed: from its wiring, and from what its bridges forward."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.host.testbed.build import Testbed, find_mac, plan_testbed
from weft.host.testbed.wiring import Wiring
from weft.switches.linux.testbed_discovery import discover_testbed, list_interfaces

WIRING = Wiring(
    hosts=("a", "b", "c"),
    rate_bps=10**9,
    switches="leaf-spine",
    leaves=2,
    spines=2,
    uplink_bps=10**8,
)


@pytest.fixture
def bed() -> Testbed:
    return plan_testbed(WIRING, lambda node: f"ns-{node}")


def forwarding(bed: Testbed) -> dict[str, dict[str, int]]:
    """What the bridges of an undamaged testbed say."""
    return {
        switch: {find_mac(bed, host): int(port.removeprefix("port")) for host, port in ways.items()}
        for switch, ways in bed.layout.routes.items()
    }


def test_a_testbed_is_a_fabric_of_its_hosts_switches_and_cables(bed: Testbed) -> None:
    discovery = discover_testbed(bed, "bed", forwarding(bed))
    fabric = discovery.fabric
    assert fabric.name == "bed"
    assert [(n.name, n.kind, n.ports) for n in fabric.nodes] == [
        ("a", "host", 1),
        ("b", "host", 1),
        ("c", "host", 1),
        ("leaf1", "switch", 4),
        ("leaf2", "switch", 3),
        ("spine1", "switch", 2),
        ("spine2", "switch", 2),
    ]
    ends = [
        {(fabric.nodes[p.node].name, p.port) for p in (link.a, link.b)} for link in fabric.links
    ]
    assert ends[:3] == [
        {("a", 1), ("leaf1", 1)},
        {("b", 1), ("leaf1", 2)},
        {("c", 1), ("leaf2", 1)},
    ]
    assert len(ends) == 3 + 4
    assert {link.rate_bps for link in fabric.links[:3]} == {1e9}
    assert {link.rate_bps for link in fabric.links[3:]} == {1e8}
    assert {(link.delay_ps, link.rate_name) for link in fabric.links[:3]} == {(0, "1000000000 b/s")}
    assert discovery.addresses == {"10.77.0.1": "a", "10.77.0.2": "b", "10.77.0.3": "c"}
    assert discovery.notes == ()


def test_routes_are_the_bridges_and_where_they_say_nothing_those_of_the_wiring(
    bed: Testbed,
) -> None:
    tables = forwarding(bed)
    planned = discover_testbed(bed, "bed", {}).fabric.routes
    assert discover_testbed(bed, "bed", tables).fabric.routes == planned
    other = {**tables, "leaf1": {**tables["leaf1"], find_mac(bed, "c"): 3}}
    assert tables["leaf1"][find_mac(bed, "c")] == 3  # host 2 of three goes over spine 2 mod 2
    other["leaf1"][find_mac(bed, "c")] = 4
    assert discover_testbed(bed, "bed", other).fabric.routes != planned
    del other["leaf1"][find_mac(bed, "c")]
    del other["spine2"]
    discovery = discover_testbed(bed, "bed", other)
    assert discovery.fabric.routes == planned
    assert discovery.notes == (
        "leaf1: routes to c are those of the testbed's wiring",
        "spine2: routes to a, b, c are those of the testbed's wiring",
    )


def test_ports_have_the_numbers_of_their_interfaces(bed: Testbed) -> None:
    assert list_interfaces(bed, "a") == {1: "eth0"}
    assert list_interfaces(bed, "leaf2") == {1: "port1", 2: "port2", 3: "port3"}
    with pytest.raises(InputError, match="testbed: no host or switch 'x'"):
        list_interfaces(bed, "x")
