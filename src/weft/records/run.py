"""The run header: when, where, on which machine and by which command records were made.

It holds everything that the next run will not repeat. Entry point: `describe_run`.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from weft import __version__
from weft.records.record_line import canonical_json
from weft.records.schema import SCHEMA, Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation of weft: the first line of each file it writes."""

    started: str
    host: str
    os: str
    cpu: str
    python: str
    weft_version: str
    argv: tuple[str, ...]
    facts: Mapping[str, Plain] = field(default_factory=dict)


def _cpu_model() -> str:
    """Linux knows the model's name; platform.processor() there is empty."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe_run(argv: Sequence[str] | None = None, **facts: Plain) -> Run:
    """The header of the present run; `facts` adds what only the caller knows."""
    return Run(
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        host=platform.node(),
        os=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=f"{_cpu_model()}, {os.cpu_count()} threads",
        python=platform.python_version(),
        weft_version=__version__,
        argv=tuple(sys.argv if argv is None else argv),
        facts=facts,
    )


def run_to_line(run: Run) -> str:
    """A run header as one line of canonical JSON, without the newline."""
    return canonical_json({"weft": "run", "schema": SCHEMA} | asdict(run))


def run_from_json(data: Mapping[str, Any]) -> Run:
    """The run header in a parsed line."""
    fields = {key: value for key, value in data.items() if key not in ("weft", "schema")}
    return Run(**(fields | {"argv": tuple(data["argv"])}))
