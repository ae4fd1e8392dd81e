"""Chakra traces: nodes become operations; broken and inconsistent traces are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import InputError
from weft.simulate.workload import COMPUTE, RECEIVE, SEND, Operations
from weft.simulate.workload.collectives import Plan, build_collective
from weft.simulate.workload.operations import LogGop, run_loggop
from weft.simulate.workload.workload_files import read_chakra

pb = pytest.importorskip("weft.simulate.workload.chakra_pb2", exc_type=ImportError)

COMP, SENDS, RECEIVES, COLL, MEMORY = 4, 5, 6, 7, 2
NETWORK = LogGop(latency_ps=2500, overhead_ps=1500, gap_ps=1000, gap_ps_per_byte=6.0)


def frame(message: bytes) -> bytes:
    """A message after its length as a varint."""
    size, length = b"", len(message)
    while length > 0x7F:
        size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
    return size + bytes([length]) + message


def node(number: int, kind: int, *after: int, us: int = 0, **attributes: Any) -> bytes:
    made = pb.Node(id=number, name=f"n{number}", type=kind, duration_micros=us, data_deps=after)
    for name, value in attributes.items():
        attribute = made.attr.add(name=name)
        key = {bool: "bool_val", int: "int64_val", str: "string_val"}[type(value)]
        setattr(attribute, key, value)
    return frame(made.SerializeToString())


def trace(folder: Path, *ranks: list[bytes]) -> Path:
    for rank, nodes in enumerate(ranks):
        header = frame(pb.GlobalMetadata(version="0.0.4").SerializeToString())
        (folder / f"t.{rank}.et").write_bytes(header + b"".join(nodes))
    return folder / "t.0.et"


def end_ps(operations: Operations) -> int:
    run = run_loggop(operations, NETWORK)
    assert len(run.waiting) == 0
    return int(run.rank_ps.max())


def test_the_wire_format_is_that_of_the_published_schema(tmp_path: Path) -> None:
    """Bytes written by hand: id 1, name 2, type 3, ctrl 4, data 5, duration 7, attributes 10."""
    first = bytes.fromhex("0801 1201 63 1804 3805".replace(" ", ""))
    attribute = b"\x0a\x09is_cpu_op" + bytes.fromhex("d80101")  # bool_val is field 27
    second = bytes.fromhex("0802 1804 2201 01 3807".replace(" ", "")) + b"\x52" + frame(attribute)
    (tmp_path / "h.0.et").write_bytes(frame(b"") + frame(first))
    with (tmp_path / "h.0.et").open("ab") as file:
        file.write(frame(second))
    operations = read_chakra(tmp_path / "h.0.et")
    assert operations.kind.tolist() == [COMPUTE, COMPUTE]
    assert operations.duration_ps.tolist() == [5_000_000, 7_000_000]
    assert operations.cpu.tolist() == [0, 1]
    assert operations.dependency.tolist() == [0]


def test_a_message_between_two_ranks_has_its_size_and_tag(tmp_path: Path) -> None:
    first = trace(
        tmp_path,
        [node(7, COMP, us=3), node(9, SENDS, 7, comm_dst=1, comm_size=100, comm_tag=5)],
        [node(1, RECEIVES, comm_src=0, comm_size=100, comm_tag=5), node(2, COMP, 1, us=4)],
    )
    operations = read_chakra(first)
    assert operations.kind.tolist() == [COMPUTE, SEND, RECEIVE, COMPUTE]
    assert operations.tag.tolist() == [0, 5, 5, 0]
    assert end_ps(operations) == 3_000_000 + 1500 + 2500 + 1500 + 99 * 6 + 4_000_000


def test_an_all_reduce_takes_the_time_of_its_ring_between_computations(tmp_path: Path) -> None:
    nodes = [
        node(0, COMP, us=2),
        node(1, COLL, 0, comm_type=0, comm_size=4000),
        node(2, COMP, 1, us=3),
    ]
    ring = end_ps(build_collective("all-reduce", "ring", Plan(ranks=4, size_bytes=4000)))
    assert end_ps(read_chakra(trace(tmp_path, *[nodes] * 4))) == ring + 5_000_000


def test_device_computation_overlaps_a_collective_that_does_not_wait_for_it(tmp_path: Path) -> None:
    nodes = [node(0, COMP, us=500), node(1, COLL, comm_type=0, comm_size=4000)]
    operations = read_chakra(trace(tmp_path, *[nodes] * 4))
    ring = build_collective("all-reduce", "ring", Plan(ranks=4, size_bytes=4000))
    # Under LogGOP messages need the processor too; the marks do not.
    assert end_ps(operations) >= 500_000_000
    assert (operations.kind == SEND).sum() == (ring.kind == SEND).sum()


def test_groups_are_the_ranks_that_use_their_name(tmp_path: Path) -> None:
    def nodes(group: str) -> list[bytes]:
        return [node(0, COLL, comm_type=7, comm_size=4000, pg_name=group)]

    operations = read_chakra(trace(tmp_path, *[nodes(g) for g in "abab"]))
    messages = operations.kind != COMPUTE
    assert set(zip(operations.rank[messages], operations.peer[messages], strict=True)) == {
        (0, 2),
        (2, 0),
        (1, 3),
        (3, 1),
    }


@pytest.mark.parametrize("kind", range(10))
def test_every_type_of_collective_ends(tmp_path: Path, kind: int) -> None:
    nodes = [node(0, COLL, comm_type=kind, comm_size=4096)]
    operations = read_chakra(trace(tmp_path, *[nodes] * 4))
    assert end_ps(operations) > 0


def test_other_nodes_pass_their_dependencies_on(tmp_path: Path) -> None:
    nodes = [node(0, COMP, us=1), node(1, 1, 0), node(2, MEMORY, 1, us=2), node(3, COMP, 2, us=4)]
    assert end_ps(read_chakra(trace(tmp_path, nodes))) == 7_000_000


GOOD = [node(0, COMP, us=1), node(1, COLL, 0, comm_type=0, comm_size=64)]
BAD: dict[str, tuple[list[bytes], list[bytes]]] = {
    "waits for node 5": ([node(0, COMP, 5, us=1)], []),
    "its number is used twice": ([node(0, COMP), node(0, COMP)], []),
    "has num_ops but no duration": ([node(0, COMP, num_ops=7)], []),
    "has no number comm_dst": ([node(0, SENDS, comm_size=1, comm_tag=0)], []),
    "comm_dst is 9": ([node(0, SENDS, comm_dst=9, comm_size=1, comm_tag=0)], []),
    "comm_type is 12": ([node(0, COLL, comm_type=12, comm_size=1)], []),
    "rank 0 sends 1 messages to rank 1 with tag 0, which receives 0": (
        [node(0, SENDS, comm_dst=1, comm_size=1, comm_tag=0)],
        [],
    ),
    "is all-reduce of 65 B, but rank 0 has all-reduce of 64 B there": (
        GOOD,
        [node(0, COLL, comm_type=0, comm_size=65)],
    ),
    "does not take part": ([*GOOD, node(2, COLL, comm_type=0, comm_size=64)], GOOD),
    "waits for itself": ([node(0, COMP, 1, us=1), node(1, COMP, 0, us=1)], []),
}


@pytest.mark.parametrize("problem", BAD)
def test_a_mistake_in_a_trace_is_named_in_one_line(tmp_path: Path, problem: str) -> None:
    with pytest.raises(InputError) as error:
        read_chakra(trace(tmp_path, *BAD[problem]))
    assert problem in str(error.value)
    assert "t." in str(error.value)
    assert "\n" not in str(error.value)


def test_a_trace_cut_anywhere_is_refused_or_lacks_whole_nodes(tmp_path: Path) -> None:
    """Cut between messages, a node is missing, and with it what waits for it or its partners."""
    whole = trace(tmp_path, GOOD).read_bytes()
    sizes, problems = [], []
    for cut in range(len(whole)):
        (tmp_path / "t.0.et").write_bytes(whole[:cut])
        try:
            sizes.append(len(read_chakra(tmp_path / "t.0.et")))
        except InputError as error:
            problems.append(str(error))
    assert sizes == [0, 1]
    assert len(problems) == len(whole) - 2
    assert not any("\n" in problem for problem in problems)


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_refused_in_one_line(tmp_path: Path, seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, 200, dtype=np.uint8).tobytes()
    (tmp_path / "t.0.et").write_bytes(noise)
    with pytest.raises(InputError) as error:
        read_chakra(tmp_path / "t.0.et")
    assert "\n" not in str(error.value)


def test_the_file_must_be_that_of_rank_0(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the trace of rank 0"):
        read_chakra(tmp_path / "t.1.et")
    with pytest.raises(InputError, match="No such file"):
        read_chakra(tmp_path / "t.0.et")
