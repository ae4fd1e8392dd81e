"""A probe beside jobs, packet by packet: is a latency lane protected, whatever the jobs' weights?

Eight jobs loop on eight hosts of a switch with virtual output queues; their messages are shrunk, so
that milliseconds show many of them. A ping-pong of 64 bytes runs beside them in a lane of high
priority, or among them. Buffers are equal in total. Entry points: `PROBED`, `probe_latency`.
Units: us.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from weft.jobs import Job
from weft.records import Distribution
from weft.simulate import scenario_from, simulate
from weft.studies.saba.evaluation.allocations import (
    EQ_4_2,
    EQUAL,
    LIGHT,
    RULES,
    JobFacts,
    draw_load,
    learn,
)
from weft.studies.saba.workloads import describe_job

COUNT, LOAD = 8, 4.0
SHRINK = 1e-5  # of the jobs: iterations of 10 to 100 us
BUFFER_KIB = 144  # of a port's input, all lanes together
MOST = 255  # weight of a VL arbitration entry
AMONG, BESIDE_ONE = "one lane, probe among the jobs", "one lane, and one of the probe"
PROBED = (AMONG, BESIDE_ONE, EQUAL, EQ_4_2, LIGHT)


def probe_latency(rule: str, *, seed: int = 1, duration: str = "40 ms") -> Distribution:
    """Round trips of the probe."""
    record = simulate(scenario_from(build_scenario(rule, seed, duration))).record
    rtt = record.quantities["probe.rtt"]
    assert isinstance(rtt, Distribution)
    return rtt


def build_scenario(rule: str, seed: int, duration: str) -> dict[str, Any]:
    facts = learn(draw_load(seed, count=COUNT, load=LOAD))
    is_single = rule in (AMONG, BESIDE_ONE)
    count = {AMONG: 1, BESIDE_ONE: 2}.get(rule, COUNT + 1)
    jobs = [
        describe_job(_shrink(job)) | {"loops": "until the end", "sl": 0 if is_single else number}
        for number, job in enumerate(facts.setup.jobs)
    ]
    fabric = {"topology": "one_switch", "hosts": COUNT, "rate": "56 Gb/s", "delay": "50 ns"}
    probe = {"name": "probe", "kind": "latency", "from": "h0", "to": "h1", "size": "64 B"}
    return {
        "name": "latency-probe",
        "duration": duration,
        "seed": seed,
        "fabric": fabric | {"lanes": count},
        "switch": {"virtual_output_queues": True, "buffer": f"{BUFFER_KIB // count} KiB"},
        "lanes": _assign_lanes(rule, facts),
        "job": jobs,
        "traffic": [probe | {"sl": 0 if rule == AMONG else COUNT}],
    }


def _shrink(job: Job) -> Job:
    stages = (
        replace(
            stage,
            compute_ps=round(SHRINK * stage.compute_ps),
            volume_bytes=max(1, round(SHRINK * stage.volume_bytes)),
        )
        for stage in job.stages
    )
    return replace(job, stages=tuple(stages))


def _assign_lanes(rule: str, facts: JobFacts) -> dict[str, Any]:
    """A lane for each job with the rule's weight, and one of high priority for the probe."""
    if rule == AMONG:
        return {}
    if rule == BESIDE_ONE:
        return {"sl2vl": [0] * COUNT + [1], "low": [[0, 64]], "high": [[1, 64]]}
    weights = np.array(RULES[rule](facts, tuple(range(COUNT))), dtype=np.float64)
    entries = np.maximum(1, np.round(MOST * weights / weights.max())).astype(int).tolist()
    low = [[lane, weight] for lane, weight in enumerate(entries)]
    return {"sl2vl": [*range(COUNT + 1)], "low": low, "high": [[COUNT, 64]]}
