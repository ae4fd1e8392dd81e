"""A fabric that makes no sense is refused by name."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from weft.errors import InputError
from weft.fabric import Fabric, Link, Node, Port, Routes, check_fabric, leaf_spine, one_switch

GOOD = one_switch(2)
CABLE = GOOD.links[0]


def cable(a: Port, b: Port) -> Link:
    return replace(CABLE, a=a, b=b)


def changed_node(index: int, **change: object) -> Fabric:
    nodes = list(GOOD.nodes)
    nodes[index] = replace(nodes[index], **change)
    return replace(GOOD, nodes=tuple(nodes))


def changed_link(**change: object) -> Fabric:
    return replace(GOOD, links=(replace(CABLE, **change), GOOD.links[1]))


def with_links(*links: Link) -> Fabric:
    return replace(GOOD, links=links, routes=None)


SWITCH = Node("switch0", "switch", 4)
BROKEN = {
    "0 data lanes is outside 1..15": replace(GOOD, lanes=0),
    "16 data lanes": replace(GOOD, lanes=16),
    "'' is not a name": replace(GOOD, name=""),
    "'a\\\\tb' is not a name": changed_node(0, name="a\tb"),
    "two nodes have name 'h1'": changed_node(0, name="h1"),
    "two nodes have LID 7": replace(
        changed_node(0, lid=7), nodes=tuple(replace(n, lid=7) for n in GOOD.nodes)
    ),
    "two nodes have GUID '0x0002c90300a1b2c0'": replace(
        GOOD, nodes=tuple(replace(n, guid="0x0002c90300a1b2c0") for n in GOOD.nodes)
    ),
    "LID 49152 is outside 1..49151": changed_node(0, lid=49152),
    "GUID '0x12' is not": changed_node(0, guid="0x12"),
    "0 ports is outside 1..254": changed_node(2, ports=0),
    "unknown kind 'router'": changed_node(0, kind="router"),
    "0 hosts": Fabric("empty", (SWITCH,), ()),
    "'switch0' comes before a host": replace(GOOD, nodes=GOOD.nodes[::-1]),
    "node h1 port 1: used by two links": with_links(
        cable(Port(0, 1), Port(1, 1)), cable(Port(1, 1), Port(2, 1))
    ),
    "node switch0 port 3: outside 1..2": with_links(
        cable(Port(0, 1), Port(2, 3)), cable(Port(1, 1), Port(2, 1))
    ),
    "node switch0 port 0: outside": with_links(cable(Port(0, 1), Port(2, 0))),
    "node 9, outside 0..2": with_links(cable(Port(0, 1), Port(9, 1))),
    "linked to its own node": with_links(cable(Port(2, 1), Port(2, 2))),
    "host h1: 0 links": with_links(cable(Port(0, 1), Port(2, 1))),
    "rate 0.0 b/s is not above 0": changed_link(rate_bps=0.0, rate_name="0 b/s"),
    "rate nan b/s": changed_link(rate_bps=float("nan")),
    "is not what '4xEDR' means": changed_link(rate_name="4xEDR"),
    "delay -1 ps is outside 0..1000000000000": changed_link(delay_ps=-1),
    "delay 1000000000001 ps": changed_link(delay_ps=10**12 + 1),
    "node switch0: no chain of links leads to h0": with_links(cable(Port(0, 1), Port(1, 1))),
    "is not \\(switches, hosts\\)": replace(
        GOOD, routes=Routes(np.zeros((2, 2), dtype=np.int32), ((1,),))
    ),
    "group 3 is outside -1..0": replace(
        GOOD, routes=Routes(np.array([[0, 3]], dtype=np.int32), ((1,),))
    ),
    "port 7: a route leaves here, but the linked ports are 1, 2": replace(
        GOOD, routes=Routes.from_ports(np.array([[1, 7]]))
    ),
    "an empty group": replace(GOOD, routes=Routes(np.array([[0, 0]], dtype=np.int32), ((),))),
}


@pytest.mark.parametrize("problem", BROKEN)
def test_a_broken_fabric_is_refused_with_place_value_and_remedy(problem):
    with pytest.raises(InputError, match=problem) as caught:
        check_fabric(BROKEN[problem])
    assert caught.value.where.startswith("fabric")
    assert caught.value.remedy


def test_two_links_on_one_host_are_refused():
    nodes = (Node("h0", "host", 2), Node("h1", "host", 1), SWITCH)
    ends = [(Port(0, 1), Port(2, 1)), (Port(0, 2), Port(2, 2)), (Port(1, 1), Port(2, 3))]
    links = tuple(cable(a, b) for a, b in ends)
    with pytest.raises(InputError, match="host h0: 2 links, exactly 1 is allowed"):
        check_fabric(Fabric("rails", nodes, links))


def test_a_sound_fabric_passes_unchanged():
    assert check_fabric(GOOD) is GOOD


def test_order_and_direction_of_links_do_not_matter():
    turned = tuple(replace(link, a=link.b, b=link.a) for link in reversed(GOOD.links))
    assert replace(GOOD, links=turned) == GOOD


def test_routes_are_equal_when_they_send_alike():
    routes = Routes(np.array([[0, 1, -1]], dtype=np.int32), ((1,), (2, 3)))
    same = Routes(np.array([[1, 0, -1]], dtype=np.int32), ((2, 3), (1,), (9,)))
    other = Routes(np.array([[0, 1, 0]], dtype=np.int32), ((1,), (2, 3)))
    assert routes == same
    assert hash(routes) == hash(same)
    assert routes != other
    assert routes != Routes(np.array([[0, 1]], dtype=np.int32), ((1,), (2, 3)))


def test_neighbors_and_wiring_tell_the_same_cables():
    fabric = leaf_spine(2, 2, 3, 2)
    for node in range(len(fabric.nodes)):
        near = fabric.neighbors(node)
        for port in range(1, fabric.wiring.shape[1] + 1):
            assert fabric.wiring[node, port - 1] == (near[port].node if port in near else -1)
        for port, peer in near.items():
            assert fabric.neighbors(peer.node)[peer.port] == Port(node, port)


def test_nodes_are_found_by_name():
    fabric = leaf_spine(2, 2, 3)
    assert fabric.nodes[fabric.index("spine1")].name == "spine1"
    with pytest.raises(InputError, match="no node is called 'spine9'"):
        fabric.index("spine9")
