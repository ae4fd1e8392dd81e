"""The processors of this host: which exist, which we may use, and which to choose.

Entry points: `read_processors`, `pick_cpus`, `read_steal_s`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from weft.errors import InputError
from weft.host.machine.devices import find_numa_node
from weft.host.machine.kernel_files import (
    ROOT,
    format_cpu_list,
    list_names,
    parse_cpu_list,
    read_cpu_limit,
    read_text,
)

_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Processors:
    """CPU numbers are the kernel's; a core is named by its lowest CPU. `virtual` is None if the
    processor does not say (Arm).
    """

    model: str
    online: tuple[int, ...]
    allowed: tuple[int, ...]
    isolated: tuple[int, ...]
    core_of: Mapping[int, int]
    nodes: Mapping[int, tuple[int, ...]]
    governors: Mapping[str, tuple[int, ...]]
    virtual: bool | None
    cpu_limit: float | None

    @property
    def cores(self) -> tuple[int, ...]:
        return tuple(sorted({self.core_of[cpu] for cpu in self.online}))

    def node_of(self, cpu: int) -> int:
        return next((node for node, cpus in self.nodes.items() if cpu in cpus), 0)


@dataclass(frozen=True, slots=True)
class Placement:
    """CPUs for spinning threads, in order of preference, with warnings."""

    cpus: tuple[int, ...]
    warnings: tuple[str, ...] = ()


def read_processors(root: Path = ROOT) -> Processors:
    online = parse_cpu_list(read_text(root / _CPUS / "online")) or _list_cpu_directories(root)
    return Processors(
        model=_read_model(root),
        online=online,
        allowed=_read_allowed(root, online),
        isolated=parse_cpu_list(read_text(root / _CPUS / "isolated")),
        core_of={cpu: min(_read_siblings(root, cpu)) for cpu in online},
        nodes=_read_nodes(root, online),
        governors=_read_governors(root, online),
        virtual=_is_virtual(root),
        cpu_limit=read_cpu_limit(root),
    )


def pick_cpus(n: int, device: str | None = None, root: Path = ROOT) -> Placement:
    """CPUs for `n` spinning threads: one core each, near the device (RDMA device or interface).

    Isolated cores come first. The first core comes last: the kernel does its own work there. With
    fewer cores than threads, hyperthreads are used, with a warning; with fewer CPUs than threads
    there is no placement.
    """
    host = read_processors(root)
    if n > len(host.allowed):
        problem = (
            f"{n} spinning threads, but {len(host.allowed)} CPUs ({format_cpu_list(host.allowed)})"
        )
        raise InputError("CPUs", problem, "use fewer threads, or blocking instead of spinning")
    node = find_numa_node(device, root) if device else None
    order = sorted(host.allowed, key=lambda cpu: _rank_cpu(host, node, cpu))
    chosen = tuple(order[:n])
    return Placement(chosen, tuple(_list_warnings(host, node, device, chosen)))


def _rank_cpu(host: Processors, node: int | None, cpu: int) -> tuple[bool, bool, bool, bool, int]:
    """Sharing a core is worse than a remote node, which is worse than a busy core."""
    core = [other for other in host.allowed if host.core_of[other] == host.core_of[cpu]]
    first_core = host.core_of[cpu] == min(host.core_of.values())
    away = node is not None and host.node_of(cpu) != node
    return cpu != min(core), away, cpu not in host.isolated, first_core, cpu


def _list_warnings(
    host: Processors, node: int | None, device: str | None, chosen: tuple[int, ...]
) -> list[str]:
    cores = len({host.core_of[cpu] for cpu in chosen})
    away = [cpu for cpu in chosen if node is not None and host.node_of(cpu) != node]
    warnings = []
    if cores < len(chosen):
        warnings.append(
            f"{len(chosen)} spinning threads share {cores} cores: they slow each other down"
        )
    if away:
        warnings.append(
            f"CPUs {format_cpu_list(away)} are not on NUMA node {node} of {device}: "
            "messages cross between the nodes"
        )
    if host.cpu_limit is not None and host.cpu_limit < len(chosen):
        warnings.append(
            f"a cgroup limits this process to {host.cpu_limit:g} CPUs: "
            f"{len(chosen)} spinning threads will be stopped again and again"
        )
    return warnings


def read_steal_s(root: Path = ROOT) -> dict[int, float]:
    """CPU -> time that the hypervisor stole since boot, in steps of 10 ms: /proc/stat."""
    hz = os.sysconf("SC_CLK_TCK")
    steal_s = {}
    for line in read_text(root / "proc/stat").splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name[3:].isdigit():
            steal_s[int(name[3:])] = int(ticks[7]) / hz if len(ticks) > 7 else 0.0
    return steal_s


def _list_cpu_directories(root: Path) -> tuple[int, ...]:
    entries = list_names(root / _CPUS)
    return tuple(sorted(int(n[3:]) for n in entries if n[:3] == "cpu" and n[3:].isdigit()))


def _read_allowed(root: Path, online: tuple[int, ...]) -> tuple[int, ...]:
    for line in read_text(root / "proc/self/status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return tuple(cpu for cpu in parse_cpu_list(line.partition(":")[2]) if cpu in online)
    return online


def _read_siblings(root: Path, cpu: int) -> tuple[int, ...]:
    topology = root / _CPUS / f"cpu{cpu}" / "topology"
    return parse_cpu_list(read_text(topology / "thread_siblings_list")) or (cpu,)


def _read_nodes(root: Path, online: tuple[int, ...]) -> dict[int, tuple[int, ...]]:
    numbers = [int(n[4:]) for n in list_names(root / _NODES) if n[:4] == "node" and n[4:].isdigit()]
    lists = {
        n: parse_cpu_list(read_text(root / _NODES / f"node{n}" / "cpulist"))
        for n in sorted(numbers)
    }
    return lists or {0: online}


def _read_governors(root: Path, online: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Empty where the kernel does not set the frequency, as in most virtual machines."""
    by_name: dict[str, tuple[int, ...]] = {}
    for cpu in online:
        name = read_text(root / _CPUS / f"cpu{cpu}" / "cpufreq" / "scaling_governor")
        if name:
            by_name[name] = (*by_name.get(name, ()), cpu)
    return by_name


def _is_virtual(root: Path) -> bool | None:
    flags = _read_field(root, "flags").split()
    return "hypervisor" in flags if flags else None


def _read_model(root: Path) -> str:
    part = _read_field(root, "CPU part")  # Arm has no name, only numbers
    return _read_field(root, "model name") or (f"Arm part {part}" if part else os.uname().machine)


def _read_field(root: Path, name: str) -> str:
    for line in read_text(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
