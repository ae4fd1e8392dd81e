"""A host whose cable is pulled during a plan: silent, not dead, so only heartbeats can tell."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from needs import need_dask, need_namespaces
from plan_scripts import script

from weft.host.net import namespaces
from weft.host.testbed.build import Testbed, testbed
from weft.host.testbed.wiring import SWITCH, Wiring
from weft.records import read_records

PLAN = """
duration = "500 ms"
repetitions = 200

[[host]]
name = "a"

[[host]]
name = "b"

[[traffic]]
name = "probe"
generator = "latency"
pattern = "one-to-one"
from = "a"
to = "b"
wait = "block"
"""


def _servers(bed: Testbed, host: str) -> list[str]:
    """Commands of weft that run on a host."""
    pids = namespaces.run_command(["ip", "netns", "pids", bed.namespaces[host]]).split()
    lines = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in pids]
    return [line for line in lines if "weft.cli" in line]


def test_it_is_named_within_seconds_and_nothing_runs_on(tmp_path: Path) -> None:
    need_namespaces()
    need_dask()
    setup = script("converged_testbed")
    plan, output = tmp_path / "plan.toml", tmp_path / "out.jsonl"
    plan.write_text(PLAN)
    wiring = Wiring(hosts=("a", "b"), rate_bps=10**8, limit_bytes=10**5)
    with testbed(wiring) as bed, setup.cluster(bed, tmp_path) as address:
        command = [sys.executable, "-m", "weft.cli", "measure", str(plan), "--cluster", address]
        with bed.spawn(
            SWITCH, [*command, "-o", str(output)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            deadline = time.monotonic() + 60
            while not output.exists() and time.monotonic() < deadline:
                time.sleep(0.1)
            namespaces.run_command(["ip", "-n", bed.namespaces["b"], "link", "set", "eth0", "down"])
            cut = time.monotonic()
            _, told = process.communicate(timeout=60)
            assert time.monotonic() - cut < 30
        assert process.returncode == 2
        assert b"weft: b: " in told or bed.addresses["b"].encode() in told
        assert read_records(output).records
        deadline = time.monotonic() + 30
        while _servers(bed, "a") + _servers(bed, "b") and time.monotonic() < deadline:
            time.sleep(0.2)
        assert _servers(bed, "a") + _servers(bed, "b") == []
