"""The thread that keeps a controller told: one for each application.

It registers, sends what happens and renews the lease at a third of its time, on one stream; when
the controller cannot be reached or refuses, it tries again after a pause that doubles. The program
never waits for it unless it asks to. A batch that is not acknowledged in time means that the
controller is gone, whatever the connection says. Entry point: `Worker`. Units: seconds.
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

ANSWER_S = 5.0
AGAIN_S, LONGEST_AGAIN_S, REFUSED_S = 0.1, 5.0, 30.0
_LEAST_WAIT_S = 0.001
_UNANSWERED = "has not answered yet"


def pause_s(failures: int) -> float:
    """Twice as long each time, and never quite as long as others'."""
    whole = min(AGAIN_S * 2.0 ** min(failures, 30), LONGEST_AGAIN_S)
    return whole * random.uniform(0.75, 1.25)


@dataclass(slots=True)
class _Running:
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
    """`turn` guards everything here; it is notified of every change.

    `changed` is called with each registration, or None when there will be none; `lost` with what is
    wrong when the controller goes, or refuses a connection: in the worker's thread, without `turn`.
    """

    def __init__(
        self,
        application: str,
        ttl_s: float,
        dial: Callable[[], Link],
        *,
        changed: Callable[[Registration | None], None],
        lost: Callable[[str], None],
    ) -> None:
        self.turn = threading.Condition()
        self.session = Session(client=secrets.token_hex(12))
        self.collected: deque[int] = deque()  # connections whose sockets nobody has any more
        self.problem = _UNANSWERED  # why the controller is not told; empty: it is
        self._application, self._ttl_s = application, ttl_s
        self._dial, self._changed, self._lost = dial, changed, lost
        self._is_ending = False
        self._renew_s = self._hold_s = 0.0
        self._failures = self._busy = 0
        self._thread = threading.Thread(
            target=self._run, name=f"weft-control {application}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def settled(self, wait_s: float) -> str:
        """Waits for the controller's first answer, or for none; what is wrong, if something is."""
        with self.turn:
            self.turn.wait_for(lambda: self.problem != _UNANSWERED, wait_s)
            return self.problem

    def end(self, wait_s: float) -> None:
        """Gives the registration back, within that time; else it ends with its lease."""
        with self.turn:
            self._is_ending = True
            self.turn.notify_all()
            is_linked = not self.problem
        if is_linked and threading.current_thread() is not self._thread:
            self._thread.join(wait_s)

    def collect(self) -> None:
        """With `turn`: forgets what was collected.

        The collector works in the middle of anything, so that it only leaves a number.
        """
        while self.collected:
            self.session.remove(self.collected.popleft())

    # ---- The thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_ending:
            try:
                with closing(self._dial()) as link:
                    self._attend(link)
            except Unreachable as error:
                self._pause(str(error), pause_s(self._failures))
                self._failures += 1
            except OutOfStep as error:
                self._pause(str(error), LONGEST_AGAIN_S)
            except Refused as error:
                self._pause(str(error), REFUSED_S)

    def _pause(self, problem: str, wait_s: float) -> None:
        with self.turn:
            had, self.problem = self.problem, problem
            self.turn.notify_all()
        if not had and not self._is_ending:
            self._lost(problem)
        with self.turn:
            self.turn.wait_for(lambda: self._is_ending, wait_s)

    def _attend(self, link: Link) -> None:
        """Until the end: registrations one after another, each as long as it lasts."""
        while not self._is_ending:
            if self.session.registration is None:
                self._register(link)
            self._converse(link)
        self._deregister(link)

    def _register(self, link: Link) -> None:
        with self.turn:
            key = self.session.registering()
        try:
            given = link.register(key, self._application, self._ttl_s)
        except Refused:
            self._changed(None)
            raise
        self._changed(given)
        with self.turn:
            self.session.registered(given)
            self.problem = ""
            self.turn.notify_all()

    def _deregister(self, link: Link) -> None:
        with self.turn:
            given, key = self.session.registration, self.session.next_key()
        if given is not None:
            with suppress(Unreachable, Refused):  # its lease ends it
                link.deregister(key, given.id)

    def _converse(self, link: Link) -> None:
        """One stream, until it breaks, the lease is lost or the program ends."""
        running = _Running(heard_s=time.monotonic())
        with self.turn:  # whoever asks for a batch waits until the stream is known
            self._renew_s = 0.0
            running.stream = link.stream(self._batches(running))
        try:
            for acks in running.stream:
                self._acknowledged(acks, running)
        finally:
            with self.turn:
                running.end(running.problem)
                self.session.broken()
                self.turn.notify_all()
        if running.problem:
            raise Unreachable(running.problem)

    # ---- Sending ------------------------------------------------------------------------------

    def _batches(self, running: _Running) -> Iterator[Sequence[Event]]:
        """In a thread of gRPC's: each batch as soon as there is one."""
        while events := self._next(running):
            yield events

    def _next(self, running: _Running) -> Sequence[Event]:
        """Nothing: the stream is over."""
        with self.turn:
            while not (running.is_over or self._is_ending):
                now = time.monotonic()
                if self.session.is_awaiting and now - running.heard_s > ANSWER_S:
                    running.end(f"no acknowledgement for {ANSWER_S:g} s")
                    break
                if events := self._due(now, running):
                    return events
                self.turn.wait(max(_LEAST_WAIT_S, self._until_s(running) - now))
            running.end(running.problem)
            return ()

    def _due(self, now: float, running: _Running) -> Sequence[Event]:
        self.collect()
        if now >= self._renew_s:
            self.session.renew()
            self._renew_s = now + self._third_s()
        if now < self._hold_s:
            return ()
        if not self.session.is_awaiting:
            running.heard_s = now
        return self.session.batch()

    def _third_s(self) -> float:
        given = self.session.registration
        ttl_s = self._ttl_s if given is None else given.ttl_s
        return (ttl_s or self._ttl_s) / 3 * random.uniform(0.9, 1.0)

    def _until_s(self, running: _Running) -> float:
        """When there may be something to do."""
        times = [self._renew_s]
        if self.session.is_awaiting:
            times.append(running.heard_s + ANSWER_S)
        if self.session.has_events:
            times.append(self._hold_s)
        return min(times)

    # ---- Acknowledgements ---------------------------------------------------------------------

    def _acknowledged(self, acks: Sequence[Ack], running: _Running) -> None:
        with self.turn:
            outcome = self.session.acknowledged(acks)
            now = running.heard_s = time.monotonic()
            self._busy = self._busy + 1 if outcome.is_busy else 0
            longest_s = self._third_s() / 2 if self._busy else 0.0
            self._hold_s = now + min(pause_s(self._busy), longest_s)
            self._failures, self.problem = 0, ""
            if outcome.has_lapsed:
                running.end()
            problems = [self.session.connections[n].problem for n in outcome.refused]
            self.turn.notify_all()
        if problems:
            self._lost(f"a connection is not managed: {problems[0]}")
