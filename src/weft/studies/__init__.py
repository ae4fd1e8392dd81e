"""The papers' tables and figures as runnable studies, with their published values.

    from weft.studies import find_studies, run_study
    result = run_study(find_studies(["rperf-fig10"])[0])
    result.rows

Published tables and calibrated models need no plots: names are imported when they are asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.studies.observation import Claim, Observation, Row, Unavailable, Verdict, row_line
    from weft.studies.points import (
        Point,
        StudyError,
        measurement_point,
        model_point,
        simulation_point,
    )
    from weft.studies.report import study_figures
    from weft.studies.run_studies import (
        STUDIES,
        find_studies,
        takes_applications,
        takes_seeds,
        with_applications,
        with_seeds,
    )
    from weft.studies.study import Result, Study, run_study, study_records

_MODULES = {
    "run_studies": (
        "STUDIES",
        "find_studies",
        "takes_applications",
        "takes_seeds",
        "with_applications",
        "with_seeds",
    ),
    "observation": ("Claim", "Unavailable", "Observation", "Row", "Verdict", "row_line"),
    "points": ("Point", "StudyError", "measurement_point", "model_point", "simulation_point"),
    "report": ("study_figures",),
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
    "Observation",
    "Point",
    "Result",
    "Row",
    "Study",
    "StudyError",
    "Unavailable",
    "Verdict",
    "find_studies",
    "measurement_point",
    "model_point",
    "row_line",
    "run_study",
    "simulation_point",
    "study_figures",
    "study_records",
    "takes_applications",
    "takes_seeds",
    "with_applications",
    "with_seeds",
]
