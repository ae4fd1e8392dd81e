"""A switch of a testbed under traffic: its ports by name, tables by shares, and what passes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from restored import roots
from traffic import RATE_BPS, when_full

from weft.host.net import htb, namespaces, qdisc
from weft.host.net.link_ends import LinkEnd
from weft.host.net.rtnetlink import Rtnetlink
from weft.host.testbed.build import Testbed
from weft.host.testbed.wiring import Wiring
from weft.switches import PortName, Tables
from weft.switches.linux import LinuxSwitches, open_testbed

UNITS = RATE_BPS // 1000
LEAST = 8
LIMIT_S = 60
SOURCES = tuple(f"a{n}" for n in range(1, 9))
WIRING = Wiring(hosts=(*SOURCES, "sink"), rate_bps=RATE_BPS)

RECEIVE = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    end.bind(("", 6000))
    end.settimeout(2)
    print("listening", flush=True)
    count = 0
    try:
        while count < int(sys.argv[1]):
            end.recv(2000)
            count += 1
    except TimeoutError:
        pass
    print(count, flush=True)
"""
SEND = """
import socket, sys, time
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 1 << 2)
    for n in range(int(sys.argv[2])):
        end.sendto(bytes(1200), (sys.argv[1], 6000))
        time.sleep(0.0005)
"""


@contextmanager
def driven(bed: Testbed, folder: Path) -> Iterator[LinuxSwitches]:
    """With an agent for the switch alone; afterwards every port has what it had."""
    before = roots(bed.all_ends())
    driver = open_testbed(bed, folder, adapters=False)
    try:
        yield driver
        driver.release()
    finally:
        driver.close()
    assert roots(bed.all_ends()) == before


def port_to(bed: Testbed, host: str) -> PortName:
    plug = bed.layout.access(host).ends[1]
    return PortName(plug.node, int(plug.interface.removeprefix("port")))


def agent_pid(bed: Testbed, node: str = "switch") -> int:
    (pid,) = namespaces.list_pids(bed.namespace(node))
    return pid


def weighted(*shares: float) -> Tables:
    """Level n + 1 has the n-th share; every other level the least."""
    others = 16 - len(shares)
    spare = UNITS - LEAST * others
    own = [int(spare * share / sum(shares)) for share in shares]
    return Tables(queue_of=tuple(range(16)), weights=(LEAST, *own, *[LEAST] * (others - 1)))


class Meter:
    """Bytes that left each queue of a port so far."""

    def __init__(self, end: LinkEnd) -> None:
        self._link = Rtnetlink(end.namespace)
        self._index = self._link.find_index(end.interface)

    def passed(self) -> list[int]:
        found = qdisc.read_classes(self._link, self._index)
        return [found[htb.build_classid(queue)][1].bytes for queue in range(16)]

    def close(self) -> None:
        self._link.close()


def measured(end: LinkEnd, seconds: float = 1.5) -> tuple[list[float], float]:
    """Each queue's share of what passed, and the port's use."""
    with closing(Meter(end)) as meter:
        started, before = time.monotonic(), meter.passed()
        time.sleep(seconds)
        elapsed, after = time.monotonic() - started, meter.passed()
    own = [b - a for a, b in zip(before, after, strict=True)]
    return [one / max(1, sum(own)) for one in own], 8 * sum(own) / elapsed / RATE_BPS


def crossing_s(meter: Meter, begun: float, queue: int, *, upwards: bool) -> float:
    """When a queue's share of 20 ms first lies on the other side of a half."""
    samples = [(time.monotonic(), meter.passed())]
    while samples[-1][0] < begun + 0.4:
        samples.append((time.monotonic(), meter.passed()))
    for at, (_, first) in enumerate(samples):
        later = [one for one in samples[at:] if one[0] >= samples[at][0] + 0.02]
        if not later:
            break
        when, last = later[0]
        own, every = last[queue] - first[queue], sum(last) - sum(first)
        if every and (own / every > 0.5) == upwards:
            return when - begun
    return float("inf")


def check_shares(end: LinkEnd, shares: Sequence[float]) -> None:
    wanted = pytest.approx([share / sum(shares) for share in shares], abs=0.02)

    def look() -> tuple[list[float], float]:
        found, use = measured(end)
        return found[1 : len(shares) + 1], use

    assert when_full(look, lambda own: own == wanted) == wanted


def levels(count: int) -> dict[str, int]:
    return {host: n for n, host in enumerate(SOURCES[:count], start=1)}
