"""Every study by its name, paper by paper.

Entry points: `STUDIES`, `find_studies`, `takes_applications`, `with_applications`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import InputError
from weft.studies.cohort import Cohort, recorded_here
from weft.studies.efa import EFA
from weft.studies.efa_advice import ADVICE
from weft.studies.fdr import FDR
from weft.studies.ib2016 import IB2016
from weft.studies.interfaces import INTERFACES
from weft.studies.rperf_converged import FIG7A, FIG7B, FIG8, FIG9
from weft.studies.rperf_lanes import FIG12, FIG13
from weft.studies.rperf_one_to_one import FIG4, FIG5, FIG6
from weft.studies.rperf_policies import FIG10, FIG11
from weft.studies.saba import OF_APPLICATIONS, SABA
from weft.studies.study import Study

RPERF: tuple[Study, ...] = (FIG4, FIG5, FIG6, FIG7A, FIG7B, FIG8, FIG9, FIG10, FIG11, FIG12, FIG13)

STUDIES: tuple[Study, ...] = (*RPERF, *IB2016, *EFA, *INTERFACES, ADVICE, *FDR, *SABA)


def find_studies(names: Sequence[str]) -> list[Study]:
    """The studies of these names, each once; "all" is every study."""
    known = {study.name: study for study in STUDIES}
    unknown = [name for name in names if name != "all" and name not in known]
    if unknown:
        raise InputError("study", f"{unknown[0]!r} is unknown", f"use all, {', '.join(known)}")
    return list(STUDIES) if "all" in names else [known[name] for name in dict.fromkeys(names)]


def takes_applications(study: Study) -> bool:
    """Whether the study shows profiled applications, to which a user's can be added."""
    return study.name in OF_APPLICATIONS


def with_applications(study: Study, own: Cohort) -> Study:
    """The study with a user's applications beside those recorded in the project."""
    return OF_APPLICATIONS[study.name]((recorded_here(), own))
