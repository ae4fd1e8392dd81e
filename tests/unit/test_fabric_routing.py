"""Paths, routings and deadlock on fabrics small enough to know the answer."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from weft.errors import InputError
from weft.fabric import (
    ROUTINGS,
    Fabric,
    Link,
    Node,
    Port,
    Routes,
    back_to_back,
    check_fabric,
    check_reach,
    describe_cycle,
    dragonfly,
    ecmp_choice,
    fat_tree,
    find_cycle,
    leaf_spine,
    one_switch,
    papers_1944,
    path,
    route,
    two_hops,
    up_down,
)


def ring(switches: int, routing: str = "shortest_path") -> Fabric:
    """A ring of switches with one host each: port 1 host, 2 clockwise, 3 back."""
    hosts = tuple(Node(f"h{i}", "host", 1) for i in range(switches))
    nodes = hosts + tuple(Node(f"s{i}", "switch", 3) for i in range(switches))
    links = []
    for i in range(switches):
        switch, successor = switches + i, switches + (i + 1) % switches
        links.append(Link(Port(i, 1), Port(switch, 1), 56e9, 0, "56 Gb/s"))
        links.append(Link(Port(switch, 2), Port(successor, 3), 56e9, 0, "56 Gb/s"))
    return route(Fabric("ring", nodes, tuple(links)), routing)


# The hash is fixed between Python and C++: these values come from its definition written in
# C with uint64_t, and must never change.
@pytest.mark.parametrize(
    ("flow", "node", "count", "choice"),
    [
        (0, 0, 7, 0),
        (1, 0, 1000, 573),
        (0, 1, 1000, 625),
        (12345, 678, 1000, 13),
        (2**64 - 1, 2207, 18, 5),
    ],
)
def test_the_choice_among_equal_ports_is_the_agreed_hash(flow, node, count, choice):
    assert ecmp_choice(flow, node, count) == choice


def test_flows_spread_evenly_over_equal_ports():
    counts = Counter(ecmp_choice(flow, 42, 4) for flow in range(4000))
    # Each of four counts is binomial(4000, 1/4): mean 1000, deviation 27.
    assert all(abs(counts[port] - 1000) < 6 * 27 for port in range(4))


def test_a_flow_keeps_its_path_and_other_flows_take_others():
    fabric = leaf_spine(2, 4, 1, routing="ecmp")
    assert path(fabric, 0, 1, flow=5) == path(fabric, 0, 1, flow=5)
    assert len({tuple(path(fabric, 0, 1, flow=f)) for f in range(100)}) == 4


def test_the_path_to_oneself_is_empty():
    assert path(one_switch(2), 1, 1) == []


def test_a_routing_loop_is_named():
    fabric = two_hops(1, 1)
    looped = replace(fabric, routes=Routes.from_ports(np.array([[1, 2], [2, 2]])))
    with pytest.raises(
        InputError, match="packets to h1 loop through switch0 -> switch1 -> switch0"
    ):
        path(looped, 0, 1)


def test_a_missing_route_is_named():
    fabric = replace(one_switch(2), routes=Routes.from_ports(np.array([[1, 0]])))
    with pytest.raises(InputError, match="node switch0: has no route to h1"):
        path(fabric, 0, 1)


def test_a_packet_sent_to_the_wrong_host_is_named():
    fabric = replace(one_switch(3), routes=Routes.from_ports(np.array([[1, 3, 3]])))
    with pytest.raises(InputError, match="node h2: receives packets meant for h1"):
        path(fabric, 0, 1)


def test_paths_need_routes_and_hosts():
    fabric = one_switch(2)
    with pytest.raises(InputError, match="has no routes"):
        path(replace(fabric, routes=None), 0, 1)
    with pytest.raises(InputError, match="node 2 is not a host"):
        path(fabric, 2, 1)
    with pytest.raises(InputError, match="has no routes"):
        find_cycle(replace(fabric, routes=None))


@pytest.mark.parametrize("k", [4, 6])
def test_destination_modulo_carries_every_shift_of_a_fat_tree_without_contention(k):
    # The claim of d-mod-k routing: in a full fat tree, when each host i sends to i + shift,
    # no two flows share a channel.
    fabric = fat_tree(k, routing="destination_modulo")
    hosts = len(fabric.hosts)
    for shift in range(1, hosts):
        hops = Counter(hop for i in range(hosts) for hop in path(fabric, i, (i + shift) % hosts))
        assert max(hops.values()) == 1


def test_destination_modulo_uses_all_uplinks_of_a_leaf_alike():
    fabric = leaf_spine(4, 3, 6, 2, routing="destination_modulo")
    away = [path(fabric, 0, d)[1] for d in range(6, 24)]
    assert set(Counter(away).values()) == {18 // 6}


def test_shortest_path_takes_the_lowest_port():
    fabric = leaf_spine(2, 3, 2, routing="shortest_path")
    assert path(fabric, 0, 2)[1] == (fabric.index("leaf0"), 3)


@pytest.mark.parametrize("switches", [4, 5, 9])
def test_shortest_paths_on_a_ring_can_deadlock(switches):
    fabric = ring(switches)
    cycle = find_cycle(fabric)
    assert cycle is not None
    text = describe_cycle(fabric, cycle)
    assert f"{len(cycle)} channels wait for each other" in text
    assert "s1 port" in text


def test_a_channel_that_leaves_the_ring_is_no_part_of_its_cycle():
    # Clockwise around s0 to s3; s4 hangs on s0, by a lower port than the way around.
    hosts, switches = [f"h{i}" for i in range(5)], [f"s{i}" for i in range(5)]
    nodes = [Node(h, "host", 1) for h in hosts] + [Node(s, "switch", 4) for s in switches]
    cables = [((i, 1), (5 + i, 1)) for i in range(5)] + [((5, 2), (9, 2))]
    cables += [((5 + i, 3), (5 + (i + 1) % 4, 4)) for i in range(4)]
    links = tuple(Link(Port(*a), Port(*b), 1e9, 0, "1 Gb/s") for a, b in cables)
    out = [
        [(1,) if h == s else (2,) if s == 4 or (s, h) == (0, 4) else (3,) for h in range(5)]
        for s in range(5)
    ]
    fabric = check_fabric(Fabric("x", tuple(nodes), links, routes=Routes.from_groups(out, 5)))
    cycle = find_cycle(fabric)
    assert cycle is not None
    assert sorted(cycle) == [(5, 3), (6, 3), (7, 3), (8, 3)]


@pytest.mark.parametrize("switches", [3, 4, 5, 9])
def test_up_down_on_a_ring_cannot_deadlock(switches):
    assert find_cycle(ring(switches, "up_down")) is None


def test_a_ring_of_three_has_no_two_hop_path_and_cannot_deadlock():
    assert find_cycle(ring(3)) is None


@pytest.mark.parametrize(("p", "a", "h", "groups"), [(1, 2, 1, 3), (2, 4, 2, 9), (1, 4, 2, 4)])
def test_minimal_dragonfly_routing_can_deadlock_and_up_down_cannot(p, a, h, groups):
    fabric = dragonfly(p, a, h, groups)
    assert find_cycle(fabric) is not None
    assert find_cycle(route(fabric, "up_down")) is None


def test_unused_channels_do_not_count():
    # Every switch sends clockwise, round and round, but only towards the one host there is.
    def switch(i: int) -> int:
        return 1 + i % 5

    nodes = (Node("h0", "host", 1), *(Node(f"s{i}", "switch", 3) for i in range(5)))
    links = [Link(Port(switch(i), 2), Port(switch(i + 1), 3), 56e9, 0, "56 Gb/s") for i in range(5)]
    links.append(Link(Port(0, 1), Port(1, 1), 56e9, 0, "56 Gb/s"))
    routes = Routes.from_ports(np.full((5, 1), 2))
    assert find_cycle(check_fabric(Fabric("lonely", nodes, tuple(links), routes=routes))) is None


def test_up_down_over_chosen_roots():
    fabric = leaf_spine(3, 2, 2)
    spine = fabric.index("spine1")
    routed = replace(fabric, routes=up_down(fabric, roots=[spine]))
    assert [node for node, _ in path(routed, 0, 5)][2] == spine


def test_up_down_falls_back_to_the_first_root_when_all_leave_a_pair_apart():
    # Both spines are farthest from hosts, but a packet from leaf a to leaf b would go up to s0,
    # down to m or n, and up again to s1. With s0 alone as root, m and n talk through s0.
    leaves, spines = ("a", "b", "m", "n"), ("s0", "s1")
    nodes = (
        *(Node(f"h{leaf}", "host", 1) for leaf in leaves),
        *(Node(leaf, "switch", 3) for leaf in leaves),
        *(Node(spine, "switch", 4) for spine in spines),
    )
    names = [node.name for node in nodes]
    used: Counter[str] = Counter()
    links = []
    for pair in ("ha a", "hb b", "hm m", "hn n", "a s0", "b s1", "m s0", "m s1", "n s0", "n s1"):
        ends = pair.split()
        used.update(ends)
        a, b = (Port(names.index(end), used[end]) for end in ends)
        links.append(Link(a, b, 56e9, 0, "56 Gb/s"))
    fabric = route(check_fabric(Fabric("spines", nodes, tuple(links))), "up_down")
    through = {
        (src, dst): [names[node] for node, _ in path(fabric, names.index(src), names.index(dst))]
        for src, dst in (("hm", "hn"), ("hn", "hm"), ("ha", "hb"))
    }
    assert through["hm", "hn"] == ["hm", "m", "s0", "n"]
    assert through["hn", "hm"] == ["hn", "n", "s0", "m"]
    assert through["ha", "hb"][-1] == "b"


def test_up_down_refuses_roots_that_leave_a_pair_apart():
    # With s1 and s4 both roots of a ring of six, packets from s1 to s4 would go down and up again.
    fabric = ring(6)
    with pytest.raises(InputError, match=r"no up/down path .* one root always works"):
        up_down(fabric, roots=[fabric.index("s1"), fabric.index("s4")])
    with pytest.raises(InputError, match="root 0 is not a switch"):
        up_down(fabric, roots=[0])
    with pytest.raises(InputError, match="0 roots"):
        up_down(fabric, roots=[])


@pytest.mark.parametrize("build", [papers_1944, lambda: fat_tree(16)], ids=["papers_1944", "ft16"])
def test_large_fabrics_are_routed_in_seconds(build):
    fabric = build()
    for routing in ROUTINGS:
        start = time.process_time()
        routed = route(fabric, routing)
        assert time.process_time() - start < 10.0
        assert routed.routes is not None
        assert (routed.routes.next_hop >= 0).all()


@pytest.mark.parametrize("routing", ["destination_modulo", "up_down", "ecmp"])
def test_the_papers_fabric_cannot_deadlock(routing):
    assert find_cycle(papers_1944(routing=routing)) is None


def test_routes_are_equal_to_routes_alone_that_send_every_packet_alike():
    fabric, other = leaf_spine(2, 2, 2), leaf_spine(2, 2, 3)
    assert fabric.routes == leaf_spine(2, 2, 2).routes
    assert fabric.routes != other.routes
    assert fabric.routes != "routes"
    assert fabric.routes != leaf_spine(2, 2, 2, routing="ecmp").routes


def test_only_hosts_without_a_switch_between_them_need_no_routes():
    first, second = np.array([0]), np.array([1])
    check_reach(back_to_back(), first, second)
    unrouted = replace(one_switch(2), routes=None)
    with pytest.raises(InputError, match="has no routes; route it or read its LFTs"):
        check_reach(unrouted, first, second)
