"""The tests over MPI: two real ranks under mpirun, small counts; contents checked by the ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft.errors import InputError
from weft.measure import mpi
from weft.measure.measurement import check_mpi
from weft.measure.mpi import REFUSED, RankJob
from weft.measure.settings.options import settings_from
from weft.measure.tests import TESTS

RANKS = Path(__file__).parents[1] / "support" / "mpi_ranks.py"
MPIRUN = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
TIMEOUT_S = 60


def _lacking() -> str | None:
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed; pip install 'weft[mpi]'"
    if MPIRUN is None:
        return "mpirun is not installed; pip install mpich"
    return None


@pytest.fixture
def mpirun() -> str:
    if reason := _lacking():
        if "mpi" in os.environ.get("WEFT_REQUIRE", "").split(","):
            pytest.fail(f"mpi: {reason}")
        pytest.skip(f"mpi: {reason}")
    assert MPIRUN
    return MPIRUN


def under(mpirun: str, ranks: int, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [mpirun, "-n", str(ranks), sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def outcomes(mpirun: str, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
    """What rank 0 saw of each job; the first line, about the library, is dropped."""
    done = under(mpirun, 2, str(RANKS), json.dumps(jobs))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()[1:]]


def test_every_message_of_a_ping_pong_is_a_sample_and_comes_back_as_sent(mpirun: str) -> None:
    (run,) = outcomes(
        mpirun, {"test": "latency", "count": 300, "warmup": 20, "samples": 50, "validate": True}
    )
    assert run["recorded"] == run["ours"]["sent"] == run["theirs"]["received"] == 300
    assert len(run["samples"]) == 50
    assert run["ours"]["corrupted"] == 0
    assert run["p50_ps"] > 0


def test_a_ping_pong_by_duration_ends_near_it(mpirun: str) -> None:
    (run,) = outcomes(mpirun, {"test": "latency", "duration_ns": 50_000_000, "size_bytes": 1})
    assert run["ours"]["elapsed_ns"] >= 50_000_000
    assert run["recorded"] == run["ours"]["sent"] > 0


@pytest.mark.parametrize("test", ["bandwidth", "bidirectional"])
def test_a_window_is_received_whole_and_unharmed(mpirun: str, test: str) -> None:
    jobs = [
        {"test": test, "count": count, "window": window, "size_bytes": 300, "validate": True}
        for count, window in ((10, 1), (100, 16), (3, 64), (7, 3))
    ]
    for job, run in zip(jobs, outcomes(mpirun, *jobs), strict=True):
        assert job["count"] <= run["ours"]["sent"] <= job["count"] + job["window"]
        assert run["theirs"]["received"] == run["ours"]["sent"]
        assert run["theirs"]["bytes"] == 300 * run["ours"]["sent"]
        assert run["theirs"]["corrupted"] == 0


def test_a_window_above_the_eager_limit_is_received_whole(mpirun: str) -> None:
    (run,) = outcomes(
        mpirun,
        {
            "test": "bandwidth",
            "duration_ns": 50_000_000,
            "window": 8,
            "size_bytes": 1 << 20,
            "validate": True,
        },
    )
    assert run["theirs"]["received"] == run["ours"]["sent"] > 0
    assert run["theirs"]["corrupted"] == 0


@pytest.mark.parametrize("poisson", [False, True])
def test_paced_messages_are_all_answered_and_none_leaves_early(mpirun: str, poisson: bool) -> None:
    (run,) = outcomes(
        mpirun,
        {
            "test": "paced",
            "rate": 2000.0,
            "count": 100,
            "window": 8,
            "warmup": 5,
            "poisson": poisson,
        },
    )
    assert run["recorded"] == run["lateness"] == run["ours"]["received"] == 100
    if not poisson:
        assert run["ours"]["elapsed_ns"] >= 99 * 500_000


def test_a_message_behind_its_time_is_late_by_all_of_it(mpirun: str) -> None:
    job = {"test": "paced", "rate": 1e9, "count": 200, "window": 1, "warmup": 0}
    (run,) = outcomes(mpirun, job)
    # All were meant for the first 200 ns, so the last leaves about as late as the run is long.
    assert run["most_late_ps"] >= 0.5 * run["ours"]["elapsed_ns"] * 1000


@pytest.mark.parametrize("test", ["rma", "rma-windowed"])
def test_one_sided_operations_leave_in_the_target_what_they_should(mpirun: str, test: str) -> None:
    jobs = [
        {
            "test": test,
            "operation": operation,
            "size_bytes": size,
            "count": 96,
            "window": window,
            "validate": True,
        }
        for operation, size in (
            ("write", 5000),
            ("read", 64),
            ("fetch-add", 8),
            ("compare-swap", 8),
        )
        for window in ((16,) if test == "rma-windowed" else (1,))
    ]
    for run in outcomes(mpirun, *jobs):
        assert run["ours"]["sent"] == 96
        assert run["ours"]["corrupted"] == 0


def test_the_cost_of_python_is_told_and_below_that_of_a_message(mpirun: str) -> None:
    done = under(mpirun, 2, str(RANKS), json.dumps([{"test": "latency", "count": 300}]))
    facts, run = (json.loads(line) for line in done.stdout.splitlines())
    assert 0 < facts["python_cost_ns"] < run["p50_ps"] / 1000
    assert facts["library"]


@pytest.mark.parametrize("number", [1, 3])
def test_another_number_of_ranks_is_refused_with_the_command(mpirun: str, number: int) -> None:
    done = under(mpirun, number, str(RANKS), "[]")
    assert done.returncode != 0
    assert f"{number} ranks, 2 are needed" in done.stderr
    assert "mpirun -n 2 weft" in done.stderr


def test_a_job_that_is_refused_ends_both_ranks(mpirun: str) -> None:
    done = under(mpirun, 2, str(RANKS), json.dumps([{"test": "transfer", "count": 1}]))
    assert done.returncode != 0
    assert "write with immediate" in done.stderr


def weft(mpirun: str, *words: str) -> list[dict[str, Any]]:
    """The records of a command under mpirun."""
    done = under(mpirun, 2, "-m", "weft.cli", *words, "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_one_sweep_measures_sockets_and_mpi_and_their_records_are_alike(mpirun: str) -> None:
    sockets, ranks = weft(
        mpirun, "latency", "--sweep", "over=tcp,mpi", "--count", "200", "--samples", "10"
    )
    assert set(ranks["quantities"]) == set(sockets["quantities"]) | {"python_cost"}
    assert ranks["settings"] | {"over": "tcp"} == sockets["settings"]
    assert any("in Python" in note for note in ranks["notes"])


@pytest.mark.parametrize(
    ("words", "quantities"),
    [
        (["bandwidth", "--size", "4KiB"], {"throughput", "sender.throughput", "cpu.user"}),
        (["bandwidth", "--bidirectional"], {"throughput", "back.throughput", "both.throughput"}),
        (["rate", "--depth", "16"], {"message_rate", "throughput"}),
        (["paced", "--rate", "2k"], {"half_rtt", "service.half_rtt", "lateness"}),
        (["rma", "--op", "read"], {"operation", "message_rate"}),
        (["rma", "--op", "write", "--depth", "8"], {"throughput", "message_rate"}),
    ],
)
def test_each_command_over_mpi_observes_what_it_does_elsewhere(
    mpirun: str, words: list[str], quantities: set[str]
) -> None:
    (record,) = weft(mpirun, *words, "--over", "mpi", "--count", "100")
    assert quantities <= set(record["quantities"])


@pytest.mark.parametrize(
    ("test", "given", "problem"),
    [
        ("transfer", {}, "write with immediate"),
        ("latency", {"wait": "block"}, "--wait: mpi has no such setting"),
        ("latency", {"op": "tagged"}, "mpi has no tagged"),
        ("rate", {"qps": 2}, "--qps: mpi has no such setting"),
        ("rate", {"rate": 1000}, "use weft paced"),
    ],
)
def test_settings_without_a_meaning_under_mpi_are_refused(
    test: str, given: dict[str, object], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        check_mpi(TESTS[test], settings_from(TESTS[test].settings, {"over": "mpi", **given}))


def test_a_peer_beside_mpi_is_refused_and_both_ranks_end(mpirun: str) -> None:
    done = under(mpirun, 2, "-m", "weft.cli", "latency", "somehost", "--over", "mpi")
    assert done.returncode != 0
    assert "mpirun starts both ranks" in done.stderr


def test_a_command_without_mpirun_names_the_one_to_use(mpirun: str) -> None:  # noqa: ARG001
    command = [sys.executable, "-m", "weft.cli", "latency", "--over", "mpi"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "run mpirun -n 2 weft latency --over mpi" in done.stderr


def test_without_mpi4py_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    with pytest.raises(InputError, match=r"weft\[mpi\]"):
        mpi.this_rank()


@pytest.mark.parametrize("test", REFUSED)
def test_what_a_pair_of_ranks_cannot_do_is_refused_with_a_reason(test: str) -> None:
    with pytest.raises(InputError, match="not possible"):
        RankJob(test=test, count=1)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"test": "dance"}, "unknown"),
        ({"test": "latency", "count": 0}, "neither count nor duration"),
        ({"test": "latency", "size_bytes": 0}, "below 1 B"),
        ({"test": "bandwidth", "window": 0}, "window 0"),
        ({"test": "bandwidth", "window": 4096, "size_bytes": 1 << 20}, "need more than"),
        ({"test": "paced"}, "rate"),
        ({"test": "rma", "operation": "swap"}, "'swap' is unknown"),
        ({"test": "rma", "operation": "fetch-add", "size_bytes": 64}, "8 B"),
    ],
)
def test_a_job_that_cannot_run_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        RankJob(**({"count": 1} | fields))
