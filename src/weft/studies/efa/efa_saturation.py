"""Latency beside load in the EFA thesis (C.8), beside the fitted model and this machine.

Entry point: `C8`. Units: us; MB/s (10^6 bytes).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.measure import saturation
from weft.records import Record, Series
from weft.studies.calibrated import SATURATION, doubling_load
from weft.studies.calibrated.saturation import Quantile
from weft.studies.claim import Claim, Verdict
from weft.studies.efa.efa_latency_here import said
from weft.studies.efa.efa_tables import SYSTEM, fit_remarks
from weft.studies.observation import Records
from weft.studies.paper import EFA
from weft.studies.published import published, stated
from weft.studies.rounds import (
    RULE,
    Case,
    Reading,
    Rounds,
    in_rounds,
    medians,
    rounds_of,
    together,
    within,
)
from weft.studies.rounds_draw import Spreads, spread_panel
from weft.studies.study import Study
from weft.studies.tabulated import Curve, curve, observations_of, points_of, table_panel

TOLERANCE: dict[Quantile, float] = {"p50": 0.10, "p99": 0.20}
STEPS = 4
ALMOST_TWICE = 1.7
OVERS = ("tcp", "ofi:tcp")
OPTIONS = {"steps": STEPS, "duration": "100 ms", "size": 4096, "depth": 8, "wait": "block"}


def latency_curve(quantile: Quantile, table: str) -> Curve:
    of = SATURATION[f"efa-{quantile}"]
    return curve(
        published(table),
        f"{quantile}_us",
        x="load_MBps",
        label=quantile,
        system=of.system,
        predict=lambda load: of.fit().predict(load_MBps=load),
        tolerance=TOLERANCE[quantile],
        quantity=f"probe latency, {quantile}",
        unit="us",
        x_text=lambda load: f"load {load:g} MB/s",
    )


CURVES = (latency_curve("p50", "efa-c8-1"), latency_curve("p99", "efa-c8-2"))


# ---- Measured ---------------------------------------------------------------------------------

CASES = {
    over: Case(name=over, settings={}, test=saturation, options={"over": over, **OPTIONS})
    for over in OVERS
}


def probe(step: int, quantile: Quantile) -> Reading:
    """The probe's latency at a step of the load; beside load all of it is exposed to others."""

    def read(record: Record) -> float:
        series = record.quantities[f"probe.{quantile}"]
        assert isinstance(series, Series)
        return series.y[step] / 1e6

    quantity = f"probe half RTT, {quantile}, load {step}/{STEPS} of the most"
    return Reading(quantity=quantity, unit="us", kind="latency", read=read)


PROBES = {(step, q): probe(step, q) for q in TOLERANCE for step in range(STEPS + 1)}


def lines() -> Spreads:
    """By the share of the load that was offered; loads that arrived are in the records."""

    def reader(over: str, step: int, quantile: Quantile) -> Callable[[Records], Rounds]:
        return lambda records: rounds_of(records, over, PROBES[step, quantile])

    return {
        f"{over}, {quantile}": [
            (100 * step / STEPS, reader(over, step, quantile)) for step in range(STEPS + 1)
        ]
        for over in OVERS
        for quantile in TOLERANCE
    }


# ---- Claims -----------------------------------------------------------------------------------


def factor(records: Records, over: str, above: int, below: int) -> Rounds:
    """The median latency at one step over that at another."""
    return rounds_of(records, over, PROBES[above, "p50"]) / rounds_of(
        records, over, PROBES[below, "p50"]
    )


def doubles(records: Records) -> Verdict:
    return together(
        *(
            within(factor(records, over, STEPS, 0), f"{over}, most load over none", 1.5, 3)
            for over in OVERS
        )
    )


def steep_at_last(records: Records) -> Verdict:
    """Growth in the last quarter of the load over growth in all of it before."""
    return together(*(_last_growth(records, over) for over in OVERS))


def _last_growth(records: Records, over: str) -> Verdict:
    last, before = factor(records, over, STEPS, STEPS - 1), factor(records, over, STEPS - 1, 0)
    what = f"{over}: {last.median:.2f} in the last quarter, {before.median:.2f} before"
    return within(last / before, what, low=1)


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
        place=stated("efa", "saturation-factor").place,
        source="model",
        system=SATURATION["efa-p50"].system,
        judge=model_doubles,
    ),
    said("saturation-factor", OVERS, doubles, "between 1.5 and 3 at the median"),
    said(
        "saturation-knee",
        OVERS,
        steep_at_last,
        "the median grows more in the last quarter of the load than before it",
    ),
)


C8 = Study(
    name="efa-c8",
    title="Latency of a probe beside load",
    paper=EFA,
    place="C.8",
    system=SYSTEM,
    points=(*points_of(CURVES), *in_rounds(tuple(CASES.values()))),
    observations=(
        *observations_of(CURVES),
        *(row for reading in PROBES.values() for row in medians(tuple(CASES.values()), reading)),
    ),
    panels=(
        table_panel(CURVES, "load (MB/s)", "latency of 4096 B (µs)", log_x=False, log_y=False),
        spread_panel(
            lines(), "load (% of the most)", "half RTT of 64 B (µs)", log_x=False, log_y=True
        ),
    ),
    claims=CLAIMS,
    notes=(
        "Here load and probe, each with its peer, are four threads that share the processors, and "
        "the loopback has no line rate: what saturates is the processors. They sleep between "
        "messages, so waking up is part of the latency without load. docs/many-hosts.md has a "
        "probe beside load on a link with a rate.",
        RULE,
    ),
    remarks=fit_remarks({name: SATURATION[name].fit for name in SATURATION}),
)
