"""The models of `weft.model` fitted to published tables, by name and quantity.

A `Calibration` is a closed form and the published rows that fix its unknowns; its `fit` gives the
fitted model. One parameter set for all rows of a system; two tools that measured one thing are
both rows. Latency is of the InfiniBand paper and the EFA thesis; latency beside load is C.8 of the
EFA thesis (8 threads of load, 4096-byte messages); throughput is of the EFA thesis and of UDP over
IPoIB.

The program that posts is part of a system's throughput: perftest (C.2 to C.4) and efa-bench over
libfabric (C.5, C.10) drive the same adapters at unlike costs on the host, and notice completions
differently: perftest asks for one completion per window, or per 100 messages; efa-bench waits for
0.8 of its window (`cq_try`, appendix A). Bandwidths become rates by the bytes that were counted for
each message. perftest counts the payload and writes MB for 2^20 bytes. efa-bench reads the
adapter's counters and writes MB for 10^6 bytes: C.5.1 over C.5.2 is 72 bytes for a message of 64 on
EFA, and 150 on InfiniBand. The same rows of C.10.1 give one rate for 4 and for 64 bytes only if
send, write and read carry 8, 32 and 24 more.

Entry points: `latency_fit`, `ipoib_latency_fit`, `efa_latency_fit`, `saturation_fit`,
`doubling_load`, `throughput_fit`, `udp_throughput_fit`; `CALIBRATED` has all by name. Units: µs,
bytes, ns/B, Gb/s, MB/s (10^6), GB/s (10^9), M/s (messages per us).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import numpy as np

from weft.errors import InputError
from weft.fabric import LinkRate
from weft.model import Fit, FloatArray, Form, fit
from weft.model.latency import (
    doubling_load_MBps,
    saturation,
    segmented_latency,
    single_packet_latency,
    stepped_latency,
    verbs_latency,
)
from weft.model.link import header_bytes
from weft.model.throughput import (
    INPUTS,
    Refill,
    by_count,
    by_share,
    fragmented_rate,
    mapped_rate,
    throughput,
)
from weft.studies.published import PublishedTable, find_table

Quantity = Literal["latency", "throughput", "saturation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fitted model by name, and the system whose values it was fitted to."""

    name: str
    quantity: Quantity
    system: str
    fit: Callable[[], Fit]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """Rows of published tables and the form that describes them."""

    form: Form
    inputs: Mapping[str, FloatArray]
    observed: FloatArray
    data: str

    def fit(self) -> Fit:
        return fit(self.form, self.inputs, self.observed, data=self.data, where=self.data)


# ---- Latency ----------------------------------------------------------------------------------


Service = Literal["rc", "uc", "ud"]
Mode = Literal["datagram", "connected"]
Protocol = Literal["udp", "tcp"]

SPEEDS = ("SDR", "DDR", "QDR", "FDR")
CONNECTX3_INLINE_BYTES = 236
"""What perftest asks of ConnectX adapters for SEND; the tables have their step above 128 B."""
CONNECTED_MTU_BYTES = 2048
"""The paper says 4,096, but RC and UC pipeline, and pay headers, by packets of 2,048 B."""
DATAGRAM_MTU_BYTES = 4096
IPOIB_PACKET_BYTES = 2044  # its MTU in datagram mode
"""IPoIB's MTU in datagram mode; Table 8 breaks there too, as if its MTU were the same."""
EFA_PACKET_BYTES = 8800
"""The provider's MTU is 8,760 B, but in C.9 the row of 8,800 B still stands before the step."""
EDR_INLINE_BYTES = 220
EFA_STEP_ABOVE_BYTES = 64
"""C.7 has nothing between 64 and 512 B."""


@cache
def latency_fit(service: Service) -> Fit:
    """SEND over ConnectX-3 (ib2016, Tables 2-4), at SDR to FDR. Inputs: size, data rate."""
    return latency_sample(service).fit()


def latency_sample(service: Service) -> Sample:
    connected = verbs_latency(
        mtu_bytes=CONNECTED_MTU_BYTES, inline_limit_bytes=CONNECTX3_INLINE_BYTES
    )
    datagram = verbs_latency(
        mtu_bytes=DATAGRAM_MTU_BYTES, inline_limit_bytes=CONNECTX3_INLINE_BYTES
    ).fix(packet_bytes=header_bytes("ud"))
    table, form = {
        "rc": ("ib2016-table2", connected),
        "uc": ("ib2016-table3", connected),
        "ud": ("ib2016-table4", datagram),
    }[service]
    return _by_rate(table, form, f"ib2016 {find_table(table).place}, {service.upper()}")


@cache
def ipoib_latency_fit(mode: Mode, protocol: Protocol) -> Fit:
    """Sockets over IPoIB at FDR (ib2016, Tables 6 and 8). Input: size."""
    return ipoib_latency_sample(mode, protocol).fit()


def ipoib_latency_sample(mode: Mode, protocol: Protocol) -> Sample:
    table = {"datagram": "ib2016-table6", "connected": "ib2016-table8"}[mode]
    form = segmented_latency(packet_bytes=IPOIB_PACKET_BYTES)
    if protocol == "tcp":
        form = form.fix(split_us=0.0)  # a stream is not put together before it is read
    columns = tuple(f"{protocol.upper()}_{tool}_us" for tool in ("Hpcbench", "Qperf"))
    return _by_size(table, columns, form, f"ib2016 {find_table(table).place}, {protocol.upper()}")


@cache
def efa_latency_fit(name: str) -> Fit:
    """What the EFA thesis measured (C.1, C.6, C.7, C.9), by the name it has in `LATENCY`."""
    return efa_latency_sample(name).fit()


def efa_latency_sample(name: str) -> Sample:
    if name == "efa-rc":
        return _edr_sample()
    if name not in _EFA:
        names = ", ".join(["efa-rc", *_EFA])
        raise InputError(f"latency of {name}", "is not known", f"use one of {names}")
    table, column, form = _EFA[name]
    data = f"efa {find_table(table).place}, {column.removesuffix('_us')}"
    return _by_size(table, (column,), form(), data)


_stepped = partial(stepped_latency, limit_bytes=EFA_STEP_ABOVE_BYTES)
_EFA: dict[str, tuple[str, str, Callable[[], Form]]] = {
    "efa-srd": ("efa-c1", "SRD_us", single_packet_latency),
    "efa-sockets": ("efa-c1", "TCP_us", single_packet_latency),
    "efa-ud-average": ("efa-c6-1", "UD_us", single_packet_latency),
    "efa-srd-average": ("efa-c6-1", "SRD_us", single_packet_latency),
    "efa-ud-minimum": ("efa-c6-2", "UD_us", single_packet_latency),
    "efa-srd-minimum": ("efa-c6-2", "SRD_us", single_packet_latency),
    "efa-send": ("efa-c7", "send_us", _stepped),
    "efa-tagged-send": ("efa-c7", "tsend_us", _stepped),
    "efa-inject": ("efa-c7", "inject_us", _stepped),
    "efa-tagged-inject": ("efa-c7", "tinject_us", _stepped),
    "efa-segmented": (
        "efa-c9",
        "latency_us",
        partial(segmented_latency, packet_bytes=EFA_PACKET_BYTES),
    ),
}


def _edr_sample() -> Sample:
    """One data rate only: the time per hop cannot be separated from the base."""
    form = verbs_latency(mtu_bytes=4096, inline_limit_bytes=EDR_INLINE_BYTES)
    table = find_table("efa-c1")
    size = table.column("size_bytes")
    return Sample(
        form=form.fix(hop_bytes=0.0, packet_bytes=header_bytes("rc")),
        inputs={"size_bytes": size, "data_rate_gbps": np.full(size.shape, _data_rate_gbps("EDR"))},
        observed=table.column("RC_us"),
        data="efa C.1, RC over EDR",
    )


def _by_rate(name: str, form: Form, data: str) -> Sample:
    """Row by row, the signal rates of a row side by side."""
    table = find_table(name)
    size = table.column("size_bytes")
    rates = np.array([_data_rate_gbps(speed) for speed in SPEEDS])
    return Sample(
        form=form,
        inputs={
            "size_bytes": np.repeat(size, rates.size),
            "data_rate_gbps": np.tile(rates, size.size),
        },
        observed=np.column_stack([table.column(f"{speed}_us") for speed in SPEEDS]).ravel(),
        data=data,
    )


def _by_size(name: str, columns: tuple[str, ...], form: Form, data: str) -> Sample:
    table = find_table(name)
    size: FloatArray = np.repeat(table.column("size_bytes"), len(columns))
    observed = np.column_stack([table.column(column) for column in columns]).ravel()
    present = ~np.isnan(observed)
    return Sample(
        form=form, inputs={"size_bytes": size[present]}, observed=observed[present], data=data
    )


def _data_rate_gbps(speed: str) -> float:
    return LinkRate(speed, 4).data_bps / 1e9


_CONNECTX3 = "two hosts, ConnectX-3, SX6012 switch, 4X SDR to FDR (ib2016)"
_IPOIB = "two hosts, ConnectX-3, 4X FDR, IPoIB (ib2016)"
_EFA_SYSTEM = "two c5n.18xlarge instances, EFA, 100 Gb/s (EFA thesis)"
_OTHERS = {
    "efa-rc": "two hosts, ConnectX-5, 4X EDR, no switch (EFA thesis)",
    "efa-sockets": "two c5n.18xlarge instances, TCP sockets, ENA (EFA thesis)",
}


def _list_latencies() -> list[Calibration]:
    services: tuple[Service, ...] = ("rc", "uc", "ud")
    modes: tuple[Mode, ...] = ("datagram", "connected")
    protocols: tuple[Protocol, ...] = ("udp", "tcp")
    verbs = [(f"ib2016-{s}", _CONNECTX3, partial(latency_fit, s)) for s in services]
    ipoib = [
        (f"ib2016-ipoib-{p}-{m}", _IPOIB, partial(ipoib_latency_fit, m, p))
        for m in modes
        for p in protocols
    ]
    efa = [
        (name, _OTHERS.get(name, _EFA_SYSTEM), partial(efa_latency_fit, name))
        for name in ("efa-rc", *_EFA)
    ]
    return [
        Calibration(name=name, quantity="latency", system=system, fit=fit)
        for name, system, fit in (*verbs, *ipoib, *efa)
    ]


LATENCY = {calibration.name: calibration for calibration in _list_latencies()}


# ---- Latency beside load ----------------------------------------------------------------------


Quantile = Literal["p50", "p99"]
_TABLES: dict[Quantile, str] = {"p50": "efa-c8-1", "p99": "efa-c8-2"}


@cache
def capacity_MBps() -> float:
    """Most that the same program ever moved in 4096-byte messages over the same adapter."""
    return float(find_table("efa-c5-1").column("SRD_4096B_MBps").max())


@cache
def saturation_fit(quantile: Quantile) -> Fit:
    """The probe's median or 99th percentile. Input: load_MBps, what arrived. Value: us."""
    return saturation_sample(quantile).fit()


def saturation_sample(quantile: Quantile) -> Sample:
    table = find_table(_TABLES[quantile])
    latency_us = table.column(f"{quantile}_us")
    return Sample(
        form=saturation(capacity_MBps(), unloaded_us=float(latency_us.min())),
        inputs={"load_MBps": table.column("load_MBps")},
        observed=latency_us,
        data=f"EFA thesis {table.place}, {quantile}, 4096 B beside 8 threads",
    )


def doubling_load(quantile: Quantile) -> float | None:
    """The load in MB/s at which that quantile doubles; None if not even at capacity."""
    return doubling_load_MBps(saturation_fit(quantile), capacity_MBps())


SATURATION = {
    f"efa-{quantile}": Calibration(
        name=f"efa-{quantile}",
        quantity="saturation",
        system=f"EFA thesis C.8, {quantile} of a 4096 B probe beside 8 threads of load",
        fit=partial(saturation_fit, quantile),
    )
    for quantile in _TABLES
}


# ---- Throughput -------------------------------------------------------------------------------


MIB = 1.048576  # 10^6 bytes in perftest's MB
PERFTEST_SIZES = (16, 512, 4096, 8192)
BENCH_SIZES = (64, 4096)
ASSUMED_DEPTH = 128  # C.4 states none: perftest's own; C.5.1 and C.5.2: Figs. 4.10 and 4.11
RMA_SIZE = 8192  # of C.10.2, Fig. 4.17
COUNTED_BESIDE = {"SEND": 8, "WRITE": 32, "READ": 24}
FEWEST_DIGITS_SIZE = 16  # C.2 prints SRD below it with one digit


@dataclass(frozen=True, slots=True)
class Rate:
    """A published rate: where, at what, how much. Rows not `primary` repeat others, rounded."""

    place: str
    primary: bool
    size_bytes: float
    depth: float
    qps: float
    threads: float
    rate_Mps: float


def columns(rows: tuple[Rate, ...]) -> dict[str, FloatArray]:
    """The inputs of the model, row by row."""
    return {
        named.name: np.array([getattr(row, named.name) for row in rows], dtype=np.float64)
        for named in INPUTS
    }


def values(rows: tuple[Rate, ...]) -> FloatArray:
    return np.array([row.rate_Mps for row in rows])


@cache
def perftest_rates(service: str) -> tuple[Rate, ...]:
    """One thread: synchronous (C.2), by depth (C.3, bandwidth and rate), by queue pairs (C.4)."""
    bandwidths, counts, pairs = {
        "RC": ("efa-c3-1", "efa-c3-2", "efa-c4-1"),
        "SRD": ("efa-c3-3", "efa-c3-4", "efa-c4-2"),
    }[service]
    return (
        *_synchronous(service),
        *_by_depth(find_table(bandwidths), "MiBps", primary=True),
        *_by_depth(find_table(counts), "Mmsgps", primary=False),
        *_by_pairs(find_table(pairs)),
    )


@cache
def bench_rates(service: str) -> tuple[Rate, ...]:
    """Threads of efa-bench (C.5); of SRD also by depth, and the synchronous send of C.10.1."""
    rows = (
        *_by_threads(service, find_table("efa-c5-1")),
        *_count_bytes(service, find_table("efa-c5-2")),
    )
    if service == "RC":
        return rows
    return (*rows, *_by_depth_and_threads(), *_one_at_a_time("SEND"))


@cache
def rma_rates(operation: str) -> tuple[Rate, ...]:
    """Emulated write or read of efa-bench: by size (C.10.1) and by depth (C.10.2)."""
    table = find_table("efa-c10-2")
    counted = RMA_SIZE + COUNTED_BESIDE[operation]
    by_depth = (
        _rate(table, True, RMA_SIZE, depth, 1, 1, bandwidth / counted)
        for depth, bandwidth in _pairs(table, "depth", f"{operation}_MBps")
    )
    return (*_one_at_a_time(operation), *by_depth)


def bytes_counted(service: str, size_bytes: float) -> float:
    """Of each message of C.5.1 and C.5.3: the payload and what the 64-byte rows show beside it."""
    bandwidth, count = find_table("efa-c5-1"), find_table("efa-c5-2")
    both = np.isin(count.column("threads"), bandwidth.column("threads"))
    rate_Mps = count.column(f"{service}_64B_Mmsgps")[both]
    per_message = bandwidth.column(f"{service}_64B_MBps") / rate_Mps
    return size_bytes - 64 + float(np.median(per_message))


def _rate(table: PublishedTable, primary: bool, *values: float) -> Rate:
    """Size, depth, queue pairs, threads and rate of a row."""
    return Rate(table.place, primary, *map(float, values))


def _pairs(table: PublishedTable, x: str, y: str) -> Iterator[tuple[float, float]]:
    yield from zip(table.column(x).tolist(), table.column(y).tolist(), strict=True)


def _synchronous(service: str) -> Iterator[Rate]:
    table = find_table("efa-c2")
    smallest = FEWEST_DIGITS_SIZE if service == "SRD" else 0
    for size, bandwidth in _pairs(table, "size_bytes", f"{service}_MiBps"):
        if size >= smallest:
            yield _rate(table, True, size, 1, 1, 1, bandwidth * MIB / size)


def _by_depth(table: PublishedTable, unit: str, *, primary: bool) -> Iterator[Rate]:
    for size in PERFTEST_SIZES:
        rate_of_one = MIB / size if unit == "MiBps" else 1.0
        for depth, value in _pairs(table, "depth", f"{size}B_{unit}"):
            yield _rate(table, primary, size, depth, 1, 1, value * rate_of_one)


def _by_pairs(table: PublishedTable) -> Iterator[Rate]:
    for size in PERFTEST_SIZES:
        for pairs, rate in _pairs(table, "queue_pairs", f"{size}B_Mmsgps"):
            yield _rate(table, True, size, ASSUMED_DEPTH, pairs, 1, rate)


def _by_threads(service: str, table: PublishedTable) -> Iterator[Rate]:
    for size in BENCH_SIZES:
        counted = bytes_counted(service, size)
        for threads, bandwidth in _pairs(table, "threads", f"{service}_{size}B_MBps"):
            yield _rate(table, False, size, ASSUMED_DEPTH, 1, threads, bandwidth / counted)


def _count_bytes(service: str, table: PublishedTable) -> Iterator[Rate]:
    for size in BENCH_SIZES:
        for threads, rate in _pairs(table, "threads", f"{service}_{size}B_Mmsgps"):
            yield _rate(table, True, size, ASSUMED_DEPTH, 1, threads, rate)


def _by_depth_and_threads() -> Iterator[Rate]:
    table, size = find_table("efa-c5-3"), 64
    for column in table.columns[1:]:
        threads = int(column.split("thread")[0])
        for depth, bandwidth in _pairs(table, "depth", column):
            yield _rate(
                table, True, size, depth, 1, threads, bandwidth / bytes_counted("SRD", size)
            )


def _one_at_a_time(operation: str) -> Iterator[Rate]:
    table = find_table("efa-c10-1")
    for size, bandwidth in _pairs(table, "size_bytes", f"{operation}_MBps"):
        yield _rate(table, True, size, 1, 1, 1, bandwidth / (size + COUNTED_BESIDE[operation]))


DATA_RATE_GBPS = 12.5  # 100 Gb/s: EDR 4X, and the EFA adapter
NITRO_ENGINES = 4  # of the EFA adapter, as Section 4.6 concludes
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
    table = find_table(name)
    tools = [column for column in table.columns if column.endswith("_mbps")]
    size_bytes = np.tile(table.column("size_bytes"), len(tools))
    rate_Mps = np.concatenate([table.column(tool) for tool in tools]) / (8 * size_bytes)
    is_stated = np.isfinite(rate_Mps)
    return Sample(
        form=form,
        inputs={"size_bytes": size_bytes[is_stated]},
        observed=rate_Mps[is_stated],
        data=f"ib2016 {table.place}, UDP, IPoIB in {mode} mode",
    )


def throughput_form(system: str) -> Form:
    """What is unknown of a system, what is known, and how its program waits."""
    starts, fixed, refill = _RECIPES[system]
    if system == "efa-rc-libfabric":
        adapter = throughput_fit("efa-rc-perftest")
        fixed = fixed | {name: adapter.value(name) for name in ("base_us", "byte_ns", "extra_us")}
        fixed = fixed | {"header_bytes": bytes_counted("RC", 0)}
    return throughput(tuple(starts), fixed=fixed, starts=starts, refill=refill)


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


def _list_throughputs() -> list[Calibration]:
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


THROUGHPUT = {calibration.name: calibration for calibration in _list_throughputs()}

CALIBRATED = {**LATENCY, **THROUGHPUT, **SATURATION}
