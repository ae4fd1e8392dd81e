"""Published tables as evidence, so that the rules of `weft.tune` can judge the papers' fabrics.

Of the EFA thesis, tables of perftest are rows as they stand; those of efa-bench, which runs over
libfabric, have that as another interface and are compared among themselves; the inline step is the
one that the thesis states in words. Of the FDR study, what its sentences state. Entry points:
`published_advice`, `fdr_advice`. Units: as in the tables'
names, turned into those of `weft.tune.rules.evidence`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from weft.studies.calibrated import efa_latency_fit, throughput_fit
from weft.studies.published import published, stated
from weft.tune.rules.advice import Rule, advise
from weft.tune.rules.evidence import Evidence, Row, Setting, Spread

Fabric = Literal["RC", "SRD"]  # of the EFA thesis: 4X EDR InfiniBand, EFA
OVER = "verbs"
LIBFABRIC = (("interface", "libfabric"),)
MIB, MB = 2**20, 10**6
SATURATION_THREADS, SATURATION_BYTES = 8, 4096


def published_advice(fabric: Fabric) -> tuple[Rule, ...]:
    """The rules for one of the thesis's fabrics."""
    name = f"efa-{fabric.lower()}"
    return advise(
        published_evidence(fabric),
        latency=efa_latency_fit(name),
        throughput=throughput_fit(f"{name}-perftest"),
    )


def fdr_advice() -> tuple[Rule, ...]:
    """The rules for the FDR study's machines."""
    return advise(fdr_evidence())


def published_evidence(fabric: Fabric) -> Evidence:
    """What the thesis measured of it."""
    rows = [
        *_latencies(fabric),
        *_depths(fabric),
        *_queue_pairs(fabric),
        *_post_lists(fabric),
        *_threads(fabric),
    ]
    if fabric == "SRD":
        rows += [*_calls(), *_one_sided(), *_loads()]
    return Evidence(over=OVER, endpoint=fabric.lower(), peer="PEER", rows=tuple(rows))


def fdr_evidence() -> Evidence:
    """What the FDR study states of alignment, buffers and waiting, in Gb/s."""
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("unaligned-8Mi", {"size_bytes": 8 * MIB, "offset_bytes": 1}),
        ("aligned-8Mi", {"size_bytes": 8 * MIB}),
        ("1Mi-outstanding-5", {"size_bytes": MIB, "depth": 5}),
        ("1Mi-outstanding-4", {"size_bytes": MIB, "depth": 5, "one_buffer": True}),
        ("waiting-highest", {"size_bytes": MIB, "depth": 4, "wait": "block"}),
        ("polling-highest", {"size_bytes": MIB, "depth": 4}),
    )
    rows = [
        Row(
            setting=Setting(test="transfer", over=OVER, endpoint="rc", **setting),
            origins=(f"FDR study, {stated('fdr', key).place}",),
            throughput_Bps=Spread((stated("fdr", key).value * 1e9 / 8,)),
        )
        for key, setting in cases
    ]
    return Evidence(over=OVER, endpoint="rc", peer="PEER", rows=tuple(rows))


def _row(fabric: Fabric, place: str, seen: dict[str, float], **setting: Any) -> Row:
    spreads: dict[str, Any] = {name: Spread((float(value),)) for name, value in seen.items()}
    at = Setting(over=OVER, endpoint=fabric.lower(), **setting)
    return Row(setting=at, origins=(f"EFA thesis, {place}",), **spreads)


def _speed(size_bytes: int, bytes_per_s: float) -> dict[str, float]:
    return {"throughput_Bps": bytes_per_s, "messages_per_s": bytes_per_s / size_bytes}


def _latencies(fabric: Fabric) -> Iterator[Row]:
    """C.1, inline up to the adapter's limit; without inlining, the stated step more."""
    table = published("efa-c1")
    limit = int(stated("efa", f"inline-limit-{fabric.lower()}").value)
    step_us = stated("efa", "inline-gain").value / 1e3
    for size, us in zip(table.column("size_bytes"), table.column(f"{fabric}_us"), strict=True):
        at = {"test": "latency", "size_bytes": int(size)}
        yield _row(fabric, "C.1", {"p50_us": us}, **at, inline_bytes=limit)
        if size <= limit:
            yield _row(fabric, "C.1, 4.2.2", {"p50_us": us + step_us}, **at)


def _depths(fabric: Fabric) -> Iterator[Row]:
    table = published("efa-c3-1" if fabric == "RC" else "efa-c3-3")
    for size in (16, 512, 4096, 8192):
        for depth, speed in zip(table.column("depth"), table.column(f"{size}B_MiBps"), strict=True):
            seen = _speed(size, speed * MIB)
            yield _row(
                fabric, table.place, seen, test="bandwidth", size_bytes=size, depth=int(depth)
            )


def _queue_pairs(fabric: Fabric) -> Iterator[Row]:
    """C.4; perftest's own depth, which is not stated, is 128."""
    table = published("efa-c4-1" if fabric == "RC" else "efa-c4-2")
    for size in (16, 512, 4096, 8192):
        rates = table.column(f"{size}B_Mmsgps")
        for qps, rate in zip(table.column("queue_pairs"), rates, strict=True):
            seen = _speed(size, rate * 1e6 * size)
            other = (("table", table.place),)  # its depth is another than that of C.3
            yield _row(
                fabric,
                table.place,
                seen,
                test="bandwidth",
                size_bytes=size,
                depth=128,
                qps=int(qps),
                other=other,
            )


def _post_lists(fabric: Fabric) -> Iterator[Row]:
    """4.5: 16 posted at once, at 64 B; one by one is what 16 B and 512 B reach."""
    single = stated("efa", f"rate-small-{fabric.lower()}").value
    listed = stated("efa", f"post-list-{fabric.lower()}").value
    for post_list, rate in ((1, single), (int(stated("efa", "post-list").value), listed)):
        yield _row(
            fabric,
            "4.5",
            _speed(64, rate * 1e6 * 64),
            test="bandwidth",
            size_bytes=64,
            depth=128,
            post_list=post_list,
            other=(("stated", "4.5"),),
        )


def _threads(fabric: Fabric) -> Iterator[Row]:
    table = published("efa-c5-2")
    depth = int(stated("efa", "depth-per-thread").value)
    for size in (64, 4096):
        rates = table.column(f"{fabric}_{size}B_Mmsgps")
        for threads, rate in zip(table.column("threads"), rates, strict=True):
            seen = _speed(size, rate * 1e6 * size)
            yield _row(
                fabric,
                table.place,
                seen,
                test="bandwidth",
                size_bytes=size,
                depth=depth,
                threads=int(threads),
                other=LIBFABRIC,
            )


def _calls() -> Iterator[Row]:
    table = published("efa-c7")
    for op, column in (("send", "send_us"), ("tagged", "tsend_us"), ("inject", "inject_us")):
        for size, us in zip(table.column("size_bytes"), table.column(column), strict=True):
            yield _row(
                "SRD",
                table.place,
                {"p50_us": us},
                test="latency",
                op=op,
                size_bytes=int(size),
                other=LIBFABRIC,
            )


def _one_sided() -> Iterator[Row]:
    table = published("efa-c10-1")
    for test, op in (("bandwidth", "send"), ("rma", "write"), ("rma", "read")):
        speeds = table.column(f"{op.upper()}_MBps")
        for size, speed in zip(table.column("size_bytes"), speeds, strict=True):
            seen = _speed(int(size), speed * MB)
            yield _row(
                "SRD", table.place, seen, test=test, op=op, size_bytes=int(size), other=LIBFABRIC
            )


def _loads() -> Iterator[Row]:
    middle, tail = published("efa-c8-1"), published("efa-c8-2")
    loads = middle.column("load_MBps")
    shares = loads / np.max(loads)
    columns = zip(shares, loads, middle.column("p50_us"), tail.column("p99_us"), strict=True)
    for share, load, p50, p99 in columns:
        seen = {"throughput_Bps": load * MB, "p50_us": p50, "p99_us": p99}
        yield _row(
            "SRD",
            "C.8",
            seen,
            test="saturation.step",
            size_bytes=SATURATION_BYTES,
            threads=SATURATION_THREADS,
            load=float(share),
            other=LIBFABRIC,
        )
