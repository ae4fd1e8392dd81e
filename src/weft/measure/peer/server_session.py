"""One client's session, in a process of its own: checks, opens, serves, reports, again.

The main thread alone talks to the client and keeps the server's bounds; what may block (opening,
connecting, draining) runs on a helper thread, the loops on theirs. However the session ends, its
loops are stopped and its endpoints closed, or the process ends without them.
Entry point: `Session.run`. Units: seconds, bits per second.
"""

from __future__ import annotations

import base64
import binascii
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
from weft.measure.peer.capability import described, facts, not_available
from weft.measure.peer.channel import Served, at_address, first_of, read_channels
from weft.measure.peer.control_connection import Connection, ConnectionLost
from weft.measure.peer.limits import Limits, excess, roles_of
from weft.measure.peer.protocol import Message, ProtocolError, error_message
from weft.measure.peer.serving import Serving

# What a client may send in each state, besides what it always may.
_ALLOWED = {
    "idle": frozenset({"open"}),
    "opened": frozenset({"connect"}),
    "connected": frozenset({"start"}),
    "running": frozenset({"finish"}),
}
_ALWAYS = frozenset({"close", "describe", "survey"})
_LONGEST_ADDRESS = 4096
_RATE_SLACK = 1.1
_CLEAN_END_S = 3.0
_LONGEST_CLOSE_S = 6.0
STUCK_STATUS = 70


class Session:
    def __init__(self, connection: Connection, limits: Limits) -> None:
        self._connection = connection
        self._limits = limits
        self._state = "idle"
        self._serving: Serving | None = None
        self._job: threading.Thread | None = None
        self._job_done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._started = 0.0
        self._stopped = False
        self._terminated = False
        self.tests = 0
        self.roles = ""

    # ---- The conversation ---------------------------------------------------------------------

    def run(self) -> str:
        """Serves until the client leaves; says how it ended."""
        signal.signal(signal.SIGTERM, self._on_terminate)
        try:
            return self._converse()
        except ConnectionLost as error:
            return f"client lost: {error}"
        except ProtocolError as error:
            self._tell(InputError("control connection", str(error)))
            return f"client dropped: {error}"
        except InputError as error:
            self._tell(error)
            return f"ended: {error}"
        finally:
            self._release()

    def _converse(self) -> str:
        while True:
            for message in self._connection.poll():
                if message["type"] == "bye":
                    return "bye"
                self._handle(message)
            while not self._job_done.empty():
                self._job_done.get_nowait()()
            if self._terminated:
                raise InputError("server", "is ending", "start it again")
            self._keep_bounds()

    def _handle(self, message: Message) -> None:
        kind = message["type"]
        if self._job is not None or kind not in _ALLOWED[self._state] | _ALWAYS:
            raise ProtocolError(f"{kind} while {'busy' if self._job else self._state}")
        getattr(self, f"_on_{kind}")(message)

    def _reply(self, kind: str, **fields: Any) -> None:
        self._connection.send({"type": kind, **fields})

    def _tell(self, error: InputError) -> None:
        """A last word, if it can still be heard."""
        try:
            self._connection.send(error_message(error))
        except ConnectionLost:
            return

    def _on_terminate(self, _signal: int, _frame: object) -> None:
        self._terminated = True
        self._connection.wake()

    # ---- Work that may block ------------------------------------------------------------------

    def _in_background(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """`then` runs in the main thread with the result; InputErrors are told to the client."""

        def finished(result: Any, problems: Sequence[InputError]) -> None:
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
            except Misfits as error:
                problems = error.problems
            finally:
                self._job_done.put(lambda: finished(result, problems))
                self._connection.wake()

        self._job = threading.Thread(target=run, name="job", daemon=True)
        self._job.start()

    def _refuse(self, problems: Sequence[InputError]) -> None:
        """Says what does not fit; the session goes on."""
        self._drop_test()
        told = [error_message(problem, "problem") for problem in first_of(problems)]
        self._reply("refused", problems=told)

    def _drop_test(self) -> None:
        serving, self._serving, self._state = self._serving, None, "idle"
        with _killed_after(_LONGEST_CLOSE_S):
            if serving is not None and not serving.close():
                raise InputError("loop", "does not end", "the session is closed")

    # ---- Messages -----------------------------------------------------------------------------

    def _on_describe(self, _: Message) -> None:
        self._reply("description", facts=facts())

    def _on_survey(self, _: Message) -> None:
        """Looks at every device and library, which takes a moment."""
        self._in_background(
            lambda: [described(found) for found in _core.availability()],
            lambda found: self._reply("surveyed", availability=found),
        )

    def _on_open(self, message: Message) -> None:
        channels, problems = read_channels(message["channels"])
        problems += excess(channels, self._limits)
        if problems:
            self._refuse(problems)
            return
        host = self._connection.local_host
        bound = [replace(c, config=at_address(c.config, host)) for c in channels]
        serving = Serving(bound, same_host=self._connection.same_host)
        self.roles = roles_of(channels)

        def opened(addresses: list[bytes]) -> None:
            self._state = "opened"
            self._reply("opened", addresses=[base64.b64encode(a).decode() for a in addresses])

        self._serving = serving
        self._in_background(lambda: _open(serving, channels), opened)

    def _on_connect(self, message: Message) -> None:
        serving = self._test()
        addresses = read_addresses(message["addresses"])
        if len(addresses) != serving.channels:
            raise ProtocolError(f"connect: {len(addresses)} addresses, {serving.channels} channels")

        def connected(descriptions: list[dict[str, str]]) -> None:
            self._state = "connected"
            self._reply("connected", descriptions=descriptions)

        self._in_background(lambda: serving.connect(addresses), connected)

    def _on_start(self, _: Message) -> None:
        self._test().start(self._connection.wake)
        self._state, self._started, self._stopped = "running", time.monotonic(), False
        self.tests += 1
        self._reply("started")

    def _on_finish(self, message: Message) -> None:
        serving, sent = self._test(), message["sent"]
        if sent is not None and not (
            len(sent) == serving.threads and all(type(n) is int and n >= 0 for n in sent)
        ):
            raise ProtocolError(f"finish: sent is not {serving.threads} counts, one per thread")

        def finished(counts: list[dict[str, Any]]) -> None:
            self._drop_test()
            self._reply("finished", counts=counts)

        self._in_background(lambda: serving.finish(sent), finished)

    def _on_close(self, _: Message) -> None:
        self._drop_test()
        self._reply("closed")

    def _test(self) -> Serving:
        assert self._serving is not None, self._state
        return self._serving

    # ---- Bounds -------------------------------------------------------------------------------

    def _keep_bounds(self) -> None:
        """Stops a test that fails, lasts too long or is too fast, and says so."""
        if self._state != "running" or self._stopped or self._serving is None:
            return
        error = self._serving.failure() or self._broken_bound(self._serving)
        if error is not None:
            self._stopped = True
            self._serving.stop()
            self._connection.send(error_message(error, "stopped"))

    def _broken_bound(self, serving: Serving) -> InputError | None:
        limits, elapsed_s = self._limits, time.monotonic() - self._started
        if limits.duration_s is not None and elapsed_s > limits.duration_s:
            return InputError(
                "server",
                f"ended the test after {elapsed_s:.1f} s, its limit is {limits.duration_s:g} s",
                "measure for less, or its owner raises --max-duration",
            )
        if limits.rate_bps is None or elapsed_s < 1:
            return None
        rate_bps = serving.progress_bits() / elapsed_s
        if rate_bps <= limits.rate_bps * _RATE_SLACK:
            return None
        return InputError(
            "server",
            f"ended the test at {rate_bps:.3g} b/s, its limit is {limits.rate_bps:g} b/s",
            "send more slowly, or its owner raises --max-rate",
        )

    def _release(self) -> None:
        """Frees what the test holds; a helper or loop that hangs ends with the process."""
        if self._serving is not None:
            self._serving.stop()
        if self._job is not None:
            self._job.join(_CLEAN_END_S)
        alive = self._job is not None and self._job.is_alive()
        with _killed_after(_LONGEST_CLOSE_S):
            if self._serving is not None and (alive or not self._serving.close()):
                os._exit(STUCK_STATUS)
        self._connection.close()


@contextlib.contextmanager
def _killed_after(seconds: float) -> Iterator[None]:
    """A driver that hangs in this thread ends the process: nobody else could."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


class Misfits(WeftError):
    """Several things that cannot be had here."""

    def __init__(self, problems: list[InputError]) -> None:
        self.problems = problems
        super().__init__("; ".join(str(p) for p in problems))


def _open(serving: Serving, channels: Sequence[Served]) -> list[bytes]:
    if problems := not_available(channels):
        raise Misfits(problems)
    return serving.open()


def read_addresses(values: Sequence[Any]) -> list[bytes]:
    found = []
    for value in values:
        if type(value) is not str or len(value) > 2 * _LONGEST_ADDRESS:
            raise ProtocolError("an address is not a short text")
        try:
            found.append(base64.b64decode(value, validate=True))
        except binascii.Error as error:
            raise ProtocolError("an address is not base64") from error
    return found
