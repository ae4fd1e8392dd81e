"""Latency beside load fitted to C.8 of the EFA thesis: 8 threads of load, 4096-byte messages.

Entry points: `saturation_fit`, `doubling_load`; `SATURATION` has both by name.
 Units: us, MB/s (10^6 bytes).
"""

from __future__ import annotations

from functools import cache, partial
from typing import Literal

from weft.model.fit import Fit
from weft.model.latency import doubling_load_MBps, saturation
from weft.studies.calibrated.calibration import Calibration, Sample
from weft.studies.published import published

Quantile = Literal["p50", "p99"]
_TABLES: dict[Quantile, str] = {"p50": "efa-c8-1", "p99": "efa-c8-2"}


@cache
def capacity_MBps() -> float:
    """Most that the same program ever moved in 4096-byte messages over the same adapter."""
    return float(published("efa-c5-1").column("SRD_4096B_MBps").max())


@cache
def saturation_fit(quantile: Quantile) -> Fit:
    """The probe's median or 99th percentile. Input: load_MBps, what arrived. Value: us."""
    return saturation_sample(quantile).fit()


def saturation_sample(quantile: Quantile) -> Sample:
    table = published(_TABLES[quantile])
    latency_us = table.column(f"{quantile}_us")
    return Sample(
        form=saturation(capacity_MBps(), unloaded_us=float(latency_us.min())),
        inputs={"load_MBps": table.column("load_MBps")},
        observed=latency_us,
        data=f"EFA thesis {table.place}, {quantile}, 4096 B beside 8 threads",
    )


def doubling_load(quantile: Quantile) -> float | None:
    """The load in MB/s at which that quantile doubles; None if not even at capacity."""
    return doubling_load_MBps(saturation_fit(quantile), capacity_MBps())


SATURATION = {
    f"efa-{quantile}": Calibration(
        name=f"efa-{quantile}",
        quantity="saturation",
        system=f"EFA thesis C.8, {quantile} of a 4096 B probe beside 8 threads of load",
        fit=partial(saturation_fit, quantile),
    )
    for quantile in _TABLES
}
