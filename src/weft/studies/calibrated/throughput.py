"""Throughput fitted to the EFA thesis and to UDP over IPoIB.

Each system is one set of parameters for all its rows. The program that posts is part of the system:
perftest (C.2 to C.4) and efa-bench over libfabric (C.5, C.10) drive the same adapters at unlike
costs on the host, and notice completions differently: perftest asks for one completion per window,
or per 100 messages; efa-bench waits for 0.8 of its window (`cq_try`, appendix A).
Entry points: `throughput_fit`, `udp_throughput_fit`; `THROUGHPUT` has all by name.
 Units: M/s (messages per us), us, ns/B, GB/s (10^9 bytes), B.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Literal

import numpy as np

from weft.errors import InputError
from weft.model.fit import Fit, Form
from weft.model.throughput import (
    Refill,
    by_count,
    by_share,
    fragmented_rate,
    mapped_rate,
    throughput,
)
from weft.studies.calibrated.calibration import Calibration, Sample
from weft.studies.calibrated.published_rates import (
    Rate,
    bench_rates,
    bytes_counted,
    columns,
    perftest_rates,
    rma_rates,
    values,
)
from weft.studies.published import published

Mode = Literal["datagram", "connected"]

DATA_RATE_GBPS = 12.5  # 100 Gb/s: EDR 4X, and the EFA adapter
NITRO_ENGINES = 4  # of the EFA adapter, as Section 4.6 concludes
IPOIB_PACKET_BYTES = 2044  # its MTU in datagram mode
IPOIB_COPIED_BELOW_BYTES = 256  # the driver copies received packets that are smaller
PERFTEST = by_count(100)
EFA_BENCH = by_share(0.8)

SYSTEMS: Mapping[str, str] = {
    "efa-rc-perftest": "C.2-C.4, RC over EDR InfiniBand, perftest",
    "efa-srd-perftest": "C.2-C.4, SRD over EFA, perftest",
    "efa-rc-libfabric": "C.5, RC over EDR InfiniBand, efa-bench over libfabric",
    "efa-srd-libfabric": "C.5 and C.10.1, SRD over EFA, efa-bench over libfabric",
    "efa-write-libfabric": "C.10, emulated write over EFA, efa-bench over libfabric",
    "efa-read-libfabric": "C.10, emulated read over EFA, efa-bench over libfabric",
}
"""Names of the systems, with the tables that each is fitted to."""


def throughput_rows(system: str) -> tuple[Rate, ...]:
    """Every published rate of a system, those that repeat others included."""
    rows = {
        "efa-rc-perftest": lambda: perftest_rates("RC"),
        "efa-srd-perftest": lambda: perftest_rates("SRD"),
        "efa-rc-libfabric": lambda: bench_rates("RC"),
        "efa-srd-libfabric": lambda: bench_rates("SRD"),
        "efa-write-libfabric": lambda: rma_rates("WRITE"),
        "efa-read-libfabric": lambda: rma_rates("READ"),
    }
    if system not in rows:
        raise InputError(f"system {system}", "is not calibrated", f"use {', '.join(rows)}")
    return rows[system]()


@cache
def throughput_fit(system: str) -> Fit:
    """The model of one of `SYSTEMS`, fitted to the rows that do not repeat others.

    Inputs: size_bytes, depth, qps, threads. Value: M/s.
    """
    primary = tuple(row for row in throughput_rows(system) if row.primary)
    return throughput_sample(system, primary).fit()


def throughput_sample(system: str, rows: tuple[Rate, ...]) -> Sample:
    """Rows of a system, and the form that describes it."""
    return Sample(
        form=throughput_form(system),
        inputs=columns(rows),
        observed=values(rows),
        data=f"EFA thesis {SYSTEMS[system]}",
    )


@cache
def udp_throughput_fit(mode: Mode) -> Fit:
    """UDP over IPoIB at FDR (ib2016, Tables 5 and 7). Input: size_bytes. Value: M/s."""
    return udp_throughput_sample(mode).fit()


def udp_throughput_sample(mode: Mode) -> Sample:
    """The datagrams per us of the three tools, in one sample."""
    name, form = {
        "datagram": ("ib2016-table5", fragmented_rate(IPOIB_PACKET_BYTES)),
        "connected": ("ib2016-table7", mapped_rate(IPOIB_COPIED_BELOW_BYTES)),
    }[mode]
    table = published(name)
    tools = [column for column in table.columns if column.endswith("_mbps")]
    size_bytes = np.tile(table.column("size_bytes"), len(tools))
    rate_Mps = np.concatenate([table.column(tool) for tool in tools]) / (8 * size_bytes)
    given = np.isfinite(rate_Mps)
    return Sample(
        form=form,
        inputs={"size_bytes": size_bytes[given]},
        observed=rate_Mps[given],
        data=f"ib2016 {table.place}, UDP, IPoIB in {mode} mode",
    )


def throughput_form(system: str) -> Form:
    """What is unknown of a system, what is known, and how its program waits."""
    starts, known, refill = _RECIPES[system]
    if system == "efa-rc-libfabric":
        adapter = throughput_fit("efa-rc-perftest")
        known = known | {name: adapter.value(name) for name in ("base_us", "byte_ns", "extra_us")}
        known = known | {"header_bytes": bytes_counted("RC", 0)}
    return throughput(tuple(starts), known=known, starts=starts, refill=refill)


_LINE = {"line_GBps": DATA_RATE_GBPS}
_NITRO = _LINE | {"engines": float(NITRO_ENGINES), "header_bytes": 8.0}
_RECIPES: dict[str, tuple[dict[str, float], dict[str, float], Refill]] = {
    "efa-rc-perftest": (
        {
            "base_us": 1.5,
            "byte_ns": 0.2,
            "extra_us": 0.36,
            "gap_us": 0.06,
            "gap_ns": 0.07,
            "message_us": 0.13,
            "turn_us": 0.005,
            "header_bytes": 90.0,
        },
        _LINE,
        PERFTEST,
    ),
    "efa-srd-perftest": (
        {
            "base_us": 34.0,
            "byte_ns": 1.2,
            "gap_us": 0.31,
            "message_us": 0.26,
            "engine_us": 0.42,
            "header_bytes": 200.0,
        },
        _LINE | {"engines": float(NITRO_ENGINES)},
        PERFTEST,
    ),
    "efa-rc-libfabric": ({"gap_us": 0.35, "gap_ns": 0.02, "share_us": 0.02}, _LINE, EFA_BENCH),
    "efa-srd-libfabric": (
        {
            "base_us": 34.0,
            "byte_ns": 1.2,
            "gap_us": 0.6,
            "gap_ns": 0.08,
            "share_us": 0.08,
            "engine_us": 0.52,
        },
        _NITRO,
        EFA_BENCH,
    ),
    "efa-write-libfabric": ({"base_us": 34.0, "byte_ns": 1.2, "gap_us": 1.0}, _LINE, EFA_BENCH),
    "efa-read-libfabric": ({"base_us": 44.0, "byte_ns": 1.2, "gap_us": 1.7}, _LINE, EFA_BENCH),
}


def _entries() -> list[Calibration]:
    modes: tuple[Mode, ...] = ("datagram", "connected")
    windows = [
        (name, f"EFA thesis {of}", partial(throughput_fit, name)) for name, of in SYSTEMS.items()
    ]
    udp = [
        (
            f"ib2016-udp-{m}",
            f"ib2016, UDP over IPoIB at 4X FDR, {m} mode",
            partial(udp_throughput_fit, m),
        )
        for m in modes
    ]
    return [
        Calibration(name=name, quantity="throughput", system=system, fit=fit)
        for name, system, fit in (*windows, *udp)
    ]


THROUGHPUT = {calibration.name: calibration for calibration in _entries()}
