"""The infiniband driver in a process of its own: ibsim's library must be there from its start.

Run as a program it opens this host's port and serves calls that come pickled on its standard input:
(object, method, arguments) with the objects "driver" and "wire". `RemoteDriver` is the other side:
the driver's protocol, with every call made there. The wire there can be told to refuse changes.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

from ibsim import STOP_S, Subnet

from weft.errors import WeftError
from weft.fabric import Fabric
from weft.switches import Ability, Failed, Foreign, PortName, Tables
from weft.switches.infiniband import InfinibandSwitches
from weft.switches.infiniband.mad import PORT_INFO, SL_TO_VL, VL_ARBITRATION, Smp
from weft.switches.infiniband.mad_transport import Refusal, SmpClient, Umad, WindowedSmps

PORT_BITS = {PORT_INFO: 0xFF, SL_TO_VL: 0xFF, VL_ARBITRATION: 0xFFFF}


class TamperedWire:
    """The real wire; it keeps the changes that were made, and refuses those it was told to.

    Changes of a port are counted from 1: those from `first` to `last` get a refusal and are not
    sent. (A host's port is 0 here: an adapter's requests do not name it.)
    """

    def __init__(self, wire: SmpClient) -> None:
        self._wire = wire
        self._refused: tuple[int, int, range] | None = None
        self._count = 0
        self._changes: list[Smp] = []

    def refuse(self, lid: int, port: int, first: int, last: int) -> None:
        self._refused, self._count = (lid, port, range(first, last + 1)), 0

    def refuse_nothing(self) -> None:
        self._refused = None

    def taken_changes(self) -> list[Smp]:
        """Changes since the last call."""
        taken, self._changes = self._changes, []
        return taken

    def ask(self, requests: Sequence[Smp], tries: int | None = None) -> list[bytes | Refusal]:
        refused = [self._is_refused(request) for request in requests]
        sent = [smp for smp, is_so in zip(requests, refused, strict=True) if not is_so]
        answers = iter(self._wire.ask(sent, tries))
        self._changes += [smp for smp in sent if smp.new is not None]
        return [Refusal("refused by the test") if is_so else next(answers) for is_so in refused]

    def close(self) -> None:
        self._wire.close()

    def _is_refused(self, request: Smp) -> bool:
        if self._refused is None or request.new is None:
            return False
        lid, port, counts = self._refused
        if (request.to, request.modifier & PORT_BITS[request.attribute]) != (lid, port):
            return False
        self._count += 1
        return self._count in counts


class RemoteDriver:
    """The driver's protocol, carried out in a process on the subnet."""

    def __init__(self, subnet: Subnet, *options: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, *options],
            env=subnet.environment(),
            cwd=subnet.directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def discover(self) -> Fabric:
        return self.call("driver", "discover")

    def abilities(self, ports: Collection[PortName]) -> dict[PortName, Ability | Failed]:
        return self.call("driver", "abilities", ports)

    def read(self, ports: Collection[PortName]) -> dict[PortName, Tables | Foreign | Failed]:
        return self.call("driver", "read", ports)

    def write(self, wanted: Mapping[PortName, Tables]) -> dict[PortName, Tables | Failed]:
        return self.call("driver", "write", wanted)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(STOP_S)
        self._process.stdout.close()

    def call(self, target: str, method: str, *arguments: object) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((target, method, arguments), self._process.stdin)
        self._process.stdin.flush()
        is_done, answer = pickle.load(self._process.stdout)
        if not is_done:
            raise answer
        return answer


def serve(driver: InfinibandSwitches, wire: TamperedWire, calls: IO[bytes], out: IO[bytes]) -> None:
    """Calls until there are no more."""
    objects = {"driver": driver, "wire": wire}
    with suppress(EOFError):
        while True:
            target, method, arguments = pickle.load(calls)
            try:
                answer = True, getattr(objects[target], method)(*arguments)
            except WeftError as error:
                answer = False, error
            pickle.dump(answer, out)
            out.flush()


def main() -> None:
    # The preloaded library prints to standard output: answers need a channel of their own.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    wire = TamperedWire(WindowedSmps(Umad()))
    levels = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    driver = InfinibandSwitches(wire, levels=levels)
    serve(driver, wire, sys.stdin.buffer, answers)
    driver.close()


if __name__ == "__main__":
    main()
