"""Questions for a group's connections as bytes, and the kernel's answers as values."""

from __future__ import annotations

import socket
import struct

from weft.host.net import marking
from weft.host.net.marking import NETLINK_SOCK_DIAG, TcpConnection
from weft.host.net.rtnetlink import Rtnetlink


def test_a_question_is_struct_inet_diag_req_v2_with_a_condition_on_the_group() -> None:
    body = marking.pack_request(socket.AF_INET, 0x1122334455)
    family, protocol, extensions, states = struct.unpack_from("=BBBxI", body)
    assert (family, protocol, extensions) == (socket.AF_INET, socket.IPPROTO_TCP, 0)
    assert states == 1 << 1 | 1 << 4 | 1 << 8
    assert body[8:56] == bytes(48)
    # An attribute of kind 1: if the group (13) is this one go on at 12, the end, else beyond it.
    assert body[56:] == struct.pack("=HHBBHQ", 16, 1, 13, 12, 16, 0x1122334455)


def test_an_answer_is_struct_inet_diag_msg() -> None:
    ends = (5000).to_bytes(2) + (80).to_bytes(2)
    addresses = socket.inet_aton("10.0.0.1") + bytes(12) + socket.inet_aton("10.0.0.2") + bytes(12)
    data = bytes([socket.AF_INET, 1, 0, 0]) + ends + addresses + bytes(12 + 20)
    assert marking._unpack_connection(data) == TcpConnection("10.0.0.1", 5000, "10.0.0.2", 80)


def test_ipv4_in_ipv6_is_told_as_ipv4() -> None:
    mapped = socket.inet_pton(socket.AF_INET6, "::ffff:10.0.0.1")
    plain = socket.inet_pton(socket.AF_INET6, "fd00::2")
    assert marking._format_address(socket.AF_INET6, mapped) == "10.0.0.1"
    assert marking._format_address(socket.AF_INET6, plain) == "fd00::2"


def test_a_group_that_is_none_has_no_connections() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        Rtnetlink(protocol=NETLINK_SOCK_DIAG) as link,
    ):
        assert marking.list_connections(link, 2**63) == []
