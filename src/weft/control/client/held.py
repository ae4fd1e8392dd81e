"""A command's process that is there and waits: it becomes the command when it is let go.

Forked at once, so that threads that are begun later, gRPC's among them, are none of its concern; it
enters its control group and takes its signals as the last thing before it is the command. A process
that is never let go ends. Entry point: `held`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager, suppress

from weft.host.net.marking import Group

_NOT_RUN = 127


class Held:
    """What `held` gives."""

    def __init__(self, pid: int, gate: int, failure: int) -> None:
        self.pid, self._gate, self._failure = pid, gate, failure
        self._status: int | None = None
        self._is_command = False

    def let_go(self) -> None:
        """Returns when it is the command; OSError, as of `os.execvp`, when it cannot be."""
        with suppress(BrokenPipeError):  # somebody has ended it: its status tells
            os.write(self._gate, b"!")
        told = os.read(self._failure, 16)  # nothing: what it had of us was closed
        if told:
            raise OSError(int(told), os.strerror(int(told)))
        self._is_command = True

    def status(self) -> int | None:
        """That of `subprocess`: below zero, the signal that ended it; None while it runs."""
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return self._status

    def send_signal(self, number: int) -> None:
        if self.status() is None:
            os.kill(self.pid, number)

    def end(self) -> None:
        """One that has not become the command ends; the command goes on."""
        os.close(self._gate)
        os.close(self._failure)
        if not self._is_command and self._status is None:
            os.waitpid(self.pid, 0)


@contextmanager
def held(command: Sequence[str], group: Group | None, mask: Set[int]) -> Iterator[Held]:
    """`mask`: the signals that the command begins with as blocked."""
    (entry, gate), (failure, problem) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(gate)
        os.close(failure)
        _become(command, group, mask, entry, problem)
    os.close(entry)
    os.close(problem)
    made = Held(pid, gate, failure)
    try:
        yield made
    finally:
        made.end()


def _become(
    command: Sequence[str], group: Group | None, mask: Set[int], entry: int, problem: int
) -> None:
    """In the new process: never returns."""
    try:
        if os.read(entry, 1):
            if group is not None:
                with suppress(OSError):  # then it runs unmarked
                    group.join()
            _handle_as_a_command()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvp(command[0], list(command))
    except OSError as error:
        os.write(problem, str(error.errno).encode())
    finally:
        os._exit(_NOT_RUN)


def _handle_as_a_command() -> None:
    """What Python does with signals is not the command's; what our caller ignores stays ignored."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
