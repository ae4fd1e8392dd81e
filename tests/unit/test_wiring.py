"""What a testbed is made of: cables, addresses, and ways that reach every host."""

from __future__ import annotations

from collections import Counter

import pytest

from weft.errors import InputError
from weft.host.testbed.wiring import SHAPES, Layout, Wiring, choose_burst_bytes, plan_layout


def wiring(hosts: int, **options: object) -> Wiring:
    names = tuple(f"h{n}" for n in range(1, hosts + 1))
    return Wiring(hosts=names, rate_bps=200_000_000, **options)  # type: ignore[arg-type]


def walk(plan: Layout, source: str, target: str) -> list[str]:
    """The nodes that a packet passes, by the ways of the switches alone."""
    far = {}
    for cable in plan.cables:
        for near, other in (cable.ends, cable.ends[::-1]):
            far[near.node, near.interface] = other.node
    nodes = [source, far[source, "eth0"]]
    while nodes[-1] != target:
        nodes.append(far[nodes[-1], plan.routes[nodes[-1]][target]])
        assert len(nodes) < 8, f"a loop: {nodes}"
    return nodes


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("hosts", [3, 8, 17])
def test_every_host_reaches_every_other_and_no_way_is_a_ring(shape: str, hosts: int) -> None:
    plan = plan_layout(wiring(hosts, switches=shape, leaves=3, spines=2))
    longest = {"one": 3, "two-hops": 4, "leaf-spine": 5}[shape]
    names = [f"h{n}" for n in range(1, hosts + 1)]
    lengths = {len(walk(plan, a, b)) for a in names for b in names if a != b}
    assert max(lengths) == longest


def test_hosts_are_dealt_evenly_and_in_order_to_the_switches_that_take_them() -> None:
    plan = plan_layout(wiring(8, switches="leaf-spine", leaves=4, spines=2))
    at = [plan.access(f"h{n}").ends[1].node for n in range(1, 9)]
    assert at == ["leaf1"] * 2 + ["leaf2"] * 2 + ["leaf3"] * 2 + ["leaf4"] * 2


def test_the_spine_is_chosen_by_the_destination() -> None:
    plan = plan_layout(wiring(8, switches="leaf-spine", leaves=2, spines=2))
    spines = Counter(walk(plan, "h1", f"h{n}")[2] for n in range(5, 9))
    assert spines == {"spine1": 2, "spine2": 2}
    assert walk(plan, "h1", "h5")[2] == walk(plan, "h2", "h5")[2]


def test_cables_between_switches_have_their_own_rate_and_burst() -> None:
    plan = plan_layout(wiring(4, switches="two-hops", uplink_bps=50_000_000))
    (uplink,) = [cable for cable in plan.cables if cable.between_switches]
    assert (uplink.rate_bps, uplink.burst_bytes) == (50_000_000, 32 * 1024)
    assert plan.access("h1").burst_bytes == 100_000


def test_a_burst_is_four_milliseconds_and_at_least_32_kib() -> None:
    assert choose_burst_bytes(1e9) == 500_000
    assert choose_burst_bytes(1e6) == 32 * 1024


def test_packets_have_ethernet_s_1500_bytes_unless_another_size_is_given() -> None:
    assert wiring(2).mtu_bytes == 1500
    assert wiring(2, mtu_bytes=9000).mtu_bytes == 9000


def test_a_port_is_plugged_once() -> None:
    plan = plan_layout(wiring(9, switches="leaf-spine", leaves=3, spines=3))
    plugs = Counter((p.node, p.interface) for cable in plan.cables for p in cable.ends)
    assert set(plugs.values()) == {1}
    assert len(plan.cables) == 9 + 9


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate_bps": 0}, "a rate of 0 b/s; use 8 kb/s to 10 Tb/s"),
        ({"uplink_bps": 10**14}, "a rate of 1e.14 b/s"),
        ({"switches": "ring"}, "no shape 'ring'; use one of one, two-hops, leaf-spine"),
        ({"switches": "leaf-spine", "leaves": 0}, "0 leaves; use 1 to 32"),
        ({"switches": "leaf-spine", "leaves": 5}, "4 hosts for 5 switches"),
        ({"limit_bytes": 2**32}, "4 GiB or more"),
    ],
)
def test_what_cannot_be_built_is_refused(options: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"hosts": ("a", "b", "c", "d"), "rate_bps": 10**8}
    with pytest.raises(InputError, match=message):
        Wiring(**(good | options))  # type: ignore[arg-type]


def test_a_network_has_room_for_its_hosts_a_switch_and_two_reserved_addresses() -> None:
    assert len(plan_layout(wiring(5, network="10.0.0.0/29")).addresses) == 6
    with pytest.raises(InputError, match=r"6 hosts in 10.0.0.0/29; use 1 to 5"):
        wiring(6, network="10.0.0.0/29")
