"""A controller without processes: its threads turned by hand, on a clock that stands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, Self

from control_parts import FABRIC, KINDS, VLARB, ports_of

from weft.control.runtime.drivers import SwitchDrivers
from weft.control.runtime.engine import Batching, Engine, RollbackTo, Ticket
from weft.control.runtime.explorer import Explorer
from weft.control.runtime.reconcile import Pace, Reconciler
from weft.control.runtime.restore import restore_state
from weft.control.state.events import Answer, ApplicationModel, Event, FabricChanged, Refusal
from weft.control.state.fabric_changes import find_paths
from weft.control.state.policy_settings import Settings
from weft.control.store.sqlite_store import Store
from weft.errors import InputError
from weft.fabric import Fabric
from weft.switches import Ability, AgentEvent, Claim, Failed, Foreign, PortName, Switches, Tables


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Memory:
    """Switches in memory. `broken` ports fail; `lost`: they cannot be discovered; `away`: both.

    `writes`: of each call the ports that answered and held something else.
    """

    def __init__(self, fabric: Fabric = FABRIC, ability: Ability = VLARB) -> None:
        self.fabric, self.ability = fabric, ability
        self.held: dict[PortName, Tables | Foreign] = {
            name: Foreign("as it came") for name in ports_of(fabric)
        }
        self.sent: dict[PortName, tuple[int, ...]] = {}  # bytes, by queue
        self.broken: set[PortName] = set()
        self.away = self.lost = False
        self.writes: list[set[PortName]] = []
        self.reads: list[int] = []  # ports of each
        self.discoveries = self.seconds = self.closed = self.looks = 0
        self.agent_events: tuple[AgentEvent, ...] = ()
        self.changed = False  # what a look at links and routes says, once
        self.fails: Callable[[PortName], bool] = lambda _: False

    def discover(self) -> Fabric:
        self.discoveries += 1
        if self.away or self.lost:
            raise InputError("switches", "no answer")
        return self.fabric

    def take_agent_events(self) -> tuple[AgentEvent, ...]:
        events, self.agent_events = self.agent_events, ()
        return events

    def has_changed(self) -> bool:
        self.looks += 1
        changed, self.changed = self.changed, False
        return changed

    def read_sent(self, ports: Collection[PortName]) -> dict[PortName, tuple[int, ...]]:
        return {name: self.sent[name] for name in ports if name in self.sent}

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]:
        return {name: self.ability if name in self.held else Failed("?") for name in ports}

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        self.reads.append(len(ports))
        return {name: self._answer(name) for name in ports}

    def _answer(self, name: PortName) -> Tables | Foreign | Failed:
        if self.away or name in self.broken or name not in self.held:
            return Failed("no answer")
        return self.held[name]

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        silent = {n: no for n in wanted if isinstance(no := self._answer(n), Failed)}
        changed = {n for n in wanted.keys() - silent.keys() if self.held[n] != wanted[n]}
        if changed:
            self.writes.append(changed)
        refused = {name: Failed("write refused") for name in changed if self.fails(name)}
        self.held |= {name: wanted[name] for name in changed - refused.keys()}
        return {**wanted, **silent, **refused}

    @property
    def addresses(self) -> dict[str, str]:
        return {}

    unanswered: tuple[PortName, ...] = ()
    notes: tuple[str, ...] = ()

    def claim(self, claim: Claim) -> None:
        pass

    def open_second(self) -> Self:
        self.seconds += 1
        return self

    def learn_from(self, second: Self) -> None:
        pass

    def release(self) -> NoReturn:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


class Rig:
    """A controller on a store's file."""

    def __init__(
        self,
        path: Path,
        switches: Any = None,
        settings: Settings | None = None,
        models: Mapping[str, ApplicationModel] = KINDS,
        pace: Pace | None = None,
        batching: Batching | None = None,
    ) -> None:
        self.clock = Clock()
        self.switches: Any = switches or Memory()
        self.lines: list[str] = []
        self.changes: list[Any] = []  # lines of the engine
        self.store = Store.open(path)
        restored = restore_state(self.store.load(), settings or Settings(), models, 0.0)
        if restored.rows:
            self.store.commit(restored.rows, 0.0)
        self.opened = 0
        self.drivers = SwitchDrivers(self._open_driver)
        self.reconciler = Reconciler(
            self.drivers, clock=self.clock, log=self.lines.append, pace=pace
        )
        self.explorer = Explorer(
            self.reconciler,
            self.drivers,
            clock=self.clock,
            offer=self._offer_fabric,
            log=self.lines.append,
            pace=pace,
        )
        self.engine = Engine(
            restored.state,
            self.store,
            clock=self.clock,
            time_of_day=self.clock,
            set_targets=lambda state, ports, requested_s: self.reconciler.set_targets(
                {name: state.target[name] for name in ports}, state.revision, requested_s
            ),
            request_discovery=self.explorer.request_discovery,
            log=self.changes.append,
            batching=batching,
        )
        self.reconciler.set_targets(dict(restored.state.target), restored.state.revision)

    def _open_driver(self) -> Switches:
        self.opened += 1
        return self.switches

    def _offer_fabric(self, event: FabricChanged) -> bool:
        return not isinstance(self.ask(find_paths(self.engine.state, event)), Refusal)

    def ask(self, event: Event | RollbackTo) -> Answer:
        return self.ask_all([event])[0]

    def ask_all(self, events: list[Event | RollbackTo]) -> list[Answer]:
        answers: list[Answer] = []
        self.engine.turn([Ticket(events, answers.extend)])
        return answers

    def turn(self) -> bool:
        """Both threads once; whether there was anything to do."""
        mended = self.explorer.turn()
        return self.reconciler.turn() or mended

    def settle(self) -> None:
        """Until there is nothing to do."""
        for _ in range(1000):
            if not self.turn():
                return
        raise AssertionError("it never comes to rest")

    def pass_time(self, seconds: float) -> None:
        """In steps that an engine that is awake would notice."""
        while seconds > 0:
            step_s = min(0.5, seconds)
            self.clock.now_s += step_s
            seconds -= step_s
            self.engine.turn([])

    def close(self) -> None:
        self.store.close()
