"""`weft run`: an unmodified command as a registered application, its connections marked.

The command is forked at once and waits at a gate, so that later threads (gRPC's among them) do not
concern it. It joins its control group and takes over its signal mask just before it becomes the
command. While it runs, the connections of the group are marked and reported.
Entry point: `run_managed`. Units: seconds.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Protocol

from weft.control.client.app import App, UnmanagedWarning
from weft.control.client.sockets import leaves_host
from weft.errors import InputError, WeftError
from weft.host.net.marking import Group, GroupConnections, open_nested_group

POLL_S = 0.1
LINGER_S = 1.0  # a pair of hosts without a connection: the next one may be under way
NOT_EXECUTABLE, NO_SUCH_PROGRAM, BY_SIGNAL = 126, 127, 128
_PASSED_ON = frozenset(
    {signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2}
)
_BLOCKED = _PASSED_ON | {signal.SIGCHLD}
_FROM_KERNEL = 0x80  # si_code: a terminal's, which sends it to the command as well
Pair = tuple[str, str]


class Closable(Protocol):
    """A connection from `App.declare`."""

    def close(self) -> None: ...


class HostPairs:
    """Reports pairs of hosts with a connection; a pair that stays away for a while is closed."""

    def __init__(self, declare: Callable[[str, str], Closable]) -> None:
        self._declare = declare
        self._declared: dict[Pair, Closable] = {}
        self._seen_s: dict[Pair, float] = {}

    def update(self, pairs: Iterable[Pair], now_s: float) -> None:
        """There are connections between these hosts now."""
        for pair in pairs:
            self._seen_s[pair] = now_s
            if pair not in self._declared:
                self._declared[pair] = self._declare(*pair)
        for pair in [p for p, seen_s in self._seen_s.items() if now_s - seen_s > LINGER_S]:
            del self._seen_s[pair]
            self._declared.pop(pair).close()


class GroupReporter:
    """Marks and reports the connections of a command's group, until something fails."""

    def __init__(self, group: Group, app: App, connections: GroupConnections) -> None:
        self._group, self._app, self._connections = group, app, connections
        self._level = 0
        self._pairs = HostPairs(app.declare)
        self._is_over = False

    def update(self) -> None:
        """Sets the current level on new connections, and reports the open ones."""
        if self._is_over:
            return
        try:
            if self._app.level != self._level:
                self._group.mark(self._app.level)
                self._level = self._app.level
            addresses = {
                (connection.local_address, connection.remote_address)
                for connection in self._connections.read()
            }
        except (WeftError, OSError) as error:
            self._is_over = True
            self._app.close(wait_s=0.0)
            _warn(str(error))
            return
        self._pairs.update((pair for pair in addresses if leaves_host(*pair)), time.monotonic())


def run_managed(command: Sequence[str], register: Callable[[], App]) -> int:
    """Runs a command to its end; its status, or 128 + the signal that ended it."""
    with _show_warnings(), _block_signals() as before, ExitStack() as stack:
        group = _open_group(stack)
        process = stack.enter_context(fork_gated(command, group, before))
        reporter = None if group is None else _open_reporter(stack, group, register)
        if reporter is not None:
            reporter.update()
        try:
            process.release()
        except OSError as error:
            _warn(f"command {command[0]}: {error.strerror or error}")
            return NO_SUCH_PROGRAM if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        return _report_until_end(process, reporter)


@contextmanager
def _show_warnings() -> Iterator[None]:
    """Prints our warnings even where warnings are errors: the command must run."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", UnmanagedWarning)
        yield


def _open_group(stack: ExitStack) -> Group | None:
    """A group for the command, if one can be created."""
    try:
        return stack.enter_context(open_nested_group("run"))
    except (InputError, OSError) as error:
        _warn(f"cannot be marked: {error}")
        return None


def _open_reporter(stack: ExitStack, group: Group, register: Callable[[], App]) -> GroupReporter:
    app = stack.enter_context(register())
    connections = stack.enter_context(closing(GroupConnections(group)))
    return GroupReporter(group, app, connections)


@contextmanager
def _block_signals() -> Iterator[Set[int]]:
    """Blocks the signals, also in threads started later; yields those blocked before."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _report_until_end(process: GatedProcess, reporter: GroupReporter | None) -> int:
    while (status := process.status()) is None:
        if reporter is not None:
            reporter.update()
        received = signal.sigtimedwait(_BLOCKED, POLL_S)
        if (
            received is not None
            and received.si_signo in _PASSED_ON
            and received.si_code != _FROM_KERNEL
        ):
            process.send_signal(received.si_signo)
    return BY_SIGNAL - status if status < 0 else status


def _warn(problem: str) -> None:
    warnings.warn(f"run: {problem}", UnmanagedWarning, stacklevel=3)


_NOT_RUN = 127


class GatedProcess:
    """A forked process that waits at a gate before it becomes the command."""

    def __init__(self, pid: int, gate: int, failure: int) -> None:
        self.pid, self._gate, self._failure = pid, gate, failure
        self._status: int | None = None
        self._is_command = False

    def release(self) -> None:
        """Lets it become the command; raises the OSError of `os.execvp` if it cannot."""
        with suppress(BrokenPipeError):  # it was killed: see its status
            os.write(self._gate, b"!")
        failure_code = os.read(self._failure, 16)  # empty: exec closed the pipe
        if failure_code:
            raise OSError(int(failure_code), os.strerror(int(failure_code)))
        self._is_command = True

    def status(self) -> int | None:
        """Exit status as in `subprocess`: negative for a signal, None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def send_signal(self, number: int) -> None:
        if self.status() is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """Ends the process if it has not become the command; the command runs on."""
        os.close(self._gate)
        os.close(self._failure)
        if not self._is_command and self._status is None:
            os.waitpid(self.pid, 0)


@contextmanager
def fork_gated(
    command: Sequence[str], group: Group | None, mask: Set[int]
) -> Iterator[GatedProcess]:
    """Forks a process that waits for `release`; the command starts with `mask` blocked."""
    (entry, gate), (failure, problem) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate)
        os.close(failure)
        _exec_command(command, group, mask, entry, problem)
    os.close(entry)
    os.close(problem)
    process = GatedProcess(pid, gate, failure)
    try:
        yield process
    finally:
        process.end()


def _exec_command(
    command: Sequence[str], group: Group | None, mask: Set[int], entry: int, problem: int
) -> None:
    """In the new process: never returns."""
    try:
        if os.read(entry, 1):
            if group is not None:
                with suppress(OSError):  # then it runs unmarked
                    group.join()
            _reset_signals()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvp(command[0], list(command))
    except OSError as error:
        os.write(problem, str(error.errno).encode())
    finally:
        os._exit(_NOT_RUN)


def _reset_signals() -> None:
    """Undoes Python's signal handling; signals that our caller ignores stay ignored."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
