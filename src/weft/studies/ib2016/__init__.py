"""InfiniBand benchmarks 2016: its studies in the paper's order. Entry point: `IB2016`."""

from __future__ import annotations

from weft.studies.ib2016.ipoib import TABLE5, TABLE6, TABLE7, TABLE8
from weft.studies.ib2016.send_latency import TABLE1, TABLE2, TABLE3, TABLE4
from weft.studies.ib2016.send_throughput import FIG5, FIG6, FIG7, FIG8, FIG9, FIG10
from weft.studies.study import Study

_TABLES = (TABLE1, TABLE2, TABLE3, TABLE4, TABLE5, TABLE6, TABLE7, TABLE8)
_FIGURES = (FIG5, FIG6, FIG7, FIG8, FIG9, FIG10)
IB2016: tuple[Study, ...] = (*_TABLES, *_FIGURES)
