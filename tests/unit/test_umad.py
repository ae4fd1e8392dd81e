"""A port of an adapter, with a library that is invented: what it is asked, and what it answers."""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import pytest

from weft.errors import InputError
from weft.switches.infiniband import mad_transport
from weft.switches.infiniband.mad import MAD_BYTES
from weft.switches.infiniband.mad_transport import Arrival, Umad

HEAD_BYTES = 56
REQUEST = bytes(range(256))


class Library:
    """libibumad: every call is recorded; a datagram that was sent comes back."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.opens = 3
        self.registers = {0x01: 11, 0x81: 12, 0x04: 13, 0x03: 14}
        self.sends = 0
        self.receives = 0
        self.status = 0
        self.sent = b""

    def umad_init(self) -> int:
        self.calls.append(("init",))
        return 0

    def umad_size(self) -> int:
        return HEAD_BYTES

    def umad_open_port(self, name: bytes | None, port: int) -> int:
        self.calls.append(("open", name, port))
        return self.opens

    def umad_register(self, port: int, kind: int, version: int, rmpp: int, mask: None) -> int:
        self.calls.append(("register", port, kind, version, rmpp, mask))
        return self.registers[kind]

    def umad_unregister(self, port: int, agent: int) -> None:
        self.calls.append(("unregister", port, agent))

    def umad_close_port(self, port: int) -> None:
        self.calls.append(("close", port))

    def umad_set_addr(self, _: Any, lid: int, *others: int) -> None:
        self.calls.append(("address", lid, *others))

    def umad_send(
        self, port: int, agent: int, buffer: Any, length: int, milliseconds: int, retries: int
    ) -> int:
        self.calls.append(("send", port, agent, length, milliseconds, retries))
        self.sent = buffer.raw[HEAD_BYTES:]
        return self.sends

    def umad_recv(self, port: int, buffer: Any, length: Any, milliseconds: int) -> int:
        self.calls.append(("receive", port, length._obj.value, milliseconds))
        if self.receives < 0:
            return self.receives
        ctypes.memmove(ctypes.addressof(buffer) + HEAD_BYTES, self.sent, MAD_BYTES)
        return 0

    def umad_status(self, _: Any) -> int:
        return self.status


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    fake = Library()
    monkeypatch.setattr(mad_transport, "_load_library", lambda _: fake)
    return fake


def test_a_port_is_opened_with_an_agent_for_each_way_to_address(library: Library) -> None:
    umad = Umad("mlx5_0", 2)
    assert library.calls == [
        ("init",),
        ("open", b"mlx5_0", 2),
        ("register", 3, 0x01, 1, 0, None),
        ("register", 3, 0x81, 1, 0, None),
        ("register", 3, 0x04, 1, 0, None),  # counters
        ("register", 3, 0x03, 2, 0, None),  # subnet administration: who else programs this subnet
    ]
    library.calls.clear()
    umad.close()
    ends = [("unregister", 3, agent) for agent in (11, 12, 13, 14)]
    assert library.calls == [*ends, ("close", 3)]


@pytest.mark.parametrize(
    ("adapter", "port", "which"),
    [(None, 0, "any adapter"), ("mlx5_0", 0, "mlx5_0"), ("mlx5_0", 1, "mlx5_0 port 1")],
)
def test_a_port_that_cannot_be_opened_is_named(
    library: Library, adapter: str | None, port: int, which: str
) -> None:
    library.opens = -errno.ENODEV
    reason = rf"not available, because {which} cannot be opened \({os.strerror(errno.ENODEV)}\)"
    with pytest.raises(InputError, match=reason):
        Umad(adapter, port)
    library.opens = 0  # a number as any other
    Umad(adapter, port)


def test_warnings_of_the_library_are_shown_unless_an_error_says_more(
    library: Library, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(library, "umad_init", lambda: os.write(2, b"ibwarn: is it loaded?\n"))
    Umad().close()
    assert capfd.readouterr().err == "ibwarn: is it loaded?\n"
    library.opens = -errno.ENODEV
    with pytest.raises(InputError):
        Umad()
    os.write(2, b"later\n")
    assert capfd.readouterr().err == "later\n"


def test_a_class_that_is_refused_closes_the_port(library: Library) -> None:
    library.registers[0x81] = -errno.EPERM
    with pytest.raises(InputError, match=r"class 0x81 is refused \(Operation not permitted\)"):
        Umad()
    assert library.calls[-1] == ("close", 3)
    library.registers[0x81] = 0
    Umad()


@pytest.mark.parametrize(
    ("kind", "to", "agent", "address"),
    [
        (0x01, 7, 11, (7, 0, 0, 0)),
        (0x81, (1, 2), 12, (0xFFFF, 0, 0, 0)),
        (0x04, 7, 13, (7, 1, 0, 0x80010000)),  # counters: queue pair 1 and its key
    ],
)
def test_a_request_goes_to_the_queue_pair_of_its_class_without_retries(
    library: Library, kind: int, to: int | tuple[int, ...], agent: int, address: tuple[int, ...]
) -> None:
    request = REQUEST[:1] + bytes([kind]) + REQUEST[2:]
    umad = Umad()
    library.calls.clear()
    umad.send(request, to, 0.25)
    assert library.calls == [("address", *address), ("send", 3, agent, 256, 250, 0)]
    assert library.sent == request
    umad.send(request, to, 0.0001)
    assert library.calls[-1][4] == 1  # 0 would not wait at all


def test_what_arrives_is_whole_and_says_whether_it_was_delivered(library: Library) -> None:
    umad = Umad()
    umad.send(REQUEST, 1, 1.0)
    library.calls.clear()
    assert umad.receive(0.002) == Arrival(REQUEST, is_undelivered=False)
    assert library.calls == [("receive", 3, 256, 2)]
    library.status = 110
    assert umad.receive(0.0) == Arrival(REQUEST, is_undelivered=True)
    assert library.calls[-1][3] == 1


@pytest.mark.parametrize("number", [errno.ETIMEDOUT, errno.EAGAIN, errno.EIO, errno.EINTR])
def test_nothing_may_arrive_in_time(library: Library, number: int) -> None:
    umad = Umad()
    library.receives = -number
    assert umad.receive(0.1) is None


def test_an_adapter_that_fails_is_an_error(library: Library) -> None:
    umad = Umad()
    library.receives = -errno.ENODEV
    with pytest.raises(InputError, match=r"nothing can be received \(No such device\)"):
        umad.receive(0.1)
    library.sends = -errno.ENODEV
    ctypes.set_errno(0)
    with pytest.raises(InputError, match=r"a request cannot be sent \(No such device\)"):
        umad.send(REQUEST, 1, 1.0)
    ctypes.set_errno(errno.EPERM)
    with pytest.raises(InputError, match=r"a request cannot be sent \(Operation not permitted\)"):
        umad.send(REQUEST, 1, 1.0)
    ctypes.set_errno(0)
