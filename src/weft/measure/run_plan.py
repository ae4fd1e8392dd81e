"""Runs a plan from start to end: the coordinator's side, each host's side, and a record per step.

The coordinator runs one step after the other, with a barrier before each. Every host runs its part
in its worker, as one call for the whole plan: it serves the flows that end there and sends those
that start there, from a common start. When the coordinator is lost or orders a stop, loops end at
once and the server with them.

In a step's record `TRAFFIC.half_rtt` (of RPerf `TRAFFIC.rtt`) and `TRAFFIC.throughput` are of all
flows of a traffic, `TRAFFIC.SOURCE-TARGET.…` of one. `start.spread` is how far apart the hosts
really started, by clocks compared through the coordinator; `start.error` bounds that comparison.
Entry points: `run_plan` (coordinator), `run_part` (host), `format_steps` (steps as a table).
Units: ns, ps, bits per second.
"""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from weft import __version__
from weft._core import Counts, Endpoint, Histogram, StopFlag, ping_pong, post_poll, stream
from weft.fleet import (
    Coordinator,
    Fleet,
    HostCalls,
    Invitation,
    Member,
    dask_fleet,
    join,
    local_fleet,
)
from weft.fleet.coordinator import Stopped
from weft.host.machine.devices import compare_counters, read_counters, tabulate_changes
from weft.measure.peer.channel_spec import (
    TIMED,
    ChannelSpec,
    echo_channel,
    loop_spec,
    sink_channel,
    timed_loopback_fields,
)
from weft.measure.peer.client import Channels, LocalServer, open_peer
from weft.measure.plan import Flow, Generator, Host, Plan, Step
from weft.measure.rig import loopback
from weft.measure.settings.by_test import BIAS, RperfSettings
from weft.measure.settings.options import Settings, Windowed
from weft.measure.tests.bandwidth import window_options
from weft.measure.tests.latency import device_hz
from weft.records import (
    Distribution,
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

JOIN_S = 60.0
READY_S = 60.0
END_S = 20.0
CLOSE_S = 2.0
ORDER_S = 3600.0  # for the next order of a coordinator that lives
HOST_END_S = 30.0  # for flows of other hosts that end here

Progress = Callable[[float, str], None]
TAIL_NS = 100_000_000
Report = dict[str, Any]
HostReports = Mapping[str, Mapping[str, Any]]  # by host
FlowReports = Sequence[Mapping[str, Any]]
SHOWN = ("p50", "p99")
ESTIMATES = ("half_rtt", "rtt")  # of a ping-pong, and of RPerf's pairs
KERNEL_TAKES = (
    "tcp and udp: throughput counts payload that the sender's kernel has taken in the timed part"
)


def run_plan(
    plan: Plan, cluster: str | None = None, progress: Progress | None = None
) -> Iterator[Record]:
    """The record of each step as it ends; an interrupted step is the last, with what it has."""
    with _open_fleet(plan, cluster) as fleet:
        hosts = [host.name for host in plan.hosts]
        address = plan.coordinator or fleet.coordinator
        with Coordinator(hosts, address) as coordinator:
            calls = HostCalls(coordinator, fleet, _start(plan, fleet, coordinator))
            try:
                yield from _run_steps(plan, fleet, calls, progress)
            finally:
                calls.close(CLOSE_S)


@contextmanager
def _open_fleet(plan: Plan, cluster: str | None) -> Iterator[Fleet]:
    wanted = {host.name: host.address for host in plan.hosts}
    if cluster is None:
        with local_fleet(list(wanted)) as fleet:
            yield fleet
    else:
        with dask_fleet(cluster, wanted) as fleet:
            yield fleet


def _start(plan: Plan, fleet: Fleet, coordinator: Coordinator) -> dict[str, Future[None]]:
    token = secrets.token_hex(32)
    targets = {flow.target for step in plan.steps for flow in step.flows}
    futures = {}
    for host in plan.hosts:
        part = Part(
            host=host.name,
            address=_find_address(host, fleet),
            token=token,
            serves=host.name in targets,
            steps=tuple(_select_flows(step, host.name) for step in plan.steps),
        )
        invitation = coordinator.invitation(host.name)
        futures[host.name] = fleet.executors[host.name].submit(run_part, invitation, part)
    return futures


def _find_address(host: Host, fleet: Fleet) -> str:
    return host.address or fleet.addresses[host.name]


def _select_flows(step: Step, host: str) -> Step:
    return replace(step, flows=tuple(f for f in step.flows if f.source == host))


def _run_steps(
    plan: Plan, fleet: Fleet, calls: HostCalls, progress: Progress | None
) -> Iterator[Record]:
    serving = calls.gather("serving", JOIN_S)
    addresses = {host.name: _find_address(host, fleet) for host in plan.hosts}
    calls.coordinator.announce(
        "servers",
        {
            name: f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
            for name, address in addresses.items()
            for port in [serving[name]["port"]]
        },
    )
    for number, step in enumerate(plan.steps):
        if progress:
            progress(number / len(plan.steps), f"step {number + 1} of {len(plan.steps)}")
        reports, interrupted = _run_step(calls, number, step)
        yield build_step_record(plan, step, reports, addresses, interrupted)
        if interrupted:
            return


def _run_step(calls: HostCalls, number: int, step: Step) -> tuple[dict[str, Any], bool]:
    """What every host reported of a step, and whether Ctrl-C ended it."""
    calls.coordinator.announce("step", number)
    calls.gather(f"ready {number}", READY_S)
    calls.coordinator.announce("go")
    length_s = (step.warmup_ns + step.duration_ns) / 1e9
    try:
        return calls.gather(f"done {number}", length_s + END_S), False
    except KeyboardInterrupt:
        calls.coordinator.announce("stop")
        return calls.gather(f"done {number}", END_S), True


# ---- On each host -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one host does: `steps` have the flows that start there; `serves`: some end there."""

    host: str
    address: str
    token: str
    serves: bool
    steps: tuple[Step, ...]


def run_part(invitation: Invitation, part: Part) -> None:
    """The whole plan, from this host's side."""
    with join(invitation) as member, ExitStack() as stack:
        port = None
        if part.serves:
            server = LocalServer(part.address, part.token.encode())
            port = stack.enter_context(closing(server)).port
        member.report("serving", {"port": port})
        try:
            servers = member.wait_for("servers", ORDER_S)
            while True:
                _run_host_step(member, part, member.wait_for("step", ORDER_S), servers)
        except Stopped:
            # Other hosts may still have flows that end here: the server stays until all are done.
            member.ended.wait(HOST_END_S)


def _run_host_step(member: Member, part: Part, number: int, servers: dict[str, str]) -> None:
    step = part.steps[number]
    with ThreadPoolExecutor(max(1, len(step.flows))) as pool, ExitStack() as stack:
        opening = [
            pool.submit(open_flow, flow, servers[flow.target], part.token.encode())
            for flow in step.flows
        ]
        for future in opening:  # all of them, before the first error is raised
            if future.exception() is None:
                stack.enter_context(closing(future.result()))
        flows = [future.result() for future in opening]
        member.on_stop([flow.stop.set for flow in flows])
        member.report(f"ready {number}")
        member.wait_for("go", ORDER_S)
        start_ns = time.monotonic_ns()
        running = [pool.submit(flow.run, step.warmup_ns, step.duration_ns) for flow in flows]
        report = _watch_host(member, step) | {"flows": [future.result() for future in running]}
    member.report(
        f"done {number}",
        report
        | {
            "machine": platform.node(),
            "start_ns": start_ns + member.clock_offset_ns,
            "clock_error_ns": member.clock_error_ns,
        },
    )


def _watch_host(member: Member, step: Step) -> dict[str, Any]:
    """The host's counters over the timed part."""
    member.stopped.wait(step.warmup_ns / 1e9)
    before, busy_before = read_counters(), _read_jiffies()
    member.stopped.wait(step.duration_ns / 1e9)
    after, busy_after = read_counters(), _read_jiffies()
    return {
        "counters": tabulate_changes(compare_counters(before, after)),
        "busy_percent": _busy_percent(busy_before, busy_after),
    }


def _read_jiffies() -> tuple[int, int]:
    """(busy, all) of this machine's processors since boot; zeros where there is no /proc."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0, 0
    ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, sum(ticks)


def _busy_percent(before: tuple[int, int], after: tuple[int, int]) -> float:
    return 100 * (after[0] - before[0]) / max(1, after[1] - before[1])


def open_flow(flow: Flow, peer: str, token: bytes) -> OpenFlow:
    """The flow's connection, with the receiver's loop running; close it."""
    with ExitStack() as on_failure:
        receiver = on_failure.enter_context(open_peer(peer, token))
        channels = on_failure.enter_context(receiver.open([_channel(flow.generator)]))
        settings = flow.generator.settings
        back = (
            on_failure.enter_context(loopback(timed_loopback_fields(settings)))
            if isinstance(settings, RperfSettings)
            else None
        )
        channels.start()
        return OpenFlow(flow, channels, back, on_failure.pop_all())


def _channel(generator: Generator) -> ChannelSpec:
    """An echo for a ping-pong, a sink for the rest."""
    settings = generator.settings
    match settings:
        case RperfSettings():
            return sink_channel(settings, depth=1, **TIMED)
        case Windowed():
            return sink_channel(settings, depth=settings.depth)
        case _:
            return echo_channel(settings)


@dataclass(frozen=True, slots=True)
class OpenFlow:
    """A flow that is connected and waits for its start."""

    flow: Flow
    channels: Channels
    loopback: Endpoint | None
    opened: ExitStack

    def close(self) -> None:
        self.opened.close()

    @property
    def stop(self) -> StopFlag:
        return self.channels.stop

    def run(self, warmup_ns: int, duration_ns: int) -> Report:
        """Runs to its end, or until `stop` is set; what it observed, as plain values."""
        settings = self.flow.generator.settings
        match settings:
            case RperfSettings():
                return self._run_pairs(settings, warmup_ns, duration_ns)
            case Windowed():
                return self._run_stream(settings, warmup_ns, duration_ns)
            case _:
                return self._run_ping_pong(settings, warmup_ns, duration_ns)

    def _run_ping_pong(self, settings: Settings, warmup_ns: int, duration_ns: int) -> Report:
        endpoint = self.channels.endpoints[0]
        if warmup_ns:
            ping_pong(endpoint, loop_spec(settings, warmup=0, duration_ns=warmup_ns), self.stop)
        spec = loop_spec(settings, warmup=0, duration_ns=duration_ns)
        result = ping_pong(endpoint, spec, self.stop)
        self.channels.finish()
        return self._report(result.counts) | {"half_rtt": to_sparse(result.latency)}

    def _run_pairs(self, settings: RperfSettings, warmup_ns: int, duration_ns: int) -> Report:
        wire, back = self.channels.endpoints[0], self.loopback
        assert back is not None
        sent = 0
        if warmup_ns:
            spec = loop_spec(settings, warmup=0, duration_ns=warmup_ns)
            warmup = post_poll(wire, back, spec, settings.order, device_hz(wire), self.stop)
            sent = warmup.counts.sent
        spec = loop_spec(settings, warmup=0, duration_ns=duration_ns)
        result = post_poll(wire, back, spec, settings.order, device_hz(wire), self.stop)
        self.channels.finish(sent + result.counts.sent)
        report = self._report(result.counts) | {"rtt": to_sparse(result.rtt)}
        return report | {"negative": result.negative, "messages": result.counts.sent}

    def _run_stream(self, settings: Windowed, warmup_ns: int, duration_ns: int) -> Report:
        spec = loop_spec(settings, warmup=0, duration_ns=warmup_ns + duration_ns + TAIL_NS)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(
                stream,
                self.channels.endpoints,
                spec,
                self.stop,
                **window_options(settings),
                rate=settings.rate or 0.0,
            )
            first = self._mark(running, warmup_ns)
            last = self._mark(running, duration_ns)
            counts = running.result()
        (received,) = self.channels.finish(counts.sent)
        return self._report(counts) | {
            "messages": last[1] - first[1],
            "elapsed_ns": last[0] - first[0],
            "lost": received["lost"],
            "reordered": received["reordered"],
        }

    def _mark(self, running: Future[Counts], after_ns: int) -> tuple[int, int]:
        """(time, messages completed), after this time or when the stream has ended."""
        wait([running], after_ns / 1e9)
        return time.monotonic_ns(), self.stop.done

    def _report(self, counts: Counts) -> Report:
        return {
            "traffic": self.flow.traffic,
            "source": self.flow.source,
            "target": self.flow.target,
            "bytes": self.flow.generator.settings.size_bytes,
            "messages": counts.received,
            "elapsed_ns": counts.elapsed_ns,
            "lost": counts.lost,
            "reordered": counts.reordered,
            "stopped": counts.stopped,
            "error": counts.error,
            "endpoint": self.channels.descriptions[0][0],
        }


def to_sparse(histogram: Histogram) -> Report:
    """A histogram as plain values."""
    keys, counts, low, high, total = histogram.to_sparse()
    return {"keys": keys.tolist(), "counts": counts.tolist(), "min": low, "max": high, "sum": total}


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
