"""The tables of the EFA thesis as studies. Entry point: `EFA`."""

from __future__ import annotations

from weft.studies.efa.efa_tables import C1, C2, C3, C4, C5, C6, C7, C8, C9, C10
from weft.studies.efa.efa_text import ADVICE, TEXT
from weft.studies.study import EFA_PAPER, Study, experiment_only

INTERFACES = experiment_only(
    "efa-interfaces", "One wire, two interfaces: verbs and libfabric", EFA_PAPER, "4.11, Fig. 4.18"
)

EFA: tuple[Study, ...] = (C1, C2, C3, C4, C5, C6, C7, C8, C9, C10, INTERFACES, TEXT, ADVICE)
