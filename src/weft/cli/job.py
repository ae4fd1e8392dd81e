"""`weft job`: a job of stages for real, on a testbed or over loopback; what it will do."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Sequence
from typing import Any

from weft.cli.progress import ProgressBar
from weft.errors import InputError
from weft.jobs import Job, build_graph, load_job
from weft.jobs.job_graph import SEND, bound_loop_ps, count_sent_bytes
from weft.measure.run_jobs import Site, build_loopback_site, open_testbed_site, run_jobs
from weft.records import Record, RecordWriter, check_output, to_summary_line
from weft.records.record_text import format_simulation, format_table
from weft.units import format_value, parse_rate

# ---- Run --------------------------------------------------------------------------------------


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


# ---- Show -------------------------------------------------------------------------------------


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
