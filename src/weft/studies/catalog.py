"""Every study by its name, paper by paper.

Entry points: `STUDIES`, `find_studies`, `takes_applications`, `with_applications`.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.errors import InputError
from weft.studies.efa import EFA
from weft.studies.fdr import FDR
from weft.studies.ib2016 import IB2016
from weft.studies.rperf import RPERF
from weft.studies.saba import BUILDERS, SABA
from weft.studies.saba.cohort import Cohort, project_cohort
from weft.studies.study import Study

STUDIES: tuple[Study, ...] = (*RPERF, *IB2016, *EFA, *FDR, *SABA)


def find_studies(names: Sequence[str]) -> list[Study]:
    """The studies of these names, each once; "all" is every study."""
    by_name = {study.name: study for study in STUDIES}
    unknown = [name for name in names if name != "all" and name not in by_name]
    if unknown:
        raise InputError("study", f"{unknown[0]!r} is unknown", f"use all, {', '.join(by_name)}")
    return list(STUDIES) if "all" in names else [by_name[name] for name in dict.fromkeys(names)]


def takes_applications(study: Study) -> bool:
    """Whether the study shows profiled applications, to which a user's can be added."""
    return study.name in BUILDERS


def with_applications(study: Study, cohort: Cohort) -> Study:
    """The study with a user's applications beside those recorded in the project."""
    return BUILDERS[study.name]((project_cohort(), cohort))
