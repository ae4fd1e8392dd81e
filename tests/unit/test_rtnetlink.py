"""Requests to the kernel as bytes, and its answers as values and words."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.host.net import qdisc
from weft.host.net.qdisc import ADD, HtbClass, TokenBucket
from weft.host.net.rtnetlink import (
    DELETE_LINK,
    GET_LINK,
    NEW_LINK,
    KernelRefusal,
    Message,
    Rtnetlink,
    _open_socket,
    pack_attribute,
    pack_link_deletion,
    pack_new_link,
    unpack_attributes,
)


@given(st.dictionaries(st.integers(1, 0x3FFF), st.binary(max_size=40), max_size=8))
def test_attributes_come_back_whatever_their_length(data: dict[int, bytes]) -> None:
    packed = b"".join(pack_attribute(kind, value) for kind, value in data.items())
    assert len(packed) % 4 == 0
    assert unpack_attributes(packed) == data


def test_an_attribute_is_a_length_a_kind_and_padded_data() -> None:
    assert pack_attribute(3, b"eth0\0") == struct.pack("=HH", 9, 3) + b"eth0\0" + bytes(3)


def test_attributes_that_are_cut_short_are_not_read_past_their_end() -> None:
    assert unpack_attributes(struct.pack("=HH", 0, 7) + b"abcd") == {}


def test_a_tick_of_the_kernel_is_what_it_says_itself() -> None:
    words = Path("/proc/net/psched").read_text().split()
    assert int(words[1], 16) * 1000 // int(words[0], 16) == qdisc.TICK_NS


def test_a_redirect_is_packed_as_u32_with_struct_tc_mirred() -> None:
    message = qdisc.pack_redirect(7, 9)
    _, index, _, parent, info = struct.unpack_from("=BxxxiIII", message.body)
    assert (index, parent) == (7, 0xFFFF0000)
    assert info == 1 << 16 | int.from_bytes(b"\x00\x03", sys.byteorder)  # first, every protocol
    parts = unpack_attributes(message.body[20:])
    options = unpack_attributes(parts[2])
    (action,) = unpack_attributes(options[7]).values()
    assert (parts[1], unpack_attributes(action)[1]) == (b"u32\0", b"mirred\0")
    # index, capab, action (stolen), refcnt, bindcnt, eaction (redirect out), interface
    stolen = unpack_attributes(unpack_attributes(action)[2])[2]
    assert stolen == struct.pack("=IIiiiiI", 0, 0, 4, 0, 0, 1, 9)


def test_a_token_bucket_is_packed_as_struct_tc_tbf_qopt() -> None:
    wanted = TokenBucket(rate_bps=200_000_000, burst_bytes=100_000, limit_bytes=400_000)
    parts = unpack_attributes(qdisc.pack_bucket(wanted))
    # two tc_ratespec (cell_log, linklayer, overhead, cell_align, mpu, rate), limit, buffer, mtu:
    # 100 kB at 25 MB/s are 4 ms, which are 62,500 ticks of 64 ns.
    rate = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, 25_000_000)
    none = struct.pack("=BBHhHI", 0, 1, 0, 0, 0, 0)
    assert parts[1] == rate + none + struct.pack("=III", 400_000, 62_500, 0)
    assert parts[6] == struct.pack("=I", 100_000)
    assert 4 not in parts


@given(st.integers(8_000, 10**13), st.integers(1600, 2**31), st.integers(1600, 2**32 - 1))
def test_a_token_bucket_that_is_packed_reads_as_what_it_was(
    rate_bps: int, burst_bytes: int, limit_bytes: int
) -> None:
    wanted = TokenBucket(rate_bps=rate_bps, burst_bytes=burst_bytes, limit_bytes=limit_bytes)
    result = qdisc.unpack_bucket(qdisc.pack_bucket(wanted))
    assert result.limit_bytes == limit_bytes
    assert result.rate_bps == rate_bps // 8 * 8
    tick_bytes = 64e-9 * rate_bps / 8 + 1
    longest_bytes = (2**32 - 1) * 64e-9 * result.rate_bps / 8  # a burst's time has 32 bits of ticks
    assert abs(result.burst_bytes - min(burst_bytes, longest_bytes)) <= tick_bytes


def test_rates_beyond_32_bits_of_bytes_per_second_have_their_wide_attribute() -> None:
    fast = TokenBucket(rate_bps=400 * 10**9, burst_bytes=10**6, limit_bytes=10**6)
    parts = unpack_attributes(qdisc.pack_bucket(fast))
    assert struct.unpack("=Q", parts[4]) == (50 * 10**9,)
    assert struct.unpack_from("=I", parts[1], 8) == (2**32 - 1,)


def test_a_class_of_htb_is_packed_as_struct_tc_htb_opt() -> None:
    one = HtbClass(
        classid=0x10010,
        parent=0x10001,
        rate_bps=80_000_000,
        ceil_bps=200_000_000,
        quantum_bytes=262_160,
        burst_bytes=15_000,
    )
    body = qdisc.pack_class(7, one, flags=ADD).body
    assert struct.unpack_from("=BxxxiIII", body) == (0, 7, 0x10010, 0x10001, 0)
    options = unpack_attributes(unpack_attributes(body[20:])[2])
    numbers = struct.unpack_from("=5I", options[1], 24)
    # 15 kB are 1.5 ms at 10 MB/s; as long at 25 MB/s.
    assert numbers == (23_438, 23_438, 262_160, 0, 0)


def test_a_filter_looks_at_the_six_bits_of_the_dscp_in_network_order() -> None:
    message = qdisc.pack_filter(7, qdisc.match_dscp(46)[0], 0x10012)
    _, _, handle, parent, info = struct.unpack_from("=BxxxiIII", message.body)
    assert (handle, parent, info >> 16) == (0, 0x10000, 1)
    assert struct.pack("=H", info & 0xFFFF) == b"\x08\x00"
    selector = unpack_attributes(unpack_attributes(message.body[20:])[2])[5]
    assert selector[2] == 1
    assert selector[16:24] == b"\x00\xfc\x00\x00" + b"\x00\xb8\x00\x00"  # TOS 0xb8 is DSCP 46


def test_handles_are_written_as_tc_does() -> None:
    assert [qdisc.format_handle(h) for h in (0x10000, 0x80010000, 0x1001A)] == [
        "1:",
        "8001:",
        "1:1a",
    ]


def test_loopback_is_listed_and_carries_no_default_route() -> None:
    with Rtnetlink() as link:
        assert link.find_index("lo") == link.read_interfaces()["lo"]
        assert link.find_index("lo") not in link.read_default_routes()
        with pytest.raises(InputError, match=r"nonesuch: no such interface; there are .*lo"):
            link.find_index("nonesuch")


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rtnetlink]:
    """The default route goes over 1, a bridge of 2 and 6. 2 is a VLAN on 3, a bond of 4 and 5.

    6 is a veth whose peer has the number 7 in another namespace. IPv6's default route goes over 9,
    a bridge of 8. 10 is a port of 11, which has the route of a network and a blackhole.
    """

    def number(kind: int, value: int) -> bytes:
        return pack_attribute(kind, struct.pack("=i", value))

    parts = {
        1: b"",
        2: number(10, 1) + number(5, 3),
        3: b"",
        4: number(10, 3),
        5: number(10, 3),
        6: number(10, 1) + number(5, 7) + number(37, 0),
        7: b"",
        8: number(10, 9),
        9: b"",
        10: number(10, 11),
        11: b"",
    }

    def route(family: int, prefix: int, kind: int, interface: int) -> bytes:
        head = struct.pack("=BBBBBBBBI", family, prefix, 0, 0, 254, 3, 0, kind, 0)
        return head + number(4, interface)

    def dump(_link: Rtnetlink, kind: int, body: bytes, _what: str) -> Iterator[bytes]:
        if kind == GET_LINK:
            for index, data in parts.items():
                name = pack_attribute(3, f"eth{index}\0".encode())
                yield struct.pack("=BxHiII", 0, 0, index, 0, 0) + name + data
        elif body[0] == socket.AF_INET:
            yield from (route(body[0], 24, 1, 11), route(body[0], 0, 6, 11))
            yield route(body[0], 0, 1, 1)
        else:
            yield route(body[0], 0, 1, 9)

    monkeypatch.setattr(Rtnetlink, "dump", dump)
    with Rtnetlink() as link:
        yield link


def test_what_is_under_the_interface_of_the_default_route_carries_it(links: Rtnetlink) -> None:
    assert links.read_default_routes() == {1, 2, 3, 4, 5, 6, 8, 9}


def test_sockets_have_addresses_of_their_own_hear_no_broadcast_and_do_not_wait_for_ever() -> None:
    with _open_socket(socket.NETLINK_ROUTE) as first, _open_socket(socket.NETLINK_ROUTE) as second:
        (one, groups), (other, _) = first.getsockname(), second.getsockname()
        assert one != other
        assert groups == 0
        assert first.gettimeout() is not None


def test_a_refusal_has_the_kernels_words_and_says_which_request_it_was() -> None:
    nowhere = 2**30
    delete = qdisc.pack_qdisc_deletion(nowhere)
    with Rtnetlink() as link, pytest.raises(KernelRefusal) as refused:
        link.request([delete], "interface 2^30")
    report = str(refused.value)
    assert report.startswith("interface 2^30: delete the qdisc: the kernel refuses: ")
    assert ("run it as root" in report) == (os.geteuid() != 0)
    assert str(pickle.loads(pickle.dumps(refused.value))) == report


# ---- Batches: a kernel that answers what the test wants ----------------------------------------


def acknowledge(sequence: int, number: int) -> bytes:
    """NLMSG_ERROR: the errno, negative, and the header of the request; 0 is an acknowledgement."""
    body = struct.pack("=i", -number) + struct.pack("=IHHII", 16, 0, 0, sequence, 0)
    return struct.pack("=IHHII", 16 + len(body), 2, 0x100, sequence, 0) + body


@pytest.fixture
def kernel() -> Iterator[tuple[Rtnetlink, socket.socket]]:
    """A link whose requests and answers are the test's; its first request has the number 1."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with Rtnetlink() as link, near, far:
        link._socket.close()
        link._socket = near
        yield link, far


def requests(count: int) -> list[Message]:
    return [Message(qdisc.NEW_CLASS, 0, b"", f"request {n}") for n in range(1, count + 1)]


def test_of_several_refusals_in_a_batch_the_first_is_raised(
    kernel: tuple[Rtnetlink, socket.socket],
) -> None:
    link, far = kernel
    for sequence, number in ((2, errno.ENOENT), (3, errno.EBUSY), (4, errno.EINVAL)):
        far.send(acknowledge(sequence, number))
    with pytest.raises(KernelRefusal) as refused:
        link.request(requests(4), "port")
    assert str(refused.value).startswith("port: request 2: ")
    assert refused.value.number == errno.ENOENT


def test_a_refusal_within_a_batch_is_raised_though_the_last_request_was_done(
    kernel: tuple[Rtnetlink, socket.socket],
) -> None:
    link, far = kernel
    far.send(acknowledge(1, errno.EPERM) + acknowledge(3, 0))
    with pytest.raises(KernelRefusal, match=r"port: request 1: .*run it as root"):
        link.request(requests(3), "port")


def test_an_answer_to_an_older_request_is_not_taken_for_this_one(
    kernel: tuple[Rtnetlink, socket.socket],
) -> None:
    link, far = kernel
    far.send(acknowledge(1, 0))
    link.request(requests(1), "port")
    far.send(acknowledge(1, errno.EINVAL) + acknowledge(2, 0))
    link.request(requests(1), "port")


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (128, [128]), (129, [128, 1])])
def test_requests_go_in_batches_of_128_and_the_last_of_each_asks_for_an_answer(
    kernel: tuple[Rtnetlink, socket.socket], count: int, sizes: list[int]
) -> None:
    link, far = kernel
    for last in (min(128, count), count):
        far.send(acknowledge(last, 0))
    link.request(requests(count), "port")
    far.setblocking(False)
    for size in sizes:
        datagram = far.recv(1 << 16)
        flags = [struct.unpack_from("=IHHII", datagram, 16 * n)[2] for n in range(size)]
        assert len(datagram) == 16 * size
        assert flags == [0x1] * (size - 1) + [0x5]  # NLM_F_REQUEST, NLM_F_ACK


def test_a_new_link_is_of_no_index_and_up_and_a_deletion_names_its_index() -> None:
    message = pack_new_link("ifb7", "ifb")
    assert message.kind == NEW_LINK
    # struct ifinfomsg: family, type, index, flags, the flags that change
    assert struct.unpack("=BxHiII", message.body[:16]) == (0, 0, 0, 1, 1)
    attributes = unpack_attributes(message.body[16:])
    assert attributes[3] == b"ifb7\0"
    assert unpack_attributes(attributes[18]) == {1: b"ifb"}
    deletion = pack_link_deletion(9)
    assert (deletion.kind, deletion.flags) == (DELETE_LINK, 0)
    assert struct.unpack("=BxHiII", deletion.body) == (0, 0, 9, 0, 0)
