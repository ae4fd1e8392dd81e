"""InfiniBand benchmarks 2016: its studies in the paper's order. Entry point: `IB2016`."""

from weft.studies.ib2016.ipoib import TABLES_5_TO_8
from weft.studies.ib2016.send import FIGURES, TABLES_1_TO_4

IB2016 = (*TABLES_1_TO_4, *TABLES_5_TO_8, *FIGURES)
