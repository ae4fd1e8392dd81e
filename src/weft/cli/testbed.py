"""Commands on a testbed: `weft testbed`, `weft job`.

`weft testbed`: a network of hosts on this machine: up, exec, status, down. `weft job`: a job of
stages for real, on a testbed or over loopback; what it will do.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from weft.cli import ProgressBar
from weft.errors import InputError
from weft.host.net import namespaces
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.host.testbed.persistent import Port, Status
from weft.host.testbed.wiring import Wiring
from weft.jobs import Job, build_graph, load_job
from weft.jobs.job_graph import SEND, bound_loop_ps, count_sent_bytes
from weft.measure.run_jobs import Site, build_loopback_site, open_testbed_site, run_jobs
from weft.records import Record, RecordWriter, check_output, to_summary_line
from weft.records.record_text import format_simulation, format_table
from weft.units import format_count, format_value, parse_rate, parse_size

# ---- weft testbed -----------------------------------------------------------------------------

_BARE_RATE = re.compile(r"\s*[0-9][0-9_]*(\.[0-9]+)?\s*[kKMGT]")
_MAX_HOSTS = 253


# ---- weft testbed up --------------------------------------------------------------------------


def run_up(args: argparse.Namespace) -> int:
    bed, built = persistent.build_testbed(args.name, _read_wiring(args))
    print(_build_up_json(args.name, bed, built) if args.json else _format_up(args.name, bed, built))
    return 0


def _read_wiring(args: argparse.Namespace) -> Wiring:
    hosts = _parse_count(args.hosts, "--hosts", _MAX_HOSTS)
    return Wiring(
        hosts=tuple(f"h{n}" for n in range(1, hosts + 1)),
        rate_bps=parse_link_rate(args.rate, "--rate"),
        switches=args.switches,
        leaves=_parse_count(args.leaves, "--leaves", 32),
        spines=_parse_count(args.spines, "--spines", 32),
        uplink_bps=None if args.uplink is None else parse_link_rate(args.uplink, "--uplink"),
        limit_bytes=_parse_size(args.limit, "--limit"),
        nic_limit_bytes=_parse_size(args.limit, "--limit"),
        burst_bytes=None if args.burst is None else _parse_size(args.burst, "--burst"),
        mtu_bytes=_parse_mtu(args.mtu),
        offloads=args.offloads == "on",
        congestion=args.congestion,
    )


def _parse_count(text: str, where: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise InputError(f"{where} {text}", f"is not in 1 to {most}", "use such a number")
    return int(text)


def _parse_mtu(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 576 <= int(text) <= 65_535:
        raise InputError(f"--mtu {text}", "is not in 576 to 65535", "use such a number of bytes")
    return int(text)


def parse_link_rate(text: str, where: str) -> int:
    """As tc writes rates (200M), or with the unit spelled out (200 Mb/s)."""
    rate = parse_rate(f"{text}b/s" if _BARE_RATE.fullmatch(text) else text, where)
    if not 8_000 <= rate <= 1e13:
        raise InputError(f"{where} {text}", "is not in 8 kb/s to 10 Tb/s", "use such a rate")
    return round(rate)


def _parse_size(text: str, where: str) -> int:
    size = parse_size(text, where)
    if not 1 <= size < 2**32:
        raise InputError(f"{where} {text!r}", "is not in 1 B to 4 GiB", "use such a size")
    return size


def _format_up(name: str, bed: Testbed, built: bool) -> str:
    plan, wiring = bed.layout, bed.wiring
    verb = "up" if built else "up already"
    head = (
        f"testbed {name} {verb}: {format_count(len(wiring.hosts), 'host')}, "
        f"{format_count(len(plan.switches), 'switch')}, "
        f"links of {format_value(wiring.rate_bps, 'b/s')}, {wiring.congestion}"
    )
    rows = [
        (host, plan.addresses[host], far.node, far.interface, bed.namespaces[host])
        for host in wiring.hosts
        for far in plan.access(host).ends[1:]
    ]
    return f"{head}\n\n{format_table(('host', 'address', 'switch', 'port', 'namespace'), rows, 5)}"


def _build_up_json(name: str, bed: Testbed, built: bool) -> str:
    plan = bed.layout
    report = {
        "name": name,
        "built": built,
        "wiring": asdict(bed.wiring),
        "addresses": plan.addresses,
        "namespaces": bed.namespaces,
        "switches": plan.switches,
    }
    return json.dumps(report)


# ---- weft testbed exec, status, down ----------------------------------------------------------


def run_exec(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        remedy = f"weft testbed exec {args.host} -- COMMAND"
        raise InputError("testbed exec", "no command is given", remedy)
    bed = persistent.find_testbed(args.name)
    namespaces.exec_inside(bed.namespace(args.host), command, hostname=args.host)


def run_status(args: argparse.Namespace) -> int:
    wanted = persistent.list_testbeds() if args.name is None else [args.name]
    statuses = {name: persistent.read_status(name) for name in wanted}
    if args.json:
        print(
            json.dumps(
                {"testbeds": [_build_status_json(n, status) for n, status in statuses.items()]}
            )
        )
    elif statuses:
        print("\n\n".join(_format_status(name, status) for name, status in statuses.items()))
    else:
        print("no testbed is up")
    return (
        0 if all(status is not None and not status.problems for status in statuses.values()) else 1
    )


def _format_status(name: str, status: Status | None) -> str:
    if status is None:
        return f"testbed {name}: not up"
    heads = ("node", "interface", "peer", "discipline", "rate", "passed", "dropped")
    rows = [
        (
            port.node,
            port.interface,
            port.peer,
            port.discipline,
            _format_rate(port),
            format_value(port.passed_bytes, "B"),
            str(port.dropped),
        )
        for port in status.ports
    ]
    running = sum(status.processes.values())
    how = "damaged" if status.problems else "up"
    lines = [f"testbed {name}: {how}, {format_count(running, 'process')} on its hosts"]
    lines += [f"  {problem}" for problem in status.problems]
    return "\n".join([*lines, "", format_table(heads, rows, 4)] if rows else lines)


def _format_rate(port: Port) -> str:
    return "-" if port.rate_bps is None else format_value(port.rate_bps, "b/s")


def _build_status_json(name: str, status: Status | None) -> dict[str, Any]:
    if status is None:
        return {"name": name, "up": False}
    report = {"name": name, "up": not status.problems, "problems": status.problems}
    report |= {"wiring": asdict(status.state.wiring), "processes": status.processes}
    return report | {"ports": [asdict(port) for port in status.ports]}


def run_down(args: argparse.Namespace) -> int:
    removed = persistent.remove_testbed(args.name)
    if args.json:
        print(json.dumps({"name": args.name, "removed": removed}))
    else:
        outcome = f"removed, {format_count(len(removed), 'namespace')}" if removed else "is not up"
        print(f"testbed {args.name}: {outcome}")
    return 0


# ---- weft job ---------------------------------------------------------------------------------

# ---- weft job run -----------------------------------------------------------------------------


def run_run(args: argparse.Namespace) -> int:
    jobs = _load_jobs(args.files, args)
    limit_s = _parse_seconds(args.timeout, "--timeout")
    duration_s = None if args.duration is None else _parse_seconds(args.duration, "--duration")
    seed = secrets.randbits(32) if args.seed is None else _parse_seed(args.seed)
    if args.output:
        check_output(args.output)
    site = _open_site(args, jobs)
    with ProgressBar(f"job {'+'.join(job.name for job in jobs)}") as bar:
        record = run_jobs(
            jobs,
            site,
            seed=seed,
            duration_s=duration_s,
            limit_s=limit_s,
            progress=lambda share: bar.update(share, "of the loops"),
        )
    if args.output:
        with RecordWriter(args.output) as writer:
            writer.append(record)
    print(to_summary_line(record) if args.json else format_simulation(record))
    return _judge(record)


def _load_jobs(files: Sequence[str], args: argparse.Namespace) -> list[Job]:
    overrides: dict[str, Any] = {}
    if args.hosts is not None:
        if len(files) > 1:
            raise InputError("--hosts", "is of one job", "give one file, or `hosts` in each")
        overrides["hosts"] = args.hosts.split(",")
    if args.slowdown:
        overrides["slowdown"] = True
    return [load_job(file, overrides) for file in files]


def _open_site(args: argparse.Namespace, jobs: Sequence[Job]) -> Site:
    return build_loopback_site(jobs) if args.loopback else open_testbed_site(args.testbed)


def _judge(record: Record) -> int:
    if record.ending:
        print(f"weft: {record.name}: {record.ending}", file=sys.stderr)
        return 1
    return 0


def _parse_seconds(text: str, where: str) -> float:
    remedy = "use 60, at most 86400"
    try:
        value = float(text)
    except ValueError:
        raise InputError(where, f"{text!r} is not a number of seconds", remedy) from None
    if not 0 < value <= 86_400:
        raise InputError(where, f"{text} s is out of range", remedy)
    return value


def _parse_seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InputError("--seed", f"{text!r} is not a seed", "use a whole number of 0 to 10^18")
    return int(text)


# ---- weft job show ----------------------------------------------------------------------------


def run_show(args: argparse.Namespace) -> int:
    jobs = [load_job(file) for file in args.files]
    rate_bps = None if args.rate is None else parse_rate(args.rate, "--rate")
    if rate_bps is not None and rate_bps <= 0:
        raise InputError("--rate", f"{args.rate} is out of range", "use more than 0 b/s")
    described = [_describe_job(job, rate_bps) for job in jobs]
    if args.json:
        print(json.dumps({"jobs": described}))
    else:
        print("\n\n".join(_format_job(entry) for entry in described))
    return 0


def _describe_job(job: Job, rate_bps: float | None) -> dict[str, Any]:
    graph = build_graph(job, 1)
    sent = count_sent_bytes(graph)
    described = {
        "name": job.name,
        "instances": job.instances,
        "loops": job.loops,
        "hosts": list(job.hosts) or job.placement,
        "start_ps": job.start_ps,
        "sl": job.sl,
        "messages_per_loop": int((graph.kind == SEND).sum()),
        "sent_bytes_per_loop": int(sent.sum()),
        "most_sent_bytes_per_loop": int(sent.max()),
        "stages": [
            {
                "name": stage.name,
                "after": [job.stages[n].name for n in stage.after],
                "compute_ps": stage.compute_ps,
                "pattern": stage.pattern,
                "volume_bytes": stage.volume_bytes,
                "overlap": stage.overlap,
                "flows": stage.flows,
            }
            for stage in job.stages
        ],
    }
    if rate_bps is not None:
        described["least_loop_ps"] = bound_loop_ps(job, rate_bps)
    return described


def _format_job(job: dict[str, Any]) -> str:
    loops = "until the end" if job["loops"] is None else f"{job['loops']} times"
    hosts = job["hosts"] if isinstance(job["hosts"], str) else ", ".join(job["hosts"])
    lines = [
        f"{job['name']}: {job['instances']} instances ({hosts}), {loops}, "
        f"from {format_value(job['start_ps'], 'ps')}, service level {job['sl']}",
        "",
        format_table(
            ("stage", "after", "pattern", "compute", "volume", "overlap", "flows"),
            [_format_stage(stage) for stage in job["stages"]],
            3,
        ),
        "",
        f"each loop: {job['messages_per_loop']} messages, "
        f"{format_value(job['sent_bytes_per_loop'], 'B')}; the busiest instance sends "
        f"{format_value(job['most_sent_bytes_per_loop'], 'B')}",
    ]
    if "least_loop_ps" in job:
        lines.append(f"a loop takes at least {format_value(job['least_loop_ps'], 'ps')}")
    return "\n".join(lines)


def _format_stage(stage: dict[str, Any]) -> tuple[str, ...]:
    if not stage["pattern"]:
        cells = ("-", "-", "-")
    else:
        volume = format_value(stage["volume_bytes"], "B")
        cells = (volume, f"{stage['overlap']:g}", str(stage["flows"]))
    return (
        stage["name"],
        ", ".join(stage["after"]) or "-",
        stage["pattern"] or "-",
        format_value(stage["compute_ps"], "ps"),
        *cells,
    )
