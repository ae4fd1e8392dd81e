"""`weft doctor`: what this machine can and cannot do, why, and what to do about it."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict

from weft import __version__
from weft.errors import InputError
from weft.host.machine.examination import (
    OPERATIONS,
    Examination,
    Finding,
    HostNoise,
    Memory,
    Transport,
    examine,
    is_remote,
    list_transports,
    sum_gaps_ns,
)
from weft.host.machine.kernel_files import format_cpu_list
from weft.records.record_text import format_table
from weft.units import format_count, format_setting, format_value

WIDTH = 100
PAGES = {"2M": "2 MiB pages", "thp": "transparent huge pages", "4K": "4 KiB pages"}
_UNLIMITED_BYTES = 2**60  # libfabric says 2^64 - 1 for "no limit"


def run(args: argparse.Namespace) -> int:
    if not 0 < args.seconds <= 60:
        raise InputError("--seconds", f"{args.seconds:g} is not in (0, 60]", "use such a time")
    transports = list_transports()
    usable = any(transport.available and is_remote(transport) for transport in transports)
    if args.providers:
        print(
            json.dumps([asdict(transport) for transport in transports])
            if args.json
            else "\n".join(_format_providers(transports))
        )
    else:
        host = examine(args.seconds)
        print(
            _build_json(host, transports, usable)
            if args.json
            else "\n".join(_format_page(host, transports))
        )
    return 0 if usable else 1


# ---- For people -------------------------------------------------------------------------------


def _format_page(host: Examination, transports: Sequence[Transport]) -> Iterator[str]:
    yield f"weft {__version__} on {host.host}, {host.kernel}"
    yield from ("", "HOST")
    yield from _format_labels(
        [
            *_describe_clock(host),
            *_describe_processor(host),
            *_describe_memory(host),
            *_describe_noise(host),
        ]
    )
    yield from ("", "RDMA DEVICES", _indent(_format_rdma_table(host)))
    yield from ("", "INTERFACES", _indent(_format_interface_table(host)))
    yield from ("", "TRANSPORTS", *_format_transports(transports))
    findings = host.findings()
    yield from ("", "TO FIX" if findings else "TO FIX: nothing found")
    for finding in findings:
        yield from _format_finding(finding)


def _format_labels(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for label, value in pairs:
        yield from _wrap_text(value, f"  {label:<14}")


def _wrap_text(text: str, head: str) -> list[str]:
    """The text after its head; further lines are indented below it."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indent(text: str) -> str:
    return textwrap.indent(text, "  ")


def _describe_clock(host: Examination) -> Iterator[tuple[str, str]]:
    clock = host.clock
    yield (
        "clock",
        f"{clock.source}, {clock.hz / 1e9:.6f} GHz ± {clock.error_ppm:.2f} ppm, "
        f"steps of {clock.step_ns:.1f} ns, {clock.read_ns:.1f} ns per reading",
    )
    yield "invariant", f"{'yes' if clock.invariant else 'NO'}: {clock.reason}"


def _describe_processor(host: Examination) -> Iterator[tuple[str, str]]:
    cpus = host.processors
    kind = ", virtual machine" if cpus.virtual else ""
    yield (
        "processor",
        f"{cpus.model}, {format_count(len(cpus.cores), 'core')}, "
        f"{format_count(len(cpus.online), 'CPU')}{kind}",
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


def _describe_memory(host: Examination) -> Iterator[tuple[str, str]]:
    memory = host.memory
    limit = memory.cgroup_limit_bytes
    limited = "" if limit is None else f", cgroup limit {_format_size(limit)}"
    yield (
        "memory",
        f"{_format_size(memory.total_bytes)}, "
        f"{_format_size(memory.available_bytes)} available{limited}",
    )
    yield (
        "huge pages",
        f"2 MiB: {memory.huge_free} of {memory.huge_total} free; "
        f"transparent: {memory.transparent or 'not in this kernel'}; "
        f"a message buffer gets {PAGES[host.pages]} now",
    )
    yield "memlock", _describe_memlock(memory)


def _describe_memlock(memory: Memory) -> str:
    if memory.memlock_bytes is None:
        return "unlimited"
    more = "; this process may lock more (CAP_IPC_LOCK)" if memory.may_exceed_memlock else ""
    return f"{_format_size(memory.memlock_bytes)} may be locked for RDMA{more}"


def _describe_noise(host: Examination) -> Iterator[tuple[str, str]]:
    noise = host.noise
    longest = f", at most {format_value(noise.gaps.max, 'ps')} at once" if noise.gaps.count else ""
    yield (
        "noise",
        f"CPU {noise.cpu} for {noise.watched_ns / 1e9:.1f} s: "
        f"{format_count(noise.gaps.count, 'hiccup')} over 1 µs "
        f"took {noise.lost_share:.2%} of the time{longest}; steal {noise.steal_share:.2%}",
    )
    for pair in host.distances:
        time = (
            "not measured: a CPU was busy"
            if pair.p50_ps is None
            else f"{pair.p50_ps / 1000:.0f} ns"
        )
        yield "core to core", f"CPUs {pair.cpu_a} and {pair.cpu_b} ({pair.relation}): {time}"


def _format_rdma_table(host: Examination) -> str:
    heads = ("device", "port", "state", "rate", "link", "node", "firmware", "driver", "PCIe")
    rows = [
        (
            device.name,
            str(port.number),
            port.state,
            port.rate,
            port.link_layer,
            _format_node(device.numa_node),
            device.firmware,
            device.driver,
            device.pcie,
        )
        for device in host.rdma_devices
        for port in device.ports
    ]
    return format_table(heads, rows, left_columns=len(heads)) if rows else "none"


def _format_interface_table(host: Examination) -> str:
    heads = ("name", "kind", "state", "MTU", "speed", "node", "driver")
    rows = [
        (
            interface.name,
            f"ipoib {interface.ipoib_mode}" if interface.ipoib_mode else interface.kind,
            interface.state,
            str(interface.mtu_bytes),
            "" if interface.speed_mbps is None else f"{interface.speed_mbps / 1000:g} Gb/s",
            _format_node(interface.numa_node),
            interface.driver,
        )
        for interface in host.interfaces
    ]
    return format_table(heads, rows, left_columns=len(heads)) if rows else "none"


def _format_transports(transports: Sequence[Transport]) -> Iterator[str]:
    """Available ones first, the others grouped by reason."""
    width = max((len(transport.over) for transport in transports), default=0) + 4
    for transport in transports:
        if transport.available:
            yield from _wrap_text(
                "; ".join(["available", *_list_abilities(transport)]),
                f"  {transport.over}".ljust(width),
            )
    for (reason, remedy), names in _group_missing(transports).items():
        yield from _format_named(names, f"not available, because {reason}", width)
        yield from _wrap_text(remedy, " " * width + "→ ")


def _format_named(names: Sequence[str], text: str, width: int) -> list[str]:
    """The text beside one name, or below several."""
    if len(names) == 1:
        return _wrap_text(text, f"  {names[0]}".ljust(width))
    return [*_wrap_text(", ".join(names), "  "), *_wrap_text(text, " " * width)]


def _group_missing(transports: Sequence[Transport]) -> dict[tuple[str, str], list[str]]:
    names: dict[tuple[str, str], list[str]] = {}
    for transport in transports:
        if not transport.available:
            names.setdefault((transport.reason, transport.remedy), []).append(transport.over)
    return names


def _list_abilities(transport: Transport) -> Iterator[str]:
    facts = transport.facts
    if "port" in facts:
        yield f"port {facts['port']}, {facts.get('link_layer', '')} {facts.get('rate', '')}"
    if facts.get("gids"):
        yield f"GIDs {facts['gids']}; partition {facts.get('partition', '')}"
    yield from (f"{', '.join(kinds)}: {can}" for can, kinds in _group_operations(transport).items())
    if 0 < transport.max_bytes < _UNLIMITED_BYTES:
        yield f"up to {_format_size(transport.max_bytes)}"
    if "launcher" in facts:
        yield f"{facts['library']}, under {facts['launcher']}"
    yield from (f"{name} {value}" for name, value in facts.items() if "unverified" in value)


def _group_operations(transport: Transport) -> dict[str, list[str]]:
    """Operations -> the endpoint kinds that have them."""
    kinds: dict[str, list[str]] = {}
    for kind in transport.endpoints:
        names = transport.facts.get(f"{kind}.operations", ", ".join(transport.operations))
        everything = set(names.split(", ")) == OPERATIONS
        kinds.setdefault("all operations" if everything else names, []).append(kind)
    return kinds


def _format_finding(finding: Finding) -> Iterator[str]:
    yield from _wrap_text(finding.what, "  ! ")
    yield from _wrap_text(f"{finding.effect}", "    ")
    yield from _wrap_text(finding.remedy, "    → ")


def _format_providers(transports: Sequence[Transport]) -> Iterator[str]:
    """Each transport with its facts, those of one endpoint kind ("rdm.protocol") together."""
    for transport in transports:
        yield from _format_transports([transport])
        group = ""
        for name, value in sorted(transport.facts.items(), key=lambda fact: ("." in fact[0], fact)):
            kind, dot, key = name.rpartition(".")
            if kind != group:
                yield f"    {kind}"
            group = kind
            if value:
                yield f"    {'  ' if dot else ''}{key}: {value}"


def _format_size(n: int) -> str:
    return format_setting("_bytes", n) if n < 2**20 else format_value(n, "B")


def _format_node(node: int | None) -> str:
    return "" if node is None else str(node)


# ---- For machines -----------------------------------------------------------------------------


def _build_json(host: Examination, transports: Sequence[Transport], usable: bool) -> str:
    data = {
        "weft": __version__,
        "host": host.host,
        "kernel": host.kernel,
        "usable": usable,
        "clock": asdict(host.clock),
        "processors": asdict(host.processors),
        "memory": asdict(host.memory) | {"buffer_pages": host.pages},
        "noise": _build_noise_data(host.noise),
        "core_to_core": [asdict(pair) for pair in host.distances],
        "rdma_devices": [asdict(device) for device in host.rdma_devices],
        "interfaces": [asdict(interface) for interface in host.interfaces],
        "transports": [asdict(transport) for transport in transports],
        "findings": [asdict(finding) for finding in host.findings()],
    }
    return json.dumps(data)


def _build_noise_data(noise: HostNoise) -> dict[str, int | float | None]:
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
