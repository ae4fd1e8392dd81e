"""The server's half of one test: endpoints, and the loops that serve them, a thread each.

Used by one thread at a time, except `stop`, `progress_bits` and `find_failure`, which any may call.
Loops run in the core without the GIL and end by their flags.
Entry point: `ServedTest`. Units: seconds, bytes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from weft import _core
from weft.errors import InputError
from weft.measure.observation import COUNTS
from weft.measure.peer.channel_spec import ServedChannel, build_loop_spec, endpoint_config
from weft.measure.settings.values import server_cpu

CONNECT_MS = 5000
DRAIN_S = 4.0
END_S = 3.0
_COUNTS = (*COUNTS, "error")


class _Loop:
    """One thread, and its counts or error."""

    def __init__(
        self, channels: Sequence[ServedChannel], endpoints: Sequence[_core.Endpoint], cpu: int
    ) -> None:
        self.channel = channels[0]
        self.cpu = cpu
        self.endpoints = endpoints
        self.stop = _core.StopFlag()
        self.counts: dict[str, Any] | None = None
        self.error: InputError | None = None
        self.thread: threading.Thread | None = None

    def start(self, on_error: Callable[[], None]) -> None:
        def run() -> None:
            try:
                self.counts = _run(self.channel, self.endpoints, self.cpu, self.stop)
            except InputError as error:
                self.error = error
            finally:
                self.error = self.error or self._find_error()
                if self.error:
                    on_error()

        # A loop stuck in a driver must not keep the process from ending.
        self.thread = threading.Thread(target=run, name=self.channel.where, daemon=True)
        self.thread.start()

    def _find_error(self) -> InputError | None:
        if self.counts is None:
            return InputError(self.channel.where, "its loop crashed", "see the server's log")
        error = self.counts["error"]
        return InputError(self.channel.where, error) if error else None

    def join(self, deadline: float) -> bool:
        if self.thread is None:
            return True
        self.thread.join(max(0.0, deadline - time.monotonic()))
        return not self.thread.is_alive()


def _run(
    channel: ServedChannel, endpoints: Sequence[_core.Endpoint], cpu: int, stop: _core.StopFlag
) -> dict[str, Any]:
    loop, options = build_loop_spec(**{**channel.loop, "cpu": cpu}), channel.options
    stream = {name: options[name] for name in ("window", "post_list", "signal_every", "rate")}
    match channel.role:
        case "echo":
            return encode_counts(_core.echo(endpoints[0], loop, stop))
        case "write-echo":
            return encode_counts(_core.write_echo(endpoints[0], loop, stop))
        case "sink":
            return encode_counts(_core.sink(endpoints, loop, stop))
        case "duplex":
            sent, received = _core.duplex(endpoints, loop, stop, **stream)
            return encode_counts(received) | {"sender": encode_counts(sent)}
        case "window":
            return encode_counts(_core.serve_window(endpoints, loop, stop))
        case _:
            bulk = {name: options[name] for name in ("outstanding", "signal_every", "remote_slots")}
            return encode_counts(_core.transfer_receive(endpoints[0], loop, stop, **bulk))


def encode_counts(counts: _core.Counts) -> dict[str, Any]:
    """Counts as the fields of a message; `weft.measure.observation.read_counts` reads them."""
    return {name: getattr(counts, name) for name in _COUNTS}


class ServedTest:
    def __init__(self, channels: Sequence[ServedChannel], *, same_host: bool = False) -> None:
        self._channels = channels
        self._same_host = same_host
        self._cpus: list[int] = []
        self._endpoints: list[_core.Endpoint] = []
        self._loops: list[_Loop] = []

    def open(self) -> list[bytes]:
        """Opens every endpoint; their addresses."""
        self._cpus = self._choose_cpus()
        for channel in self._channels:
            try:
                build_loop_spec(**channel.loop)
                config = endpoint_config(channel.config, server=True)
                self._endpoints.append(_core.Endpoint.open(config))
            except InputError as error:
                raise InputError(
                    f"{channel.where}: {error.where}", error.problem, error.remedy
                ) from error
        return [endpoint.address() for endpoint in self._endpoints]

    def connect(self, addresses: Sequence[bytes]) -> list[dict[str, str]]:
        """Connects in the order of the channels, as the client does; their descriptions."""
        for endpoint, address in zip(self._endpoints, addresses, strict=True):
            endpoint.connect(address, CONNECT_MS)
        return [endpoint.describe() for endpoint in self._endpoints]

    def start(self, on_error: Callable[[], None]) -> None:
        for members, cpu in zip(self._groups, self._cpus, strict=True):
            channels = [self._channels[n] for n in members]
            self._loops.append(_Loop(channels, [self._endpoints[n] for n in members], cpu))
        for loop in self._loops:
            loop.start(on_error)

    @property
    def _groups(self) -> list[list[int]]:
        """The channels of each thread."""
        numbers = sorted({channel.thread for channel in self._channels})
        return [
            [n for n, channel in enumerate(self._channels) if channel.thread == number]
            for number in numbers
        ]

    def _choose_cpus(self) -> list[int]:
        """A processor for each thread."""
        firsts = [self._channels[members[0]] for members in self._groups]
        return [
            server_cpu(channel.loop, channel.config, number, self._same_host)
            for number, channel in enumerate(firsts)
        ]

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def thread_count(self) -> int:
        return len({channel.thread for channel in self._channels})

    def progress_bits(self) -> int:
        """Payload served so far."""
        return sum(loop.stop.done * loop.channel.loop["bytes"] * 8 for loop in self._loops)

    def find_failure(self) -> InputError | None:
        return next((loop.error for loop in self._loops if loop.error), None)

    def stop(self) -> None:
        for loop in self._loops:
            loop.stop.set()

    def finish(self, sent: Sequence[int] | None) -> list[dict[str, Any]]:
        """Ends the loops: receivers once they have what was sent, or nothing more comes."""
        self._drain(sent)
        self.stop()
        if not self._join(END_S):
            raise InputError("loop", f"did not end within {END_S:g} s", "the session is closed")
        if error := self.find_failure():
            raise error
        return [loop.counts for loop in self._loops if loop.counts is not None]

    def _drain(self, sent: Sequence[int] | None) -> None:
        if sent is None:
            return
        for loop, messages in zip(self._loops, sent, strict=True):
            if loop.channel.role in ("sink", "duplex", "transfer"):
                loop.stop.finish_at(messages)
            else:  # all that was sent has been answered, or needs no answer
                loop.stop.set()
        self._join(DRAIN_S)

    def _join(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        return all(loop.join(deadline) for loop in self._loops)

    def close(self) -> bool:
        """Ends the loops and frees the endpoints; false when a loop does not end."""
        self.stop()
        if not self._join(END_S):
            return False
        for endpoint in self._endpoints:
            endpoint.close()
        self._endpoints.clear()
        self._loops.clear()
        return True
