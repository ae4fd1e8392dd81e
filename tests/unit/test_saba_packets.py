"""Ways to share, packet by packet: cases worked by hand, blocking inputs, arbitration tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest

from weft.errors import InputError
from weft.jobs import Job, read_job
from weft.sensitivity.model import Polynomial
from weft.studies.saba.evaluation.cluster import (
    Floats,
    Ints,
    SetUp,
    connect_one_switch,
    draw_favourable,
    list_flow_bytes,
    list_flows,
)
from weft.studies.saba.evaluation.packet_level import (
    CONGESTION_WAY,
    Congestion,
    SwitchKind,
    evaluate_packets,
    list_entries,
    number_levels,
    shrink_to_hops,
    simulate_packets,
    simulate_way_in_packets,
)
from weft.studies.saba.evaluation.ways import WAYS, Knowledge, Lanes, LaneSharing
from weft.studies.saba.priority_order import order_coflows
from weft.toml_table import Table

MODEL = Polynomial(coefficients=(1.2, -0.2), floor=0.05)
MESSAGE = 2_000_000  # bytes: 500 packets, 286 us of a port
ALONE_S = MESSAGE * 8 / 56e9


def make_job(name: str, size: int = MESSAGE) -> Job:
    stage = {"name": "exchange", "compute": "0 s", "volume": f"{size} B", "pattern": "shuffle"}
    table = {"name": name, "instances": 2, "loops": 1, "stage": [stage]}
    return read_job(Table(table, name))


def know(hosts: list[list[int]], sizes: list[int] | None = None) -> Knowledge:
    jobs = [make_job(f"j{n}", (sizes or [MESSAGE] * len(hosts))[n]) for n in range(len(hosts))]
    setup = SetUp(
        cluster=connect_one_switch(1 + max(map(max, hosts))),
        jobs=tuple(jobs),
        workloads=tuple(job.name for job in jobs),
        hosts=tuple(np.array(place) for place in hosts),
        seed=1,
    )
    models = {job.name: MODEL for job in jobs}
    return Knowledge(setup=setup, flows=list_flows(setup), models=models, profiled=models)


@dataclass(slots=True, kw_only=True)
class Weighted(LaneSharing):
    """A lane for each job, with a weight."""

    weights: tuple[float, ...]

    def place(self, present: Ints) -> tuple[int, Lanes]:  # noqa: ARG002
        ports = len(self.knowledge.flows.ports)
        jobs = len(self.weights)
        return jobs, np.repeat(np.arange(jobs, dtype=np.uint8)[:, None], ports, axis=1)

    def weigh(self, present: Ints, lanes: int, lane_of: Lanes) -> Floats:  # noqa: ARG002
        return np.tile(self.weights, (lane_of.shape[1], 1))


def complete(sharing: LaneSharing) -> list[float]:
    """Completion over the time that a job takes alone."""
    run = simulate_packets(sharing, sharing.knowledge.setup, SwitchKind())
    return [float(time) / ALONE_S for time in run.completions_s]


def test_lanes_share_by_weight_and_lend() -> None:
    """3 to 1: the first ends at 4/3; the second has sent a third, then has the port: 2."""
    sharing = Weighted(knowledge=know([[0, 1], [0, 1]]), weights=(3.0, 1.0))
    assert complete(sharing) == pytest.approx([4 / 3, 2], rel=0.03)


def test_caps_do_not_lend() -> None:
    """At 3/4 and 1/4 of the port: 4/3 and 4, whether the other still sends or not.

    And up to a fifth more: a paced flow does not make up for the time a packet waits for the link.
    """
    knowledge = know([[0, 1], [0, 1]])
    sharing = Weighted(knowledge=knowledge, weights=(0.75, 0.25), lends=False)
    first, second = complete(sharing)
    assert 4 / 3 <= first <= 1.2 * 4 / 3
    assert 4 <= second <= 1.2 * 4


def test_weights_are_programmed_again_when_a_job_ends() -> None:
    """1 : 1 : 8, the last with half the bytes; when it has ended, the first two share as 4 : 1."""

    class Changing(Weighted):
        def weigh(self, present: Ints, lanes: int, lane_of: Lanes) -> Floats:  # noqa: ARG002
            row = (1.0, 1.0, 8.0) if present[2] else (4.0, 1.0, 1.0)
            return np.tile(row, (lane_of.shape[1], 1))

    # Long enough that the end is noticed soon.
    knowledge = know([[0, 1]] * 3, [8 * MESSAGE, 8 * MESSAGE, 4 * MESSAGE])
    times = np.array(complete(Changing(knowledge=knowledge, weights=(1.0, 1.0, 8.0)))) / 8
    # The short one needs 1/2 at 0.8; each other has 1/16 then, and 15/16 at 0.8.
    third = 0.5 / 0.8
    first = third + (15 / 16) / 0.8
    assert times == pytest.approx([first, 2.5, third], rel=0.05)


def test_packets_wait_behind_others_in_one_lane_with_fifo_inputs() -> None:
    """Hosts 0, 2 and 3 send to host 1; what host 0 sends to 4 waits behind, but not in lanes."""
    knowledge = know([[0, 1], [2, 1], [3, 1], [0, 4]])
    fifo, queues = SwitchKind(virtual_output_queues=False), SwitchKind()
    one_lane = WAYS["one lane"](knowledge)
    assert isinstance(one_lane, LaneSharing)
    blocked = simulate_packets(one_lane, knowledge.setup, fifo)
    free = simulate_packets(one_lane, knowledge.setup, queues)
    lanes = simulate_way_in_packets("lane per workload", knowledge, knowledge.setup, fifo)
    assert blocked.head_of_line > 0.1
    assert free.head_of_line == 0
    assert lanes.completions_s[3] < 0.9 * blocked.completions_s[3]


def test_congestion_control_counts_with_its_best_setting() -> None:
    knowledge = know([[0, 1], [2, 1], [3, 1], [0, 4]])
    fifo = SwitchKind(virtual_output_queues=False)
    best = simulate_way_in_packets(CONGESTION_WAY, knowledge, knowledge.setup, fifo)
    one_lane = WAYS["one lane"](knowledge)
    assert isinstance(one_lane, LaneSharing)
    setting = Congestion(threshold_bytes=16_384, step=0.5, timer_us=10.0)
    tried = simulate_packets(one_lane, knowledge.setup, fifo, setting)
    assert np.log(best.completions_s).mean() <= np.log(tried.completions_s).mean()


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ((1.0, 1.0, 1.0), [1, 1, 1]),
        ((3.0, 1.0), [48, 16]),
        ((1.0, 1e-6), [63, 1]),
        ((0.5, 0.3, 0.2), [32, 19, 13]),
    ],
)
def test_weights_become_entries(weights: tuple[float, ...], counts: list[int]) -> None:
    entries = list_entries(np.array(weights))
    assert Counter(entries) == dict(enumerate(counts))


def test_entries_of_a_lane_are_spread() -> None:
    entries = list_entries(np.array([3.0, 1.0]))
    assert [entries[turn : turn + 4].count(1) for turn in range(0, 64, 4)] == [1] * 16


def test_buffers_are_equal_per_lane_or_in_total() -> None:
    assert SwitchKind().lane_bytes(8) * 8 == SwitchKind().lane_bytes(1)
    per_lane = SwitchKind(is_equal_in_total=False)
    assert per_lane.lane_bytes(8) == per_lane.lane_bytes(1) == SwitchKind().lane_bytes(1)


def test_shrunk_set_ups_keep_their_shape() -> None:
    setup = draw_favourable(1)
    small = shrink_to_hops(setup, list_flows(setup), 10_000)
    factors = [
        b.volume_bytes / a.volume_bytes
        for before, after in zip(setup.jobs, small.jobs, strict=True)
        for a, b in zip(before.stages, after.stages, strict=True)
        if a.volume_bytes > 1e9
    ]
    assert factors == pytest.approx([factors[0]] * len(factors), rel=1e-3)


def test_a_regime_of_packets_has_the_jobs_of_the_set_up() -> None:
    evaluation = evaluate_packets(
        draw_favourable, [1], ["one lane", "Saba"], SwitchKind(), hops=10_000
    )
    (times,) = evaluation.completions["Saba"]
    assert len(times) == len(evaluation.workloads[0]) == 12
    assert (times >= 0.9 * evaluation.alone[0]).all()
    (busiest_s,) = evaluation.busiest_s
    assert 0 < busiest_s < times.max()


def test_what_packets_cannot_show_is_refused() -> None:
    knowledge = know([[0, 1], [0, 1]])
    with pytest.raises(InputError, match=r"'Sincronia' is not made of lanes; run it at flow level"):
        simulate_way_in_packets("Sincronia", knowledge, knowledge.setup, SwitchKind())
    lanes = np.arange(17, dtype=np.uint8)[:, None]
    with pytest.raises(InputError, match="17 service levels, and InfiniBand has 16"):
        number_levels(lanes, np.ones((17, 1), dtype=np.int64))


@pytest.mark.parametrize("queues", [True, False])
def test_packets_keep_sincronias_order(queues: bool) -> None:
    """Coflows (2, 2), (0, 3), (4, 0) of the property tests: by hand they end at 5, 3 and 6.

    Packets add 2 % of headers and ACKs, and what stands in buffers when a job gets its turn.
    """
    knowledge = know([[0, 1], [1, 2], [0, 3]], [2 * MESSAGE, 3 * MESSAGE, 4 * MESSAGE])
    kind = SwitchKind(virtual_output_queues=queues)
    run = simulate_way_in_packets("Sincronia, jobs", knowledge, knowledge.setup, kind)
    assert run.completions_s / ALONE_S == pytest.approx([5, 3, 6], rel=0.05)


def test_sincronias_packets_end_within_four_times_the_lower_bound() -> None:
    rng = np.random.default_rng(1)
    for _ in range(5):
        hosts = [rng.permutation(6)[: rng.integers(2, 6)].tolist() for _ in range(8)]
        knowledge = know(hosts, rng.integers(MESSAGE // 20, MESSAGE // 2, 8).tolist())
        setup, flows = knowledge.setup, knowledge.flows
        demand = flows.counts * list_flow_bytes(setup)[:, None] / flows.capacity
        bound = order_coflows(demand).bound
        run = simulate_way_in_packets("Sincronia, jobs", knowledge, setup, SwitchKind())
        assert bound <= run.completions_s.sum() <= 4 * bound


def test_jobs_share_a_service_level_unless_a_port_has_them_in_different_lanes() -> None:
    lanes: Lanes = np.array([[0, 1, 2], [0, 9, 9], [0, 2, 2], [9, 1, 2]], dtype=np.uint8)
    counts: Ints = np.array([[1, 1, 1], [1, 0, 0], [1, 1, 0], [0, 1, 1]])
    assert number_levels(lanes, counts) == [0, 0, 1, 0]


def test_twenty_workloads_run_where_lanes_are_few() -> None:
    knowledge = know([[0, 1]] * 20, [40_000] * 20)
    run = simulate_way_in_packets("one lane", knowledge, knowledge.setup, SwitchKind())
    assert np.isfinite(run.completions_s).all()
