"""An application of the library on a host of a testbed: registers, connects, sends when told to.

    managed_sender.py NAME CONTROLLER NAMESPACE ADDRESS

It registers from where the controller is, then opens its connection in the host's namespace, which
is a thread's. Once the controller counts the connection it prints its id and level; lines on its
standard input are `send` and `rest`, and it closes everything when there are no more.
`Sender` is the other side.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

from weft.control.client import App, Connection, register
from weft.host.net import namespaces

PORT = 5000
CHUNK = bytes(1 << 18)
END_S = 20


class Sender:
    """The process. `level` is that of its packets."""

    def __init__(self, name: str, controller: str, namespace: str, address: str) -> None:
        argv = [sys.executable, __file__, name, controller, namespace, address]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.id, self.level = "", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, __: TracebackType | None
    ) -> None:
        """As a program that ends; a test that fails ends it at once."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if kind is not None:
            self._process.kill()
        self._process.stdin.close()
        self._process.wait(END_S)
        self._process.stdout.close()

    def connected(self) -> None:
        """Waits until the controller counts its connection."""
        assert self._process.stdout is not None
        self.id, level = self._process.stdout.readline().decode().split()
        self.level = int(level)

    def send(self) -> None:
        self._tell(b"send\n")

    def rest(self) -> None:
        self._tell(b"rest\n")

    def _tell(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        self._process.stdin.flush()


def serve(app: App, address: str) -> None:
    """A connection that sends as fast as it can between `send` and `rest`."""
    is_sending = threading.Event()
    with app.connect(address, PORT, wait=True) as connection:
        assert connection.wait_counted(60.0), connection.problem
        print(app.id, app.level, flush=True)
        threading.Thread(target=stream, args=(connection, is_sending), daemon=True).start()
        for line in sys.stdin:
            is_sending.set() if line == "send\n" else is_sending.clear()


def stream(connection: Connection, is_sending: threading.Event) -> None:
    assert connection.socket is not None
    with suppress(OSError):  # closed
        while is_sending.wait():
            connection.socket.sendall(CHUNK)


def main() -> None:
    name, controller, namespace, address = sys.argv[1:]
    with register(name, controller=controller, wait_s=60.0) as app:
        namespaces.run_inside(namespace, lambda: serve(app, address))


if __name__ == "__main__":
    main()
