"""What surrounds a measurement: clock, host noise, counters before and after, the peer's facts.

Taken on this host before and after the timed part, so that a record tells how far it can be
trusted. Entry point: `Surroundings`. Units: as named in each row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from weft._core import Clock, hiccups
from weft.records import Row

HICCUP_SECONDS = 0.05
NOISY_PERCENT = 1.0
Descriptions = Sequence[tuple[Mapping[str, str], Mapping[str, str]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """What others took from a spinning thread just before the run."""

    lost_percent: float
    longest_us: float
    gaps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Jiffies:
    """Processor time of the whole host, in clock ticks."""

    all: int
    stolen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The host as it was before a run."""

    noise: Noise
    jiffies: Jiffies

    @staticmethod
    def before(cpu: int) -> Surroundings:
        return Surroundings(noise=noise_on(cpu), jiffies=jiffies())

    def rows(self) -> list[Row]:
        """The clock and the noise, for the record."""
        clock = Clock.shared()
        return [
            {"fact": "clock", "value": clock.source()},
            {"fact": "clock error, ppm", "value": round(clock.error_ppm, 3)},
            {"fact": "clock step, ps", "value": clock.step_ps},
            {"fact": "clock reading, ps", "value": clock.read_ps},
            {"fact": "hiccups before the run", "value": self.noise.gaps},
            {"fact": "time lost to hiccups, %", "value": round(self.noise.lost_percent, 3)},
            {"fact": "longest hiccup, us", "value": round(self.noise.longest_us, 1)},
            {"fact": "steal during the run, %", "value": round(self.steal_percent(), 3)},
        ]

    def steal_percent(self) -> float:
        """Of the host's processor time since `before`, what the hypervisor gave to others."""
        now = jiffies()
        return 100 * (now.stolen - self.jiffies.stolen) / max(1, now.all - self.jiffies.all)

    def notes(self) -> Iterator[str]:
        """What a reader must know before trusting the tail."""
        if self.noise.lost_percent > NOISY_PERCENT:
            yield (
                f"noisy host: a spinning thread lost {self.noise.lost_percent:.1f} % of its time "
                f"before the run, up to {self.noise.longest_us:.0f} us at once"
            )
        steal = self.steal_percent()
        if steal > NOISY_PERCENT:
            yield f"noisy host: the hypervisor stole {steal:.1f} % of the processors' time"


def noise_on(cpu: int) -> Noise:
    seen = hiccups(HICCUP_SECONDS, cpu)
    gaps = seen.gaps
    lost = gaps.mean * gaps.count / 1e3 if gaps.count else 0.0
    return Noise(
        lost_percent=100 * lost / seen.elapsed_ns,
        longest_us=gaps.max / 1e6 if gaps.count else 0.0,
        gaps=gaps.count,
    )


def jiffies() -> Jiffies:
    """From /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return Jiffies(all=0, stolen=0)
    ticks = [int(word) for word in stat.read_text().split("\n", 1)[0].split()[1:9]]
    return Jiffies(all=sum(ticks), stolen=ticks[7])


def endpoint_rows(descriptions: Descriptions) -> list[Row]:
    """Both sides of each connection; equal ones once, with their number."""
    seen: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for ours, theirs in descriptions:
        for side, facts in (("ours", ours), ("peer", theirs)):
            if facts:
                key = side, tuple(sorted(facts.items()))
                seen[key] = seen.get(key, 0) + 1
    return [
        {"side": side, "connections": count, **dict(facts)} for (side, facts), count in seen.items()
    ]
