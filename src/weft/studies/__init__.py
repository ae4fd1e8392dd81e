"""The papers' tables and figures as runnable studies, with their published values.

from weft.studies import find_studies, run_study
result = run_study(find_studies(["rperf-fig10"])[0])
result.rows
"""

from weft.studies.catalog import STUDIES, find_studies
from weft.studies.draw import study_figure
from weft.studies.observation import Observation, Row, row_line
from weft.studies.study import Point, Result, Study, StudyError, run_study, study_records

__all__ = [
    "STUDIES",
    "Observation",
    "Point",
    "Result",
    "Row",
    "Study",
    "StudyError",
    "find_studies",
    "row_line",
    "run_study",
    "study_figure",
    "study_records",
]
