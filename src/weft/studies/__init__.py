"""The papers' tables and figures as runnable studies, with their published values.

from weft.studies import find_studies, run_study
result = run_study(find_studies(["rperf-fig10"])[0])
result.rows
"""

from weft.studies.catalog import STUDIES, find_studies
from weft.studies.claim import Claim, NotHere, Verdict
from weft.studies.draw import study_figures
from weft.studies.observation import Observation, Row, row_line
from weft.studies.site import Point, StudyError, measured, modelled, simulated
from weft.studies.study import Result, Study, run_study, study_records

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
]
