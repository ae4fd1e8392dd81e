"""Jobs at both levels beside closed forms of their patterns, where nothing blocks."""

from __future__ import annotations

from typing import Any

import pytest

from weft.records import Record, Scalar
from weft.simulate import scenario_from, simulate

RATE_BPS = 10e9
COMPUTE_S = 1e-3
VOLUME = 1_000_000
N = 5
TRANSFER_S = 8 * VOLUME / RATE_BPS  # 0.8 ms


def run(*jobs: dict[str, Any], duration: str = "1 s", **keys: Any) -> Record:
    return simulate(
        scenario_from(
            {
                "name": "s",
                "duration": duration,
                "fabric": {
                    "topology": "one_switch",
                    "hosts": 8,
                    "rate": "10 Gb/s",
                    "delay": "10 ns",
                },
                # Without head-of-line blocking a link is full as long as anyone waits for it.
                "switch": {"virtual_output_queues": True},
                "job": list(jobs),
                **keys,
            }
        )
    ).record


def make_job(pattern: str, name: str = "j", **stage: Any) -> dict[str, Any]:
    entry = {"compute": "1 ms", "volume": "1 MB", "pattern": pattern, **stage}
    return {"name": name, "instances": N, "stage": [entry]}


def value(record: Record, name: str) -> float:
    quantity = record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


# Link time of the communication, in transfers of one volume, for n instances:
LINK_TIME = {
    "shuffle": 1,
    "partition-aggregate": N - 1,  # all answers end at one aggregator
    "star": 2 * (N - 1),  # to the server, and back
    "all-reduce": 2 * (N - 1) / N,
    "bulk-synchronous": 1,
}


@pytest.mark.parametrize("level", ["packet", "flow"])
@pytest.mark.parametrize("pattern", LINK_TIME)
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("flows", [1, 3])
def test_a_stage_takes_its_computation_and_what_of_its_communication_follows(
    pattern: str, overlap: float, flows: int, level: str
) -> None:
    """max(C, o T) + (1 - o) T, where T is the time of the busiest link; headers are 1 %.

    A star's early part and late part share the server's link in both directions: the late part may
    come in while the early one goes out. So it takes no longer than that, and no less than T / 2
    for each direction.
    """
    link_s = LINK_TIME[pattern] * TRANSFER_S
    expected_s = max(COMPUTE_S, overlap * link_s) + (1 - overlap) * link_s
    record = run(make_job(pattern, overlap=overlap, flows=flows), level=level)
    completion_s = value(record, "j.completion") / 1e6
    if pattern == "star" and 0 < overlap < 1:
        assert max(COMPUTE_S, link_s / 2) <= completion_s <= expected_s * 1.02
    else:
        assert completion_s == pytest.approx(expected_s, rel=0.02)
        assert completion_s >= expected_s * (1 - 1e-9)


def test_loops_take_turns_and_stages_add_up() -> None:
    job = {**make_job("shuffle"), "loops": 7}
    record = run(job)
    assert value(record, "j.loops") == 7
    assert value(record, "j.completion") / 7 == pytest.approx(
        1e6 * (COMPUTE_S + TRANSFER_S), rel=0.02
    )
    rows = record.tables["stages"]
    assert [row["loop"] for row in rows] == list(range(7))


def test_a_job_until_the_end_loops_as_often_as_fits() -> None:
    job = {**make_job("shuffle"), "loops": "until the end"}
    record = run(job, duration="20 ms")
    assert value(record, "j.loops") == int(20e-3 / (COMPUTE_S + TRANSFER_S))
    assert "j.completion" not in record.quantities
    assert not any("did not end" in note for note in record.notes)


def test_two_jobs_on_the_same_hosts_slow_each_other_and_on_others_do_not() -> None:
    """Two shuffles on the same links: twice the communication, C + 2 T over C + T."""

    def slowdown(**keys: Any) -> float:
        jobs = [{**make_job("shuffle", name), "slowdown": True, **keys} for name in ("a", "b")]
        for job in jobs:
            job["instances"] = 4
        return value(run(*jobs), "a.slowdown")

    beside = (COMPUTE_S + 2 * TRANSFER_S) / (COMPUTE_S + TRANSFER_S)
    assert slowdown(prefer_free=False) == pytest.approx(beside, rel=0.02)
    assert slowdown() == pytest.approx(1, rel=1e-3)


@pytest.mark.parametrize("level", ["packet", "flow"])
@pytest.mark.parametrize("strangers", [1, 2, 5])
def test_a_job_that_meets_nobody_is_not_slowed_whatever_other_flows_there_are(
    level: str, strangers: int
) -> None:
    """Eight instances on four leaves and spines share uplinks by chance. Traffic inside a leaf
    whose hosts they leave alone changes none of their paths: the slowdown is 1, exactly.
    """
    fabric = {"topology": "leaf_spine", "leaves": 4, "spines": 4, "hosts_per_leaf": 4}
    others = {"kind": "bandwidth", "from": "h13", "to": "h14", "size": "1 MB", "messages": 1}
    hosts = ["h0", "h1", "h4", "h5", "h8", "h9", "h10", "h11"]
    job = {**make_job("shuffle"), "instances": 8, "hosts": hosts, "slowdown": True}
    record = run(
        job,
        fabric={**fabric, "rate": "10 Gb/s", "delay": "10 ns", "routing": "ecmp"},
        level=level,
        traffic=[{**others, "name": f"t{number}"} for number in range(strangers)],
    )
    assert value(record, "j.slowdown") == 1


def test_flow_level_leaves_out_the_buffers_that_jobs_share_where_they_meet() -> None:
    """Three jobs on eight hosts, each on five. Packets for a busy port hold an input's credits, and
    those for an idle one wait behind: packets are never faster than max-min rates, by 1 % of
    rounding to packets, and here less than a quarter slower.
    """
    jobs = [
        {**make_job(pattern, pattern, overlap=0.3), "placement": "random", "prefer_free": False}
        for pattern in ("shuffle", "all-reduce", "bulk-synchronous")
    ]
    packet, flow = (run(*jobs, level=level) for level in ("packet", "flow"))
    for job in jobs:
        name = f"{job['name']}.completion"
        assert 0.8 <= value(flow, name) / value(packet, name) <= 1.01, name


def test_a_job_that_starts_later_is_timed_from_its_start() -> None:
    early, late = (
        value(run({**make_job("all-reduce"), "start": start}), "j.completion")
        for start in ("0 us", "5 ms")
    )
    assert late == pytest.approx(early, rel=1e-6)
