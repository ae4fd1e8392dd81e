"""Latency models, alone and beside load, fitted to published tables.

A `Calibration` is a closed form and the published rows that fix its unknowns; its `fit` gives the
fitted model. One parameter set for all rows of a system; two tools that measured one thing are
both rows. Latency is of the InfiniBand paper and the EFA thesis; latency beside load is C.8 of the
EFA thesis: 8 threads of load, 4096-byte messages.
Entry points: `latency_fit`, `ipoib_latency_fit`, `efa_latency_fit`, `saturation_fit`,
`doubling_load`; `LATENCY` and `SATURATION` have all by name. Units: µs, bytes, Gb/s, MB/s (10^6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from weft.studies.published import find_table

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


Service = Literal["rc", "uc", "ud"]
Mode = Literal["datagram", "connected"]
Protocol = Literal["udp", "tcp"]

SPEEDS = ("SDR", "DDR", "QDR", "FDR")
CONNECTX3_INLINE_BYTES = 236
"""What perftest asks of ConnectX adapters for SEND; the tables have their step above 128 B."""
CONNECTED_MTU_BYTES = 2048
"""The paper says 4,096, but RC and UC pipeline, and pay headers, by packets of 2,048 B."""
DATAGRAM_MTU_BYTES = 4096
IPOIB_PACKET_BYTES = 2044
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


def _entries() -> list[Calibration]:
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


LATENCY = {calibration.name: calibration for calibration in _entries()}


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
