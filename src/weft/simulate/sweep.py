"""Run many points of one scenario on all cores.

A point is a set of overridden keys. Points run in processes that return the record's line, so a
record does not depend on how many points ran beside it. Entry points: `combine_points`,
`sweep`.
"""

from __future__ import annotations

import ctypes
import itertools
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.records import Record, from_line, to_line
from weft.simulate.run import simulate
from weft.simulate.scenario import scenario_from

Point = Mapping[str, Any]
Identity = tuple[str, str]  # settings, digest of the scenario
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where scenarios come from: the file's content, its name and its folder."""

    data: Mapping[str, Any]
    where: str
    base: Path


def combine_points(fixed: Point, swept: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the swept values, on top of the fixed ones."""
    keys = list(swept)
    return [
        {**fixed, **dict(zip(keys, values, strict=True))}
        for values in itertools.product(*swept.values())
    ]


def check_points(source: Source, points: Sequence[Point]) -> list[Identity]:
    """Read every point before any runs; return the identity that each record will have."""
    scenarios = [_read_scenario(source, point) for point in points]
    return [(_label(s.settings), s.digest) for s in scenarios]


def identify(record: Record) -> Identity:
    """The identity of a record's point: its settings and its scenario's digest."""
    return _label(record.settings), record.provenance.scenario_digest or ""


def _label(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))


def _read_scenario(source: Source, point: Point) -> Any:
    return scenario_from(source.data, point, where=source.where, base=source.base)


def sweep(
    source: Source,
    points: Sequence[Point],
    jobs: int,
    progress: Callable[[float], None] | None = None,
) -> Iterator[tuple[int, Record, str]]:
    """(point number, record, how it ended) of each point, as they finish."""
    if jobs == 1 or len(points) == 1:
        for number, point in enumerate(points):
            line, ended = _run_point(source, point, _scale_progress(progress, number, len(points)))
            yield number, from_line(line), ended
        return
    try:
        yield from _run_in_processes(source, points, jobs, progress)
    except BrokenProcessPool as error:
        problem = "a process of the sweep was killed, perhaps for lack of memory"
        remedy = "lower --jobs; points stored by -o are not run again"
        raise InputError(source.where, problem, remedy) from error


def _run_in_processes(
    source: Source, points: Sequence[Point], jobs: int, progress: Callable[[float], None] | None
) -> Iterator[tuple[int, Record, str]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        max_workers=jobs, mp_context=context, initializer=_end_with_parent, initargs=(os.getpid(),)
    ) as pool:
        waiting: dict[Future[tuple[str, str]], int] = {
            pool.submit(_run_point, source, point): n for n, point in enumerate(points)
        }
        try:
            yield from _collect_results(waiting, len(points), progress)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def _collect_results(
    waiting: dict[Future[tuple[str, str]], int],
    total: int,
    progress: Callable[[float], None] | None,
) -> Iterator[tuple[int, Record, str]]:
    while waiting:
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda f: waiting[f]):
            number = waiting.pop(future)
            line, ended = future.result()
            yield number, from_line(line), ended
        if progress:
            progress(1 - len(waiting) / total)


def _scale_progress(
    progress: Callable[[float], None] | None, number: int, total: int
) -> Callable[[float], None] | None:
    return None if progress is None else lambda f: progress((number + f) / total)


def _run_point(
    source: Source, point: Point, progress: Callable[[float], None] | None = None
) -> tuple[str, str]:
    outcome = simulate(_read_scenario(source, point), progress)
    return to_line(outcome.record), outcome.ended


def _end_with_parent(parent: int) -> None:
    """A worker ignores Ctrl-C and ends with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: rely on the pool's own shutdown
        return
    if os.getppid() != parent:
        os._exit(1)
