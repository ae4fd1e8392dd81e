"""libfabric endpoints with a traffic class: on the sockets of providers that have some."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

import pytest
from ofi_pair import KINDS, config, connected, loop, need

from weft import _core
from weft._core import Endpoint
from weft.errors import InputError

OVER_SOCKETS = [kind for kind in KINDS if kind[0] != "shm"]


def marked_sockets(traffic_class: int) -> int:
    """How many of this process's sockets send with it."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # no socket
            one = socket.socket(fileno=int(name))
            if one.family in (socket.AF_INET, socket.AF_INET6):
                found += one.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) == traffic_class
            one.detach()
    return found


@pytest.mark.parametrize("kind", OVER_SOCKETS, ids=str)
def test_both_ends_send_with_the_traffic_class(kind: tuple[str, str]) -> None:
    assert marked_sockets(12) == 0
    with connected(*kind, traffic_class=12) as pair:
        assert marked_sockets(12) >= 2
        assert pair.ours.describe()["traffic class"].startswith("12")
        assert pair.ours.is_marked
        spec = loop(count=20, bytes=64)
        with pair.served(lambda theirs, stop: _core.echo(theirs, spec, stop)):
            counts = _core.ping_pong(pair.ours, spec, _core.StopFlag()).counts
    assert (counts.error, counts.sent) == ("", 20)


def test_without_a_traffic_class_no_socket_is_touched() -> None:
    with connected("tcp", "msg") as pair:
        assert pair.ours.describe()["traffic class"] == "0"


def test_a_provider_that_takes_none_refuses_it() -> None:
    need("shm", "rdm")
    with pytest.raises(InputError, match="does not take a traffic class"):
        Endpoint.open(config("shm", "rdm", traffic_class=12))


def test_a_provider_that_takes_none_leaves_an_optional_one_out() -> None:
    with connected("shm", "rdm", traffic_class=12, class_is_optional=True) as pair:
        assert not pair.ours.is_marked
        assert pair.ours.describe()["traffic class"] == "0: the provider does not take 12"


@pytest.mark.parametrize("value", [-4, 13, 256])
def test_what_is_no_dscp_is_refused(value: int) -> None:
    need("tcp", "msg")
    with pytest.raises(InputError, match=f"traffic class {value} is not possible"):
        Endpoint.open(config("tcp", "msg", traffic_class=value))
