"""The models of `weft.model` fitted to published tables, by name and quantity."""

from weft.studies.calibrated.latency_fits import (
    LATENCY,
    SATURATION,
    Calibration,
    Quantity,
    Sample,
    doubling_load,
    efa_latency_fit,
    ipoib_latency_fit,
    latency_fit,
    saturation_fit,
)
from weft.studies.calibrated.throughput_fits import THROUGHPUT, throughput_fit, udp_throughput_fit

CALIBRATED = {**LATENCY, **THROUGHPUT, **SATURATION}

__all__ = [
    "CALIBRATED",
    "LATENCY",
    "SATURATION",
    "THROUGHPUT",
    "Calibration",
    "Quantity",
    "Sample",
    "doubling_load",
    "efa_latency_fit",
    "ipoib_latency_fit",
    "latency_fit",
    "saturation_fit",
    "throughput_fit",
    "udp_throughput_fit",
]
