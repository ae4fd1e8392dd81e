"""What the hosts observed in one step, as one record; and steps as a table.

`TRAFFIC.half_rtt` (of RPerf `TRAFFIC.rtt`) and `TRAFFIC.throughput` are of all flows of a
traffic, `TRAFFIC.SOURCE-TARGET.…` of one. `start.spread` is how far apart the hosts really
started, by clocks compared through the coordinator; `start.error` bounds that comparison.
Entry points: `build_step_record`, `format_steps`. Units: ps, bits per second, ns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from weft import __version__
from weft.measure.plan.plan import Generator, Plan, Step
from weft.measure.settings.by_test import BIAS, RperfSettings
from weft.records import (
    Distribution,
    Histogram,
    Plain,
    Provenance,
    Quantity,
    Record,
    Row,
    Scalar,
    note_ending,
    statistic,
)
from weft.records.record_text import format_table, is_flow_quantity
from weft.units import format_value

HostReports = Mapping[str, Mapping[str, Any]]  # by host
FlowReports = Sequence[Mapping[str, Any]]

SHOWN = ("p50", "p99")
ESTIMATES = ("half_rtt", "rtt")  # of a ping-pong, and of RPerf's pairs
KERNEL_TAKES = (
    "tcp and udp: throughput counts payload that the sender's kernel has taken in the timed part"
)


def build_step_record(
    plan: Plan, step: Step, hosts: HostReports, addresses: Mapping[str, str], interrupted: bool
) -> Record:
    """The record of one step."""
    flows = [report for host in hosts.values() for report in host["flows"]]
    return Record(
        kind="measurement",
        name=plan.name,
        settings=_settings(plan, step),
        quantities=dict(_quantities(step, flows)) | dict(_start_quantities(hosts)),
        tables={
            "flows": [_flow_row(report) for report in flows],
            "hosts": list(_host_rows(addresses, hosts)),
            "counters": [{"host": h, **row} for h, s in hosts.items() for row in s["counters"]],
        },
        notes=list(_notes(step, flows, interrupted)),
        provenance=Provenance(
            weft_version=__version__, seed=plan.seed, scenario_digest=plan.digest
        ),
    )


def _settings(plan: Plan, step: Step) -> dict[str, Plain]:
    repeated = any(other.repetition > 1 for other in plan.steps)
    return dict(step.settings) | ({"repetition": step.repetition} if repeated else {})


def _quantities(step: Step, flows: FlowReports) -> Iterator[tuple[str, Quantity]]:
    for traffic in dict.fromkeys(flow.traffic for flow in step.flows):
        reports = [report for report in flows if report["traffic"] == traffic]
        yield from _merge_flows(traffic, reports)
        if len(reports) > 1:
            for report in reports:
                yield from _merge_flows(
                    f"{traffic}.{report['source']}-{report['target']}", [report]
                )


def _merge_flows(name: str, reports: FlowReports) -> Iterator[tuple[str, Quantity]]:
    """Merged distributions and summed rates of some flows of one traffic."""
    timed = [report for report in reports if report["elapsed_ns"] > 0]
    messages = sum(r["messages"] * 1e9 / r["elapsed_ns"] for r in timed)
    estimate = next((e for e in ESTIMATES if all(e in report for report in reports)), None)
    if estimate:
        merged = Histogram()
        for report in reports:
            merged.merge(_histogram(report[estimate]))
        yield f"{name}.{estimate}", Distribution("ps", merged)
        if estimate == "rtt":
            yield f"{name}.negative", Scalar(sum(report["negative"] for report in reports), "")
    else:
        bits = sum(r["messages"] * r["bytes"] * 8e9 / r["elapsed_ns"] for r in timed)
        yield f"{name}.throughput", Scalar(bits, "b/s")
    yield f"{name}.message_rate", Scalar(messages, "1/s")
    if any(report["lost"] for report in reports):
        yield f"{name}.lost", Scalar(sum(report["lost"] for report in reports), "")


def _histogram(values: Mapping[str, Any]) -> Histogram:
    return Histogram.from_sparse(
        np.array(values["keys"], np.int32),
        np.array(values["counts"], np.uint64),
        values["min"],
        values["max"],
        values["sum"],
    )


def _start_quantities(hosts: HostReports) -> Iterator[tuple[str, Quantity]]:
    starts = [host["start_ns"] for host in hosts.values()]
    errors = sorted(host["clock_error_ns"] for host in hosts.values())
    yield "start.spread", Scalar(max(starts) - min(starts), "ns")
    yield "start.error", Scalar(sum(errors[-2:]), "ns")
    yield "cpu.busy", Scalar(max(host["busy_percent"] for host in hosts.values()), "%")


def _flow_row(report: Mapping[str, Any]) -> Row:
    plain = {k: v for k, v in report.items() if k not in (*ESTIMATES, "endpoint")}
    return plain | {f"endpoint.{k}": v for k, v in report["endpoint"].items()}


def _host_rows(addresses: Mapping[str, str], hosts: HostReports) -> Iterator[Row]:
    first = min(host["start_ns"] for host in hosts.values())
    for host, report in hosts.items():
        yield {
            "host": host,
            "address": addresses[host],
            "machine": report["machine"],
            "start_after_first_ns": report["start_ns"] - first,
            "clock_error_ns": report["clock_error_ns"],
            "busy_percent": round(report["busy_percent"], 1),
        }


def _notes(step: Step, flows: FlowReports, interrupted: bool) -> Iterator[str]:
    if interrupted:
        yield note_ending("interrupted")
    for report in flows:
        if report["error"]:
            yield f"{report['source']}-{report['target']}: ended early: {report['error']}"
    orders = {
        flow.generator.settings.order
        for flow in step.flows
        if isinstance(flow.generator.settings, RperfSettings)
    }
    yield from (BIAS[order] for order in sorted(orders))
    if any(_counts_at_kernel(flow.generator) for flow in step.flows):
        yield KERNEL_TAKES


def _counts_at_kernel(generator: Generator) -> bool:
    return generator.settings.route.transport in ("tcp", "udp") and not generator.is_probe


def format_steps(records: Sequence[Record]) -> str:
    """The steps of a plan as one table: p50 and p99 of probes, throughput of streams."""
    settings = list(dict.fromkeys(key for record in records for key in record.settings))
    columns = list(
        dict.fromkeys(column for record in records for column in _choose_columns(record))
    )
    heads = [key.removeprefix("traffic.") for key in settings]
    heads += [f"{name} {stat}".removesuffix(" value") for name, stat in columns]
    rows = [
        [str(record.settings.get(key, "")) for key in settings]
        + [_format_cell(record, name, stat) for name, stat in columns]
        for record in records
    ]
    return format_table(heads, rows)


def _choose_columns(record: Record) -> list[tuple[str, str]]:
    columns = []
    for name, quantity in record.quantities.items():
        if is_flow_quantity(name):
            continue
        if isinstance(quantity, Distribution):
            columns += [(name, stat) for stat in SHOWN]
        elif isinstance(quantity, Scalar) and name.endswith(".throughput"):
            columns.append((name, "value"))
    return columns


def _format_cell(record: Record, name: str, stat: str) -> str:
    quantity = record.quantities.get(name)
    value = None if quantity is None else statistic(quantity, stat)
    if value is None or not isinstance(quantity, Scalar | Distribution):
        return "-"
    return format_value(value, quantity.unit)
