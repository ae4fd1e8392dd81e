"""The sensitivity of a job: it is simulated alone with capped links, and a model is fitted.

As the thesis does (4.2.1, 4.6.4): on one rack, at seven shares, every link of a host capped.
Nothing is read off the job's parameters. At the packet level a job of minutes is too long:
computation and volume shrink together until messages have a few packets, and loops that repeat the
others are left out. Entry points: `profile_job`, `describe_job`. Units: seconds, bits per second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.errors import InputError
from weft.jobs import Job
from weft.records import Scalar
from weft.sensitivity.application import PAPER_SHARES, Application, Profile, Run, fit_application
from weft.simulate import scenario_from, simulate

NODES = 18  # of the thesis's rack (4.6.4)
RATE_BPS = 56e9
MESSAGE_BYTES = 65_536  # of a shrunk job, the mean
LOOPS = 2
_LIMIT = "1000 s"


def profile_job(job: Job, *, nodes: int = NODES) -> Application:
    """The job as an application: completion on `nodes` hosts at each share, and fitted models."""
    small = shrink_job(job, nodes)
    runs = [Run(share=share, completion=_run_s(small, RATE_BPS * share)) for share in PAPER_SHARES]
    profile = Profile(
        name=job.name,
        runs=tuple(runs),
        link_bps=RATE_BPS,
        machine={"simulated": "packet level", "nodes": nodes},
        notes=(f"shrunk to {small.loops} loops", "one switch, virtual output queues"),
    )
    return fit_application(profile)


def shrink_job(job: Job, nodes: int) -> Job:
    """The job with less of everything: `nodes` instances, few loops, short messages."""
    if job.loops is None:
        raise InputError(job.where, "loops until the end", "give a number of loops")
    volumes = [stage.volume_bytes for stage in job.stages if stage.volume_bytes]
    wanted = MESSAGE_BYTES * (nodes - 1) * len(volumes)
    factor = min(1.0, wanted / sum(volumes)) if volumes else 1.0
    stages = tuple(
        replace(
            stage,
            compute_ps=round(stage.compute_ps * factor),
            volume_bytes=round(stage.volume_bytes * factor),
        )
        for stage in job.stages
    )
    return replace(job, instances=nodes, loops=min(job.loops, LOOPS), stages=stages)


def _run_s(job: Job, rate_bps: float) -> float:
    scenario = scenario_from(
        {
            "name": job.name,
            "duration": _LIMIT,
            "fabric": {
                "topology": "one_switch",
                "hosts": job.instances,
                "rate": f"{rate_bps:.0f} b/s",
                "delay": "50 ns",
            },
            "switch": {"virtual_output_queues": True},
            "job": [describe_job(job)],
        }
    )
    completion = simulate(scenario).record.quantities.get(f"{job.name}.completion")
    if not isinstance(completion, Scalar):
        raise InputError(job.where, f"did not finish in {_LIMIT}", "profile a shorter job")
    return completion.value / 1e6


def describe_job(job: Job) -> dict[str, Any]:
    """The job as in a scenario."""
    stages = []
    for stage in job.stages:
        entry: dict[str, Any] = {"name": stage.name, "compute": f"{stage.compute_ps} ps"}
        if stage.pattern:
            entry |= {"volume": f"{stage.volume_bytes} B", "pattern": stage.pattern}
            entry |= {"overlap": stage.overlap, "flows": stage.flows}
        if stage.pattern == "bulk-synchronous":
            entry["neighbours"] = stage.neighbours
        if stage.roots:
            entry["servers" if stage.pattern == "star" else "aggregators"] = stage.roots
        entry["after"] = [job.stages[before].name for before in stage.after]
        stages.append(entry)
    return {"name": job.name, "instances": job.instances, "loops": job.loops, "stage": stages}
