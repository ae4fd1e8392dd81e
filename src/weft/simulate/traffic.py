"""Traffic: who sends what to whom, as flows of the simulator's core.

Each `[[traffic]]` table has a kind; each kind is one function from its table to flows. Hosts are
named one by one, as a range `h0..h4`, or `all`; a recorded trace is CSV with the columns time_ns,
from, to, bytes. Entry point: `read_traffic`. Units: ps, bytes, bits per second.
"""

from __future__ import annotations

import csv
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft._core import Estimator, FlowList, FlowSpec, Op, Pattern, Transport
from weft.errors import InputError
from weft.fabric import Fabric
from weft.simulate.workload.operations import MAX_RANKS, Operations
from weft.simulate.workload.scenario_workloads import (
    PlacedWorkload,
    Volume,
    place_ranks,
    place_workload,
    read_collective,
    read_file,
    read_name,
)
from weft.toml_table import Table
from weft.units import parse_time


def parse_hosts(fabric: Fabric, names: Sequence[str], place: str) -> list[int]:
    """Host numbers of names; "h0..h4" is a range in the fabric's order, "all" every host."""
    order = number_hosts(fabric)
    hosts: list[int] = []
    for name in names:
        if name == "all":
            hosts += order.values()
        elif ".." in name:
            first, last = (find_host(order, n, place) for n in name.split("..", 1))
            if last < first:
                raise InputError(place, f"{name!r} is an empty range", "put the lower host first")
            hosts += range(first, last + 1)
        else:
            hosts.append(find_host(order, name, place))
    if not hosts:
        raise InputError(place, "names no host", "name at least one")
    return hosts


def number_hosts(fabric: Fabric) -> dict[str, int]:
    """The number of each host, by name."""
    return {fabric.nodes[node].name: i for i, node in enumerate(fabric.hosts)}


def find_host(order: dict[str, int], name: str, place: str) -> int:
    if name not in order:
        some = list(order)
        examples = ", ".join(some[:3]) + (f" … {some[-1]}" if len(some) > 3 else "")
        raise InputError(place, f"{name!r} is not a host of the fabric", f"hosts are {examples}")
    return order[name]


def read_trace(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    columns = ["time_ns", "from", "to", "bytes"]
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if reader.fieldnames != columns:
                raise InputError(
                    f"{path} line 1", f"columns are {reader.fieldnames}", f"use {','.join(columns)}"
                )
            for row in reader:
                if None in row.values() or None in row:
                    raise InputError(
                        f"{path} line {reader.line_num}", "has not 4 fields", "fill it"
                    )
                yield reader.line_num, row
    except OSError as error:
        raise InputError(str(path), error.strerror or str(error), "check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(
            str(path), f"byte {error.start} is not UTF-8", "save it as UTF-8"
        ) from error


def parse_trace_number(row: dict[str, str], key: str, scale: int, place: str) -> int:
    try:
        value = round(float(row[key]) * scale)
    except (ValueError, OverflowError):
        value = -1
    if not 0 <= value < 2**60:
        raise InputError(place, f"{key} is {row[key]!r}", "use a number, 0 or more")
    return value


MTUS = (256, 512, 1024, 2048, 4096)
MAX_SIZE = 2**40
MAX_MESSAGES = 2**40
MAX_WINDOW = 2**20
NEVER_PS = 2**62

TRANSPORTS = {"rc": Transport.RC, "uc": Transport.UC, "ud": Transport.UD}
OPERATIONS = {
    "send": Op.SEND,
    "write": Op.WRITE,
    "write-with-imm": Op.WRITE_WITH_IMM,
    "read": Op.READ,
}
ESTIMATORS = {
    "completion": Estimator.COMPLETION,
    "ping-pong": Estimator.PING_PONG,
    "rperf": Estimator.RPERF_WIRE_FIRST,
    "rperf-loopback-first": Estimator.RPERF_LOOPBACK_FIRST,
    "rperf-alternating": Estimator.RPERF_ALTERNATING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Flows whose samples share one name."""

    name: str
    flows: FlowList
    workload: PlacedWorkload | None = None  # posts the messages of the flows


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One entry of a scenario's traffic."""

    name: str
    parts: tuple[Part, ...]

    @property
    def largest_packet_bytes(self) -> int:
        return max((part.flows.largest_packet_bytes for part in self.parts), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What a kind needs besides its table."""

    fabric: Fabric
    random: random.Random
    think_ps: int
    base: Path
    name: str
    names: Sequence[str]  # of all traffic, in the scenario's order


def read_traffic(
    table: Table, fabric: Fabric, *, seed: int, think_ps: int, base: Path, names: Sequence[str]
) -> Traffic:
    """One `[[traffic]]` table as flows; `names` are those of all tables."""
    name = read_name(table)
    kind = table.choice("kind", KINDS)
    context = _Context(
        fabric=fabric,
        random=random.Random(f"{seed} {name}"),
        think_ps=think_ps,
        base=base,
        name=name,
        names=names,
    )
    parts = tuple(kind(table, context))
    table.done()
    return Traffic(name=name, parts=parts)


# ---- Hosts ------------------------------------------------------------------------------------


Pairs = tuple[NDArray[np.int32], NDArray[np.int32]]  # sources and their targets


def _read_pairs(table: Table, context: _Context) -> Pairs:
    """Every sender with every receiver, except a host with itself."""
    senders = parse_hosts(context.fabric, table.texts("from"), table.place("from"))
    receivers = parse_hosts(context.fabric, table.texts("to"), table.place("to"))
    sources, targets = _pair_all(senders, receivers)
    if not len(sources):
        raise InputError(table.place("to"), "every receiver is its own sender", "name another host")
    return sources, targets


def _pair_all(senders: Sequence[int], receivers: Sequence[int]) -> Pairs:
    """Every sender with every receiver in turn, except a host with itself."""
    sources = np.repeat(np.array(senders, dtype=np.int32), len(receivers))
    targets = np.tile(np.array(receivers, dtype=np.int32), len(senders))
    differ = sources != targets
    return sources[differ], targets[differ]


def _read_group(table: Table, context: _Context, least: int) -> list[int]:
    hosts = parse_hosts(context.fabric, table.texts("hosts", "all"), table.place("hosts"))
    times = Counter(hosts)
    for host in hosts:
        if times[host] > 1:
            name = context.fabric.nodes[context.fabric.hosts[host]].name
            raise InputError(table.place("hosts"), f"{name!r} is named twice", "name each once")
    if len(hosts) < least:
        raise InputError(table.place("hosts"), f"{len(hosts)} is too few", f"use {least} or more")
    return hosts


# ---- What all kinds share ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Common:
    size_bytes: int
    mtu: int
    sl: int
    transport: Transport
    op: Op
    ack_every: int
    ack_bytes: int
    start_ps: int
    stop_ps: int
    stops_with: int
    allow_inline: bool


def _read_common(
    table: Table, context: _Context, *, size: str | None = None, without: Sequence[str] = ()
) -> _Common:
    """The keys that kinds share, except those in `without`, which this kind lacks."""

    def has(key: str) -> bool:
        return key not in without

    size_bytes = (
        table.size_bytes("size", 1, MAX_SIZE, *([size] if size else [])) if has("size") else 1
    )
    mtu = table.integer("mtu", 1, 2**31, 4096)
    if mtu not in MTUS:
        allowed = ", ".join(map(str, MTUS))
        raise InputError(table.place("mtu"), f"{mtu} is not an InfiniBand MTU", f"use {allowed}")
    transport = table.choice("transport", TRANSPORTS, "rc") if has("transport") else Transport.RC
    op = table.choice("operation", OPERATIONS, "send") if has("operation") else Op.SEND
    _check_combination(table.place("transport"), transport, op, size_bytes, mtu)
    start = table.time_ps("start", 0)
    stop, stops_with = _read_stop(table, context, start) if has("stop") else (NEVER_PS, -1)
    return _Common(
        size_bytes=size_bytes,
        mtu=mtu,
        sl=table.integer("sl", 0, 15, 0),
        transport=transport,
        op=op,
        ack_every=table.integer("ack_every", 0, 2**20, 1),
        ack_bytes=table.size_bytes("ack_size", 1, 4096, 0),
        start_ps=start,
        stop_ps=stop,
        stops_with=stops_with,
        allow_inline=table.flag("inline", True) if has("inline") else True,
    )


def _read_stop(table: Table, context: _Context, start_ps: int) -> tuple[int, int]:
    """When the traffic stops: a time, or the number of the traffic whose end stops it, or -1."""
    place, value = table.place("stop"), table.raw("stop", None)
    names = [name for name in context.names if name != context.name]
    if value in names:
        return NEVER_PS, context.names.index(value)
    if isinstance(value, str) and not value[:1].isdigit():
        remedy = f"write a time such as '5 ms', or the name of other traffic: {', '.join(names)}"
        raise InputError(place, f"{value!r} is neither a time nor other traffic", remedy)
    stop_ps = NEVER_PS if value is None else parse_time(value, place)
    if stop_ps <= start_ps:
        raise InputError(place, "is not after start", "stop later")
    return stop_ps, -1


def _check_combination(place: str, transport: Transport, op: Op, size: int, mtu: int) -> None:
    if transport == Transport.UD and op != Op.SEND:
        raise InputError(place, "ud has only send", "use operation = send, or rc")
    if transport == Transport.UC and op == Op.READ:
        raise InputError(place, "uc has no read", "use rc")
    if transport == Transport.UD and size > mtu:
        raise InputError(place, f"a ud message of {size} B exceeds the MTU {mtu} B", "use rc or uc")


def _new_flow(shared: _Common, pattern: Pattern) -> FlowSpec:
    """A flow without its hosts."""
    flow = FlowSpec()
    flow.pattern = pattern
    for key in _Common.__slots__:
        setattr(flow, key, getattr(shared, key))
    return flow


def _copy_flow(like: FlowSpec, src: int, dst: int) -> FlowSpec:
    flow = FlowSpec(like)
    flow.src, flow.dst = src, dst
    return flow


def _one_part(context: _Context, flows: Iterable[FlowSpec]) -> Iterator[Part]:
    yield Part(name=context.name, flows=FlowList(flows))


def _equal_flows(context: _Context, like: FlowSpec, pairs: Pairs) -> Iterator[Part]:
    """A part of one flow per pair, all alike."""
    flows = FlowList()
    flows.add(like, *pairs)
    yield Part(name=context.name, flows=flows)


# ---- Kinds ------------------------------------------------------------------------------------


def _read_bandwidth(
    table: Table, context: _Context, *, size: str | None = None, window: int = 64, batch: int = 1
) -> Iterator[Part]:
    """Streams: each keeps `window` messages outstanding, as fast as the fabric takes them."""
    shared = _read_common(table, context, size=size)
    window = table.integer("window", 1, MAX_WINDOW, window)
    batch = table.integer("batch", 1, MAX_WINDOW, batch)
    rate = table.rate_bps("rate", 0.0)
    messages = table.integer("messages", 1, MAX_MESSAGES, -1)
    flow = _new_flow(shared, Pattern.STREAM)
    flow.window, flow.batch, flow.rate_bps, flow.messages = window, batch, rate, messages
    return _equal_flows(context, flow, _read_pairs(table, context))


def _read_pretend(table: Table, context: _Context) -> Iterator[Part]:
    """A bandwidth generator that poses as latency-sensitive: small, batched messages."""
    return _read_bandwidth(table, context, size="256 B", window=128, batch=16)


def _read_latency(table: Table, context: _Context) -> Iterator[Part]:
    """Closed loop: one message at a time, each timed."""
    shared = _read_common(table, context, size="64 B")
    estimator = table.choice("estimator", ESTIMATORS, "completion")
    if shared.transport != Transport.RC and estimator != Estimator.PING_PONG:
        raise InputError(
            table.place("transport"), "has no acknowledgement to time", "use rc or ping-pong"
        )
    if shared.op != Op.SEND and estimator != Estimator.COMPLETION:
        raise InputError(
            table.place("estimator"), "times a send only", "use operation = send, or completion"
        )
    think = table.time_ps("think", context.think_ps)
    messages = table.integer("messages", 1, MAX_MESSAGES, -1)
    probe = _new_probe(shared, estimator, think, messages)
    return _equal_flows(context, probe, _read_pairs(table, context))


def _new_probe(shared: _Common, estimator: Estimator, think: int, messages: int) -> FlowSpec:
    flow = _new_flow(shared, Pattern.PROBE)
    flow.estimator, flow.think_ps, flow.messages = estimator, think, messages
    return flow


def _read_estimators(table: Table, context: _Context) -> Iterator[Part]:
    """RPerf, qperf's post-poll and perftest's ping-pong on the same path, one after the other."""
    shared = _read_common(
        table, context, size="64 B", without=("operation", "transport", "stop", "inline")
    )
    slice_ps = table.time_ps("slice", low=1)
    sources, targets = _read_pairs(table, context)
    if len(sources) > 1:
        raise InputError(table.place("from"), "names more than one pair", "name one host each")
    runs = (
        ("rperf", Estimator.RPERF_WIRE_FIRST, Op.SEND, True),
        ("rperf_loopback_first", Estimator.RPERF_LOOPBACK_FIRST, Op.SEND, True),
        ("post_poll", Estimator.COMPLETION, Op.WRITE, False),
        ("ping_pong", Estimator.PING_PONG, Op.SEND, True),
    )
    for number, (name, estimator, op, inline) in enumerate(runs):
        flow = _new_probe(shared, estimator, context.think_ps, -1)
        flow.src, flow.dst = int(sources[0]), int(targets[0])
        flow.op, flow.allow_inline = op, inline
        flow.start_ps = shared.start_ps + number * slice_ps
        flow.stop_ps = flow.start_ps + slice_ps
        yield Part(name=f"{context.name}.{name}", flows=FlowList([flow]))


def _read_paced(table: Table, context: _Context) -> Iterator[Part]:
    """Open loop at a given pace; latency counts from the intended time."""
    shared = _read_common(table, context, size="64 B")
    interval = table.time_ps("interval", low=1)
    poisson = table.choice("arrivals", {"fixed": False, "poisson": True}, "fixed")
    messages = table.integer("messages", 1, MAX_MESSAGES, -1)
    flow = _new_flow(shared, Pattern.PACED)
    flow.interval_ps, flow.poisson, flow.messages = interval, poisson, messages
    return _equal_flows(context, flow, _read_pairs(table, context))


def _read_incast(table: Table, context: _Context) -> Iterator[Part]:
    """Every sender sends `messages` messages to one receiver at the same time."""
    shared = _read_common(table, context)
    messages = table.integer("messages", 1, MAX_MESSAGES, 1)
    sources, targets = _read_pairs(table, context)
    if (targets != targets[0]).any():
        raise InputError(table.place("to"), "names more than one receiver", "an incast has one")
    return _equal_flows(context, _new_finite_stream(shared, messages), (sources, targets))


def _new_finite_stream(shared: _Common, messages: int = 1) -> FlowSpec:
    flow = _new_flow(shared, Pattern.STREAM)
    flow.messages, flow.window = messages, min(messages, 64)
    return flow


def _read_permutation(table: Table, context: _Context) -> Iterator[Part]:
    """Every host sends to one other and receives from one other: a random derangement."""
    shared = _read_common(table, context)
    hosts = _read_group(table, context, 2)
    messages = table.integer("messages", 1, MAX_MESSAGES, 1)
    pairs = np.array(hosts, np.int32), np.array(derangement(hosts, context.random), np.int32)
    return _equal_flows(context, _new_finite_stream(shared, messages), pairs)


def derangement(items: Sequence[int], rng: random.Random) -> list[int]:
    """A uniform random permutation that leaves no item in place."""
    while True:
        shuffled = list(items)
        rng.shuffle(shuffled)
        if all(a != b for a, b in zip(items, shuffled, strict=True)):
            return shuffled


def _read_random_peers(table: Table, context: _Context) -> Iterator[Part]:
    """Every host sends `messages` messages, each to a peer chosen at random."""
    shared = _read_common(table, context)
    hosts = _read_group(table, context, 2)
    messages = table.integer("messages", 1, 10**6, 1)
    flows = []
    for src in hosts:
        counts: dict[int, int] = defaultdict(int)
        for _ in range(messages):
            dst = context.random.choice(hosts)
            while dst == src:
                dst = context.random.choice(hosts)
            counts[dst] += 1
        flows += [_copy_flow(_new_finite_stream(shared, n), src, dst) for dst, n in counts.items()]
    return _one_part(context, flows)


def _read_shuffle(table: Table, context: _Context) -> Iterator[Part]:
    """All to all: every host sends one message to every other."""
    shared = _read_common(table, context)
    hosts = _read_group(table, context, 2)
    return _equal_flows(context, _new_finite_stream(shared), _pair_all(hosts, hosts))


def _read_allreduce(table: Table, context: _Context) -> Iterator[Part]:
    """Ring all-reduce of `size` bytes: 2(n-1) steps of size/n, each when the last has arrived."""
    shared = _read_common(table, context)
    hosts = _read_group(table, context, 2)
    n = len(hosts)
    flows = []
    for i, src in enumerate(hosts):
        flow = _copy_flow(_new_flow(shared, Pattern.TRIGGERED), src, hosts[(i + 1) % n])
        flow.size_bytes = max(1, shared.size_bytes // n)
        flow.messages, flow.initial_triggers = 2 * (n - 1), 1
        flow.triggers = (i + 1) % n  # within this part; the run adds where the part starts
        flows.append(flow)
    return _one_part(context, flows)


def _read_replay(table: Table, context: _Context) -> Iterator[Part]:
    """A recorded trace: CSV with the columns time_ns, from, to, bytes."""
    shared = _read_common(table, context, without=("size", "stop"))
    path = context.base / table.text("file")
    order = number_hosts(context.fabric)
    times: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for line, row in read_trace(path):
        place = f"{path} line {line}"
        src, dst = (find_host(order, row[key], place) for key in ("from", "to"))
        if src == dst:
            raise InputError(place, "sends to itself", "name another host")
        ps, size = (
            parse_trace_number(row, "time_ns", 1000, place),
            parse_trace_number(row, "bytes", 1, place),
        )
        if size < 1:
            raise InputError(place, "bytes is 0", "use 1 or more")
        _check_combination(place, shared.transport, shared.op, size, shared.mtu)
        times[src, dst].append((shared.start_ps + ps, size))
    if not times:
        raise InputError(str(path), "holds no messages", "add lines below the heading")
    flows = []
    for (src, dst), messages in times.items():
        messages.sort()
        flow = _copy_flow(_new_flow(shared, Pattern.SCHEDULE), src, dst)
        flow.schedule = messages
        flow.messages = len(messages)
        flows.append(flow)
    return _one_part(context, flows)


@dataclass(frozen=True, slots=True)
class _Slots:
    """Hosts in the order in which ranks fill them, and how many ranks each takes."""

    hosts: list[int]
    ranks_per_host: int

    @property
    def ranks(self) -> int:
        return len(self.hosts) * self.ranks_per_host


def _read_slots(table: Table, context: _Context) -> _Slots:
    hosts = _read_group(table, context, 1)
    if table.choice("placement", {"in-order": False, "random": True}, "in-order"):
        context.random.shuffle(hosts)
    return _Slots(hosts, table.integer("ranks_per_host", 1, MAX_RANKS, 1))


def _read_workload(table: Table, context: _Context) -> Iterator[Part]:
    """Operations of a GOAL file, each posted when what it waits for has ended."""
    shared = _read_common(table, context, without=("size", "stop"))
    slots = _read_slots(table, context)
    operations = read_file(table, context.base)
    return _place(table, context, shared, slots, operations)


def _read_collective(table: Table, context: _Context) -> Iterator[Part]:
    """A collective by a named algorithm, so many times in a row."""
    shared = _read_common(table, context, without=("operation", "stop"))
    slots = _read_slots(table, context)
    operations, volume = read_collective(
        table, shared.size_bytes, slots.ranks, slots.ranks_per_host
    )
    return _place(table, context, shared, slots, operations, volume)


def _place(
    table: Table,
    context: _Context,
    shared: _Common,
    slots: _Slots,
    operations: Operations,
    volume: Volume | None = None,
) -> Iterator[Part]:
    """The workload on its hosts, with a flow for each pair of hosts that talk."""
    if shared.op == Op.READ:
        raise InputError(table.place("operation"), "a read sends nothing", "use send or write")
    placed = place_ranks(operations.ranks, slots.hosts, slots.ranks_per_host, table.place("hosts"))
    workload = place_workload(operations, placed, shared.start_ps, volume)
    largest = workload.largest_message_bytes
    _check_combination(table.place("transport"), shared.transport, shared.op, largest, shared.mtu)
    template = _new_flow(replace(shared, size_bytes=max(largest, 1)), Pattern.WORKLOAD)
    flows = FlowList()
    pairs = zip(workload.pairs.tolist(), workload.messages.tolist(), strict=True)
    for (src, dst), messages in pairs:
        flow = _copy_flow(template, src, dst)
        flow.messages = messages
        flows.append(flow)
    yield Part(name=context.name, flows=flows, workload=workload)


KINDS: dict[str, Callable[[Table, _Context], Iterator[Part]]] = {
    "bandwidth": _read_bandwidth,
    "latency": _read_latency,
    "paced": _read_paced,
    "pretend": _read_pretend,
    "estimators": _read_estimators,
    "incast": _read_incast,
    "permutation": _read_permutation,
    "random": _read_random_peers,
    "shuffle": _read_shuffle,
    "allreduce": _read_allreduce,
    "replay": _read_replay,
    "workload": _read_workload,
    "collective": _read_collective,
}
