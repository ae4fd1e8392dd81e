"""Synthetic workloads whose sensitivities are spread like those of the thesis's ten (Fig. 3.1).

Slowdowns with 25 % of the link are drawn from the ten workloads', one from each of as many equal
parts of their distribution. Computation, communication, stages, loops and length are random within
what the slowdown allows: the same sensitivity comes from short jobs and long ones, with few
stages and many, that hide much of what they send or nothing. Entry point: `make_synthetic`.
Units: seconds, bits per second.
"""

from __future__ import annotations

import numpy as np

from weft.errors import InputError
from weft.jobs import Job, read_job
from weft.studies.saba.workloads.stage_fit import Mix, build_stages
from weft.studies.saba.workloads.testbed import QUARTER, read_testbed
from weft.toml_table import Table

COUNT = 20  # of the thesis (4.6.1)
INSTANCES = 97
RATE_BPS = 56e9
MAX_COUNT = 1000
_LENGTH_S = (30.0, 150.0)  # at 56 Gb/s a stage stays within what a job file allows
_LOOPS = (1, 2, 4, 8, 16)
_EXCHANGES = (1, 2, 3)  # a loop


def make_synthetic(seed: int, count: int = COUNT, *, instances: int = INSTANCES) -> tuple[Job, ...]:
    """Jobs `s1` to `s20`, the least sensitive first; the same seed gives the same jobs."""
    if not 1 <= count <= MAX_COUNT:
        raise InputError("count", f"{count} workloads", f"use 1 to {MAX_COUNT}")
    rng = np.random.default_rng(seed)
    ten = sorted(workload.slowdown(QUARTER) for workload in read_testbed().values())
    places = (np.arange(count) + rng.random(count)) / count
    slowdowns = np.interp(places, np.linspace(0, 1, len(ten)), ten)
    return tuple(
        _make_job(rng, f"s{number}", float(slowdown), instances)
        for number, slowdown in enumerate(slowdowns, 1)
    )


def _make_job(rng: np.random.Generator, name: str, slowdown: float, instances: int) -> Job:
    exchanged = (slowdown - 1) / (1 / QUARTER - 1)
    # Down to a quarter of the link a stream is hidden, so any is possible beside the exchange.
    mix = Mix(exchanged=exchanged, streamed=float(rng.random()) * (1 - exchanged))
    alone_s = float(np.exp(rng.uniform(*np.log(_LENGTH_S))))
    loops = int(rng.choice(_LOOPS))
    pieces = rng.dirichlet(np.full(int(rng.choice(_EXCHANGES)), 4.0)).tolist()
    table = {
        "name": name,
        "instances": instances,
        "loops": loops,
        "placement": "random",
        "stage": build_stages(mix, alone_s, loops, RATE_BPS, pieces),
    }
    return read_job(Table(table, f"synthetic workload {name}"))
