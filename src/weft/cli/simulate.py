"""`weft simulate SCENARIO.toml`: one scenario or a sweep; also `weft trace` and `weft fabric`.

`weft trace -o FILE.goal -- mpirun ...`: the calls of an MPI program as a workload for it.
`weft fabric FILE…`: what a fabric is, whether its routes can deadlock, and conversion.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from weft.cli import ProgressBar
from weft.errors import InputError
from weft.fabric import (
    Fabric,
    describe_cycle,
    find_cycle,
    path,
    read_fabric,
    route,
    with_addresses,
    write_ibnetdiscover,
    write_lft,
    write_toml,
)
from weft.fleet import check_cluster, check_jobs
from weft.records import Record, check_output, note_ending, to_summary_line, write_text
from weft.records.record_text import format_simulation, format_sweep
from weft.records.store import Campaign, run_campaign
from weft.simulate.run import MOST_THREADS
from weft.simulate.sweep import (
    Identity,
    Point,
    Source,
    check_points,
    combine_points,
    identify,
    sweep,
)
from weft.simulate.systems import Parameter, parameters, system_names
from weft.simulate.workload.mpi_calls import MpiCalls, read_mpi_calls, trace_program
from weft.simulate.workload.operations import LogGop, run_loggop
from weft.simulate.workload.workload_files import write_goal
from weft.sweep_grammar import expand_values, split_assignments
from weft.toml_table import load_toml, parse_value
from weft.units import format_value, parse_size

EXAMPLE = "switch.order=round-robin"


def run(args: argparse.Namespace) -> int:
    if args.parameters:
        return _print_parameters(args.parameters, args.json)
    source, points = _read_points(args)
    identities = check_points(source, points)
    if args.cluster:
        check_cluster(args.cluster)
    campaign = Campaign(
        points=dict(zip(identities, points, strict=True)),
        identify=identify,
        is_complete=lambda records: not _is_interrupted(records[-1]),
        output=args.output,
    )
    try:
        run_campaign(
            campaign,
            partial(_run_points, args, source),
            on_resume=lambda stored: print(
                f"resuming: {stored} of {len(points)} points are stored", file=sys.stderr
            ),
        )
    finally:  # a full disk, too, leaves what was simulated
        records = [campaign.done[key][-1] for key in identities if key in campaign.done]
        _show(records, args)
    problems = [f"{r.label}: {note}" for r in records for note in _find_problems(r)]
    if len(records) < len(points):
        problems.append(f"interrupted with {len(records)} of {len(points)} points done")
    for line in problems:
        print(f"weft: {line}", file=sys.stderr)
    return 1 if problems else 0


def _show(records: Sequence[Record], args: argparse.Namespace) -> None:
    """Several points as one table; each in full where flows are asked for."""
    if args.json:
        for record in records:
            print(to_summary_line(record))
    elif len(records) > 1 and not args.flows:
        swept = split_assignments("--sweep", args.swept, EXAMPLE)
        print(f"{format_sweep(records, list(swept))}\n")
    else:
        for record in records:
            print(f"{format_simulation(record, flows=args.flows)}\n")


def _read_points(args: argparse.Namespace) -> tuple[Source, list[dict[str, Any]]]:
    """The scenario, and the points to run of it."""
    if not args.scenario:
        raise InputError("simulate", "no scenario given", "name a TOML file, see docs/simulate.md")
    check_jobs(args.jobs)
    if args.threads is not None and not 1 <= args.threads <= MOST_THREADS:
        raise InputError("--threads", f"{args.threads} is out of range", f"use 1 to {MOST_THREADS}")
    fixed = {
        key: parse_value(text)
        for key, text in split_assignments("--set", args.fixed, EXAMPLE).items()
    }
    if args.level and fixed.setdefault("level", args.level) != args.level:
        raise InputError("--level", "is also given by --set", "keep one of the two")
    swept = {
        key: expand_values(parse_value, text, f"--sweep {key}")
        for key, text in split_assignments("--sweep", args.swept, EXAMPLE).items()
    }
    for key in fixed.keys() & swept.keys():
        raise InputError(f"--set {key}", "is also given by --sweep", "keep one of the two")
    path = Path(args.scenario)
    source = Source(data=load_toml(path), where=str(path), base=path.parent)
    return source, combine_points(fixed, swept)


def _run_points(
    args: argparse.Namespace, source: Source, points: Mapping[Identity, Point]
) -> Generator[tuple[Identity, tuple[Record], bool]]:
    """Run the points; an interrupted one comes last, with what it has so far."""
    todo = list(points.values())
    with ProgressBar(f"simulate {Path(args.scenario).stem}") as bar:
        runs = sweep(
            source,
            todo,
            args.jobs,
            bar.update,
            args.cluster,
            args.threads,
            skip_steady=args.skip_steady,
        )
        for _, record, ended in runs:
            yield identify(record), (record,), ended == "interrupted"


def _find_problems(record: Record) -> list[str]:
    """Notes that make the exit status 1."""
    is_cut = _is_interrupted(record) or record.ending.startswith("deadlock")
    ending = [note_ending(record.ending)] if is_cut else []
    return ending + [note for note in record.notes if note.startswith("deadlock:")]


def _is_interrupted(record: Record) -> bool:
    return record.ending.startswith("interrupted")


def _print_parameters(system: str, as_json: bool) -> int:
    if system not in system_names():
        names = ", ".join(system_names())
        raise InputError("--parameters", f"{system!r} is not a system", f"use one of {names}")
    for p in parameters(system):
        print(json.dumps(asdict(p), ensure_ascii=False) if as_json else _format_parameter(p))
    return 0


def _format_parameter(p: Parameter) -> str:
    notes = [
        textwrap.fill(f"{label}: {text}", 96, initial_indent="    ", subsequent_indent="        ")
        for label, text in (("meaning", p.meaning), ("source", p.source))
    ]
    return "\n".join([f"{p.section}.{p.key} = {p.value}", *notes])


# ---- Traces -----------------------------------------------------------------------------------


FREE = LogGop(latency_ps=0, overhead_ps=0, gap_ps=0, gap_ps_per_byte=0.0)


def run_trace(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise InputError("trace", "no command is given", "weft trace -o FILE.goal -- COMMAND …")
    eager_bytes = parse_size(args.eager, "--eager", bare=True)
    if eager_bytes < 0:
        raise InputError("--eager", f"{args.eager} is negative", "use 0 B or more")
    for output in filter(None, (args.output, args.calls)):
        check_output(output)
    with tempfile.TemporaryDirectory(prefix="weft-trace-") as folder:
        prefix = Path(args.calls or f"{folder}/calls")
        status = trace_program(command, prefix)
        calls = read_mpi_calls(prefix, eager_bytes)
    write_goal(calls.operations, Path(args.output))
    _print_calls(calls, args.output, as_json=args.json)
    return 1 if status else 0


def _print_calls(calls: MpiCalls, output: str, *, as_json: bool) -> None:
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


# ---- weft fabric ------------------------------------------------------------------------------

WRITERS: dict[str, Callable[[Fabric], str]] = {
    "toml": write_toml,
    "ibnetdiscover": write_ibnetdiscover,
    "lft": write_lft,
}


def run_fabric(args: argparse.Namespace) -> int:
    if args.output:
        check_output(args.output)
    fabric = read_fabric(args.files if len(args.files) > 1 else args.files[0])
    if args.routing:
        fabric = route(fabric, args.routing)
    if args.to:
        return _convert(fabric, args.to, args.output)
    if args.path:
        print(" -> ".join(_format_path(fabric, *args.path)))
        return 0
    facts = _describe(fabric)
    cycle = find_cycle(fabric) if fabric.routes is not None else None
    facts["deadlock"] = describe_cycle(fabric, cycle) if cycle else "none possible"
    if fabric.routes is None:
        facts["deadlock"] = "unknown: no routes (give --routing, or a dump of forwarding tables)"
    remarks = {"findings": fabric.findings, "warnings": fabric.warnings}
    if args.json:
        print(json.dumps(facts | remarks))
    else:
        lines = [*facts.items(), *((key[:-1], t) for key, texts in remarks.items() for t in texts)]
        print("\n".join(f"{key:>9}: {value}" for key, value in lines))
    return 1 if cycle or fabric.findings else 0


def _describe(fabric: Fabric) -> dict[str, str | int]:
    rates = Counter(link.rate_name for link in fabric.links)
    return {
        "fabric": fabric.name,
        "hosts": len(fabric.hosts),
        "switches": len(fabric.switches),
        "links": ", ".join(f"{count} × {rate}" for rate, count in sorted(rates.items())),
        "lanes": fabric.lanes,
    }


def _convert(fabric: Fabric, to: str, output: str | None) -> int:
    text = WRITERS[to](fabric if to == "toml" else with_addresses(fabric))
    if output:
        write_text(output, text)
    else:
        print(text, end="")
    return 0


def _format_path(fabric: Fabric, src: str, dst: str) -> list[str]:
    numbers = {node.name: i for i, node in enumerate(fabric.nodes)}
    for name in (src, dst):
        if name not in numbers:
            raise InputError("--path", f"{name!r} is not in the fabric", "check the name")
    hops = path(fabric, numbers[src], numbers[dst])
    return [*(f"{fabric.nodes[node].name}:{port}" for node, port in hops), dst]
