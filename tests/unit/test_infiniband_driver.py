"""The infiniband driver where ibsim cannot lead it: odd nodes, silent ones, LIDs that move.

The subnet in memory answers by the architecture's layouts; ibsim and OpenSM are in
`tests/conformance` and `tests/live`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from iba_layouts import PORT as PORT_LAYOUT
from iba_layouts import field as laid_out_field
from small_subnet import ADAPTER, ROUTER, SWITCHING, Device, SmallSubnet, cable

from weft.errors import InputError
from weft.fabric import Fabric, path
from weft.switches import (
    Ability,
    EdgePort,
    EdgeReport,
    EdgeRules,
    Failed,
    Foreign,
    Lane,
    PortName,
    Tables,
)
from weft.switches.infiniband import InfinibandSwitches, mad, open_switches
from weft.switches.infiniband.mad import Smp
from weft.switches.infiniband.mad_transport import Refusal
from weft.switches.infiniband.port_counters import EdgeCounters
from weft.switches.infiniband.subnet_discovery import discover_subnet
from weft.toml_table import Table


def table(ports: dict[int, int]) -> dict[int, bytes]:
    """A forwarding table of two blocks: LID -> port."""
    whole = bytearray(b"\xff" * 128)
    for lid, port in ports.items():
        whole[lid] = port
    return {0: bytes(whole[:64]), 1: bytes(whole[64:])}


def three_hosts() -> tuple[SmallSubnet, list[Device]]:
    """Hosts a and b on one switch, c on another behind it."""
    a, b, c = (Device(0x100 * n, ADAPTER, 1, name, lid=n) for n, name in enumerate("abc", start=1))
    near = Device(0x1000, SWITCHING, 4, "near", lid=11, table=table({1: 1, 2: 2, 3: 4, 70: 4}))
    far = Device(0x2000, SWITCHING, 4, "far", lid=12, table=table({1: 4, 2: 4, 3: 1}))
    cable(a, 1, near, 1)
    cable(b, 1, near, 2)
    cable(near, 4, far, 4)
    cable(c, 1, far, 1)
    devices = [a, b, c, near, far]
    return SmallSubnet(a, devices), devices


class Meddled:
    """The subnet, with something done before each request, which may lose it."""

    def __init__(self, subnet: SmallSubnet, is_lost: Callable[[Smp], bool]) -> None:
        self._subnet = subnet
        self._is_lost = is_lost

    def ask(self, requests: Sequence[Smp], tries: int | None = None) -> list[bytes | Refusal]:
        return [self._answer(request, tries) for request in requests]

    def close(self) -> None: ...

    def _answer(self, request: Smp, tries: int | None) -> bytes | Refusal:
        if self._is_lost(request):
            return Refusal("it was lost", is_silence=True)
        return self._subnet.ask([request], tries)[0]


def ways(fabric: Fabric) -> dict[tuple[str, str], list[str]]:
    """Names of the nodes on the path between each two hosts."""
    return {
        (fabric.nodes[s].name, fabric.nodes[t].name): [
            fabric.nodes[hop[0]].name for hop in path(fabric, s, t)
        ]
        for s in fabric.hosts
        for t in fabric.hosts
        if s != t
    }


def test_the_walk_finds_every_node_cable_and_route() -> None:
    subnet, _ = three_hosts()
    fabric = InfinibandSwitches(subnet).discover()
    assert [(n.name, n.kind, n.lid, n.guid) for n in fabric.nodes] == [
        ("a", "host", 1, "0x0000000000000100"),
        ("b", "host", 2, "0x0000000000000200"),
        ("c", "host", 3, "0x0000000000000300"),
        ("near", "switch", 11, "0x0000000000001000"),
        ("far", "switch", 12, "0x0000000000002000"),
    ]
    assert {link.rate_name for link in fabric.links} == {"4xEDR"}
    assert fabric.lanes == 8
    assert ways(fabric)["a", "c"] == ["a", "near", "far"]
    assert ways(fabric)["a", "b"] == ["a", "near"]


def test_equal_descriptions_get_their_guid() -> None:
    subnet, devices = three_hosts()
    devices[1].description = devices[2].description = "node"
    devices[4].description = ""
    names = {node.name for node in InfinibandSwitches(subnet).discover().nodes}
    assert names == {
        "a",
        "node (H-0000000000000200)",
        "node (H-0000000000000300)",
        "near",
        "S-0000000000002000",
    }


def test_each_linked_port_of_an_adapter_is_a_host() -> None:
    subnet, devices = three_hosts()
    devices[2].ports = 2
    cable(devices[2], 2, devices[3], 3)
    fabric = InfinibandSwitches(subnet).discover()
    assert {"c", "c port 2"} <= {node.name for node in fabric.nodes}


def test_a_routers_port_is_a_host() -> None:
    subnet, devices = three_hosts()
    devices[1].kind = ROUTER
    fabric = InfinibandSwitches(subnet).discover()
    assert fabric.nodes[fabric.index("b")].kind == "host"


def test_a_neighbour_that_does_not_answer_is_left_out_and_told_of() -> None:
    subnet, devices = three_hosts()
    subnet.silent.add(devices[2].guid)
    driver = InfinibandSwitches(subnet)
    assert "c" not in {node.name for node in driver.discover().nodes}
    assert driver.unanswered == (PortName("far", 1),)


def test_a_neighbour_whose_first_answer_is_lost_is_asked_again() -> None:
    subnet, _ = three_hosts()
    lost = [Smp((1, 4), mad.NODE_INFO)]

    def is_lost(request: Smp) -> bool:
        return bool(request in lost and lost.pop())

    driver = InfinibandSwitches(Meddled(subnet, is_lost))
    assert driver.discover() == InfinibandSwitches(subnet).discover()
    assert (lost, driver.unanswered) == ([], ())


@pytest.mark.parametrize(
    ("attribute", "modifier"),
    [
        (mad.NODE_DESCRIPTION, 0),
        (mad.SWITCH_INFO, 0),
        (mad.PORT_INFO, 0),
        (mad.PORT_INFO, 2),
        (mad.LINEAR_FORWARDING, 0),
        (mad.LINEAR_FORWARDING, 1),
    ],
)
def test_a_switch_that_falls_silent_half_way_is_no_smaller_fabric_but_an_error(
    attribute: int, modifier: int
) -> None:
    subnet, devices = three_hosts()
    subnet.lost.add((devices[3].guid, attribute, modifier))
    with pytest.raises(InputError, match=r"answered, and then not: .* does not answer"):
        InfinibandSwitches(subnet).discover()


def test_a_switch_that_no_lid_leads_to_yet_is_asked_by_its_path() -> None:
    subnet, _ = three_hosts()
    driver = InfinibandSwitches(Meddled(subnet, lambda request: request.to == 12))
    assert driver.discover() == InfinibandSwitches(subnet).discover()


def test_a_switch_that_offers_no_forwarding_table_has_no_routes() -> None:
    subnet, devices = three_hosts()
    subnet.untold.add((devices[3].guid, mad.LINEAR_FORWARDING))
    fabric = InfinibandSwitches(subnet).discover()
    assert fabric.routes is not None
    assert [fabric.routes.ports(0, host) for host in range(3)] == [(), (), ()]
    assert fabric.routes.ports(1, 2) == (1,)


def test_a_host_with_several_lids_is_reached_by_the_ports_of_all_of_them() -> None:
    subnet, devices = three_hosts()
    *_, c, near, far = devices
    c.lid, c.port_fields = 4, {"LMC": 1}
    subnet.lids[4] = c
    cable(near, 3, far, 3)
    near.table, far.table = table({1: 1, 2: 2, 4: 4, 5: 3}), table({1: 4, 2: 3, 4: 1, 5: 1})
    fabric = InfinibandSwitches(subnet).discover()
    assert fabric.routes is not None
    assert [fabric.routes.ports(0, host) for host in range(3)] == [(1,), (2,), (3, 4)]
    assert [fabric.routes.ports(1, host) for host in range(3)] == [(4,), (3,), (1,)]


def test_a_plug_that_leads_back_to_its_own_switch_is_no_link() -> None:
    subnet, devices = three_hosts()
    cable(devices[4], 2, devices[4], 3)
    assert len(InfinibandSwitches(subnet).discover().links) == 4


def test_an_entry_that_leads_to_a_dead_port_is_no_route() -> None:
    subnet, devices = three_hosts()
    devices[3].table = table({1: 1, 2: 2, 3: 3})
    fabric = InfinibandSwitches(subnet).discover()
    assert fabric.routes is not None
    assert fabric.routes.ports(0, fabric.index("c")) == ()


def test_a_rate_that_is_not_known_is_an_error_that_names_the_port() -> None:
    subnet, devices = three_hosts()
    for device in (devices[2], devices[4]):
        device.port_fields = {"LinkSpeedExtActive": 15}
    with pytest.raises(InputError, match=r"0x0000000000000300 port 1: width or speed"):
        InfinibandSwitches(subnet).discover()


def test_a_host_whose_own_port_does_not_answer_cannot_discover() -> None:
    subnet, devices = three_hosts()
    subnet.silent.add(devices[0].guid)
    with pytest.raises(InputError, match="this host's port: the path 0 does not answer"):
        InfinibandSwitches(subnet).discover()


PORT = PortName("near", 2)
PLAIN = Tables(queue_of=tuple(range(8)), weights=(30,) * 8)
# Maps: levels that are not ours go to VL 0; the last of them to VL 5.
FEW, ODD = "0123456700000000", "0123456700000005"
SPREAD_VLS = (*range(8), *[0] * 8)


def test_a_lid_that_has_moved_is_noticed_before_anything_is_written() -> None:
    subnet, devices = three_hosts()
    driver = InfinibandSwitches(subnet)
    driver.discover()
    subnet.lids[11], subnet.lids[12] = devices[4], devices[3]
    written = driver.write({PORT: PLAIN})[PORT]
    assert written == Failed("LID 11 is 0x0000000000002000 by now; discover again")
    assert not subnet.changes


def test_a_node_without_a_lid_waits_for_a_subnet_manager() -> None:
    subnet, devices = three_hosts()
    devices[3].lid = 0
    result = InfinibandSwitches(subnet).read([PORT])[PORT]
    assert result == Failed("its node has no LID; is a subnet manager running?")


def test_a_switch_that_is_silent_fails_and_the_others_are_written() -> None:
    subnet, devices = three_hosts()
    driver = InfinibandSwitches(subnet)
    driver.discover()
    subnet.silent.add(devices[4].guid)
    other = PortName("far", 1)
    written = driver.write({PORT: PLAIN, other: PLAIN})
    assert written == {PORT: PLAIN, other: Failed("LID 12 does not answer")}


def test_a_switch_that_maps_all_inputs_at_once_is_told_once() -> None:
    subnet, devices = three_hosts()
    devices[3].switch_fields = {"OptimizedSLtoVLMappingProgramming": 1}
    driver = InfinibandSwitches(subnet)
    shifted = replace(PLAIN, queue_of=(1, 2, 3, 4, 5, 6, 7, 0))
    assert driver.write({PORT: shifted}) == {PORT: shifted}
    maps = [smp.modifier for smp in subnet.changes if smp.attribute == mad.SL_TO_VL]
    assert maps == [0x20002]


def test_a_switch_that_keeps_its_information_to_itself_is_still_a_switch() -> None:
    subnet, devices = three_hosts()
    subnet.untold.add((devices[3].guid, mad.SWITCH_INFO))
    driver = InfinibandSwitches(subnet)
    assert driver.write({PORT: PLAIN}) == {PORT: PLAIN}
    assert {smp.modifier & 0xFFFF for smp in subnet.changes} == {PORT.port}


def test_only_the_lanes_that_the_subnet_manager_uses_are_offered() -> None:
    subnet, devices = three_hosts()
    devices[3].port_fields = {"OperationalVLs": 3}
    able = InfinibandSwitches(subnet).abilities([PORT])[PORT]
    assert able == Ability(scheduler="vlarb", levels=8, queues=4, entries=8, units=255 * 5)


def test_a_node_that_offers_no_maps_has_one_queue() -> None:
    subnet, devices = three_hosts()
    devices[3].port_fields = {"CapabilityMask": 0}
    driver = InfinibandSwitches(subnet)
    able = driver.abilities([PORT])[PORT]
    assert able == Ability(scheduler="vlarb", levels=8, queues=1, entries=8, units=255 * 8)
    one = Tables(queue_of=(0,) * 8, weights=(255,))
    assert driver.write({PORT: one}) == {PORT: one}
    assert driver.read([PORT]) == {PORT: one}
    assert mad.SL_TO_VL not in {smp.attribute for smp in subnet.asked}


def test_a_port_that_has_what_is_wanted_costs_a_write_no_more_than_a_read() -> None:
    subnet, _ = three_hosts()
    InfinibandSwitches(subnet).write({PORT: PLAIN})
    subnet.changes.clear()
    driver = InfinibandSwitches(subnet)
    driver.discover()
    subnet.asked.clear()
    assert driver.write({PORT: PLAIN}) == {PORT: PLAIN}
    assert [smp.attribute for smp in subnet.asked] == [
        mad.NODE_INFO,
        mad.VL_ARBITRATION,
        mad.VL_ARBITRATION,
        mad.SL_TO_VL,
    ]
    assert not subnet.changes


@pytest.mark.parametrize(
    ("field", "now", "problem"),
    [
        ("OperationalVLs", 3, "tables of 8 queues, and the port has 4"),
        ("VLArbitrationLowCap", 4, "tables of 8 queues, and the port has 4"),
        ("VLArbitrationHighCap", 4, "its tables have changed size; try again"),
    ],
)
def test_what_a_port_can_be_told_is_asked_before_each_change(
    field: str, now: int, problem: str
) -> None:
    subnet, devices = three_hosts()
    driver = InfinibandSwitches(subnet)
    driver.write({PORT: PLAIN})
    subnet.changes.clear()
    devices[3].port_fields = {field: now}
    other = replace(PLAIN, weights=(60, *PLAIN.weights[1:]))
    assert driver.write({PORT: other}) == {PORT: Failed(problem)}
    assert not subnet.changes


# ---- Maps ---------------------------------------------------------------------------------------


def input_map(n: int) -> tuple[int, int]:
    """Where the map of an input towards PORT is kept."""
    return mad.SL_TO_VL, mad.pack_map_modifier(n, PORT.port)


def test_a_port_whose_levels_stay_where_they_are_is_written_before_all_its_maps_are_read() -> None:
    subnet, devices = three_hosts()
    devices[3].ports = 36
    driver = InfinibandSwitches(subnet)
    assert driver.write({PORT: PLAIN}) == {PORT: PLAIN}
    assert [smp.attribute for smp in subnet.asked].count(mad.SL_TO_VL) == 1


def test_an_odd_map_that_was_not_read_is_found_when_its_turn_comes() -> None:
    subnet, devices = three_hosts()
    devices[3].memory[input_map(1)] = bytes(64)
    driver = InfinibandSwitches(subnet, maps_per_read=0)
    inputs = devices[3].ports + 1
    assert driver.write({PORT: PLAIN}) == {PORT: PLAIN}
    result = [driver.read([PORT])[PORT] for _ in range(inputs)]
    assert Foreign("levels go to different VLs by input port") in result
    assert driver.write({PORT: PLAIN}) == {PORT: PLAIN}
    assert [driver.read([PORT])[PORT] for _ in range(inputs)] == [PLAIN] * inputs


def test_before_a_queue_loses_its_weight_every_map_is_read() -> None:
    subnet, devices = three_hosts()
    few, odd = (bytes.fromhex(text).ljust(64, b"\0") for text in (FEW, ODD))
    devices[3].memory |= {input_map(n): odd if n == 1 else few for n in range(5)}
    wanted = Tables(queue_of=(0, 1, 2, 3, 4, 0, 6, 7), weights=(30, 30, 30, 30, 30, 0, 30, 30))
    written = InfinibandSwitches(subnet).write({PORT: wanted})[PORT]
    assert written == Failed("service level 15, not ours, is in VL 5 of weight 0")
    assert not subnet.changes


def test_all_maps_of_a_few_ports_are_read_at_once() -> None:
    subnet, devices = three_hosts()
    driver = InfinibandSwitches(subnet)
    assert driver.write({PORT: PLAIN}) == {PORT: PLAIN}
    devices[3].memory[input_map(1)] = bytes(64)
    assert driver.read([PORT]) != {PORT: PLAIN}


def test_a_map_that_somebody_changed_is_found_when_its_turn_comes() -> None:
    subnet, devices = three_hosts()
    driver = InfinibandSwitches(subnet, maps_per_read=0)
    driver.write({PORT: PLAIN})
    inputs = devices[3].ports + 1
    devices[3].memory[input_map(3)] = bytes(64)
    result = [driver.read([PORT])[PORT] for _ in range(inputs)]
    assert any(seen != PLAIN for seen in result), "within as many reads as there are input ports"
    assert driver.write({PORT: PLAIN}) == {PORT: PLAIN}
    assert [driver.read([PORT])[PORT] for _ in range(inputs)] == [PLAIN] * inputs


# ---- Half way -----------------------------------------------------------------------------------

CROWDED = Tables(queue_of=(0,) * 8, weights=(200, 0, 0, 0, 0, 0, 0, 0))


def crowded_first() -> tuple[SmallSubnet, list[Device]]:
    """All levels of PORT are in queue 0: to spread them, lists and maps must change in turn."""
    subnet, devices = three_hosts()
    for n in range(5):
        devices[3].memory[input_map(n)] = bytes(64)
    assert InfinibandSwitches(subnet).write({PORT: CROWDED}) == {PORT: CROWDED}
    subnet.changes.clear()
    return subnet, devices


@pytest.mark.parametrize("last", range(7))
def test_after_a_wire_that_broke_half_way_what_is_there_is_read_and_not_remembered(
    last: int,
) -> None:
    subnet, _ = crowded_first()
    is_broken = [True]

    def is_lost(_: Smp) -> bool:
        return is_broken[0] and len(subnet.changes) >= last

    driver = InfinibandSwitches(Meddled(subnet, is_lost), maps_per_read=0)
    is_broken[0] = False
    assert [driver.read([PORT]) for _ in range(5)] == [{PORT: CROWDED}] * 5
    is_broken[0] = True
    written = driver.write({PORT: PLAIN})[PORT]
    assert isinstance(written, Failed)
    assert last == 0 or "could not be restored" in written.problem
    is_broken[0] = False
    assert driver.read([PORT]) == InfinibandSwitches(subnet).read([PORT])
    assert driver.write({PORT: PLAIN}) == {PORT: PLAIN}


def test_what_was_put_back_is_read_and_compared() -> None:
    subnet, devices = crowded_first()
    lost = [Smp(11, *input_map(n), mad.pack_map(SPREAD_VLS)) for n in (2, 3)]

    def is_lost(request: Smp) -> bool:
        if request == Smp(11, *input_map(4)) and subnet.changes:
            devices[3].memory[input_map(4)] = mad.pack_map(SPREAD_VLS)  # it does not keep it
        return request in lost

    written = InfinibandSwitches(Meddled(subnet, is_lost)).write({PORT: PLAIN})[PORT]
    assert isinstance(written, Failed)
    assert "could not be restored: it reads back" in written.problem


def test_a_node_that_has_taken_the_lid_half_way_is_not_written_to() -> None:
    subnet, devices = crowded_first()

    def is_lost(request: Smp) -> bool:
        if request.attribute == mad.SL_TO_VL and request.new is not None:
            subnet.lids[11] = devices[4]
            return True
        return False

    written = InfinibandSwitches(Meddled(subnet, is_lost)).write({PORT: PLAIN})[PORT]
    assert isinstance(written, Failed)
    assert "LID 11 is 0x0000000000002000 by now" in written.problem
    assert not devices[4].memory


@pytest.mark.parametrize(
    ("field", "fails"), [("MasterSMLID", True), ("LMC", True), ("M_Key", True), ("HOQLife", False)]
)
def test_what_the_subnet_manager_gives_a_port_meanwhile_stays(field: str, fails: bool) -> None:
    subnet, devices = three_hosts()
    InfinibandSwitches(subnet).write({PORT: PLAIN})
    subnet.asked.clear()

    def is_lost(_: Smp) -> bool:
        if Smp(11, mad.PORT_INFO, PORT.port) in subnet.asked:
            devices[3].port_fields = {field: 3}
        return False

    laned = replace(PLAIN, lane=Lane(queue=3, limit=4))
    written = InfinibandSwitches(Meddled(subnet, is_lost)).write({PORT: laned})[PORT]
    assert isinstance(written, Failed)  # the subnet in memory does not keep a limit
    assert ("the subnet manager is changing" in written.problem) == fails
    set_back = [smp.new for smp in subnet.changes if smp.attribute == mad.PORT_INFO]
    assert set_back
    assert {laid_out_field(PORT_LAYOUT, field, new) for new in set_back if new} == {3}


def test_a_limit_that_a_port_does_not_keep_is_a_failure_and_is_undone() -> None:
    subnet, _ = three_hosts()
    driver = InfinibandSwitches(subnet)
    driver.write({PORT: PLAIN})
    laned = replace(PLAIN, lane=Lane(queue=3, limit=4))
    written = driver.write({PORT: laned})[PORT]
    assert isinstance(written, Failed)
    assert "reads back" in written.problem
    assert driver.read([PORT]) == {PORT: PLAIN}


def test_levels_outside_the_sixteen_are_refused() -> None:
    subnet, _ = three_hosts()
    with pytest.raises(InputError, match="use 1 to 16"):
        InfinibandSwitches(subnet, levels=17)


# ---- Changes of the fabric ----------------------------------------------------------------------


def test_a_look_sees_links_that_go_and_come_and_routes_that_change() -> None:
    subnet, devices = three_hosts()
    switch = next(device for device in devices if device.kind == SWITCHING)
    driver = InfinibandSwitches(subnet)
    assert not driver.has_changed(), "nothing is discovered yet"
    driver.discover()
    assert not driver.has_changed()
    switch.table = {**switch.table, 0: bytes(64)}
    assert driver.has_changed()
    assert not driver.has_changed(), "each route is news once"
    port, (host, host_port) = list(switch.cables.items())[-1]
    del switch.cables[port], host.cables[host_port]
    assert driver.has_changed()
    driver.discover()
    assert not driver.has_changed()
    cable(switch, port, host, host_port)
    assert driver.has_changed()


def test_a_switch_that_is_silent_is_left_to_the_next_discovery() -> None:
    subnet, devices = three_hosts()
    driver = InfinibandSwitches(subnet)
    driver.discover()
    subnet.silent = {device.guid for device in devices if device.kind == SWITCHING}
    assert not driver.has_changed()


@pytest.mark.parametrize(
    ("key", "most"), [("port", 254), ("window", 1024), ("tries", 100), ("levels", 16)]
)
def test_a_setting_above_its_limit_is_refused_before_any_adapter_is_opened(
    key: str, most: int
) -> None:
    with pytest.raises(InputError, match=rf"{key}: {most + 1} is out of range"):
        open_switches(Table({key: most + 1}, "switches"), library="none.so")
    with pytest.raises(InputError) as missing:
        open_switches(Table({key: most}, "switches"), library="none.so")
    assert "out of range" not in str(missing.value)


# ---- Levels that nobody registered --------------------------------------------------------------


class Counting:
    """A subnet whose ports count what they receive, by level, in words of 4 bytes."""

    def __init__(self, subnet: SmallSubnet) -> None:
        self._subnet = subnet
        self.words: dict[tuple[int, int], list[int]] = {}  # by LID and port
        self.close = subnet.close

    def ask(self, requests: Sequence[Any], tries: int | None = None) -> list[bytes | Refusal]:
        return [
            self._count(request)
            if isinstance(request, mad.CountersGet)
            else self._subnet.ask([request], tries)[0]
            for request in requests
        ]

    def _count(self, request: mad.CountersGet) -> bytes | Refusal:
        words = self.words.get((request.to, request.port))
        if words is None or request.attribute != mad.PORT_RCV_DATA_SL:
            return Refusal("attribute not supported")
        return struct.pack(">4x16I", *words)


def edge_rules(lane: int | None = None) -> EdgeRules:
    """Host a may send level 2 to c; both may use the lane at 8 kb/s."""
    a = EdgePort(host="a", admitted=frozenset({("c", 2)}), lane_bps=8000)
    ports = {PortName("near", 1): a, PortName("near", 2): EdgePort(host="b", lane_bps=8000)}
    return EdgeRules(levels=7, lane=lane, ports=ports)


def test_a_level_without_a_connection_is_detected_from_counters() -> None:
    subnet = Counting(three_hosts()[0])
    driver = InfinibandSwitches(subnet)
    driver.discover()
    subnet.words = {(11, 1): [0] * 16, (11, 2): [0] * 16}
    assert driver.police(edge_rules()) == EdgeReport(), "the first look has nothing to compare"
    subnet.words[11, 1][2] += 1000
    subnet.words[11, 2][0] += 1000
    assert driver.police(edge_rules()) == EdgeReport(), "registered, and unmanaged"
    subnet.words[11, 2][3] += 1000
    (violation,) = driver.police(edge_rules()).violations
    expected = ("b", "", 3, 4000, False, False)
    assert expected == (
        violation.host,
        violation.destination,
        violation.level,
        violation.bytes,
        violation.is_lane,
        violation.is_rewritten,
    )
    assert driver.police(edge_rules()) == EdgeReport(), "each byte is reported once"


def test_a_lane_beyond_its_budget_is_detected_from_counters() -> None:
    small, _ = three_hosts()
    subnet, now_s = Counting(small), 0.0
    subnet.words = {(11, 1): [0] * 16, (11, 2): [0] * 16}
    counters = EdgeCounters(clock=lambda: now_s)
    found = discover_subnet(subnet)
    counters.look(subnet, found, edge_rules(lane=8))
    now_s = 1.0
    subnet.words[11, 1][8] += 200  # 800 bytes of 1000
    assert counters.look(subnet, found, edge_rules(lane=8)).violations == ()
    now_s = 2.0
    subnet.words[11, 1][8] += 300
    (violation,) = counters.look(subnet, found, edge_rules(lane=8)).violations
    assert (violation.host, violation.bytes, violation.is_lane) == ("a", 1200, True)


def test_ports_that_cannot_tell_are_named() -> None:
    subnet = Counting(three_hosts()[0])
    driver = InfinibandSwitches(subnet)
    driver.discover()
    subnet.words = {(11, 1): [2**32 - 1, *[0] * 15]}
    assert driver.police(edge_rules()).problems == (
        "near port 1: a counter of levels is full; `perfquery -R --rcvsl`",
        "near port 2 does not count levels: attribute not supported",
    )
