"""The studies of the FDR paper, in its order. Entry point: `FDR`."""

from __future__ import annotations

from weft.studies.fdr.host_settings import ALIGNMENT, EQ2, NOTIFICATION, NUMA
from weft.studies.fdr.outstanding_messages import CACHE, EQ1, OUTSTANDING
from weft.studies.study import Study

FDR: tuple[Study, ...] = (ALIGNMENT, OUTSTANDING, CACHE, EQ1, NOTIFICATION, EQ2, NUMA)
