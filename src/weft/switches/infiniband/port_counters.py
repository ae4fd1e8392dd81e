"""Port counters of a subnet as Prometheus metrics, read by pipelined management packets.

A scrape asks every linked port of every switch for its counters, many requests at a time, and finds
no node anew: the subnet is discovered at the start and again from time to time, in between scrapes.
Counters are the hardware's own, so they go on counting while nobody reads them. Those of errors are
8 to 32 bits wide and stay at their highest value until somebody clears them (`perfquery -R`).
Unverified on InfiniBand hardware: ran against ibsim only. Entry point: `CounterReader`.
Units: bytes, seconds.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from weft.errors import InputError
from weft.fabric import link_rate
from weft.switches.infiniband.mad import PORT_COUNTERS, PORT_COUNTERS_EXTENDED, CountersGet
from weft.switches.infiniband.mad_transport import Refusal, SmpClient
from weft.switches.infiniband.subnet_discovery import Subnet, discover_subnet
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
