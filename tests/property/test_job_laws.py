"""Laws of jobs over random jobs: sound operations, no lost byte, stages in order, same records."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.jobs import Job, JobGraph, build_graph, read_job
from weft.jobs.job_file import PATTERNS
from weft.jobs.job_graph import SEND, bound_loop_ps, count_sent_bytes
from weft.records import to_line
from weft.simulate import scenario_from, simulate
from weft.simulate.job_traffic import read_job_times, to_operations
from weft.simulate.run import build_simulation
from weft.simulate.workload import check_operations
from weft.toml_table import Table

RATE_BPS = 10e9


@st.composite
def stages(draw: st.DrawFn, number: int) -> dict[str, Any]:
    after = draw(st.lists(st.integers(0, number - 1), max_size=3)) if number else []
    stage: dict[str, Any] = {
        "name": f"s{number}",
        "after": [f"s{n}" for n in after],
        "compute": f"{draw(st.integers(0, 50))} us",
    }
    if draw(st.booleans()):
        pattern = draw(st.sampled_from(sorted(PATTERNS)))
        stage |= {
            "pattern": pattern,
            "volume": f"{draw(st.integers(0, 20_000))} B",
            "overlap": draw(st.sampled_from([0, 0.3, 0.5, 1])),
            "flows": draw(st.integers(1, 3)),
        }
    return stage


@st.composite
def jobs(draw: st.DrawFn, name: str = "j") -> dict[str, Any]:
    return {
        "name": name,
        "instances": draw(st.integers(2, 6)),
        "loops": draw(st.integers(1, 3)),
        "placement": draw(st.sampled_from(["packed", "spread", "random"])),
        "prefer_free": draw(st.booleans()),
        "start": f"{draw(st.integers(0, 100))} us",
        "stage": [draw(stages(number)) for number in range(draw(st.integers(1, 4)))],
    }


def graph_of(data: dict[str, Any]) -> tuple[Job, JobGraph]:
    job = read_job(Table(data, "job"))
    return job, build_graph(job)


@given(jobs())
def test_operations_of_a_job_are_matched_and_wait_for_no_cycle(data: dict[str, Any]) -> None:
    _, graph = graph_of(data)
    check_operations(to_operations(graph), "job")


@given(jobs())
def test_no_stage_loses_or_adds_a_byte(data: dict[str, Any]) -> None:
    """A shuffle of V bytes sends V from everyone, unless a part would have less than one byte."""
    data["stage"] = [{**stage, "pattern": "shuffle", "flows": 1} for stage in data["stage"]]
    job, graph = graph_of(data)
    peers = job.instances - 1
    for volume in (s.volume_bytes for s in job.stages):
        if 0 < volume < 10 * peers:
            return
    expected = sum(s.volume_bytes for s in job.stages) * (job.loops or 0)
    assert count_sent_bytes(graph).tolist() == [expected] * job.instances


@settings(max_examples=30)
@given(st.tuples(jobs("a"), jobs("b")), st.integers(1, 5))
def test_simulated_stages_keep_their_order_and_records_repeat(
    pair: tuple[dict[str, Any], dict[str, Any]], seed: int
) -> None:
    fabric = {"topology": "leaf_spine", "leaves": 2, "spines": 2, "hosts_per_leaf": 4}
    scenario = scenario_from(
        {
            "seed": seed,
            "duration": "1 s",
            "fabric": {**fabric, "rate": "10 Gb/s", "delay": "100 ns"},
            "job": list(pair),
        }
    )
    simulation, _ = build_simulation(scenario)
    simulation.run(10**9)
    for times in read_job_times(scenario, simulation.operations_ended_ps()):
        assert times.is_complete
        begin, end = times.begin_ps, times.end_ps
        assert (begin >= times.job.start_ps).all()
        for number, stage in enumerate(times.job.stages):
            assert (end[:, number] >= begin[:, number]).all()
            for before in stage.after:
                assert (begin[:, number] >= end[:, before]).all()
        last = end.max(axis=1)  # of each loop and instance
        assert (begin.min(axis=1)[1:] >= last[:-1]).all()
        whole_ps = int(end.max()) - times.job.start_ps
        assert whole_ps >= times.loops * bound_loop_ps(times.job, RATE_BPS)
    lines = {to_line(simulate(scenario, threads=threads).record) for threads in (1, 2, 3)}
    assert len(lines) == 1


@given(jobs())
def test_a_graph_of_loops_is_the_graph_of_one_repeated(data: dict[str, Any]) -> None:
    job, graph = graph_of(data)
    one = build_graph(job, 1)
    loops = job.loops or 0
    assert len(graph) == loops * len(one)
    assert (count_sent_bytes(graph) == loops * count_sent_bytes(one)).all()
    sends = [np.sort(g.amount[g.kind == SEND]) for g in (graph, one)]
    assert (sends[0] == np.sort(np.tile(sends[1], loops))).all()
