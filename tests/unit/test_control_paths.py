"""Paths of the controller, which searches once per switch, against those of single connections."""

from __future__ import annotations

import pytest
from control_parts import FABRIC, seen_without

from weft.control.policy.plan import find_connection_path
from weft.control.state.managed_paths import Paths
from weft.errors import InputError
from weft.fabric import Fabric, Port, fat_tree, leaf_spine


def all_ports(fabric: Fabric) -> frozenset[Port]:
    ends = [(node, port) for node in range(len(fabric.nodes)) for port in fabric.neighbors(node)]
    return frozenset(Port(node, port) for node, port in ends)


@pytest.mark.parametrize("fabric", [leaf_spine(3, 2, 3), fat_tree(4)], ids=["leaf-spine", "tree"])
def test_every_pair_of_hosts_has_the_ports_of_its_own_search(fabric: Fabric) -> None:
    paths = Paths(fabric, all_ports(fabric))
    for source in fabric.hosts:
        for destination in fabric.hosts:
            names = fabric.nodes[source].name, fabric.nodes[destination].name
            expected = (
                ()
                if source == destination
                else find_connection_path(fabric, "a", source, destination).ports
            )
            assert paths.between(*names) == tuple(sorted(expected))


def test_ports_that_cannot_be_managed_are_left_out() -> None:
    managed = frozenset(port for port in all_ports(FABRIC) if port.node not in FABRIC.hosts)
    ports = Paths(FABRIC, managed).between("h0", "h2")
    assert ports
    assert managed.issuperset(ports)


def test_a_host_without_a_link_has_no_path() -> None:
    alone = seen_without(FABRIC, "leaf0")
    paths = Paths(alone, all_ports(alone))
    with pytest.raises(InputError, match="from h0 to h2: h0 has no route to it"):
        paths.between("h0", "h2")
