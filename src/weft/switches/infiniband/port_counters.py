"""Counters of a subnet's ports: traffic and errors for Prometheus, and bytes by service level.

A scrape (`CounterReader`) asks every linked port of every switch for its counters, many requests at
a time, and finds no node anew: the subnet is discovered at the start and again from time to time,
in between scrapes. Counters are the hardware's own, so they go on counting while nobody reads them.
Those of errors are 8 to 32 bits wide and stay at their highest value until somebody clears them
(`perfquery -R`).

`EdgeCounters` detects service levels that nobody registered. A switch cannot rewrite a packet's
level, so nothing is prevented here. Each look reads the data received by level (PortRcvDataSL of
performance management, optional in the architecture) at the ports with a host behind them, and
compares with the last look. Counters do not tell the destination: a level is admitted if the host
has a connection at it, and the budget of the latency lane is the host's. They have 32 bits of 4
bytes and stay at the end until somebody clears them.
Unverified on InfiniBand hardware: ran against ibsim only, which counts no data by level.
Units: bytes, seconds.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.fabric import link_rate
from weft.switches.infiniband.mad import (
    LEVELS,
    PORT_COUNTERS,
    PORT_COUNTERS_EXTENDED,
    PORT_RCV_DATA_SL,
    CountersGet,
)
from weft.switches.infiniband.mad_transport import Refusal, SmpClient
from weft.switches.infiniband.subnet_discovery import Subnet, discover_subnet
from weft.switches.tables import EdgePort, EdgeReport, EdgeRules, PortName, Violation
from weft.wire.prometheus import format_family, format_labels

_WORD_BYTES = 4  # of counters of data
# From the port's number on: data sent and received, packets sent and received.
_TRAFFIC = struct.Struct(">8xQQQQ")
# Symbol errors, link down, receive errors, discards, buffer overruns and integrity, ticks of wait.
_ERRORS = struct.Struct(">4xHxBHxxxxHxxxB20xI")
_SENT = (
    ("sent_bytes", "Payload and headers that the port has sent."),
    ("received_bytes", "Payload and headers that the port has received."),
    ("sent_packets", "Packets that the port has sent."),
    ("received_packets", "Packets that the port has received."),
)
_FAULTS = (
    ("symbol_errors", "Symbols that were received in error; stays at 65535."),
    ("link_downs", "How often the link went down; stays at 255."),
    ("receive_errors", "Packets that were received in error; stays at 65535."),
    ("discarded_packets", "Packets that could not be sent and were dropped; stays at 65535."),
    ("buffer_overruns", "Packets that came without credits; stays at 15."),
    ("wait_ticks", "Ticks in which data was ready and could not be sent."),
)
_LEVELS = struct.Struct(f">4x{LEVELS}I")
_FULL = 2**32 - 1
RETRY_S = 300.0  # until a port that does not count is asked again


@dataclass(frozen=True, slots=True)
class _Ports:
    """What is asked at each scrape, and the labels of each answer."""

    labels: tuple[str, ...]
    requests: tuple[CountersGet, ...]  # first of traffic, then of errors
    facts: str  # families that do not change from scrape to scrape
    discovered_s: float


class CounterReader:
    """Two threads may use it: one scrapes, one discovers."""

    def __init__(self, client: SmpClient) -> None:
        self._client = client
        self._lock = threading.Lock()  # one scrape at a time
        self._ports: _Ports | None = None

    def discover(self) -> int:
        """Finds the ports to read; how many they are."""
        ports = _list_ports(discover_subnet(self._client))
        self._ports = ports
        return len(ports.labels)

    def format(self) -> str:
        """The counters as of now, as Prometheus reads them."""
        with self._lock:
            ports = self._ports
            if ports is None:
                raise InputError("weft export", "the subnet was not discovered yet", "wait")
            began_s = time.monotonic()
            answers = self._client.ask(ports.requests)
            took_s = time.monotonic() - began_s
        count = len(ports.labels)
        traffic, errors = answers[:count], answers[count:]
        silent = sum(isinstance(answer, Refusal) for answer in traffic)
        return "".join(
            [
                _format_counters(_SENT, ports.labels, _unpack_traffic(traffic)),
                _format_counters(_FAULTS, ports.labels, _unpack_errors(errors)),
                ports.facts,
                _format_scrape(took_s, silent, ports.discovered_s),
            ]
        )


def _list_ports(subnet: Subnet) -> _Ports:
    fabric = subnet.fabric
    names: list[str] = []
    ends: list[tuple[int, int]] = []
    rates: list[tuple[str, float]] = []
    peers: list[tuple[str, float]] = []
    for index, node in enumerate(fabric.nodes):
        place = subnet.nodes[node.name]
        if node.kind != "switch" or place.lid is None:
            continue
        for port, (neighbor, far) in sorted(fabric.neighbors(index).items()):
            labels = format_labels({"node": node.name, "port": port})
            names.append(labels)
            ends.append((place.lid, port))
            peer = format_labels({"peer": fabric.nodes[neighbor].name, "peer_port": far})
            peers.append((f"{labels[:-1]},{peer[1:]}", 1))
            rate = place.info[port].rate if port in place.info else None
            if rate is not None:
                rates.append((labels, link_rate(rate).data_bps / 8))
    facts = [
        format_family("weft_port_info", "gauge", "Where the cable of a port leads.", peers),
        format_family(
            "weft_port_capacity_bytes_per_second", "gauge", "The data rate of the link.", rates
        ),
    ]
    kinds = (PORT_COUNTERS_EXTENDED, PORT_COUNTERS)
    requests = [CountersGet(lid, kind, port) for kind in kinds for lid, port in ends]
    return _Ports(tuple(names), tuple(requests), "".join(facts), time.time())


def _unpack_traffic(answers: Sequence[bytes | Refusal]) -> list[tuple[int, ...] | None]:
    values: list[tuple[int, ...] | None] = []
    for answer in answers:
        if isinstance(answer, Refusal):
            values.append(None)
        else:
            sent, received, *packets = _TRAFFIC.unpack_from(answer)
            values.append((_WORD_BYTES * sent, _WORD_BYTES * received, *packets))
    return values


def _unpack_errors(answers: Sequence[bytes | Refusal]) -> list[tuple[int, ...] | None]:
    values: list[tuple[int, ...] | None] = []
    for answer in answers:
        if isinstance(answer, Refusal):
            values.append(None)
        else:
            symbols, downs, errors, discards, both, wait = _ERRORS.unpack_from(answer)
            values.append((symbols, downs, errors, discards, both & 0xF, wait))
    return values


def _format_counters(
    families: Sequence[tuple[str, str]],
    labels: Sequence[str],
    values: Sequence[tuple[int, ...] | None],
) -> str:
    """A port that did not answer has no sample: Prometheus shows a gap, not a zero."""
    texts = []
    for column, (name, about) in enumerate(families):
        samples = [
            (label, row[column])
            for label, row in zip(labels, values, strict=True)
            if row is not None
        ]
        texts.append(format_family(f"weft_port_{name}_total", "counter", about, samples))
    return "".join(texts)


def _format_scrape(took_s: float, silent: int, discovered_s: float) -> str:
    return "".join(
        format_family(f"weft_export_{name}", "gauge", about, [("", value)])
        for name, about, value in (
            ("read_seconds", "How long reading all counters took.", took_s),
            ("silent_ports", "Ports that did not answer.", silent),
            ("discovery_timestamp_seconds", "When the ports were last discovered.", discovered_s),
        )
    )


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
