"""Chakra execution traces: one file of nodes per rank, NAME.0.et, NAME.1.et, ….

Each file has messages of protobuf, each with its length in front: metadata, then nodes. Read are
computations (their duration; those of the host and of the device run side by side), sends and
receives, and collectives, which become the operations of the first algorithm of each. The i-th
collective of a process group (`pg_name`) is the same on all its ranks. Nodes of other types pass
dependencies on after their duration. Entry points: `read_chakra`, `list_rank_files`. Units: ps,
bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.errors import InputError
from weft.simulate.workload.collectives import FIRST_COLLECTIVE_TAG, CollectiveCalls, Ends
from weft.simulate.workload.operations import Builder, Operations, check_operations

COMPUTE, SEND, RECEIVE, COLLECTIVE = 4, 5, 6, 7
COLLECTIVES = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "reduce-scatter",
    "barrier",
)
DEVICE_CPU, HOST_CPU, MARK_CPU = 0, 1, 2  # marks take no time, so their processor is always free
MAX_BYTES = 2**53
PS_PER_MICROSECOND = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """One node of one rank."""

    place: str  # file and node, as errors name it
    rank: int
    number: int
    type: int
    duration_ps: int
    after: tuple[int, ...]
    attributes: dict[str, Any]

    def integer(self, name: str, limit: int) -> int:
        value = self.attributes.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(self.place, f"has no number {name}", "export the trace with it")
        if not 0 <= value <= limit:
            raise InputError(self.place, f"{name} is {value}", f"0 to {limit} is possible")
        return value


def list_rank_files(first: Path) -> list[Path]:
    """NAME.0.et and those of the ranks after it, as far as they are there without a gap."""
    if not first.name.endswith(".0.et"):
        raise InputError(
            str(first), "is not the trace of rank 0", "name the file of rank 0, NAME.0.et"
        )
    stem = first.name.removesuffix("0.et")
    files = [first]
    while (following := first.with_name(f"{stem}{len(files)}.et")).exists():
        files.append(following)
    return files


def read_chakra(first: Path) -> Operations:
    """The workload in the traces of all ranks, named by that of rank 0."""
    files = list_rank_files(first)
    ranks = [list(_read_nodes(path, rank)) for rank, path in enumerate(files)]
    builder = Builder(len(ranks))
    ends = _add_nodes(builder, ranks)
    _add_dependencies(builder, ranks, ends)
    operations = builder.build()
    check_operations(operations, str(first))
    return operations


# ---- Files ------------------------------------------------------------------------------------


def _read_nodes(path: Path, rank: int) -> Iterator[_Node]:
    try:
        from google.protobuf.message import DecodeError

        from weft.simulate.workload import chakra_pb2 as pb
    except ImportError:
        raise InputError(
            str(path), "reading it needs protobuf", "pip install 'weft[control]'"
        ) from None
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error), "check the path") from error
    for number, message in enumerate(_split_messages(data, str(path))):
        try:
            if number == 0:
                pb.GlobalMetadata.FromString(message)
                continue
            node = pb.Node.FromString(message)
        except DecodeError:
            raise InputError(
                f"{path} message {number}", "is not Chakra's", "export the trace again"
            ) from None
        yield _Node(
            place=f"{path} node {node.id} {node.name!r}",
            rank=rank,
            number=node.id,
            type=node.type,
            duration_ps=node.duration_micros * PS_PER_MICROSECOND,
            after=(*node.ctrl_deps, *node.data_deps),
            attributes={a.name: getattr(a, a.WhichOneof("value") or "name") for a in node.attr},
        )


def _split_messages(data: bytes, path: str) -> Iterator[bytes]:
    """Messages that follow each other, each after its length as a varint."""
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            if at == len(data) or shift > 28:
                raise InputError(path, f"ends in a length at byte {at}", "export the trace again")
            size |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                break
        if at + size > len(data):
            raise InputError(
                path,
                f"is cut off: {size} bytes should follow byte {at}, {len(data) - at} do",
                "export or copy the trace again",
            )
        yield data[at : at + size]
        at += size
    if not data:
        raise InputError(path, "is empty", "export the trace again")


# ---- Operations -------------------------------------------------------------------------------


def _add_nodes(builder: Builder, ranks: Sequence[Sequence[_Node]]) -> list[dict[int, Ends]]:
    """Add every node's operations; by rank and node number, its first and its last."""
    ends: list[dict[int, Ends]] = [{} for _ in ranks]
    calls = CollectiveCalls(builder, MARK_CPU)
    for nodes in ranks:
        for node in nodes:
            if node.number in ends[node.rank]:
                raise InputError(node.place, "its number is used twice", "export the trace again")
            if node.type == COLLECTIVE:
                ends[node.rank][node.number] = _enter_collective(calls, node)
            else:
                operation = _add_simple(builder, node)
                ends[node.rank][node.number] = Ends(operation, operation)
    calls.add_operations()
    return ends


def _enter_collective(calls: CollectiveCalls, node: _Node) -> Ends:
    operation = COLLECTIVES[node.integer("comm_type", len(COLLECTIVES) - 1)]
    size = 1 if operation == "barrier" else node.integer("comm_size", MAX_BYTES)
    group = str(node.attributes.get("pg_name", ""))
    return calls.enter(node.rank, group, operation, size, node.place)


def _add_simple(builder: Builder, node: _Node) -> int:
    if node.type == SEND:
        peer = node.integer("comm_dst", builder.ranks - 1)
        tag = node.integer("comm_tag", FIRST_COLLECTIVE_TAG - 1)
        return builder.send(node.rank, peer, node.integer("comm_size", MAX_BYTES), tag=tag)
    if node.type == RECEIVE:
        peer = node.integer("comm_src", builder.ranks - 1)
        tag = node.integer("comm_tag", FIRST_COLLECTIVE_TAG - 1)
        return builder.receive(node.rank, peer, node.integer("comm_size", MAX_BYTES), tag=tag)
    if node.duration_ps == 0:
        if node.type == COMPUTE and node.attributes.get("num_ops"):
            raise InputError(
                node.place, "has num_ops but no duration", "weft has no model of processors"
            )
        return builder.compute(node.rank, 0, cpu=MARK_CPU)
    cpu = HOST_CPU if node.attributes.get("is_cpu_op") else DEVICE_CPU
    return builder.compute(node.rank, node.duration_ps, cpu=cpu)


def _add_dependencies(
    builder: Builder, ranks: Sequence[Sequence[_Node]], ends: Sequence[dict[int, Ends]]
) -> None:
    for nodes in ranks:
        for node in nodes:
            numbers = ends[node.rank]
            for before in dict.fromkeys(node.after):
                if before not in numbers:
                    raise InputError(
                        node.place, f"waits for node {before}, which is not there", "export it"
                    )
                builder.require(numbers[node.number].first, numbers[before].last)
