"""InfiniBand benchmarks 2016, Table 1: signal and data rates by speed and width."""

from __future__ import annotations

import numpy as np

from weft.fabric import LinkRate
from weft.model.fit import FloatArray
from weft.studies.published import find_table
from weft.studies.study import IB2016_PAPER, Study
from weft.studies.tabulated import Curve, curve, observations_of, points_of, table_panel

SPEEDS = ("SDR", "DDR", "QDR", "FDR", "EDR")
SYSTEM = "line codes of the InfiniBand specification"
DIGITS = 5e-4  # the paper gives two digits after the point: 13.64 is off by 3 in 10,000
TABLE = find_table("ib2016-table1")


def _gbps(speed: str, rate: str) -> Curve:
    def predict(widths: FloatArray) -> FloatArray:
        links = [LinkRate(speed, int(width)) for width in widths]
        return np.array([link.data_bps if rate == "data" else link.signal_bps for link in links])

    return curve(
        TABLE,
        f"{speed}_{rate}_gbps",
        x="width",
        label=f"{speed}, {rate} rate",
        predict=lambda widths: predict(widths) / 1e9,
        quantity=f"{rate} rate",
        unit="Gb/s",
        system=SYSTEM,
        tolerance=DIGITS,
        kind="rate",
        predicted=True,
        x_text=lambda width: f"{width:g}X",
    )


_DATA = tuple(_gbps(speed, "data") for speed in SPEEDS)
_SIGNAL = tuple(_gbps(speed, "signal") for speed in SPEEDS)

TABLE1 = Study(
    name="ib2016-table1",
    title="Signal and data rates of InfiniBand links",
    paper=IB2016_PAPER,
    place="Table 1",
    system=SYSTEM,
    points=points_of((*_SIGNAL, *_DATA)),
    observations=observations_of((*_SIGNAL, *_DATA)),
    panels=(table_panel(_DATA, "lanes", "data rate (Gb/s)"),),
    notes=TABLE.notes,
)
