"""What may be chosen: the factors that a goal, a transport and this host have, and their levels.

A factor is a setting of the test with the levels that are considered. Those that cannot matter or
are not to be had are refused, each with its reason. A setting is a mapping from the names of all
factors to one level each. Entry points: `space_for`, `Space`. Units: in the names.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from weft._core import Availability, availability
from weft.errors import InputError
from weft.host import read_processors
from weft.measure.settings.cpu_placement import ANYWHERE, AUTO
from weft.measure.settings.options import Over, Settings, options_of, parse_over
from weft.model.fit import FloatArray
from weft.records import Plain, Record
from weft.sweep_grammar import expand_values
from weft.tune.search.goal import MOST_LOSS_PERCENT, Goal, loss_percent

Choice = Mapping[str, Plain]
Levels = tuple[Plain, ...]
Offered = dict[str, Levels | str]  # levels, or why there are none
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
MOST_OUTSTANDING_BYTES = 64 * MIB  # of one end: more is not a window but a store
WITHIN_DEPTH = ("post_list", "signal_every")  # of a window, at most all of it
UNALIGNED_BYTES = 1
# Expected to matter; another choice needs evidence to be taken.
DECISIVE = ("size_bytes", "depth", "qps", "threads", "wait", "cpu")
# Loops share processors and connections: what pays for one thread that spins may not for two that
# sleep, or for two with a connection each. The first decide together most.
SHARING = ("threads", "wait", "cpu", "qps")
# Measured to tell what it costs: nothing can be better than the default, apart from chance.
PROBED = ("offset_bytes",)
# Distances: how many such steps make two settings unlike. Sizes and depths act smoothly over many
# doublings, ways to share processors at once; what seldom decides acts little.
_REACH = {"size_bytes": 6.0, "depth": 6.0, "qps": 1.2, "threads": 0.6, "wait": 0.6, "cpu": 0.6}
_WEAK_REACH = 2.0
_NOWHERE = -1.0  # the coordinate of a level that is none, such as one that was withdrawn


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
        """Doublings of a number, the place of a word; `_NOWHERE` of what has neither."""
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
class Refused:
    """A factor that is not considered, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Space:
    """Factors with two levels or more, and what is the same at every point."""

    over: str
    factors: tuple[Factor, ...]
    fixed: Choice
    written: Mapping[str, str] = field(default_factory=dict)  # other settings, by outside name
    refused: tuple[Refused, ...] = ()

    def key(self, setting: Choice) -> tuple[Plain, ...]:
        """Equal for equal settings."""
        return tuple(setting.get(factor.name) for factor in self.factors)

    @property
    def default(self) -> dict[str, Plain]:
        """Each factor at its default, or at the nearest of its levels."""
        return self.mended({f.name: _nearest(f) for f in self.factors})

    def mended(self, setting: Choice) -> dict[str, Plain]:
        """Within what can run: levels that are left, lists no longer than the window."""
        found = {
            f.name: setting[f.name] if setting[f.name] in f.levels else _nearest(f)
            for f in self.factors
        }
        depth = self._of(found, "depth")
        for factor in self.factors:
            if factor.name in WITHIN_DEPTH and self._of(found, factor.name) > depth:
                found[factor.name] = max(
                    level for level in factor.levels if isinstance(level, int) and level <= depth
                )
        return found

    def _of(self, setting: Choice, name: str) -> int:
        value = setting.get(name, self.fixed.get(name))
        return value if isinstance(value, int) else 1

    def is_possible(self, setting: Choice) -> bool:
        """Whether the test would take it."""
        window = self._of(setting, "depth")
        held = window * math.prod(self._of(setting, n) for n in ("qps", "threads", "size_bytes"))
        return held <= MOST_OUTSTANDING_BYTES and all(
            self._of(setting, name) <= window for name in WITHIN_DEPTH
        )

    def neighbours(self, setting: Choice) -> Iterator[tuple[str, dict[str, Plain]]]:
        """(factor, setting) of all that differ by one level of one factor."""
        for factor in self.factors:
            place = factor.levels.index(setting[factor.name])
            steps = (-1, 1) if factor.is_number else range(-place, len(factor.levels) - place)
            for step in steps:
                if step and 0 <= place + step < len(factor.levels):
                    found = self.mended({**setting, factor.name: factor.levels[place + step]})
                    if self.is_possible(found) and self.key(found) != self.key(setting):
                        yield factor.name, found

    def without(self, name: str, level: Plain, reason: str) -> Space:
        """A level that the transport turned out not to have is no choice."""
        factors = tuple(
            replace(f, levels=tuple(x for x in f.levels if x != level)) if f.name == name else f
            for f in self.factors
        )
        refused = Refused(name=f"{name} {level}", reason=reason)
        return replace(self, factors=factors, refused=(*self.refused, refused))

    def coordinates(self, settings: Sequence[Choice]) -> FloatArray:
        """A row for each setting, a column for each factor."""
        places = [
            (f.name, {level: f.coordinate(level) for level in f.levels}) for f in self.factors
        ]
        rows = [
            [known.get(setting[name], _NOWHERE) for name, known in places] for setting in settings
        ]
        return np.array(rows, dtype=np.float64).reshape(len(settings), len(self.factors))

    def squared_distances(self, ours: FloatArray, theirs: FloatArray) -> FloatArray:
        """Between rows of coordinates, in reaches."""
        total = np.zeros((len(ours), len(theirs)))
        for column, factor in enumerate(self.factors):
            total += factor.distances(ours[:, column], theirs[:, column]) ** 2
        return total


@functools.lru_cache(maxsize=8)
def candidates_of(space: Space) -> tuple[Choice, ...]:
    """Every combination that can run and may be recommended."""
    names = [factor.name for factor in space.factors]
    every = itertools.product(*(_recommendable(factor) for factor in space.factors))
    found = (dict(zip(names, levels, strict=True)) for levels in every)
    return tuple(setting for setting in found if space.is_possible(setting))


def _recommendable(factor: Factor) -> tuple[Plain, ...]:
    return (_nearest(factor),) if factor.name in PROBED else factor.levels


def _nearest(factor: Factor) -> Plain:
    if factor.default in factor.levels:
        return factor.default
    if not factor.is_number:
        return factor.levels[0]
    wanted = factor.coordinate(factor.default)
    return min(factor.levels, key=lambda level: abs(factor.coordinate(level) - wanted))


def space_for(goal: Goal, here: Here, given: Mapping[str, str]) -> Space:
    """The space of a goal; `given` are settings as written: one value fixes, several limit."""
    options = options_of(goal.test.settings)
    offered = dict(_offered(goal, here))
    defaults: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(goal.test.settings)}
    fixed: dict[str, Plain] = {}
    for name, text in given.items():
        if name not in options:
            remedy = f"--goal {goal.name} runs weft {goal.test.name}: leave it out"
            raise InputError(f"--{name}", f"weft {goal.test.name} has no such setting", remedy)
        field, option = options[name]
        levels = (
            tuple(expand_values(option.read, text, f"--sweep {option.name}"))
            if field in offered
            else (option.read(text, f"--{name}"),)
        )
        _limit(offered, fixed, field, levels)
    refused = _drop_shallow(offered, fixed)
    factors = []
    for name, what in sorted(offered.items(), key=lambda item: CHOICES.index(item[0])):
        if isinstance(what, str):
            refused.append(Refused(name=name, reason=what))
        else:
            factors.append(Factor(name=name, levels=what, default=defaults[name]))
    return Space(over=here.transport, factors=tuple(factors), fixed=fixed, refused=tuple(refused))


def _limit(offered: Offered, fixed: dict[str, Plain], name: str, levels: Levels) -> None:
    """One level is no choice."""
    offered.pop(name, None)
    if len(levels) > 1:
        offered[name] = levels
    else:
        fixed[name] = levels[0]


def _drop_shallow(offered: Offered, fixed: dict[str, Plain]) -> list[Refused]:
    """Without the depths that are less than any list or signal period; tells which."""
    depths = _numbers(offered, fixed, "depth")
    least, name = max((min(_numbers(offered, fixed, name)), name) for name in WITHIN_DEPTH)
    kept = tuple(depth for depth in depths if depth >= least)
    option = f"--{name.replace('_', '-')}"
    if not kept:
        problem = f"{least} exceeds the {max(depths)} messages outstanding"
        raise InputError(option, problem, f"lower it, or raise --depth to {least}")
    if kept == depths:
        return []
    _limit(offered, fixed, "depth", kept)
    dropped = ", ".join(str(depth) for depth in depths if depth < least)
    return [Refused(name=f"depth {dropped}", reason=f"{option} {least} needs {least} or more")]


def _numbers(offered: Offered, fixed: Choice, name: str) -> tuple[int, ...]:
    """The levels of a number, given or offered; 1 where it is no setting of the goal."""
    found = offered.get(name, (fixed.get(name, 1),))
    return (1,) if isinstance(found, str) else tuple(n for n in found if isinstance(n, int))


def _offered(goal: Goal, here: Here) -> Iterator[tuple[str, Levels | str]]:
    """Field -> its levels, or why it is not considered."""
    streams = goal.name != "latency"
    yield "size_bytes", _sizes(goal, here)
    alone = "a ping-pong has one message on its way, on one connection"
    yield "depth", _powers(1, 256) if streams else alone
    yield "qps", _powers(1, 4) if streams else alone
    yield "threads", _threads(here) if streams else alone
    yield "post_list", (1, 4, 16) if streams else alone
    yield "signal_every", (1, 4, 16) if streams else alone
    yield "inline_bytes", _inline(goal, here)
    yield "wait", ("spin", "block")
    yield "offset_bytes", (0, UNALIGNED_BYTES)
    few = f"{here.cpus} CPU: nothing to choose from"
    yield "cpu", (ANYWHERE, AUTO) if here.cpus > 1 else few
    yield "numa", (-1, *here.nodes) if len(here.nodes) > 1 else "this host has one NUMA node"


def _powers(first: int, last: int) -> tuple[int, ...]:
    return tuple(2**n for n in range(int(math.log2(first)), int(math.log2(last)) + 1))


def _threads(here: Here) -> Levels | str:
    if here.cpus == 1:
        return "1 CPU: a second thread would wait for the first"
    return _powers(1, min(here.cpus, 16))


def _sizes(goal: Goal, here: Here) -> Levels | str:
    if goal.name in ("latency", "message-rate"):
        best = "smallest is best" if goal.name == "latency" else "small messages make the most"
        return f"{best}: 64 B, or as --size says"
    largest = min(4 * MIB, here.largest_bytes)
    smallest = min(4 * KIB, largest)
    return tuple(dict.fromkeys((*_powers(smallest, largest), largest)))


def _inline(goal: Goal, here: Here) -> Levels | str:
    """Whether messages go inline is one choice: 0, or the size of the message."""
    if here.inline_limit == 0:
        return f"{here.transport} has no inline sends"
    if goal.name in ("throughput", "cpu"):
        return f"messages up to {here.inline_limit} B only, and this goal needs larger ones"
    if here.size_bytes > here.inline_limit:
        return f"{here.size_bytes} B exceed what goes inline here, {here.inline_limit} B"
    return (0, here.size_bytes)


VERBS_INLINE_BYTES = 220  # what common adapters take; one that takes less says so (unverified)
ANY_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """`nodes` are this host's NUMA nodes; `inline_limit` 0: nothing goes inline."""

    transport: str
    cpus: int
    nodes: tuple[int, ...]
    inline_limit: int
    largest_bytes: int
    size_bytes: int


def here_for(over: str, given: Mapping[str, str]) -> Here:
    """Of a transport as `--over` names it; `given` are the other settings, as written."""
    route = parse_over(over)
    offers = [o for o in availability(route.transport) if o.device in ("", route.device)]
    host = read_processors()
    size = options_of(Settings)["size"][1]
    written = given.get("size", "64")
    return Here(
        transport=over,
        cpus=len(host.allowed),
        nodes=tuple(host.nodes),
        inline_limit=_inline_limit(route, offers, given.get("endpoint") or "rdm"),
        largest_bytes=min([ANY_BYTES, *(o.max_bytes for o in offers if o.max_bytes)]),
        size_bytes=size.read(written, "--size")
        if ".." not in written and "," not in written
        else 64,
    )


def _inline_limit(route: Over, offers: list[Availability], endpoint: str) -> int:
    if route.transport == "verbs":
        return VERBS_INLINE_BYTES
    found = [o.facts.get(f"{endpoint}.inject_size", "0") for o in offers]
    return max((int(text) for text in found), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """`stage` says why it was measured; `record` is None where a test invents the value."""

    setting: Choice
    value: float
    stage: str
    record: Record | None = None
    lost_percent: float = 0.0
    turn: int | None = None  # when it was measured, counted in points; None: not known

    @property
    def is_acceptable(self) -> bool:
        """Whether so few messages were lost that the setting may be recommended."""
        return self.lost_percent <= MOST_LOSS_PERCENT


def observed(goal: Goal, setting: Choice, stage: str, record: Record) -> Observed | None:
    """A record's value for the goal; None where it has none."""
    value = goal.value(record)
    if value is None:
        return None
    return Observed(
        setting=setting, value=value, stage=stage, record=record, lost_percent=loss_percent(record)
    )
