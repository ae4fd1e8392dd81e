"""Traces of MPI programs: real programs under mpirun, and files with every kind of mistake."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.cli import main
from weft.errors import InputError
from weft.simulate import scenario_from, simulate
from weft.simulate.workload import COMPUTE, ENDS, RECEIVE, SEND, STARTS
from weft.simulate.workload.mpi_calls import MpiCalls, read_mpi_calls
from weft.simulate.workload.operations import LogGop, run_loggop
from weft.simulate.workload.workload_files import read_goal

EXAMPLE = Path(__file__).parents[2] / "examples" / "mpi" / "stencil.py"
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
TIMEOUT_S = 120
FREE = LogGop(latency_ps=0, overhead_ps=0, gap_ps=0, gap_ps_per_byte=0.0)


def lacking(*programs: str) -> str | None:
    for program in programs:
        if shutil.which(program, path=PATH) is None:
            return f"{program} is not installed; pip install mpich"
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed; pip install 'weft[mpi]'"
    return None


@pytest.fixture
def _mpi() -> None:
    if reason := lacking("mpirun", "mpicc", "cc"):
        if "mpi" in os.environ.get("WEFT_REQUIRE", "").split(","):
            pytest.fail(f"mpi: {reason}")
        pytest.skip(f"mpi: {reason}")


def trace(folder: Path, ranks: int, *command: str) -> tuple[dict[str, Any], MpiCalls]:
    options = ["-o", "run.goal", "--calls", "calls", "--json"]
    program = ["mpirun", "-n", str(ranks), *command]
    done = subprocess.run(
        [sys.executable, "-m", "weft.cli", "trace", *options, "--", *program],
        cwd=folder,
        env=os.environ | {"PATH": PATH},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), read_mpi_calls(folder / "calls")


PROGRAM = """
import time
import numpy as np
from mpi4py import MPI
world = MPI.COMM_WORLD
data, into = np.zeros(50_000), np.zeros(50_000)
time.sleep(0.05)
if world.rank == 0:
    world.Send(data[:100], dest=1, tag=7)
    time.sleep(0.03)
    world.Send(data, dest=1, tag=8)
elif world.rank == 1:
    world.Recv(into, source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
    request = world.Irecv(into, source=0, tag=8)
    time.sleep(0.01)
    request.Wait()
pair = world.Split(world.rank % 2, -world.rank)
pair.Bcast(data, root=1)
world.Allreduce(data[:10], into[:10])
world.Barrier()
"""


@pytest.mark.usefixtures("_mpi")
def test_a_traced_program_becomes_its_operations(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    answer, calls = trace(tmp_path, 4, sys.executable, "program.py")
    operations = calls.operations
    assert answer["ranks"] == operations.ranks == 4
    goal = read_goal(tmp_path / "run.goal")
    assert len(goal) == len(operations) == answer["operations"]
    sends = [
        (int(operations.rank[i]), int(operations.peer[i]), int(operations.size_bytes[i]))
        for i in operations.sends
        if operations.tag[i] < 2**31
    ]
    assert sends == [(0, 1, 800), (0, 1, 400_000)]
    # Members of `pair` are in falling order of their ranks: its root, 1, is rank 0 or 1.
    broadcasts = {
        (int(operations.rank[i]), int(operations.peer[i]))
        for i in operations.sends
        if operations.size_bytes[i] == 400_000 and operations.tag[i] >= 2**31
    }
    assert broadcasts == {(0, 2), (1, 3)}
    # What it slept is computation; a replay without a network takes no longer than the program.
    free_ps = int(run_loggop(operations, FREE).rank_ps.max())
    assert 80e9 <= free_ps <= max(calls.real_ps)
    assert answer["computation_us"] == free_ps / 1e6
    assert answer["real_us"] == max(calls.real_ps) / 1e6


@pytest.mark.usefixtures("_mpi")
def test_the_example_runs_on_a_simulated_fabric(tmp_path: Path) -> None:
    _, calls = trace(tmp_path, 3, sys.executable, str(EXAMPLE), "4")
    operations = calls.operations
    borders = (operations.kind == SEND) & (operations.tag == 1)
    assert operations.size_bytes[borders].tolist() == [32_768] * 12
    data = {
        "duration": "100 s",
        "fabric": {"topology": "one_switch", "hosts": 3, "rate": "100 Gb/s", "delay": "10 ns"},
        "traffic": [{"name": "job", "kind": "workload", "file": "run.goal"}],
    }
    outcome = simulate(scenario_from(data, base=tmp_path))
    assert outcome.ended == "finished"


C_PROGRAM = """
#include <mpi.h>
int main(int argc, char **argv) {
  int rank, size;
  double mine[64] = {0}, other[64];
  MPI_Request requests[2];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  int next = (rank + 1) % size, last = (rank + size - 1) % size;
  MPI_Sendrecv(mine, 64, MPI_DOUBLE, next, 5, other, 64, MPI_DOUBLE, last, 5, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
  MPI_Irecv(other, 8, MPI_INT, last, 6, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(mine, 8, MPI_INT, next, 6, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  MPI_Gather(mine, 2, MPI_INT, rank ? 0 : other, 2, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_Finalize();
}
"""


@pytest.mark.usefixtures("_mpi")
def test_a_program_in_c_is_traced(tmp_path: Path) -> None:
    (tmp_path / "ring.c").write_text(C_PROGRAM)
    compiler = shutil.which("mpicc", path=PATH)
    assert compiler
    subprocess.run([compiler, "-o", "ring", "ring.c"], cwd=tmp_path, check=True, timeout=60)
    _, calls = trace(tmp_path, 3, "./ring")
    operations = calls.operations
    for tag, size in ((5, 512), (6, 32)):
        sends = (operations.kind == SEND) & (operations.tag == tag)
        assert operations.size_bytes[sends].tolist() == [size] * 3
        assert operations.peer[sends].tolist() == [1, 2, 0]
    gathered = (operations.kind == RECEIVE) & (operations.tag >= 2**31) & (operations.rank == 0)
    assert operations.size_bytes[gathered].sum() == 16


# ---- Files ------------------------------------------------------------------------------------


def write(folder: Path, *ranks: str) -> Path:
    for rank, text in enumerate(ranks):
        header = f"weft-mpi-trace 1 {rank} {len(ranks)}\n"
        (folder / f"c.{rank}").write_text(header + text + "\n9 9 end 5000\n")
    return folder / "c"


def test_gaps_are_computations_and_small_sends_let_their_rank_go_on(tmp_path: Path) -> None:
    calls = read_mpi_calls(
        write(
            tmp_path,
            "10 1 send to 0 1 100 4\n20 1 send to 1 1 70000 4",
            "0 1 recv received 0 0 100 4\n0 1 recv received 1 0 70000 4",
        )
    )
    operations = calls.operations
    assert operations.kind.tolist() == [
        COMPUTE,
        SEND,
        COMPUTE,
        SEND,
        COMPUTE,
        RECEIVE,
        RECEIVE,
        COMPUTE,
    ]
    assert operations.duration_ps[operations.kind == COMPUTE].tolist() == [
        10_000,
        20_000,
        9000,
        9000,
    ]
    # compute <- send <- (start of the send) compute <- send <- (its end) compute
    assert operations.dependency_kind.tolist() == [ENDS, STARTS, ENDS, ENDS, ENDS, ENDS]
    assert calls.real_ps == (5_000_000, 5_000_000)


def test_a_wait_waits_for_its_requests_and_not_for_others(tmp_path: Path) -> None:
    calls = read_mpi_calls(
        write(
            tmp_path,
            "0 1 irecv from 0\n0 1 irecv from 1\n0 1 wait received 1 1 8 2\n"
            "5 1 wait received 0 1 8 1",
            "0 1 isend to 0 0 8 2\n0 1 isend to 1 0 8 1\n0 1 wait sent 0 sent 1",
        )
    )
    operations = calls.operations
    first = operations.kind[:4].tolist()
    assert first == [RECEIVE, RECEIVE, COMPUTE, COMPUTE]
    starts = operations.dependency_start
    after = operations.dependency[starts[2] : starts[3]].tolist()
    assert 1 in after
    kinds = dict(
        zip(after, operations.dependency_kind[starts[2] : starts[3]].tolist(), strict=True)
    )
    assert kinds[1] == ENDS
    assert 0 not in kinds
    assert len(run_loggop(operations, FREE).waiting) == 0


BAD = {
    "MPI_Alltoallv has no place in a workload": ("0 1 unsupported MPI_Alltoallv", ""),
    "'0 1 whisper to 0' is not a call": ("0 1 whisper to 0", ""),
    "'x y send' is not a call": ("x y send", ""),
    "'0 1 wait sent 4' is not a call": ("0 1 wait sent 4", ""),
    "rank 0 sends 1 messages to rank 1 with tag 2, which receives 0": ("0 1 send to 0 1 8 2", ""),
    "is barrier of 1 B, but rank 0 has all-reduce of 8 B there": (
        "0 1 all-reduce 8 0 *",
        "0 1 barrier 1 0 *",
    ),
}


@pytest.mark.parametrize("problem", BAD)
def test_a_mistake_in_a_trace_is_named_in_one_line(tmp_path: Path, problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_mpi_calls(write(tmp_path, *BAD[problem]))
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_a_program_that_never_finalized_or_lost_a_rank_is_refused(tmp_path: Path) -> None:
    prefix = write(tmp_path, "", "")
    (tmp_path / "c.1").write_text("weft-mpi-trace 1 1 2\n0 1 barrier 1 0 *\n")
    with pytest.raises(InputError, match=r"c\.1: has no end: MPI_Finalize was not called"):
        read_mpi_calls(prefix)
    (tmp_path / "c.1").unlink()
    with pytest.raises(InputError, match=r"c\.1: No such file"):
        read_mpi_calls(prefix)
    (tmp_path / "c.0").write_bytes(np.arange(256, dtype=np.uint8).tobytes())
    with pytest.raises(InputError, match="is not a trace of MPI calls"):
        read_mpi_calls(prefix)


@pytest.mark.parametrize(
    "words", [["-o", "/nowhere/x.goal"], ["-o", "x.goal", "--calls", "/nowhere/p"]]
)
def test_an_output_that_cannot_be_written_is_refused_before_the_program_runs(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["trace", *words, "--", "touch", "ran"]) == 2
    assert not (tmp_path / "ran").exists()
