"""The studies of the FDR paper, in its order. Entry point: `FDR`."""

from __future__ import annotations

from weft.studies.fdr.fdr_studies import (
    ALIGNMENT,
    CACHE,
    EQ1,
    EQ2,
    NOTIFICATION,
    NUMA,
    OUTSTANDING,
    SWITCH,
)
from weft.studies.study import Study

FDR: tuple[Study, ...] = (SWITCH, ALIGNMENT, OUTSTANDING, CACHE, EQ1, NOTIFICATION, EQ2, NUMA)
