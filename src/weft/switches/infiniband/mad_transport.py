"""Sends subnet management packets and receives answers, many in flight at once.

`Umad` is a port of an adapter, opened through libibumad on first use; the process must be allowed
to open /dev/infiniband/umad*. `WindowedSmps` keeps a window of requests in flight, matches answers
by transaction, and retries. It gives up an address from which nothing has come since a request was
first sent: a dead switch costs one timeout, not one for each port, and one lost answer costs no
other request. A retried Set writes the same bytes again. If the adapter fails, requests without an
answer are refused and nothing is raised. Entry points: `Umad`, `WindowedSmps`, `read_m_key`. Units:
seconds.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple, Protocol

from weft.errors import InputError
from weft.switches.infiniband.mad import (
    ADMINISTRATION,
    DIRECTED,
    LID_ROUTED,
    MAD_BYTES,
    NO_LID,
    PERFORMANCE,
    Address,
    Request,
    describe_address,
    describe_status,
    is_busy,
    pack_request,
    unpack_answer,
)

LIBRARY = "libibumad.so.3"
WINDOW, TRIES, TIMEOUT_S = 8, 4, 0.2
_MAX_TURN_S = 0.002
_TRANSACTIONS = 0xFFFFFFFF
_STDERR = 2
_GENERAL_KEY = 0x80010000  # Q_Key of queue pair 1, which takes all but subnet management
_M_KEY = re.compile(r"0x[0-9a-fA-F]{1,16}")


class Arrival(NamedTuple):
    """A received datagram; an undelivered one is our own request, returned unanswered."""

    mad: bytes
    is_undelivered: bool


class Device(Protocol):
    """Sends and receives datagrams."""

    def send(self, mad: bytes, to: Address, timeout_s: float) -> None: ...

    def receive(self, timeout_s: float) -> Arrival | None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request has no answer; `is_silence`: it may have been carried out."""

    problem: str
    is_silence: bool = False
    status: int = 0  # of an answer that refuses


class SmpClient(Protocol):
    """Sends requests and returns their answers; `tries` overrides the usual number."""

    def ask(
        self, requests: Sequence[Request], tries: int | None = None
    ) -> list[bytes | Refusal]: ...

    def close(self) -> None: ...


# ---- The adapter --------------------------------------------------------------------------------


class Umad:
    """A port of an adapter by libibumad: the named one, or the first active one."""

    def __init__(self, adapter: str | None = None, port: int = 0, library: str = LIBRARY) -> None:
        self._library = _load_library(library)
        with _hold_errors():
            self._port = self._open_port(adapter, port)
        versions = {LID_ROUTED: 1, DIRECTED: 1, PERFORMANCE: 1, ADMINISTRATION: 2}
        self._agents = {kind: self._register_class(kind, n) for kind, n in versions.items()}
        self._head = int(self._library.umad_size())
        self._out = ctypes.create_string_buffer(self._head + MAD_BYTES)
        self._out_mad = ctypes.addressof(self._out) + self._head
        self._in = ctypes.create_string_buffer(self._head + MAD_BYTES)
        self._in_mad = ctypes.addressof(self._in) + self._head
        self._length = ctypes.c_int()

    def _open_port(self, adapter: str | None, port: int) -> int:
        self._library.umad_init()
        opened = int(self._library.umad_open_port(adapter.encode() if adapter else None, port))
        if opened < 0:
            which = f"{adapter or 'any adapter'}{f' port {port}' if port else ''}"
            raise _build_unavailable(
                f"{which} cannot be opened ({os.strerror(-opened)})",
                "see `ibstat`; /dev/infiniband/umad* is root's",
            )
        return opened

    def _register_class(self, kind: int, version: int) -> int:
        agent = int(self._library.umad_register(self._port, kind, version, 0, None))
        if agent < 0:
            self._library.umad_close_port(self._port)
            raise _build_unavailable(f"class 0x{kind:02x} is refused ({os.strerror(-agent)})", "")
        return agent

    def send(self, mad: bytes, to: Address, timeout_s: float) -> None:
        kind = mad[1]
        agent = self._agents[kind]
        ctypes.memmove(self._out_mad, mad, MAD_BYTES)
        is_general = kind in (PERFORMANCE, ADMINISTRATION)
        pair, key = (1, _GENERAL_KEY) if is_general else (0, 0)
        self._library.umad_set_addr(self._out, NO_LID if kind == DIRECTED else to, pair, 0, key)
        milliseconds = max(1, round(1000 * timeout_s))
        # No retries here: `WindowedSmps` retries.
        sent = self._library.umad_send(self._port, agent, self._out, MAD_BYTES, milliseconds, 0)
        if sent < 0:
            reason = os.strerror(ctypes.get_errno() or -sent)
            raise InputError("infiniband", f"a request cannot be sent ({reason})", "see `ibstat`")

    def receive(self, timeout_s: float) -> Arrival | None:
        self._length.value = MAD_BYTES
        milliseconds = max(1, round(1000 * timeout_s))
        got = self._library.umad_recv(
            self._port, self._in, ctypes.byref(self._length), milliseconds
        )
        if got < 0:
            _check_timeout(-got)
            return None
        undelivered = self._library.umad_status(self._in) != 0
        return Arrival(ctypes.string_at(self._in_mad, MAD_BYTES), undelivered)

    def close(self) -> None:
        for agent in self._agents.values():
            self._library.umad_unregister(self._port, agent)
        self._library.umad_close_port(self._port)


@contextmanager
def _hold_errors() -> Iterator[None]:
    """Holds back what a library prints; an error of ours replaces it."""
    with TemporaryFile() as held:
        stderr = os.dup(_STDERR)
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(stderr, _STDERR)
            os.close(stderr)
        held.seek(0)
        os.write(_STDERR, held.read())


def _load_library(name: str) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(name, use_errno=True)
    except OSError as error:
        raise _build_unavailable(f"there is no {name} ({error})", "install libibumad") from error
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.umad_open_port.argtypes = [ctypes.c_char_p, number]
    library.umad_register.argtypes = [number, number, number, ctypes.c_uint8, pointer]
    library.umad_unregister.argtypes = [number, number]
    library.umad_close_port.argtypes = [number]
    library.umad_size.restype = ctypes.c_size_t
    library.umad_set_addr.argtypes = [pointer, number, number, number, number]
    library.umad_send.argtypes = [number, number, pointer, number, number, number]
    library.umad_recv.argtypes = [number, pointer, ctypes.POINTER(number), number]
    library.umad_status.argtypes = [pointer]
    return library


def _build_unavailable(because: str, remedy: str) -> InputError:
    return InputError("infiniband", f"not available, because {because}", remedy)


def _check_timeout(number: int) -> None:
    # A wait may end early with nothing: the caller waits or asks again.
    if number not in (errno.ETIMEDOUT, errno.EAGAIN, errno.EIO, errno.EINTR):
        raise InputError(
            "infiniband", f"nothing can be received ({os.strerror(number)})", "see `ibstat`"
        )


# ---- Many requests ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pending:
    """A request in flight: its index in the batch, its tries, and when it was first sent."""

    index: int
    tries: int
    first_s: float
    until_s: float = 0.0
    is_busy: bool = False


@dataclass(slots=True)
class _Batch:
    """Requests with their answers so far; `ready` are to be sent, `in_flight` are by transaction.

    `heard_s`: when an address last answered; `given_up`: why an address is not asked any more.
    """

    requests: Sequence[Request]
    tries: int
    answers: list[bytes | Refusal | None]
    ready: deque[_Pending]
    in_flight: dict[int, _Pending] = field(default_factory=dict)
    heard_s: dict[Address, float] = field(default_factory=dict)
    given_up: dict[Address, Refusal] = field(default_factory=dict)


class _FairLock:
    """A lock for two threads that take turns: a thread that waits goes next."""

    def __init__(self) -> None:
        self._door, self._inside = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._door:
            self._inside.acquire()

    def __exit__(self, *_: object) -> None:
        self._inside.release()


class WindowedSmps:
    """Requests to many ports: `window` in flight, each tried `tries` times.

    Two threads may ask at once. They take turns at the adapter, each for `_MAX_TURN_S` at most, and
    receive each other's answers too: a silent address delays only the thread that asks it.
    """

    def __init__(
        self,
        device: Device,
        *,
        m_key: int = 0,
        window: int = WINDOW,
        tries: int = TRIES,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._device = device
        self._clock = clock
        self._m_key = m_key
        self._window = window
        self._tries = tries
        self._timeout_s = timeout_s
        self._transaction = 0
        self._lock = _FairLock()
        self._is_closed = False
        self._in_flight: dict[int, _Batch] = {}

    def ask(self, requests: Sequence[Request], tries: int | None = None) -> list[bytes | Refusal]:
        """The attribute for each request, in order, or why there is none."""
        ready = deque(_Pending(index, 0, math.inf) for index in range(len(requests)))
        batch = _Batch(requests, tries or self._tries, [None] * len(requests), ready)
        broken = Refusal("")
        try:
            while batch.ready or batch.in_flight:
                with self._lock:
                    if self._is_closed:  # its descriptor may belong to another file now
                        raise InputError("infiniband", "the adapter is closed")
                    self._send(batch)
                    if batch.in_flight:
                        self._receive(batch)
        except InputError as error:
            broken = Refusal(str(error), is_silence=True)
            self._abandon(batch)
        return [broken if answer is None else answer for answer in batch.answers]

    def close(self) -> None:
        """From any thread; pending requests are refused."""
        with self._lock:
            self._is_closed = True
            self._device.close()

    def _abandon(self, batch: _Batch) -> None:
        with self._lock:
            for transaction in batch.in_flight:
                del self._in_flight[transaction]

    def _send(self, batch: _Batch) -> None:
        while batch.ready and len(batch.in_flight) < self._window:
            waiting = batch.ready.popleft()
            request = batch.requests[waiting.index]
            if request.to in batch.given_up:
                batch.answers[waiting.index] = batch.given_up[request.to]
                continue
            self._transaction = self._transaction % _TRANSACTIONS + 1
            now_s = self._clock()
            waiting.tries, waiting.is_busy = waiting.tries + 1, False
            waiting.first_s = min(waiting.first_s, now_s)
            waiting.until_s = now_s + self._timeout_s
            batch.in_flight[self._transaction] = waiting
            self._in_flight[self._transaction] = batch
            mad = pack_request(request, self._transaction, self._m_key)
            self._device.send(mad, request.to, self._timeout_s)

    def _receive(self, batch: _Batch) -> None:
        # Requests are in the order of sending: the first times out first.
        oldest = next(iter(batch.in_flight.values()))
        left_s = oldest.until_s - self._clock()
        arrival = self._device.receive(min(left_s, _MAX_TURN_S)) if left_s > 0 else None
        if arrival is not None:
            self._accept(arrival)
        elif self._clock() >= oldest.until_s:
            transaction = next(iter(batch.in_flight))
            del self._in_flight[transaction]
            self._retry(batch, batch.in_flight.pop(transaction))

    def _accept(self, arrival: Arrival) -> None:
        answer = unpack_answer(arrival.mad)
        batch = self._in_flight.get(answer.transaction)
        if batch is None:
            return  # late: it was retried since
        waiting = batch.in_flight[answer.transaction]
        waiting.is_busy = answer.is_answer and is_busy(answer.status)
        if waiting.is_busy:
            return  # it stays in flight until its timeout: the port asks for a pause
        del batch.in_flight[answer.transaction], self._in_flight[answer.transaction]
        if arrival.is_undelivered or not answer.is_answer:
            self._retry(batch, waiting)
            return
        to = batch.requests[waiting.index].to
        batch.heard_s[to] = self._clock()
        batch.answers[waiting.index] = (
            answer.data
            if not answer.status
            else Refusal(
                f"{describe_address(to)} {describe_status(answer.status)}", status=answer.status
            )
        )

    def _retry(self, batch: _Batch, waiting: _Pending) -> None:
        if waiting.tries < batch.tries:
            batch.ready.appendleft(waiting)
            return
        to = batch.requests[waiting.index].to
        refusal = self._build_silence(to, batch.tries, waiting.is_busy)
        if batch.heard_s.get(to, 0.0) < waiting.first_s:
            batch.given_up[to] = refusal
        batch.answers[waiting.index] = refusal

    def _build_silence(self, to: Address, tries: int, is_busy: bool) -> Refusal:
        effort = f"{tries} requests, {self._timeout_s:g} s each"
        busy = f"says that it is busy ({effort})"
        silent = f"does not answer ({effort}), or has another M_Key"
        return Refusal(f"{describe_address(to)} {busy if is_busy else silent}", is_silence=True)


# ---- The key ------------------------------------------------------------------------------------


def read_m_key(file: Path) -> int:
    """The M_Key of a file that only its owner can read: 0x and up to 16 hexadecimal digits."""
    where = f"M_Key file {file}"
    try:
        with file.open() as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            text = opened.read(64).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(where, f"cannot be read ({error})", "name a file with the key") from error
    if mode & 0o077:
        raise InputError(where, f"mode {mode:04o}: others can read it", f"chmod 600 {file}")
    if not _M_KEY.fullmatch(text):
        raise InputError(where, "does not hold a key", "write 0x and 1 to 16 hexadecimal digits")
    return int(text, 16)
