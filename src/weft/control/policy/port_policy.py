"""What a port can be programmed with: its scheduler's units and queues, and their reservations.

Weights are integers: of 64 bytes in the low-priority table of InfiniBand's VL arbitration, at most
255 to an entry; kbit/s in HTB. Of a port's units the managed applications have C_saba, a latency
lane its share, and unmanaged traffic the rest, in a queue of its own.
Queues are numbered from 0: unmanaged traffic (where it has a share), the managed ones, the lane.

**Latency lane.** InfiniBand: the only lane of the high-priority table. Between two packets of the
low table it may send while it has sent less than limit · 4096 bytes (limit 0: one packet), so at
most limit · 4096 − 1 bytes and one packet more: H bytes. If the others have packets of `bulk_bytes`
waiting, the lane's part of the link is at most H / (H + bulk_bytes); a lane for which that exceeds
its share is refused. HTB: rate = ceil = its share, burst = its budget: over any time t it sends at
most rate · t + budget. Entry points: `PortPolicy`, `LatencyLane`, `VlArbitration`, `Htb`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

from weft.errors import InputError
from weft.switches.tables import ENTRY_WEIGHT, MAX_LIMIT

MAX_ENTRIES = 64  # of a table
MAX_LANES = 15  # for data: VL15 is for management
LIMIT_BYTES = 4096
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class VlArbitration:
    """`queues` virtual lanes, `entries` of the low-priority table, `units` for the whole link."""

    queues: int
    entries: int = 8
    units: int = ENTRY_WEIGHT

    def __post_init__(self) -> None:
        _check_at_least("virtual lanes", self.queues, 1)
        _check_at_most("virtual lanes", self.queues, MAX_LANES)
        _check_at_most("entries of an arbitration table", self.entries, MAX_ENTRIES)
        # A queue's last entry may be all but empty: in the worst case one entry per queue is lost.
        max_units = ENTRY_WEIGHT * (self.entries - self.queues + 1)
        if not 1 <= self.units <= max_units:
            problem = f"{self.units} units do not fit {self.entries} entries of {self.queues} lanes"
            remedy = f"use 1 to {max_units}" if max_units > 0 else "use an entry for each lane"
            raise InputError("VL arbitration", problem, remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Htb:
    """`queues` classes under a root of `rate_kbps`."""

    queues: int
    rate_kbps: int

    def __post_init__(self) -> None:
        _check_at_least("HTB classes", self.queues, 1)
        _check_at_least("HTB rate in kbit/s", self.rate_kbps, 1)

    @property
    def units(self) -> int:
        return self.rate_kbps


Scheduler = VlArbitration | Htb


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyLane:
    """A queue that goes before the others, within a byte budget and a share of the link.

    `flow_share`: of a host's link, what it may send on the lane to one other host.
    """

    share: float
    budget_bytes: int
    flow_share: float = 0.01
    packet_bytes: int = 256  # the largest that is sent on it
    bulk_bytes: int = 4096  # of packets that the others send when the port is full

    def __post_init__(self) -> None:
        _check_share("share of the latency lane", self.share)
        _check_share("latency lane: share of a flow", self.flow_share)
        for name in ("budget_bytes", "packet_bytes", "bulk_bytes"):
            _check_at_least(f"latency lane: {name}", getattr(self, name), 1)
        if self.budget_bytes < self.packet_bytes:
            problem = f"budget of {self.budget_bytes} B below its packets of {self.packet_bytes} B"
            raise InputError("latency lane", problem, "raise the budget or send smaller packets")

    @property
    def high_limit(self) -> int:
        """The limit of high priority that keeps the budget."""
        return min(MAX_LIMIT, (self.budget_bytes - self.packet_bytes + 1) // LIMIT_BYTES)

    @property
    def most_share(self) -> float:
        """The lane's largest share of a full InfiniBand port, under that limit."""
        max_bytes = max(0, self.high_limit * LIMIT_BYTES - 1) + self.packet_bytes
        return max_bytes / (max_bytes + self.bulk_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPolicy:
    """A port's scheduler, the share of managed applications (C_saba), and a latency lane."""

    scheduler: Scheduler
    managed_share: float = 1.0
    lane: LatencyLane | None = None

    def __post_init__(self) -> None:
        _check_share("share of managed applications", self.managed_share)
        self._check_lane()
        if self.managed_units < 1 or self.unmanaged_units < 0:
            shares = f"{self.managed_share:g} for managed applications"
            lane = f" and {self.lane.share:g} for the latency lane" if self.lane else ""
            problem = f"{shares}{lane} do not fit {self.units} units"
            raise InputError("port", problem, "change the shares or use more units")
        if self.managed_queues < 1:
            reserved = self.scheduler.queues - self.managed_queues
            problem = f"{self.scheduler.queues} queues, of which {reserved} are reserved"
            raise InputError("port", problem, "use a port with more queues")

    def _check_lane(self) -> None:
        lane = self.lane
        if lane is None or isinstance(self.scheduler, Htb) or lane.most_share <= lane.share:
            return
        budget = f"a budget of {lane.budget_bytes} B can take {lane.most_share:.3g} of the link"
        raise InputError(
            "latency lane",
            f"{budget}, and its share is {lane.share:g}",
            "raise the share, or lower the budget or its packets' size",
        )

    @property
    def units(self) -> int:
        return self.scheduler.units

    @property
    def managed_units(self) -> int:
        return floor(self.managed_share * self.units + _ROUNDING)

    @property
    def capacity(self) -> float:
        """Share of the link that the managed units are."""
        return self.managed_units / self.units

    @property
    def lane_units(self) -> int:
        return 0 if self.lane is None else ceil(self.lane.share * self.units - _ROUNDING)

    @property
    def unmanaged_units(self) -> int:
        return self.units - self.managed_units - self.lane_units

    @property
    def first_managed_queue(self) -> int:
        return 1 if self.unmanaged_units else 0

    @property
    def managed_queues(self) -> int:
        """Queues that the levels present may use."""
        return self.scheduler.queues - self.first_managed_queue - (self.lane is not None)


def _check_at_least(name: str, value: int, limit: int) -> None:
    if not value >= limit:
        raise InputError(name, f"{value}", f"use at least {limit}")


def _check_at_most(name: str, value: int, limit: int) -> None:
    if not value <= limit:
        raise InputError(name, f"{value}", f"use at most {limit}")


def _check_share(name: str, share: float) -> None:
    if not 0 < share <= 1:
        raise InputError(name, f"{share:g}", "use a share of the link, 0 < share <= 1")
