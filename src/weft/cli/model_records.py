"""Rows of a user's own records, as the models take them, and fits to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.errors import InputError
from weft.model import Fit, FloatArray, fit
from weft.model.latency import saturation, single_packet_latency
from weft.model.throughput import host_throughput
from weft.tune.rules.evidence import Row, families
from weft.tune.rules.read_evidence import read_evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthRows:
    """Size, messages outstanding over all connections, and throughput; `data` names the files."""

    size_bytes: FloatArray
    outstanding: FloatArray
    throughput_gbps: FloatArray
    data: str


def bandwidth_rows(files: Sequence[str]) -> BandwidthRows:
    rows = _largest(files, "throughput_Bps", ("size_bytes", "depth"), "bandwidth")
    return BandwidthRows(
        size_bytes=_column(rows, "size_bytes"),
        outstanding=_column(rows, "depth") * rows[0].setting.qps * rows[0].setting.threads,
        throughput_gbps=_observed(rows, "throughput_Bps") * 8e-9,
        data=_names(files),
    )


def latency_of_records(files: Sequence[str]) -> Fit:
    """Half the round trip by size: a base and a time per byte."""
    rows = _largest(files, "p50_us", ("size_bytes",), "latency", "rma")
    return fit(
        single_packet_latency(),
        {"size_bytes": _column(rows, "size_bytes")},
        _observed(rows, "p50_us"),
        data=_names(files),
        where=_names(files),
    )


def throughput_of_records(files: Sequence[str]) -> Fit:
    """The message rate by size, depth, connections and threads."""
    names = ("size_bytes", "depth", "qps", "threads")
    rows = _largest(files, "throughput_Bps", names, "bandwidth")
    inputs = {name: _column(rows, name) for name in names}
    rates = _observed(rows, "throughput_Bps") / inputs["size_bytes"] / 1e6
    form = host_throughput(inputs, rates)
    return fit(form, inputs, rates, data=_names(files), where=_names(files))


def saturation_of_records(files: Sequence[str]) -> Fit:
    """The probe's median by the load that arrived; the test's maximum is the capacity."""
    steps = _largest(files, "p50_us", ("load",), "saturation.step")
    loads = _observed(steps, "throughput_Bps") / 1e6
    tops = [row for row in read_evidence(files).of("saturation") if row.throughput_Bps]
    capacity = max([*_observed(tops, "throughput_Bps") / 1e6, *loads])
    latency_us = _observed(steps, "p50_us")
    return fit(
        saturation(capacity, unloaded_us=float(latency_us.min())),
        {"load_MBps": loads},
        latency_us,
        data=_names(files),
        where=_names(files),
    )


def _largest(
    files: Sequence[str], quantity: str, varied: Sequence[str], *tests: str
) -> tuple[Row, ...]:
    """The most rows that differ in these settings alone."""
    evidence = read_evidence(files)
    having = [row for row in evidence.of(*tests) if getattr(row, quantity) is not None]
    found = max(families(having, *varied), key=len, default=())
    if not found:
        sweep = varied[0].removesuffix("_bytes")
        raise InputError(
            _names(files),
            f"no two records of {' or '.join(tests)} differ in {', '.join(varied)} alone",
            f"measure a sweep: weft {tests[0]} PEER --sweep {sweep}=64..64K*4 -o FILE",
        )
    return found


def _names(files: Sequence[str]) -> str:
    return ", ".join(files)


def _column(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([getattr(row.setting, name) for row in rows], dtype=np.float64)


def _observed(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([getattr(row, name).median for row in rows], dtype=np.float64)
