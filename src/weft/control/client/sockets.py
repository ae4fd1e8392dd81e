"""Marked sockets, and the hosts they connect.

A mark is a DSCP: the upper six bits of IPv4's type of service and of IPv6's traffic class.
Entry points: `open_socket`, `set_mark`, `find_hosts`. Units: seconds.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal

from weft.errors import InputError

Kind = Literal["tcp", "udp"]
_KINDS: Mapping[str, socket.SocketKind] = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_MOST_SHOWN = 80
LONGEST_HOST = 255  # that a controller takes


def open_socket(
    host: str, port: int, kind: Kind, *, dscp: int, timeout_s: float | None, local: str | None
) -> tuple[socket.socket, bool]:
    """A connected socket, and whether its first packet was marked; tries each address in turn.

    Raises OSError, also for arguments that no socket takes.
    """
    try:
        return _open_socket(host, port, _KINDS[kind], dscp, timeout_s, local)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        words = f"{kind!r} socket to {host!r} port {port!r} from {local!r} within {timeout_s!r} s"
        raise OSError(errno.EINVAL, f"{words}: {error}; give arguments of a socket") from error


def _open_socket(
    host: str,
    port: int,
    kind: socket.SocketKind,
    dscp: int,
    timeout_s: float | None,
    local: str | None,
) -> tuple[socket.socket, bool]:
    problem: OSError | None = None
    for family, type_, protocol, _, address in socket.getaddrinfo(host, port, type=kind):
        try:
            opened = socket.socket(family, type_, protocol)
        except OSError as error:  # of a family that this kernel does not have
            problem = error
            continue
        is_marked = not dscp or set_mark(opened, dscp)
        try:
            opened.settimeout(timeout_s)
            if local is not None:
                opened.bind((local, 0))
            opened.connect(address)
        except OSError as error:
            opened.close()
            problem = error
        except BaseException:
            opened.close()
            raise
        else:
            return opened, is_marked
    raise problem or OSError(f"{host}: no address")


def set_mark(sock: socket.socket, dscp: int) -> bool:
    """Marks the packets of an IPv4 or IPv6 socket from now on; false if the kernel refuses."""
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, dscp << 2)
            with suppress(OSError):  # only where it can also speak IPv4
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
        elif sock.family == socket.AF_INET:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    except OSError:
        return False
    return True


def find_hosts(sock: socket.socket) -> tuple[str, str] | None:
    """Addresses of this host and its peer; None if unconnected or if packets stay on the host."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        source = normalize_address(sock.getsockname()[0])
        destination = normalize_address(sock.getpeername()[0])
    except OSError:  # not connected
        return None
    return (source, destination) if leaves_host(source, destination) else None


def normalize_address(address: str) -> str:
    """Removes the scope; an IPv4 address in IPv6 becomes IPv4."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def leaves_host(source: str, destination: str) -> bool:
    """Whether packets between two addresses leave the host."""
    return source != destination and not ipaddress.ip_address(destination).is_loopback


def shorten(value: object) -> str:
    """What a program gave, in a message."""
    try:
        return repr(value)[:_MOST_SHOWN]
    except ValueError:  # a number of thousands of digits
        return f"of the type {type(value).__name__}"


def check_host(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_HOST or not name.isprintable():
        remedy = f"use 1 to {LONGEST_HOST} printable characters"
        raise InputError(f"host {shorten(name)}", "is no host name", remedy)
    return name
