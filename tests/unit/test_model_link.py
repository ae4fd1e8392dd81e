"""Header sizes, goodput and message-rate bounds: against the specifications, written out."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import InputError
from weft.model.link import (
    OPERATIONS,
    PLACES,
    TRANSPORTS,
    WIRES,
    Framing,
    answer_packet_bytes,
    count_fragments,
    data_rate_gbps,
    goodput_gbps,
    header_bytes,
    message_rate_mps,
    on_wire,
)


@pytest.mark.parametrize(
    ("speed", "gbps"), [("SDR", 8), ("DDR", 16), ("QDR", 32), ("FDR", 54.545), ("EDR", 100)]
)
def test_four_lanes_carry_the_signal_rate_less_the_line_code(speed: str, gbps: float) -> None:
    assert data_rate_gbps(speed) == pytest.approx(gbps, rel=1e-4)


# LRH 8, BTH 12, ICRC 4, VCRC 2 are in every packet of one subnet: 26.
@pytest.mark.parametrize(
    ("transport", "operation", "first", "middle", "last", "only"),
    [
        ("rc", "send", 26, 26, 26, 26),
        ("rc", "send-with-imm", 26, 26, 30, 30),  # ImmDt 4 on the last
        ("rc", "write", 42, 26, 26, 42),  # RETH 16 on the first
        ("uc", "write-with-imm", 42, 26, 30, 46),
        ("rc", "read", 30, 26, 30, 30),  # AETH 4 on the outer responses
        ("ud", "send", 34, 34, 34, 34),  # DETH 8
        ("ud", "send-with-imm", 34, 34, 38, 38),
    ],
)
def test_headers_are_those_of_the_infiniband_specification(
    transport: str, operation: str, first: int, middle: int, last: int, only: int
) -> None:
    found = [header_bytes(transport, operation, place) for place in PLACES]
    assert found == [first, middle, last, only]
    routed = [header_bytes(transport, operation, place, "ib-routed") for place in PLACES]
    assert routed == [size + 40 for size in found]


def test_a_roce_packet_has_ethernet_ip_and_udp_for_the_local_header() -> None:
    # Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4; preamble 8 and gap 12.
    assert header_bytes("rc", "send", "only", "rocev2") == 62 + 20
    assert answer_packet_bytes("rc", "send", "rocev2") == 62 + 4 + 20


def test_short_frames_are_filled_up_to_64_bytes() -> None:
    udp = Framing(transport="udp", wire="ethernet")
    assert on_wire([0, 1, 18], udp).data_bytes.tolist() == [84, 84, 84]
    assert on_wire(19, udp).data_bytes == 85


def test_a_datagram_is_fragmented_in_units_of_eight_bytes() -> None:
    # 65507 + 8 B in fragments of 1480: 44 full ones and 395 B, each with 20 B of IP and a frame.
    cost = on_wire(65_507, Framing(transport="udp", wire="ethernet", mtu_bytes=1500))
    assert cost.packets == 45
    assert cost.data_bytes == 65_515 + 45 * (20 + 38)
    # 1479 B fit behind the IP header, of which a fragment that is not the last carries 1472: 2944 B
    # of data and 8 B of UDP header are one fragment more than two of 1479 would be.
    odd = Framing(transport="udp", wire="ethernet", mtu_bytes=1499)
    assert on_wire([1471, 1472, 2936, 2944], odd).packets.tolist() == [1, 2, 2, 3]
    # The last fragment may carry 1479: 1471 and 2943 B need one fewer than 1472 and 2944.
    sizes = np.array([1464, 1471, 1472, 2936, 2943, 2944])
    assert count_fragments(sizes, 1499).tolist() == [1, 1, 2, 2, 2, 3]


def test_full_tcp_segments_reach_the_well_known_941_mbps_of_gigabit_ethernet() -> None:
    assert goodput_gbps(1e6, 1.0, Framing(transport="tcp", wire="ethernet")) == pytest.approx(
        0.9415, rel=1e-4
    )


def test_an_ack_of_tcp_is_a_segment_without_payload() -> None:
    # 20 of IPv4, 20 of TCP, 12 of timestamps; 14 + 4 of Ethernet, 20 of preamble and gap
    assert answer_packet_bytes("tcp", wire="ethernet") == 52 + 38
    assert answer_packet_bytes("udp", wire="ethernet") == 0
    cost = on_wire(10 * 1448, Framing(transport="tcp", wire="ethernet"))
    assert cost.answer_bytes == pytest.approx(5 * 90)  # one for every second segment


def test_connected_ipoib_pays_for_the_packets_of_its_rc_message() -> None:
    # 65520 + 4 B in packets of 2048: 32 packets of 26 B header.
    cost = on_wire(65_520 - 52, Framing(transport="tcp", wire="ipoib-connected", packets_per_ack=1))
    assert cost.packets == 32
    assert cost.data_bytes == 65_524 + 32 * 26


def test_both_ways_each_direction_carries_the_others_acks() -> None:
    framing = Framing(transport="rc", mtu_bytes=4096, packets_per_ack=1)
    one_way = goodput_gbps(4096, 100.0, framing)
    both = goodput_gbps(4096, 100.0, framing, both_ways=True)
    assert one_way == pytest.approx(100 * 4096 / 4122)
    assert both == pytest.approx(100 * 4096 / (4122 + 30))


def test_tiny_reads_are_bounded_by_their_requests() -> None:
    # A response of 4 B is 34 B, its request 42 B.
    rate = message_rate_mps(4, 54.3, Framing(transport="rc", operation="read"))
    assert rate == pytest.approx(54.3e3 / (8 * 42))


def test_the_message_rate_is_the_lesser_of_link_and_engines() -> None:
    framing = Framing()
    assert message_rate_mps(64, 56.0, framing, engine_mps=2.0, engines=3) == 6.0
    assert message_rate_mps(64, 56.0, framing) == pytest.approx(56e3 / (8 * 90))
    for engines, engine_mps in ((0, 2.0), (1, 0.0)):
        with pytest.raises(InputError, match="use one engine or more, faster than 0"):
            message_rate_mps(64, 56.0, framing, engine_mps=engine_mps, engines=engines)


def test_goodput_grows_to_the_share_of_a_full_packet() -> None:
    size = 2.0 ** np.arange(0, 24)
    found = goodput_gbps(size, 54.5, Framing(mtu_bytes=2048))
    assert np.all(np.diff(found[:12]) > 0)
    assert found[-1] == pytest.approx(54.5 * 2048 / 2074)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_every_transport_has_its_headers_on_each_of_its_wires(transport: str) -> None:
    for wire in TRANSPORTS[transport].wires:
        for operation in TRANSPORTS[transport].operations:
            for place in PLACES:
                header = header_bytes(transport, operation, place, wire)
                assert header >= WIRES[wire].overhead_bytes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"transport": "rd"}, "'rd' is not known; use one of rc, uc, ud, srd, udp, tcp"),
        ({"operation": "atomic"}, "'atomic' is not known"),
        ({"wire": "token-ring"}, "'token-ring' is not known"),
        ({"transport": "ud", "operation": "write"}, "ud has no write; use send"),
        ({"transport": "uc", "operation": "read"}, "uc has no read"),
        ({"transport": "tcp"}, "tcp does not run over ib; use ethernet"),
        ({"mtu_bytes": 1500}, "ib has no MTU of 1500 B; use one of 256"),
        ({"transport": "udp", "wire": "ipoib", "mtu_bytes": 9000}, "use 576 to 4092"),
        ({"packets_per_ack": -1}, "-1 packets per ACK"),
    ],
)
def test_what_does_not_exist_is_refused(change: dict[str, str | int], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        Framing(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("framing", "size", "words"),
    [
        (Framing(transport="ud"), 4097, "a ud message of 4097 B exceeds 4096 B"),
        (Framing(transport="udp", wire="ethernet"), 70_000, "exceeds 65507 B"),
        (Framing(), -1, "-1 B is not a size"),
        (Framing(), float("nan"), "nan B is not a size"),
    ],
)
def test_sizes_that_no_message_has_are_refused(framing: Framing, size: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        goodput_gbps(size, 100.0, framing)


def test_operations_are_named_as_the_simulator_names_them() -> None:
    from weft.simulate.traffic import OPERATIONS as SIMULATED

    assert set(SIMULATED) < set(OPERATIONS)
