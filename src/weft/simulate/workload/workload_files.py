"""Workloads from files: GOAL text and Chakra execution traces.

**GOAL** is what LogGOPSim's tools write:

    num_ranks 2
    rank 0 {
      l1: calc 100 cpu 0
      l2: send 1024b to 1 tag 7
      l2 requires l1
    }

`requires` waits for the end of another operation of the rank, `irequires` only for its start.
Computations are whole nanoseconds. `nic` is read and has no effect: a rank has one adapter.
Comments are `//` to the end of the line and `/* */`.

**Chakra** has one file of nodes per rank, NAME.0.et, NAME.1.et, …. Each file has messages of
protobuf, each with its length in front: metadata, then nodes. Read are computations (their
duration; those of the host and of the device run side by side), sends and receives, and
collectives, which become the operations of the first algorithm of each. The i-th collective of a
process group (`pg_name`) is the same on all its ranks. Nodes of other types pass dependencies on
after their duration.
Entry points: `read_goal`, `write_goal`; `read_chakra`, `list_rank_files`. Units: ps, bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from weft.errors import InputError
from weft.simulate.workload.collectives import FIRST_COLLECTIVE_TAG, CollectiveCalls, Ends
from weft.simulate.workload.operations import (
    COMPUTE,
    ENDS,
    MAX_CPU,
    MAX_RANKS,
    MAX_TAG,
    SEND,
    STARTS,
    Builder,
    Operations,
    check_operations,
)

# ---- GOAL -------------------------------------------------------------------------------------

PS_PER_TICK = 1000  # calc counts nanoseconds
MAX_AMOUNT = 2**53  # bytes or ns

_NUMBER = r"(\d{1,18})"
_LABEL = r"([A-Za-z]\w*)"
_RANKS = re.compile(rf"num_ranks\s+{_NUMBER}")
_RANK = re.compile(rf"rank\s+{_NUMBER}\s*\{{")
_MESSAGE = re.compile(
    rf"(?:{_LABEL}\s*:\s*)?(?:(send)\s+{_NUMBER}\s*b\s+to|(recv)\s+{_NUMBER}\s*b\s+from)\s+"
    rf"(-1|\d{{1,18}})(?:\s+tag\s+(-1|\d{{1,18}}))?(?:\s+cpu\s+{_NUMBER})?(?:\s+nic\s+{_NUMBER})?"
)
_COMPUTE = re.compile(rf"(?:{_LABEL}\s*:\s*)?calc\s+{_NUMBER}(?:\s+cpu\s+{_NUMBER})?")
_DEPENDENCY = re.compile(rf"{_LABEL}\s+(i?requires)\s+{_LABEL}")


def read_goal(path: Path) -> Operations:
    """The workload in a GOAL file; an error names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error), "check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(
            str(path), f"byte {error.start} is not UTF-8", "give a GOAL text file"
        ) from error
    operations = _Reader(str(path)).read(text)
    check_operations(operations, str(path))
    return operations


class _Reader:
    """State of a file being read: its builder, the rank, and the rank's labels."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line = 0
        self.builder: Builder | None = None
        self.rank: int | None = None
        self.closed: set[int] = set()
        self.labels: dict[str, int] = {}
        self.dependencies: list[tuple[int, str, str, int]] = []

    def read(self, text: str) -> Operations:
        for self.line, line in _statements(text):
            self._read_statement(line)
        if self.builder is None:
            raise InputError(self.path, "has no num_ranks", "begin with 'num_ranks N'")
        if self.rank is not None:
            raise InputError(self.path, f"rank {self.rank} is not closed", "end it with '}'")
        return self.builder.build()

    def _read_statement(self, line: str) -> None:
        if match := _RANKS.fullmatch(line):
            self._set_ranks(int(match[1]))
        elif match := _RANK.fullmatch(line):
            self._open_rank(int(match[1]))
        elif line == "}":
            self._close_rank()
        elif match := _DEPENDENCY.fullmatch(line):
            self._rank()
            kind = STARTS if match[2] == "irequires" else ENDS
            self.dependencies.append((self.line, match[1], match[3], kind))
        elif match := _COMPUTE.fullmatch(line):
            rank, builder = self._rank()
            duration = self._limit(match[2], MAX_AMOUNT, "time") * PS_PER_TICK
            cpu = self._limit(match[3] or "0", MAX_CPU, "cpu")
            self._name(match[1], builder.compute(rank, duration, cpu=cpu))
        elif match := _MESSAGE.fullmatch(line):
            self._read_message(match)
        else:
            self._fail(
                f"{line[:60]!r} is not GOAL",
                "write 'calc N', 'send Nb to R', 'recv Nb from R' or 'A requires B'",
            )

    def _read_message(self, match: re.Match[str]) -> None:
        rank, builder = self._rank()
        size = self._limit(match[3] or match[5], MAX_AMOUNT, "size")
        if "-1" in (match[6], match[7]):
            self._fail("any source or any tag (-1)", "name the rank and the tag that match")
        peer = self._limit(match[6], builder.ranks - 1, "rank")
        tag = self._limit(match[7] or "0", MAX_TAG, "tag")
        cpu = self._limit(match[8] or "0", MAX_CPU, "cpu")
        add = builder.send if match[2] else builder.receive
        self._name(match[1], add(rank, peer, size, tag=tag, cpu=cpu))

    def _set_ranks(self, ranks: int) -> None:
        if self.builder is not None:
            self._fail("num_ranks is given twice", "give it once, first")
        if not 1 <= ranks <= MAX_RANKS:
            self._fail(f"{ranks} ranks", f"use 1 to {MAX_RANKS}")
        self.builder = Builder(ranks)

    def _open_rank(self, rank: int) -> None:
        if self.builder is None:
            self._fail("rank before num_ranks", "begin with 'num_ranks N'")
        if self.rank is not None:
            self._fail(f"rank {self.rank} is not closed", "end it with '}'")
        self._limit(str(rank), self.builder.ranks - 1, "rank")
        if rank in self.closed:
            self._fail(f"rank {rank} is given twice", "give each rank one block")
        self.rank, self.labels, self.dependencies = rank, {}, []

    def _close_rank(self) -> None:
        rank, builder = self._rank()
        for line, *labels, kind in self.dependencies:
            for label in labels:
                if label not in self.labels:
                    self.line = line
                    self._fail(f"label {label!r} is not defined in rank {rank}", "define it")
            builder.require(self.labels[labels[0]], self.labels[labels[1]], kind)
        self.closed.add(rank)
        self.rank = None

    def _rank(self) -> tuple[int, Builder]:
        if self.rank is None or self.builder is None:
            self._fail("an operation outside a rank", "put it into 'rank N { … }'")
        return self.rank, self.builder

    def _name(self, label: str | None, operation: int) -> None:
        if label is None:
            return
        if label in self.labels:
            self._fail(f"label {label!r} is used twice", "rename one")
        self.labels[label] = operation

    def _limit(self, text: str, largest: int, noun: str) -> int:
        if int(text) > largest:
            self._fail(f"{noun} {text} is too large", f"use 0 to {largest}")
        return int(text)

    def _fail(self, problem: str, remedy: str) -> NoReturn:
        raise InputError(f"{self.path} line {self.line}", problem, remedy)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments, and their numbers; blank ones are left out."""
    without = re.sub(r"/\*.*?\*/", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    for number, line in enumerate(without.split("\n"), 1):
        if stripped := line.split("//", 1)[0].strip():
            yield number, stripped


def write_goal(operations: Operations, path: Path) -> None:
    """Write the workload as GOAL text; times are rounded up to whole nanoseconds."""
    try:
        with path.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in format_goal(operations))
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error), "check the path") from error


def format_goal(operations: Operations) -> Iterator[str]:
    """The lines of a GOAL file."""
    yield f"num_ranks {operations.ranks}"
    starts = operations.rank.searchsorted(range(operations.ranks + 1)).tolist()
    for rank in range(operations.ranks):
        yield f"rank {rank} {{"
        for operation in range(starts[rank], starts[rank + 1]):
            yield from _format_operation(operations, operation, starts[rank])
        yield "}"


def _format_operation(operations: Operations, i: int, base: int) -> Iterator[str]:
    kind, cpu = operations.kind[i], int(operations.cpu[i])
    suffix = f" cpu {cpu}" if cpu else ""
    label = f"l{i - base + 1}"
    if kind == COMPUTE:
        ticks = -(-int(operations.duration_ps[i]) // PS_PER_TICK)
        yield f"{label}: calc {ticks}{suffix}"
    else:
        verb, side = ("send", "to") if kind == SEND else ("recv", "from")
        size, peer, tag = operations.size_bytes[i], operations.peer[i], operations.tag[i]
        yield f"{label}: {verb} {size}b {side} {peer} tag {tag}{suffix}"
    for d in range(operations.dependency_start[i], operations.dependency_start[i + 1]):
        word = "requires" if operations.dependency_kind[d] == ENDS else "irequires"
        yield f"{label} {word} l{int(operations.dependency[d]) - base + 1}"


# ---- Chakra -----------------------------------------------------------------------------------

COMPUTE_NODE, SEND_NODE, RECEIVE_NODE, COLLECTIVE_NODE = 4, 5, 6, 7
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


# ---- Chakra: files ----------------------------------------------------------------------------


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


# ---- Chakra: operations -----------------------------------------------------------------------


def _add_nodes(builder: Builder, ranks: Sequence[Sequence[_Node]]) -> list[dict[int, Ends]]:
    """Add every node's operations; by rank and node number, its first and its last."""
    ends: list[dict[int, Ends]] = [{} for _ in ranks]
    calls = CollectiveCalls(builder, MARK_CPU)
    for nodes in ranks:
        for node in nodes:
            if node.number in ends[node.rank]:
                raise InputError(node.place, "its number is used twice", "export the trace again")
            if node.type == COLLECTIVE_NODE:
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
    if node.type == SEND_NODE:
        peer = node.integer("comm_dst", builder.ranks - 1)
        tag = node.integer("comm_tag", FIRST_COLLECTIVE_TAG - 1)
        return builder.send(node.rank, peer, node.integer("comm_size", MAX_BYTES), tag=tag)
    if node.type == RECEIVE_NODE:
        peer = node.integer("comm_src", builder.ranks - 1)
        tag = node.integer("comm_tag", FIRST_COLLECTIVE_TAG - 1)
        return builder.receive(node.rank, peer, node.integer("comm_size", MAX_BYTES), tag=tag)
    if node.duration_ps == 0:
        if node.type == COMPUTE_NODE and node.attributes.get("num_ops"):
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
