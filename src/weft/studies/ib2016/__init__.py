"""InfiniBand benchmarks 2016: its studies in the paper's order."""

from __future__ import annotations

from weft.studies.ib2016.ipoib import TABLE5, TABLE6, TABLE7, TABLE8
from weft.studies.ib2016.link_rates import TABLE1
from weft.studies.ib2016.send_latency import TABLE2, TABLE3, TABLE4
from weft.studies.ib2016.send_throughput import FIG5, FIG6, FIG7, FIG8, FIG9, FIG10
from weft.studies.study import Study

IB2016: tuple[Study, ...] = (
    TABLE1,
    TABLE2,
    TABLE3,
    TABLE4,
    TABLE5,
    TABLE6,
    TABLE7,
    TABLE8,
    FIG5,
    FIG6,
    FIG7,
    FIG8,
    FIG9,
    FIG10,
)
