"""Jobs on a testbed beside the same jobs simulated, and under `weft profile`.

What may differ, and by how much. A link of the testbed counts headers: 66 of 1514 B, 4.6 %. Its
token bucket passes 4 ms of the rate at once after a pause, so each stage may be 4 ms faster on each
of at most two links in a row. TCP has to find its rate, and processes wait for processors: 20 % is
room for both. Where jobs meet, a connection that starts into a full queue may lose its first
packets and wait for a retransmission, 200 ms. A run below the bound is an error anywhere; one above
it is only where the machine had processors to spare.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import need_namespaces
from traffic import watched

from weft.host.testbed import persistent
from weft.host.testbed.wiring import Wiring
from weft.jobs import load_job
from weft.measure.run_jobs import open_testbed_site, run_jobs
from weft.records import Record, Scalar
from weft.sensitivity.application_table import AppTable
from weft.simulate import scenario_from, simulate

ROOT = Path(__file__).parents[2]
NAME = "live-jobs"
RATE_BPS = 200_000_000
HEADERS = 1514 / 1448
BURST_US = 4000.0
ROOM = 1.2
RETRANSMISSION_US = 200_000.0
TRIES = 3
LIMIT_S = 120


@pytest.fixture(scope="module")
def bed() -> Iterator[str]:
    need_namespaces()
    hosts = tuple(f"h{n}" for n in range(1, 5))
    persistent.build_testbed(NAME, Wiring(hosts=hosts, rate_bps=RATE_BPS))
    try:
        yield NAME
    finally:
        persistent.remove_testbed(NAME)


def job_file(name: str) -> str:
    return str(ROOT / "examples" / "jobs" / f"{name}.toml")


def value(record: Record, name: str) -> float:
    quantity = record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


def run_real(*names: str) -> Record:
    jobs = [load_job(job_file(name)) for name in names]
    return run_jobs(jobs, open_testbed_site(NAME), seed=1, limit_s=LIMIT_S)


def run_simulated(level: str, *names: str) -> Record:
    fabric = {"topology": "one_switch", "hosts": 4, "rate": "200 Mb/s", "delay": "1 us"}
    jobs = [{"file": job_file(name), "prefer_free": False} for name in names]
    data = {"name": "s", "level": level, "duration": "100 s", "fabric": fabric, "job": jobs}
    return simulate(scenario_from(data)).record


def count_stages(name: str) -> int:
    job = load_job(job_file(name))
    assert job.loops is not None
    return job.loops * len(job.stages)


# The volumes of these are many times what a token bucket passes at once.
ALONE = (("sort",), ("training",), ("pipeline",), ("parameter-server",))
PAIRS = (("sort", "training"), ("sort", "pipeline"), ("training", "pipeline"))


@pytest.mark.usefixtures("bed")
@pytest.mark.parametrize("names", [*ALONE, *PAIRS], ids="+".join)
def test_a_job_takes_as_long_as_simulated(names: tuple[str, ...]) -> None:
    simulated, flow = (run_simulated(level, *names) for level in ("packet", "flow"))
    for name in names:  # all jobs are on all hosts, where levels agree
        at_flow_level = value(flow, f"{name}.completion")
        assert at_flow_level == pytest.approx(value(simulated, f"{name}.completion"), rel=0.02)
    for _ in range(TRIES):
        with watched() as machine:
            real = run_real(*names)
        pairs = {
            name: (value(real, f"{name}.completion"), value(simulated, f"{name}.completion"))
            for name in names
        }
        print({name: f"{real_us / us:.3f}" for name, (real_us, us) in pairs.items()})
        for name, (real_us, simulated_us) in pairs.items():
            assert real_us >= simulated_us - 2 * BURST_US * count_stages(name), name
        late_us = RETRANSMISSION_US * (len(names) - 1)
        if all(real_us <= us * HEADERS * ROOM + late_us for real_us, us in pairs.values()):
            return
    if machine.trouble:
        pytest.skip(f"{machine.trouble}: {pairs}")
    pytest.fail(f"slower than {HEADERS * ROOM:.2f} times simulated: {pairs}")


@pytest.mark.usefixtures("bed")
def test_a_job_can_be_profiled_and_needs_its_bandwidth(tmp_path: Path) -> None:
    """100 ms of each 601 are communication after computation: at a quarter it takes 300 ms more.

    The early half, 100 ms, needs 400 at a quarter and no longer hides behind 200 of computation:
    (400 + 400 + 300) / 600 is 1.83, and commands start before their job does.
    """
    weft = [sys.executable, "-m", "weft.cli"]
    argv = [*weft, "profile", "--name", "sort", "--percent", "25,100", "--repeat", "2"]
    argv += ["--testbed", NAME, "--table", str(tmp_path), "--"]
    argv += [*weft, "job", "run", job_file("sort"), "--testbed", NAME]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    runs = AppTable(tmp_path).load("sort").profile.runs
    at = {share: min(run.completion for run in runs if run.share == share) for share in (0.25, 1.0)}
    print(at)
    assert 1.2 < at[0.25] / at[1.0] < 2.2
