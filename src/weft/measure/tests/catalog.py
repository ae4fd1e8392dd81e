"""Every test by name."""

from __future__ import annotations

from weft.measure.measurement import Test
from weft.measure.tests.bandwidth import BANDWIDTH
from weft.measure.tests.latency import LATENCY
from weft.measure.tests.paced import PACED
from weft.measure.tests.rate import RATE
from weft.measure.tests.rma import RMA
from weft.measure.tests.rperf import RPERF
from weft.measure.tests.saturation import SATURATION
from weft.measure.tests.transfer import TRANSFER

TESTS: dict[str, Test] = {
    test.name: test for test in (LATENCY, RPERF, BANDWIDTH, RATE, PACED, SATURATION, RMA, TRANSFER)
}
