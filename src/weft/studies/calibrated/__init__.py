"""The models of `weft.model` fitted to published tables, by name and quantity."""

from weft.studies.calibrated.calibration import Calibration, Quantity, Sample
from weft.studies.calibrated.latency import (
    LATENCY,
    efa_latency_fit,
    ipoib_latency_fit,
    latency_fit,
)

CALIBRATED = {**LATENCY}

__all__ = [
    "CALIBRATED",
    "LATENCY",
    "Calibration",
    "Quantity",
    "Sample",
    "efa_latency_fit",
    "ipoib_latency_fit",
    "latency_fit",
]
