"""Traffic: who sends what to whom, as flows of the simulator's core.

Each `[[traffic]]` table has a kind; each kind is one function from its table to flows. Hosts are
named one by one, as a range `h0..h4`, or `all`; a recorded trace is CSV with the columns time_ns,
from, to, bytes. Entry point: `read_traffic`. Units: ps, bytes, bits per second.
"""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft._core import Estimator, FlowSpec, Op, Pattern, Transport, largest_header
from weft.errors import InputError
from weft.fabric import Fabric
from weft.toml_table import Table


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
    flows: tuple[FlowSpec, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One entry of a scenario's traffic."""

    name: str
    parts: tuple[Part, ...]
    largest_packet_bytes: int

    @property
    def flows(self) -> tuple[FlowSpec, ...]:
        return tuple(flow for part in self.parts for flow in part.flows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What a kind needs besides its table."""

    fabric: Fabric
    random: random.Random
    think_ps: int
    base: Path
    name: str


def read_traffic(table: Table, fabric: Fabric, *, seed: int, think_ps: int, base: Path) -> Traffic:
    """One `[[traffic]]` table as flows."""
    name = table.text("name")
    if not name or any(c in name for c in ". \t\n"):
        raise InputError(table.place("name"), f"{name!r} cannot be a name", "no dots or spaces")
    kind = table.choice("kind", KINDS)
    context = _Context(
        fabric=fabric,
        random=random.Random(f"{seed} {name}"),
        think_ps=think_ps,
        base=base,
        name=name,
    )
    parts = tuple(kind(table, context))
    table.done()
    largest = max((_largest_packet(flow) for part in parts for flow in part.flows), default=0)
    return Traffic(name=name, parts=parts, largest_packet_bytes=largest)


def _largest_packet(flow: FlowSpec) -> int:
    payload = min(flow.mtu, max([flow.size_bytes, *flow.schedule_sizes_bytes]))
    words = -(-payload // 4) * 4
    return max(words + largest_header(flow.transport, flow.op), flow.ack_bytes)


# ---- Hosts ------------------------------------------------------------------------------------


def _read_pairs(table: Table, context: _Context) -> list[tuple[int, int]]:
    """Every sender with every receiver, except a host with itself."""
    senders = parse_hosts(context.fabric, table.texts("from"), table.place("from"))
    receivers = parse_hosts(context.fabric, table.texts("to"), table.place("to"))
    pairs = [(s, r) for s in senders for r in receivers if s != r]
    if not pairs:
        raise InputError(table.place("to"), "every receiver is its own sender", "name another host")
    return pairs


def _read_group(table: Table, context: _Context, least: int) -> list[int]:
    hosts = parse_hosts(context.fabric, table.texts("hosts", "all"), table.place("hosts"))
    for host in hosts:
        if hosts.count(host) > 1:
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
    allow_inline: bool


def _read_common(table: Table, *, size: str | None = None, without: Sequence[str] = ()) -> _Common:
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
    stop = table.time_ps("stop", NEVER_PS) if has("stop") else NEVER_PS
    if stop <= start:
        raise InputError(table.place("stop"), "is not after start", "stop later")
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
        allow_inline=table.flag("inline", True) if has("inline") else True,
    )


def _check_combination(place: str, transport: Transport, op: Op, size: int, mtu: int) -> None:
    if transport == Transport.UD and op != Op.SEND:
        raise InputError(place, "ud has only send", "use operation = send, or rc")
    if transport == Transport.UC and op == Op.READ:
        raise InputError(place, "uc has no read", "use rc")
    if transport == Transport.UD and size > mtu:
        raise InputError(place, f"a ud message of {size} B exceeds the MTU {mtu} B", "use rc or uc")


def _new_flow(shared: _Common, src: int, dst: int, pattern: Pattern) -> FlowSpec:
    flow = FlowSpec()
    flow.src, flow.dst, flow.pattern = src, dst, pattern
    for key in _Common.__slots__:
        setattr(flow, key, getattr(shared, key))
    return flow


def _one_part(context: _Context, flows: Sequence[FlowSpec]) -> Iterator[Part]:
    yield Part(name=context.name, flows=tuple(flows))


# ---- Kinds ------------------------------------------------------------------------------------


def _read_bandwidth(
    table: Table, context: _Context, *, size: str | None = None, window: int = 64, batch: int = 1
) -> Iterator[Part]:
    """Streams: each keeps `window` messages outstanding, as fast as the fabric takes them."""
    shared = _read_common(table, size=size)
    window = table.integer("window", 1, MAX_WINDOW, window)
    batch = table.integer("batch", 1, MAX_WINDOW, batch)
    rate = table.rate_bps("rate", 0.0)
    messages = table.integer("messages", 1, MAX_MESSAGES, -1)
    flows = []
    for src, dst in _read_pairs(table, context):
        flow = _new_flow(shared, src, dst, Pattern.STREAM)
        flow.window, flow.batch, flow.rate_bps, flow.messages = window, batch, rate, messages
        flows.append(flow)
    return _one_part(context, flows)


def _read_pretend(table: Table, context: _Context) -> Iterator[Part]:
    """A bandwidth generator that poses as latency-sensitive: small, batched messages."""
    return _read_bandwidth(table, context, size="256 B", window=128, batch=16)


def _read_latency(table: Table, context: _Context) -> Iterator[Part]:
    """Closed loop: one message at a time, each timed."""
    shared = _read_common(table, size="64 B")
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
    return _one_part(
        context,
        [
            _new_probe(shared, src, dst, estimator, think, messages)
            for src, dst in _read_pairs(table, context)
        ],
    )


def _new_probe(
    shared: _Common, src: int, dst: int, estimator: Estimator, think: int, messages: int
) -> FlowSpec:
    flow = _new_flow(shared, src, dst, Pattern.PROBE)
    flow.estimator, flow.think_ps, flow.messages = estimator, think, messages
    return flow


def _read_estimators(table: Table, context: _Context) -> Iterator[Part]:
    """RPerf, qperf's post-poll and perftest's ping-pong on the same path, one after the other."""
    shared = _read_common(table, size="64 B", without=("operation", "transport", "stop", "inline"))
    slice_ps = table.time_ps("slice", low=1)
    ((src, dst), *more_pairs) = _read_pairs(table, context)
    if more_pairs:
        raise InputError(table.place("from"), "names more than one pair", "name one host each")
    runs = (
        ("rperf", Estimator.RPERF_WIRE_FIRST, Op.SEND, True),
        ("rperf_loopback_first", Estimator.RPERF_LOOPBACK_FIRST, Op.SEND, True),
        ("post_poll", Estimator.COMPLETION, Op.WRITE, False),
        ("ping_pong", Estimator.PING_PONG, Op.SEND, True),
    )
    for number, (name, estimator, op, inline) in enumerate(runs):
        flow = _new_probe(shared, src, dst, estimator, context.think_ps, -1)
        flow.op, flow.allow_inline = op, inline
        flow.start_ps = shared.start_ps + number * slice_ps
        flow.stop_ps = flow.start_ps + slice_ps
        yield Part(name=f"{context.name}.{name}", flows=(flow,))


def _read_paced(table: Table, context: _Context) -> Iterator[Part]:
    """Open loop at a given pace; latency counts from the intended time."""
    shared = _read_common(table, size="64 B")
    interval = table.time_ps("interval", low=1)
    poisson = table.choice("arrivals", {"fixed": False, "poisson": True}, "fixed")
    messages = table.integer("messages", 1, MAX_MESSAGES, -1)
    flows = []
    for src, dst in _read_pairs(table, context):
        flow = _new_flow(shared, src, dst, Pattern.PACED)
        flow.interval_ps, flow.poisson, flow.messages = interval, poisson, messages
        flows.append(flow)
    return _one_part(context, flows)


def _read_incast(table: Table, context: _Context) -> Iterator[Part]:
    """Every sender sends `messages` messages to one receiver at the same time."""
    shared = _read_common(table)
    messages = table.integer("messages", 1, MAX_MESSAGES, 1)
    pairs = _read_pairs(table, context)
    if len({dst for _, dst in pairs}) != 1:
        raise InputError(table.place("to"), "names more than one receiver", "an incast has one")
    return _one_part(context, [_new_finite_stream(shared, s, d, messages) for s, d in pairs])


def _new_finite_stream(shared: _Common, src: int, dst: int, messages: int = 1) -> FlowSpec:
    flow = _new_flow(shared, src, dst, Pattern.STREAM)
    flow.messages, flow.window = messages, min(messages, 64)
    return flow


def _read_permutation(table: Table, context: _Context) -> Iterator[Part]:
    """Every host sends to one other and receives from one other: a random derangement."""
    shared = _read_common(table)
    hosts = _read_group(table, context, 2)
    messages = table.integer("messages", 1, MAX_MESSAGES, 1)
    targets = derangement(hosts, context.random)
    flows = [
        _new_finite_stream(shared, s, d, messages) for s, d in zip(hosts, targets, strict=True)
    ]
    return _one_part(context, flows)


def derangement(items: Sequence[int], rng: random.Random) -> list[int]:
    """A uniform random permutation that leaves no item in place."""
    while True:
        shuffled = list(items)
        rng.shuffle(shuffled)
        if all(a != b for a, b in zip(items, shuffled, strict=True)):
            return shuffled


def _read_random_peers(table: Table, context: _Context) -> Iterator[Part]:
    """Every host sends `messages` messages, each to a peer chosen at random."""
    shared = _read_common(table)
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
        flows += [_new_finite_stream(shared, src, dst, n) for dst, n in counts.items()]
    return _one_part(context, flows)


def _read_shuffle(table: Table, context: _Context) -> Iterator[Part]:
    """All to all: every host sends one message to every other."""
    shared = _read_common(table)
    hosts = _read_group(table, context, 2)
    return _one_part(
        context, [_new_finite_stream(shared, s, d) for s in hosts for d in hosts if s != d]
    )


def _read_allreduce(table: Table, context: _Context) -> Iterator[Part]:
    """Ring all-reduce of `size` bytes: 2(n-1) steps of size/n, each when the last has arrived."""
    shared = _read_common(table)
    hosts = _read_group(table, context, 2)
    n = len(hosts)
    flows = []
    for i, src in enumerate(hosts):
        flow = _new_flow(shared, src, hosts[(i + 1) % n], Pattern.TRIGGERED)
        flow.size_bytes = max(1, shared.size_bytes // n)
        flow.messages, flow.initial_triggers = 2 * (n - 1), 1
        flow.triggers = (i + 1) % n  # within this part; the run adds where the part starts
        flows.append(flow)
    return _one_part(context, flows)


def _read_replay(table: Table, context: _Context) -> Iterator[Part]:
    """A recorded trace: CSV with the columns time_ns, from, to, bytes."""
    shared = _read_common(table, without=("size", "stop"))
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
        flow = _new_flow(shared, src, dst, Pattern.SCHEDULE)
        flow.schedule_times_ps = [t for t, _ in messages]
        flow.schedule_sizes_bytes = [s for _, s in messages]
        flow.messages = len(messages)
        flows.append(flow)
    return _one_part(context, flows)


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
}
