"""The log of an unfinished profile: all that a later process needs to go on with it.

JSON lines: the plan first, then the first run and the estimate from its trace, then every run as it
ends. A line is on disk before the next run begins; one that a crash has cut short is left out and
overwritten. Nothing is written before the first run has ended. Entry point: `RunLog`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.records import check_directory
from weft.records.output import explain_file_errors
from weft.records.record_line import canonical_json, parse_object, report_malformed
from weft.sensitivity.model import Hinges
from weft.sensitivity.profile import Run
from weft.sensitivity.schedule import Plan

SCHEMA = 1
KIND = "profile"
_REMEDY = "profile with --restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The run before all others, with the whole link: it warms caches up and does not count.

    `traced` is the estimate from its trace, None where it could not be traced.
    """

    run: Run
    traced: Hinges | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """What a log says."""

    plan: Plan
    first: First | None = None
    runs: tuple[Run, ...] = ()


class RunLog:
    """The log of one plan: begun, or gone on with if the file has one of the same plan."""

    def __init__(self, path: Path, plan: Plan) -> None:
        self.path = path
        self.logged = _read(path) or Logged(plan=plan)
        _check_same(path, self.logged.plan, plan)

    @property
    def plan(self) -> Plan:
        """With the seed of the process that began it."""
        return self.logged.plan

    def begin(self, first: First) -> None:
        check_directory(self.path.parent)
        head = {"weft": KIND, "schema": SCHEMA, "plan": asdict(self.plan)}
        self.logged = replace(self.logged, first=first)
        self._append(canonical_json(head), canonical_json({"first": asdict(first)}))

    def add(self, run: Run, because: str) -> None:
        self.logged = replace(self.logged, runs=(*self.logged.runs, run))
        self._append(canonical_json({"run": asdict(run), "because": because}))

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    def _append(self, *lines: str) -> None:
        with explain_file_errors(self.path):
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                os.lseek(handle, _whole_bytes(self.path), os.SEEK_SET)
                os.write(handle, "".join(f"{line}\n" for line in lines).encode())
                os.truncate(handle, os.lseek(handle, 0, os.SEEK_CUR))
                os.fsync(handle)
            finally:
                os.close(handle)


def _whole_bytes(path: Path) -> int:
    """As far as lines are whole."""
    return path.read_bytes().rfind(b"\n") + 1


def _read(path: Path) -> Logged | None:
    """None where there is no log, or one that was cut short in its beginning."""
    if not path.exists():
        return None
    with explain_file_errors(path):
        lines = path.read_bytes()[: _whole_bytes(path)].splitlines()
    if len(lines) < 2:
        path.unlink()
        return None
    with report_malformed(str(path), "damaged", _REMEDY):
        head, first, *runs = map(parse_object, lines)
        if (head.get("weft"), head.get("schema")) != (KIND, SCHEMA):
            raise InputError(str(path), f"not a log of schema {SCHEMA} of weft profile", _REMEDY)
        return Logged(
            plan=_plan(head["plan"]),
            first=_first(first["first"]),
            runs=tuple(Run(**line["run"]) for line in runs),
        )


def _plan(data: Mapping[str, Any]) -> Plan:
    lists = {name: tuple(data[name]) for name in ("command", "shares")}
    return Plan(**{**data, **lists})


def _first(data: Mapping[str, Any]) -> First:
    traced = data["traced"]
    return First(
        run=Run(**data["run"]),
        traced=None
        if traced is None
        else Hinges(terms=tuple((t, c) for t, c in traced["terms"]), floor=traced["floor"]),
    )


def _check_same(path: Path, had: Plan, wanted: Plan) -> None:
    old, new = asdict(had), asdict(wanted)
    # A log from before a field was kept has "" there.
    differ = [name for name in old if name != "seed" and old[name] not in ("", new[name])]
    if differ:
        problem = f"an unfinished profile with another {differ[0]}: {_shown(old[differ[0]])}"
        raise InputError(str(path), problem, "give the same to go on with it, or --restart")


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"
