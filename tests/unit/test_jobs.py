"""Jobs: their files, their placement, and the operations that they become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.cli import main
from weft.errors import InputError
from weft.jobs import Job, JobGraph, build_graph, load_job, place_jobs, read_job
from weft.jobs.job_graph import (
    COMPUTE,
    MAX_ROWS,
    RECEIVE,
    SEND,
    JobTimes,
    bound_loop_ps,
    build_rows,
    build_slowdown,
    count_sent_bytes,
    describe_jobs,
)
from weft.records import Scalar
from weft.toml_table import Table

MS = 10**9


def make_job(*stages: dict[str, Any], **keys: Any) -> Job:
    data = {"name": "j", "instances": 4, "stage": list(stages), **keys}
    return read_job(Table(data, "job"))


def one_stage(pattern: str, **keys: Any) -> dict[str, Any]:
    return {"compute": "10 ms", "volume": "12 MB", "pattern": pattern, **keys}


def run_graph(graph: JobGraph, message_ps: Callable[[int], int]) -> np.ndarray:
    """When each operation ends if a message of s bytes takes message_ps(s), beside any others.

    The definition, one operation after another: it starts when all it waits for have ended.
    """
    ended = np.full(len(graph), -1, dtype=np.int64)
    channels: dict[tuple[int, int, int], list[int]] = {}
    for i in np.flatnonzero(graph.kind == SEND):
        key = (int(graph.rank[i]), int(graph.peer[i]), int(graph.tag[i]))
        channels.setdefault(key, []).append(int(i))
    source_of = {}
    seen: Counter[tuple[int, int, int]] = Counter()
    for i in np.flatnonzero(graph.kind == RECEIVE):
        key = (int(graph.peer[i]), int(graph.rank[i]), int(graph.tag[i]))
        source_of[int(i)] = channels[key][seen[key]]
        seen[key] += 1

    def finish(i: int) -> None:
        stack = [i]
        while stack:
            at = stack[-1]
            before = graph.dependency[graph.dependency_start[at] : graph.dependency_start[at + 1]]
            needed = [*map(int, before)] + ([source_of[at]] if at in source_of else [])
            open_ = [n for n in needed if ended[n] < 0]
            if open_:
                assert len(stack) <= len(graph), "a cycle"
                stack.append(open_[0])
                continue
            start = max((int(ended[n]) for n in before), default=0)
            if graph.kind[at] == COMPUTE:
                ended[at] = start + graph.amount[at]
            elif graph.kind[at] == SEND:
                ended[at] = start + message_ps(int(graph.amount[at]))
            else:
                ended[at] = max(start, int(ended[source_of[at]]))
            stack.pop()

    for i in range(len(graph)):
        finish(i)
    return ended


@pytest.mark.parametrize(
    ("pattern", "sent"),
    [
        ("shuffle", [12_000_000] * 4),
        ("partition-aggregate", [3 * 64, *[12_000_000] * 3]),
        ("star", [36_000_000, *[12_000_000] * 3]),
        ("all-reduce", [18_000_000] * 4),  # 2 (n - 1) / n of the vector
        ("bulk-synchronous", [12_000_000 + 2 * 64] * 4),  # and log2(n) signals of a barrier
    ],
)
@pytest.mark.parametrize("flows", [1, 3])
@pytest.mark.parametrize("overlap", [0.0, 0.5, 1.0])
def test_each_instance_sends_what_the_pattern_says(
    pattern: str, sent: list[int], flows: int, overlap: float
) -> None:
    graph = build_graph(make_job(one_stage(pattern, flows=flows, overlap=overlap)))
    assert count_sent_bytes(graph).tolist() == sent


@pytest.mark.parametrize("pattern", ["shuffle", "star", "all-reduce", "bulk-synchronous"])
def test_every_message_is_received_once_and_waits_stay_within_an_instance(pattern: str) -> None:
    graph = build_graph(make_job(one_stage(pattern, flows=2, overlap=0.3), loops=3, instances=5))
    messages = [
        Counter(zip(*(column[graph.kind == kind].tolist() for column in columns), strict=True))
        for kind, columns in (
            (SEND, (graph.rank, graph.peer, graph.tag, graph.amount)),
            (RECEIVE, (graph.peer, graph.rank, graph.tag, graph.amount)),
        )
    ]
    assert messages[0] == messages[1]
    waiting = np.repeat(np.arange(len(graph)), np.diff(graph.dependency_start))
    assert (graph.rank[waiting] == graph.rank[graph.dependency]).all()
    assert (np.diff(graph.rank) >= 0).all()


@pytest.mark.parametrize("pattern", ["shuffle", "partition-aggregate", "star", "bulk-synchronous"])
@pytest.mark.parametrize(("overlap", "expected_ms"), [(0.0, 2 * 15), (1.0, 2 * 10), (0.4, 2 * 15)])
def test_a_loop_lasts_as_long_as_its_longest_chain(
    pattern: str, overlap: float, expected_ms: int
) -> None:
    """Each message takes 5 ms, requests and barriers nothing: 10 + 5 ms, or max(10, 5) ms.

    A star answers: 10 + 2·5 ms, or max(10, 2·5) ms.
    """
    graph = build_graph(make_job(one_stage(pattern, overlap=overlap), loops=2))
    ended = run_graph(graph, lambda size: 0 if size == 64 else 5 * MS)
    extra_ms = 2 * 5 if pattern == "star" and overlap < 1 else 0
    assert ended[graph.end].max() == (expected_ms + extra_ms) * MS


def test_a_ring_takes_its_steps_one_after_another() -> None:
    """2 (n - 1) steps of 5 ms after 10 ms of computation."""
    graph = build_graph(make_job(one_stage("all-reduce")))
    ended = run_graph(graph, lambda _: 5 * MS)
    assert ended[graph.end].max() == (10 + 6 * 5) * MS


def test_in_a_ring_everyone_passes_on_the_chunk_that_came_last() -> None:
    """Chunks of 13 bytes among 4: one has 4 bytes, three have 3."""
    graph = build_graph(make_job(one_stage("all-reduce", volume="13 B")))
    sent = [graph.amount[(graph.kind == SEND) & (graph.rank == i)].tolist() for i in range(4)]
    for i in range(4):
        assert sent[i][1:] == sent[i - 1][:-1]
    assert sorted(sizes[0] for sizes in sent) == [3, 3, 3, 4]


def test_the_table_of_stages_ends_at_its_limit_and_says_so() -> None:
    job = make_job({"name": "a", "compute": "1 ms"}, {"name": "b", "compute": "1 ms"})
    begin_ps = np.zeros((MAX_ROWS // 2 + 1, 2, 4), dtype=np.int64)
    times = JobTimes(
        job=job, hosts=("h0",) * 4, begin_ps=begin_ps, end_ps=begin_ps + MS, is_complete=True
    )
    rows = build_rows([times])
    assert len(rows) == MAX_ROWS
    assert (rows[-1]["loop"], rows[-1]["stage"]) == ((MAX_ROWS - 1) // 2, "b")
    assert f"the table of stages has the first {MAX_ROWS}" in describe_jobs([times], rows)
    assert len([*describe_jobs([times], rows[:-1])]) == 1


def test_the_time_alone_is_that_of_all_loops_and_the_slowdown_that_of_one() -> None:
    """Three loops of 2 ms alone; beside others the first two of them took 3 ms each."""

    def make_times(loop_ms: int, loops: int) -> JobTimes:
        end_ps = np.arange(1, loops + 1).reshape(-1, 1, 1) * loop_ms * MS
        return JobTimes(
            job=make_job({"name": "a", "compute": "1 ms"}, instances=1),
            hosts=("h0",),
            begin_ps=end_ps - loop_ms * MS,
            end_ps=end_ps,
            is_complete=True,
        )

    quantities = dict(build_slowdown(make_times(3, 2), make_times(2, 3)))
    assert quantities == {"j.alone": Scalar(6000.0, "us"), "j.slowdown": Scalar(1.5, "")}


def test_two_instances_have_a_barrier_too() -> None:
    graph = build_graph(make_job(one_stage("bulk-synchronous", neighbours=1), instances=2))
    assert count_sent_bytes(graph).tolist() == [12_000_000 + 64] * 2


def test_a_barrier_holds_everyone_until_the_last_has_come() -> None:
    slow_first = make_job(
        {"name": "wait", "compute": "1 ms"}, one_stage("bulk-synchronous", neighbours=1)
    )
    graph = build_graph(slow_first)
    # Instance 0 computes three times as long in the second stage.
    late = np.flatnonzero((graph.kind == COMPUTE) & (graph.amount == 10 * MS))[0]
    graph.amount[late] *= 3
    ended = run_graph(graph, lambda _: 0)
    assert (ended[graph.end[0, 1]] == 31 * MS).all()


def test_stages_side_by_side_both_wait_for_the_first_and_the_last_waits_for_both() -> None:
    job = make_job(
        {"name": "last", "compute": "1 ms", "after": ["left", "right"]},
        {"name": "first", "compute": "2 ms", "after": []},
        {"name": "left", "compute": "4 ms", "after": "first"},
        {"name": "right", "compute": "8 ms", "after": "first"},
    )
    assert [stage.name for stage in job.stages] == ["first", "left", "right", "last"]
    ended = run_graph(build_graph(job), lambda _: 0)
    assert ended[build_graph(job).end].max() == 11 * MS  # with a processor for each computation


def test_the_bound_of_a_loop_is_its_computation_or_its_busiest_link() -> None:
    job = make_job(one_stage("shuffle"), one_stage("partition-aggregate"))
    assert bound_loop_ps(job, 1e15) == 20 * MS
    # 12 MB of the shuffle and 36 MB of answers end at the aggregator.
    assert bound_loop_ps(job, 1e9) == pytest.approx(48e6 * 8 * 1000, rel=1e-3)


# ---- Placement --------------------------------------------------------------------------------

HOSTS = [f"h{n}" for n in range(8)]
EDGES = [0, 0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("keys", "hosts"),
    [
        ({"placement": "packed"}, (0, 1, 2, 3)),
        ({"placement": "spread"}, (0, 4, 1, 5)),
        ({"hosts": ["h6", "h1..h3"]}, (6, 1, 2, 3)),
    ],
)
def test_hosts_of_a_placement(keys: dict[str, Any], hosts: tuple[int, ...]) -> None:
    assert place_jobs([make_job({"compute": "1 s"}, **keys)], HOSTS, EDGES, 1) == [hosts]


def test_random_places_depend_on_the_seed_and_avoid_busy_hosts() -> None:
    jobs = [make_job({"compute": "1 s"}, name=n, placement="random") for n in ("a", "b", "c")]
    placed = place_jobs(jobs, HOSTS, EDGES, 1)
    assert placed == place_jobs(jobs, HOSTS, EDGES, 1)
    assert any(place_jobs(jobs, HOSTS, EDGES, seed) != placed for seed in range(2, 9))
    assert set(placed[0]) | set(placed[1]) == set(range(8))
    assert len(set(placed[2])) == 4


# ---- Bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "keys", "line"),
    [
        (
            [{"name": "a", "after": "b"}, {"name": "b", "after": "a"}],
            {},
            "job: stage: a cycle: a waits for b waits for a; leave out one `after` of it",
        ),
        (
            [one_stage("shuffle", volume="-1 MB")],
            {},
            "job: stage.1.volume: -1000000 is out of range; use 0 to 1099511627776",
        ),
        (
            [one_stage("broadcast")],
            {},
            "job: stage.1.pattern: 'broadcast' is unknown; use one of shuffle, "
            "partition-aggregate, star, all-reduce, bulk-synchronous",
        ),
        (
            [one_stage("shuffle", overlap=1.5)],
            {},
            "job: stage.1.overlap: 1.5 is out of range; use 0.0 to 1.0",
        ),
        (
            [one_stage("shuffle", compute="-3 ms")],
            {},
            "job: stage.1.compute: '-3 ms' is too short; use 0 ps or more",
        ),
        ([{"volume": "1 MB"}], {}, None),
        (
            [one_stage("shuffle", after="x")],
            {},
            "job: stage.1.after: 'x' is not a stage; stages are 1",
        ),
        (
            [one_stage("star", servers=4)],
            {},
            "job: stage.1.pattern: star needs 5 instances, and the job has 4; use more instances",
        ),
        ([one_stage("shuffle", servers=1)], {}, None),
        ([], {}, "job: stage: 0 stages; use 1 to 1000"),
        ([{}], {"loops": 0}, None),
        ([{}], {"instances": 0}, None),
        ([{}], {"sl": 16}, None),
        ([{}], {"placement": "anywhere"}, None),
        ([{"name": "a"}, {"name": "a"}], {}, None),
        ([{}], {"name": "a b"}, None),
        ([{}], {"hots": ["h0"]}, None),
    ],
)
def test_bad_input_is_one_line_that_names_the_key(
    stages: list[dict[str, Any]], keys: dict[str, Any], line: str | None
) -> None:
    with pytest.raises(InputError) as refused:
        make_job(*stages, **keys)
    assert str(refused.value).startswith("job: ")
    assert "\n" not in str(refused.value)
    if line is not None:
        assert str(refused.value) == line


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            {"instances": 9},
            "job: instances: 9 instances, and the fabric has 8 hosts; use 8 or fewer",
        ),
        (
            {"hosts": ["h0"], "instances": 2},
            "job: instances: 2 instances, and `hosts` has 1 hosts; use 1 or fewer",
        ),
        ({"hosts": ["h0", "h0"]}, "job: hosts: 'h0' is named twice; name each host once"),
        ({"hosts": ["x"]}, "job: hosts: 'x' is not a host; hosts are h0, h1, h2 … h7"),
    ],
)
def test_a_job_that_does_not_fit_is_refused(keys: dict[str, Any], line: str) -> None:
    with pytest.raises(InputError) as refused:
        place_jobs([make_job({"compute": "1 s"}, **keys)], HOSTS, EDGES, 1)
    assert str(refused.value) == line


def test_keys_beside_a_file_replace_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('name = "a"\ninstances = 2\n[[stage]]\ncompute = "1 ms"\n')
    assert load_job(path).name == "a"
    job = read_job(Table({"file": "job.toml", "name": "b", "loops": 5}, "scenario"), tmp_path)
    assert (job.name, job.instances, job.loops) == ("b", 2, 5)


# ---- In a scenario ----------------------------------------------------------------------------

SCENARIO = """
duration = "1 s"
[fabric]
topology = "one_switch"
hosts = 2
rate = "1 Gb/s"
delay = "1 us"
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            '[[job]]\nname = "j"\ninstances = 3\n[[job.stage]]\n',
            "job.j: instances: 3 instances, and the fabric has 2 hosts; use 2 or fewer",
        ),
        (
            '[[job]]\nname = "j"\ninstances = 2\n[[job.stage]]\noverlap = 2\npattern = "shuffle"\n',
            "job.j.stage.1.overlap: 2 is out of range; use 0.0 to 1.0",
        ),
        ('[[job]]\nfile = "nowhere.toml"\n', None),
        (
            '[[job]]\nname = "j"\ninstances = 1\n[[job.stage]]\n'
            '[[job]]\nname = "j"\ninstances = 1\n[[job.stage]]\n',
            "traffic: the name 'j' is used twice; rename one",
        ),
        (
            '[[job]]\nname = "j"\ninstances = 2\nsl = 3\n[[job.stage]]\nvolume = "1 kB"\n'
            'pattern = "shuffle"\n[lanes]\nsl2vl = [0]\nlow = []\nhigh = []\n',
            None,
        ),
        (
            '[[job]]\nname = "j"\ninstances = 2\nloops = "until the end"\n[[job.stage]]\n'
            'compute = "1 ms"\nvolume = "1 kB"\npattern = "shuffle"\n[[traffic]]\nname = "t"\n'
            'kind = "bandwidth"\nfrom = "h0"\nto = "h1"\nsize = "1 kB"\nstop = "j"\n',
            "traffic.t.stop: 'j' does not end by itself; name traffic with a number of messages "
            "and without such a stop",
        ),
    ],
)
def test_a_bad_job_of_a_scenario_is_one_line_with_status_2(
    text: str, line: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO + text)
    assert main(["simulate", str(path)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert err.startswith("weft: ")
    if line is not None:
        assert err == f"weft: {path}: {line}\n"


def test_a_stage_has_one_flow_two_neighbours_and_no_overlap_unless_it_says_so() -> None:
    (stage,) = make_job({"name": "a", "pattern": "bulk-synchronous", "volume": "1 KiB"}).stages
    assert (stage.flows, stage.neighbours, stage.overlap) == (1, 2, 0.0)
    (computes,) = make_job({"name": "a", "compute": "1 ms"}).stages
    assert (computes.flows, computes.neighbours, computes.overlap) == (1, 0, 0.0)
