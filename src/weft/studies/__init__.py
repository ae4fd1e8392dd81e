"""The papers' tables and figures as runnable studies, with their published values.

    from weft.studies import find_studies, run_study
    result = run_study(find_studies(["rperf-fig10"])[0])
    result.rows

Published tables and calibrated models need no plots: names are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.studies.catalog import STUDIES, find_studies, takes_applications, with_applications
    from weft.studies.claim import Claim, NotHere, Verdict
    from weft.studies.draw import study_figures
    from weft.studies.observation import Observation, Row, row_line
    from weft.studies.site import Point, StudyError, measured, modelled, simulated
    from weft.studies.study import Result, Study, run_study, study_records

_MODULES = {
    "catalog": ("STUDIES", "find_studies", "takes_applications", "with_applications"),
    "claim": ("Claim", "NotHere", "Verdict"),
    "draw": ("study_figures",),
    "observation": ("Observation", "Row", "row_line"),
    "site": ("Point", "StudyError", "measured", "modelled", "simulated"),
    "study": ("Result", "Study", "run_study", "study_records"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


__all__ = [
    "STUDIES",
    "Claim",
    "NotHere",
    "Observation",
    "Point",
    "Result",
    "Row",
    "Study",
    "StudyError",
    "Verdict",
    "find_studies",
    "measured",
    "modelled",
    "row_line",
    "run_study",
    "simulated",
    "study_figures",
    "study_records",
    "takes_applications",
    "with_applications",
]
