"""The converged run, recorded with TCP on namespaces, agrees with the queue and the simulator.

`tests/live/test_converged.py` runs it anew; here are the records of docs/many-hosts.md.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from weft.records import read_records

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figure() -> ModuleType:
    path = ROOT / "examples" / "plans" / "converged_figure.py"
    spec = importlib.util.spec_from_file_location("converged_figure", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["converged_figure"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_from_two_senders_on_the_probe_waits_for_a_full_queue(figure: ModuleType) -> None:
    records = read_records(ROOT / "tests" / "data" / "measure" / "converged.jsonl").records
    measured = figure.measured(records)
    numbers = [2, 3, 4, 5]
    simulated = figure.simulated(numbers, {n: figure.shared_window(n) for n in numbers})
    full_ms = 8e3 * figure.QUEUE_PACKETS * figure.PACKET_BYTES / figure.RATE_BPS
    for n in numbers:
        # Windows sum up to the queue, within the rounding of a packet per sender.
        assert simulated[n].p50_ms == pytest.approx(full_ms, rel=0.03)
        assert measured[n].p50_ms == pytest.approx(simulated[n].p50_ms, rel=0.15)
        assert measured[n].total_mbps == pytest.approx(simulated[n].total_mbps, rel=0.03)


def test_with_credits_each_sender_adds_a_full_buffer(figure: ModuleType) -> None:
    numbers = [2, 5]
    credits = figure.simulated(numbers, dict.fromkeys(numbers, figure.CREDITS_WINDOW))
    full_ms = 8e3 * figure.QUEUE_PACKETS * figure.PACKET_BYTES / figure.RATE_BPS
    for n in numbers:
        assert credits[n].p50_ms == pytest.approx(n * full_ms, rel=0.03)
