"""Scenarios with workloads: what a run gives, and one line for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError
from weft.records import Scalar
from weft.simulate import scenario_from, simulate

FABRIC = {"topology": "one_switch", "hosts": 4, "rate": "100 Gb/s", "delay": "10 ns"}
JOB = {"name": "job", "kind": "collective", "operation": "all-reduce", "size": "64 KiB"}
LOGGOP = {"L": "2500 ns", "o": "1500 ns", "g": "1000 ns", "G": "6 ns"}

CROSSED = """num_ranks 2
rank 0 {
a: recv 8b from 1
b: send 8b to 1
b requires a
}
rank 1 {
a: recv 8b from 0
b: send 8b to 0
b requires a
}
"""
PING = "num_ranks 2\nrank 0 {\nsend 8b to 1\n}\nrank 1 {\nrecv 8b from 0\n}\n"


def scenario(*traffic: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"duration": "10 ms", "fabric": FABRIC, "traffic": list(traffic)} | changes


def values(data: dict[str, Any], base: Path = Path()) -> dict[str, float]:
    record = simulate(scenario_from(data, base=base)).record
    return {key: q.value for key, q in record.quantities.items() if isinstance(q, Scalar)}


def test_the_table_of_ranks_has_each_rank_with_its_host_and_completion() -> None:
    record = simulate(
        scenario_from(scenario(JOB | {"hosts": ["h2", "h0"], "start": "5 us"}))
    ).record
    rows = record.tables["ranks"]
    assert [(row["workload"], row["rank"], row["host"]) for row in rows] == [
        ("job", 0, "h2"),
        ("job", 1, "h0"),
    ]
    completion = record.quantities["job.completion"]
    assert isinstance(completion, Scalar)
    assert max(float(row["completion_us"] or 0) for row in rows) == completion.value


def test_a_start_moves_the_end_but_not_the_completion() -> None:
    now, later = (values(scenario(JOB | {"start": start})) for start in ("0 ns", "7 us"))
    assert later["job.finished"] == pytest.approx(now["job.finished"] + 7)
    assert later["job.completion"] == pytest.approx(now["job.completion"])


def test_ranks_of_one_host_use_no_link() -> None:
    both = values(scenario(JOB | {"hosts": "h0", "ranks_per_host": 4}))
    assert both["fabric.packet_hops"] == 0
    slow = {"host": {"loopback_rate": "8 Gb/s"}}
    looped = values(scenario(JOB | {"hosts": "h0", "ranks_per_host": 4}, **slow))
    assert looped["job.completion"] == pytest.approx(6 * 16.384)


def test_two_workloads_of_one_scenario_do_not_mix_their_ranks() -> None:
    alone = values(scenario(JOB | {"hosts": "h0..h1"}))
    pair = values(
        scenario(JOB | {"hosts": "h0..h1"}, JOB | {"name": "other", "hosts": "h2..h3", "sl": 1})
    )
    assert pair["job.completion"] == pair["other.completion"] == alone["job.completion"]


def test_traffic_can_stop_with_a_workload() -> None:
    load = {"name": "load", "kind": "bandwidth", "from": "h0", "to": "h1", "size": "4 KiB"}
    outcome = simulate(scenario_from(scenario(load | {"stop": "job"}, JOB)))
    assert outcome.ended == "finished"


def test_a_random_placement_is_drawn_by_the_seed() -> None:
    def hosts(seed: int) -> list[Any]:
        data = scenario(JOB | {"placement": "random"}, seed=seed)
        return [r["host"] for r in simulate(scenario_from(data)).record.tables["ranks"]]

    assert hosts(3) == hosts(3)
    assert sorted(hosts(3)) == ["h0", "h1", "h2", "h3"]
    assert len({tuple(hosts(seed)) for seed in range(8)}) > 1


@pytest.mark.parametrize("network", ["packet", "flow", "loggop"])
def test_ranks_that_wait_for_each_other_are_a_deadlock(tmp_path: Path, network: str) -> None:
    (tmp_path / "crossed.goal").write_text(CROSSED)
    traffic = {"name": "job", "kind": "workload", "file": "crossed.goal"}
    data: dict[str, Any] = scenario(traffic) | {"level": network}
    if network == "loggop":
        data = {"loggop": LOGGOP, "traffic": [traffic]}
    outcome = simulate(scenario_from(data, base=tmp_path))
    assert outcome.ended == "deadlock"
    expected = "deadlock: job: 4 of 4 operations did not end, first rank 0: receive 8 B from rank 1"
    assert any(note.startswith(expected) for note in outcome.record.notes)


def test_time_that_is_too_short_is_noted_with_what_did_not_end() -> None:
    outcome = simulate(scenario_from(scenario(JOB, duration="5 us")))
    assert outcome.ended == "time up"
    assert any("operations did not end" in note for note in outcome.record.notes)
    assert "job.completion" not in outcome.record.quantities


def test_a_loggop_scenario_gives_loggopsims_time_and_its_bound() -> None:
    job = {"name": "r", "kind": "collective", "operation": "reduce", "ranks": 8, "size": "1024 B"}
    observed = values({"loggop": LOGGOP, "traffic": [job]})
    assert observed["r.completion"] == 34.914
    assert observed["r.bus_bound"] == pytest.approx(8 / 6)


BAD: list[tuple[dict[str, Any], str]] = [
    (scenario(JOB | {"ranks": 5}), "job.hosts: 5 ranks do not fit on 4 hosts with 1 ranks each"),
    (scenario(JOB | {"hosts": "h0"}), "one rank has nobody to talk to"),
    (scenario(JOB | {"hosts": ["h0", "h0"]}), "'h0' is named twice"),
    (scenario(JOB | {"operation": "all"}), "job.operation"),
    (scenario(JOB | {"algorithm": "star"}), "job.algorithm"),
    (scenario(JOB | {"ranks": 1}), "job.ranks"),
    (scenario(JOB | {"algorithm": "hierarchical", "group": 3}), "not two or more groups of 3"),
    (
        scenario(JOB | {"operation": "all-gather", "algorithm": "halving-doubling", "ranks": 3}),
        "3 ranks are no power of two",
    ),
    (scenario(JOB | {"transport": "ud"}), "exceeds the MTU"),
    (scenario(JOB | {"placement": "best"}), "job.placement"),
    (scenario({"name": "j", "kind": "workload", "file": "none.goal"}), "No such file"),
    (
        scenario({"name": "j", "kind": "workload", "file": "ping.goal", "operation": "read"}),
        "a read sends nothing",
    ),
    ({"loggop": LOGGOP, "traffic": [JOB]}, "job.ranks: is missing"),
    ({"loggop": LOGGOP, "traffic": [JOB | {"ranks": 4}] * 2}, "'job' is used twice"),
    ({"loggop": {"L": "1 us"}, "traffic": [JOB]}, "loggop.o: is missing"),
    ({"loggop": LOGGOP | {"L": 5}, "traffic": [JOB]}, "loggop.L"),
    ({"loggop": LOGGOP, "fabric": FABRIC, "traffic": [JOB]}, "[fabric] is given"),
    ({"loggop": LOGGOP, "traffic": [JOB | {"kind": "shuffle"}]}, "'shuffle' needs a fabric"),
    ({"loggop": LOGGOP, "traffic": [JOB | {"ranks": 4, "hosts": "all"}]}, "hosts: is not a known"),
]


@pytest.mark.parametrize(("data", "problem"), BAD, ids=[problem for _, problem in BAD])
def test_a_mistake_is_named_in_one_line(data: dict[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / "ping.goal").write_text(PING)
    with pytest.raises(InputError) as error:
        scenario_from(data, base=tmp_path)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)
