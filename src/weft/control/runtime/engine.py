"""The thread that owns the state and its store: events in, answers out, once they are on disk.

What comes within `GATHER_S` is one batch: one recomputation of ports and one commit for all of it.
At most `MOST_PORTS` are recomputed at a time, and while batches of `MANY` come only once for
`TOGETHER` events: under load the others wait for calmer moments, and are then recomputed once for
all that came meanwhile.
A state is replaced, never changed: any thread may look at `Engine.state` and compute with it. Where
the store cannot be written, what would have to be kept is refused and the state stays as it was.
Leases run on `LeaseClock`, which stands still while this thread could not have heard a renewal.
Entry points: `Engine.submit`, `Engine.run` (a thread's body), `Engine.turn` (one batch).
Units: seconds.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from weft.control.state.events import (
    Answer,
    Connect,
    Event,
    Expire,
    Refusal,
    Renew,
    Renewed,
    RevisionRow,
    Rollback,
)
from weft.control.state.key import Key
from weft.control.state.requests import find_expired
from weft.control.state.state import Application, State
from weft.control.state.step import Outcome, run_events, settle_outcome
from weft.control.store.sqlite_store import CannotWrite, Revision, Store
from weft.errors import InputError, WeftError
from weft.switches import PortName

GATHER_S = 0.002
TICK_S = 0.25
LONGEST_GAP_S = 1.0
MOST_TICKETS = 4096
LISTED = 1000  # revisions that can be looked at without the store
MOST_PORTS = 64  # recomputed at a time: some 5 ms
MANY, TOGETHER = 64, 512
_MOST_EVENTS = 4096  # of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackTo:
    """Asks for a rollback; the store has the tables."""

    key: Key
    revision: int


@dataclass(slots=True)
class Ticket:
    """Events of one caller, who is told all answers at once, in the engine's thread."""

    events: Sequence[Event | RollbackTo]
    done: Callable[[Sequence[Answer]], None]
    abandoned: bool = False  # the caller has left: what has not begun is not carried out
    came_s: float = 0.0


class Busy(WeftError):
    """More waits than can be answered in time."""


class LeaseClock:
    """Seconds for which somebody has listened: a gap counts as `LONGEST_GAP_S` at most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock(), 0.0  # replaced as one: other threads look at it

    @property
    def now_s(self) -> float:
        """From any thread."""
        return self._at(self._clock())

    def _at(self, now: float) -> float:
        listened, now_s = self._last
        return now_s + min(max(0.0, now - listened), LONGEST_GAP_S)

    def advance(self) -> float:
        """Somebody listens."""
        now = self._clock()
        self._last = now, self._at(now)
        return self._last[1]


class Engine:
    """`set_targets` gets the ports whose targets have changed, with the state that has them.

    `request_discovery` is called when further connections have no path.
    """

    def __init__(
        self,
        state: State,
        store: Store,
        *,
        clock: Callable[[], float],
        time_of_day: Callable[[], float],
        set_targets: Callable[[State, frozenset[PortName]], None],
        request_discovery: Callable[[], None],
    ) -> None:
        self.state = state
        self.problem = ""  # of the store, if it cannot be written
        self._store, self._clock, self._time_of_day = store, clock, time_of_day
        self._set_targets, self._request_discovery = set_targets, request_discovery
        self._revisions = deque(store.revisions(LISTED)[::-1], maxlen=LISTED)
        self._leases = LeaseClock(clock)
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._looked_s = 0.0
        self._unsettled = 0  # events since ports were recomputed
        self._ending = False
        self.ended = False

    @property
    def now_s(self) -> float:
        """For `now_s` of events."""
        return self._leases.now_s

    def revisions(self, most: int) -> list[Revision]:
        """The latest ones, the latest first."""
        return list(self._revisions.copy())[::-1][:most]

    def submit(self, ticket: Ticket) -> None:
        """From any thread."""
        if self._ending or self.ended:
            raise Busy("the controller is ending")
        if self._queue.qsize() >= MOST_TICKETS:
            raise Busy(f"{MOST_TICKETS} requests wait; try again later")
        ticket.came_s = self._clock()
        self._queue.put(ticket)

    def stop(self) -> None:
        """From any thread; what was submitted before is still answered."""
        self._queue.put(None)

    def run(self) -> None:
        """Until `stop`."""
        try:
            while not self._ending:
                self.turn(self._gathered())
        finally:
            self.ended = True

    def _gathered(self) -> list[Ticket]:
        """Tickets of one batch: none when nothing came for a while."""
        found: list[Ticket] = []
        # What is pending and cannot be kept is not recomputed all the time.
        is_calm = self.state.pending is None or bool(self.problem)
        events, wait_s = 0, TICK_S if is_calm else GATHER_S
        while events < _MOST_EVENTS:
            try:
                ticket = self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if ticket is None:
                self._ending = True
                continue
            found.append(ticket)
            events += len(ticket.events)
            wait_s = found[0].came_s + GATHER_S - self._clock()
        return found

    def turn(self, tickets: Sequence[Ticket]) -> None:
        """One batch: carried out, kept, programmed and answered."""
        now_s = self._leases.advance()
        begun = [ticket for ticket in tickets if not ticket.abandoned]
        prepared = [self._prepared(event) for ticket in begun for event in ticket.events]
        events: list[Event] = [event for event in prepared if not isinstance(event, Refusal)]
        outcome = self._kept([*events, *self._expiries(events, now_s)])
        if len(outcome.state.missing_paths) > len(self.state.missing_paths):
            self._request_discovery()
        self.state = outcome.state
        if outcome.ports:
            self._set_targets(outcome.state, outcome.ports)
        answers = iter(outcome.answers)
        told = iter([p if isinstance(p, Refusal) else next(answers) for p in prepared])
        for ticket in begun:
            ticket.done(list(islice(told, len(ticket.events))))

    def _prepared(self, event: Event | RollbackTo) -> Event | Refusal:
        """With what only the store knows."""
        if not isinstance(event, RollbackTo):
            return event
        try:
            tables = self._store.tables_at(event.revision)
        except InputError as error:
            return Refusal(
                code="NOT_FOUND", where=error.where, problem=error.problem, remedy=error.remedy
            )
        return Rollback(key=event.key, revision=event.revision, tables=tables)

    def _expiries(self, events: Sequence[Event], now_s: float) -> list[Event]:
        """After whatever came before they were looked for: a renewal that waited counts.

        Who asks for more of a lease that is over is told so once that is kept, hence at once.
        """
        applications = self.state.applications
        if now_s - self._looked_s >= TICK_S:
            self._looked_s = now_s
            looked: Iterable[Application] = applications.values()
        else:
            named = {event.application for event in events if isinstance(event, Renew | Connect)}
            looked = [applications[name] for name in named if name in applications]
        return [Expire(application=id_, now_s=now_s) for id_ in find_expired(looked, now_s)]

    def _kept(self, events: Sequence[Event]) -> Outcome:
        outcome = run_events(self.state, events)
        self._unsettled += len(events)
        if len(events) < MANY or self._unsettled >= TOGETHER:
            outcome, self._unsettled = settle_outcome(outcome, MOST_PORTS), 0
        if not outcome.rows:
            return outcome
        at_s = self._time_of_day()
        try:
            self._store.commit(outcome.rows, at_s)
        except CannotWrite as error:
            self.problem = str(error)
            return self._unkept(events, error)
        self.problem = ""
        for row in outcome.rows:
            if isinstance(row, RevisionRow) and row.tables:
                self._revisions.append(
                    Revision(
                        revision=row.revision, at_s=at_s, cause=row.cause, ports=len(row.tables)
                    )
                )
        return outcome

    def _unkept(self, events: Sequence[Event], error: CannotWrite) -> Outcome:
        """Only leases that are not over, of which nothing is kept, go on."""
        refusal = Refusal(
            code="RESOURCE_EXHAUSTED", where=error.where, problem=error.problem, remedy=error.remedy
        )
        renewals = [event for event in events if isinstance(event, Renew)]
        outcome = run_events(self.state, renewals)
        renewed = {
            id(event): answer
            for event, answer in zip(renewals, outcome.answers, strict=True)
            if isinstance(answer, Renewed)
        }
        told = tuple(renewed.get(id(event), refusal) for event in events)
        return replace(outcome, answers=told)
