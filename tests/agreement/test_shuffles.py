"""Jobs that shuffle: rates solved in batches, beside the flow level that solves each change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft._core import MaxMin, Shuffles
from weft.records import Scalar
from weft.simulate import scenario_from, simulate
from weft.studies.saba.evaluation.cluster import (
    SetUp,
    build_shuffles,
    connect_one_switch,
    list_flows,
    resize_job,
)
from weft.studies.saba.workloads import describe_job, read_testbed

HOSTS = 8
PLACES = {"LR": (0, 1, 2, 3, 4), "SQL": (2, 3, 4, 5), "NI": (0, 3, 5, 6, 7), "TS": (1, 4, 7)}
# Small, so that a run of the flow level takes a second.
DATA = 1e-3


def make_setup() -> SetUp:
    testbed = read_testbed()
    jobs = [resize_job(testbed[name].job, name, len(hosts), DATA) for name, hosts in PLACES.items()]
    return SetUp(
        cluster=connect_one_switch(HOSTS),
        jobs=tuple(jobs),
        workloads=tuple(PLACES),
        hosts=tuple(np.array(hosts) for hosts in PLACES.values()),
        seed=1,
    )


def complete_at_flow_level(setup: SetUp, lanes: dict[str, Any]) -> list[float]:
    """Every change solved at once, with headers and latencies."""
    jobs = []
    for number, (job, hosts) in enumerate(zip(setup.jobs, setup.hosts, strict=True)):
        names = [f"h{host}" for host in hosts]
        jobs.append({**describe_job(job), "hosts": names, "sl": number if lanes else 0})
    scenario = scenario_from(
        {
            "name": "shuffles",
            "duration": "100 s",
            "level": "flow",
            "fabric": {
                "topology": "one_switch",
                "hosts": HOSTS,
                "rate": "56 Gb/s",
                "delay": "50 ns",
                "lanes": max(1, len(lanes.get("sl2vl", []))),
            },
            "lanes": lanes,
            "job": jobs,
        }
    )
    quantities = simulate(scenario).record.quantities
    times = [quantities[f"{job.name}.completion"] for job in setup.jobs]
    return [time.value / 1e6 for time in times if isinstance(time, Scalar)]


def complete_in_batches(setup: SetUp, weights: tuple[float, ...], batch: float) -> list[float]:
    flows = list_flows(setup)
    run = build_shuffles(setup, flows, batch)
    jobs, ports = flows.counts.shape
    if weights:
        lane = np.repeat(np.arange(jobs, dtype=np.uint8), ports)
        run.program(jobs, lane, np.tile(weights, ports))
    while run.run():
        pass
    return list(run.finished_s)


@pytest.mark.parametrize("weights", [(), (200.0, 50.0, 100.0, 50.0)])
def test_jobs_complete_as_at_the_flow_level(weights: tuple[float, ...]) -> None:
    """Within 3 %: headers are 1 %, and rates of lanes that depend in cycles are not unique."""
    setup = make_setup()
    low = [[lane, round(weight)] for lane, weight in enumerate(weights)]
    lanes = {"sl2vl": [0, 1, 2, 3], "low": low} if weights else {}
    exact = complete_at_flow_level(setup, lanes)
    assert complete_in_batches(setup, weights, 0.02) == pytest.approx(exact, rel=0.03)


@st.composite
def networks(draw: st.DrawFn) -> tuple[list[float], list[list[int]]]:
    ports = draw(st.lists(st.integers(1, 9).map(float), min_size=2, max_size=6))
    path = st.lists(st.integers(0, len(ports) - 1), min_size=1, max_size=3, unique=True)
    return ports, draw(st.lists(path, min_size=1, max_size=12))


def start(ports: list[float], paths: list[list[int]]) -> Shuffles:
    """A job for each flow, which never ends."""
    starts = np.cumsum([0, *map(len, paths)]).astype(np.uint64)
    flat = np.array([port for path in paths for port in path], dtype=np.uint32)
    jobs = [([(0.0, 1e9, 0.0)], 1, 0.0, number, 1) for number in range(len(paths))]
    run = Shuffles(np.array(ports), starts, flat, jobs, 0.0, 1e-9)
    run.run()
    return run


@given(networks())
@settings(max_examples=60, deadline=None)
def test_rates_of_one_lane_are_max_min(network: tuple[list[float], list[list[int]]]) -> None:
    ports, paths = network
    oracle = MaxMin()
    for capacity in ports:
        oracle.add_port(capacity)
    flows = [oracle.add_flow([(port, 0) for port in path]) for path in paths]
    oracle.solve()
    expected = [oracle.rate(flow) for flow in flows]
    assert start(ports, paths).rates() == pytest.approx(expected, rel=1e-4)


@given(networks(), st.lists(st.integers(1, 5), min_size=24, max_size=24), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_port_is_overloaded_and_each_flow_has_a_full_one(
    network: tuple[list[float], list[list[int]]], weights: list[int], strict: bool
) -> None:
    ports, paths = network
    run = start(ports, paths)
    lane = np.repeat(np.arange(len(paths), dtype=np.uint8) % 4, len(ports))
    run.program(4, lane, np.array(weights[: 4 * len(ports)], dtype=float), strict)
    rates = run.rates()
    load = np.zeros(len(ports))
    for rate, path in zip(rates, paths, strict=True):
        load[path] += rate
    assert (load <= np.array(ports) * (1 + 1e-9)).all()
    for path in paths:
        assert max(load[path] / np.array(ports)[path]) >= 1 - 1e-3
