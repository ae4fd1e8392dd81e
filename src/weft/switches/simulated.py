"""Simulated switches: keep the tables of a fabric's ports as real switches would.

They serve to try a plan (`weft.control.operators.trial` runs the packet simulator with such
tables), and to test what happens when writes fail or the writer is killed.

A port has two registers, as InfiniBand has two attributes: the map of levels to queues, and the
weights with the lane. They are written one after the other, never both at once. They are in memory
or in a file that outlives the writer: a digest of the ports, then fixed-size records, one for each
port sorted by name. A register is written by one call: a killed writer leaves the old value or the
new one. Several processes may share the file. A lock on it is held during each write, so that a
write of a lower epoch never comes after the claim of a higher one.
Entry points: `SimulatedSwitches`, `read_routed_fabric`, `WriteFailures`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import msgspec

from weft.errors import InputError
from weft.fabric import Fabric, add_routes, read_fabric
from weft.records.store import explain_file_errors
from weft.switches.tables import (
    ENTRY_WEIGHT,
    MAX_LIMIT,
    Ability,
    AgentEvent,
    Claim,
    EdgeReport,
    EdgeRules,
    Failed,
    Fenced,
    Foreign,
    Grant,
    Lane,
    PortName,
    Tables,
    Taken,
    build_taken_error,
    decode_grant,
    find_misfit,
    grant,
    refuse_release,
)

_MAX_UINT32 = 2**32 - 1
_DIGEST_BYTES = 32
DEFAULT_ABILITY = Ability(scheduler="vlarb", levels=16, queues=8, entries=8, units=255)
_TRIES = 40  # to restore: with 50 % of writes lost, one of 10^9 ports stays in between
_T = TypeVar("_T")


def build_initial_tables(ability: Ability) -> Tables:
    """An unprogrammed port: one queue for all levels."""
    weights = (ability.units, *[0] * (ability.queues - 1))
    return Tables(queue_of=(0,) * ability.levels, weights=weights)


def find_refusal(wanted: Tables, ability: Ability) -> str | None:
    """Why a port cannot hold these tables; None if it can."""
    return find_misfit(wanted, ability) or (
        _find_vlarb_refusal(wanted, ability)
        if ability.scheduler == "vlarb"
        else _find_htb_refusal(wanted, ability)
    )


def _find_vlarb_refusal(wanted: Tables, ability: Ability) -> str | None:
    lane = None if wanted.lane is None else wanted.lane.queue
    low = [weight for queue, weight in enumerate(wanted.weights) if queue != lane]
    needed = sum(-(-weight // ENTRY_WEIGHT) for weight in low)
    if needed > ability.entries:
        return f"{needed} arbitration entries needed, and it has {ability.entries}"
    if wanted.lane is not None and wanted.lane.limit > MAX_LIMIT:
        return f"limit {wanted.lane.limit} of high priority, {MAX_LIMIT} is the most"
    return None


def _find_htb_refusal(wanted: Tables, ability: Ability) -> str | None:
    if sum(wanted.weights) > ability.units:
        return f"weights sum to {sum(wanted.weights)} kbit/s, and the link has {ability.units}"
    if wanted.lane is not None and wanted.lane.limit > _MAX_UINT32:
        return f"a lane's limit of {wanted.lane.limit} bytes, {_MAX_UINT32} is the most"
    return None


def plan_steps(old: Tables, wanted: Tables, ability: Ability) -> list[Tables]:
    """The port's tables after each write of a register; every level is served in all of them."""
    between = []
    if old.queue_of != wanted.queue_of:
        both = (max(pair) for pair in zip(old.weights, wanted.weights, strict=True))
        # In between one entry per queue: every port has that many.
        most = ENTRY_WEIGHT if ability.scheduler == "vlarb" else _MAX_UINT32
        served = replace(old, weights=tuple(min(weight, most) for weight in both))
        between = [served, replace(served, queue_of=wanted.queue_of)]
    states, last = [], old
    for state in (*between, wanted):
        if state != last:
            states.append(state)
        last = state
    return states


@dataclass(frozen=True, slots=True)
class RegisterLayout:
    """The registers of a port as bytes: a byte per level, then weights, then the lane."""

    levels: int
    queues: int

    @property
    def size(self) -> int:
        return self.levels + self._weights.size

    @property
    def _weights(self) -> struct.Struct:
        return struct.Struct(f">{self.queues}IiI")

    def pack_map(self, tables: Tables) -> bytes:
        return bytes(tables.queue_of).ljust(self.levels, b"\0")

    def pack_weights(self, tables: Tables) -> bytes:
        lane = tables.lane
        none_or_lane = (-1, 0) if lane is None else (lane.queue, lane.limit)
        more = (0,) * (self.queues - len(tables.weights))
        return self._weights.pack(*tables.weights, *more, *none_or_lane)

    def unpack_tables(self, registers: bytes, ability: Ability) -> Tables:
        *weights, queue, limit = self._weights.unpack_from(registers, self.levels)
        return Tables(
            queue_of=tuple(registers[: ability.levels]),
            weights=tuple(weights[: ability.queues]),
            lane=None if queue < 0 else Lane(queue=queue, limit=limit),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailures:
    """Loses register writes with this probability; the same writes for the same seed."""

    probability: float
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise InputError("failures", f"probability {self.probability:g}", "use 0 to 1")


class Registers:
    """What the ports hold, read from the file each time: others may write to it too."""

    def __init__(
        self,
        abilities: Mapping[PortName, Ability],
        path: Path | None,
        failing: WriteFailures | None,
    ) -> None:
        self._abilities = abilities
        self._layout = RegisterLayout(
            max(ability.levels for ability in abilities.values()),
            max(ability.queues for ability in abilities.values()),
        )
        self._place = {port: n for n, port in enumerate(sorted(abilities))}
        self._probability = failing.probability if failing else 0.0
        self._random = random.Random(failing.seed if failing else 0)
        self._file = os.memfd_create("weft-switches") if path is None else _open_file(path)
        self._prepare("switches in memory" if path is None else str(path))

    def close(self) -> None:
        """Later calls get an OSError, never another file with the same descriptor."""
        file, self._file = self._file, -1
        os.close(file)

    def read(self, port: PortName) -> Tables:
        registers = os.pread(self._file, self._layout.size, self._offset(port))
        return self._layout.unpack_tables(registers, self._abilities[port])

    def write_map(self, port: PortName, tables: Tables) -> None:
        self._maybe_fail(port)
        os.pwrite(self._file, self._layout.pack_map(tables), self._offset(port))

    def write_weights(self, port: PortName, tables: Tables) -> None:
        self._maybe_fail(port)
        registers = self._layout.pack_weights(tables)
        os.pwrite(self._file, registers, self._offset(port) + self._layout.levels)

    def _maybe_fail(self, port: PortName) -> None:
        if self._probability and self._random.random() < self._probability:
            raise InputError(str(port), "a write was lost, as was asked for")

    def _offset(self, port: PortName) -> int:
        return _DIGEST_BYTES + self._place[port] * self._layout.size

    def _prepare(self, where: str) -> None:
        digest = self._digest()
        stored = os.pread(self._file, _DIGEST_BYTES, 0)
        if stored == digest:
            return
        if any(stored):
            self.close()
            problem = "has the registers of other switches"
            raise InputError(where, problem, "delete it, or name another file")
        first = [
            self._layout.pack_map(tables) + self._layout.pack_weights(tables)
            for tables in (build_initial_tables(self._abilities[port]) for port in self._place)
        ]
        # The digest last: an unfinished file is initialised again.
        os.pwrite(self._file, b"".join(first), _DIGEST_BYTES)
        os.pwrite(self._file, digest, 0)

    def _digest(self) -> bytes:
        lines = [f"{port} {self._abilities[port]}" for port in self._place]
        return hashlib.sha256("\n".join(lines).encode()).digest()


def _open_file(path: Path) -> int:
    with explain_file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class SharedClaim:
    """One for all nodes of a group. Without a claim, ports may be written while no owner runs."""

    def __init__(self, registers: Path, group: str = "") -> None:
        name = f"{registers.name}.{group}.claim" if group else f"{registers.name}.claim"
        self._path = path = registers.with_name(name)
        self._threads = threading.Lock()  # a lock on the file holds off other processes only
        self._claim: Claim | None = None
        with explain_file_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        os.close(self._file)

    def claim(self, claim: Claim) -> None:
        with self._lock():
            last = self._read()
            granted = grant(last, claim, is_connected=_is_running(last.pid))
            if granted is None:
                raise self._refuse(last)
            if granted != last:
                granted = msgspec.structs.replace(granted, pid=os.getpid())
                data = msgspec.json.encode(granted)
                os.pwrite(self._file, data, 0)
                os.ftruncate(self._file, len(data))
        self._claim = replace(claim, epoch=granted.epoch)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Nobody claims the switches during the block."""
        with self._lock():
            last = self._read()
            if self._claim is None:
                is_fenced = _is_running(last.pid)
            else:
                is_fenced = not last.belongs_to(self._claim)
            if is_fenced:
                raise self._refuse(last)
            yield

    def _refuse(self, last: Grant) -> Taken:
        return build_taken_error("switches", last.owner, last.epoch)

    def _read(self) -> Grant:
        return decode_grant(os.pread(self._file, 4096, 0), str(self._path))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        with self._threads:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def _is_running(pid: int) -> bool:
    if not pid or pid == os.getpid():
        return False
    return Path(f"/proc/{pid}").exists()


def read_routed_fabric(files: str | Sequence[str]) -> Fabric:
    """The fabric of files, as `weft simulate` reads them."""
    return add_routes(read_fabric(files))


class SimulatedSwitches:
    """The ports of a fabric, all of one ability or each of its own."""

    def __init__(
        self,
        fabric: Fabric,
        abilities: Ability | Mapping[PortName, Ability] = DEFAULT_ABILITY,
        *,
        path: Path | None = None,
        failing: WriteFailures | None = None,
    ) -> None:
        self._fabric = add_routes(fabric)
        ports = _list_ports(self._fabric)
        each = dict.fromkeys(ports, abilities) if isinstance(abilities, Ability) else abilities
        missing = set(ports) - each.keys()
        if missing:
            raise InputError(str(min(missing)), "has no ability", "say what every port can do")
        self._abilities = {port: each[port] for port in ports}
        self._registers = Registers(self._abilities, path, failing)
        self._path = path
        self._claims = None if path is None else SharedClaim(path)
        self._is_second = False

    def discover(self) -> Fabric:
        return self._fabric

    def read_sent(self, ports: Collection[PortName]) -> dict[PortName, tuple[int, ...]]:  # noqa: ARG002
        return {}  # no packet crosses a register

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]:
        return {port: self._try_port(port, self._find_ability) for port in ports}

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        return {port: self._try_port(port, self._read) for port in ports}

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        try:
            with nullcontext() if self._claims is None else self._claims.hold():
                return {
                    port: self._try_port(port, lambda at: self._write(at, wanted[at]))
                    for port in wanted
                }
        except Taken as error:
            return dict.fromkeys(wanted, Fenced(str(error)))

    def has_changed(self) -> bool:
        return False

    def take_agent_events(self) -> tuple[AgentEvent, ...]:
        return ()

    @property
    def addresses(self) -> Mapping[str, str]:
        return {}

    @property
    def unanswered(self) -> tuple[PortName, ...]:
        return ()

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def claim(self, claim: Claim) -> None:
        """With registers in a file, which other controllers may share."""
        if self._path is not None and self._claims is not None:
            self._claims.close()
            self._claims = SharedClaim(self._path, claim.group)
            self._claims.claim(claim)

    def police(self, _: EdgeRules) -> EdgeReport:
        """No packets pass these switches."""
        return EdgeReport()

    def open_second(self) -> SimulatedSwitches:
        second = copy(self)
        second._is_second = True
        return second

    def learn_from(self, second: SimulatedSwitches) -> None:
        """Nothing: both know the fabric from the start."""

    def release(self) -> Mapping[str, list[str]]:
        refuse_release("simulated")

    def close(self) -> None:
        if not self._is_second:
            self._registers.close()
            if self._claims is not None:
                self._claims.close()

    def _try_port(self, port: PortName, do: Callable[[PortName], _T]) -> _T | Failed:
        try:
            return do(port)
        except InputError as error:
            return Failed(error.problem)
        except OSError as error:
            return Failed(str(error))

    def _find_ability(self, port: PortName) -> Ability:
        if port not in self._abilities:
            raise InputError(str(port), "is not of the fabric", "name a port with a cable")
        return self._abilities[port]

    def _read(self, port: PortName) -> Tables:
        self._find_ability(port)
        return self._registers.read(port)

    def _write(self, port: PortName, wanted: Tables) -> Tables:
        why = find_refusal(wanted, self._find_ability(port))
        if why is not None:
            raise InputError(str(port), why)
        old = self._registers.read(port)
        if old == wanted:
            return wanted
        try:
            self._change(port, wanted)
        except InputError as error:
            raise self._restore(port, old, error) from error
        return wanted

    def _change(self, port: PortName, wanted: Tables) -> None:
        old = self._registers.read(port)
        for step in plan_steps(old, wanted, self._find_ability(port)):
            if step.queue_of != old.queue_of:
                self._registers.write_map(port, step)
            else:
                self._registers.write_weights(port, step)
            old = step
        stored = self._registers.read(port)
        if stored != wanted:
            raise InputError(str(port), f"reads back as {stored}")

    def _restore(self, port: PortName, old: Tables, error: InputError) -> InputError:
        for _ in range(_TRIES):
            try:
                self._change(port, old)
            except InputError:
                continue
            return InputError(str(port), f"{error.problem}; it keeps its old tables")
        return InputError(str(port), f"{error.problem}; it could not be restored")


def _list_ports(fabric: Fabric) -> list[PortName]:
    """Every port with a cable, of switches and hosts."""
    return [
        PortName(node.name, port)
        for n, node in enumerate(fabric.nodes)
        for port in fabric.neighbors(n)
    ]
