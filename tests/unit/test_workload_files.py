"""Workloads as arrays and as GOAL text: what is read is what was written; errors name the line."""

from pathlib import Path

import pytest

from weft.errors import InputError
from weft.simulate.workload import COMPUTE, ENDS, RECEIVE, SEND, STARTS, Builder
from weft.simulate.workload.operations import LogGop, run_loggop
from weft.simulate.workload.workload_files import read_goal

README = LogGop(
    latency_ps=2_500_000, overhead_ps=1_500_000, gap_ps=1_000_000, gap_ps_per_byte=6000.0
)

EXAMPLE = """
// a ping and its answer
num_ranks 2
rank 0 {
  l1: calc 100 cpu 1
  ping: send 1024b to 1 tag 7
  ping requires l1
  pong: recv 8b from 1 tag 8 cpu 0 nic 0
  pong irequires ping
}
/* the other
   side */
rank 1 {
  got: recv 1024b from 0 tag 7
  send 8b to 0 tag 8
  back: calc 5
  back requires got
}
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_goal_file_gives_its_operations(tmp_path: Path) -> None:
    goal = read_goal(write(tmp_path / "a.goal", EXAMPLE))
    assert goal.ranks == 2
    assert goal.kind.tolist() == [COMPUTE, SEND, RECEIVE, RECEIVE, SEND, COMPUTE]
    assert goal.rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert goal.duration_ps.tolist() == [100_000, 0, 0, 0, 0, 5000]
    assert goal.size_bytes.tolist() == [0, 1024, 8, 1024, 8, 0]
    assert goal.tag.tolist() == [0, 7, 8, 7, 8, 0]
    assert goal.cpu.tolist() == [1, 0, 0, 0, 0, 0]
    assert goal.dependency_start.tolist() == [0, 0, 1, 2, 2, 2, 3]
    assert goal.dependency.tolist() == [0, 1, 3]
    assert goal.dependency_kind.tolist() == [ENDS, STARTS, ENDS]


def test_a_builder_puts_operations_in_order_of_ranks() -> None:
    builder = Builder(2)
    late = builder.compute(1, 10)
    builder.compute(0, 20)
    builder.compute(1, 30, after=[late])
    operations = builder.build()
    assert operations.duration_ps.tolist() == [20, 10, 30]
    assert operations.dependency.tolist() == [1]
    assert operations.dependency_start.tolist() == [0, 0, 0, 1]


def test_an_appended_workload_waits_for_what_is_given_and_returns_its_last() -> None:
    inner = Builder(2)
    first = inner.compute(0, 5)
    inner.compute(0, 6, after=[first])
    inner.compute(1, 7)
    outer = Builder(2)
    before = outer.compute(0, 1)
    last = outer.append(inner.build(), [[before], []])
    assert last == [[2], [3]]
    operations = outer.build()
    assert operations.dependency.tolist() == [0, 1]


BAD = {
    "send 8b to 1": "line 1: an operation outside a rank",
    "num_ranks 0": "line 1: 0 ranks",
    "num_ranks 2\nnum_ranks 2": "line 2: num_ranks is given twice",
    "rank 0 {\n}": "line 1: rank before num_ranks",
    "num_ranks 2\nrank 2 {\n}": "line 2: rank 2 is too large",
    "num_ranks 2\nrank 0 {\nrank 1 {": "line 3: rank 0 is not closed",
    "num_ranks 2\nrank 0 {\n": "rank 0 is not closed",
    "num_ranks 2\nrank 0 {\n}\nrank 0 {\n}": "line 4: rank 0 is given twice",
    "num_ranks 2\nrank 0 {\nsend 8 to 1\n}": "line 3: 'send 8 to 1' is not GOAL",
    "num_ranks 2\nrank 0 {\nsend 8b to 2\n}": "line 3: rank 2 is too large",
    "num_ranks 2\nrank 0 {\nrecv 8b from -1\n}": "line 3: any source or any tag",
    "num_ranks 2\nrank 0 {\nrecv 8b from 1 tag -1\n}": "line 3: any source or any tag",
    "num_ranks 2\nrank 0 {\ncalc 8 cpu 256\n}": "line 3: cpu 256 is too large",
    "num_ranks 2\nrank 0 {\na: calc 8\na: calc 9\n}": "line 4: label 'a' is used twice",
    "num_ranks 2\nrank 0 {\na: calc 8\na requires b\n}": "line 4: label 'b' is not defined",
    "num_ranks 2\nrank 0 {\nsend 8b to 1 tag 3\n}": "rank 0 sends 1 messages to rank 1 with tag 3",
    "num_ranks 1\nrank 0 {\na: calc 1\nb: calc 1\na requires b\nb requires a\n}": "for itself",
    "": "has no num_ranks",
}


@pytest.mark.parametrize("text", BAD)
def test_a_mistake_in_a_goal_file_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as error:
        read_goal(write(tmp_path / "bad.goal", text))
    assert "bad.goal" in str(error.value)
    assert BAD[text] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_goal_file_that_is_not_there_or_not_text_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_goal(tmp_path / "none.goal")
    (tmp_path / "binary.goal").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_goal(tmp_path / "binary.goal")


def test_ranks_that_wait_for_each_other_never_end() -> None:
    builder = Builder(2)
    for rank in range(2):
        received = builder.receive(rank, 1 - rank, 1)
        builder.send(rank, 1 - rank, 1, after=[received])
    run = run_loggop(builder.build(), README)
    assert run.waiting.tolist() == [0, 1, 2, 3]
