"""Every study by its name, paper by paper.

Entry points: `STUDIES`, `find_studies`, `takes_applications`, `with_applications`, `takes_seeds`,
`with_seeds`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from weft.errors import InputError
from weft.studies.efa import EFA
from weft.studies.fdr import FDR
from weft.studies.ib2016 import IB2016
from weft.studies.rperf import RPERF
from weft.studies.saba import BUILDERS, SABA
from weft.studies.saba.cohort import Cohort, project_cohort
from weft.studies.saba.speedups import SPEEDUP_BUILDERS, Size
from weft.studies.study import Study

MAX_SEEDS = 10_000
STUDIES: tuple[Study, ...] = (*RPERF, *IB2016, *EFA, *FDR, *SABA)


def find_studies(names: Sequence[str]) -> list[Study]:
    """The studies of these names, each once; "all" is every study."""
    by_name = {study.name: study for study in STUDIES}
    unknown = [name for name in names if name != "all" and name not in by_name]
    if unknown:
        near = [name for name in by_name if unknown[0] in name]
        near = near or difflib.get_close_matches(unknown[0], by_name, n=2)
        meant = f"did you mean {' or '.join(near[:4])}? " if near else ""
        raise InputError("study", f"{unknown[0]!r} is unknown", f"{meant}weft study list has all")
    return list(STUDIES) if "all" in names else [by_name[name] for name in dict.fromkeys(names)]


def takes_applications(study: Study) -> bool:
    """Whether the study shows profiled applications, to which a user's can be added."""
    return study.name in BUILDERS


def with_applications(study: Study, cohort: Cohort) -> Study:
    """The study with a user's applications beside those recorded in the project."""
    return BUILDERS[study.name]((project_cohort(), cohort))


def takes_seeds(study: Study) -> bool:
    """Whether the study draws set-ups, of which there can be more, at the paper's size."""
    return study.name in SPEEDUP_BUILDERS


def with_seeds(study: Study, seeds: int, processes: int) -> Study:
    """The study with so many set-ups at the paper's size, evaluated in so many processes."""
    if not 1 <= seeds <= MAX_SEEDS:
        raise InputError("--seeds", f"{seeds} set-ups", f"use 1 to {MAX_SEEDS:,}")
    return SPEEDUP_BUILDERS[study.name](Size(seeds=seeds, processes=processes))
