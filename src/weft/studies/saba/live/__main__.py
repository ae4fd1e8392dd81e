"""`python -m weft.studies.saba.live`: runs cells for real, as root, in namespaces of its own.

It goes on where records in the directory end. With names of workloads only profiles are made.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from weft.errors import InputError
from weft.studies.saba.live.campaign import build_wiring, profile_workloads, run_campaign
from weft.studies.saba.live.cells import APPLICATIONS, CELLS, WAYS, WORKLOADS
from weft.studies.saba.live.rounds import keep_testbed, take_precedence


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m weft.studies.saba.live", description=__doc__)
    parser.add_argument("names", nargs="+", metavar="CELL|WORKLOAD", help=", ".join(CELLS))
    parser.add_argument("--directory", required=True, type=Path, help="of records and profiles")
    parser.add_argument("--testbed", default="saba-live", help="its name; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=3600.0, help="then it stops; %(default)s")
    parser.add_argument("--ways", default="", help=f"some, with ; between: {'; '.join(WAYS)}")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=(), help="set-ups of them; default: the first ten"
    )
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except InputError as error:
        print(f"weft: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    workloads = {*WORKLOADS, *APPLICATIONS}
    unknown = [name for name in args.names if name not in CELLS and name not in workloads]
    if unknown:
        raise InputError(unknown[0], "is no cell and no workload", f"use {', '.join(CELLS)}")
    ways = [way.strip() for way in args.ways.split(";") if way.strip()]
    wrong = [way for way in ways if way not in WAYS]
    if wrong:
        raise InputError("--ways", f"{wrong[0]!r} is no way", f"use {'; '.join(WAYS)}")
    until_s = time.monotonic() + args.seconds
    take_precedence()
    alone = [name for name in args.names if name in workloads]
    if alone:
        with keep_testbed(args.testbed, build_wiring()):
            profile_workloads(alone, args.directory, args.testbed, _report)
    cells = [name for name in args.names if name in CELLS]
    if not cells:
        return 0
    ended = run_campaign(
        cells, args.directory, args.testbed, _report, ways=ways, seeds=args.seeds, until_s=until_s
    )
    return 0 if ended else 1


def _report(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
