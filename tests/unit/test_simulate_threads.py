"""Threads of a simulation: the record does not depend on how many there are."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft._core import RunSpec, Status
from weft.cli import main
from weft.records import to_line
from weft.simulate import load_scenario, scenario_from, simulate
from weft.simulate.run import build_simulation

SCENARIOS = Path(__file__).parents[2] / "examples" / "scenarios"
EXAMPLES = sorted(path.stem for path in SCENARIOS.glob("*.toml") if path.stem != "ring-fabric")
THREADS = (2, 3, 7) if os.environ.get("WEFT_ALL_EXAMPLES") else (2,)


def make_partitioned_run() -> RunSpec:
    run = RunSpec()
    run.partitioned_links = 0
    return run


@pytest.fixture
def small_fabrics_are_partitioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.simulate.run.RunSpec", make_partitioned_run)


@pytest.mark.usefixtures("small_fabrics_are_partitioned")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_the_same_record_byte_for_byte_for_any_number_of_threads(
    name: str,
) -> None:
    scenario = load_scenario(SCENARIOS / f"{name}.toml")
    first = simulate(scenario, threads=1)
    for threads in THREADS:
        outcome = simulate(scenario, threads=threads)
        assert outcome.ended == first.ended
        assert to_line(outcome.record) == to_line(first.record)


def fat_tree(k: int) -> dict[str, Any]:
    traffic = {"name": "flows", "kind": "permutation", "size": "16 KiB"}
    fabric = {"topology": "fat_tree", "k": k, "rate": "56 Gb/s", "delay": "50 ns"}
    return {"duration": "1 ms", "fabric": fabric, "traffic": [traffic]}


def test_a_large_fabric_has_partitions_and_the_same_record_with_several_threads() -> None:
    scenario = scenario_from(fat_tree(12))
    assert build_simulation(scenario)[0].partitions > 1
    lines = {to_line(simulate(scenario, threads=threads).record) for threads in (1, 2, 7)}
    assert len(lines) == 1


def test_a_small_fabric_is_one_partition() -> None:
    assert build_simulation(scenario_from(fat_tree(8)))[0].partitions == 1


@pytest.mark.usefixtures("small_fabrics_are_partitioned")
def test_cables_without_delay_stay_inside_a_partition() -> None:
    data = fat_tree(4)
    data["fabric"]["delay"] = "0 ns"
    assert build_simulation(scenario_from(data))[0].partitions == 1
    data["fabric"]["delay"] = ["0 ns", "0 ns", "50 ns"]
    assert build_simulation(scenario_from(data))[0].partitions == 5  # four pods, and the core


@pytest.mark.parametrize("threads", ["0", "65", "-1"])
def test_a_number_of_threads_out_of_range_is_refused(
    threads: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["simulate", str(SCENARIOS / "incast.toml"), "--threads", threads])
    assert status == 2
    error = capsys.readouterr().err
    assert f"--threads: {threads} is out of range; use 1 to 64" in error


WITHOUT_ROOM_FOR_STACKS = """
import re, resource, sys, warnings
from pathlib import Path
from weft.records import to_line
from weft.simulate import scenario_from, simulate
import tests.unit.test_simulate_threads as this

scenario = scenario_from(this.fat_tree(12))
expected = to_line(simulate(scenario, threads=1).record)
used = 1024 * int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
resource.setrlimit(resource.RLIMIT_AS, (used + this.STACK // 2, resource.RLIM_INFINITY))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    outcome = simulate(scenario, threads=3)
print(to_line(outcome.record) == expected, [str(warning.message) for warning in caught])
"""
STACK = 2**31


def test_a_run_whose_threads_cannot_start_goes_on_with_fewer_and_says_so() -> None:
    """Threads need a stack of 2 GiB each, and half of that is left."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOM_FOR_STACKS],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (STACK, STACK)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    warning = "the system started only 1 of 3 threads; the record is the same"
    assert done.stdout == f"True {[warning]}\n", done.stderr


@pytest.mark.parametrize("stop", ["400 us", "2 ms"])
def test_partitions_are_sampled_as_often_as_one(stop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every period, until the last event has shown its effect or the run is over."""
    pings = {"name": "pings", "kind": "paced", "from": "h0", "to": "h15", "size": "1 B"}
    data = fat_tree(4) | {"sample_queues_every": "7 us"}
    data["traffic"] = [{**pings, "interval": "300 us", "stop": stop}]
    alone = build_simulation(scenario_from(data))[0]
    monkeypatch.setattr("weft.simulate.run.RunSpec", make_partitioned_run)
    parts = build_simulation(scenario_from(data))[0]
    assert alone.partitions < parts.partitions
    for simulation in (alone, parts):
        while simulation.run(1 << 20) == Status.RUNNING:
            pass
    assert list(parts.sample_times_ps) == list(alone.sample_times_ps)
