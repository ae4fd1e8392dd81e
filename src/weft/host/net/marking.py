"""Marks for commands: a group of processes whose TCP connections carry a DSCP, and which those are.

A group is a control group (version 2) with a small BPF program on its sockets. When a process opens
or accepts a connection on a socket made in the group, the program sets its IPv4 type of service or
IPv6 traffic class. Commands and the servers they start need not know. The end of a marked group
ends every process in it; processes of a nested group continue outside.

The kernel's socket diagnosis lists the connections of a group: it filters for sockets that were
made in a control group. One list covers one network namespace.
Entry points: `open_marked_group`, `open_nested_group`, `remove_leftovers`; `GroupConnections`,
`list_connections`, `find_socket_owner`.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import platform
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.host.net import namespaces
from weft.host.net.rtnetlink import Rtnetlink, pack_attribute

PROCESSES = Path("/proc")
_END_S = 5.0
_ACCOMPANIED = "accompanied-"  # `remove_leftovers` does not end these
# Numbers of Linux: include/uapi/linux/bpf.h and the system call table of each architecture.
_SYSCALL = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_SOCK_OPS, _AT_SOCK_OPS = 13, 3
_CONNECTS, _CONNECTED, _ACCEPTED = 3, 4, 5
_SET_SOCKET_OPTION, _SETTING = 49, 7  # a BPF helper, and the number of instructions of a call
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Group:
    """Processes that `join` it, and their children, send with its mark."""

    path: Path

    def join(self) -> None:
        """Moves this process into the group."""
        (self.path / "cgroup.procs").write_text("0")

    def mark(self, dscp: int) -> None:
        """Connections opened or accepted from now on carry the DSCP."""
        _attach_program(self.path, _build_program(dscp << 2))

    @property
    def id(self) -> int:
        """The kernel's number of the group."""
        return self.path.stat().st_ino

    def pids(self) -> list[int]:
        """The processes in it."""
        return [int(pid) for pid in (self.path / "cgroup.procs").read_text().split()]

    def release(self) -> None:
        """Moves every process to the parent group, and removes this one."""
        deadline = time.monotonic() + _END_S
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):  # it has ended
                    (self.path.parent / "cgroup.procs").write_text(str(pid))
            if time.monotonic() > deadline:
                raise InputError(str(self.path), f"processes come for {_END_S:g} s")
        self.path.rmdir()

    def end(self) -> None:
        """Ends every process in the group; returns when none is left."""
        (self.path / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + _END_S
        while "populated 1" in (self.path / "cgroup.events").read_text():
            if time.monotonic() > deadline:
                raise InputError(str(self.path), f"processes do not end in {_END_S:g} s")
            time.sleep(0.005)


@contextmanager
def open_marked_group(name: str, dscp: int) -> Iterator[Group]:
    """A group whose connections carry the DSCP; 0 leaves them unmarked."""
    if not 0 <= dscp <= 63:
        raise InputError(f"DSCP {dscp}", "is not in 0 to 63", "use one that is")
    group = Group(find_mount() / namespaces.build_name(name))
    group.path.mkdir()
    try:
        if dscp:
            _attach_program(group.path, _build_program(dscp << 2))
        yield group
    finally:
        _remove_group(group)


@contextmanager
def open_nested_group(name: str) -> Iterator[Group]:
    """An unmarked group inside ours; at its end its processes return to ours."""
    home = _find_own_group()
    for path in home.glob(f"{_ACCOMPANIED}*"):
        with suppress(OSError):  # not empty, or removed already
            if namespaces.is_orphan(path.name.removeprefix(_ACCOMPANIED)):
                path.rmdir()
    group = Group(home / f"{_ACCOMPANIED}{namespaces.build_name(name)}")
    group.path.mkdir()
    try:
        yield group
    finally:
        with suppress(OSError, InputError):  # the next group removes it when it is empty
            group.release()


def remove_leftovers() -> None:
    """Ends and removes groups whose creator is dead."""
    for path in find_mount().glob("weft-*"):
        if namespaces.is_orphan(path.name):
            _remove_group(Group(path))


def _remove_group(group: Group) -> None:
    with suppress(FileNotFoundError):
        group.end()
        group.path.rmdir()


def find_mount() -> Path:
    """Where groups are created: as seen from here, or from an ancestor process.

    `ip netns exec` hides the mount.
    """
    ancestors = (
        (PROCESSES / pid / "root", PROCESSES / pid / "mounts") for pid in _list_ancestors()
    )
    for root, mounts in ((Path("/"), PROCESSES / "self" / "mounts"), *ancestors):
        with suppress(OSError):  # not readable
            for line in mounts.read_text().splitlines():
                _, where, kind, *_ = line.split()
                if kind == "cgroup2" and (root / where.lstrip("/")).is_dir():
                    return root / where.lstrip("/")
    raise InputError("marks", "no control groups of version 2 are mounted", "mount cgroup2")


def _list_ancestors() -> Iterator[str]:
    """Nearest first."""
    pid = str(os.getppid())
    with suppress(OSError):  # a process has ended
        while pid != "0":
            yield pid
            pid = (PROCESSES / pid / "stat").read_text().rpartition(")")[2].split()[1]


def _find_own_group() -> Path:
    """The group of this process, if it is visible."""
    for line in (PROCESSES / "self" / "cgroup").read_text().splitlines():
        if line.startswith("0::"):
            group = find_mount() / line.removeprefix("0::").lstrip("/")
            return group if group.is_dir() else find_mount()
    return find_mount()


# ---- The program ------------------------------------------------------------------------------


def _build_program(tos: int) -> bytes:
    """Sets the traffic class of connections that open, are open, or were accepted.

    IP_TOS (1) of SOL_IP (0), then IPV6_TCLASS (67) of SOL_IPV6 (41): the kernel refuses the one
    that does not fit the socket.
    """
    return b"".join(
        (
            _encode_instruction(0xBF, to=6, of=1),  # r6 = context
            _encode_instruction(0x61, to=2, of=6),  # r2 = operation
            _encode_instruction(0x15, to=2, jump=3, value=_CONNECTS),
            _encode_instruction(0x15, to=2, jump=2, value=_CONNECTED),
            _encode_instruction(0x15, to=2, jump=1, value=_ACCEPTED),
            _encode_instruction(0x05, jump=2 * _SETTING + 1),  # other operations: exit
            _encode_instruction(0x62, to=10, jump=-4, value=tos),  # on the stack
            *_call_setsockopt(0, 1),
            *_call_setsockopt(41, 67),
            _encode_instruction(0xB7, to=0, value=1),
            _encode_instruction(0x95),
        )
    )


def _call_setsockopt(level: int, option: int) -> tuple[bytes, ...]:
    """Sets a socket option to the four bytes on the stack."""
    return (
        _encode_instruction(0xBF, to=1, of=6),
        _encode_instruction(0xB7, to=2, value=level),
        _encode_instruction(0xB7, to=3, value=option),
        _encode_instruction(0xBF, to=4, of=10),
        _encode_instruction(0x07, to=4, value=-4),
        _encode_instruction(0xB7, to=5, value=4),
        _encode_instruction(0x85, value=_SET_SOCKET_OPTION),
    )


def _encode_instruction(
    code: int, *, to: int = 0, of: int = 0, jump: int = 0, value: int = 0
) -> bytes:
    return struct.pack("<BBhi", code, of << 4 | to, jump, value)


def _attach_program(path: Path, program: bytes) -> None:
    """The program lives as long as the group."""
    code, licence = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL")
    load = struct.pack(
        "<IIQQIIQII16sII",
        _SOCK_OPS,
        len(program) // 8,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
        b"weft",
        0,
        _AT_SOCK_OPS,
    )
    loaded = _call_bpf(_PROG_LOAD, load)
    group = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _call_bpf(_PROG_ATTACH, struct.pack("<IIII", group, loaded, _AT_SOCK_OPS, 0))
    finally:
        os.close(group)
        os.close(loaded)


def _call_bpf(command: int, attributes: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise InputError("marks", f"not on {platform.machine()}", f"use {', '.join(_SYSCALL)}")
    result = _LIBC.syscall(
        number, command, ctypes.create_string_buffer(attributes), len(attributes)
    )
    if result < 0:
        problem = f"the kernel refuses the program: {os.strerror(ctypes.get_errno())}"
        raise InputError("marks", problem, "be root, on a kernel with BPF for control groups")
    return int(result)


# ---- Connections ------------------------------------------------------------------------------

# Numbers of Linux: include/uapi/linux/{netlink,sock_diag,inet_diag}.h, include/net/tcp_states.h.
NETLINK_SOCK_DIAG = 4
_BY_FAMILY = 20
_ESTABLISHED, _FIN_WAIT_1, _CLOSE_WAIT = 1, 4, 8  # states with data to send, now or later
_STATES = 1 << _ESTABLISHED | 1 << _FIN_WAIT_1 | 1 << _CLOSE_WAIT
_BYTECODE, _IN_GROUP = 1, 13
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states, any socket
_CONDITION = struct.Struct("=BBHQ")  # operation, jump if true, jump if false, group
_OWNER = struct.Struct("=64xI")  # after the socket, three counts
_SOCKET = struct.Struct("=BBBB2s2s16s16sIQ")  # family, state, -, -, ports, addresses, -, cookie


@dataclass(frozen=True, slots=True)
class TcpConnection:
    """Numeric addresses and ports of both ends."""

    local_address: str
    local_port: int
    remote_address: str
    remote_port: int


def list_connections(link: Rtnetlink, group: int) -> list[TcpConnection]:
    """The connections of a control group's sockets; `link` speaks NETLINK_SOCK_DIAG."""
    connections: list[TcpConnection] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        body = pack_request(family, group)
        connections += [
            _unpack_connection(data) for data in link.dump(_BY_FAMILY, body, "list connections")
        ]
    return connections


def pack_request(family: int, group: int) -> bytes:
    """Asks for TCP sockets of the group and family that may have data to send."""
    size = _CONDITION.size
    # A jump four bytes past the end means "not listed".
    condition = _CONDITION.pack(_IN_GROUP, size, size + 4, group)
    return _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _STATES) + pack_attribute(
        _BYTECODE, condition
    )


def _unpack_connection(data: bytes) -> TcpConnection:
    family, _, _, _, port, remote_port, local, remote, _, _ = _SOCKET.unpack_from(data)
    return TcpConnection(
        _format_address(family, local),
        int.from_bytes(port),
        _format_address(family, remote),
        int.from_bytes(remote_port),
    )


def _format_address(family: int, data: bytes) -> str:
    """Numeric; IPv4 in IPv6 as IPv4."""
    if family == socket.AF_INET:
        return socket.inet_ntop(socket.AF_INET, data[:4])
    address = ipaddress.IPv6Address(data)
    return str(address.ipv4_mapped or address)


class GroupConnections:
    """The connections of a group's processes in all network namespaces; close it.

    It reads a namespace as long as a process of the group is in it.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._links: dict[int, Rtnetlink] = {}

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()

    def read(self) -> list[TcpConnection]:
        self._follow()
        group = self._group.id
        return [
            connection
            for link in self._links.values()
            for connection in list_connections(link, group)
        ]

    def _follow(self) -> None:
        """Keeps one link into every namespace that has a process of the group."""
        paths = {}
        for pid in self._group.pids():
            path = Path(f"/proc/{pid}/ns/net")
            with suppress(OSError):  # it has ended
                paths[path.stat().st_ino] = path
        for identity in self._links.keys() - paths.keys():
            self._links.pop(identity).close()
        for identity in paths.keys() - self._links.keys():
            with suppress(InputError):  # it has ended now
                self._links[identity] = Rtnetlink(
                    _choose_namespace(identity, paths), protocol=NETLINK_SOCK_DIAG
                )


def _choose_namespace(identity: int, paths: Mapping[int, Path]) -> str | None:
    return None if identity == namespaces.read_identity(None) else str(paths[identity])


def find_socket_owner(local: tuple[str, int], remote: tuple[str, int]) -> int | None:
    """The user of the TCP socket with these numeric addresses and ports, in this namespace."""
    wanted = (ipaddress.ip_address(local[0]), local[1], ipaddress.ip_address(remote[0]), remote[1])
    with Rtnetlink(protocol=NETLINK_SOCK_DIAG) as link:
        for family in (socket.AF_INET, socket.AF_INET6):
            body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _STATES)
            for data in link.dump(_BY_FAMILY, body, "find a socket's owner"):
                connection = _unpack_connection(data)
                ends = (
                    ipaddress.ip_address(connection.local_address),
                    connection.local_port,
                    ipaddress.ip_address(connection.remote_address),
                    connection.remote_port,
                )
                if ends == wanted:
                    return int(_OWNER.unpack_from(data)[0])
    return None
