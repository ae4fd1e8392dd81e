"""Management packets byte for byte.

The oracle is the architecture's tables, in `iba_layouts`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from iba_layouts import HEADER, NODE, PORT, SWITCH, any_of, field, laid_out

from weft.switches.infiniband.mad import (
    HIGH,
    LOW,
    NODE_INFO,
    SL_TO_VL,
    VL_ARBITRATION,
    Smp,
    describe_address,
    describe_status,
    is_busy,
    is_same_subnet,
    pack_arbitration,
    pack_arbitration_modifier,
    pack_map,
    pack_map_modifier,
    pack_request,
    replace_high_limit,
    unpack_answer,
    unpack_arbitration,
    unpack_description,
    unpack_map,
    unpack_node_info,
    unpack_port_info,
    unpack_switch_info,
)

# Set to 0 these mean "no change"; set to what was read, some are commands.
COMMANDS = (
    "LinkWidthEnabled",
    "PortState",
    "PortPhysicalState",
    "LinkDownDefaultState",
    "LinkSpeedEnabled",
    "ClientReregister",
    "LinkSpeedExtEnabled",
)


# ---- Packets ------------------------------------------------------------------------------------


def test_a_get_by_lid_is_a_packet_of_class_1() -> None:
    header = laid_out(
        HEADER,
        {
            "BaseVersion": 1,
            "MgmtClass": 0x01,
            "ClassVersion": 1,
            "R_Method": 0x01,
            "TransactionID": 0x12345678,
            "AttributeID": 0x0011,
            "M_Key": 0xA1B2C3D4E5F60718,
        },
    )
    assert pack_request(Smp(7, NODE_INFO), 0x12345678, 0xA1B2C3D4E5F60718) == header + bytes(192)


def test_a_set_by_a_directed_route_names_the_ports_it_leaves() -> None:
    data = bytes(range(64))
    header = laid_out(
        HEADER,
        {
            "BaseVersion": 1,
            "MgmtClass": 0x81,
            "ClassVersion": 1,
            "R_Method": 0x02,
            "HopCount": 3,
            "TransactionID": 9,
            "AttributeID": 0x0018,
            "AttributeModifier": 0x00010005,
            "DrSLID": 0xFFFF,
            "DrDLID": 0xFFFF,
        },
    )
    # Initial path: entry 0 is not used, entry n is the port left at hop n.
    way = bytes([0, 1, 36, 17]) + bytes(60)
    wanted = header + data + way + bytes(64)
    assert pack_request(Smp((1, 36, 17), VL_ARBITRATION, 0x00010005, data), 9) == wanted


def test_this_hosts_own_port_is_a_directed_route_of_no_hop() -> None:
    mad = pack_request(Smp((), NODE_INFO), 1)
    assert (field(HEADER, "MgmtClass", mad[:64]), field(HEADER, "HopCount", mad[:64])) == (0x81, 0)
    assert mad[128:192] == bytes(64)


@given(
    transaction=st.integers(1, 0xFFFFFFFF),
    upper=st.integers(0, 0xFFFFFFFF),
    status=st.integers(0, 0x7FFF),
    directed=st.booleans(),
    data=st.binary(min_size=64, max_size=64),
)
def test_an_answer_is_known_by_the_lower_half_of_its_transaction(
    transaction: int, upper: int, status: int, directed: bool, data: bytes
) -> None:
    values = {
        "MgmtClass": 0x81 if directed else 0x01,
        "R_Method": 0x81,
        # On its way back a directed packet has the direction bit in front of its status.
        "Status": 0x8000 | status if directed else status,
        "TransactionID": upper << 32 | transaction,
    }
    answer = unpack_answer(laid_out(HEADER, values) + data + bytes(128))
    assert answer == (transaction, True, status, data)


def test_our_own_request_that_comes_back_is_no_answer() -> None:
    assert not unpack_answer(pack_request(Smp(7, NODE_INFO), 1)).is_answer


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0x04, "version not supported (status 0x4)"),
        (0x08, "method not supported (status 0x8)"),
        (0x0C, "attribute not supported (status 0xc)"),
        (0x1C, "a value is invalid (status 0x1c)"),
        (0x02, "asks elsewhere (status 0x2)"),
        (0x100, "refuses (status 0x100)"),
    ],
)
def test_a_status_is_told_in_words(status: int, words: str) -> None:
    assert describe_status(status) == words
    assert not is_busy(status)


def test_a_busy_port_asks_to_be_asked_again() -> None:
    assert is_busy(0x1)


def test_addresses_are_told_as_tools_write_them() -> None:
    assert describe_address(12) == "LID 12"
    assert describe_address((1, 4)) == "the path 0,1,4"


# ---- Attributes ---------------------------------------------------------------------------------


@given(any_of(NODE))
def test_node_information_is_where_the_architecture_puts_it(values: dict[str, int]) -> None:
    info = unpack_node_info(laid_out(NODE, values))
    result = (info.kind, info.ports, info.guid, info.port_guid, info.local_port)
    names = ("NodeType", "NumPorts", "NodeGUID", "PortGUID", "LocalPortNum")
    assert result == tuple(values[name] for name in names)
    assert info.is_switch == (values["NodeType"] == 2)


@given(any_of(SWITCH))
def test_switch_information_is_where_the_architecture_puts_it(values: dict[str, int]) -> None:
    info = unpack_switch_info(laid_out(SWITCH, values))
    assert info.top == values["LinearFDBTop"]
    assert info.maps_all_inputs == (values["OptimizedSLtoVLMappingProgramming"] == 1)


@given(any_of(PORT))
def test_port_information_is_where_the_architecture_puts_it(values: dict[str, int]) -> None:
    info = unpack_port_info(laid_out(PORT, values))
    assert info.lid == values["LID"]
    assert info.lmc == values["LMC"]
    assert info.has_maps == bool(values["CapabilityMask"] >> 6 & 1)
    assert info.is_linked == (values["PortPhysicalState"] == 5 and values["PortState"] >= 2)
    assert info.data_vls == {1: 1, 2: 2, 3: 4, 4: 8, 5: 15}.get(values["OperationalVLs"], 0)
    assert info.high_limit == values["VLHighLimit"]
    assert info.high_entries == values["VLArbitrationHighCap"]
    assert info.low_entries == values["VLArbitrationLowCap"]


@pytest.mark.parametrize(
    ("width", "speed", "extended", "rate"),
    [
        (1, 1, 0, "1xSDR"),
        (2, 2, 0, "4xDDR"),
        (2, 4, 0, "4xQDR"),
        (2, 4, 1, "4xFDR"),
        (2, 4, 2, "4xEDR"),
        (16, 4, 4, "2xHDR"),
        (8, 4, 8, "12xNDR"),
        (4, 1, 0, "8xSDR"),
        (2, 8, 0, None),
        (3, 1, 0, None),
    ],
)
def test_the_rate_of_a_link_is_its_width_and_its_fastest_speed(
    width: int, speed: int, extended: int, rate: str | None
) -> None:
    values = {"LinkWidthActive": width, "LinkSpeedActive": speed, "LinkSpeedExtActive": extended}
    assert unpack_port_info(laid_out(PORT, values)).rate == rate


@given(any_of(PORT), st.integers(0, 255))
def test_a_new_limit_leaves_all_else_and_commands_nothing(
    values: dict[str, int], limit: int
) -> None:
    new = replace_high_limit(laid_out(PORT, values), limit)
    wanted = {**values, "VLHighLimit": limit, **dict.fromkeys(COMMANDS, 0)}
    assert {name: field(PORT, name, new) for name in PORT} == wanted


# What a subnet manager gives a port, and nobody else may change.
OWNED = ("M_Key", "GidPrefix", "LID", "MasterSMLID", "M_KeyLeasePeriod", "M_KeyProtectBits", "LMC")


@given(any_of(PORT), st.sampled_from(sorted(PORT)))
def test_what_the_subnet_manager_owns_of_a_port_is_compared(
    values: dict[str, int], name: str
) -> None:
    before = laid_out(PORT, values)
    other = laid_out(PORT, {**values, name: values[name] ^ 1})
    assert is_same_subnet(before, before)
    assert is_same_subnet(before, other) == (name not in OWNED)


def test_a_description_ends_at_its_first_zero() -> None:
    assert unpack_description(b"leaf 3 rack 7\0junk".ljust(64, b"\0")) == "leaf 3 rack 7"
    assert unpack_description(bytes(64)) == ""
    assert unpack_description(b"x" * 64) == "x" * 64


@given(st.binary(min_size=64, max_size=64))
def test_any_description_becomes_a_name_or_nothing(data: bytes) -> None:
    name = unpack_description(data)
    assert name == name.strip()
    assert not name or (name.isprintable() and '"' not in name)


# ---- Tables -------------------------------------------------------------------------------------


def test_arbitration_entries_are_pairs_of_a_lane_and_its_weight() -> None:
    assert pack_arbitration([(0, 4), (14, 255), (7, 0)]) == bytes([0, 4, 14, 255, 7, 0]) + bytes(58)


@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 255)), max_size=32))
def test_arbitration_entries_survive_the_wire(entries: list[tuple[int, int]]) -> None:
    padded = [*entries, *[(0, 0)] * (32 - len(entries))]
    assert list(unpack_arbitration(pack_arbitration(entries))) == padded


def test_blocks_1_and_2_are_of_low_priority_3_and_4_of_high() -> None:
    assert [
        pack_arbitration_modifier(table, block, 5) for table in (LOW, HIGH) for block in (0, 1)
    ] == [0x10005, 0x20005, 0x30005, 0x40005]


def test_two_levels_share_a_byte_the_even_one_first() -> None:
    assert pack_map(range(16)) == bytes.fromhex("0123456789abcdef") + bytes(56)
    assert pack_map_modifier(3, 17) == 0x0311
    assert SL_TO_VL == 0x17


@given(st.lists(st.integers(0, 15), min_size=16, max_size=16))
def test_maps_survive_the_wire(vls: list[int]) -> None:
    assert list(unpack_map(pack_map(vls))) == vls
