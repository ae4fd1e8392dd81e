"""Every test by name."""

from __future__ import annotations

from weft.measure.bandwidth import BANDWIDTH
from weft.measure.latency import LATENCY
from weft.measure.paced import PACED
from weft.measure.rate import RATE
from weft.measure.rma import RMA
from weft.measure.rperf import RPERF
from weft.measure.saturation import SATURATION
from weft.measure.test import Test
from weft.measure.transfer import TRANSFER

TESTS: dict[str, Test] = {
    test.name: test for test in (LATENCY, RPERF, BANDWIDTH, RATE, PACED, SATURATION, RMA, TRANSFER)
}
