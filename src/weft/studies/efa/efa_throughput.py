"""Throughput in the EFA thesis, beside fitted models.

One message at a time (C.2), by outstanding messages (C.3), queue pairs (C.4), threads (C.5), and
one-sided operations (C.10). Entry points: `C2`, `C3`, `C4`, `C5`, `C10`. Units: those of the
tables; perftest's MB is 2^20 bytes (MiB), efa-bench's is 10^6 and counts headers too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from weft.model import FloatArray
from weft.studies.calibrated import (
    ASSUMED_DEPTH,
    BENCH_SIZES,
    COUNTED_BESIDE,
    MIB,
    PERFTEST_SIZES,
    RMA_SIZE,
    THROUGHPUT,
    bytes_counted,
)
from weft.studies.efa.efa_latency import SIZE, describe_fits, efa_study, size_text
from weft.studies.published import find_table
from weft.studies.study import Result
from weft.studies.table_curves import Curve, build_table_curve, table_panel

TOLERANCE = 0.20
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
        tolerance=TOLERANCE,
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
