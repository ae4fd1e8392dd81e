"""`weft doctor`: what this machine can and cannot do, why, and what to do about it."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from weft import __version__
from weft.errors import InputError
from weft.host import Examination, Finding, Memory, examine
from weft.host.machine.kernel_files import format_cpu_list
from weft.host.machine.noise import HostNoise, sum_gaps_ns
from weft.host.machine.transports import OPERATIONS, Transport, is_remote, list_transports
from weft.records.record_text import format_table
from weft.units import format_value

WIDTH = 100
PAGES = {"2M": "2 MiB pages", "thp": "transparent huge pages", "4K": "4 KiB pages"}
_MOST_BYTES = 2**60  # libfabric says 2^64 - 1 for "no limit"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "doctor",
        help="what this machine can and cannot do, and why",
        description="Clock, processors, memory, noise, devices and transports of this host, what "
        "spoils measurements and how to mend it. Status 1 if there is nothing to measure over.",
    )
    command.add_argument(
        "--seconds", type=float, default=1.0, metavar="N", help="how long to watch the noise, 1"
    )
    command.add_argument(
        "--providers", action="store_true", help="only the transports, with all they say"
    )
    command.add_argument("--json", action="store_true")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not 0 < args.seconds <= 60:
        raise InputError("--seconds", f"{args.seconds:g} is not in (0, 60]", "use such a time")
    found = list_transports()
    usable = any(transport.available and is_remote(transport) for transport in found)
    if args.providers:
        print(_providers_json(found) if args.json else "\n".join(_providers(found)))
    else:
        host = examine(args.seconds)
        print(_json(host, found, usable) if args.json else "\n".join(_page(host, found)))
    return 0 if usable else 1


# ---- For people -------------------------------------------------------------------------------


def _page(host: Examination, found: Sequence[Transport]) -> Iterator[str]:
    yield f"weft {__version__} on {host.host}, {host.kernel}"
    yield from ("", "HOST")
    yield from _labelled([*_clock(host), *_processor(host), *_memory(host), *_noise(host)])
    yield from ("", "RDMA DEVICES", _indented(_rdma_table(host)))
    yield from ("", "INTERFACES", _indented(_interface_table(host)))
    yield from ("", "TRANSPORTS", *_transports(found))
    findings = host.findings()
    yield from ("", "TO MEND" if findings else "TO MEND: nothing found")
    for finding in findings:
        yield from _finding(finding)


def _labelled(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for label, value in pairs:
        yield from _wrapped(value, f"  {label:<14}")


def _wrapped(text: str, head: str) -> list[str]:
    """The text beside its head; further lines are indented as far."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indented(text: str) -> str:
    return textwrap.indent(text, "  ")


def _clock(host: Examination) -> Iterator[tuple[str, str]]:
    clock = host.clock
    yield (
        "clock",
        f"{clock.source}, {clock.hz / 1e9:.6f} GHz ± {clock.error_ppm:.2f} ppm, "
        f"steps of {clock.step_ns:.1f} ns, {clock.read_ns:.1f} ns per reading",
    )
    yield "invariant", f"{'yes' if clock.invariant else 'NO'}: {clock.reason}"


def _processor(host: Examination) -> Iterator[tuple[str, str]]:
    cpus = host.processors
    kind = ", virtual machine" if cpus.virtual else ""
    yield (
        "processor",
        f"{cpus.model}, {_count(len(cpus.cores), 'core')}, {_count(len(cpus.online), 'CPU')}{kind}",
    )
    limit = "" if cpus.cpu_limit is None else f", {cpus.cpu_limit:g} CPUs' worth of time"
    yield "may use", f"CPUs {format_cpu_list(cpus.allowed)}{limit}"
    if cpus.isolated:
        yield "isolated", f"CPUs {format_cpu_list(cpus.isolated)}"
    for node, numbers in cpus.nodes.items():
        yield f"NUMA node {node}", f"CPUs {format_cpu_list(numbers)}"
    governors = [
        f"{name} on CPUs {format_cpu_list(on)}" for name, on in sorted(cpus.governors.items())
    ]
    yield "governor", "; ".join(governors) or "not set by this kernel (usual in virtual machines)"


def _memory(host: Examination) -> Iterator[tuple[str, str]]:
    memory = host.memory
    limit = memory.cgroup_limit_bytes
    limited = "" if limit is None else f", cgroup limit {_size(limit)}"
    yield (
        "memory",
        f"{_size(memory.total_bytes)}, {_size(memory.available_bytes)} available{limited}",
    )
    yield (
        "huge pages",
        f"2 MiB: {memory.huge_free} of {memory.huge_total} free; "
        f"transparent: {memory.transparent or 'not in this kernel'}; "
        f"a message buffer gets {PAGES[host.pages]} now",
    )
    yield "memlock", _memlock(memory)


def _memlock(memory: Memory) -> str:
    if memory.memlock_bytes is None:
        return "unlimited"
    more = "; this process may lock more (CAP_IPC_LOCK)" if memory.may_exceed_memlock else ""
    return f"{_size(memory.memlock_bytes)} may be locked for RDMA{more}"


def _noise(host: Examination) -> Iterator[tuple[str, str]]:
    noise = host.noise
    longest = f", at most {format_value(noise.gaps.max, 'ps')} at once" if noise.gaps.count else ""
    yield (
        "noise",
        f"CPU {noise.cpu} for {noise.watched_ns / 1e9:.1f} s: {noise.gaps.count} hiccups over 1 µs "
        f"took {noise.lost_share:.2%} of the time{longest}; steal {noise.steal_share:.2%}",
    )
    for pair in host.distances:
        time = "not measured: a CPU was busy" if pair.p50_ps is None else _ns(pair.p50_ps)
        yield "core to core", f"CPUs {pair.cpu_a} and {pair.cpu_b} ({pair.relation}): {time}"


def _rdma_table(host: Examination) -> str:
    heads = ("device", "port", "state", "rate", "link", "node", "firmware", "driver", "PCIe")
    rows = [
        (
            device.name,
            str(port.number),
            port.state,
            port.rate,
            port.link_layer,
            _node(device.numa_node),
            device.firmware,
            device.driver,
            device.pcie,
        )
        for device in host.rdma_devices
        for port in device.ports
    ]
    return format_table(heads, rows, left=len(heads)) if rows else "none"


def _interface_table(host: Examination) -> str:
    heads = ("name", "kind", "state", "MTU", "speed", "node", "driver")
    rows = [
        (
            one.name,
            f"ipoib {one.ipoib_mode}" if one.ipoib_mode else one.kind,
            one.state,
            str(one.mtu_bytes),
            "" if one.speed_mbps is None else f"{one.speed_mbps / 1000:g} Gb/s",
            _node(one.numa_node),
            one.driver,
        )
        for one in host.interfaces
    ]
    return format_table(heads, rows, left=len(heads)) if rows else "none"


def _transports(found: Sequence[Transport]) -> Iterator[str]:
    """Those available first; the others by what keeps them away."""
    width = max((len(transport.over) for transport in found), default=0) + 4
    for transport in found:
        if transport.available:
            yield from _wrapped(_available(transport), f"  {transport.over}".ljust(width))
    for (reason, remedy), names in _missing(found).items():
        yield from _named(names, f"not available, because {reason}", width)
        yield from _wrapped(remedy, " " * width + "→ ")


def _named(names: Sequence[str], text: str, width: int) -> list[str]:
    """The text beside one name, or below several."""
    if len(names) == 1:
        return _wrapped(text, f"  {names[0]}".ljust(width))
    return [*_wrapped(", ".join(names), "  "), *_wrapped(text, " " * width)]


def _missing(found: Sequence[Transport]) -> dict[tuple[str, str], list[str]]:
    names: dict[tuple[str, str], list[str]] = {}
    for one in found:
        if not one.available:
            names.setdefault((one.reason, one.remedy), []).append(one.over)
    return names


def _available(transport: Transport) -> str:
    return "; ".join(["available", *_abilities(transport)])


def _abilities(transport: Transport) -> Iterator[str]:
    facts = transport.facts
    if "port" in facts:
        yield f"port {facts['port']}, {facts.get('link_layer', '')} {facts.get('rate', '')}"
    yield from (f"{', '.join(kinds)}: {can}" for can, kinds in _operations(transport).items())
    if 0 < transport.max_bytes < _MOST_BYTES:
        yield f"up to {_size(transport.max_bytes)}"
    if "launcher" in facts:
        yield f"{facts['library']}, under {facts['launcher']}"
    yield from (f"{name} {value}" for name, value in facts.items() if "unverified" in value)


def _operations(transport: Transport) -> dict[str, list[str]]:
    """Operations -> the endpoint kinds that have them."""
    kinds: dict[str, list[str]] = {}
    for kind in transport.endpoints:
        names = transport.facts.get(f"{kind}.operations", ", ".join(transport.operations))
        everything = set(names.split(", ")) == OPERATIONS
        kinds.setdefault("all operations" if everything else names, []).append(kind)
    return kinds


def _finding(finding: Finding) -> Iterator[str]:
    yield from _wrapped(finding.what, "  ! ")
    yield from _wrapped(f"{finding.effect}", "    ")
    yield from _wrapped(finding.remedy, "    → ")


def _providers(found: Sequence[Transport]) -> Iterator[str]:
    """Each transport with its facts, those of one endpoint kind ("rdm.protocol") together."""
    for transport in found:
        yield from _transports([transport])
        group = ""
        for name, value in sorted(transport.facts.items(), key=lambda fact: ("." in fact[0], fact)):
            kind, dot, key = name.rpartition(".")
            if kind != group:
                yield f"    {kind}"
            group = kind
            if value:
                yield f"    {'  ' if dot else ''}{key}: {value}"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _size(n: int) -> str:
    return f"{n} B" if n < 2**20 and n % 1024 else format_value(n, "B")


def _ns(ps: int) -> str:
    return f"{ps / 1000:.0f} ns"


def _node(node: int | None) -> str:
    return "" if node is None else str(node)


# ---- For machines -----------------------------------------------------------------------------


def _json(host: Examination, found: Sequence[Transport], usable: bool) -> str:
    data = {
        "weft": __version__,
        "host": host.host,
        "kernel": host.kernel,
        "usable": usable,
        "clock": asdict(host.clock),
        "processors": asdict(host.processors),
        "memory": asdict(host.memory) | {"buffer_pages": host.pages},
        "noise": _noise_data(host.noise),
        "core_to_core": [asdict(pair) for pair in host.distances],
        "rdma_devices": [asdict(device) for device in host.rdma_devices],
        "interfaces": [asdict(interface) for interface in host.interfaces],
        "transports": [asdict(transport) for transport in found],
        "findings": [asdict(finding) for finding in host.findings()],
    }
    return json.dumps(data)


def _noise_data(noise: HostNoise) -> dict[str, int | float | None]:
    some = noise.gaps.count > 0
    return {
        "cpu": noise.cpu,
        "watched_ns": noise.watched_ns,
        "hiccups": noise.gaps.count,
        "lost_ns": sum_gaps_ns(noise.gaps),
        "longest_ps": noise.gaps.max if some else None,
        "p50_ps": noise.gaps.quantile(0.5) if some else None,
        "steal_ns": noise.steal_ns,
    }


def _providers_json(found: Sequence[Transport]) -> str:
    return json.dumps([asdict(transport) for transport in found])
