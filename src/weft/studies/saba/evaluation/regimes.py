"""Runs a regime: every way on every seed's set-up, with what the profiler learned.

Entry points: `evaluate`, `join_evaluations`, `learn`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from weft.studies.saba.evaluation.cluster import Flows, SetUp, list_flows
from weft.studies.saba.evaluation.judgement import Evaluation
from weft.studies.saba.evaluation.ways import (
    DEGREE,
    Knowledge,
    profile_jobs,
    profile_testbed,
    select_models,
    simulate_alone,
    simulate_way,
)

Draw = Callable[[int], SetUp]


def evaluate(
    draw: Draw,
    seeds: Sequence[int],
    ways: Sequence[str],
    *,
    degree: int = DEGREE,
    progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Completion of every job in every set-up under every way, and alone."""
    setups = [draw(seed) for seed in seeds]
    runs: dict[str, list[np.ndarray]] = {way: [] for way in ways}
    alone, busiest = [], []
    for number, setup in enumerate(setups):
        knowledge = learn(setup, degree)
        alone.append(simulate_alone(setup))
        busiest.append(find_busiest_s(setup, knowledge.flows))
        for way in ways:
            runs[way].append(simulate_way(way, knowledge))
        if progress:
            progress((number + 1) / len(setups))
    return Evaluation(
        seeds=tuple(seeds),
        workloads=tuple(setup.workloads for setup in setups),
        completions={way: tuple(times) for way, times in runs.items()},
        alone=tuple(alone),
        busiest_s=tuple(busiest),
    )


def join_evaluations(parts: Sequence[Evaluation]) -> Evaluation:
    """The seeds of all parts, which have the same ways."""
    return Evaluation(
        seeds=tuple(seed for part in parts for seed in part.seeds),
        workloads=tuple(names for part in parts for names in part.workloads),
        completions={
            way: tuple(times for part in parts for times in part.completions[way])
            for way in parts[0].completions
        },
        alone=tuple(times for part in parts for times in part.alone),
        busiest_s=tuple(busy for part in parts for busy in part.busiest_s),
    )


def learn(setup: SetUp, degree: int = DEGREE) -> Knowledge:
    """Profile the workloads of a set-up, and fit their models."""
    profiled = profile_jobs(setup.jobs) if setup.is_synthetic else profile_testbed()
    models = select_models(profiled, degree)
    return Knowledge(
        setup=setup,
        flows=list_flows(setup),
        models={name: models[name] for name in dict.fromkeys(setup.workloads)},
        profiled=models,
        convex={name: entry.convex.model for name, entry in profiled.items()},
    )


def find_busiest_s(setup: SetUp, flows: Flows) -> float:
    """How long the port with the most bytes needs for them."""
    per_flow = [
        (job.loops or 1) * sum(s.volume_bytes for s in job.stages) / max(1, len(hosts) - 1)
        for job, hosts in zip(setup.jobs, setup.hosts, strict=True)
    ]
    return float((np.array(per_flow) @ flows.counts / flows.capacity).max())
