"""What on this host spoils measurements, and what to do about it. Entry point: `findings`.

Each check is a function of facts alone. Thresholds are where an effect exceeds what people
measure: microseconds, and percents of bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.host.machine.clock import ClockFacts
from weft.host.machine.cpu import Processors
from weft.host.machine.devices import Interface, RdmaDevice
from weft.host.machine.kernel_files import format_cpu_list
from weft.host.machine.memory import Memory
from weft.host.machine.noise import HostNoise

# A ring of 8 MiB messages and the queues of one connection: what `weft bandwidth` may register.
_MEMLOCK_BYTES = 64 * 2**20
_LOST_SHARE = 0.01
_LONG_GAP_PS = 10**9


@dataclass(frozen=True, slots=True)
class Finding:
    """What is so, what it does to measurements, and how to mend it."""

    what: str
    effect: str
    remedy: str


def check_clock(clock: ClockFacts) -> Iterator[Finding]:
    if not clock.invariant:
        yield Finding(
            f"the counter {clock.source} is not reliable: {clock.reason}",
            "times may be wrong by as much as the processor's frequency changes",
            "boot with `tsc=reliable` if the hardware has one, or measure on another host",
        )


def check_cpus(cpus: Processors) -> Iterator[Finding]:
    slow = {name: on for name, on in cpus.governors.items() if name != "performance"}
    for name, on in sorted(slow.items()):
        yield Finding(
            f"governor {name} on CPUs {format_cpu_list(on)}",
            "the frequency follows the load: the first messages after a pause are slow",
            "as root: `cpupower frequency-set -g performance`",
        )
    if len({cpus.core_of[cpu] for cpu in cpus.allowed}) < 2:
        yield Finding(
            f"one core only (CPUs {format_cpu_list(cpus.allowed)})",
            "two spinning ends on this host take turns of milliseconds",
            "use `--block`, or the peer on another host",
        )
    if cpus.cpu_limit is not None and cpus.cpu_limit < len(cpus.allowed):
        yield Finding(
            f"a cgroup limits this process to {cpus.cpu_limit:g} CPUs' worth of time",
            "spinning threads are stopped when the quota is used up",
            "raise the limit of the container or service (`cpu.max`)",
        )


def check_memory(memory: Memory, pages: str, devices: Sequence[RdmaDevice]) -> Iterator[Finding]:
    if pages == "4K":
        yield Finding(
            "message buffers get 4 KiB pages",
            "large transfers miss the TLB more often",
            "as root: `sysctl vm.nr_hugepages=512`, "
            "or `echo madvise > /sys/kernel/mm/transparent_hugepage/enabled`",
        )
    limit = None if memory.may_exceed_memlock else memory.memlock_bytes
    if devices and limit is not None and limit < _MEMLOCK_BYTES:
        yield Finding(
            f"only {limit // 1024} KiB may be locked in memory",
            "RDMA cannot register larger buffers",
            "set `memlock unlimited` in /etc/security/limits.conf (LimitMEMLOCK= of a service)",
        )


def check_noise(noise: HostNoise) -> Iterator[Finding]:
    if noise.lost_share > _LOST_SHARE or (noise.gaps.count and noise.gaps.max > _LONG_GAP_PS):
        longest_us = noise.gaps.max / 1e6
        yield Finding(
            f"this host is noisy: a spinning thread lost {noise.lost_share:.1%} of its time, "
            f"at most {longest_us:,.0f} µs at once",
            "high percentiles show the host rather than the network",
            "stop other work, pin to isolated cores (`isolcpus=`), or compare medians only",
        )


def check_devices(devices: Sequence[RdmaDevice]) -> Iterator[Finding]:
    for device in devices:
        for port in device.ports:
            if not port.is_active:
                yield Finding(
                    f"{device.name} port {port.number} is {port.state} ({port.physical_state})",
                    "it cannot be measured",
                    "check the cable; on InfiniBand, that a subnet manager runs (`sminfo`)",
                )
        if device.pcie and device.pcie_most and device.pcie != device.pcie_most:
            yield Finding(
                f"{device.name} runs at PCIe {device.pcie}, but can do {device.pcie_most}",
                "the bus may limit bandwidth before the network does",
                "move it to a wider or faster slot",
            )


def check_interfaces(interfaces: Sequence[Interface]) -> Iterator[Finding]:
    for interface in interfaces:
        if interface.ipoib_mode == "datagram" and interface.mtu_bytes <= 2044:
            yield Finding(
                f"{interface.name} is IPoIB in datagram mode, MTU {interface.mtu_bytes}",
                "TCP over it is limited by packets, far below the link's rate",
                f"as root: `echo connected > /sys/class/net/{interface.name}/mode; "
                f"ip link set {interface.name} mtu 65520`",
            )
