"""The studies of the FDR paper, in its order. Entry point: `FDR`."""

from __future__ import annotations

from weft.studies.fdr.best_b import EQ1
from weft.studies.fdr.completion import EQ2, NOTIFICATION
from weft.studies.fdr.outstanding import CACHE, OUTSTANDING
from weft.studies.fdr.placement import ALIGNMENT, NUMA
from weft.studies.study import Study

FDR: tuple[Study, ...] = (ALIGNMENT, OUTSTANDING, CACHE, EQ1, NOTIFICATION, EQ2, NUMA)
