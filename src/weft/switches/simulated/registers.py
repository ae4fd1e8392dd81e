"""The registers of simulated switches, in memory or in a file that outlives the writer.

The file has a digest of the ports, then fixed-size records, one for each port sorted by name. A
register is written by one call: a killed writer leaves the old value or the new one. Writes can be
made to fail. Entry points: `Registers`, `WriteFailures`.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.records.store import explain_file_errors
from weft.switches.simulated.register_tables import RegisterLayout, build_initial_tables
from weft.switches.tables import Ability, PortName, Tables

_DIGEST_BYTES = 32


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
