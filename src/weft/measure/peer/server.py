"""`weft serve`: accepts clients, authenticates them, forks a process for each.

This process has one thread and loads no fabric library: a driver that crashes a session does not
stop the server. After a killed session it removes shared memory that libfabric left behind. Clients
get a process, or more than a few bytes, only after authentication. Entry point: `Server`. Units:
seconds.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import selectors
import signal
import socket
import stat
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from weft.errors import InputError
from weft.host.machine.processes import end_with_parent
from weft.measure.peer import negotiation
from weft.measure.peer.negotiation import Limits
from weft.measure.peer.server_session import STUCK_STATUS, Session
from weft.wire import (
    Connection,
    Keys,
    ProtocolError,
    ServerHandshake,
    encode_refusal,
    printable,
    set_socket_options,
)

GREETING_S = 5.0
LINES_PER_S = 20
MAX_PENDING = 64
_BACKLOG = 128
_ACCEPT_PAUSE_S = 0.02
_CLEAN_AGAIN_S = 1.0
_END_S = 4.0
_SUMMARY_BYTES = 2000
_CHUNK = 4096
Address = tuple[str, int]


@dataclass(slots=True)
class _Pending:
    """A connection that has not proved itself."""

    sock: socket.socket
    peer: str
    handshake: ServerHandshake
    deadline: float


@dataclass(slots=True)
class _Running:
    """A session's process; it writes how it ended into the pipe."""

    pid: int
    peer: str
    summary: int
    started: float = field(default_factory=time.monotonic)


class LogThrottle:
    """Writes at most LINES_PER_S lines a second: a flood is counted, not copied."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._second = 0
        self._lines = 0
        self._dropped = 0

    def __call__(self, text: str) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second, self._lines = second, 0
            self.flush()
        self._lines += 1
        if self._lines > LINES_PER_S:
            self._dropped += 1
        else:
            self._write(text)

    def flush(self) -> None:
        """Writes how many lines were left out."""
        if self._dropped:
            self._write(f"{self._dropped} more lines left out")
            self._dropped = 0


class Server:
    def __init__(
        self,
        addresses: Sequence[Address],
        token: bytes | None,
        limits: Limits,
        log: Callable[[str], None],
    ) -> None:
        self._token = token
        self._limits = limits
        self._log = log
        self._note = LogThrottle(log)  # of unauthenticated clients, which may be many
        self._clean_at = math.inf
        self._listeners = _listen(addresses)
        self._selector = selectors.DefaultSelector()
        self._pending: dict[int, _Pending] = {}
        self._running: dict[int, _Running] = {}
        self._ending = False
        self._wake_read, self._wake_write = socket.socketpair()

    @property
    def addresses(self) -> list[Address]:
        return [listener.getsockname()[:2] for listener in self._listeners]

    # ---- The loop -----------------------------------------------------------------------------

    def run(self, until_closed: int | None = None) -> None:
        """Serves until SIGINT or SIGTERM, or until the other end of this pipe closes."""
        self._catch_signals()
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ, self._on_client)
        self._selector.register(self._wake_read, selectors.EVENT_READ, self._on_signal)
        if until_closed is not None:
            self._selector.register(until_closed, selectors.EVENT_READ, self._on_parent)
        try:
            while not self._ending:
                self._step()
        finally:
            self._end()

    def _step(self) -> None:
        for key, _ in self._selector.select(self._timeout_s()):
            # An earlier event of this round may have closed it, and given its number to another.
            current = self._selector.get_map().get(key.fd)
            if current is not None and current.fileobj is key.fileobj:
                key.data(key.fileobj)
        now = time.monotonic()
        for pending in [p for p in self._pending.values() if p.deadline <= now]:
            self._drop(pending, f"said nothing for {GREETING_S:g} s")
        if now >= self._clean_at:
            self._clean_at = math.inf
            remove_stale_shared_memory()

    def _timeout_s(self) -> float | None:
        """Until something is due; None: for ever."""
        due = min([self._clean_at, *(pending.deadline for pending in self._pending.values())])
        return None if due == math.inf else max(0.0, due - time.monotonic())

    def _catch_signals(self) -> None:
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def _on_signal(self, _: object) -> None:
        with contextlib.suppress(BlockingIOError):
            received = self._wake_read.recv(_CHUNK)
            self._ending |= signal.SIGINT in received or signal.SIGTERM in received
        self._reap()

    def _on_parent(self, descriptor: int) -> None:
        self._ending |= not os.read(descriptor, _CHUNK)

    # ---- Clients that have not proved themselves ----------------------------------------------

    def _on_client(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except OSError as error:  # it left again, or descriptors ran out: not a reason to end
            self._note(f"accept: {error.strerror}")
            time.sleep(_ACCEPT_PAUSE_S)
            return
        sock.setblocking(False)
        if len(self._pending) >= MAX_PENDING:
            # Real clients are done in milliseconds: the oldest is the least likely to be one.
            self._drop(next(iter(self._pending.values())), "too many wait")
        handshake = ServerHandshake(self._token, self._limits.to_wire())
        peer = f"{address[0]}:{address[1]}"
        deadline = time.monotonic() + GREETING_S
        self._pending[sock.fileno()] = _Pending(sock, peer, handshake, deadline)
        self._selector.register(sock, selectors.EVENT_READ, self._on_greeting)
        with contextlib.suppress(OSError):  # it has left again: reading will show that
            set_socket_options(sock)

    def _on_greeting(self, sock: socket.socket) -> None:
        pending = self._pending[sock.fileno()]
        try:
            data = sock.recv(_CHUNK)
            answer = pending.handshake.feed(data)
            if pending.handshake.keys and len(self._running) >= (self._limits.sessions or 1 << 30):
                raise InputError(
                    "server",
                    f"has {len(self._running)} sessions, its limit",
                    "try again later, or its owner raises --max-sessions",
                )
            if not data or sock.send(answer) != len(answer):
                self._drop(pending, "left" if not data else "takes no data")
            elif pending.handshake.keys:
                self._start_session(pending, pending.handshake.keys)
        except (InputError, ProtocolError) as error:
            self._refuse(pending, error)
        except OSError as error:
            self._drop(pending, error.strerror or "broke")

    def _refuse(self, pending: _Pending, error: InputError | ProtocolError) -> None:
        with contextlib.suppress(OSError):
            pending.sock.send(encode_refusal(error))
        self._drop(pending, f"refused: {error}")

    def _drop(self, pending: _Pending, why: str) -> None:
        self._forget(pending)
        pending.sock.close()
        self._note(f"{pending.peer}: {why}")

    def _forget(self, pending: _Pending) -> None:
        self._selector.unregister(pending.sock)
        del self._pending[pending.sock.fileno()]

    # ---- Sessions -----------------------------------------------------------------------------

    def _start_session(self, pending: _Pending, keys: Keys) -> None:
        read_end, write_end = os.pipe()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = os.fork()
        except OSError:
            os.close(read_end)
            os.close(write_end)
            raise
        if pid == 0:
            os.close(read_end)
            self._in_child(pending.sock, keys, write_end, parent)
        os.close(write_end)
        self._forget(pending)
        pending.sock.close()
        self._running[pid] = _Running(pid, pending.peer, read_end)

    def _in_child(self, sock: socket.socket, keys: Keys, summary: int, parent: int) -> NoReturn:
        status = 1
        try:
            _reset_signals(parent)
            self._close_all_but(sock)
            connection: Connection[negotiation.Request] = Connection(
                sock, keys, negotiation.REQUESTS, server=True, limit_bytes=negotiation.FRAME_BYTES
            )
            session = Session(connection, self._limits)
            outcome = session.run()
            tests = f"{session.tests} test{'s' if session.tests != 1 else ''}"
            text = f"{tests}{session.roles and f' ({session.roles})'}, {outcome}"
            with contextlib.suppress(BrokenPipeError):  # the server is gone already
                os.write(summary, text.encode()[:_SUMMARY_BYTES])
            status = 0
        finally:
            # Nothing of the parent's may run in here, whatever happened.
            if sys.exc_info()[0] is not None:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(status)

    def _close_all_but(self, client: socket.socket) -> None:
        self._selector.close()
        pending = [p.sock for p in self._pending.values() if p.sock is not client]
        for sock in (*self._listeners, *pending, self._wake_read, self._wake_write):
            sock.close()
        for running in self._running.values():
            os.close(running.summary)

    def _reap(self) -> None:
        for running in list(self._running.values()):
            pid, status = os.waitpid(running.pid, os.WNOHANG)
            if pid == 0:
                continue
            del self._running[pid]
            summary = printable(os.read(running.summary, _SUMMARY_BYTES).decode(errors="replace"))
            os.close(running.summary)
            seconds = time.monotonic() - running.started
            self._log(f"{running.peer}: {summary or _explain_death(status)}, {seconds:.1f} s")
            # Shared memory of what was killed; a killed client may be a moment behind its socket.
            remove_stale_shared_memory()
            self._clean_at = time.monotonic() + _CLEAN_AGAIN_S

    # ---- The end ------------------------------------------------------------------------------

    def _end(self) -> None:
        """Asks the sessions to end (they inform their clients), then kills those that do not."""
        for sock in (*self._listeners, *(p.sock for p in self._pending.values())):
            sock.close()
        for pid in self._running:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_S
        while self._running and time.monotonic() < deadline:
            select.select([self._wake_read], [], [], deadline - time.monotonic())
            self._on_signal(None)
        for pid in self._running:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._note.flush()
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()
        remove_stale_shared_memory()


def _reset_signals(parent: int) -> None:
    """The session ends when the server does or asks it to, not by Ctrl-C in the terminal."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent(parent, signal.SIGTERM)


def _explain_death(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code in (STUCK_STATUS, -signal.SIGALRM):
        return "a loop or driver hung"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"failed with status {code}"


def _listen(addresses: Sequence[Address]) -> list[socket.socket]:
    """A socket for each address; port 0 takes a free port, the same for all."""
    listeners: list[socket.socket] = []
    try:
        for host, port in addresses:
            first_port = listeners[0].getsockname()[1] if listeners else port
            listeners.append(_bind(host, port or first_port))
    except InputError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        raise InputError(where, f"{error.strerror}", "give another --listen ADDR:PORT") from error
    return listener


SHARED_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"(?P<pid>[1-9]\d*):(?P<uid>\d+):\d+")


def remove_stale_shared_memory(
    pid: int | None = None, directory: Path = SHARED_MEMORY
) -> list[Path]:
    """Remove shared memory of this process, or of all, if the process is dead; returns the files.

    What another user owns stays, unless we may remove it. Processes of other containers cannot be
    seen: where containers share /dev/shm, name the process.
    """
    removed = []
    for path in find_stale_shared_memory(pid, directory):
        try:
            path.unlink()
        except (FileNotFoundError, PermissionError):
            continue
        removed.append(path)
    return removed


def find_stale_shared_memory(pid: int | None = None, directory: Path = SHARED_MEMORY) -> list[Path]:
    """Files of libfabric's shm provider whose process has ended."""
    try:
        files = sorted(directory.iterdir())
    except OSError:
        return []
    return [path for path in files if _is_stale(path, pid)]


def _is_stale(path: Path, pid: int | None) -> bool:
    name = _NAME.fullmatch(path.name)
    if name is None or (pid is not None and int(name["pid"]) != pid):
        return False
    try:
        status = path.lstat()
    except OSError:
        return False
    is_endpoint = stat.S_ISREG(status.st_mode) and status.st_uid == int(name["uid"])
    return is_endpoint and not _is_alive(int(name["pid"]))


def _is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Path(f"/proc/{pid}").exists()
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
