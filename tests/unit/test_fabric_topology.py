"""Builders make the fabrics their formulas promise."""

from __future__ import annotations

from collections import Counter

import pytest

from weft.errors import InputError
from weft.fabric import (
    TOPOLOGIES,
    Fabric,
    back_to_back,
    check_fabric,
    dragonfly,
    fat_tree,
    leaf_spine,
    leaf_spine3,
    one_switch,
    papers_1944,
    path,
    two_hops,
    vl2,
)


def prefixes(fabric: Fabric) -> Counter[str]:
    return Counter(node.name.rstrip("0123456789") for node in fabric.nodes)


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_fat_tree_has_five_quarters_k_squared_switches_and_a_quarter_k_cubed_hosts(k):
    fabric = fat_tree(k)
    assert len(fabric.switches) == 5 * k * k // 4
    assert len(fabric.hosts) == k**3 // 4
    assert len(fabric.links) == 3 * k**3 // 4
    assert all(len(fabric.neighbors(switch)) == k for switch in fabric.switches)


def test_papers_fabric_has_the_published_counts_within_36_ports():
    fabric = papers_1944()
    assert prefixes(fabric) == {"h": 1944, "tor": 108, "leaf": 102, "spine": 54}
    assert max(fabric.nodes[switch].ports for switch in fabric.switches) <= 36
    assert {link.rate_bps for link in fabric.links} == {56e9}
    used = {
        name: {
            len(fabric.neighbors(s)) for s in fabric.switches if fabric.nodes[s].name[:3] == name
        }
        for name in ("tor", "lea", "spi")
    }
    assert used == {"tor": {35}, "lea": {36}, "spi": {34}}


TIERS = {
    "two_hops": ((2, 2), ["h-switch", "switch-switch"]),
    "leaf_spine": ((2, 2, 2, 2), ["h-leaf", "leaf-spine"]),
    "leaf_spine3": ((2, 2, 2, 4, 2, 2), ["h-tor", "tor-leaf", "leaf-spine"]),
    "fat_tree": ((4,), ["h-edge", "edge-agg", "agg-core"]),
    "vl2": ((4, 4, 2), ["h-tor", "tor-agg", "agg-int"]),
}


@pytest.mark.parametrize("name", TIERS)
def test_each_tier_of_links_from_the_hosts_up_has_its_rate_and_delay(name):
    counts, tiers = TIERS[name]
    rates, delays = ["4xFDR", "4xEDR", "4xHDR"], ["1 ns", "2 ns", "3 ns"]
    fabric = TOPOLOGIES[name](*counts, rate=rates[: len(tiers)], delay=delays[: len(tiers)])
    kinds = {
        (
            "-".join(fabric.nodes[end.node].name.rstrip("0123456789") for end in (link.a, link.b)),
            link.rate_name,
            link.delay_ps,
        )
        for link in fabric.links
    }
    assert kinds == {
        (tier, rate, 1000 * number)
        for number, (tier, rate) in enumerate(zip(tiers, rates, strict=False), 1)
    }
    with pytest.raises(InputError, match=f"{name} rate: 4 values .* {len(tiers)} from the hosts"):
        TOPOLOGIES[name](*counts, rate=["4xFDR"] * 4)


def test_links_of_a_dragonfly_are_those_of_hosts_of_groups_and_between_groups():
    fabric = dragonfly(1, 2, 1, rate=["4xFDR", "4xEDR", "4xHDR"])
    group = {node: int(fabric.nodes[node].name[6:]) // 2 for node in fabric.switches}
    for link in fabric.links:
        hosts = link.a.node in fabric.hosts
        same = not hosts and group[link.a.node] == group[link.b.node]
        assert link.rate_name == ("4xFDR" if hosts else "4xEDR" if same else "4xHDR")


@pytest.mark.parametrize(("leaves", "spines", "hosts", "pair"), [(1, 1, 1, 1), (4, 3, 5, 2)])
def test_leaf_spine_links_every_leaf_to_every_spine(leaves, spines, hosts, pair):
    fabric = leaf_spine(leaves, spines, hosts, pair)
    assert len(fabric.links) == leaves * hosts + leaves * spines * pair
    assert prefixes(fabric) == {"h": leaves * hosts, "leaf": leaves, "spine": spines}


def test_leaf_spine3_links_every_tor_to_every_leaf_of_its_pod():
    fabric = leaf_spine3(2, 3, 4, 3, 5, 2)
    assert len(fabric.links) == 2 * 4 * 5 + 2 * 4 * 3 + 2 * 3 * 2
    tor = fabric.index("tor5")
    names = {fabric.nodes[peer.node].name for peer in fabric.neighbors(tor).values()}
    assert {"leaf3", "leaf4", "leaf5"} < names


@pytest.mark.parametrize(("d_a", "d_i"), [(2, 2), (4, 4), (8, 6)])
def test_vl2_has_the_counts_of_its_paper(d_a, d_i):
    fabric = vl2(d_a, d_i, 2)
    assert prefixes(fabric) == {
        "h": d_a * d_i // 2,
        "tor": d_a * d_i // 4,
        "agg": d_i,
        "int": d_a // 2,
    }
    degree = {
        fabric.nodes[s].name.rstrip("0123456789"): len(fabric.neighbors(s)) for s in fabric.switches
    }
    assert degree == {"tor": 2 + 2, "agg": d_a, "int": d_i}


@pytest.mark.parametrize(("p", "a", "h"), [(1, 2, 1), (2, 4, 2), (1, 3, 3)])
def test_largest_dragonfly_has_one_cable_between_each_two_groups(p, a, h):
    fabric = dragonfly(p, a, h)
    groups = a * h + 1
    assert len(fabric.switches) == a * groups
    assert len(fabric.hosts) == p * a * groups
    assert all(len(fabric.neighbors(s)) == p + a - 1 + h for s in fabric.switches)
    assert set(between_groups(fabric, a).values()) == {1}
    assert len(between_groups(fabric, a)) == groups * (groups - 1) // 2


@pytest.mark.parametrize("groups", [1, 2, 3, 5])
def test_smaller_dragonfly_shares_its_global_cables_evenly(groups):
    fabric = dragonfly(1, 4, 2, groups)
    counts = between_groups(fabric, 4)
    assert len(counts) == groups * (groups - 1) // 2
    assert set(counts.values()) <= {8 // max(1, groups - 1)}
    assert all(len(fabric.neighbors(s)) <= 1 + 3 + 2 for s in fabric.switches)


def between_groups(fabric: Fabric, a: int) -> Counter[frozenset[int]]:
    ends = (
        frozenset(fabric.ordinal[end.node] // a for end in (link.a, link.b))
        for link in fabric.links
        if fabric.nodes[link.a.node].kind == "switch"
    )
    return Counter(pair for pair in ends if len(pair) == 2)


def test_back_to_back_is_one_cable():
    fabric = back_to_back(rate="4xEDR", delay="5 ns")
    assert (len(fabric.nodes), len(fabric.links)) == (2, 1)
    assert fabric.links[0].rate_bps == pytest.approx(100e9)
    assert fabric.links[0].delay_ps == 5000
    assert path(fabric, 0, 1) == [(0, 1)]


def test_two_hops_pass_both_switches():
    fabric = two_hops(3, 4)
    names = [fabric.nodes[node].name for node, _ in path(fabric, 0, 6)]
    assert names == ["h0", "switch0", "switch1"]
    assert [len(fabric.neighbors(s)) for s in fabric.switches] == [4, 5]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_builder_takes_rate_delay_lanes_and_routing(name):
    counts = {"one_switch": (3,), "two_hops": (1, 2), "leaf_spine": (2, 2, 2), "fat_tree": (4,)}
    counts |= {"leaf_spine3": (2, 2, 2, 2, 2, 2), "vl2": (4, 4, 2), "dragonfly": (1, 2, 1)}
    fabric = TOPOLOGIES[name](
        *counts.get(name, ()), rate="4xHDR", delay="7 ns", lanes=4, routing="up_down"
    )
    assert check_fabric(fabric).lanes == 4
    assert {(link.rate_name, link.delay_ps) for link in fabric.links} == {("4xHDR", 7000)}
    assert len(path(fabric, 0, len(fabric.hosts) - 1)) >= 1


SMALLEST = {
    "one_switch": (1,),
    "two_hops": (1, 1),
    "leaf_spine": (1, 1, 1),
    "leaf_spine3": (1, 1, 1, 1, 1, 1),
    "fat_tree": (2,),
    "vl2": (2, 2, 1),
    "dragonfly": (1, 1, 1, 1),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_each_topology_has_a_smallest_size_and_refuses_one_less_of_anything(name):
    build, counts = TOPOLOGIES[name], SMALLEST[name]
    fabric = check_fabric(build(*counts))
    assert fabric.hosts
    assert fabric.lanes == 1  # unless more are asked for
    for n in range(len(counts)):
        with pytest.raises(InputError, match="is not a whole number of at least"):
            build(*counts[:n], counts[n] - 1, *counts[n + 1 :])


def test_a_list_of_one_rate_or_delay_is_that_of_every_tier():
    assert leaf_spine(2, 2, 2, rate=["4xHDR"], delay=["7 ns"]) == leaf_spine(
        2, 2, 2, rate="4xHDR", delay="7 ns"
    )


BAD = {
    "k: 5 is odd": lambda: fat_tree(5),
    "k: 0 is not a whole number of at least 2": lambda: fat_tree(0),
    "k: '4' is not a whole number": lambda: fat_tree("4"),
    "k: True is not": lambda: fat_tree(True),
    "hosts: 0 is not": lambda: one_switch(0),
    "downstream_hosts: -1 is not": lambda: two_hops(1, -1),
    "spines: 0 is not": lambda: leaf_spine(2, 0, 2),
    "d_i: 3 is odd": lambda: vl2(4, 3, 1),
    "groups: 10 is above a·h \\+ 1 = 9": lambda: dragonfly(1, 4, 2, 10),
    "groups: 0 is not": lambda: dragonfly(1, 4, 2, 0),
    "node spine4: 0 ports": lambda: leaf_spine3(1, 2, 2, 5, 1, 2),
    "no chain of links": lambda: leaf_spine3(2, 1, 1, 2, 1, 1),
    "switch0: needs over 254 ports": lambda: one_switch(255),
    "leaf0: needs over 254 ports": lambda: leaf_spine(1, 1, 1, 10**9),
    "fat_tree: 250000000000000000000000000 nodes is above 1000000": lambda: fat_tree(10**9),
    "rate: 'fast' is not a rate": lambda: one_switch(2, rate="fast"),
    "delay: '3' is not a time": lambda: one_switch(2, delay="3"),
    "16 data lanes": lambda: one_switch(2, lanes=16),
    "routing 'scenic' does not exist; choose one of": lambda: one_switch(2, routing="scenic"),
}


@pytest.mark.parametrize("problem", BAD)
def test_impossible_parameters_are_refused(problem):
    with pytest.raises(InputError, match=problem):
        BAD[problem]()
