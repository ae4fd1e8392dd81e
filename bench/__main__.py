"""`python -m bench [HALF|all]`: ours and the peers', one part of the program or all.

Machines are noisy: each figure is the median of runs that took turns, and the spread is shown.
Figures go to bench/latest.jsonl. `--quick` runs each of ours once, without the peers and the
largest, and writes nothing. `tune --emulated` compares the tuner's stages on emulated machines.
`control --against CHECKOUT` measures the controller's events of another checkout and ours in turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bench.allocate import allocate_all
from bench.control import compare_events, control
from bench.defaults import PARTS, peers
from bench.figure import save
from bench.flow import flow
from bench.infiniband import infiniband
from bench.measure import measure
from bench.setup import setup
from bench.simulate import simulate
from bench.steady import steady
from bench.threads import threads
from bench.tune import tune
from bench.tune_emulated import tune_emulated
from bench.wide import wide

HALVES = {
    "simulate": (simulate,),
    "threads": (threads,),
    "setup": (setup,),
    "steady": (steady,),
    "flow": (flow,),
    "measure": (measure,),
    "peers": (peers,),
    "allocate": (allocate_all,),
    "wide": (wide,),
    "control": (control,),
    "infiniband": (infiniband,),
    "tune": (tune,),
    # Without the tuner's exhaustive sweep, which takes an hour.
    "all": (
        simulate,
        threads,
        setup,
        steady,
        flow,
        measure,
        allocate_all,
        wide,
        control,
        infiniband,
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("half", nargs="?", choices=HALVES, default="all", help="default: all")
    parser.add_argument(
        "--quick", action="store_true", help="ours, once each, without the largest; writes nothing"
    )
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="tune: its stages on emulated machines; writes nothing",
    )
    parser.add_argument("--only", choices=PARTS, help="peers: one part")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="CHECKOUT",
        help="control: events of that checkout (built) and ours in turns; writes nothing",
    )
    parser.add_argument("--turns", type=int, default=5, help="of --against (default: 5)")
    args = parser.parse_args(argv)
    if args.only:
        if args.half != "peers":
            parser.error("--only is for peers: python -m bench peers --only 'tcp latency'")
        figures = peers(args.quick, args.only)
        if not args.quick:
            save(figures)
        return 0
    if args.emulated:
        if args.half != "tune":
            parser.error("--emulated is for tune: python -m bench tune --emulated")
        tune_emulated(args.quick)
        return 0
    if args.against:
        if args.half != "control":
            parser.error("--against is for control: python -m bench control --against CHECKOUT")
        if not (args.against / ".venv/bin/python").exists():
            parser.error(f"--against {args.against}: is no checkout that is built; run make build")
        compare_events(args.against.resolve(), args.turns)
        return 0
    for half in HALVES[args.half]:
        figures = half(args.quick)
        if not args.quick:
            save(figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
