"""Laws of workloads at the packet level and of generated collectives, over random input."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from workload_instances import workloads

from weft._core import Status
from weft.simulate import Scenario, scenario_from
from weft.simulate.run import build_simulation
from weft.simulate.workload import RECEIVE, SEND, Operations, check_operations, join_operations
from weft.simulate.workload.collectives import ALGORITHMS, Plan, build_collective
from weft.simulate.workload.operations import LogGop, run_loggop
from weft.simulate.workload.workload_files import format_goal, read_goal, write_goal

NEVER_PS = 2**63 - 1
PAIRS = [(op, algorithm) for op, algorithms in ALGORITHMS.items() for algorithm in algorithms]

README = LogGop(
    latency_ps=2_500_000, overhead_ps=1_500_000, gap_ps=1_000_000, gap_ps_per_byte=6000.0
)


def as_lists(operations: Operations) -> list[list[int]]:
    names = Operations.__dataclass_fields__
    return [np.atleast_1d(getattr(operations, name)).tolist() for name in names]


@given(workloads())
def test_a_workload_written_as_goal_is_read_as_it_was(operations: Operations) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "w.goal"
        write_goal(operations, path)
        again = read_goal(path)
    assert as_lists(again) == as_lists(operations)
    assert list(format_goal(again)) == list(format_goal(operations))


@given(workloads(), workloads())
def test_workloads_side_by_side_end_as_each_does_alone(a: Operations, b: Operations) -> None:
    both = join_operations([a, b])
    check_operations(both, "both")
    alone = np.concatenate([run_loggop(w, README).ended_ps for w in (a, b)])
    assert run_loggop(both, README).ended_ps.tolist() == alone.tolist()


@st.composite
def collectives(draw: st.DrawFn) -> tuple[str, str, Plan]:
    operation, algorithm = draw(st.sampled_from(PAIRS))
    group = draw(st.integers(2, 4)) if algorithm == "hierarchical" else 1
    ranks = draw(st.integers(2, 12))
    if algorithm == "hierarchical":
        ranks = group * draw(st.integers(2, 4))
    elif algorithm == "halving-doubling" and operation != "all-reduce":
        ranks = 2 ** draw(st.integers(1, 4))
    return (
        operation,
        algorithm,
        Plan(ranks=ranks, size_bytes=draw(st.integers(1, 10_000)), group=group),
    )


@given(collectives(), st.integers(1, 3))
def test_every_message_of_a_collective_is_received_with_its_size(
    collective: tuple[str, str, Plan], repetitions: int
) -> None:
    operation, algorithm, plan = collective
    operations = build_collective(operation, algorithm, plan, repetitions=repetitions)
    check_operations(operations, algorithm)
    sizes: dict[tuple[int, int], list[list[int]]] = {}
    for kind, rank, peer, size in zip(
        operations.kind, operations.rank, operations.peer, operations.size_bytes, strict=True
    ):
        ends = (rank, peer) if kind == SEND else (peer, rank)
        sizes.setdefault(ends, [[], []])[int(kind)].append(int(size))
    assert all(sent == received for sent, received in sizes.values())


# Bytes that every rank must send at least, in chunks of S/n: 2(n-1) for an all-reduce, n-1 for a
# reduce-scatter, all-gather or all-to-all; these algorithms send no more.
LEAST = {
    ("all-reduce", "ring"): 2,
    ("reduce-scatter", "ring"): 1,
    ("all-gather", "ring"): 1,
    ("all-to-all", "pairwise"): 1,
}


@given(st.sampled_from(sorted(LEAST)), st.integers(2, 12), st.integers(1, 10_000))
def test_rings_and_pairwise_exchange_move_no_byte_too_many(
    pair: tuple[str, str], ranks: int, size: int
) -> None:
    operations = build_collective(*pair, Plan(ranks=ranks, size_bytes=size))
    sent = int(operations.size_bytes[operations.kind == SEND].sum())
    assert sent == LEAST[pair] * (ranks - 1) * size


@given(collectives())
def test_after_an_all_reduce_every_rank_has_heard_of_every_other(
    collective: tuple[str, str, Plan],
) -> None:
    """Knowledge spreads with messages: after the last, each rank knows all ranks."""
    _, algorithm, plan = collective
    if algorithm not in ALGORITHMS["all-reduce"]:
        algorithm = "ring"
    if algorithm == "hierarchical" and plan.group == 1:
        algorithm = "tree"
    operations = build_collective("all-reduce", algorithm, plan)
    knows = spread_knowledge(operations)
    assert all(len(known) == plan.ranks for known in knows)


def spread_knowledge(operations: Any) -> list[set[int]]:
    """What each rank knows at the end, if it sends all that its dependencies have brought it."""
    knows = [{rank} for rank in range(operations.ranks)]
    at = np.searchsorted(operations.rank, range(operations.ranks + 1)).tolist()
    next_, mail = at[:-1], dict[tuple[int, int], list[set[int]]]()
    moved = True
    while moved:
        moved = False
        for rank in range(operations.ranks):
            while next_[rank] < at[rank + 1]:
                i = next_[rank]
                peer = int(operations.peer[i])
                if operations.kind[i] == RECEIVE:
                    if not mail.get((peer, rank)):
                        break
                    knows[rank] |= mail[peer, rank].pop(0)
                else:
                    mail.setdefault((rank, peer), []).append(set(knows[rank]))
                next_[rank] += 1
                moved = True
    assert next_ == at[1:]
    return knows


def scenario(collective: tuple[str, str, Plan], draw: st.DataObject) -> Scenario:
    operation, algorithm, plan = collective
    per_host = draw.draw(st.sampled_from([1, 1, 2]))
    table = {
        "name": "c",
        "kind": "collective",
        "operation": operation,
        "algorithm": algorithm,
        "size": f"{plan.size_bytes} B",
        "ranks": plan.ranks,
        "ranks_per_host": per_host,
        "placement": draw.draw(st.sampled_from(["in-order", "random"])),
        "transport": draw.draw(st.sampled_from(["rc", "uc"])),
        "start": draw.draw(st.sampled_from(["0 ns", "3 us"])),
        "ack_every": draw.draw(st.sampled_from([0, 1, 3])),
    }
    if algorithm == "hierarchical":
        table["group"] = plan.group
    hosts = -(-plan.ranks // per_host)
    fabric = {
        "topology": "leaf_spine",
        "leaves": 2,
        "spines": 2,
        "hosts_per_leaf": (hosts + 1) // 2,
    }
    system = draw.draw(st.sampled_from(["ideal", "sx6012"]))
    return scenario_from(
        {"duration": "1 s", "system": system, "fabric": fabric, "traffic": [table] * 1}
    )


@given(collectives(), st.data())
@settings(max_examples=60)
def test_every_operation_ends_after_what_it_waits_for_and_every_rank_is_done(
    collective: tuple[str, str, Plan], data: st.DataObject
) -> None:
    built = scenario(collective, data)
    sim, _ = build_simulation(built)
    while (status := sim.run(10_000)) == Status.RUNNING:
        pass
    assert status == Status.FINISHED
    workload = built.traffic[0].parts[0].workload
    assert workload is not None
    operations, ended = workload.operations, sim.operations_ended_ps()
    assert (ended < NEVER_PS).all()
    assert (ended >= workload.begin_ps).all()
    waiting = np.repeat(np.arange(len(operations)), np.diff(operations.dependency_start))
    assert (ended[waiting] >= ended[operations.dependency]).all()
    for rank in range(operations.ranks):
        assert sim.rank_finished_ps(rank) == ended[operations.rank == rank].max()
    assert sim.flow_deliveries.sum() == built.traffic[0].parts[0].flows.messages.sum()


def test_operations_end_at_the_same_times_on_any_number_of_threads() -> None:
    """A fabric large enough for partitions; jitter of hosts, ranks that share hosts."""
    table = {
        "name": "c",
        "kind": "collective",
        "operation": "all-reduce",
        "algorithm": "halving-doubling",
        "size": "32 KiB",
        "ranks": 100,
        "ranks_per_host": 2,
        "placement": "random",
    }
    built = scenario_from(
        {
            "duration": "1 s",
            "system": "sx6012",
            "fabric": {"topology": "fat_tree", "k": 12},
            "traffic": [table],
        }
    )
    ended = []
    for threads in (1, 2, 3):
        sim, _ = build_simulation(built, threads)
        assert sim.partitions > 1
        while sim.run(10_000) == Status.RUNNING:
            pass
        ended.append(sim.operations_ended_ps().tolist())
    assert ended[0] == ended[1] == ended[2]
    assert max(ended[0]) < NEVER_PS
