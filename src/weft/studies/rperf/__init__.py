"""The studies of RPerf (ISPASS 2020), in the paper's order. Entry point: `RPERF`."""

from weft.studies.rperf.rperf_figures import RPERF

__all__ = ["RPERF"]
