"""A host that vanishes in the middle of a test, cable and all: both sides notice, and go on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from needs import need_namespaces
from serve_process import START_S, children_of, wait_until

from weft.host.net import namespaces
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import Wiring

WIRING = Wiring(hosts=("client", "server"), rate_bps=100_000_000, limit_bytes=64 * 1514)
TOKEN = "correct horse battery staple"
BOUNDS = ("--max-size", "1 MiB", "--max-duration", "60 s", "--max-rate", "unlimited")
LONGEST_S = 10.0

CLIENT = """
import sys, threading
sys.path.insert(0, sys.argv[2])
from serve_process import echo_spec, loop_of, wait_until
from weft import _core
from weft.measure import PeerLost, open_peer
try:
    with open_peer(sys.argv[1]) as peer, peer.open([echo_spec(sys.argv[3])]) as channels:
        def tell():
            wait_until(lambda: channels.stop.done > 20, "messages flow")
            print("running", flush=True)
        channels.start()
        thread = threading.Thread(target=tell)
        thread.start()
        loop = loop_of(duration_ns=int(sys.argv[4]))
        result = _core.ping_pong(channels.endpoints[0], loop, channels.stop)
        thread.join()
        channels.finish()
        print("done", flush=True)
except PeerLost as error:
    print("kept", result.latency.count > 20, error, flush=True)
"""


@pytest.fixture(autouse=True)
def _needs() -> None:
    need_namespaces()


class Field:
    """A server and a client on hosts of their own."""

    def __init__(self, bed: Testbed, folder: Path) -> None:
        self.bed = bed
        self.log = folder / "serve.log"
        self.environment = os.environ | {"WEFT_TOKEN": TOKEN}
        listen = f"{bed.addresses['server']}:9338"
        with self.log.open("wb") as log:
            command = ["-m", "weft.cli", "serve", "--json", "--listen", listen, *BOUNDS]
            self.server = bed.spawn(
                "server", [sys.executable, *command], stdout=log, stderr=log, env=self.environment
            )
        wait_until(lambda: "listening" in self.log.read_text(), "the server listens", START_S)

    def start_client(self, transport: str, seconds: int) -> subprocess.Popen[bytes]:
        where, here = self.bed.addresses["server"], str(Path(__file__).parents[1] / "support")
        arguments = [where, here, transport, str(seconds * 10**9)]
        client = self.bed.spawn(
            "client",
            [sys.executable, "-c", CLIENT, *arguments],
            stdout=subprocess.PIPE,
            env=self.environment,
        )
        assert client.stdout is not None
        assert client.stdout.readline() == b"running\n"
        return client

    def logged(self) -> list[str]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line["text"] for line in lines if line["event"] == "log"]

    @contextmanager
    def cut(self) -> Iterator[None]:
        """The server's cable is out."""
        port = self.bed.ends("server")[1]
        set_link = ["ip", "-n", port.namespace, "link", "set", port.interface]
        namespaces.run_command([*set_link, "down"])
        yield
        namespaces.run_command([*set_link, "up"])


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_vanished_host_is_noticed_by_both_sides_within_seconds(tmp_path, transport):
    with testbed(WIRING) as bed:
        field = Field(bed, tmp_path)
        client = field.start_client(transport, 60)
        with field.cut():
            began = time.monotonic()
            output, _ = client.communicate(timeout=30)
            assert time.monotonic() - began < LONGEST_S
            assert output.startswith(b"kept True"), output
            assert b"peer lost" in output
            wait_until(lambda: not children_of(field.server.pid), "the session ends", LONGEST_S)
            assert any("client lost" in line for line in field.logged()), field.logged()
        output, _ = field.start_client(transport, 1).communicate(timeout=30)
        assert output == b"done\n"
        field.server.terminate()
        assert field.server.wait(LONGEST_S) == 0
