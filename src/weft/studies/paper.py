"""The papers that studies are of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """A paper by the name it has here and in full."""

    short: str
    citation: str


IB2016 = Paper(
    short="InfiniBand benchmarks (IJCNIS 2016)",
    citation="Gamess, Ortiz-Zuazaga: Low Level Performance Evaluation of InfiniBand with "
    "Benchmarking Tools, IJCNIS 8(10), 2016",
)
EFA = Paper(
    short="EFA thesis (2022)",
    citation="Dwarakanandan B.M: Elastic Fabric Adapter: A Viable Alternative to RDMA over "
    "InfiniBand for DBMS?, TU Darmstadt, 2022",
)
FDR = Paper(
    short="FDR study (2014)",
    citation="Liu, Russell: A Performance Study of InfiniBand Fourteen Data Rate (FDR), 2014",
)
SABA = Paper(
    short="Saba thesis (2022)",
    citation="Katebzadeh: Application-Centric Bandwidth Allocation in Datacenters, University of "
    "Edinburgh, 2022",
)
