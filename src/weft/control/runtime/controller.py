"""A controller put together: store, state, engine, reconciler and service, until it is to end.

Entry points: `serve`, `give_back`. Units: seconds.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

# Levels need it; no call is to wait while it is imported.
import scipy.optimize  # noqa: F401

from weft.control.operators.words import format_count
from weft.control.runtime.config import Config, unverified_note
from weft.control.runtime.drivers import SwitchDrivers
from weft.control.runtime.engine import Busy, Engine, Ticket
from weft.control.runtime.explorer import Explorer
from weft.control.runtime.log import Log
from weft.control.runtime.reconcile import Reconciler
from weft.control.runtime.restore import restore_state
from weft.control.runtime.watch import TableWatch
from weft.control.service import grpc_server, json_socket
from weft.control.service.calls import Bridge, Calls
from weft.control.service.limits import RateLimits
from weft.control.service.refusals import Refused, raise_refusal
from weft.control.state.events import Answer, FabricChanged, ModelChanged, Refusal
from weft.control.state.fabric_changes import find_paths
from weft.control.state.state import State
from weft.control.store.sqlite_store import Store
from weft.errors import InputError
from weft.switches import PortName

_LOOK_S = 2.0  # between looks at the table of applications
_GRACE_S = 1.0
_ENGINE_S = 1.0
_SWITCH_S = 0.0005  # a question's thread holds up the others no longer than this

Tell = Callable[[str], None]


def serve(config: Config, tell: Tell, ready: Callable[[str], None]) -> None:
    """Until SIGINT or SIGTERM; `ready` is told the address once calls are answered."""
    sys.setswitchinterval(_SWITCH_S)
    drivers = _open_drivers(config)
    try:
        store = Store.open(config.store, keep=config.keep)
        log = Log(tell)
        try:
            if note := unverified_note(config.driver, config.switches):
                log.tell(note)
            controller = _Controller(config, store, drivers, log.tell)
            _spare_the_collector()
            asyncio.run(controller.run(lambda address: log.say(partial(ready, address))))
        finally:
            gc.unfreeze()
            log.close()
            store.close()
    finally:
        drivers.close()


def _spare_the_collector() -> None:
    """States are trees: what is not used any more goes without it, and it would visit them all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000_000)


def release_ports(config: Config) -> tuple[Mapping[str, list[str]], tuple[str, ...]]:
    """Restored ports by node, and remarks; only while no controller has the store."""
    store = Store.open(config.store, keep=config.keep)
    try:
        driver = config.open_switches()
        try:
            return driver.release(), driver.notes
        finally:
            driver.close()
    finally:
        store.close()


def _open_drivers(config: Config) -> SwitchDrivers:
    """Opened now if they can be: a mistake in the file is told at once."""
    drivers = SwitchDrivers(config.open_switches)
    try:
        drivers.open()
    except InputError as error:
        if error.where.startswith(config.where):
            raise
    return drivers


def _summary(state: State, table: Path) -> str:
    counts = [
        format_count(len(state.applications), "application"),
        format_count(len(state.connections), "connection"),
        f"{format_count(len(state.models), 'model')} ({table})",
    ]
    return f"{', '.join(counts)}, revision {state.revision}"


@dataclass
class _Controller:
    config: Config
    store: Store
    drivers: SwitchDrivers
    tell: Tell
    table_problem: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.watch = TableWatch(self.config.table)
        self.watch.changes()
        outcome = restore_state(
            self.store.load(),
            self.config.settings,
            self.watch.models,
            0.0,
            unreadable=self.watch.problems.keys(),
        )
        if outcome.rows:
            self.store.commit(outcome.rows, time.time())
        clock, pace = time.monotonic, self.config.pace
        self.reconciler = Reconciler(self.drivers, clock=clock, log=self.tell, pace=pace)
        self.explorer = Explorer(
            self.reconciler,
            self.drivers,
            clock=clock,
            offer=self._offer_fabric,
            log=self.tell,
            pace=pace,
            aliases=self.config.aliases,
        )
        self.engine = Engine(
            outcome.state,
            self.store,
            clock=clock,
            time_of_day=time.time,
            set_targets=self._set_targets,
            request_discovery=self.explorer.request_discovery,
        )
        self.reconciler.set_targets(dict(outcome.state.target), outcome.state.revision)
        self.tell(_summary(outcome.state, self.config.table))

    def _set_targets(self, state: State, ports: frozenset[PortName]) -> None:
        self.reconciler.set_targets({name: state.target[name] for name in ports}, state.revision)

    def _offer_fabric(self, event: FabricChanged) -> bool:
        """In the explorer's thread: whether the engine has taken the fabric."""
        answers: list[Answer] = []
        done = threading.Event()

        def receive(batch: Sequence[Answer]) -> None:
            answers.extend(batch)
            done.set()

        try:
            self.engine.submit(Ticket([find_paths(self.engine.state, event)], receive))
        except Busy:
            return False
        while not done.wait(_ENGINE_S):
            if self.engine.ended:
                return False
        if isinstance(answers[0], Refusal):
            return False
        for name, why in islice(self.engine.state.unfit.items(), 1):
            count = format_count(len(self.engine.state.unfit), "port")
            self.tell(f"{count} cannot be managed: {name} {why}")
        return True

    # ---- The event loop -----------------------------------------------------------------------

    async def run(self, ready: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        ending = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ending.set)
        with ThreadPoolExecutor(3, thread_name_prefix="weft-control") as threads:
            running = [loop.run_in_executor(threads, self.engine.run)]
            try:
                async with AsyncExitStack() as stack:
                    bridge = Bridge(self.engine, loop)
                    rates = RateLimits(self.config.limits, time.monotonic)
                    calls = self._calls(bridge, rates, stack)
                    ready(await self._listening(calls, rates, stack))
                    for body in (self.reconciler.run, self.explorer.run):
                        running.append(loop.run_in_executor(threads, body))
                    await self._until(ending, bridge, running)
            finally:
                for part in (self.explorer, self.reconciler, self.engine):
                    part.stop()
                await asyncio.gather(*running)

    def _calls(self, bridge: Bridge, rates: RateLimits, stack: AsyncExitStack) -> Calls:
        calls = Calls(self.engine, self.reconciler, bridge, rates, self._problems)
        stack.callback(calls.close)
        return calls

    async def _until(
        self, ending: asyncio.Event, bridge: Bridge, running: Sequence[asyncio.Future[None]]
    ) -> None:
        """Until it is to end, or something has ended that should not."""
        watching = asyncio.create_task(self._watching(bridge))
        told = asyncio.create_task(ending.wait())
        ends: list[asyncio.Future[Any]] = [*running, told, watching]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
        for task in (watching, told):
            task.cancel()

    async def _listening(self, calls: Calls, rates: RateLimits, stack: AsyncExitStack) -> str:
        """Where calls are answered."""
        limits, config = self.config.limits, self.config
        grpc = grpc_server.GrpcServer(calls, limits, rates)
        server, port = await grpc_server.start(grpc, config.host, config.port, limits, config.tls)
        stack.push_async_callback(partial(server.stop, _GRACE_S))
        if config.socket is not None:
            json = json_socket.JsonServer(calls, limits, rates)
            local = await json_socket.start(json, config.socket)
            stack.callback(partial(config.socket.path.unlink, missing_ok=True))
            stack.callback(local.close)
        return f"{config.host}:{port}"

    async def _watching(self, bridge: Bridge) -> None:
        """What changes in the table of applications."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                changes = await loop.run_in_executor(None, self.watch.changes)
                self.table_problem = ""
            except InputError as error:
                self.table_problem, changes = str(error), []
            for change in changes:
                await self._offer(bridge, change)

    async def _offer(self, bridge: Bridge, change: ModelChanged) -> None:
        try:
            (answer,) = await bridge.ask([change])
            raise_refusal(answer)
        except Refused as error:
            self.watch.forget(change.name)
            self.tell(f"model of {change.name} not taken, trying again: {error}")

    def _problems(self) -> list[str]:
        return [self.table_problem, *self.watch.problems.values()]
