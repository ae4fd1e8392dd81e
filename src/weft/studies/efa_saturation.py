"""Latency beside load in the EFA thesis (C.8), beside the fitted model and this machine.

Entry point: `C8`. Units: us; MB/s (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.measure import saturation
from weft.records import Record, Series
from weft.studies.calibrated import SATURATION, doubling_load
from weft.studies.claim import Claim, Verdict
from weft.studies.efa_latency_here import said
from weft.studies.efa_rounds import (
    Best,
    Ratio,
    Round,
    compared,
    lost_share,
    records_there,
    verdict,
)
from weft.studies.efa_tables import SYSTEM, fit_remarks
from weft.studies.observation import ANOTHER_SYSTEM, Observation, Records
from weft.studies.paper import EFA
from weft.studies.published import published, stated
from weft.studies.site import Point, here, measured
from weft.studies.study import Study
from weft.studies.tabulated import (
    Curve,
    Lines,
    curve,
    measured_panel,
    observations_of,
    points_of,
    table_panel,
)

TOLERANCE = {"p50": 0.10, "p99": 0.20}
ROUNDS, STEPS = 2, 4
ALMOST_TWICE = 1.7
OVERS = ("tcp", "ofi:tcp")
OPTIONS = {"steps": STEPS, "duration": "100 ms", "size": 4096, "depth": 8, "wait": "block"}


def latency_curve(quantile: str, table: str) -> Curve:
    of = SATURATION[f"efa-{quantile}"]
    return curve(
        published(table), f"{quantile}_us", x="load_MBps", label=quantile, system=of.system,
        predict=lambda load: of.fit().predict(load_MBps=load), tolerance=TOLERANCE[quantile],
        quantity=f"probe latency, {quantile}", unit="us", x_text=lambda load: f"load {load:g} MB/s",
    )  # fmt: skip


CURVES = (latency_curve("p50", "efa-c8-1"), latency_curve("p99", "efa-c8-2"))


# ---- Measured ---------------------------------------------------------------------------------


def setting(over: str, number: int) -> str:
    return f"{over}, round {number}"


def points() -> Iterator[Point]:
    for number in range(1, ROUNDS + 1):
        for over in OVERS:
            yield measured(setting(over, number), {"repetition": number}, saturation, over=over,
                           **OPTIONS)  # fmt: skip


def at_step(records: Records, over: str, step: int, quantile: str) -> Best:
    """The probe's latency at a step of the load, in us."""
    numbers = range(1, ROUNDS + 1)
    found = records_there(records, [setting(over, number) for number in numbers])
    rounds = [Round(_at(record, step, quantile), lost_share(record)) for record in found]
    return Best.of(rounds, least=True)


def _at(record: Record, step: int, quantile: str) -> float:
    series = record.quantities[f"probe.{quantile}"]
    assert isinstance(series, Series)
    return series.y[step] / 1e6


def measured_rows() -> Iterator[Observation]:
    for over in OVERS:
        for quantile in ("p50", "p99"):
            for step in range(STEPS + 1):
                yield Observation(
                    setting=f"{over}, load {step}/{STEPS} of the most",
                    quantity=f"probe half RTT, {quantile}", unit="us", kind="latency",
                    source="measurement", system=here(over), tolerance=ANOTHER_SYSTEM,
                    read=lambda records, over=over, step=step, quantile=quantile: (  # type: ignore[misc]
                        at_step(records, over, step, quantile).value
                    ),
                )  # fmt: skip


def lines(records: Records) -> Lines:
    """By the share of the load that was offered; loads that arrived are in the records."""
    return {
        f"{over}, {quantile}": [
            (100 * step / STEPS, at_step(records, over, step, quantile).value)
            for step in range(STEPS + 1)
        ]
        for over in OVERS
        if any(setting(over, number) in records for number in range(1, ROUNDS + 1))
        for quantile in ("p50", "p99")
    }


# ---- Claims -----------------------------------------------------------------------------------


def factor(records: Records, over: str, above: int, below: int, quantile: str = "p50") -> Ratio:
    """The latency at one step over that at another."""
    high, low = (at_step(records, over, step, quantile) for step in (above, below))
    return compared(f"{over} {above}/{STEPS} over {below}/{STEPS} of the load", high, low)


def doubles(records: Records) -> Verdict:
    return verdict([factor(records, over, STEPS, 0) for over in OVERS], low=1.5, high=3)


def steep_at_last(records: Records) -> Verdict:
    """Growth in the last quarter of the load over growth in all of it before."""
    quotients = [_last_growth(records, over) for over in OVERS]
    return verdict(quotients, low=1)


def _last_growth(records: Records, over: str) -> Ratio:
    last = factor(records, over, STEPS, STEPS - 1)
    before = factor(records, over, STEPS - 1, 0)
    name = f"{over}: {last.value:.2f} in the last quarter, {before.value:.2f} before:"
    return Ratio(name=name, value=last.value / before.value, doubt=max(last.doubt, before.doubt))


def model_doubles(_: Records) -> Verdict:
    """The fitted median at the greatest load of the table over that at the least."""
    load = published("efa-c8-1").column("load_MBps")
    ends = np.array([load.min(), load.max()])
    least, most = SATURATION["efa-p50"].fit().predict(load_MBps=ends)
    doubling = {"p50": doubling_load("p50"), "p99": doubling_load("p99")}
    told = "; ".join(
        f"{quantile} does not double up to the capacity"
        if at is None
        else f"{quantile} doubles at {at:.0f} MB/s"
        for quantile, at in doubling.items()
    )
    grown = f"{most / least:.2f} from {ends[0]:.0f} to {ends[1]:.0f} MB/s"
    return Verdict(holds=bool(ALMOST_TWICE <= most / least <= 2), evidence=f"{grown}; {told}")


CLAIMS = (
    Claim(
        statement=f"{stated('efa', 'saturation-factor').says}: 2 times; in the fitted model: "
        f"{ALMOST_TWICE} to 2",
        place=stated("efa", "saturation-factor").place, source="model",
        system=SATURATION["efa-p50"].system, judge=model_doubles,
    ),
    said("saturation-factor", OVERS, doubles, "between 1.5 and 3 at the median"),
    said("saturation-knee", OVERS, steep_at_last,
         "the median grows more in the last quarter of the load than before it"),
)  # fmt: skip


C8 = Study(
    name="efa-c8",
    title="Latency of a probe beside load",
    paper=EFA,
    place="C.8",
    system=SYSTEM,
    points=(*points_of(CURVES), *points()),
    observations=(*observations_of(CURVES), *measured_rows()),
    panels=(
        table_panel(CURVES, "load (MB/s)", "latency of 4096 B (µs)", log_x=False, log_y=False),
        measured_panel(lines, "load (% of the most)", "half RTT of 64 B (µs)", log_x=False,
                       log_y=True, title="measured on this machine, tcp, ofi:tcp"),
    ),
    claims=CLAIMS,
    notes=(
        "Here load and probe, each with its peer, are four threads that share the processors, and "
        "the loopback has no line rate: what saturates is the processors. They sleep between "
        "messages, so waking up is part of the latency without load. docs/many-hosts.md has a "
        "probe beside load on a link with a rate.",
    ),
    remarks=fit_remarks({name: SATURATION[name].fit for name in SATURATION}),
)  # fmt: skip
