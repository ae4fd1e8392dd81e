"""The tests of a fabric, by name: `TESTS`."""

from __future__ import annotations

from weft.measure.measurement import Test
from weft.measure.tests.bandwidth import BANDWIDTH, RATE, RMA
from weft.measure.tests.latency import LATENCY, PACED, RPERF
from weft.measure.tests.saturation import SATURATION
from weft.measure.tests.transfer import TRANSFER

TESTS: dict[str, Test] = {
    test.name: test for test in (LATENCY, RPERF, BANDWIDTH, RATE, PACED, SATURATION, RMA, TRANSFER)
}
