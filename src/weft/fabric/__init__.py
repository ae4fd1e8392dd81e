"""What a fabric is: nodes, ports, links, lanes, routes; topologies, routings and readers."""

from weft.fabric.fabric import Fabric, Link, Node, Port, Routes, with_addresses
from weft.fabric.fabric_files import add_routes, build_topology, read_fabric, read_toml, write_toml
from weft.fabric.ibnetdiscover import read_ibnetdiscover, write_ibnetdiscover
from weft.fabric.lft import read_lft, write_lft
from weft.fabric.links import LinkRate, PlainRate, link_rate
from weft.fabric.routing import (
    ROUTINGS,
    check_reach,
    destination_modulo,
    ecmp,
    ecmp_choice,
    path,
    route,
    shortest_path,
    up_down,
)
from weft.fabric.soundness import check_fabric, describe_cycle, find_cycle
from weft.fabric.topology import (
    TOPOLOGIES,
    back_to_back,
    dragonfly,
    fat_tree,
    leaf_spine,
    leaf_spine3,
    one_switch,
    papers_1944,
    two_hops,
    vl2,
)

__all__ = [
    "ROUTINGS",
    "TOPOLOGIES",
    "Fabric",
    "Link",
    "LinkRate",
    "Node",
    "PlainRate",
    "Port",
    "Routes",
    "add_routes",
    "back_to_back",
    "build_topology",
    "check_fabric",
    "check_reach",
    "describe_cycle",
    "destination_modulo",
    "dragonfly",
    "ecmp",
    "ecmp_choice",
    "fat_tree",
    "find_cycle",
    "leaf_spine",
    "leaf_spine3",
    "link_rate",
    "one_switch",
    "papers_1944",
    "path",
    "read_fabric",
    "read_ibnetdiscover",
    "read_lft",
    "read_toml",
    "route",
    "shortest_path",
    "two_hops",
    "up_down",
    "vl2",
    "with_addresses",
    "write_ibnetdiscover",
    "write_lft",
    "write_toml",
]
