"""A job is the unit: its ranks count once, whoever comes first or leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from control_parts import connect, key, ready, running
from control_rig import Rig

from weft.control.client.job_identity import MAX_LENGTH, find_job
from weft.control.operators.explain import explain_application, explain_port
from weft.control.operators.forecast import forecast_all
from weft.control.runtime.restore import restore_state
from weft.control.state.events import Asker, Deregister, Refusal, Register, Registered
from weft.control.state.policy_settings import Settings
from weft.control.state.state import State
from weft.control.state.step import run_batch
from weft.switches import PortName

ALICE, BOB = Asker(name="alice"), Asker(name="bob")


def start_rank(
    state: State, number: int, job: str = "slurm:7", by: Asker | None = ALICE, name: str = "keen"
) -> tuple[State, str]:
    """One more rank, with a connection from h0 to h2."""
    request = Register(key=key(number, "r"), name=name, ttl_s=10.0, now_s=0.0, job=job, by=by)
    outcome = run_batch(state, [request])
    (answer,) = outcome.answers
    assert isinstance(answer, Registered), answer
    return run_batch(outcome.state, [connect(answer.id, "h0", "h2", number)]).state, answer.id


def start_ranks(state: State, count: int, job: str = "slurm:7") -> tuple[State, list[str]]:
    ids = []
    for number in range(100, 100 + count):
        state, id_ = start_rank(state, number, job)
        ids.append(id_)
    return state, ids


def test_eight_ranks_of_one_job_get_one_jobs_share() -> None:
    state, (neighbour,) = running("calm")
    one, _ = start_rank(state, 99)
    eight, ids = start_ranks(state, 8)
    assert len(eight.applications) == 9
    assert eight.target == one.target
    forecasts = forecast_all(eight)
    assert len({forecasts[id_].share for id_ in ids}) == 1
    assert forecasts[neighbour] == forecast_all(one)[neighbour]
    apart, _ = start_ranks(state, 8, job="")
    assert forecast_all(apart)[neighbour].share < forecasts[neighbour].share


def test_a_job_counts_until_its_last_rank_ends_also_without_its_first() -> None:
    state, _ = running("calm")
    before = state.target
    state, (first, second) = start_ranks(state, 2)
    both = state.target
    state = run_batch(state, [Deregister(key=key(1, "d"), application=first, by=ALICE)]).state
    assert state.target == both
    assert state.applications[second].unit == first
    accounts = explain_application(state, second)
    assert not isinstance(accounts, Refusal)
    assert {a.id for account in accounts for a in account.applications} == {first}
    port = explain_port(state, PortName("h0", 1))
    assert not isinstance(port, Refusal)
    assert len(port.applications) == 2
    state, third = start_rank(state, 200)
    assert state.applications[third].unit == first
    for number, id_ in enumerate((second, third), start=2):
        event = Deregister(key=key(number, "d"), application=id_, by=ALICE)
        state = run_batch(state, [event]).state
    assert state.target == before
    assert "alice" not in state.connections_of


@pytest.mark.parametrize(
    ("job", "by", "name"),
    [
        ("slurm:8", ALICE, "keen"),
        ("slurm:7", BOB, "keen"),
        ("slurm:7", ALICE, "calm"),
        ("", ALICE, "keen"),
    ],
)
def test_other_jobs_users_and_applications_count_apart(job: str, by: Asker, name: str) -> None:
    state, first = start_rank(ready(), 1)
    state, second = start_rank(state, 2, job, by, name)
    assert state.applications[second].unit == second != state.applications[first].unit


def test_jobs_survive_a_restart(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "control.db")
    rig.settle()
    for number in (1, 2):
        request = Register(
            key=key(number, "r"), name="keen", ttl_s=10.0, now_s=0.0, job="slurm:7", by=ALICE
        )
        answer = rig.ask(request)
        assert isinstance(answer, Registered)
        rig.ask(connect(answer.id, "h0", "h2", number))
    state = rig.engine.state
    restored = restore_state(rig.store.load(), Settings(), state.models, 0.0).state
    assert {a.unit for a in restored.applications.values()} == {"keen#1"}
    assert restored.connections_of == state.connections_of
    rig.close()


def test_a_quota_bounds_jobs_and_not_their_ranks() -> None:
    state = ready(Settings(most_jobs_of=2))
    state, _ = start_ranks(state, 8)
    state, _ = start_rank(state, 1, "slurm:8")
    request = Register(key=key(2, "r"), name="calm", ttl_s=10.0, now_s=0.0, by=ALICE)
    (answer,) = run_batch(state, [request]).answers
    assert isinstance(answer, Refusal)
    assert str(answer) == "jobs: alice has 2 at a time; end one, or raise jobs of [quotas]"
    start_rank(state, 3, by=BOB)


def test_a_quota_bounds_the_ranks_of_one_identity_and_leaves_room_for_others() -> None:
    state = ready(Settings(most_registrations_of=8))
    state, _ = start_ranks(state, 8)
    request = Register(key=key(9, "r"), name="keen", ttl_s=10.0, now_s=0.0, job="slurm:7", by=ALICE)
    (answer,) = run_batch(state, [request]).answers
    assert isinstance(answer, Refusal)
    text = "registrations: alice has 8 at a time; end one, or raise registrations of [quotas]"
    assert str(answer) == text
    start_rank(state, 3, by=BOB)


@pytest.mark.parametrize(
    ("environment", "job"),
    [
        ({}, ""),
        ({"WEFT_JOB": "mine", "SLURM_JOB_ID": "7"}, "mine"),
        ({"SLURM_JOB_ID": "7", "PMIX_NAMESPACE": "x"}, "slurm:7"),
        ({"PMIX_NAMESPACE": "prterun-vm-12@1"}, "mpi:prterun-vm-12@1"),
        ({"OMPI_MCA_ess_base_jobid": "12"}, "mpi:12"),
        ({"SPARK_APPLICATION_ID": "spark-1a"}, "spark:spark-1a"),
        ({"CONTAINER_ID": "container_e17_1700000000000_0042_01_000003"}, "yarn:1700000000000_0042"),
        ({"CONTAINER_ID": "another"}, ""),
        ({"WEFT_JOB": "a b\n" + "x" * 200}, "a-b-" + "x" * (MAX_LENGTH - 4)),
    ],
)
def test_a_job_is_named_by_whoever_started_it(
    tmp_path: Path, environment: dict[str, str], job: str
) -> None:
    assert find_job(environment, tmp_path / "none") == job


def test_slurms_control_group_names_the_job_where_the_environment_does_not(tmp_path: Path) -> None:
    groups = tmp_path / "cgroup"
    groups.write_text("0::/system.slice/slurmstepd.scope/job_42/step_0/user/task_3\n")
    assert find_job({}, groups) == "slurm:42"
    groups.write_text("0::/user.slice/user-1000.slice/session-2.scope\n")
    assert find_job({}, groups) == ""
