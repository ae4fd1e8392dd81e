"""The thread that reports an application's connections to the controller.

It registers, sends events and renews the lease at a third of its time, on one stream. When the
controller is unreachable or refuses, it retries with exponential backoff. The program waits for it
only on request. A batch that is not acknowledged in time means that the controller is gone, even if
the connection is up. Entry point: `Worker`. Units: seconds.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass

from weft.control.client.client_session import Ack, Event, OutOfStep, Registration, Session
from weft.control.client.grpc_link import Link, Refused, Stream, Unreachable

ACK_TIMEOUT_S = 5.0
MIN_BACKOFF_S, MAX_BACKOFF_S, REFUSED_BACKOFF_S = 0.1, 5.0, 30.0
_MIN_WAIT_S = 0.001
_UNANSWERED = "has not answered yet"


def compute_backoff_s(failures: int) -> float:
    """Exponential backoff with jitter."""
    backoff_s = min(MIN_BACKOFF_S * 2.0 ** min(failures, 30), MAX_BACKOFF_S)
    return backoff_s * random.uniform(0.75, 1.25)


@dataclass(slots=True)
class _LiveStream:
    """A stream while it lasts."""

    heard_s: float  # the last acknowledgement, or when we began to wait for one
    stream: Stream | None = None
    is_over: bool = False
    problem: str = ""

    def end(self, problem: str = "") -> None:
        self.is_over, self.problem = True, problem
        if self.stream is not None:
            self.stream.cancel()


class Worker:
    """`lock` guards everything here; it is notified of every change.

    Without `lock`, its thread calls `on_registration` with each registration (None: refused) and
    `on_failure` with the problem when the controller is lost or refuses a connection.
    """

    def __init__(
        self,
        application: str,
        ttl_s: float,
        job: str,
        size_bytes: int,
        dial: Callable[[], Link],
        *,
        on_registration: Callable[[Registration | None], None],
        on_failure: Callable[[str], None],
    ) -> None:
        self.lock = threading.Condition()
        self.session = Session(client=secrets.token_hex(12))
        self.collected: deque[int] = deque()  # connections whose sockets were garbage
        self.problem = _UNANSWERED  # why the controller is not reached; empty: it is
        self._application, self._ttl_s, self._job = application, ttl_s, job
        self._size_bytes = size_bytes
        self._dial, self._on_registration, self._on_failure = dial, on_registration, on_failure
        self._is_ending = False
        self._renew_s = self._hold_s = 0.0
        self._failures = self._busy = 0
        self._thread = threading.Thread(
            target=self._run, name=f"weft-control {application}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def wait_settled(self, wait_s: float) -> str:
        """Waits up to `wait_s` for the first answer; returns the problem, if any."""
        with self.lock:
            self.lock.wait_for(lambda: self.problem != _UNANSWERED, wait_s)
            return self.problem

    def end(self, wait_s: float) -> None:
        """Deregisters within that time; otherwise the registration ends with its lease."""
        with self.lock:
            self._is_ending = True
            self.lock.notify_all()
            is_linked = not self.problem
        if is_linked and threading.current_thread() is not self._thread:
            self._thread.join(wait_s)

    def collect(self) -> None:
        """With `lock`: removes connections whose sockets were garbage collected.

        The collector runs at any point of any thread, so it only queues a number.
        """
        while self.collected:
            self.session.remove(self.collected.popleft())

    # ---- The thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_ending:
            try:
                with closing(self._dial()) as link:
                    self._stay_registered(link)
            except Unreachable as error:
                self._pause(str(error), compute_backoff_s(self._failures))
                self._failures += 1
            except OutOfStep as error:
                self._pause(str(error), MAX_BACKOFF_S)
            except Refused as error:
                self._pause(str(error), REFUSED_BACKOFF_S)

    def _pause(self, problem: str, wait_s: float) -> None:
        with self.lock:
            problem_before, self.problem = self.problem, problem
            self.lock.notify_all()
        if not problem_before and not self._is_ending:
            self._on_failure(problem)
        with self.lock:
            self.lock.wait_for(lambda: self._is_ending, wait_s)

    def _stay_registered(self, link: Link) -> None:
        """Registers, and registers again whenever the lease is lost, until the program ends."""
        while not self._is_ending:
            if self.session.registration is None:
                self._register(link)
            self._run_stream(link)
        self._deregister(link)

    def _register(self, link: Link) -> None:
        with self.lock:
            key = self.session.registration_key()
        try:
            registration = link.register(
                key, self._application, self._ttl_s, self._job, self._size_bytes
            )
        except Refused:
            self._on_registration(None)
            raise
        self._on_registration(registration)
        with self.lock:
            self.session.accept_registration(registration)
            self.problem = ""
            self.lock.notify_all()

    def _deregister(self, link: Link) -> None:
        with self.lock:
            registration, key = self.session.registration, self.session.next_key()
        if registration is not None:
            with suppress(Unreachable, Refused):  # its lease ends it
                link.deregister(key, registration.id)

    def _run_stream(self, link: Link) -> None:
        """One stream, until it breaks, the lease is lost or the program ends."""
        live = _LiveStream(heard_s=time.monotonic())
        with self.lock:  # `_next_batch` waits until `live.stream` is set
            self._renew_s = 0.0
            live.stream = link.stream(self._batches(live))
        try:
            for acks in live.stream:
                self._handle_acks(acks, live)
        finally:
            with self.lock:
                live.end(live.problem)
                self.session.requeue_unacknowledged()
                self.lock.notify_all()
        if live.problem:
            raise Unreachable(live.problem)

    # ---- Sending ------------------------------------------------------------------------------

    def _batches(self, live: _LiveStream) -> Iterator[Sequence[Event]]:
        """In a thread of gRPC's: each batch as soon as there is one."""
        while events := self._next_batch(live):
            yield events

    def _next_batch(self, live: _LiveStream) -> Sequence[Event]:
        """Waits for the next events to send; empty when the stream is over."""
        with self.lock:
            while not (live.is_over or self._is_ending):
                now = time.monotonic()
                if self.session.has_unacknowledged and now - live.heard_s > ACK_TIMEOUT_S:
                    live.end(f"no acknowledgement for {ACK_TIMEOUT_S:g} s")
                    break
                if events := self._take_due_events(now, live):
                    return events
                self.lock.wait(max(_MIN_WAIT_S, self._next_due_s(live) - now))
            live.end(live.problem)
            return ()

    def _take_due_events(self, now: float, live: _LiveStream) -> Sequence[Event]:
        self.collect()
        if now >= self._renew_s:
            self.session.renew()
            self._renew_s = now + self._renewal_interval_s()
        if now < self._hold_s:
            return ()
        if not self.session.has_unacknowledged:
            live.heard_s = now
        return self.session.take_batch()

    def _renewal_interval_s(self) -> float:
        registration = self.session.registration
        ttl_s = self._ttl_s if registration is None else registration.ttl_s
        return (ttl_s or self._ttl_s) / 3 * random.uniform(0.9, 1.0)

    def _next_due_s(self, live: _LiveStream) -> float:
        """When to look again, unless something changes before."""
        times = [self._renew_s]
        if self.session.has_unacknowledged:
            times.append(live.heard_s + ACK_TIMEOUT_S)
        if self.session.has_events:
            times.append(self._hold_s)
        return min(times)

    # ---- Acknowledgements ---------------------------------------------------------------------

    def _handle_acks(self, acks: Sequence[Ack], live: _LiveStream) -> None:
        with self.lock:
            outcome = self.session.accept_acks(acks)
            now = live.heard_s = time.monotonic()
            self._busy = self._busy + 1 if outcome.is_busy else 0
            longest_s = self._renewal_interval_s() / 2 if self._busy else 0.0
            self._hold_s = now + min(compute_backoff_s(self._busy), longest_s)
            self._failures, self.problem = 0, ""
            if outcome.has_expired:
                live.end()
            problems = [self.session.connections[n].problem for n in outcome.refused]
            self.lock.notify_all()
        if problems:
            self._on_failure(f"a connection is not managed: {problems[0]}")
