"""What surrounds a measurement: clock, host noise, counters before and after.

Taken on this host around the timed part, so that a record tells how far it can be trusted.
Entry points: `observe_surroundings`, `endpoint_rows`. Units: as named in each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from weft.host.machine.counters import compare_counters, read_counters, tabulate_changes
from weft.host.machine.examination import read_clock
from weft.host.machine.noise import HostNoise, watch_noise
from weft.records import Row

NOISY_PERCENT = 1.0
Descriptions = Sequence[tuple[Mapping[str, str], Mapping[str, str]]]


@dataclass(slots=True)
class Surroundings:
    """The host around a run; complete once the block of `observe_surroundings` has ended."""

    noise: HostNoise | None = None
    counters: list[dict[str, str | int]] = field(default_factory=list)

    def tables(self) -> dict[str, Sequence[Row]]:
        """The clock and the noise, and the counters that moved."""
        tables: dict[str, Sequence[Row]] = {"host": [*clock_rows(), *self._noise_rows()]}
        if self.counters:
            tables["counters"] = [dict(row) for row in self.counters]
        return tables

    def _noise_rows(self) -> list[Row]:
        noise = self.noise
        if noise is None:
            return []
        longest_us = noise.gaps.max / 1e6 if noise.gaps.count else 0.0
        steal = round(100 * noise.steal_share, 3)
        return [
            {"fact": "hiccups before and after the run", "value": noise.gaps.count},
            {"fact": "time lost to hiccups, %", "value": round(100 * noise.lost_share, 3)},
            {"fact": "longest hiccup, us", "value": round(longest_us, 1)},
            {"fact": "steal during the run, % of a CPU", "value": steal},
            {"fact": "involuntary switches", "value": noise.involuntary_switches},
        ]

    def notes(self) -> Iterator[str]:
        """What a reader must know before trusting the tail."""
        noise = self.noise
        if noise is None:
            return
        lost, steal = 100 * noise.lost_share, 100 * noise.steal_share
        if lost > NOISY_PERCENT:
            yield (
                f"noisy host: a spinning thread lost {lost:.1f} % of its time around the run, "
                f"up to {noise.gaps.max / 1e6:.0f} us at once"
            )
        if steal > NOISY_PERCENT:
            yield f"noisy host: the hypervisor took {steal:.1f} % of a CPU during the run"


@contextmanager
def observe_surroundings(cpu: int) -> Iterator[Surroundings]:
    """Looks before and after the block."""
    surroundings = Surroundings()
    before = read_counters()
    with watch_noise(cpu) as watch:
        yield surroundings
    surroundings.noise = watch.noise
    surroundings.counters = tabulate_changes(compare_counters(before, read_counters()))


def clock_rows() -> list[Row]:
    """The clock of every sample, and its error."""
    facts = read_clock()
    return [
        {"fact": "clock", "value": facts.source},
        {"fact": "clock error, ppm", "value": round(facts.error_ppm, 3)},
        {"fact": "clock step, ns", "value": facts.step_ns},
        {"fact": "clock reading, ns", "value": facts.read_ns},
    ]


def endpoint_rows(descriptions: Descriptions) -> list[Row]:
    """Both sides of each connection; equal ones once, with their number."""
    connections: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for client, peer in descriptions:
        for side, facts in (("ours", client), ("peer", peer)):
            if facts:
                key = side, tuple(sorted(facts.items()))
                connections[key] = connections.get(key, 0) + 1
    return [
        {"side": side, "connections": count, **dict(facts)}
        for (side, facts), count in connections.items()
    ]
