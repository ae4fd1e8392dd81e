"""Detects service levels that nobody registered, by counters of what switches receive from hosts.

A switch cannot rewrite a packet's service level, so nothing is prevented here. Each look reads the
data received by level (PortRcvDataSL of performance management, optional in the architecture) at
the ports with a host behind them, and compares with the last look. Counters do not tell the
destination: a level is admitted if the host has a connection at it, and the budget of the latency
lane is the host's. They have 32 bits of 4 bytes and stay at the end until somebody clears them.
Unverified on hardware, and ibsim counts no data. Entry point: `EdgeCounters`. Units: bytes,
seconds.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator, Mapping

from weft.switches.edge import EdgePort, EdgeReport, EdgeRules, Violation
from weft.switches.infiniband.mad import LEVELS, PORT_RCV_DATA_SL, CountersGet
from weft.switches.infiniband.mad_transport import Refusal, SmpClient
from weft.switches.infiniband.subnet_discovery import Subnet
from weft.switches.tables import PortName

_LEVELS = struct.Struct(f">4x{LEVELS}I")
_WORD_BYTES = 4
_FULL = 2**32 - 1
RETRY_S = 300.0  # until a port that does not count is asked again


class EdgeCounters:
    """What each port had received by level at the last look."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[PortName, tuple[float, tuple[int, ...]]] = {}
        self._refused: dict[PortName, tuple[float, str]] = {}  # until when, and why

    def look(self, client: SmpClient, subnet: Subnet, rules: EdgeRules) -> EdgeReport:
        now_s = self._clock()
        self._refused = {port: why for port, why in self._refused.items() if why[0] > now_s}
        ports = {port: rules.ports[port] for port in rules.ports.keys() - self._refused.keys()}
        requests = dict(sorted(_list_requests(subnet, ports)))
        answers = client.ask(list(requests.values()))
        violations: list[Violation] = []
        problems: list[str] = []
        for port, answer in zip(requests, answers, strict=True):
            if isinstance(answer, Refusal):
                problem = f"{port} does not count levels: {answer.problem}"
                self._refused[port] = now_s + RETRY_S, problem
                continue
            words = _LEVELS.unpack_from(answer)
            if _FULL in words:
                problems.append(f"{port}: a counter of levels is full; `perfquery -R --rcvsl`")
            before = self._seen.get(port)
            self._seen[port] = now_s, words
            if before is not None:
                violations += _compare(port, rules, before, (now_s, words))
        problems += [problem for _, problem in self._refused.values()]
        return EdgeReport(violations=tuple(violations), problems=tuple(problems))


def _list_requests(
    subnet: Subnet, ports: Mapping[PortName, EdgePort]
) -> Iterator[tuple[PortName, CountersGet]]:
    for port in ports:
        node = subnet.nodes.get(port.node)
        if node is not None and node.lid is not None:
            yield port, CountersGet(node.lid, PORT_RCV_DATA_SL, port.port)


def _compare(
    port: PortName,
    rules: EdgeRules,
    before: tuple[float, tuple[int, ...]],
    now: tuple[float, tuple[int, ...]],
) -> Iterator[Violation]:
    edge = rules.ports[port]
    admitted = {level for _, level in edge.admitted}
    for level, (old, new) in enumerate(zip(before[1], now[1], strict=True)):
        count = _WORD_BYTES * (new - old if new >= old else new)  # cleared since
        is_lane = level == rules.lane
        budget = edge.lane_bps / 8 * (now[0] - before[0])
        is_free = not 1 <= level <= rules.levels or level in admitted
        if count > budget if is_lane else count and not is_free:
            yield Violation(
                port=port, host=edge.host, destination="", level=level, bytes=count, is_lane=is_lane
            )
