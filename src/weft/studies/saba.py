"""The studies of the Saba thesis, in its order. Entry point: `SABA`."""

from __future__ import annotations

from weft.studies.saba_degree import FIG4_3, FIG4_4
from weft.studies.saba_mapping import FIG4_7, FIG4_8, FIG4_9
from weft.studies.saba_time import FIG4_19
from weft.studies.study import Study

SABA: tuple[Study, ...] = (FIG4_3, FIG4_4, FIG4_7, FIG4_8, FIG4_9, FIG4_19)
