"""Three jobs of the testbed, alone and in pairs: packets beside flows."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from weft.studies.saba.evaluation.cluster import (
    Floats,
    SetUp,
    connect_one_switch,
    list_flows,
    resize_job,
)
from weft.studies.saba.evaluation.packet_level import SwitchKind, shrink_to_hops, simulate_packets
from weft.studies.saba.evaluation.ways import (
    WAYS,
    Knowledge,
    LaneSharing,
    profile_testbed,
    select_models,
    simulate_way,
)
from weft.studies.saba.workloads import read_testbed

NAMES = ("LR", "SQL", "TS")
HOSTS = 4
HOPS = 60_000
# Each lane as much as one lane alone: with less, small buffers and not the way would show.
SWITCHES = SwitchKind(is_equal_in_total=False)


def make_setup(names: tuple[str, ...]) -> SetUp:
    """Jobs on all hosts, of about the same length."""
    testbed = read_testbed()
    jobs = [
        resize_job(testbed[name].job, name, HOSTS, 100 / testbed[name].alone_s) for name in names
    ]
    hosts = tuple(np.roll(np.arange(HOSTS), number) for number in range(len(names)))
    setup = SetUp(
        cluster=connect_one_switch(HOSTS), jobs=tuple(jobs), workloads=names, hosts=hosts, seed=1
    )
    return shrink_to_hops(setup, list_flows(setup), HOPS)


def complete(names: tuple[str, ...], way: str) -> tuple[Floats, Floats]:
    """Completion times at packet and at flow level."""
    setup = make_setup(names)
    models = select_models(profile_testbed())
    known = {name: models[name] for name in names}
    knowledge = Knowledge(setup=setup, flows=list_flows(setup), models=known, profiled=models)
    sharing = WAYS[way](knowledge)
    assert isinstance(sharing, LaneSharing)
    packets = simulate_packets(sharing, setup, SWITCHES).completions_s
    return packets, simulate_way(way, knowledge)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_alone_takes_as_long(name: str) -> None:
    """Within 3 %: headers and ACKs are 2 %."""
    packets, flows = complete((name,), "one lane")
    assert packets == pytest.approx(flows, rel=0.03)


@pytest.mark.parametrize("way", ["one lane", "lane per workload", "Saba"])
@pytest.mark.parametrize("names", list(combinations(NAMES, 2)))
def test_a_pair_takes_as_long(names: tuple[str, ...], way: str) -> None:
    packets, flows = complete(names, way)
    assert packets == pytest.approx(flows, rel=0.08)
