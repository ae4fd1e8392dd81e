"""`weft export` on a subnet of ibsim: what it serves beside what perfquery prints."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest
from ibsim import PATH, Subnet, subnet
from needs import need_ibsim, need_time

from weft.fabric import leaf_spine

WAIT_S = 60.0
_SAMPLE = re.compile(r'weft_port_(sent|received)_packets_total{node="(\S+)",port="(\d+)"} (\d+)')


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subnet]:
    need_time()
    need_ibsim()
    with subnet(leaf_spine(2, 2, 2, rate="4xEDR"), tmp_path_factory.mktemp("export")) as running:
        yield running


@pytest.fixture
def exporter(small: Subnet) -> Iterator[str]:
    """The address of an exporter that was told to end."""
    command = [sys.executable, "-m", "weft.cli", "export", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, env=small.environment(), cwd=small.directory, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            (address,) = re.findall(r"http://\S+/metrics", line)
            assert line.startswith("12 ports of switches on http")
            yield address
            process.send_signal(2)
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


def scrape(address: str) -> str:
    with urllib.request.urlopen(address, timeout=WAIT_S) as reply:
        return str(reply.read().decode())


def read_packets(text: str) -> dict[tuple[str, str, int], int]:
    return {(way, node, int(port)): int(n) for way, node, port, n in _SAMPLE.findall(text)}


def query_packets(small: Subnet, node: str, port: int) -> dict[str, int]:
    """As infiniband-diags reads them: by the GUID of the switch."""
    found = small.fabric.nodes[small.fabric.index(node)]
    assert found.guid is not None
    text = small.run("perfquery", "-x", "-G", found.guid, str(port))
    counts = dict(re.findall(r"Port(Xmit|Rcv)Pkts:\.*(\d+)", text))
    return {"sent": int(counts["Xmit"]), "received": int(counts["Rcv"])}


def test_counters_are_those_that_perfquery_reads(small: Subnet, exporter: str) -> None:
    """Reading sends packets: each value lies between two of perfquery's."""
    ends = [("leaf0", 1), ("leaf1", 3), ("spine0", 2)]
    before = [query_packets(small, *end) for end in ends]
    packets = read_packets(scrape(exporter))
    after = [query_packets(small, *end) for end in ends]
    for (node, port), low, high in zip(ends, before, after, strict=True):
        for way in ("sent", "received"):
            assert low[way] <= packets[way, node, port] <= high[way]
    assert packets["sent", "leaf0", 1] > 0
    again = read_packets(scrape(exporter))
    assert all(again[key] >= value for key, value in packets.items())


def test_promtool_finds_nothing_to_complain_of(exporter: str) -> None:
    promtool = shutil.which("promtool", path=PATH)
    if promtool is None:
        pytest.skip("promtool: apt-get install prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=scrape(exporter),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
