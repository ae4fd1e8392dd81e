"""`weft trace -o FILE.goal -- mpirun ...`: the calls of an MPI program as a workload."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from weft.errors import InputError
from weft.measure.mpi.trace_program import trace_program
from weft.records import check_output
from weft.simulate.workload.goal import write_goal
from weft.simulate.workload.mpi_calls import MpiCalls, read_mpi_calls
from weft.simulate.workload.operations import LogGop, run_loggop
from weft.units import format_value, parse_size

FREE = LogGop(latency_ps=0, overhead_ps=0, gap_ps=0, gap_ps_per_byte=0.0)


def run(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise InputError("trace", "no command is given", "weft trace -o FILE.goal -- COMMAND …")
    eager_bytes = parse_size(args.eager, "--eager", bare=True)
    if eager_bytes < 0:
        raise InputError("--eager", f"{args.eager} is negative", "use 0 B or more")
    for path in filter(None, (args.output, args.calls)):
        check_output(path)
    with tempfile.TemporaryDirectory(prefix="weft-trace-") as folder:
        prefix = Path(args.calls or f"{folder}/calls")
        status = trace_program(command, prefix)
        calls = read_mpi_calls(prefix, eager_bytes)
    write_goal(calls.operations, Path(args.output))
    _print(calls, args.output, as_json=args.json)
    return 1 if status else 0


def _print(calls: MpiCalls, output: str, *, as_json: bool) -> None:
    operations = calls.operations
    sends = operations.sends
    sent_bytes = int(operations.size_bytes[sends].sum())
    real_ps = max(calls.real_ps)
    free_ps = int(run_loggop(operations, FREE).rank_ps.max())
    if as_json:
        answer = {
            "ranks": operations.ranks,
            "operations": len(operations),
            "messages": len(sends),
            "sent_bytes": sent_bytes,
            "real_us": real_ps / 1e6,
            "computation_us": free_ps / 1e6,
            "output": output,
        }
        print(json.dumps(answer))
        return
    print(
        f"{output}: {operations.ranks} ranks, {len(operations)} operations, "
        f"{len(sends)} messages of {format_value(sent_bytes, 'B')} in all"
    )
    print(
        f"real time {format_value(real_ps, 'ps')}; "
        f"{format_value(free_ps, 'ps')} if messages took no time"
    )
