"""The studies of the Saba thesis, in its order, and those that show a user's applications too.

Entry points: `SABA`, `BUILDERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from weft.studies.saba.calculation_time import FIG4_19
from weft.studies.saba.changed_conditions import FIG4_5, FIG4_6, build_fig4_5, build_fig4_6
from weft.studies.saba.cohort import Cohort
from weft.studies.saba.live_runs import LIVE
from weft.studies.saba.model_fits import FIG4_3, FIG4_4, build_fig4_4
from weft.studies.saba.priority_levels import FIG4_7, FIG4_8, FIG4_9, build_fig4_7
from weft.studies.saba.slowdown_by_share import FIG3_1, FIG3_3, build_fig3_1, build_fig3_3
from weft.studies.saba.speedups import SPEEDUPS
from weft.studies.saba.workload_pair import FIG3_2, build_fig3_2
from weft.studies.study import Study

_CHAPTER_3 = (FIG3_1, FIG3_2, FIG3_3)
_CHAPTER_4 = (FIG4_3, FIG4_4, FIG4_5, FIG4_6, FIG4_7, FIG4_8, FIG4_9, *SPEEDUPS, LIVE, FIG4_19)
SABA: tuple[Study, ...] = (*_CHAPTER_3, *_CHAPTER_4)

BUILDERS: Mapping[str, Callable[[Sequence[Cohort]], Study]] = {
    FIG3_1.name: build_fig3_1,
    FIG3_2.name: build_fig3_2,
    FIG3_3.name: build_fig3_3,
    FIG4_4.name: build_fig4_4,
    FIG4_5.name: build_fig4_5,
    FIG4_6.name: build_fig4_6,
    FIG4_7.name: build_fig4_7,
}
