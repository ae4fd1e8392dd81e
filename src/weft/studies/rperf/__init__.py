"""The studies of RPerf (ISPASS 2020), in the paper's order. Entry point: `RPERF`."""

from weft.studies.rperf.many_to_one import FIG7A, FIG7B, FIG8, FIG9, FIG10, FIG11, FIG12, FIG13
from weft.studies.rperf.one_to_one import FIG4, FIG5, FIG6
from weft.studies.study import Study

RPERF: tuple[Study, ...] = (FIG4, FIG5, FIG6, FIG7A, FIG7B, FIG8, FIG9, FIG10, FIG11, FIG12, FIG13)
