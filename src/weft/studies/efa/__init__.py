"""The tables of the EFA thesis as studies. Entry point: `EFA`."""

from __future__ import annotations

from weft.studies.efa.capability_table import TABLE2_1
from weft.studies.efa.efa_latency import C1, C6, C7, C9
from weft.studies.efa.efa_saturation import C8
from weft.studies.efa.efa_throughput import C2, C3, C4, C5, C10
from weft.studies.study import Study

EFA: tuple[Study, ...] = (TABLE2_1, C1, C2, C3, C4, C5, C6, C7, C8, C9, C10)
