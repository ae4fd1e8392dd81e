"""What holds for every routing on every fabric."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import prod

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.errors import InputError
from weft.fabric import (
    ROUTINGS,
    Fabric,
    Link,
    Node,
    Port,
    check_fabric,
    check_reach,
    describe_cycle,
    dragonfly,
    fat_tree,
    find_cycle,
    leaf_spine,
    leaf_spine3,
    path,
    route,
    vl2,
)

examples = settings(deadline=None, max_examples=40)

small = st.integers(1, 3)


@st.composite
def random_fabrics(draw: st.DrawFn) -> Fabric:
    """A connected graph of switches, parallel cables allowed, hosts anywhere."""
    switches = draw(st.integers(1, 7))
    places = draw(st.lists(st.integers(0, switches - 1), min_size=1, max_size=8))
    tree = [(i, draw(st.integers(0, i - 1))) for i in range(1, switches)]
    pair = st.tuples(st.integers(0, switches - 1), st.integers(0, switches - 1))
    extra = [(a, b) for a, b in draw(st.lists(pair, max_size=8)) if a != b]
    used = [0] * (len(places) + switches)
    links = []
    cables = [(h, len(places) + s) for h, s in enumerate(places)]
    cables += [(len(places) + a, len(places) + b) for a, b in tree + extra]
    for a, b in draw(st.permutations(cables)):
        used[a] += 1
        used[b] += 1
        links.append(Link(Port(a, used[a]), Port(b, used[b]), 56e9, 0, "56 Gb/s"))
    nodes = [Node(f"h{i}", "host", 1) for i in range(len(places))]
    nodes += [Node(f"s{i}", "switch", max(1, used[len(places) + i])) for i in range(switches)]
    return check_fabric(Fabric("random", tuple(nodes), tuple(links)))


trees = st.one_of(
    st.builds(leaf_spine, small, small, small, small),
    st.sampled_from([2, 4]).map(fat_tree),
    st.builds(vl2, st.sampled_from([2, 4]), st.sampled_from([2, 4]), small),
    st.builds(leaf_spine3, small, small, small, st.just(2), small, st.just(2)),
)
dragonflies = st.builds(dragonfly, st.integers(1, 2), small, small, st.none())
fabrics = st.one_of(random_fabrics(), trees, dragonflies)


def bfs(fabric: Fabric, start: int) -> dict[int, int]:
    """Hops from a node to every other."""
    hops = {start: 0}
    queue = [start]
    for node in queue:
        for peer in fabric.neighbors(node).values():
            if peer.node not in hops:
                hops[peer.node] = hops[node] + 1
                queue.append(peer.node)
    return hops


def pairs(fabric: Fabric) -> Iterator[tuple[int, int]]:
    return ((a, b) for a in fabric.hosts for b in fabric.hosts if a != b)


def end_of(fabric: Fabric, hops: list[tuple[int, int]]) -> int:
    node, port = hops[-1]
    return fabric.neighbors(node)[port].node


@examples
@given(fabrics, st.sampled_from(["shortest_path", "destination_modulo", "ecmp"]), st.integers(0))
def test_every_pair_is_joined_by_a_path_as_long_as_the_least_distance(fabric, routing, flow):
    routed = route(fabric, routing)
    for src, dst in pairs(routed):
        hops = path(routed, src, dst, flow)
        assert hops[0][0] == src
        assert end_of(routed, hops) == dst
        assert len(hops) == bfs(routed, src)[dst]


@examples
@given(fabrics)
def test_ecmp_groups_are_all_ports_that_lead_nearer(fabric):
    routed = route(fabric, "ecmp")
    for column, host in enumerate(routed.hosts):
        hops = bfs(routed, host)
        for row, switch in enumerate(routed.switches):
            nearer = tuple(
                port
                for port, peer in routed.neighbors(switch).items()
                if hops[peer.node] == hops[switch] - 1
            )
            assert routed.routes.ports(row, column) == nearer


@examples
@given(fabrics)
def test_destination_modulo_gives_host_j_the_equal_ports_in_turn(fabric):
    """Up: port floor(j / Π w_i) mod (equal ports), w_i the up ports below; down: j mod them."""
    routed = route(fabric, "destination_modulo")
    level = tree_levels(routed)
    up = {
        switch: {
            port
            for port, peer in routed.neighbors(switch).items()
            if routed.nodes[peer.node].kind == "switch" and level[peer.node] > level[switch]
        }
        for switch in routed.switches
    }
    widest = [1] * (max(level) + 1)
    for switch in routed.switches:
        widest[level[switch]] = max(widest[level[switch]], len(up[switch]))
    for j, host in enumerate(routed.hosts):
        hops = bfs(routed, host)
        for row, switch in enumerate(routed.switches):
            equal = [
                port
                for port, peer in routed.neighbors(switch).items()
                if hops[peer.node] == hops[switch] - 1
            ]
            climbs = not up[switch].isdisjoint(equal)
            turn = j // prod(widest[1 : level[switch]]) if climbs else j
            assert routed.routes.ports(row, j) == (equal[turn % len(equal)],)


@examples
@given(fabrics)
def test_up_down_joins_every_pair(fabric):
    routed = route(fabric, "up_down")
    for src, dst in pairs(routed):
        assert end_of(routed, path(routed, src, dst)) == dst


@examples
@given(trees)
def test_up_down_on_trees_never_turns_from_down_to_up(fabric):
    level = tree_levels(fabric)
    routed = route(fabric, "up_down")
    for src, dst in pairs(routed):
        climb = [level[node] for node, _ in path(routed, src, dst)]
        top = climb.index(max(climb))
        assert climb[: top + 1] == sorted(climb[: top + 1])
        assert climb[top:] == sorted(climb[top:], reverse=True)


def tree_levels(fabric: Fabric) -> list[int]:
    """Hops to the nearest host."""
    distances = [bfs(fabric, host) for host in fabric.hosts]
    return [min(hops[node] for hops in distances) for node in range(len(fabric.nodes))]


@examples
@given(fabrics)
def test_up_down_cannot_deadlock(fabric):
    assert find_cycle(route(fabric, "up_down")) is None


@examples
@given(trees, st.sampled_from(sorted(ROUTINGS)))
def test_no_routing_of_a_tree_can_deadlock(fabric, routing):
    assert find_cycle(route(fabric, routing)) is None


def walks(fabric: Fabric, src: int, dst: int) -> Iterator[list[Port]]:
    """Every chain of channels from src to dst that some flow may take."""
    stack = [[Port(src, next(iter(fabric.neighbors(src))))]]
    while stack:
        chain = stack.pop()
        node = fabric.neighbors(chain[-1].node)[chain[-1].port].node
        if node == dst:
            yield chain
            continue
        ports = fabric.routes.ports(fabric.ordinal[node], fabric.ordinal[dst])
        stack += [[*chain, Port(node, port)] for port in ports]


def dependencies(fabric: Fabric) -> dict[Port, set[Port]]:
    """The channel dependency graph by its definition: over all walks of all pairs."""
    graph: dict[Port, set[Port]] = {}
    for src, dst in pairs(fabric):
        for chain in walks(fabric, src, dst):
            for held, wanted in pairwise(chain):
                graph.setdefault(held, set()).add(wanted)
    return graph


@examples
@given(st.one_of(random_fabrics(), dragonflies), st.sampled_from(sorted(ROUTINGS)))
def test_a_cycle_is_found_exactly_when_the_dependency_graph_has_one(fabric, routing):
    assume(len(fabric.hosts) <= 12)
    routed = route(fabric, routing)
    graph = dependencies(routed)
    cycle = find_cycle(routed)
    if cycle is None:
        TopologicalSorter(graph).prepare()
        return
    assert len(set(cycle)) == len(cycle)
    for held, wanted in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        assert wanted in graph[held]
    assert describe_cycle(routed, cycle).startswith(f"{len(cycle)} channels")


@examples
@given(random_fabrics())
def test_the_dependency_oracle_itself_sees_cycles(fabric):
    routed = route(fabric, "shortest_path")
    try:
        TopologicalSorter(dependencies(routed)).prepare()
        cyclic = False
    except CycleError:
        cyclic = True
    assert cyclic == (find_cycle(routed) is not None)


def is_lost(fabric: Fabric, visited: tuple[int, ...], dst: int) -> bool:
    """Whether some walk from the last switch visited goes in a circle or ends elsewhere."""
    node = visited[-1]
    if node == dst:
        return False
    if node in visited[:-1] or fabric.nodes[node].kind == "host":
        return True
    ports = fabric.routes.ports(fabric.ordinal[node], fabric.ordinal[dst])
    peers = [fabric.neighbors(node)[port].node for port in ports]
    return not peers or any(is_lost(fabric, (*visited, peer), dst) for peer in peers)


def is_refused(fabric: Fabric, sources: list[int], targets: list[int]) -> bool:
    try:
        check_reach(fabric, np.array(sources), np.array(targets))
    except InputError:
        return True
    return False


@examples
@given(random_fabrics(), st.sampled_from(["shortest_path", "ecmp"]), st.data())
def test_pairs_are_refused_exactly_when_a_walk_between_them_is_lost(fabric, routing, data):
    routed = route(fabric, routing)
    next_hop = routed.routes.next_hop.copy()
    cell = st.tuples(*(st.integers(0, length - 1) for length in next_hop.shape))
    for row, column in data.draw(st.lists(cell, max_size=4)):
        linked = routed.neighbors(routed.switches[row])
        usable = [i for i, g in enumerate(routed.routes.groups) if set(g) <= set(linked)]
        next_hop[row, column] = data.draw(st.sampled_from([-1, *usable]))
    changed = check_fabric(replace(routed, routes=replace(routed.routes, next_hop=next_hop)))
    lost = {}
    for a, src in enumerate(changed.hosts):
        first = next(iter(changed.neighbors(src).values())).node
        for b, dst in enumerate(changed.hosts):
            if a != b:
                lost[a, b] = is_lost(changed, (first,), dst)
                assert is_refused(changed, [a], [b]) == lost[a, b]
    if lost:
        assert is_refused(changed, *map(list, zip(*lost, strict=True))) == any(lost.values())


@examples
@given(random_fabrics(), st.data())
def test_a_changed_route_gives_right_paths_or_an_input_error(fabric, data):
    routed = route(fabric, "shortest_path")
    routes = routed.routes
    row = data.draw(st.integers(0, routes.next_hop.shape[0] - 1))
    column = data.draw(st.integers(0, routes.next_hop.shape[1] - 1))
    next_hop = routes.next_hop.copy()
    next_hop[row, column] = data.draw(st.integers(-1, len(routes.groups) - 1))
    changed = replace(routed, routes=replace(routes, next_hop=next_hop))
    with suppress(InputError):
        check_fabric(changed)
        for src, dst in pairs(changed):
            assert end_of(changed, path(changed, src, dst)) == dst
