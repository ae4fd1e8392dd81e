"""What to optimise and over what: goals, and the factors that a goal, a transport and a host have.

A goal is a quantity of a record, its better direction, and the test that measures it; `cpu` is
processor time of both ends' timed loops for each byte that arrived. A factor is a setting of the
test with the levels that are considered. Factors that cannot matter or are not available are
refused with a reason. A candidate has one level of every factor; a measured point is a candidate
with the goal's value there. Entry points: `GOALS`, `find_host_limits`, `build_space`, `Space`,
`build_point`. Units: in the names; values in the goal's: B/s, M/s, us, ns/B; loss in %.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft._core import Availability, availability
from weft.errors import InputError
from weft.host.machine.cpu import read_processors
from weft.measure.measurement import Test
from weft.measure.settings.options import Over, Settings, options_of, parse_over
from weft.measure.settings.values import ANYWHERE, AUTO
from weft.measure.tests.bandwidth import BANDWIDTH, RATE
from weft.measure.tests.latency import LATENCY
from weft.model.fit import FloatArray
from weft.records import Distribution, Plain, Record, Scalar
from weft.sweep_grammar import expand_values
from weft.tune.rules.evidence import read_carried_Bps, read_carried_messages_per_s

MOST_LOSS_PERCENT = 1.0  # settings that lose more are never recommended
_PS_PER_US = 1e6
Candidate = Mapping[str, Plain]
Levels = tuple[Plain, ...]
Offers = dict[str, Levels | str]  # levels, or why there are none
KIB, MIB = 2**10, 2**20
CHOICES = (
    "size_bytes",
    "depth",
    "qps",
    "threads",
    "post_list",
    "signal_every",
    "inline_bytes",
    "wait",
    "offset_bytes",
    "cpu",
    "numa",
)
MOST_OUTSTANDING_BYTES = 64 * MIB  # at one end
WITHIN_DEPTH = ("post_list", "signal_every")  # of a window, at most all of it
UNALIGNED_BYTES = 1
# Expected to matter. The other factors stay at their default without evidence.
DECISIVE = ("size_bytes", "depth", "qps", "threads", "wait", "cpu")
# How loops share processors and connections. These factors interact: what pays for one thread that
# spins may not for two that sleep. Those with the strongest interaction come first.
SHARING = ("threads", "wait", "cpu", "qps")
# Measured for their cost only: no level can be better than the default.
PROBED = ("offset_bytes",)
# Length scales of distances. Sizes and depths act smoothly over many doublings, sharing acts at
# once; the other factors act little.
_REACH = {"size_bytes": 6.0, "depth": 6.0, "qps": 1.2, "threads": 0.6, "wait": 0.6, "cpu": 0.6}
_WEAK_REACH = 2.0
_NOWHERE = -1.0  # the coordinate of an unknown level, such as one that was removed
VERBS_INLINE_BYTES = 220  # what common adapters take; one that takes less says so (unverified)
ANY_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """`read` gives the value of a record of `test`, or None where it has none."""

    name: str
    test: Test
    meaning: str
    unit: str
    more_is_better: bool
    read: Callable[[Record], float | None]

    @property
    def sign(self) -> float:
        """Times the logarithm of a value: greater is better for every goal."""
        return 1.0 if self.more_is_better else -1.0

    def value(self, record: Record) -> float | None:
        """The value above 0, or None: the record is of another test, or nothing arrived."""
        if record.name != self.test.name:
            return None
        value = self.read(record)
        return value if value is not None and value > 0 else None


def read_scalar(record: Record, name: str) -> float | None:
    """A scalar of the record, or None."""
    quantity = record.quantities.get(name)
    return float(quantity.value) if isinstance(quantity, Scalar) else None


def loss_percent(record: Record) -> float:
    """Share of messages lost; 0 where none can be."""
    return read_scalar(record, "loss") or read_scalar(record, "round_trip.loss") or 0.0


def _message_rate(record: Record) -> float | None:
    size = record.settings.get("size_bytes")
    per_s = read_carried_messages_per_s(record, size) if isinstance(size, int) else None
    return None if per_s is None else per_s / 1e6


def _latency(record: Record) -> float | None:
    half_rtt = record.quantities.get("half_rtt")
    return half_rtt.quantile(0.5) / _PS_PER_US if isinstance(half_rtt, Distribution) else None


def _cpu_per_byte(record: Record) -> float | None:
    """ns per byte: shares of a processor at both ends over the bytes that came each second."""
    rate, ours = read_carried_Bps(record), read_scalar(record, "cpu.percent")
    theirs = read_scalar(record, "peer.cpu.percent")
    if theirs is None and record.settings.get("over") == "delay":
        theirs = 0.0  # no peer process
    if not rate or ours is None or theirs is None:
        return None
    return (ours + theirs) / 100 * 1e9 / rate


_ALL = (
    Goal(
        name="throughput",
        test=BANDWIDTH,
        meaning="payload throughput",
        unit="B/s",
        more_is_better=True,
        read=read_carried_Bps,
    ),
    Goal(
        name="latency",
        test=LATENCY,
        meaning="half round trip, median",
        unit="us",
        more_is_better=False,
        read=_latency,
    ),
    Goal(
        name="message-rate",
        test=RATE,
        meaning="message rate",
        unit="M/s",
        more_is_better=True,
        read=_message_rate,
    ),
    Goal(
        name="cpu",
        test=BANDWIDTH,
        meaning="processor time per byte, both ends",
        unit="ns/B",
        more_is_better=False,
        read=_cpu_per_byte,
    ),
)
GOALS = {goal.name: goal for goal in _ALL}


def find_goal(name: str) -> Goal:
    if name not in GOALS:
        raise InputError("--goal", f"{name!r} is not known", f"use one of {', '.join(GOALS)}")
    return GOALS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One setting and its levels; numbers are compared by their ratio, words by being equal."""

    name: str
    levels: tuple[Plain, ...]
    default: Plain

    @property
    def is_number(self) -> bool:
        """Levels that double; others (0 or not, near or far) only differ."""
        return all(isinstance(level, int) and level > 0 for level in self.levels)

    def coordinate(self, level: Plain) -> float:
        """Doublings of a number, the place of a word; `_NOWHERE` for an unknown level."""
        if self.is_number and isinstance(level, int) and level > 0:
            return math.log2(level)
        return float(self.levels.index(level)) if level in self.levels else _NOWHERE

    def distances(self, ours: FloatArray, theirs: FloatArray) -> FloatArray:
        """Between coordinates, in reaches."""
        apart = np.abs(ours[:, None] - theirs[None, :])
        if not self.is_number:
            apart = (apart > 0).astype(np.float64)
        return np.asarray(apart / _REACH.get(self.name, _WEAK_REACH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A factor or level that is not considered, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Space:
    """Factors with two levels or more, and settings that are the same at every point."""

    over: str
    factors: tuple[Factor, ...]
    fixed: Candidate
    options: Mapping[str, str] = field(
        default_factory=dict
    )  # other settings, as on the command line
    refusals: tuple[Refusal, ...] = ()

    def key(self, setting: Candidate) -> tuple[Plain, ...]:
        """Equal for equal settings."""
        return tuple(setting.get(factor.name) for factor in self.factors)

    def group(self, rows: Iterable[MeasuredPoint]) -> dict[tuple[Plain, ...], list[MeasuredPoint]]:
        """The points of each setting, by its key, in their order."""
        groups: dict[tuple[Plain, ...], list[MeasuredPoint]] = {}
        for row in rows:
            groups.setdefault(self.key(row.setting), []).append(row)
        return groups

    @property
    def default(self) -> dict[str, Plain]:
        """Each factor at its default, or at the nearest of its levels."""
        return self.repair({f.name: _nearest_to_default(f) for f in self.factors})

    def repair(self, setting: Candidate) -> dict[str, Plain]:
        """The nearest setting that can run: existing levels, lists no longer than the window."""
        repaired = {
            f.name: setting[f.name] if setting[f.name] in f.levels else _nearest_to_default(f)
            for f in self.factors
        }
        depth = self._number(repaired, "depth")
        for factor in self.factors:
            if factor.name in WITHIN_DEPTH and self._number(repaired, factor.name) > depth:
                repaired[factor.name] = max(
                    level for level in factor.levels if isinstance(level, int) and level <= depth
                )
        return repaired

    def _number(self, setting: Candidate, name: str) -> int:
        value = setting.get(name, self.fixed.get(name))
        return value if isinstance(value, int) else 1

    def is_possible(self, setting: Candidate) -> bool:
        """Whether the test would take it."""
        window = self._number(setting, "depth")
        held = window * math.prod(
            self._number(setting, n) for n in ("qps", "threads", "size_bytes")
        )
        return held <= MOST_OUTSTANDING_BYTES and all(
            self._number(setting, name) <= window for name in WITHIN_DEPTH
        )

    def neighbours(self, setting: Candidate) -> Iterator[tuple[str, dict[str, Plain]]]:
        """(factor, setting) of all that differ by one level of one factor."""
        for factor in self.factors:
            place = factor.levels.index(setting[factor.name])
            steps = (-1, 1) if factor.is_number else range(-place, len(factor.levels) - place)
            for step in steps:
                if step and 0 <= place + step < len(factor.levels):
                    neighbour = self.repair({**setting, factor.name: factor.levels[place + step]})
                    if self.is_possible(neighbour) and self.key(neighbour) != self.key(setting):
                        yield factor.name, neighbour

    def remove_level(self, name: str, level: Plain, reason: str) -> Space:
        """The space without a level that the transport turned out not to have."""
        factors = tuple(
            replace(f, levels=tuple(x for x in f.levels if x != level)) if f.name == name else f
            for f in self.factors
        )
        refusal = Refusal(name=f"{name} {level}", reason=reason)
        return replace(self, factors=factors, refusals=(*self.refusals, refusal))

    def coordinates(self, settings: Sequence[Candidate]) -> FloatArray:
        """A row for each setting, a column for each factor."""
        places = [
            (f.name, {level: f.coordinate(level) for level in f.levels}) for f in self.factors
        ]
        rows = [
            [coordinate_of.get(setting[name], _NOWHERE) for name, coordinate_of in places]
            for setting in settings
        ]
        return np.array(rows, dtype=np.float64).reshape(len(settings), len(self.factors))

    def squared_distances(self, ours: FloatArray, theirs: FloatArray) -> FloatArray:
        """Between rows of coordinates, in reaches."""
        total = np.zeros((len(ours), len(theirs)))
        for column, factor in enumerate(self.factors):
            total += factor.distances(ours[:, column], theirs[:, column]) ** 2
        return total


@functools.lru_cache(maxsize=8)
def list_candidates(space: Space) -> tuple[Candidate, ...]:
    """Every combination that can run and may be recommended."""
    names = [factor.name for factor in space.factors]
    every = itertools.product(*(_recommendable_levels(factor) for factor in space.factors))
    settings = (dict(zip(names, levels, strict=True)) for levels in every)
    return tuple(setting for setting in settings if space.is_possible(setting))


def _recommendable_levels(factor: Factor) -> tuple[Plain, ...]:
    return (_nearest_to_default(factor),) if factor.name in PROBED else factor.levels


def _nearest_to_default(factor: Factor) -> Plain:
    if factor.default in factor.levels:
        return factor.default
    if not factor.is_number:
        return factor.levels[0]
    default = factor.coordinate(factor.default)
    return min(factor.levels, key=lambda level: abs(factor.coordinate(level) - default))


def build_space(goal: Goal, limits: HostLimits, texts: Mapping[str, str]) -> Space:
    """The space of a goal. `texts` are options: one value fixes a setting, several limit it."""
    options = options_of(goal.test.settings)
    offers = dict(_list_offers(goal, limits))
    defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(goal.test.settings)}
    fixed: dict[str, Plain] = {}
    for name, text in texts.items():
        if name not in options:
            remedy = f"--goal {goal.name} runs weft {goal.test.name}: leave it out"
            raise InputError(f"--{name}", f"weft {goal.test.name} has no such setting", remedy)
        field, option = options[name]
        levels = (
            tuple(expand_values(option.read, text, f"--sweep {option.name}"))
            if field in offers
            else (option.read(text, f"--{name}"),)
        )
        _limit(offers, fixed, field, levels)
    refusals = _drop_shallow(offers, fixed)
    factors = []
    for name, offer in sorted(offers.items(), key=lambda item: CHOICES.index(item[0])):
        if isinstance(offer, str):
            refusals.append(Refusal(name=name, reason=offer))
        else:
            factors.append(Factor(name=name, levels=offer, default=defaults[name]))
    return Space(
        over=limits.transport, factors=tuple(factors), fixed=fixed, refusals=tuple(refusals)
    )


def _limit(offers: Offers, fixed: dict[str, Plain], name: str, levels: Levels) -> None:
    """One level is no choice."""
    offers.pop(name, None)
    if len(levels) > 1:
        offers[name] = levels
    else:
        fixed[name] = levels[0]


def _drop_shallow(offers: Offers, fixed: dict[str, Plain]) -> list[Refusal]:
    """Drop the depths below the least list or signal period, and say which."""
    depths = _numbers(offers, fixed, "depth")
    least, name = max((min(_numbers(offers, fixed, name)), name) for name in WITHIN_DEPTH)
    deep_enough = tuple(depth for depth in depths if depth >= least)
    option = f"--{name.replace('_', '-')}"
    if not deep_enough:
        problem = f"{least} exceeds the {max(depths)} messages outstanding"
        raise InputError(option, problem, f"lower it, or raise --depth to {least}")
    if deep_enough == depths:
        return []
    _limit(offers, fixed, "depth", deep_enough)
    dropped = ", ".join(str(depth) for depth in depths if depth < least)
    return [Refusal(name=f"depth {dropped}", reason=f"{option} {least} needs {least} or more")]


def _numbers(offers: Offers, fixed: Candidate, name: str) -> tuple[int, ...]:
    """The levels of a number, fixed or offered; 1 where it is no setting of the goal."""
    levels = offers.get(name, (fixed.get(name, 1),))
    return (1,) if isinstance(levels, str) else tuple(n for n in levels if isinstance(n, int))


def _list_offers(goal: Goal, limits: HostLimits) -> Iterator[tuple[str, Levels | str]]:
    """Each field with its levels, or the reason why it is not considered."""
    streams = goal.name != "latency"
    yield "size_bytes", _sizes(goal, limits)
    alone = "a ping-pong has one message on its way, on one connection"
    yield "depth", _powers(1, 256) if streams else alone
    yield "qps", _powers(1, 4) if streams else alone
    yield "threads", _threads(limits) if streams else alone
    yield "post_list", (1, 4, 16) if streams else alone
    yield "signal_every", (1, 4, 16) if streams else alone
    yield "inline_bytes", _inline(goal, limits)
    yield "wait", ("spin", "block")
    yield "offset_bytes", (0, UNALIGNED_BYTES)
    one_cpu = f"{limits.cpus} CPU: nothing to choose from"
    yield "cpu", (ANYWHERE, AUTO) if limits.cpus > 1 else one_cpu
    yield "numa", (-1, *limits.nodes) if len(limits.nodes) > 1 else "this host has one NUMA node"


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**n for n in range(int(math.log2(first)), int(math.log2(last)) + 1))


def _threads(limits: HostLimits) -> Levels | str:
    if limits.cpus == 1:
        return "1 CPU: a second thread would wait for the first"
    return _powers(1, min(limits.cpus, 16))


def _sizes(goal: Goal, limits: HostLimits) -> Levels | str:
    if goal.name in ("latency", "message-rate"):
        best = "smallest is best" if goal.name == "latency" else "small messages make the most"
        return f"{best}: 64 B, or as --size says"
    largest = min(4 * MIB, limits.largest_bytes)
    smallest = min(4 * KIB, largest)
    return tuple(dict.fromkeys((*_powers(smallest, largest), largest)))


def _inline(goal: Goal, limits: HostLimits) -> Levels | str:
    """Whether messages go inline is one choice: 0, or the size of the message."""
    if limits.inline_limit == 0:
        return f"{limits.transport} has no inline sends"
    if goal.name in ("throughput", "cpu"):
        return f"messages up to {limits.inline_limit} B only, and this goal needs larger ones"
    if limits.size_bytes > limits.inline_limit:
        return f"{limits.size_bytes} B exceed what goes inline here, {limits.inline_limit} B"
    return (0, limits.size_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """`nodes` are this host's NUMA nodes; `inline_limit` 0: nothing goes inline."""

    transport: str
    cpus: int
    nodes: tuple[int, ...]
    inline_limit: int
    largest_bytes: int
    size_bytes: int


def find_host_limits(over: str, texts: Mapping[str, str]) -> HostLimits:
    """The limits of a transport, named as by `--over`; `texts` are the other options."""
    route = parse_over(over)
    offers = [o for o in availability(route.transport) if o.device in ("", route.device)]
    host = read_processors()
    size = options_of(Settings)["size"][1]
    size_text = texts.get("size", "64")
    return HostLimits(
        transport=over,
        cpus=len(host.allowed),
        nodes=tuple(host.nodes),
        inline_limit=_inline_limit(route, offers, texts.get("endpoint") or "rdm"),
        largest_bytes=min([ANY_BYTES, *(o.max_bytes for o in offers if o.max_bytes)]),
        size_bytes=size.read(size_text, "--size")
        if ".." not in size_text and "," not in size_text
        else 64,
    )


def _inline_limit(route: Over, offers: list[Availability], endpoint: str) -> int:
    if route.transport == "verbs":
        return VERBS_INLINE_BYTES
    limits = [o.facts.get(f"{endpoint}.inject_size", "0") for o in offers]
    return max((int(text) for text in limits), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """`stage` says why it was measured; `record` is None where a test invents the value."""

    setting: Candidate
    value: float
    stage: str
    record: Record | None = None
    lost_percent: float = 0.0
    turn: int | None = None  # when it was measured, counted in points; None: not known

    @property
    def is_acceptable(self) -> bool:
        """Whether so few messages were lost that the setting may be recommended."""
        return self.lost_percent <= MOST_LOSS_PERCENT


def build_point(goal: Goal, setting: Candidate, stage: str, record: Record) -> MeasuredPoint | None:
    """A record's value for the goal; None where it has none."""
    value = goal.value(record)
    if value is None:
        return None
    return MeasuredPoint(
        setting=setting, value=value, stage=stage, record=record, lost_percent=loss_percent(record)
    )
