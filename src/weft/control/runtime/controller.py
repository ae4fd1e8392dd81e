"""A controller: store, state, its three threads and the service, until it is stopped.

Entry points: `serve`, `release_ports`. Units: seconds.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack, closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Levels need it; no call is to wait while it is imported.
import scipy.optimize  # noqa: F401

from weft import __version__
from weft.control.cluster.etcd_client import EtcdClient
from weft.control.cluster.follower import Follower, encode_rows
from weft.control.cluster.group_link import GroupLink, Held, Question, Reply
from weft.control.cluster.member import Member
from weft.control.cluster.ownership import Ownership
from weft.control.cluster.replicated_store import Keys, LostOwnership, ReplicatedStore
from weft.control.runtime.audit import Log, LogLine
from weft.control.runtime.config import Config, Etcd, describe_starvation, describe_unverified
from weft.control.runtime.drivers import SwitchDrivers
from weft.control.runtime.edge_watch import EdgeWatch
from weft.control.runtime.engine import Busy, Engine, HoldRevision, Request, Ticket
from weft.control.runtime.explorer import Explorer
from weft.control.runtime.liveness import Liveness, report_standby
from weft.control.runtime.reconcile import Reconciler
from weft.control.runtime.restore import TableWatch, restore_state
from weft.control.service import grpc_server, local_socket
from weft.control.service.access import Access, list_unknown_users
from weft.control.service.calls import Bridge, Calls
from weft.control.service.fabric_calls import FabricCalls
from weft.control.service.limits import RateLimits
from weft.control.service.refusals import Refused, raise_refusal
from weft.control.state.events import (
    Answer,
    ApplicationModel,
    Asker,
    FabricChanged,
    ModelChanged,
    Refusal,
    Row,
)
from weft.control.state.fabric_changes import find_paths
from weft.control.state.group_changes import has_carried_out
from weft.control.state.state import State
from weft.control.store.sqlite_store import Store, StoredState
from weft.errors import InputError
from weft.host.machine.processes import notify_service_manager
from weft.sensitivity.application_table import default_directory
from weft.switches import Claim, PortName, Switches, Taken
from weft.units import format_count

if TYPE_CHECKING:
    from weft.control.runtime.metrics import Metrics

_TABLE_S = 2.0  # between reads of the table of applications
_GRACE_S = 1.0
_ENGINE_S = 1.0
_SWITCH_S = 0.0005  # how long an operator's question may keep the other threads waiting

Tell = Callable[[str], None]


def serve(config: Config, tell: Tell, ready: Callable[[str], None]) -> None:
    """Runs a controller until SIGINT or SIGTERM; `ready` gets its address once it answers calls."""
    _check_table(config)
    sys.setswitchinterval(_SWITCH_S)
    _allow_many_connections()
    log = Log(tell)
    try:
        if config.etcd is None:
            claim = Claim(owner=_describe_owner(config), place=_describe_place(config))
            controller = _run(config, partial(_open_store, config), claim, log, ready)
            if controller.fenced:
                raise InputError("weft control", f"stops: {controller.fenced}")
        else:
            _serve_in_turns(config, config.etcd, log, ready)
    finally:
        notify_service_manager("STOPPING=1")
        log.write("the controller has ended; ports keep their tables")
        log.close()


def _check_table(config: Config) -> None:
    """A folder of models that the file names must be there: nobody could register otherwise."""
    if config.table != default_directory() and not config.table.is_dir():
        problem = f"{config.table} is no folder"
        raise InputError(f"{config.where}: apps", problem, "create it, or name that of weft apps")


def _open_store(config: Config) -> AbstractContextManager[Store]:
    return closing(Store.open(config.store, keep=config.keep))


def _lend_store(store: Store) -> AbstractContextManager[Store]:
    return nullcontext(store)


def _run(
    config: Config,
    open_store: Callable[[], AbstractContextManager[Store]],
    claim: Claim,
    log: Log,
    ready: Callable[[str], None],
    ownership: Ownership | None = None,
    client: EtcdClient | None = None,
) -> _Controller:
    """One run of a controller, until a signal, or until it may program switches no more."""
    drivers = _open_drivers(config, claim)
    try:
        with open_store() as store:
            if note := describe_unverified(config.driver, config.switches):
                log.write(note)
            controller = _Controller(config, store, drivers, log.write, ownership, client)
            for warning in (
                describe_starvation(config.settings),
                *list_unknown_users(config.roles),
            ):
                if warning:
                    log.write(LogLine(warning, "warning"))
            _spare_the_collector()
            asyncio.run(controller.run(lambda address: log.call(partial(ready, address))))
            return controller
    finally:
        gc.unfreeze()
        drivers.close()


def _serve_in_turns(config: Config, etcd: Etcd, log: Log, ready: Callable[[str], None]) -> None:
    """A member of a group: standby, owner, and standby again when it has lost the group."""
    ending = threading.Event()
    with _join_group(config, etcd, log) as member:
        while True:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: ending.set())
            with report_standby():
                ownership = member.campaign(ending)
            if ownership is None:
                return
            try:
                if config.driver == "infiniband":
                    # Its switches refuse nobody: a write of the last owner may still be under way.
                    time.sleep(etcd.write_s)
                claim = Claim(
                    owner=_describe_owner(config),
                    epoch=ownership.epoch,
                    place=_describe_place(config),
                    group=etcd.group if etcd.groups else "",
                    manages=etcd.manages,
                )
                open_store = partial(_lend_store, member.store)
                controller = _run(config, open_store, claim, log, ready, ownership, member.client)
                fenced = controller.fenced
            except (LostOwnership, Taken) as error:  # before it was ready
                fenced = str(error)
            finally:
                is_owner = ownership.left_s > 0
                ownership.release()
            if is_owner and not ownership.problem:
                if fenced:
                    raise InputError("weft control", f"stops: {fenced}")
                return
            log.write(LogLine(f"standby again: {ownership.problem or fenced}", "warning"))


def _build_keys(etcd: Etcd, group: str) -> Keys:
    return Keys(f"/weft/{etcd.cluster}/groups/{group}")


def _join_group(config: Config, etcd: Etcd, log: Log) -> Member:
    client = EtcdClient(etcd.endpoints, etcd.tls)
    keys = _build_keys(etcd, etcd.group)
    owner = _describe_owner(config)

    def new_ownership() -> Ownership:
        return Ownership(client, keys.owner, owner, ttl_s=etcd.ttl_s, write_s=etcd.write_s)

    store = ReplicatedStore.open(config.store, keep=config.keep)
    if etcd.groups:
        publishes = etcd.group == etcd.publisher
        store.encode_changes = partial(encode_rows, group=etcd.group, publishes=publishes)
    return Member(client, store, keys, new_ownership, log.write)


def _allow_many_connections() -> None:
    """As many open files as the system allows: the usual limit, 1024, is soon used up."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _spare_the_collector() -> None:
    """States are trees without cycles: the collector would visit them all and free nothing."""
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


def _open_drivers(config: Config, claim: Claim) -> SwitchDrivers:
    """Opened now if possible: a mistake in the file ends the start."""

    def open_driver() -> Switches:
        driver = config.open_switches()
        try:
            driver.claim(claim)
        except InputError:
            driver.close()
            raise
        return driver

    drivers = SwitchDrivers(open_driver)
    try:
        drivers.open()
    except InputError as error:
        if isinstance(error, Taken) or error.where.startswith(config.where):
            raise
    return drivers


def _describe_owner(config: Config) -> str:
    """Names this run of a controller, and no other, to operators of another."""
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    file, host = Path(config.where).absolute(), socket.gethostname()
    return f"{file} on {host}, pid {os.getpid()}, since {since}"


def _describe_place(config: Config) -> str:
    """Its store has one controller at a time."""
    return f"{config.store.absolute()} on {socket.gethostname()}"


def _build_metrics(config: Config) -> Metrics | None:
    """Loaded where they are wanted alone."""
    if config.metrics is None:
        return None
    try:
        from weft.control.runtime.metrics import Metrics
    except ImportError as error:
        problem = f"prometheus-client cannot be loaded ({error})"
        raise InputError(
            f"{config.where}: metrics", problem, "pip install 'weft[control]'"
        ) from error
    return Metrics()


def _ignore(_: float) -> None:
    return


def _list_offered(stored: StoredState) -> dict[str, ApplicationModel]:
    """The models that it has from the group that publishes them."""
    withdrawn = stored.withdrawn
    return {name: model for name, model in stored.models.items() if name not in withdrawn}


def _summarize(state: State, table: Path) -> str:
    counts = [
        format_count(len(state.applications), "application"),
        format_count(len(state.connections), "connection"),
        f"{format_count(len(state.models), 'model')} ({table})",
    ]
    run = f"weft {__version__}, pid {os.getpid()}"
    return f"{', '.join(counts)}, revision {state.revision}; {run}"


@dataclass
class _Controller:
    config: Config
    store: Store
    drivers: SwitchDrivers
    log: Tell
    ownership: Ownership | None = None  # None: it is alone
    client: EtcdClient | None = None
    table_problem: str = field(default="", init=False)
    fenced: str = field(default="", init=False)  # why it must not program switches any more

    def __post_init__(self) -> None:
        self.watch = TableWatch(self.config.table, self.config.settings.polynomial_degree)
        state = self._restore_state()
        self.stop: Callable[[], object] = lambda: None
        self.metrics = _build_metrics(self.config)
        self.reconciler = self._build_reconciler()
        self.edge = EdgeWatch(state, clock=time.monotonic, log=self.log)
        self.explorer = self._build_explorer()
        self.engine = Engine(
            state,
            self.store,
            clock=time.monotonic,
            time_of_day=time.time,
            set_targets=self._set_targets,
            request_discovery=self.explorer.request_discovery,
            log=self.log,
            observe_commit=self.metrics.commit_s.observe if self.metrics else _ignore,
            observe_state=self._observe_state,
        )
        self.liveness = Liveness(self.engine)
        self.follower, self.link = self._build_follower(), self._build_link()
        self.hold_problem = ""  # why a decision of all groups is not carried out
        self.threads: list[Explorer | Reconciler | Follower | GroupLink] = [
            self.explorer,
            self.reconciler,
        ]
        self.threads += [] if self.follower is None else [self.follower]
        self.threads += [] if self.link is None else [self.link]
        self.reconciler.set_targets(dict(state.target), state.revision)
        self.log(_summarize(state, self.config.table))

    def _restore_state(self) -> State:
        self.watch.changes()
        stored = self.store.load()
        outcome = restore_state(
            stored,
            self.config.settings,
            self.watch.models if self._publishes else _list_offered(stored),
            0.0,
            unreadable=self.watch.problems.keys() if self._publishes else (),
        )
        if outcome.rows:
            self.store.commit(outcome.rows, time.time())
        return outcome.state

    def _build_reconciler(self) -> Reconciler:
        return Reconciler(
            self.drivers,
            clock=time.monotonic,
            log=self.log,
            pace=self.config.pace,
            report_fenced=self._stop_fenced,
            counts_sent=self.metrics is not None,
            observe_programming=self.metrics.programming_s.observe if self.metrics else _ignore,
            may_write=(lambda: True) if self.ownership is None else self.ownership.may_write,
        )

    def _build_explorer(self) -> Explorer:
        return Explorer(
            self.reconciler,
            self.drivers,
            clock=time.monotonic,
            offer=self._offer_fabric,
            log=self.log,
            pace=self.config.pace,
            aliases=self.config.aliases,
            report_fenced=self._stop_fenced,
            edge=self.edge if self.config.guard_marks else None,
            manages=(lambda _: True) if self.config.etcd is None else self.config.etcd.manages,
        )

    @property
    def _publishes(self) -> bool:
        """Whether its table of applications counts."""
        return self.config.etcd is None or self.config.etcd.group == self.config.etcd.publisher

    def _build_follower(self) -> Follower | None:
        etcd = self.config.etcd
        if etcd is None or self.client is None:
            return None
        return Follower(
            self.client,
            partial(_build_keys, etcd),
            [group for group in etcd.groups if group != etcd.group],
            etcd.publisher,
            cursors=lambda: self.engine.state.cursors,
            submit=self._submit_and_wait,
        )

    def _build_link(self) -> GroupLink | None:
        etcd = self.config.etcd
        if etcd is None or self.client is None or not etcd.groups:
            return None
        link = GroupLink(self.client, f"/weft/{etcd.cluster}", etcd.group, tuple(etcd.groups))
        link.carry_out = self._hold
        return link

    def _hold(self, held: Held) -> None:
        """In the thread of the link: carries out what all groups have decided, once."""
        group = self.engine.state.settings.group
        if has_carried_out(self.engine.state, held.number):
            self.hold_problem = ""
            return
        if held.revisions and group not in held.revisions:
            return  # older than this group
        by = Asker(name=held.by, is_operator=True)
        revision = held.revisions.get(group)
        answer = self._submit(HoldRevision(number=held.number, revision=revision, by=by))
        if isinstance(answer, Refusal) and answer.code == "NOT_FOUND":
            problem = f"a rollback of all groups cannot be carried out: {answer}"
            if problem != self.hold_problem:
                self.log(LogLine(problem, "error"))
            self.hold_problem = problem

    def _answer_group(
        self, calls: Calls, loop: asyncio.AbstractEventLoop, question: Question
    ) -> Reply:
        """In the thread of the link."""
        future = asyncio.run_coroutine_threadsafe(calls.answer_group(question), loop)
        try:
            return Reply(data=future.result())
        except Refused as error:
            return Reply(code=error.code, problem=str(error))
        except (CancelledError, RuntimeError):  # its queries have ended
            return Reply(problem="is ending; try again")

    def _stop_fenced(self, problem: str) -> None:
        """From any thread: another controller has the switches."""
        if not self.fenced:
            self.fenced = problem
            self.log(LogLine(f"stops: {problem}", "error"))
            self.stop()

    def _set_targets(
        self, state: State, ports: frozenset[PortName], requested_s: float | None
    ) -> None:
        tables = {name: state.target[name] for name in ports}
        self.reconciler.set_targets(tables, state.revision, requested_s)

    def _observe_state(self, state: State, rows: Sequence[Row]) -> None:
        if self.config.guard_marks and self.edge.follow(state, rows):
            self.explorer.wake()

    def _offer_fabric(self, event: FabricChanged) -> bool:
        """In the explorer's thread: whether the engine has taken the fabric."""
        if not self._submit_and_wait(find_paths(self.engine.state, event)):
            return False
        for name, problem in islice(self.engine.state.unfit.items(), 1):
            count = format_count(len(self.engine.state.unfit), "port")
            self.log(LogLine(f"{count} cannot be managed: {name} {problem}", "warning"))
        return True

    def _submit_and_wait(self, event: Request) -> bool:
        """In a thread beside the engine's: whether the engine has carried it out."""
        answer = self._submit(event)
        return answer is not None and not isinstance(answer, Refusal)

    def _submit(self, event: Request) -> Answer | None:
        """The engine's answer; None: it is busy, or has ended."""
        answers: list[Answer] = []
        done = threading.Event()

        def receive(batch: Sequence[Answer]) -> None:
            answers.extend(batch)
            done.set()

        try:
            self.engine.submit(Ticket([event], receive))
        except Busy:
            return None
        while not done.wait(_ENGINE_S):
            if self.engine.ended:
                return None
        return answers[0]

    # ---- The event loop -----------------------------------------------------------------------

    async def run(self, ready: Callable[[str], None]) -> None:
        loop = asyncio.get_running_loop()
        ending = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, ending.set)
        self.stop = partial(loop.call_soon_threadsafe, ending.set)
        if self.ownership is not None:
            self.ownership.lost = self.stop
            if self.ownership.problem:
                return
        count = 1 + len(self.threads)
        with ThreadPoolExecutor(count, thread_name_prefix="weft-control") as threads:
            running = [loop.run_in_executor(threads, self.engine.run)]
            try:
                async with AsyncExitStack() as stack:
                    bridge = Bridge(self.engine, loop)
                    rates = RateLimits(self.config.limits, time.monotonic)
                    calls = self._open_calls(bridge, rates, stack)
                    self._serve_metrics(stack)
                    ready(await self._listen(calls, rates, stack))
                    notify_service_manager("READY=1")
                    for part in self.threads:
                        running.append(loop.run_in_executor(threads, part.run))
                    await self._wait(ending, bridge, running)
            finally:
                for part in self.threads:
                    part.stop()
                self.engine.stop()
                await asyncio.gather(*running)

    def _open_calls(self, bridge: Bridge, rates: RateLimits, stack: AsyncExitStack) -> Calls:
        access = Access(self.config.roles, self.log)
        fabric, etcd = None, self.config.etcd
        if self.link is not None and etcd is not None:
            fabric = FabricCalls(self.link, etcd.find_group)
        epoch = 0 if self.ownership is None else self.ownership.epoch
        calls = Calls(
            self.engine, self.reconciler, bridge, rates, self._list_problems, access, fabric, epoch
        )
        if self.link is not None:
            loop = asyncio.get_running_loop()
            self.link.answer = partial(self._answer_group, calls, loop)
        stack.callback(calls.close)
        return calls

    def _serve_metrics(self, stack: AsyncExitStack) -> None:
        if self.metrics is None or self.config.metrics is None:
            return
        from weft.control.runtime.metrics import start_server

        self.metrics.watch(self.engine, self.reconciler, self._list_problems)
        server = start_server(self.metrics, self.config.metrics, self.config.tls)
        stack.callback(server.close)
        self.log(f"metrics on {self.config.metrics.host}:{server.server_port}")

    async def _wait(
        self, ending: asyncio.Event, bridge: Bridge, running: Sequence[asyncio.Future[None]]
    ) -> None:
        """Waits until the controller is stopped, or a thread or task ends unexpectedly."""
        watches = [
            asyncio.create_task(self._watch_table(bridge)),
            asyncio.create_task(self.liveness.run()),
        ]
        stop = asyncio.create_task(ending.wait())
        ends: list[asyncio.Future[Any]] = [*running, stop, *watches]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for watch in watches:
            if watch.done():
                watch.result()
        for task in (*watches, stop):
            task.cancel()

    async def _listen(self, calls: Calls, rates: RateLimits, stack: AsyncExitStack) -> str:
        """Starts the servers; the address of TCP, or of the socket if there is no TCP."""
        limits, config = self.config.limits, self.config
        grpc = grpc_server.GrpcServer(calls, limits, rates)
        listen = grpc_server.Listen(host=config.host, port=config.port, tls=config.tls)
        server, port = await grpc_server.start(grpc, listen, limits, self.liveness.add_to)
        stack.callback(grpc.close)
        stack.push_async_callback(partial(server.stop, _GRACE_S))
        stack.push_async_callback(self.liveness.end)
        sockets = local_socket.LocalServer(calls, limits, rates, grpc.tunnel)
        local = await local_socket.start(sockets, config.socket)
        stack.push_async_callback(sockets.close)
        stack.callback(partial(config.socket.path.unlink, missing_ok=True))
        stack.callback(local.close)
        if not config.host:
            return f"unix:{config.socket.path}"
        self.log(f"also on unix:{config.socket.path}")
        return f"{config.host}:{port}"

    async def _watch_table(self, bridge: Bridge) -> None:
        """Submits changes of the table of applications."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TABLE_S)
            if not self._publishes:
                continue
            try:
                changes = await loop.run_in_executor(None, self.watch.changes)
                self.table_problem = ""
            except InputError as error:
                self.table_problem, changes = str(error), []
            for change in changes:
                await self._submit_change(bridge, change)

    async def _submit_change(self, bridge: Bridge, change: ModelChanged) -> None:
        try:
            (answer,) = await bridge.ask([change])
            raise_refusal(answer)
        except Refused as error:
            self.watch.forget(change.name)
            problem = f"model of {change.name} not taken, trying again: {error}"
            self.log(LogLine(problem, "warning"))

    def _list_problems(self) -> list[str]:
        following = () if self.follower is None else self.follower.problems.values()
        table = (self.table_problem, self.hold_problem, *self.watch.problems.values())
        contested = self.reconciler.describe_contested()
        return [*table, contested, *self.edge.list_problems(), *following]
