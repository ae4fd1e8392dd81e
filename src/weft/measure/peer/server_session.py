"""One client's session, in a process of its own: check, open, serve, report, repeat.

The main thread alone talks to the client and enforces the limits. What may block (opening,
connecting, draining) runs on a helper thread. A `ServedTest` is the server's half of one test:
endpoints, and the loops that serve them, a thread each. Loops run in the core without the GIL and
end by their flags. However the session ends, its loops are stopped and its endpoints closed, or the
process ends with them. Entry point: `Session.run`. Units: seconds, bits per second, bytes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from weft import _core
from weft.errors import InputError, WeftError
from weft.measure.observation import COUNTS
from weft.measure.peer import negotiation
from weft.measure.peer.channel_spec import (
    ServedChannel,
    bind_to_host,
    build_loop_spec,
    endpoint_config,
    limit_problems,
    read_channels,
)
from weft.measure.peer.negotiation import (
    Limits,
    collect_facts,
    count_roles,
    describe_offer,
    find_excess,
    find_missing_transports,
)
from weft.measure.settings.values import server_cpu
from weft.wire import Connection, ConnectionLost, Failure, ProtocolError

CONNECT_MS = 5000
DRAIN_S = 4.0
END_S = 3.0
_COUNTS = (*COUNTS, "error")
# What a client may send in each state, besides what it always may.
_ALLOWED = {
    "idle": frozenset({"open"}),
    "opened": frozenset({"connect"}),
    "connected": frozenset({"start"}),
    "running": frozenset({"finish"}),
}
_ALWAYS = frozenset({"close", "describe", "survey"})
_RATE_SLACK = 1.1
_CLEAN_END_S = 3.0
_MAX_CLOSE_S = 6.0
STUCK_STATUS = 70


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
    """Used by one thread at a time; any may call `stop`, `progress_bits` and `find_failure`."""

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
        for loop, count in zip(self._loops, sent, strict=True):
            if loop.channel.role in ("sink", "duplex", "transfer"):
                loop.stop.finish_at(count)
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


class Session:
    def __init__(self, connection: Connection[negotiation.Request], limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._state = "idle"
        self._test: ServedTest | None = None
        self._job: threading.Thread | None = None
        self._job_done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started = 0.0
        self._stopped = False
        self._terminated = False
        self.tests = 0
        self.roles = ""

    # ---- The conversation ---------------------------------------------------------------------

    def run(self) -> str:
        """Serves until the client leaves; returns how the session ended."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        try:
            return self._converse()
        except ConnectionLost as error:
            return f"client lost: {error}"
        except ProtocolError as error:
            self._report(InputError("control connection", str(error)))
            return f"client dropped: {error}"
        except InputError as error:
            self._report(error)
            return f"ended: {error}"
        finally:
            self._release()

    def _converse(self) -> str:
        while True:
            for message in self._connection.poll():
                if isinstance(message, negotiation.Bye):
                    return "bye"
                self._handle(message)
            while not self._job_done.empty():
                self._job_done.get_nowait()()
            if self._terminated:
                raise InputError("server", "is ending", "start it again")
            self._enforce_limits()

    def _handle(self, message: negotiation.Request) -> None:
        kind = message.kind
        if self._job is not None or kind not in _ALLOWED[self._state] | _ALWAYS:
            raise ProtocolError(f"{kind} while {'busy' if self._job else self._state}")
        getattr(self, f"_on_{kind}")(message)

    def _report(self, error: InputError) -> None:
        """The reason of the end, if the client can still receive it."""
        with contextlib.suppress(ConnectionLost):
            self._connection.send(Failure.from_error(error))

    def _on_terminate(self, _signal: int, _frame: object) -> None:
        self._terminated = True
        self._connection.wake()

    # ---- Work that may block ------------------------------------------------------------------

    def _in_background(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """`then` runs in the main thread with the result; InputErrors go to the client."""

        def conclude(result: Any, problems: Sequence[InputError]) -> None:
            self._job = None
            if problems:
                self._refuse(problems)
            else:
                then(result)

        def run() -> None:
            result, problems = None, [InputError("server", "failed", "see its log")]
            try:
                result, problems = work(), []
            except InputError as error:
                problems = [error]
            except Refusals as error:
                problems = error.problems
            finally:
                self._job_done.put(lambda: conclude(result, problems))
                self._connection.wake()

        self._job = threading.Thread(target=run, name="job", daemon=True)
        self._job.start()

    def _refuse(self, problems: Sequence[InputError]) -> None:
        """Reports the problems; the session continues."""
        self._drop_test()
        shown = [Failure.from_error(problem) for problem in limit_problems(problems)]
        self._connection.send(negotiation.Refused(shown))

    def _drop_test(self) -> None:
        test, self._test, self._state = self._test, None, "idle"
        with _kill_after(_MAX_CLOSE_S):
            if test is not None and not test.close():
                raise InputError("loop", "does not end", "the session is closed")

    # ---- Messages -----------------------------------------------------------------------------

    def _on_describe(self, _: negotiation.Describe) -> None:
        self._connection.send(negotiation.Description(collect_facts()))

    def _on_survey(self, _: negotiation.Survey) -> None:
        """Looks at every device and library, which takes a moment."""
        self._in_background(
            lambda: [describe_offer(offer) for offer in _core.availability()],
            lambda offers: self._connection.send(negotiation.Surveyed(offers)),
        )

    def _on_open(self, message: negotiation.Open) -> None:
        channels, problems = read_channels(message.channels)
        problems += find_excess(channels, self._limits)
        if problems:
            self._refuse(problems)
            return
        host = self._connection.local_host
        bound = [replace(c, config=bind_to_host(c.config, host)) for c in channels]
        test = ServedTest(bound, same_host=self._connection.is_same_host)
        self.roles = count_roles(channels)

        def reply_opened(addresses: list[bytes]) -> None:
            self._state = "opened"
            self._connection.send(negotiation.Opened(addresses))

        self._test = test
        self._in_background(lambda: _open(test, channels), reply_opened)

    def _on_connect(self, message: negotiation.Connect) -> None:
        test = self._require_test()
        addresses = message.addresses
        if len(addresses) != test.channel_count:
            problem = f"{len(addresses)} addresses, {test.channel_count} channels"
            raise ProtocolError(f"connect: {problem}")

        def reply_connected(descriptions: list[dict[str, str]]) -> None:
            self._state = "connected"
            self._connection.send(negotiation.Connected(descriptions))

        self._in_background(lambda: test.connect(addresses), reply_connected)

    def _on_start(self, _: negotiation.Start) -> None:
        self._require_test().start(self._connection.wake)
        self._state, self._started, self._stopped = "running", time.monotonic(), False
        self.tests += 1
        self._connection.send(negotiation.Started())

    def _on_finish(self, message: negotiation.Finish) -> None:
        test, sent = self._require_test(), message.sent
        if sent is not None and len(sent) != test.thread_count:
            raise ProtocolError(f"finish: sent is not {test.thread_count} counts, one per thread")

        def reply_finished(counts: list[dict[str, Any]]) -> None:
            self._drop_test()
            self._connection.send(negotiation.Finished(counts))

        self._in_background(lambda: test.finish(sent), reply_finished)

    def _on_close(self, _: negotiation.Close) -> None:
        self._drop_test()
        self._connection.send(negotiation.Closed())

    def _require_test(self) -> ServedTest:
        assert self._test is not None, self._state
        return self._test

    # ---- Limits -------------------------------------------------------------------------------

    def _enforce_limits(self) -> None:
        """Stops a test that fails, lasts too long or is too fast, and reports it."""
        if self._state != "running" or self._stopped or self._test is None:
            return
        error = self._test.find_failure() or self._find_broken_limit(self._test)
        if error is not None:
            self._stopped = True
            self._test.stop()
            self._connection.send(negotiation.Stopped(Failure.from_error(error)))

    def _find_broken_limit(self, test: ServedTest) -> InputError | None:
        limits, elapsed_s = self._limits, time.monotonic() - self._started
        if limits.duration_s is not None and elapsed_s > limits.duration_s:
            return InputError(
                "server",
                f"ended the test after {elapsed_s:.1f} s, its limit is {limits.duration_s:g} s",
                "measure for less, or its owner raises --max-duration",
            )
        if limits.rate_bps is None or elapsed_s < 1:
            return None
        rate_bps = test.progress_bits() / elapsed_s
        if rate_bps <= limits.rate_bps * _RATE_SLACK:
            return None
        return InputError(
            "server",
            f"ended the test at {rate_bps:.3g} b/s, its limit is {limits.rate_bps:g} b/s",
            "send more slowly, or its owner raises --max-rate",
        )

    def _release(self) -> None:
        """Frees what the test holds; a helper or loop that hangs ends with the process."""
        if self._test is not None:
            self._test.stop()
        if self._job is not None:
            self._job.join(_CLEAN_END_S)
        alive = self._job is not None and self._job.is_alive()
        with _kill_after(_MAX_CLOSE_S):
            if self._test is not None and (alive or not self._test.close()):
                os._exit(STUCK_STATUS)
        self._connection.close()


@contextlib.contextmanager
def _kill_after(seconds: float) -> Iterator[None]:
    """A driver that hangs in this thread ends the process: nobody else could."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


class Refusals(WeftError):
    """Several reasons why channels cannot be opened here."""

    def __init__(self, problems: list[InputError]) -> None:
        self.problems = problems
        super().__init__("; ".join(str(p) for p in problems))


def _open(test: ServedTest, channels: Sequence[ServedChannel]) -> list[bytes]:
    if problems := find_missing_transports(channels):
        raise Refusals(problems)
    return test.open()
