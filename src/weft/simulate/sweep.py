"""Run many points of one scenario on all cores, or on a Dask cluster.

A point is a set of overridden keys. Points run in processes that return the record's line, so a
record does not depend on where it was made, or on how many points ran beside it. Entry points:
`combine_points`, `sweep`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.fleet import Call, check_stopped, run_calls
from weft.records import Record, from_line, to_line
from weft.simulate.run import simulate
from weft.simulate.scenario import compute_digest, scenario_from

Point = Mapping[str, Any]
Identity = tuple[str, str]  # settings, digest of the scenario


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
    scenarios = (_read_scenario(source, point) for point in points)  # one at a time in memory
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
    jobs: int = 1,
    progress: Callable[[float], None] | None = None,
    cluster: str | None = None,
    threads: int | None = None,
    *,
    skip_steady: bool = False,
) -> Iterator[tuple[int, Record, str]]:
    """(point number, record, how it ended) of each point, as they finish.

    `cluster` is the address of a Dask scheduler, whose workers run the points instead. Each run has
    `threads`, by default one where several run at once. `skip_steady` is that of `simulate`.
    """
    if cluster is None and (jobs == 1 or len(points) == 1):
        for number, point in enumerate(points):
            scaled = _scale_progress(progress, number, len(points))
            outcome = simulate(
                _read_scenario(source, point), scaled, threads=threads, skip_steady=skip_steady
            )
            yield number, from_line(to_line(outcome.record)), outcome.ended
        return
    remote = replace(source, base=source.base.resolve())  # where workers find the files
    calls = [
        Call(
            name=_label(point),
            arguments=(remote, point, _compute_digest(source, point), threads or 1, skip_steady),
        )
        for point in points
    ]
    results = run_calls(
        _run_in_worker, calls, where=source.where, jobs=jobs, cluster=cluster, progress=progress
    )
    for number, (line, ended) in results:
        yield number, from_line(line), ended


def _compute_digest(source: Source, point: Point) -> str:
    return compute_digest(source.data, point, where=source.where, base=source.base)


def _scale_progress(
    progress: Callable[[float], None] | None, number: int, total: int
) -> Callable[[float], None] | None:
    return None if progress is None else lambda f: progress((number + f) / total)


def _run_in_worker(
    source: Source, point: Point, digest: str, threads: int, skip_steady: bool
) -> tuple[str, str]:
    """Runs the point if the files that its scenario names are here as they are at the caller's."""
    scenario = _read_scenario(source, point)
    if scenario.digest != digest:
        problem = "a file that it names differs here"
        raise InputError(source.where, problem, "give all workers the same files")
    outcome = simulate(
        scenario, lambda _: check_stopped(), threads=threads, skip_steady=skip_steady
    )
    return to_line(outcome.record), outcome.ended
