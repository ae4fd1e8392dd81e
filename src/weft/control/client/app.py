"""A registered application and its connections, whose packets carry its level.

The program runs on, whatever the controller does and whatever it is told to register as. Without a
controller, connections open as usual, with one warning; when it comes (back), open connections are
marked and reported. Names that no controller takes leave the application, or the connection, as
best effort. Reports go out in the background. A connection counts until it is closed or its socket
is garbage. A forked process keeps the marks but reports nothing: the registration is its parent's.
Entry points: `register`, `App`, `Connection`. Units: seconds.
"""

from __future__ import annotations

import atexit
import errno
import os
import socket
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from numbers import Real
from typing import Self
from weakref import WeakSet, finalize

from weft._core import Endpoint, EndpointConfig
from weft.control.client.client_session import OpenConnection, Registration
from weft.control.client.grpc_link import Link, Tls, check_address, choose_controller
from weft.control.client.job_identity import find_job
from weft.control.client.sockets import Kind, check_host, find_hosts, open_socket, set_mark, shorten
from weft.control.client.worker import Worker
from weft.errors import InputError
from weft.units import LARGEST, parse_size


class Connection:
    """Close it, or use it as a context; its socket or endpoint is closed with it.

    Both are None where the program only declared two hosts. `number`
    is None where there is nothing to report: packets that stay on the host, an unconnected socket,
    a forked process.
    """

    def __init__(
        self,
        app: App,
        transport: socket.socket | Endpoint | None,
        number: int | None,
        problem: str = "",
    ) -> None:
        self.app, self._number, self._problem = app, number, problem
        self.socket = transport if isinstance(transport, socket.socket) else None
        self.endpoint = None if isinstance(transport, socket.socket) else transport

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """For `select` and the like."""
        return -1 if self.socket is None else self.socket.fileno()

    @property
    def is_counted(self) -> bool:
        """Whether the controller counts this connection."""
        connection = self.app.find_open(self._number)
        return connection is not None and connection.is_counted

    @property
    def id(self) -> str | None:
        """The controller's name for it."""
        connection = self.app.find_open(self._number)
        return None if connection is None or connection.key is None else str(connection.key)

    @property
    def problem(self) -> str:
        """Why the controller refused it, or would have; empty if it did not."""
        connection = self.app.find_open(self._number)
        return self._problem if connection is None else connection.problem

    def wait_counted(self, timeout_s: float) -> bool:
        """Waits until the controller has counted or refused it, or is lost; whether it counts."""
        timeout_s = self.app.limit_wait("timeout_s", timeout_s)
        if self._number is not None:
            self.app.await_counted(self._number, timeout_s)
        return self.is_counted

    def close(self) -> None:
        """Closes the socket or endpoint; reports it in the background."""
        for transport in (self.socket, self.endpoint):
            if transport is not None:
                transport.close()
        if self._number is not None:
            self.app.forget(self._number)
        self._number = None


TTL_S = 10.0
WAIT_S, CLOSE_S, CONNECT_S = 1.0, 1.0, 10.0
_LONGEST_WAIT_S = 86400.0
_MAX_SERVICE_LEVEL = 15
_FORKED = "the process was forked; register in the new process"
_UNMARKED = "a connection's packets cannot be marked here"


class UnmanagedWarning(UserWarning):
    """An application or one of its connections runs as best effort."""


class App:
    """A registered application. Close it, or use it as a context; sockets stay open."""

    def __init__(self, name: str, controller: str) -> None:
        self.name, self.controller = name, controller
        self._level = 0
        self._is_closed = self._has_warned = False
        self._sockets: WeakSet[socket.socket] = WeakSet()  # marked with the level
        self._worker: Worker | None = None
        self._workerless = _FORKED  # why there is no worker, where there is none

    def stay_unmanaged(self, problem: str) -> None:
        """Registers nowhere: no controller takes what it would say."""
        self._workerless = problem
        self._warn(problem)

    def start(
        self,
        tls: tuple[bytes, bytes, bytes] | None,
        ttl_s: float,
        job: str,
        size_bytes: int,
        wait_s: float,
    ) -> None:
        """Registers in the background; waits up to `wait_s` for the answer."""
        self._worker = Worker(
            self.name,
            ttl_s,
            job,
            size_bytes,
            partial(Link, self.controller, tls),
            on_registration=self._apply_level,
            on_failure=self._report_failure,
        )
        self._worker.start()
        problem = self._worker.wait_settled(wait_s)
        if problem:
            self._warn(f"controller {self.controller}: {problem}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- What it sends with -------------------------------------------------------------------

    @property
    def level(self) -> int:
        """The level of its packets; 0 until a controller assigns one."""
        return self._level

    @property
    def dscp(self) -> int:
        """For sockets."""
        return self._level

    @property
    def service_level(self) -> int:
        """For queue pairs: `ah_attr.sl`; 0 for a level that only Ethernet has."""
        return self._level if self._level <= _MAX_SERVICE_LEVEL else 0

    @property
    def traffic_class(self) -> int:
        """The whole byte: a GRH's traffic class, a socket's type of service."""
        return self._level << 2

    def assign(self, config: EndpointConfig) -> None:
        """An endpoint of weft's transports that is opened with this sends with the level.

        Where its provider has no such thing it is opened all the same: see `Endpoint.is_marked`.
        """
        try:
            config.service_level, config.traffic_class = self.service_level, self.traffic_class
            config.class_is_optional = True
        except (AttributeError, TypeError):
            self._warn(f"{shorten(config)} is no EndpointConfig; assign to one")

    # ---- State ------------------------------------------------------------------------

    @property
    def id(self) -> str | None:
        """The id of the registration; None if there is none."""
        registration = None if self._worker is None else self._worker.session.registration
        return None if registration is None or self._is_closed else registration.id

    @property
    def is_managed(self) -> bool:
        """Whether a controller has registered it, as far as is known."""
        return not self.problem

    @property
    def problem(self) -> str:
        """Why no controller has registered it; empty if one has."""
        if self._is_closed:
            return "closed"
        return self._workerless if self._worker is None else self._worker.problem

    # ---- Connections --------------------------------------------------------------------------

    def connect(
        self,
        host: str,
        port: int,
        *,
        kind: Kind = "tcp",
        timeout_s: float | None = None,
        local: str | None = None,
        wait: bool = False,
    ) -> Connection:
        """A marked socket that is connected; `local` is an address of this host to come from.

        Raises OSError, also for arguments that no socket takes. With `wait` the controller has
        counted or refused it when this returns; else it is reported in the background.
        """
        dscp = self.dscp
        transport, is_marked = open_socket(
            host, port, kind, dscp=dscp, timeout_s=timeout_s, local=local
        )
        return self._add_connection(
            transport, find_hosts(transport), dscp if is_marked else None, wait
        )

    def mark(self, sock: socket.socket, *, wait: bool = False) -> Connection:
        """Marks a socket of the program and, if it is connected, reports it."""
        dscp = self.dscp
        try:
            is_marked, ends = not dscp or set_mark(sock, dscp), find_hosts(sock)
        except (AttributeError, TypeError):
            problem = f"{shorten(sock)} is no socket; mark a socket"
            self._warn(problem)
            return Connection(self, None, None, problem)
        return self._add_connection(sock, ends, dscp if is_marked else None, wait)

    def accept(self, listener: socket.socket, *, wait: bool = False) -> Connection:
        """The next connection of a listening socket: what is sent on it is the application's.

        Raises OSError.
        """
        try:
            if self.dscp:
                set_mark(listener, self.dscp)  # the answer to a first packet is the listener's
            accepted = listener.accept()[0]
        except (AttributeError, TypeError) as error:
            problem = f"{shorten(listener)} is no socket; accept from one that listens"
            raise OSError(errno.ENOTSOCK, problem) from error
        return self.mark(accepted, wait=wait)

    def declare(self, source: str, destination: str, *, wait: bool = False) -> Connection:
        """Traffic between two hosts over something that the program opens itself.

        Hosts by name in the fabric, alias, GUID or LID; from source to destination.
        """
        return self._add_connection(None, (source, destination), 0, wait)

    def connect_endpoint(
        self,
        config: EndpointConfig,
        exchange: Callable[[bytes], bytes],
        source: str,
        destination: str,
        *,
        timeout_s: float = CONNECT_S,
        wait: bool = False,
    ) -> Connection:
        """A queue pair, a libfabric endpoint, any transport of weft's, that sends with the level.

        `exchange` is given our address and returns the peer's; hosts are as of `declare`.
        InputError where it cannot be opened or connected.
        """
        timeout_ms = round(1000 * _check_seconds("timeout_s", timeout_s))
        if not isinstance(config, EndpointConfig) or not callable(exchange):
            problem = f"{shorten(config)} and {shorten(exchange)} open no endpoint"
            raise InputError("connect_endpoint", problem, "give an EndpointConfig and a function")
        self.assign(config)
        transport = Endpoint.open(config)
        try:
            _connect_endpoint(transport, exchange(transport.address()), timeout_ms)
            dscp = config.traffic_class >> 2 if transport.is_marked else None
            return self._add_connection(transport, (source, destination), dscp, wait)
        except BaseException:
            transport.close()
            raise

    def _add_connection(
        self,
        transport: socket.socket | Endpoint | None,
        ends: tuple[str, str] | None,
        dscp: int | None,
        wait: bool,
    ) -> Connection:
        """Reports it in the background if it has two hosts and a worker exists.

        `dscp` is the mark of its packets; None if they cannot be marked.
        """
        worker, number = self._worker, None
        problem = _find_host_problem(ends)
        if problem:
            ends = None
            self._warn(problem)
        if dscp is None:
            self._warn(_UNMARKED)
        if worker is None and ends is not None:
            self._warn(self._workerless)
        if worker is None or self._is_closed:
            return Connection(self, transport, None, problem)
        with worker.lock:
            worker.collect()
            if ends is not None:
                number = worker.session.add(*ends)
                worker.lock.notify_all()
            if isinstance(transport, socket.socket):
                self._sockets.add(transport)
        if isinstance(transport, socket.socket):
            self._keep(transport, number, dscp)
        if wait and number is not None:
            self.await_counted(number, WAIT_S)
        return Connection(self, transport, number, problem)

    def _keep(self, sock: socket.socket, number: int | None, dscp: int | None) -> None:
        """Marks it with the current level, and reports its end when it is garbage."""
        assert self._worker is not None, "not forked"
        if number is not None:
            finalize(sock, self._worker.collected.append, number).atexit = False
        if dscp is not None and self.dscp != dscp:  # a level has come meanwhile
            set_mark(sock, self.dscp)

    def find_open(self, number: int | None) -> OpenConnection | None:
        """The session's entry of an open connection."""
        if self._worker is None or number is None:
            return None
        return self._worker.session.connections.get(number)

    def await_counted(self, number: int, timeout_s: float) -> None:
        """Waits until it is counted, refused or closed; not while there is no controller."""
        worker, until = self._worker, time.monotonic() + timeout_s
        if worker is None:
            return
        with worker.lock:
            while (connection := self.find_open(number)) and not (
                connection.is_counted or connection.problem
            ):
                time_left_s = until - time.monotonic()
                if worker.problem or time_left_s <= 0:
                    return
                worker.lock.wait(time_left_s)

    def forget(self, number: int) -> None:
        """A connection was closed."""
        if self._worker is None:
            return
        with self._worker.lock:
            self._worker.collected.append(number)
            self._worker.collect()
            self._worker.lock.notify_all()

    # ---- From the worker's thread -------------------------------------------------------------

    def _apply_level(self, registration: Registration | None) -> None:
        """Marks open sockets with the new level, or with 0 if the controller refused us."""
        worker = self._worker
        if worker is None or self._is_closed:
            return
        self._level = 0 if registration is None else registration.level
        with worker.lock:
            sockets = list(self._sockets)
        for sock in sockets:
            set_mark(sock, self.dscp)  # some are closed by now

    def _report_failure(self, problem: str) -> None:
        # Where warnings are errors, no caller could handle it here.
        with suppress(UnmanagedWarning):
            self._warn(f"controller {self.controller}: {problem}")

    def _warn(self, problem: str) -> None:
        """Warns once."""
        if not self._has_warned:
            self._has_warned = True
            name = self.name if isinstance(self.name, str) else shorten(self.name)
            text = f"application {name}: best effort: {problem}"
            warnings.warn(text, UnmanagedWarning, stacklevel=4)

    # ---- The end ------------------------------------------------------------------------------

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Deregisters; waits up to `wait_s`, and not for a controller that is lost."""
        self._is_closed, self._level = True, 0
        wait_s = self.limit_wait("wait_s", wait_s)
        if self._worker is not None:
            self._worker.end(wait_s)

    def limit_wait(self, where: str, seconds: float) -> float:
        """A time to wait; what is no time is not awaited, with a warning."""
        try:
            return _check_seconds(where, seconds)
        except InputError as error:
            self._warn(str(error))
            return 0.0

    def detach_from_parent(self) -> None:
        """In the new process: the thread and the lease are the parent's."""
        _PARENT_WORKERS.append(self._worker)
        self._worker, self._has_warned = None, False
        self._sockets = WeakSet()


def register(
    name: str,
    *,
    controller: str | None = None,
    tls: Tls | None = None,
    ttl_s: float = TTL_S,
    wait_s: float = WAIT_S,
    job: str | None = None,
    size: str | int | None = None,
) -> App:
    """Registers an application of the table of `weft apps`.

    Waits up to `wait_s` for its level and goes on as best effort, with one warning, if there is
    none, or if these arguments cannot be a registration (`check_registration` raises instead).
    `controller` is unix:PATH or HOST:PORT, by default that of WEFT_CONTROLLER, the user's own or
    the machine's. The lease is renewed every third of `ttl_s`; that long after the process has
    died, its share is free. Processes that register under one `job` count as one application; by
    default it is that of WEFT_JOB, Slurm, MPI or Spark. `size`: what the job is going to move over
    its busiest link, in bytes or as "40G"; None: that of its profile.
    """
    address = choose_controller(controller)
    app = App(name, address)
    _ALL.add(app)
    try:
        try:
            contents = check_registration(name, address, tls, ttl_s)
            size_bytes, job = parse_job_size(size), _check_job(job)
            ttl_s, wait_s = float(ttl_s), _check_seconds("wait_s", wait_s)
        except InputError as error:
            app.stay_unmanaged(str(error))
        else:
            app.start(contents, ttl_s, job, size_bytes, wait_s)
    except UnmanagedWarning:  # where warnings are errors
        app.close()
        raise
    return app


def check_registration(
    name: str, controller: str, tls: Tls | None, ttl_s: float
) -> tuple[bytes, bytes, bytes] | None:
    """Raises an InputError for what no controller takes; returns the contents of TLS's files."""
    if not isinstance(name, str) or not name or not name.isprintable():
        problem = f"{shorten(name)} is no name"
        raise InputError("application", problem, "give one of `weft apps`")
    if not _is_number(ttl_s) or not 0.1 <= ttl_s <= 86400:
        shown = f"{ttl_s:g}" if isinstance(ttl_s, float) else shorten(ttl_s)
        raise InputError(f"ttl_s {shown}", "is no lease", "give 0.1 to 86400 seconds")
    if not isinstance(controller, str):
        where = f"controller {shorten(controller)}"
        raise InputError(where, "is no address", "give HOST:PORT or unix:PATH")
    check_address(controller)
    if tls is not None and not isinstance(tls, Tls):
        raise InputError(f"tls {shorten(tls)}", "is no Tls", "give Tls(authority=…, …)")
    return None if tls is None else tls.contents()


def parse_job_size(size: str | int | None, where: str = "size") -> int:
    """Bytes; 0: not stated."""
    if size is None:
        return 0
    try:
        size_bytes = parse_size(size, where, bare=True)
    except (OverflowError, ValueError):  # not finite, as a float
        size_bytes = -1
    if not 1 <= size_bytes <= LARGEST["size"]:
        shown, remedy = shorten(size).strip("'"), "give 1 byte to 1 EiB, or leave it out"
        raise InputError(where, f"{shown} is no size of a job", remedy)
    return size_bytes


def _check_job(job: str | None) -> str:
    if job is None:
        return find_job()
    if not isinstance(job, str) or not (not job or job.isprintable()):
        raise InputError(f"job {shorten(job)}", "is no name", "give printable characters")
    return job


def _check_seconds(where: str, seconds: float) -> float:
    """A time to wait, as long as threads can."""
    if not _is_number(seconds) or seconds != seconds:  # not a number is not even itself
        raise InputError(f"{where} {shorten(seconds)}", "is no time", "give seconds")
    return float(min(max(seconds, 0.0), _LONGEST_WAIT_S))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _connect_endpoint(transport: Endpoint, address: bytes, timeout_ms: int) -> None:
    try:
        transport.connect(address, timeout_ms)
    except (TypeError, RuntimeError) as error:  # no bytes, or not those of an address
        remedy = "let exchange return the peer's bytes"
        raise InputError("connect_endpoint", f"{shorten(address)} is no address", remedy) from error


def _find_host_problem(ends: tuple[str, str] | None) -> str:
    """Why no controller takes one of these hosts."""
    try:
        for host in ends or ():
            check_host(host)
    except InputError as error:
        return str(error)
    return ""


_ALL: WeakSet[App] = WeakSet()
# A forked process must not destroy the gRPC objects of its parent.
_PARENT_WORKERS: list[Worker | None] = []


def _after_fork() -> None:
    for app in list(_ALL):
        app.detach_from_parent()


def _at_exit() -> None:
    apps, until = list(_ALL), time.monotonic() + CLOSE_S
    for app in apps:
        app.close(wait_s=0.0)
    for app in apps:
        app.close(wait_s=max(0.0, until - time.monotonic()))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
