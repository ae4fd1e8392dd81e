"""One measurement record as settings and observed values.

A record tells its point's full settings in a table; a saturation's steps leave that to the record
that sums them up, which has the same digest. Entry points: `setting_of`, `observed`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from weft.measure.settings.placement import AUTO
from weft.measure.tests.catalog import TESTS
from weft.records import Distribution, Plain, Record, Scalar, statistic
from weft.tune.rules.evidence import Setting
from weft.units import convert

STEP = ".step"
# `rate` runs the streams of `bandwidth`, of small messages.
SAME_STREAMS = {"rate": "bandwidth"}
# Settings that say how long or how exactly was measured, not what.
OF_MEASURING = frozenset(
    {
        "count",
        "duration_ns",
        "warmup",
        "samples",
        "seed",
        "total_bytes",
        "steps",
        "loss_timeout_ns",
        "repetition",
        "probe_bytes",
        "peer",
    }
)

LOADS = ("achieved", "maximum")  # of a saturation

FullSettings = Mapping[str | None, Mapping[str, Plain]]  # by digest


def is_test(record: Record) -> bool:
    """Whether the record is of one of weft's tests, or of a step of one."""
    return record.kind == "measurement" and record.name.removesuffix(STEP) in TESTS


def full_settings(records: Iterable[Record]) -> FullSettings:
    """What each point's record tells of all its settings."""
    return {
        record.provenance.scenario_digest: {
            str(row["setting"]): row["value"] for row in record.tables["settings"]
        }
        for record in records
        if "settings" in record.tables
    }


def setting_of(record: Record, told: FullSettings) -> Setting:
    """The record's settings; those it does not tell are at the test's defaults."""
    test, step = record.name.removesuffix(STEP), record.name.endswith(STEP)
    defaults = {f.name: f.default for f in dataclasses.fields(TESTS[test].settings)}
    stored = told.get(record.provenance.scenario_digest, {})
    values = {**defaults, **stored, **record.settings}
    values["cpu"] = AUTO if values["cpu"] == "auto" else values["cpu"]
    if "outstanding" in values:
        values["depth"] = values.pop("outstanding")
    known = {f.name for f in dataclasses.fields(Setting)} - {"test", "other"}
    other = {
        name: value
        for name, value in values.items()
        if name not in known | OF_MEASURING and value != defaults.get(name)
    }
    named = record.name if step else SAME_STREAMS.get(test, test)
    own = {name: value for name, value in values.items() if name in known}
    return Setting(test=named, other=tuple(sorted(other.items())), **own)  # type: ignore[arg-type]


def observed(record: Record, setting: Setting) -> dict[str, float]:
    """What one record tells, by the names of a row's fields."""
    found = {
        "throughput_Bps": carried_Bps(record) or _scaled(record, LOADS, "b/s", 1 / 8),
        "messages_per_s": carried_messages_per_s(record, setting.size_bytes),
        "p50_us": _latency(record, "p50"),
        "p99_us": _latency(record, "p99"),
        "cpu_percent": _scaled(record, ("cpu.percent",), "%", 1.0),
        "peer_cpu_percent": _scaled(record, ("peer.cpu.percent",), "%", 1.0),
        "cpu_s_per_byte": _cpu_per_byte(record, setting),
    }
    if record.name.endswith(STEP):
        found["messages_per_s"] = found["cpu_s_per_byte"] = None  # of the probe, not of the load
    # The first step of a saturation has no load; any other zero is a run without an outcome.
    return {k: v for k, v in found.items() if v is not None and (v > 0 or setting.load == 0)}


def carried_Bps(record: Record) -> float | None:
    """The lower of what the receiver and the sender saw of a stream.

    A sender's kernel takes bytes that have not arrived, and a receiver that slept finds a backlog
    and drains it faster than it was sent: what both saw was carried.
    """
    seen = [_scaled(record, (n,), "b/s", 1 / 8) for n in ("throughput", "sender.throughput")]
    return min((value for value in seen if value is not None), default=None)


def carried_messages_per_s(record: Record, size_bytes: int) -> float | None:
    """The message rate, bounded by what the sender sent."""
    rate = _scaled(record, ("message_rate",), "M/s", 1e6)
    sent = _scaled(record, ("sender.throughput",), "b/s", 1 / 8)
    return rate if rate is None or sent is None else min(rate, sent / size_bytes)


def _scaled(record: Record, names: Sequence[str], unit: str, factor: float) -> float | None:
    for name in names:
        quantity = record.quantities.get(name)
        if isinstance(quantity, Scalar):
            value = convert(quantity.value, quantity.unit, unit)
            return None if value is None else value * factor
    return None


def _latency(record: Record, name: str) -> float | None:
    for quantity in ("half_rtt", "operation", "rtt", "probe.half_rtt"):
        found = record.quantities.get(quantity)
        if isinstance(found, Distribution) and (value := statistic(found, name)) is not None:
            return value / 1e6
    return None


def _cpu_per_byte(record: Record, setting: Setting) -> float | None:
    used = [_scaled(record, (f"cpu.{part}",), "s", 1.0) for part in ("user", "system")]
    messages = record.quantities.get("messages")
    if None in used or not isinstance(messages, Scalar) or not messages.value:
        return None
    return sum(u for u in used if u is not None) / (messages.value * setting.size_bytes)
