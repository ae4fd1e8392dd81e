"""The TCP connections of a group of processes, from the kernel's socket diagnosis.

The kernel filters for sockets that were made in a control group. One list covers one network
namespace. Entry points: `GroupConnections`, `list_connections`, `find_socket_owner`.
"""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.host.net import namespaces
from weft.host.net.marking import Group
from weft.host.net.rtnetlink import Rtnetlink, pack_attribute

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
