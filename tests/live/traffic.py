"""TCP traffic between hosts of a testbed, as much as the links take, until the block ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from weft.host.testbed import Testbed

RECEIVE = """
import socket, threading
def drain(connection):
    room = bytearray(1 << 18)
    while connection.recv_into(room):
        pass
with socket.create_server(("", 5000)) as server:
    print("listening", flush=True)
    while True:
        threading.Thread(target=drain, args=(server.accept()[0],), daemon=True).start()
"""
SEND = """
import socket, sys
with socket.socket() as connection:
    connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, int(sys.argv[2]) << 2)
    connection.connect((sys.argv[1], 5000))
    while True:
        connection.sendall(bytes(1 << 18))
"""


@contextmanager
def streams(bed: Testbed, target: str, dscps: Mapping[str, int]) -> Iterator[None]:
    """Each source sends to the target, its packets marked."""
    with ExitStack() as running:
        receiver = bed.spawn(target, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
        running.callback(_end, receiver)
        assert receiver.stdout is not None
        assert receiver.stdout.readline() == b"listening\n"
        for source, dscp in dscps.items():
            argv = [sys.executable, "-c", SEND, target, str(dscp)]
            running.callback(_end, bed.spawn(source, argv))
        yield


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def busy_share() -> Callable[[], float]:
    """Starts to look at the processors; the result gives how busy they were since."""
    before = _jiffies()

    def since() -> float:
        idle, total = (now - then for now, then in zip(_jiffies(), before, strict=True))
        return 1 - idle / max(total, 1)

    return since


def _jiffies() -> tuple[int, int]:
    numbers = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]))
    return numbers[3] + numbers[4], sum(numbers)


def rate_bps(bed: Testbed, host: str, seconds: float) -> float:
    """What passes the switch's port towards a host, by the port's own counter."""
    started, before = time.monotonic(), bed.port_count(host).bytes
    time.sleep(seconds)
    passed = bed.port_count(host).bytes - before
    return 8 * passed / (time.monotonic() - started)
