"""Dumps of real InfiniBand tools, and TOML files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from weft.cli import main
from weft.errors import InputError
from weft.fabric import (
    Fabric,
    Port,
    build_topology,
    check_fabric,
    fat_tree,
    find_cycle,
    leaf_spine,
    link_rate,
    one_switch,
    papers_1944,
    path,
    read_fabric,
    read_ibnetdiscover,
    read_lft,
    read_toml,
    route,
    with_addresses,
    write_ibnetdiscover,
    write_lft,
    write_toml,
)
from weft.fabric.subnet_dumps import read_iblinkinfo
from weft.toml_table import Table

DATA = Path(__file__).parent.parent / "data" / "fabric"
REAL = {
    "leaf_spine": ["leaf_spine.ibnet", "leaf_spine.lft"],
    "two_rails": ["two_rails.ibnet", "two_rails.lft"],
}


def real(name: str) -> Fabric:
    return read_fabric([DATA / file for file in REAL[name]])


def by_name(fabric: Fabric) -> set[tuple[frozenset[tuple[str, int]], str]]:
    return {
        (
            frozenset((fabric.nodes[end.node].name, end.port) for end in (link.a, link.b)),
            link.rate_name,
        )
        for link in fabric.links
    }


def test_a_real_dump_gives_its_nodes_with_lids_and_guids():
    fabric = real("leaf_spine")
    nodes = {node.name: (node.kind, node.ports, node.lid, node.guid) for node in fabric.nodes}
    assert nodes["leaf1"] == ("switch", 8, 3, "0x0000000000200001")
    assert nodes["h4"] == ("host", 1, 9, "0x0000000000100008")
    assert set(nodes) == {f"h{i}" for i in range(6)} | {"leaf0", "leaf1", "spine0", "spine1"}


def test_a_real_dump_gives_its_links_with_rates():
    # The fabric ibsim was given: host i on leaf i // 3, each leaf to both spines.
    hosts = {(frozenset([(f"h{i}", 1), (f"leaf{i // 3}", 1 + i % 3)]), "4xFDR") for i in range(6)}
    trunks = {
        (frozenset([(f"leaf{leaf}", 4 + spine), (f"spine{spine}", 1 + leaf)]), "4xEDR")
        for leaf in range(2)
        for spine in range(2)
    }
    assert by_name(real("leaf_spine")) == hosts | trunks


def lft_lines(text: str) -> dict[tuple[str, int], int]:
    """(switch GUID, LID) -> output port, read straight from the dump."""
    table = {}
    for line in text.splitlines():
        if heading := re.search(r"guid (0x[0-9a-f]{16}) \(", line):
            guid = heading[1]
        elif line.startswith("0x"):
            lid, port = line.split()[:2]
            table[guid, int(lid, 16)] = int(port)
    return table


@pytest.mark.parametrize("name", REAL)
def test_every_hop_of_a_path_is_an_entry_of_the_switchs_table(name):
    fabric = real(name)
    table = lft_lines((DATA / REAL[name][1]).read_text())
    for src in fabric.hosts:
        for dst in fabric.hosts:
            hops = path(fabric, src, dst)
            for node, port in hops[1:]:
                assert table[fabric.nodes[node].guid, fabric.nodes[dst].lid] == port
            assert not hops or fabric.neighbors(hops[-1][0])[hops[-1][1]].node == dst


@pytest.mark.parametrize("name", REAL)
def test_what_opensm_routed_on_a_tree_cannot_deadlock(name):
    assert find_cycle(real(name)) is None


def test_options_of_the_tools_do_not_change_what_is_read():
    grouped = read_fabric([DATA / "leaf_spine_grouped.ibnet", DATA / "leaf_spine_all.lft"])
    assert replace(grouped, name="leaf_spine") == real("leaf_spine")
    brief = read_fabric([DATA / "two_rails.ibnet", DATA / "two_rails_brief.lft"])
    assert brief == real("two_rails")


def test_an_adapter_with_two_linked_ports_is_two_hosts():
    fabric = real("two_rails")
    first, second = fabric.index("node1 mlx5_0"), fabric.index("node1 mlx5_0 port 2")
    assert list(fabric.neighbors(first)) == [1]
    assert list(fabric.neighbors(second)) == [2]
    assert (fabric.nodes[first].lid, fabric.nodes[second].lid) == (2, 6)
    assert fabric.nodes[second].guid == "0x0000000000100002"


def test_nodes_of_the_same_description_are_told_apart_by_guid():
    names = [real("two_rails").nodes[s].name for s in real("two_rails").switches]
    assert names == [
        "Mellanox Technologies switch (S-0000000000200001)",
        "Mellanox Technologies switch (S-0000000000200000)",
    ]


@pytest.mark.parametrize("name", REAL)
def test_real_fabrics_survive_all_writers(name):
    fabric = real(name)
    bare = replace(fabric, routes=None)
    assert read_ibnetdiscover(write_ibnetdiscover(fabric)) == bare
    assert read_lft(write_lft(fabric), bare) == fabric.routes
    assert read_toml(write_toml(fabric)) == fabric


def test_the_papers_fabric_survives_all_writers():
    fabric = with_addresses(papers_1944(lanes=8))
    bare = read_ibnetdiscover(write_ibnetdiscover(fabric))
    assert bare == replace(fabric, routes=None)
    assert read_lft(write_lft(fabric), bare) == fabric.routes


def test_new_addresses_avoid_those_in_use_and_leave_room_for_the_guids_of_ports():
    bare = one_switch(3)
    first, *remaining = bare.nodes
    addressed = replace(first, lid=2, guid="0x0000000000100010")
    nodes = with_addresses(replace(bare, nodes=(addressed, *remaining))).nodes
    assert nodes[0] == addressed
    assert [node.lid for node in nodes] == [2, 1, 3, 4]
    assert [int(node.guid, 16) for node in nodes[1:]] == [0x100000, 0x100020, 0x100030]


def test_lanes_and_delay_from_outside_hold_for_dumps_only(tmp_path):
    fabric = read_fabric(DATA / "leaf_spine.ibnet", lanes=4, delay="30 ns")
    assert fabric.lanes == 4
    assert fabric.routes is None
    assert {link.delay_ps for link in fabric.links} == {30_000}
    file = tmp_path / "fabric.toml"
    file.write_text('[fabric]\ntopology = "fat_tree"\nk = 4\n')
    with pytest.raises(InputError, match="lanes or delay given from outside"):
        read_fabric(file, lanes=4)


@pytest.mark.parametrize("routing", ["ecmp", "up_down"])
def test_toml_by_topology_is_the_builders_fabric(routing):
    text = f"""
    [fabric]
    topology = "fat_tree"
    k = 4
    rate = "4xEDR"
    delay = "20 ns"
    lanes = 2
    routing = "{routing}"
    """
    assert read_toml(text) == fat_tree(4, rate="4xEDR", delay="20 ns", lanes=2, routing=routing)


def test_toml_by_topology_takes_a_rate_and_a_delay_of_each_tier():
    rates, delays = ["4xHDR", "4xEDR", "4xFDR"], ["5 ns", "50 ns", "250 ns"]
    text = f'[fabric]\ntopology = "fat_tree"\nk = 4\nrate = {rates}\ndelay = {delays}\n'
    assert read_toml(text) == fat_tree(4, rate=rates, delay=delays)


def test_a_table_without_topology_is_refused():
    with pytest.raises(InputError, match=r"scenario: fabric\.topology: is missing"):
        build_topology(Table({"k": 4}, "scenario", "fabric."))


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("rate", "-5Gb/s", "one_switch rate: '-5Gb/s' is out of range"),
        ("hosts", 0, "topology parameter hosts: 0 is not a whole number"),
        ("delay", "1e6s", "one_switch delay: '1e6s' is too large"),
        ("name", "", "fabric: '' is not a name"),
        ("rate", ["4xFDR", "4xEDR"], "one_switch rate: 2 values (4xFDR, 4xEDR), tiers of links: 1"),
        ("delay", [], "one_switch delay: 0 values (), tiers of links: 1"),
    ],
)
def test_what_a_builder_refuses_is_told_with_its_place(key, value, problem):
    about = {"topology": "one_switch", "hosts": 3, key: value}
    with pytest.raises(InputError) as caught:
        build_topology(Table(about, "lab.toml", "fabric."))
    assert str(caught.value).startswith(f"lab.toml: fabric: {problem}")


def test_an_empty_file_is_told_by_its_name():
    with pytest.raises(InputError, match=r"lab\.toml: fabric fabric: 0 hosts"):
        read_toml("", "lab.toml")


EXPLICIT = """[fabric]
name = "lab"
lanes = 2
routing = "up_down"
rate = "4xFDR"
delay = "50 ns"

[[host]]
name = "h0"
[[host]]
name = "h1"
lid = 2
[[switch]]
name = "MF0;sw:SX6012"
ports = 12
[[link]]
ends = ["MF0;sw:SX6012:3", "h0:1"]
[[link]]
ends = ["h1:1", "MF0;sw:SX6012:4"]
rate = "10 Gb/s"
delay = "5 ns"
"""


def test_explicit_toml_is_read_with_defaults_of_the_fabric():
    fabric = read_toml(EXPLICIT)
    assert [node.name for node in fabric.nodes] == ["h0", "h1", "MF0;sw:SX6012"]
    assert [(x.rate_name, x.delay_ps) for x in fabric.links] == [
        ("4xFDR", 50_000),
        ("10 Gb/s", 5_000),
    ]
    assert path(fabric, 0, 1) == [(0, 1), (2, 4)]
    assert read_toml(write_toml(fabric)) == fabric


BAD_TOML = {
    "line 3: not TOML": "[fabric]\nname = 'x'\nlanes = \n",
    "lab.toml: fabrik: is not a known key; known here: fabric, host, link": "[fabrik]\n",
    r"fabric\.lane: is not a known key; known here: delay, lanes, name, rate, routing": (
        "[fabric]\nlane = 1\n"
    ),
    r"fabric\.k4: is not a known key; known here: delay, k, lanes, name, rate": (
        '[fabric]\ntopology = "fat_tree"\nk = 4\nk4 = 1\n'
    ),
    r"fabric\.topology: 'torus' is unknown; use one of back": '[fabric]\ntopology="torus"\n',
    r"fabric\.k: is missing": '[fabric]\ntopology = "fat_tree"\n',
    "parameter k: 'a' is not a whole": '[fabric]\ntopology = "fat_tree"\nk = "a"\n',
    r"fabric\.lanes: True is not a whole": '[fabric]\ntopology = "fat_tree"\nk = 4\nlanes=true\n',
    r"fabric\.routing: 3 is not a text": '[fabric]\ntopology = "fat_tree"\nk = 4\nrouting=3\n',
    "lab.toml: host: is not a known key": '[fabric]\ntopology = "fat_tree"\nk = 4\n[[host]]\n',
    "lanes: 16 is out of range; use 1 to 15": EXPLICIT.replace("lanes = 2", "lanes = 16"),
    "lanes: '2' is not a whole number": EXPLICIT.replace("lanes = 2", 'lanes = "2"'),
    r"line 13 \[\[switch\]\]: port: is not a known key; known here: guid, lid, name, ports": (
        EXPLICIT.replace("ports = 12", "ports = 12\nport = 12")
    ),
    r"line 10 \[\[host\]\]: name: is missing": EXPLICIT.replace('name = "h1"', ""),
    r"\[\[switch\]\]: ports: is missing": EXPLICIT.replace("ports = 12", ""),
    r"line 16 \[\[link\]\]: ends: 'sw9:3' is not NODE:PORT": EXPLICIT.replace(
        "MF0;sw:SX6012:3", "sw9:3"
    ),
    r"ends: 1 ends, 2 are needed": EXPLICIT.replace('"h0:1"', ""),
    r"line 18 \[\[link\]\]: rate: '10 Gx/s' is not a rate": EXPLICIT.replace("10 Gb", "10 Gx"),
    "port 13: outside 1..12": EXPLICIT.replace("SX6012:3", "SX6012:13"),
    "line 16 .*rate: is missing": EXPLICIT.replace('rate = "4xFDR"', ""),
    "routing 'scenic' does not exist": EXPLICIT.replace("up_down", "scenic"),
    "host: not a list of tables": "host = 3\n",
    "3 is not a table": "fabric = 3\n",
    r"not one per switch": EXPLICIT.replace('routing = "up_down"', "")
    + '[[route]]\nswitch = "x"\nout = [[3], [4]]\n',
    "together with": EXPLICIT + '[[route]]\nswitch = "MF0;sw:SX6012"\nout = [[3], [4]]\n',
    "3 lists of ports, 2 hosts": EXPLICIT.replace('routing = "up_down"', "")
    + '[[route]]\nswitch = "MF0;sw:SX6012"\nout = [[3], [4], []]\n',
    "3 is not a list of ports": EXPLICIT.replace('routing = "up_down"', "")
    + '[[route]]\nswitch = "MF0;sw:SX6012"\nout = [3, 4]\n',
    "port 9: a route leaves here": EXPLICIT.replace('routing = "up_down"', "")
    + '[[route]]\nswitch = "MF0;sw:SX6012"\nout = [[3], [9]]\n',
    "line 2: not TOML: .*limit": "[fabric]\nlanes = " + "9" * 5000,
    "line 1: not TOML: .*recursion": "a = " + "[" * 5000,
    "delay: '1e400 s' is too large": EXPLICIT.replace("5 ns", "1e400 s"),
    "0 hosts": "",
}


@pytest.mark.parametrize("problem", BAD_TOML)
def test_a_wrong_toml_file_is_refused_with_place_and_remedy(problem):
    with pytest.raises(InputError, match=problem) as caught:
        read_toml(BAD_TOML[problem], "lab.toml")
    assert caught.value.remedy


IBNET = (DATA / "leaf_spine.ibnet").read_text()
WRITTEN = write_ibnetdiscover(leaf_spine(2, 1, 1))
BAD_IBNET = {
    "x.ibnet line 11: '4xODR' is not a known link rate": IBNET.replace("4xFDR", "4xODR", 1),
    r"x.ibnet line 7: delay 60ns here, 50ns on line": WRITTEN.replace("=50ns", "=60ns", 1),
    "line 11: .* is linked elsewhere on line": IBNET.replace(
        '"H-0000000000100006"[1](100007)', '"H-0000000000100008"[1](100009)', 1
    ),
    "is linked to .* but has no line": IBNET.replace(
        '"H-0000000000100006"[1](100007)', '"H-0000000000100006"[2](100007)', 1
    ),
    "line 10: a router": IBNET.replace("Switch\t8", "Rt\t8", 1),
    "again, first on line 10": IBNET + IBNET,
    "line 1: a port before any node": IBNET[IBNET.index("[1]") :],
    "line 1: 'hello' is neither a node": "hello\n" + IBNET,
    "over 9 digits": IBNET.replace("Switch\t8", "Switch\t8888888888", 1),
    "0 hosts": "",
}


@pytest.mark.parametrize("problem", BAD_IBNET)
def test_a_wrong_topology_dump_is_refused_with_its_line(problem):
    with pytest.raises(InputError, match=problem):
        read_ibnetdiscover(BAD_IBNET[problem], "x.ibnet")


@pytest.mark.parametrize("reported", ["4xSDR", "4xEDR"])
def test_of_two_rates_that_the_ends_report_the_lower_is_taken_with_a_warning(reported):
    fabric = read_ibnetdiscover(IBNET.replace("4xFDR", reported, 1), "x.ibnet")
    (warning,) = fabric.warnings
    assert warning.startswith("x.ibnet line 63: h3 port 1 reports 4xFDR, its peer on line 11")
    lower = min(reported, "4xFDR", key=lambda name: link_rate(name).data_bps)
    assert warning.endswith(f"{reported}; {lower} is taken")
    link = fabric.link_of[Port(fabric.index("h3"), 1)]
    assert (link.rate_name, link.rate_bps) == (lower, link_rate(lower).data_bps)


def slow_down(fabric, *names):
    """The fabric's dump with the links between these pairs of nodes at 1xSDR."""
    slow = link_rate("1xSDR")
    pairs = [{fabric.index(name) for name in pair} for pair in names]
    links = (
        replace(link, rate_bps=slow.data_bps, rate_name=str(slow))
        if {link.a.node, link.b.node} in pairs
        else link
        for link in fabric.links
    )
    return write_ibnetdiscover(replace(fabric, links=tuple(links)))


def test_a_link_slower_than_its_siblings_is_a_finding_with_both_ports():
    # Rates differ by tier: a host's link is no sibling of an uplink.
    fabric = fat_tree(4, rate=["4xFDR", "4xHDR", "4xEDR"])
    assert read_ibnetdiscover(write_ibnetdiscover(fabric)).findings == ()
    host, trunk = read_ibnetdiscover(slow_down(fabric, ("h1", "edge0"), ("edge3", "agg2"))).findings
    assert (
        host == "h1 port 1 to edge0 port 2 runs at 1xSDR, slower than 1 of its 1 siblings on edge0"
    )
    assert trunk.startswith("edge3 port 3 to agg2 port 2 runs at 1xSDR, slower than 1 of its 1")


@pytest.mark.parametrize(
    ("slow", "total", "findings"), [(1, 4, 1), (2, 4, 2), (3, 4, 0), (2, 5, 2)]
)
def test_only_a_link_slower_than_most_of_its_siblings_is_a_finding(slow, total, findings):
    dump = slow_down(one_switch(total), *((f"h{i}", "switch0") for i in range(slow)))
    assert len(read_ibnetdiscover(dump).findings) == findings


LINKS = (DATA / "links.iblinkinfo").read_text()


@pytest.mark.parametrize("file", ["links.iblinkinfo", "links_by_line.iblinkinfo"])
def test_links_below_what_both_ends_support_are_findings(file):
    # ibsim's ports support 12X and HDR; a cable without a remark has what both ends support.
    files = [DATA / "links.ibnet", DATA / file]
    findings = read_fabric(files).findings
    assert len(findings) == 10  # links, each listed by both of its ends
    assert "h0 port 1 to leaf0 port 1 runs at 4xFDR, but both ends support 12xHDR" in findings
    assert any("spine0 port 1 " in text and " runs at 4xEDR" in text for text in findings)


@pytest.mark.parametrize(
    ("remark", "expected"),
    [
        ("Could be 12X ", "4xFDR, but both ends support 12xFDR"),
        (" Could be 53.125 Gbps", "4xFDR, but both ends support 4xHDR"),
        (" Could be FDR10", "4xFDR, but both ends support 4xFDR10"),
        (" Could be 212.5 Gbps", "4xFDR, but both ends support 4x212.5 Gbps"),
        (" ", None),
    ],
)
def test_what_a_link_could_be_is_read_for_width_and_speed_alike(remark, expected):
    quiet = LINKS.replace("(Could be 12X Could be 53.125 Gbps)", "( )")
    text = quiet.replace('"h3" ( )', f'"h3" ({remark})')
    findings = read_iblinkinfo(text, read_fabric(DATA / "links.ibnet"))
    place = "h3 port 1 to leaf1 port 1 runs at "
    assert findings == ((place + expected,) if expected else ())


def test_a_line_of_links_that_fits_nothing_is_refused_with_its_place():
    fabric = read_fabric(DATA / "links.ibnet")
    with pytest.raises(InputError, match=r"x line 2: LID 99 port 1 is not a link of the topology"):
        read_iblinkinfo(LINKS.replace("      6    1[", "     99    1[", 1), fabric, "x")
    with pytest.raises(InputError, match=r"x line 2: .* is not a port; give the output of ibl"):
        read_iblinkinfo(LINKS.replace("==(", "--(", 1), fabric, "x")


LFT = (DATA / "leaf_spine.lft").read_text()
BAD_LFT = {
    "x.lft line 4: leaf1 sends LID 1 to port 7, but its linked ports are 1, 2, 3, 4, 5": (
        LFT.replace("0x0001 004", "0x0001 007", 1)
    ),
    "x.lft line 1: switch 0x00000000002000ff .* is not in fabric": LFT.replace(
        "0x0000000000200001", "0x00000000002000ff", 1
    ),
    "line 13: 9 entries since line 1, the dump counts 10": LFT.replace(
        "0x0001 004 : (Channel Adapter portguid 0x0000000000100001: 'h0')\n", "", 1
    ),
    "line 1: this table has no count": LFT.replace("10 valid lids dumped \n", "", 1),
    "a second table, the first is on line 1": LFT + LFT,
    "no table for switch leaf1": LFT[LFT.index("Unicast", 1) :],
    "an entry outside a table": LFT[LFT.index("0x0001") :],
    "a count outside a table": LFT + "3 lids dumped\n",
    "line 1: 'Multicast mlids.* is not part of": LFT.replace("Unicast lids", "Multicast mlids"),
}


@pytest.mark.parametrize("problem", BAD_LFT)
def test_wrong_tables_are_refused_with_their_line(problem):
    with pytest.raises(InputError, match=problem):
        read_lft(BAD_LFT[problem], real("leaf_spine"), "x.lft")


def test_a_table_that_says_255_leaves_the_host_unreachable():
    fabric = real("leaf_spine")
    text = LFT.replace("0x0001 004", "0x0001 255", 1)
    broken = check_fabric(replace(fabric, routes=read_lft(text, fabric)))
    with pytest.raises(InputError, match="node leaf1: has no route to h0"):
        path(broken, broken.index("h3"), broken.index("h0"))


def test_tables_cannot_be_written_without_addresses_routes_or_for_equal_paths():
    fabric = leaf_spine(2, 2, 1, routing="ecmp")
    with pytest.raises(InputError, match="has no LID or no GUID"):
        write_lft(fabric)
    with pytest.raises(InputError, match="2 equal ports towards h1, a table holds 1"):
        write_lft(with_addresses(fabric))
    with pytest.raises(InputError, match="has no routes"):
        write_lft(replace(with_addresses(fabric), routes=None))


def test_addresses_are_added_only_where_missing():
    fabric = real("leaf_spine")
    assert with_addresses(fabric) == fabric
    nodes = (replace(one_switch(2).nodes[0], lid=2), *one_switch(2).nodes[1:])
    numbered = with_addresses(replace(one_switch(2), nodes=nodes))
    assert [node.lid for node in check_fabric(numbered).nodes] == [2, 1, 3]


def test_files_are_told_apart_by_content(tmp_path):
    fabric = with_addresses(route(fat_tree(4), "up_down"))
    names = {"a": write_ibnetdiscover(fabric), "b": write_lft(fabric), "c": write_toml(fabric)}
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    assert read_fabric([tmp_path / "b", tmp_path / "a"]) == fabric
    assert read_fabric(str(tmp_path / "c")) == fabric
    with pytest.raises(InputError, match="0 topologies, 1 dumps of tables and 0 of links"):
        read_fabric(tmp_path / "b")
    with pytest.raises(InputError, match="1 topologies, 0 dumps of tables and 2 of links"):
        read_fabric([DATA / "links.ibnet", *DATA.glob("*.iblinkinfo")])
    with pytest.raises(InputError, match="2 topologies"):
        read_fabric([tmp_path / "a", tmp_path / "c"])
    (tmp_path / "d").write_text((tmp_path / "b").read_text())
    with pytest.raises(InputError, match="1 topologies, 2 dumps of tables and 0 of links"):
        read_fabric([tmp_path / name for name in "abd"])


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        read_fabric(tmp_path / "none.toml")
    (tmp_path / "binary").write_bytes(b"[fabric]\n\xff\xfe")
    with pytest.raises(InputError, match="binary: byte 9 is not UTF-8"):
        read_fabric(tmp_path / "binary")
    with pytest.raises(InputError, match="fabric files: 0 topologies"):
        read_fabric([])


def test_the_path_of_a_packet_is_printed_by_outputs(tmp_path, capsys):
    file = tmp_path / "fabric.toml"
    file.write_text(write_toml(one_switch(3)))
    assert main(["fabric", str(file), "--path", "h0", "h2"]) == 0
    assert capsys.readouterr().out == "h0:1 -> switch0:3 -> h2\n"
    assert main(["fabric", str(file), "--path", "h0", "h9"]) == 2
    assert "--path: 'h9' is not in the fabric" in capsys.readouterr().err
