"""The command line: parse, call one function, emit.

`weft.cli.options` declares the options. Each command is a function of a module that is imported
when it runs. It returns the exit status: 0 done, 1 done but a check failed, 2 could not run. A
command that a signal interrupts keeps what it has done; its status is 128 and the signal's number,
130 for Ctrl-C. Entry points: `main`; for commands `ProgressBar`.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType
from typing import Any, Self

from weft.cli.parser import COMMANDS, build_parser
from weft.errors import INTERRUPTS, WeftError

HANDLE_SIGNALS = ("serve", "control", "export", "run")  # commands that a signal ends as usual
BAR_WIDTH = 30
AGAIN_S = 0.01  # a dropped interrupt is raised again after


class _Interrupts:
    """SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt while entered; `number` is the last one.

    What the caller ignores, as nohup does SIGHUP, stays ignored. Python drops an exception that is
    raised in a finalizer or a weak reference's callback, so an interrupt there is raised again.
    """

    number = 0

    def __enter__(self) -> Self:
        self._report_dropped = sys.unraisablehook
        sys.unraisablehook = self._on_dropped
        is_main = threading.current_thread() is threading.main_thread()
        handlers = {number: signal.getsignal(number) for number in INTERRUPTS if is_main}
        self._previous: dict[signal.Signals, Any] = {
            number: signal.signal(number, self._on_signal)
            for number, handler in handlers.items()
            if handler is not signal.SIG_IGN
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._report_dropped

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.number = number
        raise KeyboardInterrupt

    def _on_dropped(self, dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            # From another thread: here it would be dropped again.
            main_thread = threading.main_thread().ident
            threading.Timer(AGAIN_S, signal.pthread_kill, (main_thread, self.number)).start()
        else:
            self._report_dropped(dropped)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors that a user can fix are one line on stderr."""
    _fill_standard_files()
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] and arguments[0] in HANDLE_SIGNALS:
        return _run_safely(arguments)
    with _Interrupts() as interrupts:
        status = _run_safely(arguments)
    return 128 + interrupts.number if interrupts.number else status


def _run_safely(argv: list[str]) -> int:
    """The status of a command, its error printed."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _build_warning_printer()
            return _run(argv)
    except WeftError as error:
        print(f"weft: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("weft: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output has closed it, as `head` does
        _drop_output()
        return 0
    except OSError as error:
        if error.filename is not None:  # not from standard output: a bug, shown with its traceback
            raise
        print(f"weft: standard output: {error.strerror}; make room", file=sys.stderr)
        _drop_output()
        return 2


def _run(argv: list[str]) -> int:
    if argv[:1] in (["serve"], ["job"]):  # they fork, so no library may start threads
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    args = build_parser([name for name in COMMANDS if name in argv[:1]]).parse_args(argv)
    module, function = args.run.split(":")
    status: int = getattr(import_module(f"weft.cli.{module}"), function)(args)
    if sys.stdout:  # None if it was closed before the start
        sys.stdout.flush()
    return status


def _fill_standard_files() -> None:
    """Open closed standard files, so that no later file gets their numbers."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # standard error
        pass
    os.close(opened)


def _build_warning_printer() -> Callable[..., None]:
    """A function that prints each warning once, without the source line that raised it."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in shown:
            print(f"weft: {message}", file=sys.stderr)
        shown.add(str(message))

    return show


def _drop_output() -> None:
    """Discard pending output: Python flushes it at exit, which would fail again."""
    with contextlib.suppress(io.UnsupportedOperation):  # not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ProgressBar:
    """On stderr, if that is a terminal: the fraction done and the estimated time left."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = sys.stderr.isatty()
        self._started = time.monotonic()
        self._last = 0.0

    def __enter__(self) -> ProgressBar:
        return self

    def update(self, fraction: float, note: str = "") -> None:
        now = time.monotonic()
        if not self._shown or (now - self._last < 0.1 and fraction < 1):
            return
        self._last = now
        fraction = min(1.0, max(0.0, fraction))
        elapsed = now - self._started
        remaining = f"{elapsed / fraction - elapsed:.0f} s left" if fraction > 0.02 else ""
        bar = "#" * round(BAR_WIDTH * fraction)
        print(
            f"\r\x1b[K{self._label} [{bar:<{BAR_WIDTH}}] {fraction:4.0%} {note} {remaining}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def __exit__(self, *_: object) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
