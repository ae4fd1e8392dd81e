"""Latency in the EFA thesis beside fitted models, and what all tables of appendix C share.

By size and interface (C.1), SRD and UD (C.6), libfabric's calls (C.7), beside load (C.8), and
around the size at which a message is split (C.9).
Entry points: `C1`, `C6`, `C7`, `C8`, `C9`; `efa_study`, `describe_fits`. Units: us, bytes, MB/s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.model import Fit, FloatArray
from weft.studies.calibrated import LATENCY, SATURATION, Quantile, doubling_load
from weft.studies.observation import Claim, Records, Verdict, build_claims
from weft.studies.published import find_statement, find_table
from weft.studies.study import EFA_PAPER, Result, Study
from weft.studies.table_curves import (
    Curve,
    build_table_curve,
    error_remark,
    observations_of,
    points_of,
    row_errors,
    table_panel,
    zoom_panel,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LATENCY_TOLERANCE = 0.12
SYSTEM = "EFA thesis (model)"
SIZE, LATENCY_LABEL = "message size (B)", "latency (µs)"


def size_text(size_bytes: float) -> str:
    return f"{size_bytes:g} B"


def predict(fitted: Fit, **varied: FloatArray) -> FloatArray:
    """The model's values; inputs that all its rows share are filled in."""
    (count,) = {len(values) for values in varied.values()}
    shared = {r.name: np.full(count, r.low) for r in fitted.ranges if r.name not in varied}
    return fitted.predict(extrapolate=False, **shared, **varied)


def latency_curve(
    table: str, column: str, calibration: str, label: str, quantity: str = "latency, average"
) -> Curve:
    """A column of latencies by size."""
    calibrated = LATENCY[calibration]
    return build_table_curve(
        find_table(table),
        column,
        x="size_bytes",
        label=label,
        quantity=quantity,
        unit="us",
        predict=lambda size: predict(calibrated.fit(), size_bytes=size),
        system=calibrated.system,
        tolerance=LATENCY_TOLERANCE,
        x_text=size_text,
    )


def describe_fits(fits: Mapping[str, Callable[[], Fit]], result: Result) -> tuple[str, ...]:
    """How far each fitted model is from the rows it was fitted to, and from rows left out."""
    made = {label: fit() for label, fit in fits.items()}
    fits_text = (
        error_remark(f"Model {label}, fitted to {fitted.data}", fitted.error, fitted.held_out)
        for label, fitted in made.items()
    )
    return (error_remark("The models on this study's rows", row_errors(result)), *fits_text)


def latency_remarks(names: Sequence[str]) -> Callable[[Result], tuple[str, ...]]:
    return partial(describe_fits, {name: LATENCY[name].fit for name in names})


def efa_study(
    number: str,
    title: str,
    curves: Sequence[Curve],
    panels: Sequence[Callable[[Axes, Result], None]],
    claims: Sequence[Claim] = (),
    notes: Sequence[str] = (),
    remarks: Callable[[Result], tuple[str, ...]] = lambda _: (),
) -> Study:
    """A table of appendix C: models beside published values."""
    return Study(
        name=f"efa-c{number}",
        title=title,
        paper=EFA_PAPER,
        place=f"C.{number}",
        system=SYSTEM,
        points=points_of(curves),
        observations=observations_of(curves),
        panels=tuple(panels),
        claims=tuple(claims),
        remarks=remarks,
        notes=tuple(notes),
    )


# ---- C.1, C.6, C.7, C.9 -----------------------------------------------------------------------

C1_CURVES = (
    latency_curve("efa-c1", "RC_us", "efa-rc", "RC, InfiniBand EDR"),
    latency_curve("efa-c1", "SRD_us", "efa-srd", "SRD, EFA"),
    latency_curve("efa-c1", "TCP_us", "efa-sockets", "sockets"),
)
C1 = efa_study(
    "1",
    "Latency by message size: RDMA, SRD and sockets",
    C1_CURVES,
    panels=(table_panel(C1_CURVES, SIZE, LATENCY_LABEL),),
    remarks=latency_remarks(("efa-rc", "efa-srd", "efa-sockets")),
)

C6_AVERAGE = tuple(
    latency_curve("efa-c6-1", f"{name}_us", f"efa-{name.lower()}-average", f"{name}, average")
    for name in ("UD", "SRD")
)
C6_LEAST = tuple(
    latency_curve(
        "efa-c6-2", f"{name}_us", f"efa-{name.lower()}-minimum", f"{name}, least", "latency, least"
    )
    for name in ("UD", "SRD")
)
C6 = efa_study(
    "6",
    "Latency of reliable and unreliable datagrams over EFA",
    (*C6_AVERAGE, *C6_LEAST),
    panels=(zoom_panel(table_panel((*C6_AVERAGE, *C6_LEAST), SIZE, LATENCY_LABEL, log_y=False)),),
    remarks=latency_remarks(
        ("efa-ud-average", "efa-srd-average", "efa-ud-minimum", "efa-srd-minimum")
    ),
)

_CALLS = {
    "fi_send": ("send_us", "efa-send"),
    "fi_tsend": ("tsend_us", "efa-tagged-send"),
    "fi_tinject": ("tinject_us", "efa-tagged-inject"),
    "fi_inject": ("inject_us", "efa-inject"),
}
C7_CURVES = tuple(
    latency_curve("efa-c7", column, name, label) for label, (column, name) in _CALLS.items()
)
C7 = efa_study(
    "7",
    "Latency by libfabric call: send, tagged, inject",
    C7_CURVES,
    panels=(zoom_panel(table_panel(C7_CURVES, SIZE, LATENCY_LABEL, log_y=False)),),
    notes=(
        "The model has three unknowns and each call four rows: a smooth description, hardly a "
        "test.",
    ),
    remarks=latency_remarks(tuple(name for _, name in _CALLS.values())),
)

C9_CURVES = (latency_curve("efa-c9", "latency_us", "efa-segmented", "SRD through libfabric"),)
C9 = efa_study(
    "9",
    "Latency around the size at which libfabric splits a message",
    C9_CURVES,
    panels=(zoom_panel(table_panel(C9_CURVES, SIZE, LATENCY_LABEL, log_x=False, log_y=False)),),
    remarks=latency_remarks(("efa-segmented",)),
)


# ---- C.8 --------------------------------------------------------------------------------------

LOAD_TOLERANCE: dict[Quantile, float] = {"p50": 0.10, "p99": 0.20}
ALMOST_TWICE = 1.7


def _load_curve(quantile: Quantile, table: str) -> Curve:
    calibrated = SATURATION[f"efa-{quantile}"]
    return build_table_curve(
        find_table(table),
        f"{quantile}_us",
        x="load_MBps",
        label=quantile,
        system=calibrated.system,
        predict=lambda load: calibrated.fit().predict(load_MBps=load),
        tolerance=LOAD_TOLERANCE[quantile],
        quantity=f"probe latency, {quantile}",
        unit="us",
        x_text=lambda load: f"load {load:g} MB/s",
    )


C8_CURVES = (_load_curve("p50", "efa-c8-1"), _load_curve("p99", "efa-c8-2"))


def _judge_load(_: Records) -> Verdict:
    """The fitted median at the greatest load of the table over that at the least."""
    load = find_table("efa-c8-1").column("load_MBps")
    ends = np.array([load.min(), load.max()])
    least, most = SATURATION["efa-p50"].fit().predict(load_MBps=ends)
    doubling = {"p50": doubling_load("p50"), "p99": doubling_load("p99")}
    loads = "; ".join(
        f"{quantile} does not double up to the capacity"
        if at is None
        else f"{quantile} doubles at {at:.0f} MB/s"
        for quantile, at in doubling.items()
    )
    grown = f"{most / least:.2f} from {ends[0]:.0f} to {ends[1]:.0f} MB/s"
    return Verdict(holds=bool(ALMOST_TWICE <= most / least <= 2), evidence=f"{grown}; {loads}")


C8 = efa_study(
    "8",
    "Latency of a probe beside load",
    C8_CURVES,
    panels=(
        table_panel(C8_CURVES, "load (MB/s)", "latency of 4096 B (µs)", log_x=False, log_y=False),
    ),
    claims=build_claims(
        find_statement("efa", "saturation-factor").place,
        "model",
        SATURATION["efa-p50"].system,
        {
            (
                f"{find_statement('efa', 'saturation-factor').says}: 2 times; "
                "in the fitted model: "
                f"{ALMOST_TWICE} to 2"
            ): _judge_load
        },
    ),
    remarks=partial(describe_fits, {name: SATURATION[name].fit for name in SATURATION}),
)
