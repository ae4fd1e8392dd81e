"""What a test runs on: its connections, its threads, its progress, and how it ended.

A `Rig` opens channels to the peer, or endpoints of the delay transport in this process, and runs
timed loops in threads of their own. An interrupted run, or one that loses its peer, keeps its
samples; `ended` is then the reason. Entry point: `Rig`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from weft._core import Endpoint, EndpointConfig, StopFlag
from weft.errors import InputError, WeftError
from weft.measure.interrupt import Interrupt
from weft.measure.observation import Counted, Counts, read_counts
from weft.measure.peer.channel_spec import ChannelSpec
from weft.measure.peer.client import Peer, PeerLost, PeerStopped

Progress = Callable[[float], None]
Result = TypeVar("Result")
# Each look at the progress takes time from the loops on a small machine.
LOOK_SECONDS = 0.5
CONNECT_MS = 10_000
# What the delay transport's far side does for each role of a peer.
FAR_PROGRAM = {
    "echo": "echo",
    "sink": "sink",
    "duplex": "duplex",
    "window": "sink",
    "transfer": "transfer",
}
FAR_ADDRESS = b"far side"


class Connections(Protocol):
    """Connected endpoints, and the peer's loops on their other ends."""

    @property
    def endpoints(self) -> Sequence[Endpoint]: ...
    @property
    def descriptions(self) -> Sequence[tuple[Mapping[str, str], Mapping[str, str]]]: ...
    @property
    def stop(self) -> StopFlag: ...
    @property
    def interrupted(self) -> bool: ...
    def finish(self, sent: Sequence[int] | None = None) -> Sequence[Mapping[str, Any]]: ...


class InProcess:
    """Endpoints of the delay transport: the peer is simulated by the endpoint itself."""

    def __init__(self, endpoints: Sequence[Endpoint], interrupt: Interrupt, stop: StopFlag) -> None:
        self.endpoints = endpoints
        self.stop = stop
        self.descriptions = [(endpoint.describe(), dict[str, str]()) for endpoint in endpoints]
        self._interrupt = interrupt

    @property
    def interrupted(self) -> bool:
        return self._interrupt.is_set

    def finish(self, sent: Sequence[int] | None = None) -> list[Mapping[str, Any]]:  # noqa: ARG002
        return []


@dataclass(slots=True)
class Rig:
    """One test's means. `peer` is None for the delay transport only."""

    peer: Peer | None
    progress: Progress | None = None
    ended: str = ""  # why it ended early
    max_loops: int = 0  # that ran beside each other
    descriptions: list[tuple[Mapping[str, str], Mapping[str, str]]] = field(default_factory=list)

    @contextmanager
    def connect(self, channels: Sequence[ChannelSpec]) -> Iterator[Connections]:
        """The channels, open, connected and with the peer's loops running."""
        if channels[0].config["transport"] == "delay":
            with in_process(channels) as connections:
                self.descriptions += connections.descriptions
                yield connections
        elif self.peer is None:
            raise InputError("peer", "none is given", 'open one: open_peer("local")')
        else:
            with self.peer.open(channels) as opened:
                self.descriptions += opened.descriptions
                opened.start()
                yield opened

    def run(
        self, loops: Sequence[Callable[[], Result]], share: Callable[[], float]
    ) -> list[Result]:
        """Run loops beside each other until all have returned; `share` of 1 is all done."""
        self.max_loops = max(self.max_loops, len(loops))
        with ThreadPoolExecutor(len(loops)) as pool:
            running = [pool.submit(loop) for loop in loops]
            every = LOOK_SECONDS if self.progress else None
            while wait(running, timeout=every).not_done:
                if self.progress:
                    self.progress(min(1.0, share()))
            return [future.result() for future in running]

    def finish(
        self, ends: Connections, counted: Sequence[Counted], sent: Sequence[int] | None = None
    ) -> list[Counts]:
        """What each of the peer's threads counted; nothing when the peer is lost.

        `sent` is how many messages went to each of them, `counted` what our loops counted.
        """
        if ends.interrupted:
            self.ended = self.ended or "interrupted"
        try:
            peer_counts = ends.finish(sent)
        except (PeerLost, PeerStopped) as error:
            self.ended = self.ended or str(error)
            peer_counts = []
        broken = [text for counts in counted if (text := read_error(counts))]
        if broken and not self.ended and not any(c.sent or c.received for c in counted):
            raise WeftError(broken[0])
        if broken:
            self.ended = self.ended or broken[0]
        return [read_counts(counts) for counts in peer_counts]


def read_error(counts: Counted) -> str:
    """The error that ended a loop; MPI's counts have none."""
    return getattr(counts, "error", "")


def done_share(stop: StopFlag, count: int, duration_ns: int) -> Callable[[], float]:
    """How much of a loop is done: messages of its count, or time of its duration."""
    if count:
        return lambda: stop.done / count
    started = time.monotonic_ns()
    return lambda: (time.monotonic_ns() - started) / duration_ns


@contextmanager
def in_process(channels: Sequence[ChannelSpec]) -> Iterator[InProcess]:
    """Endpoints of the delay transport, freed on every path."""
    endpoints: list[Endpoint] = []
    stop = StopFlag()
    try:
        for channel in channels:
            delay = {**channel.config["delay"], "peer": FAR_PROGRAM[channel.role]}
            endpoints.append(open_endpoint({**channel.config, "delay": delay}))
            endpoints[-1].connect(FAR_ADDRESS, CONNECT_MS)
        with Interrupt(stop) as interrupt:
            yield InProcess(endpoints, interrupt, stop)
    finally:
        for endpoint in endpoints:
            endpoint.close()


@contextmanager
def loopback(fields: Mapping[str, Any]) -> Iterator[Endpoint]:
    """An endpoint of ours, connected to itself."""
    endpoint = open_endpoint(fields)
    try:
        endpoint.connect(endpoint.address(), CONNECT_MS)
        yield endpoint
    finally:
        endpoint.close()


def open_endpoint(fields: Mapping[str, Any]) -> Endpoint:
    """The client's endpoint of these fields; "delay" has fields of its own."""
    config = EndpointConfig()
    common = {k: v for k, v in fields.items() if k not in ("client", "server", "delay")}
    for name, value in {**common, **fields.get("client", {})}.items():
        setattr(config, name, value)
    delay = config.delay
    for name, value in fields.get("delay", {}).items():
        setattr(delay, name, value)
    config.delay = delay
    return Endpoint.open(config)
