"""Seven namespaces as hosts, a Dask worker in each: a probe beside 0 to 5 senders to one receiver.

The oracle is the port: first in, first out, LIMIT bytes at RATE. When it is saturated a probe waits
LIMIT / RATE, whatever the number of senders. The simulator with the same rate and queue agrees.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from needs import need_dask, need_namespaces
from plan_scripts import PLANS, script
from traffic import watched

from weft.records import Distribution, Record, Scalar, read_records

LIMIT_S = 240
SATURATED = 0.85  # of the port's rate


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, ...]:
    need_namespaces()
    need_dask()
    output = tmp_path_factory.mktemp("converged") / "converged.jsonl"
    argv = [sys.executable, str(PLANS / "converged_testbed.py"), "-o", str(output)]
    with watched() as machine:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    found = read_records(output).records
    least = min(_filled(record) for senders, record in _by_senders(found).items() if senders > 1)
    if least < SATURATED and machine.trouble:
        pytest.skip(
            f"{machine.trouble}: a port that is {least:.0%} full says nothing of a full one"
        )
    return found


def _number(record: Record, name: str) -> float:
    quantity = record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


def _median_rtt_s(record: Record) -> float:
    half = record.quantities["probe.half_rtt"]
    assert isinstance(half, Distribution)
    return 2 * half.quantile(0.5) / 1e12


def _by_senders(records: tuple[Record, ...]) -> dict[int, Record]:
    return {int(r.settings["traffic.senders.count"] or 0): r for r in records}


def _filled(record: Record) -> float:
    """The share of the port's rate that senders used."""
    rate_bps = script("converged_testbed").RATE_BPS
    return float(_number(record, "senders.throughput") * 1514 / 1448 / rate_bps)


def test_each_number_of_senders_is_measured_on_seven_hosts(records: tuple[Record, ...]) -> None:
    assert sorted(_by_senders(records)) == [0, 1, 2, 3, 4, 5]
    for senders, record in _by_senders(records).items():
        assert len(record.tables["hosts"]) == 7
        flows = [row for row in record.tables["flows"] if row["traffic"] == "senders"]
        assert len(flows) == senders
        assert all(row["endpoint.congestion_control"] == "cubic" for row in flows)
        assert _number(record, "start.spread") < 1e9


def test_behind_a_full_port_the_probe_waits_for_its_queue(records: tuple[Record, ...]) -> None:
    setup = script("converged_testbed")
    full_s = 8 * setup.LIMIT_BYTES / setup.RATE_BPS
    steps = _by_senders(records)
    assert _median_rtt_s(steps[0]) < 0.2 * full_s
    for senders in range(2, 6):
        assert SATURATED <= _filled(steps[senders]) <= 1.05
        assert 0.5 * full_s < _median_rtt_s(steps[senders]) < 1.5 * full_s


def test_the_simulator_with_the_same_rate_and_queue_agrees(records: tuple[Record, ...]) -> None:
    setup, figure = script("converged_testbed"), script("converged_figure")
    assert figure.RATE_BPS == setup.RATE_BPS
    assert figure.QUEUE_PACKETS * figure.PACKET_BYTES == setup.LIMIT_BYTES
    steps = _by_senders(records)
    numbers = [2, 3, 5]
    ours = figure.simulated(numbers, {n: figure.shared_window(n) for n in numbers})
    for senders in numbers:
        assert SATURATED <= _filled(steps[senders]) <= 1.05
        measured_ms = 1e3 * _median_rtt_s(steps[senders])
        assert measured_ms == pytest.approx(ours[senders].p50_ms, rel=0.4)
        assert ours[senders].total_mbps == pytest.approx(setup.RATE_BPS / 1e6, rel=0.02)
