"""Figure 4.19 of the Saba thesis: how long the weights of a whole fabric take.

Timed is the split of every port of the papers' fabric, given which applications use it, on one
core, as CPU time of the thread. The published times are of another machine and of SciPy's solver:
they stand beside ours and are not judged. Entry points: `FIG4_19`, `fig4_19`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

import numpy as np

from weft import __version__
from weft._core import Histogram
from weft.control.policy.allocate import Models, allocate
from weft.fabric import papers_1944
from weft.plot.style import PUBLISHED, label_log_axis, legend
from weft.records import Distribution, Provenance, Record
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Claim,
    Observation,
    Records,
    Unavailable,
    Verdict,
    quantile_in,
)
from weft.studies.points import SEED, Point, RunContext
from weft.studies.published import published
from weft.studies.saba.scenarios import KINDS, UNITS, Wiring, connections, models
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.tabulated import COLOURS, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TABLE = published("saba-fig4-19")
SIZES = tuple(int(size) for size in TABLE.column("applications"))
SYSTEM = "this machine, one core"
SCENARIOS = 20


def _setting(applications: int) -> str:
    return f"{applications:,} applications"


def calculation_times_ns(applications: int, scenarios: int) -> dict[str, list[int]]:
    """CPU time of the split of all ports, by kind of model, one for each random scenario."""
    rng = np.random.default_rng(SEED)
    wiring = Wiring(papers_1944())
    found: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for _ in range(scenarios):
        ports, _names = wiring.ports(*connections(rng, wiring.hosts, applications))
        for kind, own in models(rng, applications).items():
            prepared = Models(own)
            begin = time.thread_time_ns()
            allocate(prepared, ports, units=UNITS)
            found[kind].append(time.thread_time_ns() - begin)
    return found


def _point(applications: int, scenarios: int) -> Point:
    def run(_: RunContext) -> Record:
        times = calculation_times_ns(applications, scenarios)
        quantities = {kind: _distribution(taken) for kind, taken in times.items()}
        return Record(
            kind="measurement",
            name="calculation time",
            quantities=quantities,
            provenance=Provenance(weft_version=__version__),
        )

    return Point(
        setting=_setting(applications),
        source="measurement",
        system=SYSTEM,
        run=run,
        settings={"applications": applications, "scenarios": scenarios},
    )


def _distribution(taken_ns: list[int]) -> Distribution:
    histogram = Histogram()
    histogram.record_many(np.array(taken_ns, dtype=np.int64))
    return Distribution(unit="ns", histogram=histogram)


def _row(applications: int, scenarios: int, kind: str, theirs: float | None) -> Observation:
    setting = _setting(applications)
    return Observation(
        setting=f"{setting}, {kind}",
        quantity=f"calculation time, most of {scenarios}",
        unit="s",
        kind="value",
        published=theirs,
        read=lambda records: quantile_in(records[setting], kind, 1.0, "s"),
        place=TABLE.place,
        source="measurement",
        system=SYSTEM,
        tolerance=ANOTHER_SYSTEM,
    )


def _published(applications: int) -> Mapping[str, float]:
    row = TABLE.rows[SIZES.index(applications)]
    return {f"k = {k}": float(row[k]) for k in (1, 2, 3)}


def _grows(records: Records) -> Verdict:
    """By the 95 % intervals of the medians: open where two of them overlap."""
    record = records[_setting(SIZES[-1])]
    known = [_median_ms(record, kind) for kind in KINDS[:3]]
    told = ", ".join(f"{low:.1f}–{high:.1f} ms" for low, high in known)
    evidence = f"medians of {KINDS[0]}, 2, 3 with {SIZES[-1]:,} applications: {told}"
    if any(before[0] > after[1] for before, after in combinations(known, 2)):
        return Verdict(holds=False, evidence=evidence)
    rises = all(before[1] < after[0] for before, after in pairwise(known))
    return Verdict(holds=True if rises else None, evidence=evidence)


def _median_ms(record: Record, kind: str) -> tuple[float, float]:
    """Between which it is."""
    times = record.quantities[kind]
    assert isinstance(times, Distribution)
    low, high = times.interval(0.5)
    if low is None or high is None:
        raise Unavailable("too few scenarios for an interval of the median")
    return low / 1e6, high / 1e6


def _draw(ax: Axes, result: Result) -> None:
    record = result.records[_setting(SIZES[-1])]
    levels = np.linspace(0.01, 1, 100)
    for number, kind in enumerate(KINDS):
        times = [quantile_in(record, kind, float(q), "s") for q in levels]
        ax.step(times, levels, where="post", color=COLOURS[number], label=kind)
        if kind in _published(SIZES[-1]):
            ax.plot(
                _published(SIZES[-1])[kind],
                0.99,
                MARKERS[number],
                markersize=7,
                markerfacecolor="none",
                markeredgecolor=PUBLISHED,
                markeredgewidth=1.4,
                linestyle="none",
                label=f"published: {kind}, p99",
            )
    ax.set_xscale("log")
    label_log_axis(ax.xaxis)
    ax.set_xlabel(f"calculation time, {_setting(SIZES[-1])} (s)")
    ax.set_ylabel("share of scenarios")
    legend(ax)


def fig4_19(scenarios: int) -> Study:
    """The study with so many random scenarios of each size."""
    return Study(
        name="saba-fig4.19",
        title="Calculation time of the weights of a whole fabric",
        paper=SABA_PAPER,
        place="Figure 4.19, 4.6.5",
        system=SYSTEM,
        points=tuple(_point(size, scenarios) for size in SIZES),
        observations=tuple(
            _row(size, scenarios, kind, _published(size).get(kind))
            for size in SIZES
            for kind in KINDS
        ),
        claims=(
            Claim(
                statement="Models of a higher degree take longer to calculate with.",
                place=TABLE.place,
                source="measurement",
                system=SYSTEM,
                judge=_grows,
            ),
        ),
        panels=(_draw,),
        notes=(
            f"{scenarios} random scenarios of exactly the size named (the thesis: 30,000 of 1 to "
            "1,000 applications), 1,944 servers and 264 switches, ports of servers included. Which "
            "instances talk is not stated: each sends to the next of its application.",
            "Published are 99th percentiles, which so few scenarios do not have: the most is told. "
            "`python -m bench allocate` times 1,000 scenarios and single connections.",
        ),
    )


FIG4_19 = fig4_19(SCENARIOS)
