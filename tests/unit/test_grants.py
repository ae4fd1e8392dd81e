"""Scenarios whose receivers grant, and the ways Homa and SRPT packet by packet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.errors import InputError
from weft.jobs import Job, read_job
from weft.records import Scalar
from weft.sensitivity.model import Polynomial
from weft.simulate import scenario_from, simulate
from weft.studies.saba.evaluation.cluster import SetUp, connect_one_switch, list_flows
from weft.studies.saba.evaluation.packet_level import (
    SwitchKind,
    build_homa,
    build_srpt,
    simulate_way_in_packets,
)
from weft.studies.saba.evaluation.ways import Knowledge
from weft.toml_table import Table

SECOND_BYTES = 56e9 / 8


def scenario(**changes: Any) -> dict[str, Any]:
    return {
        "duration": "1 s",
        "fabric": {"topology": "one_switch", "hosts": 4, "rate": "56 Gb/s", "lanes": 4},
        "grants": {"ahead": "16 KiB", "cutoffs": ["4 KiB"]},
        "traffic": [
            {
                "name": f"from-{host}",
                "kind": "bandwidth",
                "from": host,
                "to": "h0",
                "size": size,
                "messages": 1,
                "transport": "uc",
            }
            for host, size in (("h1", "3 MiB"), ("h2", "1 MiB"), ("h3", "2 MiB"))
        ],
    } | changes


def find_end_us(table: dict[str, Any], name: str) -> float:
    end = simulate(scenario_from(table)).record.quantities[f"{name}.finished"]
    assert isinstance(end, Scalar)
    return end.value


def test_messages_end_in_the_order_of_their_sizes() -> None:
    """1, 2 and 3 MiB to one host: 1, 3 and 6 MiB of its link, behind what others send unasked."""
    ends = [find_end_us(scenario(), f"from-{host}") for host in ("h2", "h3", "h1")]
    unasked = 2**14
    sent = np.array([2**20 + 2 * unasked, 3 * 2**20 + unasked, 6 * 2**20])
    assert ends == pytest.approx(sent / SECOND_BYTES * 1e6, rel=0.015)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grants": {}}, ["grants.ahead"]),
        ({"grants": {"ahead": "0 B"}}, ["grants.ahead", "0"]),
        ({"grants": {"ahead": "1 KiB", "bytes": 3}}, ["grants.bytes"]),
        ({"grants": {"ahead": "1 KiB", "messages": 0}}, ["grants.messages", "0"]),
        ({"grants": {"ahead": "1 KiB", "cutoffs": ["2 KiB", "1 KiB"]}}, ["cutoffs", "rise"]),
        ({"grants": {"ahead": "1 KiB", "cutoffs": ["1 B", "2 B", "3 B", "4 B"]}}, ["4 lanes"]),
        ({"grants": {"ahead": "1 KiB", "cutoffs_of": "age"}}, ["cutoffs_of", "age"]),
        ({"lanes": {"low": [[0, 64]]}}, ["lanes", "leave it out"]),
        ({"level": "flow"}, ["grants", "flow level"]),
    ],
)
def test_bad_grants_are_refused_in_one_line(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as error:
        scenario_from(scenario(**changes))
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [("transport", "rc", ["from-h1.transport", "uc"]), ("sl", 2, ["from-h1.sl", "2"])],
)
def test_flows_that_do_not_fit_grants_are_refused(key: str, value: Any, words: list[str]) -> None:
    table = scenario()
    table["traffic"][0][key] = value
    with pytest.raises(InputError) as error:
        scenario_from(table)
    for word in words:
        assert word in str(error.value)


# ---- Ways to share ----------------------------------------------------------------------------


def make_job(name: str, size: int) -> Job:
    stage = {"name": "exchange", "compute": "0 s", "volume": f"{size} B", "pattern": "shuffle"}
    return read_job(Table({"name": name, "instances": 2, "loops": 1, "stage": [stage]}, name))


def know(sizes: list[int]) -> Knowledge:
    """Jobs of two instances on the same two hosts."""
    jobs = tuple(make_job(f"j{n}", size) for n, size in enumerate(sizes))
    setup = SetUp(
        cluster=connect_one_switch(2),
        jobs=jobs,
        workloads=tuple(job.name for job in jobs),
        hosts=tuple(np.arange(2) for _ in jobs),
        seed=1,
    )
    models = {job.name: Polynomial(coefficients=(1.2, -0.2), floor=0.05) for job in jobs}
    return Knowledge(setup=setup, flows=list_flows(setup), models=models, profiled=models)


@pytest.mark.parametrize("way", ["Homa", "SRPT", "Sincronia, jobs"])
def test_shorter_jobs_end_first_as_if_alone(way: str) -> None:
    """1, 2 and 4 MB over one port: 1, 3 and 7 MB of it.

    And up to 6 % more: 12 kB of each other go unasked, and some while a grant is on its way.
    """
    knowledge = know([4_000_000, 1_000_000, 2_000_000])
    run = simulate_way_in_packets(way, knowledge, knowledge.setup, SwitchKind())
    expected = np.array([7e6, 1e6, 3e6]) / SECOND_BYTES
    assert (run.completions_s >= expected).all()
    assert run.completions_s == pytest.approx(expected, rel=0.06)


def test_homas_priorities_follow_the_sizes() -> None:
    """Large messages are almost all granted: one priority unasked, seven messages granted."""
    knowledge = know([4_000_000, 1_000_000, 2_000_000])
    grants = build_homa(knowledge.setup, knowledge.flows)
    assert (list(grants.cutoffs_bytes), grants.messages) == ([], 7)
    # A packet's time and twice two cables and a switch, at 56 Gb/s: 4096 + 4200 B.
    assert grants.ahead_bytes == 3 * 4096
    small = know([1000] * 30 + [2000] * 15 + [100_000])
    grants = build_homa(small.setup, small.flows)
    # 145 of 320 kB go unasked: four priorities, of 36 kB each; 60 kB are in messages of 1000 B.
    assert (list(grants.cutoffs_bytes), grants.messages) == ([1000, 2000], 4)


def test_srpt_separates_the_bytes_left_by_factors_of_two() -> None:
    grants = build_srpt(know([2**20]).setup)
    assert list(grants.cutoffs_bytes) == [2**n for n in range(6, 20)]
