"""The thread that owns the state and its store: events in, answers out, once they are on disk.

Events that come within `GATHER_S` are one batch: one recomputation of ports and one commit for all
of them. `Batching` limits how many ports are recomputed, and how often: under load they wait for a
calmer moment, and are then recomputed once for all events since.
A state is replaced, never changed: any thread may read `Engine.state` and compute with it. If the
store cannot be written, requests that need it are refused and the state stays as it was.
Leases run on `LeaseClock`, which stands still while this thread could not have heard a renewal.
Entry points: `Engine.submit`, `Engine.run` (a thread's body), `Engine.turn` (one batch).
Units: seconds.
"""

from __future__ import annotations

import queue
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from weft.control.runtime.audit import LogLine, describe_changes
from weft.control.state.events import (
    Answer,
    Asker,
    Connect,
    Event,
    Expire,
    Hold,
    Refusal,
    Renew,
    Renewed,
    RevisionRow,
    Rollback,
    Row,
)
from weft.control.state.request_key import Key
from weft.control.state.requests import find_expired
from weft.control.state.state import Application, State
from weft.control.state.step import Outcome, run_events, settle_outcome
from weft.control.store.sqlite_store import CannotWrite, Revision, Store
from weft.errors import InputError, WeftError
from weft.switches import PortName

GATHER_S = 0.002
TICK_S = 0.25
LONGEST_GAP_S = 1.0
LISTED_REVISIONS = 1000  # that can be listed without the store
_MAX_EVENTS = 4096  # of a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Ports recomputed at a time (64 take some 5 ms), and requests that may wait.

    After a batch of `large_batch` events, ports are recomputed only every `settle_every` events.
    """

    max_ports: int = 64
    large_batch: int = 64
    settle_every: int = 512
    max_tickets: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackTo:
    """A request for a rollback; the store has the tables."""

    key: Key
    revision: int
    by: Asker | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRevision:
    """A decision of all groups; the store has the tables. None: ports follow the plan again."""

    number: int
    revision: int | None
    by: Asker | None = None


Request = Event | RollbackTo | HoldRevision


@dataclass(slots=True)
class Ticket:
    """Events of one caller. `done` gets all answers at once, in the engine's thread."""

    events: Sequence[Request]
    done: Callable[[Sequence[Answer]], None]
    abandoned: bool = False  # the caller has gone: events that have not begun are dropped
    submitted_s: float = 0.0


class Busy(WeftError):
    """More requests wait than can be answered in time."""


class LeaseClock:
    """Seconds during which the engine has listened: a gap counts as `LONGEST_GAP_S` at most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock(), 0.0  # replaced as one: other threads read it

    @property
    def now_s(self) -> float:
        """From any thread."""
        return self._at(self._clock())

    @property
    def last_s(self) -> float:
        """When the engine last listened."""
        return self._last[0]

    def _at(self, now: float) -> float:
        last, now_s = self._last
        return now_s + min(max(0.0, now - last), LONGEST_GAP_S)

    def advance(self) -> float:
        """The engine listens now."""
        now = self._clock()
        self._last = now, self._at(now)
        return self._last[1]


class Engine:
    """`set_targets` gets the ports whose targets have changed, with the state that has them.

    The third argument is when the first of their requests came, or None.
    `request_discovery` is called when further connections have no path. `log` gets every change,
    `observe_commit` how long each commit took, `observe_state` each new state, with the rows that
    were stored of it.
    """

    def __init__(
        self,
        state: State,
        store: Store,
        *,
        clock: Callable[[], float],
        time_of_day: Callable[[], float],
        set_targets: Callable[[State, frozenset[PortName], float | None], None],
        request_discovery: Callable[[], None],
        log: Callable[[str], None] = lambda _: None,
        observe_commit: Callable[[float], None] = lambda _: None,
        observe_state: Callable[[State, Sequence[Row]], None] = lambda _, __: None,
        batching: Batching | None = None,
    ) -> None:
        self.state = state
        self.problem = ""  # why the store cannot be written
        self._store, self._clock, self._time_of_day = store, clock, time_of_day
        self._batching = batching or Batching()
        self._set_targets, self._request_discovery = set_targets, request_discovery
        self._log, self._observe_commit = log, observe_commit
        self._observe_state = observe_state
        self._waiting_s: float | None = None  # since when a request waits for its ports
        self._revisions = deque(store.revisions(LISTED_REVISIONS)[::-1], maxlen=LISTED_REVISIONS)
        self._leases = LeaseClock(clock)
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._expired_s = 0.0  # when all leases were last examined
        self._unsettled = 0  # events since ports were recomputed
        self._ending = False
        self.ended = False

    @property
    def now_s(self) -> float:
        """The time for `now_s` of events."""
        return self._leases.now_s

    @property
    def last_turn_s(self) -> float:
        """When it last took events, on its clock; a turn comes several times a second."""
        return self._leases.last_s

    def revisions(self, most: int) -> list[Revision]:
        """The latest ones, the latest first."""
        return list(self._revisions.copy())[::-1][:most]

    @contextmanager
    def copy_store(self) -> Iterator[Path]:
        """A copy of the store, from any thread; removed afterwards."""
        path = self._store.path
        size, free = path.stat().st_size, shutil.disk_usage(path.parent).free
        if free < 2 * size:  # commits need room meanwhile
            problem = f"a copy takes {size} bytes, and its disk has {free} free"
            raise InputError(str(path), problem, "make room")
        with TemporaryDirectory(prefix=".backup-", dir=path.parent) as folder:
            copy = Path(folder, path.name)
            self._store.copy_to(copy)
            yield copy

    def submit(self, ticket: Ticket) -> None:
        """From any thread."""
        if self._ending or self.ended:
            raise Busy("the controller is ending")
        if self._queue.qsize() >= self._batching.max_tickets:
            raise Busy(f"{self._batching.max_tickets} requests wait; try again later")
        ticket.submitted_s = self._clock()
        self._queue.put(ticket)

    def stop(self) -> None:
        """Ends the thread, once requests submitted before are answered; call it from any thread."""
        self._queue.put(None)

    def run(self) -> None:
        """Runs until `stop`."""
        try:
            while not self._ending:
                self.turn(self._gather())
        finally:
            self.ended = True

    @property
    def idle_s(self) -> float:
        """How long a turn waits for a first event."""
        # Pending ports that cannot be stored are not recomputed all the time.
        is_calm = self.state.pending is None or bool(self.problem)
        return TICK_S if is_calm else GATHER_S

    def _gather(self) -> list[Ticket]:
        """Tickets of one batch: none when nothing came for a while."""
        tickets: list[Ticket] = []
        events, wait_s = 0, self.idle_s
        while events < _MAX_EVENTS:
            try:
                ticket = self._queue.get(timeout=wait_s) if wait_s > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if ticket is None:
                self._ending = True
                continue
            tickets.append(ticket)
            events += len(ticket.events)
            wait_s = tickets[0].submitted_s + GATHER_S - self._clock()
        return tickets

    def turn(self, tickets: Sequence[Ticket]) -> None:
        """Runs, stores, programs and answers one batch."""
        now_s = self._leases.advance()
        tickets = [ticket for ticket in tickets if not ticket.abandoned]
        if self._waiting_s is None and tickets:
            self._waiting_s = tickets[0].submitted_s
        prepared = [self._prepare(event) for ticket in tickets for event in ticket.events]
        events: list[Event] = [event for event in prepared if not isinstance(event, Refusal)]
        outcome = self._run_batch([*events, *self._list_expiries(events, now_s)])
        if len(outcome.state.missing_paths) > len(self.state.missing_paths):
            self._request_discovery()
        if outcome.state is not self.state:
            self.state = outcome.state
            self._observe_state(outcome.state, outcome.rows)
        if outcome.ports:
            self._set_targets(outcome.state, outcome.ports, self._waiting_s)
        if outcome.state.pending is None:
            self._waiting_s = None
        results = iter(outcome.answers)
        answers = iter([p if isinstance(p, Refusal) else next(results) for p in prepared])
        for ticket in tickets:
            ticket.done(list(islice(answers, len(ticket.events))))

    def _prepare(self, event: Request) -> Event | Refusal:
        """Adds what only the store has."""
        if not isinstance(event, RollbackTo | HoldRevision):
            return event
        try:
            tables = {} if event.revision is None else self._store.tables_at(event.revision)
        except InputError as error:
            return Refusal("NOT_FOUND", error.where, error.problem, error.remedy)
        if isinstance(event, HoldRevision):
            return Hold(number=event.number, revision=event.revision, tables=tables, by=event.by)
        return Rollback(key=event.key, revision=event.revision, tables=tables, by=event.by)

    def find_revision(self, revision: int | None, at_s: float | None) -> int | Refusal:
        """The revision, or that of a time, if it is among the latest; from any thread."""
        listed = self.revisions(min(LISTED_REVISIONS, self._store.keep))
        latest = listed[0].revision if listed else 0
        oldest = listed[-1].revision - 1 if listed else 0
        if at_s is not None:
            earlier = [r.revision for r in listed if r.at_s <= at_s]
            if listed and not earlier:
                return _refuse_time(listed[-1])
            revision = earlier[0] if earlier else 0
        assert revision is not None, "a revision or a time"
        if oldest <= revision <= latest:
            return revision
        problem = f"is not among the latest ({oldest} to {latest})"
        remedy = "see weft control rollback"
        return Refusal("NOT_FOUND", f"revision {revision}", problem, remedy)

    def _list_expiries(self, events: Sequence[Event], now_s: float) -> list[Event]:
        """Expired leases, to be run after the events: a renewal that waited counts.

        Leases that the events name are always examined: a refusal for an expired lease must be
        stored before it is answered.
        """
        applications = self.state.applications
        if now_s - self._expired_s >= TICK_S:
            self._expired_s = now_s
            examined: Iterable[Application] = applications.values()
        else:
            named = {event.application for event in events if isinstance(event, Renew | Connect)}
            examined = [applications[name] for name in named if name in applications]
        return [Expire(application=id_, now_s=now_s) for id_ in find_expired(examined, now_s)]

    def _run_batch(self, events: Sequence[Event]) -> Outcome:
        outcome = run_events(self.state, events)
        self._unsettled += len(events)
        limits = self._batching
        if len(events) < limits.large_batch or self._unsettled >= limits.settle_every:
            outcome, self._unsettled = settle_outcome(outcome, limits.max_ports), 0
        if not outcome.rows:
            return outcome
        at_s, began_s = self._time_of_day(), self._clock()
        try:
            self._store.commit(outcome.rows, at_s)
            self._observe_commit(self._clock() - began_s)
        except CannotWrite as error:
            self._set_problem(str(error))
            return self._run_renewals(events, error)
        self._set_problem("")
        for line in describe_changes(self.state, events, outcome):
            self._log(line)
        for row in outcome.rows:
            if isinstance(row, RevisionRow) and row.tables:
                self._revisions.append(
                    Revision(
                        revision=row.revision, at_s=at_s, cause=row.cause, ports=len(row.tables)
                    )
                )
        return outcome

    def _set_problem(self, problem: str) -> None:
        """Logs each change once."""
        if problem and not self.problem:
            self._log(LogLine(f"changes are refused: {problem}", "error"))
        elif self.problem and not problem:
            self._log(LogLine("the store can be written again"))
        self.problem = problem

    def _run_renewals(self, events: Sequence[Event], error: CannotWrite) -> Outcome:
        """Only renewals of live leases, which store nothing, succeed; the rest is refused."""
        refusal = Refusal(error.code, error.where, error.problem, error.remedy)
        renewals = [event for event in events if isinstance(event, Renew)]
        outcome = run_events(self.state, renewals)
        renewed = {
            id(event): answer
            for event, answer in zip(renewals, outcome.answers, strict=True)
            if isinstance(answer, Renewed)
        }
        answers = tuple(renewed.get(id(event), refusal) for event in events)
        return replace(outcome, answers=answers)


def _refuse_time(first: Revision) -> Refusal:
    """For a rollback to a time before all revisions that are kept."""
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first.at_s))
    problem = f"is before the first revision that is kept ({first.revision}, of {since})"
    return Refusal("NOT_FOUND", "time", problem, "see weft control rollback; 0 is without weights")
