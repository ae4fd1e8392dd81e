"""The tables of appendix C of the EFA thesis, beside fitted models.

Latency: by size and interface (C.1), SRD and UD (C.6), libfabric's calls (C.7), beside load (C.8),
around the size at which a message is split (C.9). Throughput: one message at a time (C.2), by
outstanding messages (C.3), queue pairs (C.4), threads (C.5), one-sided operations (C.10).
Entry points: `C1` to `C10`; `efa_study`, `describe_fits`. Units: those of the tables (us, bytes);
perftest's MB is 2^20 bytes (MiB), efa-bench's is 10^6 and counts headers too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from weft.model import Fit, FloatArray
from weft.studies.calibrated import (
    ASSUMED_DEPTH,
    BENCH_SIZES,
    COUNTED_BESIDE,
    LATENCY,
    MIB,
    PERFTEST_SIZES,
    RMA_SIZE,
    SATURATION,
    THROUGHPUT,
    Quantile,
    bytes_counted,
    doubling_load,
)
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


THROUGHPUT_TOLERANCE = 0.20
BANDWIDTH, MESSAGE_RATE = "bandwidth", "message rate"
DEPTH, QUEUE_PAIRS, THREADS = "outstanding messages", "queue pairs", "threads"
ALONE = {"size_bytes": 0.0, "depth": 1.0, "qps": 1.0, "threads": 1.0}
X_OF = {"queue_pairs": "qps"}  # where the table's name differs from the model's
X_TEXTS: dict[str, Callable[[float], str]] = {
    "size_bytes": size_text,
    "depth": lambda value: f"depth {value:g}",
    "qps": lambda value: _count_text(value, "queue pair"),
    "threads": lambda value: _count_text(value, "thread"),
}
NAMES = {
    ("RC", "perftest"): "efa-rc-perftest",
    ("SRD", "perftest"): "efa-srd-perftest",
    ("RC", "libfabric"): "efa-rc-libfabric",
    ("SRD", "libfabric"): "efa-srd-libfabric",
}


def _count_text(value: float, noun: str) -> str:
    return f"{value:g} {noun}{'' if value == 1 else 's'}"


def rate_curve(
    table: str,
    column: str,
    x: str,
    system: str,
    label: str,
    bytes_each: Callable[[FloatArray], FloatArray] | None = None,
    reason: str = "",
    **fixed: float,
) -> Curve:
    """A column of message rates, or of bandwidths that count `bytes_each` of a size per message."""
    calibrated, name = THROUGHPUT[system], X_OF.get(x, x)

    def predict(values: FloatArray) -> FloatArray:
        inputs = {key: np.full(values.shape, at) for key, at in (ALONE | fixed).items()}
        inputs[name] = values
        rate = calibrated.fit().predict(extrapolate=True, **inputs)
        if bytes_each is None:
            return rate
        return rate * bytes_each(inputs["size_bytes"]) / (MIB if "MiBps" in column else 1.0)

    return build_table_curve(
        find_table(table),
        column,
        x=x,
        predict=predict,
        label=label,
        system=calibrated.system,
        quantity=MESSAGE_RATE if bytes_each is None else BANDWIDTH,
        unit="M/s" if bytes_each is None else "MiB/s" if "MiBps" in column else "MB/s",
        kind="rate" if bytes_each is None else "bandwidth",
        tolerance=THROUGHPUT_TOLERANCE,
        x_text=X_TEXTS[name],
        reason=reason,
    )


def payload(size_bytes: FloatArray) -> FloatArray:
    return size_bytes


def remarks_of(*systems: str) -> Callable[[Result], tuple[str, ...]]:
    return partial(describe_fits, {name: THROUGHPUT[name].fit for name in systems})


# ---- C.2 --------------------------------------------------------------------------------------

C2_CURVES = tuple(
    rate_curve(
        "efa-c2", f"{service}_MiBps", "size_bytes", NAMES[service, "perftest"], service, payload
    )
    for service in ("RC", "SRD")
)


def latency_bound_remark() -> str:
    """The published bandwidth over what half a round trip per message would give."""
    table, latency = find_table("efa-c2"), find_table("efa-c1")
    common = np.isin(table.column("size_bytes"), latency.column("size_bytes"))
    spans = []
    for service in ("RC", "SRD"):
        messages = (
            table.column(f"{service}_MiBps")[common] * MIB / table.column("size_bytes")[common]
        )
        share = messages * latency.column(f"{service}_us")
        spans.append(f"{share.min():.2f} to {share.max():.2f} ({service})")
    return f"Published C.2 over size / latency of C.1: {', '.join(spans)}."


def c2_remarks(result: Result) -> tuple[str, ...]:
    fitted = remarks_of("efa-rc-perftest", "efa-srd-perftest")
    return (latency_bound_remark(), *fitted(result))


C2 = efa_study(
    "2",
    "Bandwidth of one message at a time, by size",
    C2_CURVES,
    panels=(table_panel(C2_CURVES, SIZE, "bandwidth (MiB/s)"),),
    notes=(
        "The SRD rows below 16 B, which the paper prints with one or two digits, are outside of "
        "what the model was fitted to.",
    ),
    remarks=c2_remarks,
)


# ---- C.3 --------------------------------------------------------------------------------------


def by_depth(table: str, service: str, unit: str) -> tuple[Curve, ...]:
    """The four sizes of a table by depth."""
    each = payload if unit == "MiBps" else None
    return tuple(
        rate_curve(
            table,
            f"{size}B_{unit}",
            "depth",
            NAMES[service, "perftest"],
            f"{service}, {size} B",
            each,
            size_bytes=size,
        )
        for size in PERFTEST_SIZES
    )


C3_TABLES = {
    "RC bandwidth (MiB/s)": by_depth("efa-c3-1", "RC", "MiBps"),
    "RC message rate (M/s)": by_depth("efa-c3-2", "RC", "Mmsgps"),
    "SRD bandwidth (MiB/s)": by_depth("efa-c3-3", "SRD", "MiBps"),
    "SRD message rate (M/s)": by_depth("efa-c3-4", "SRD", "Mmsgps"),
}
C3 = efa_study(
    "3",
    "Bandwidth and message rate by outstanding messages",
    tuple(column for curves in C3_TABLES.values() for column in curves),
    panels=(*(table_panel(curves, DEPTH, label) for label, curves in C3_TABLES.items()),),
    remarks=remarks_of("efa-rc-perftest", "efa-srd-perftest"),
)


# ---- C.4 --------------------------------------------------------------------------------------


def by_pairs(table: str, service: str) -> tuple[Curve, ...]:
    return tuple(
        rate_curve(
            table,
            f"{size}B_Mmsgps",
            "queue_pairs",
            NAMES[service, "perftest"],
            f"{service}, {size} B",
            size_bytes=size,
            depth=ASSUMED_DEPTH,
        )
        for size in PERFTEST_SIZES
    )


C4_RC, C4_SRD = by_pairs("efa-c4-1", "RC"), by_pairs("efa-c4-2", "SRD")
C4 = efa_study(
    "4",
    "Message rate of one thread by queue pairs",
    (*C4_RC, *C4_SRD),
    panels=(
        table_panel(C4_RC, QUEUE_PAIRS, "RC message rate (M/s)", log_y=False),
        table_panel(C4_SRD, QUEUE_PAIRS, "SRD message rate (M/s)", log_y=False),
    ),
    notes=(f"The paper states no depth for C.4; the model has perftest's own, {ASSUMED_DEPTH}.",),
    remarks=remarks_of("efa-rc-perftest", "efa-srd-perftest"),
)


# ---- C.5 --------------------------------------------------------------------------------------


ONE_THREAD = (
    "One thread alone sends 3.24 M/s, each of two 2.08, each of eight 2.20: what the second one "
    "costs the first, and the third does not, the paper does not say; the model has a cost in "
    "proportion to the threads."
)


def by_threads(table: str, unit: str) -> tuple[Curve, ...]:
    """Both services at both sizes."""
    return tuple(
        rate_curve(
            table,
            f"{service}_{size}B_{unit}",
            "threads",
            NAMES[service, "libfabric"],
            f"{service}, {size} B",
            _add_headers(service) if unit == "MBps" else None,
            ONE_THREAD if service == "RC" else "",
            size_bytes=size,
            depth=ASSUMED_DEPTH,
        )
        for service in ("RC", "SRD")
        for size in BENCH_SIZES
    )


def _add_headers(service: str) -> Callable[[FloatArray], FloatArray]:
    return lambda size_bytes: size_bytes + bytes_counted(service, 0.0)


def by_depth_and_threads() -> tuple[Curve, ...]:
    table = find_table("efa-c5-3")
    return tuple(
        rate_curve(
            "efa-c5-3",
            column,
            "depth",
            NAMES["SRD", "libfabric"],
            f"SRD, 64 B, {_count_text(threads, 'thread')}",
            _add_headers("SRD"),
            size_bytes=64,
            threads=threads,
        )
        for column in table.columns[1:]
        for threads in (int(column.partition("thread")[0]),)
    )


C5_BANDWIDTH, C5_RATE = by_threads("efa-c5-1", "MBps"), by_threads("efa-c5-2", "Mmsgps")
C5_SCALING = by_depth_and_threads()
C5 = efa_study(
    "5",
    "Bandwidth and message rate by threads",
    (*C5_BANDWIDTH, *C5_RATE, *C5_SCALING),
    panels=(
        table_panel(C5_BANDWIDTH, THREADS, "bandwidth (MB/s)"),
        table_panel(C5_RATE, THREADS, "message rate (M/s)"),
        table_panel(C5_SCALING, f"{DEPTH} of each thread", "SRD bandwidth, 64 B (MB/s)"),
    ),
    notes=(
        "efa-bench's MB is 10^6 bytes and counts headers: 72 bytes for a message of 64 on EFA and "
        "150 on InfiniBand, from C.5.1 over C.5.2.",
    ),
    remarks=remarks_of("efa-rc-libfabric", "efa-srd-libfabric"),
)


# ---- C.10 -------------------------------------------------------------------------------------

OPERATIONS = {
    "SEND": "efa-srd-libfabric",
    "WRITE": "efa-write-libfabric",
    "READ": "efa-read-libfabric",
}


def _add_operation_headers(operation: str) -> Callable[[FloatArray], FloatArray]:
    return lambda size_bytes: size_bytes + COUNTED_BESIDE[operation]


C10_SYNC = tuple(
    rate_curve(
        "efa-c10-1",
        f"{operation}_MBps",
        "size_bytes",
        system,
        operation.lower(),
        _add_operation_headers(operation),
    )
    for operation, system in OPERATIONS.items()
)
C10_DEPTH = tuple(
    rate_curve(
        "efa-c10-2",
        f"{operation}_MBps",
        "depth",
        OPERATIONS[operation],
        f"{operation.lower()} of {RMA_SIZE} B",
        _add_operation_headers(operation),
        size_bytes=RMA_SIZE,
    )
    for operation in ("WRITE", "READ")
)
C10 = efa_study(
    "10",
    "Send, write and read: one at a time, and by outstanding operations",
    (*C10_SYNC, *C10_DEPTH),
    panels=(
        table_panel(C10_SYNC, SIZE, "bandwidth, one at a time (MB/s)"),
        table_panel(C10_DEPTH, "outstanding operations", f"bandwidth, {RMA_SIZE} B (MB/s)"),
    ),
    remarks=remarks_of(*OPERATIONS.values()),
)
