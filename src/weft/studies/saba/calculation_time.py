"""Figure 4.19 of the Saba thesis: how long the weights of a whole fabric take.

Timed is the split of every port of the papers' fabric, given which applications use it, on one
core, as CPU time of the thread. The published times are of another machine and of SciPy's solver:
they stand beside ours. Scenarios are random: hosts, connections and models. By default there are
few, of the two sizes named, and published times are not judged by them; with a number of scenarios
sizes are drawn too, as the thesis does, and a claim holds if our 99th percentile is no longer than
its. `recorded/fig4.19.jsonl` has such a run, which judges the claims by default.
Entry points: `FIG4_19`, `build_fig4_19`, `build_drawn_fig4_19`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft._core import Allocator, Histogram
from weft.control.policy.allocate import Models, Ports, allocate
from weft.fabric import Fabric, papers_1944
from weft.plot.style import label_log_axis
from weft.records import Distribution, Quantity, Record, read_records
from weft.sensitivity.application import PAPER_SHARES
from weft.sensitivity.model import FloatArray, Hinges, Polynomial, Sensitivity
from weft.studies.observation import (
    ANOTHER_SYSTEM,
    Claim,
    Observation,
    Records,
    Unavailable,
    Verdict,
    build_claims,
    quantile_in,
)
from weft.studies.points import SEED, Point, record_point
from weft.studies.published import find_table
from weft.studies.saba.cohort import RECORDED
from weft.studies.study import SABA_PAPER, Result, Study
from weft.studies.table_curves import COLOURS, MARKERS, draw_published, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INSTANCES = 32
RING, ALL_TO_ALL = range(1, 2), range(1, INSTANCES)
# Eight lanes of one table entry each.
UNITS = 8 * 255
# Ports have tens of applications: the floor must leave room for all of them.
FLOOR = 1 / UNITS
_SHARES = np.array(PAPER_SHARES)
KINDS = ("k = 1", "k = 2", "k = 3", "convex")

Ints = NDArray[np.int64]


class FabricArrays:
    """The fabric as arrays: where every port leads, and which one leads to a host."""

    def __init__(self, fabric: Fabric) -> None:
        assert fabric.routes is not None
        ports = np.array([group[0] for group in fabric.routes.groups])
        self.fabric = fabric
        self.hosts = np.array(fabric.hosts)
        self.far = fabric.wiring
        self.ordinal = np.array(fabric.ordinal)
        self.output = ports[fabric.routes.next_hop]

    def hops(self, source: Ints, target: Ints) -> Iterator[tuple[Ints, Ints]]:
        """(which connections, port each takes) hop by hop; a port is its place in `far`."""
        which = np.flatnonzero(source != target)
        node, port = source[which], np.zeros(len(which), dtype=np.int64)
        while len(which):
            yield which, node * self.far.shape[1] + port
            node = self.far[node, port].astype(np.int64)
            going = node != target[which]
            which, node = which[going], node[going]
            port = self.output[self.ordinal[node], self.ordinal[target[which]]] - 1

    def ports(self, source: Ints, target: Ints, application: Ints) -> tuple[Ports, Ints]:
        """Applications of every port that carries any, and the ports' places in `far`."""
        count = int(application.max()) + 1
        hops = self.hops(source, target)
        keys = [port * count + application[which] for which, port in hops]
        # Sorting takes a tenth of the time of `np.unique`, which builds a hash table.
        pairs = np.sort(np.concatenate(keys))
        pairs = pairs[_find_starts(pairs)]
        of_pairs = pairs // count
        first = np.flatnonzero(_find_starts(of_pairs))
        places = of_pairs[first]
        offsets = np.append(first, len(pairs)).astype(np.int64)
        return Ports(offsets=offsets, applications=(pairs % count).astype(np.int32)), places

    def locate(self, places: Ints) -> list[tuple[int, int]]:
        """(node, port) of each place in `far`."""
        node, port = np.divmod(places, self.far.shape[1])
        return list(zip(node.tolist(), (port + 1).tolist(), strict=True))


def _find_starts(values: Ints) -> NDArray[np.bool_]:
    """Which of these sorted values differ from the one before."""
    return np.append(True, values[1:] != values[:-1])[: len(values)]


def draw_connections(
    rng: np.random.Generator, hosts: Ints, applications: int, steps: Sequence[int] = RING
) -> tuple[Ints, Ints, Ints]:
    """Source, target and application of every connection: to the instances so many further on."""
    place = hosts[rng.integers(0, len(hosts), (applications, INSTANCES))]
    source = np.concatenate([place.ravel() for _ in steps])
    target = np.concatenate([np.roll(place, -step, axis=1).ravel() for step in steps])
    return source, target, np.tile(np.repeat(np.arange(applications), INSTANCES), len(steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnModels:
    """Models of one kind, one after the other, as the core takes them."""

    are_hinges: bool
    lengths: Ints
    numbers: FloatArray

    def prepare(self) -> Models:
        count = len(self.lengths)
        kinds = np.full(count, self.are_hinges, dtype=np.uint8)
        offsets = np.concatenate(([0], np.cumsum(self.lengths)))
        return Models(Allocator(kinds, np.full(count, FLOOR), offsets, self.numbers))

    def to_models(self) -> list[Sensitivity]:
        rows = [part.tolist() for part in np.split(self.numbers, np.cumsum(self.lengths)[:-1])]
        if not self.are_hinges:
            return [Polynomial(coefficients=tuple(row), floor=FLOOR) for row in rows]
        terms = [tuple(zip(row[::2], row[1::2], strict=True)) for row in rows]
        return [Hinges(terms=each, floor=FLOOR) for each in terms]


def draw_models(rng: np.random.Generator, applications: int) -> dict[str, DrawnModels]:
    """Each application as hinges, and as polynomials fitted to them; by kind."""
    stretches, terms = _draw_hinges(rng, applications)
    knots, weights = terms[..., 0], terms[..., 1]
    excess = np.maximum(0.0, knots / _SHARES[:, None, None] - 1)
    slowdowns = 1 + (weights * excess).sum(axis=2)
    numbers = terms[knots > 0].ravel()
    return {
        **{f"k = {k}": _fit_polynomials(slowdowns, k) for k in (1, 2, 3)},
        "convex": DrawnModels(are_hinges=True, lengths=2 * stretches, numbers=numbers),
    }


def _draw_hinges(rng: np.random.Generator, applications: int) -> tuple[Ints, FloatArray]:
    """One to three stretches of communication; at a quarter of the link up to four times slower.

    How many, and of each the share that it takes (descending) and its weight; 0 beyond the last.
    """
    stretches = rng.integers(1, 4, applications)
    beyond = np.arange(3) >= stretches[:, None]
    knots, parts = rng.uniform(0.05, 1.0, beyond.shape), rng.standard_exponential(beyond.shape)
    knots[beyond] = parts[beyond] = 0.0
    totals = rng.uniform(0.05, 1.0, (applications, 1))
    weights = totals * parts / parts.sum(axis=1, keepdims=True)
    return stretches, np.stack((-np.sort(-knots, axis=1), weights), axis=2)


def _fit_polynomials(slowdowns: FloatArray, degree: int) -> DrawnModels:
    """One for each column: the slowdowns at `_SHARES`."""
    rows = np.polynomial.polynomial.polyfit(_SHARES, slowdowns, degree).T
    lengths = np.full(len(rows), degree + 1)
    return DrawnModels(are_hinges=False, lengths=lengths, numbers=rows.ravel())


TABLE = find_table("saba-fig4-19")
SIZES = tuple(int(size) for size in TABLE.column("applications"))
SYSTEM = "this machine, one core"
SCENARIOS = 20
PERCENTILE = 0.99


def _setting(applications: int) -> str:
    return f"{applications:,} applications"


def calculation_times_ns(applications: int, scenarios: int) -> dict[str, list[int]]:
    """CPU time of the split of all ports, by kind of model, one for each random scenario."""
    return _time_scenarios([applications] * scenarios, np.random.default_rng(SEED))


@cache
def _draw_times_ns(scenarios: int) -> tuple[Ints, dict[str, list[int]]]:
    """Sizes from 1 application to the most of the thesis, and their times."""
    rng = np.random.default_rng(SEED)
    sizes = rng.integers(1, SIZES[-1] + 1, scenarios)
    return sizes, _time_scenarios(sizes.tolist(), rng)


def _time_scenarios(sizes: Sequence[int], rng: np.random.Generator) -> dict[str, list[int]]:
    wiring = FabricArrays(papers_1944())
    times: dict[str, list[int]] = {kind: [] for kind in KINDS}
    for applications in sizes:
        ports, _places = wiring.ports(*draw_connections(rng, wiring.hosts, applications))
        for kind, models in draw_models(rng, applications).items():
            prepared = models.prepare()
            begin = time.thread_time_ns()
            allocate(prepared, ports, units=UNITS)
            times[kind].append(time.thread_time_ns() - begin)
    return times


def _point(applications: int, scenarios: int) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        times = calculation_times_ns(applications, scenarios)
        return {kind: _distribution(times_ns) for kind, times_ns in times.items()}

    settings = {"applications": applications, "scenarios": scenarios}
    return record_point(_setting(applications), settings, quantities, SYSTEM, "calculation time")


def _drawn_point(most: int, scenarios: int) -> Point:
    def quantities() -> Mapping[str, Quantity]:
        sizes, times = _draw_times_ns(scenarios)
        chosen = np.flatnonzero(sizes <= most)
        if not len(chosen):
            raise Unavailable(f"no scenario of up to {most:,} applications was drawn")
        return {
            kind: _distribution(np.array(times_ns)[chosen].tolist())
            for kind, times_ns in times.items()
        }

    settings: dict[str, str | int] = {"applications": f"1 to {most:,}", "scenarios": scenarios}
    return record_point(_drawn_setting(most), settings, quantities, SYSTEM, "calculation time")


def _drawn_setting(most: int) -> str:
    return f"up to {_setting(most)}"


def _judge_percentile(most: int, kind: str, published: float) -> Callable[[Records], Verdict]:
    def judge(records: Records) -> Verdict:
        ours = quantile_in(records[_drawn_setting(most)], kind, PERCENTILE, "s")
        return Verdict(holds=ours <= published, evidence=f"ours {ours:.3g} s, stated {published} s")

    return judge


def build_drawn_fig4_19(scenarios: int) -> Study:
    """The study with so many random scenarios of 1 to 1,000 applications; the thesis: 30,000."""
    few = build_fig4_19(scenarios)
    return replace(
        few,
        points=tuple(_drawn_point(most, scenarios) for most in SIZES),
        observations=tuple(
            Observation(
                setting=f"{_drawn_setting(most)}, {kind}",
                quantity=f"calculation time, p99 of {scenarios:,} scenarios",
                unit="s",
                kind="value",
                published=_find_published(most).get(kind),
                read=partial(_read_percentile, _drawn_setting(most), kind),
                place=TABLE.place,
                source="measurement",
                system=SYSTEM,
                tolerance=ANOTHER_SYSTEM,
            )
            for most in SIZES
            for kind in KINDS
        ),
        claims=(*_claim_growth(_drawn_setting(SIZES[-1]), SYSTEM), *_claim_percentiles(SYSTEM)),
        panels=(partial(_draw, _drawn_setting(SIZES[-1])),),
        notes=(
            f"{scenarios:,} random scenarios of 1 to 1,000 applications (the thesis: 30,000), "
            "1,944 servers and 264 switches, ports of servers included. Which instances talk is "
            "not stated: each sends to the next of its application.",
        ),
    )


def _claim_percentiles(system: str) -> tuple[Claim, ...]:
    judges = {
        f"{_drawn_setting(most)}, {kind}: p99 at most {published} s".capitalize(): (
            _judge_percentile(most, kind, published)
        )
        for most in SIZES
        for kind, published in _find_published(most).items()
    }
    return build_claims(TABLE.place, "measurement", system, judges)


def _read_percentile(setting: str, kind: str, records: Records) -> float:
    return quantile_in(records[setting], kind, PERCENTILE, "s")


def _distribution(times_ns: list[int]) -> Distribution:
    histogram = Histogram()
    histogram.record_many(np.array(times_ns, dtype=np.int64))
    return Distribution(unit="ns", histogram=histogram)


def _row(applications: int, scenarios: int, kind: str, published: float | None) -> Observation:
    setting = _setting(applications)
    return Observation(
        setting=f"{setting}, {kind}",
        quantity=f"calculation time, most of {scenarios}",
        unit="s",
        kind="value",
        published=published,
        read=lambda records: quantile_in(records[setting], kind, 1.0, "s"),
        place=TABLE.place,
        source="measurement",
        system=SYSTEM,
        tolerance=ANOTHER_SYSTEM,
    )


def _find_published(applications: int) -> Mapping[str, float]:
    row = TABLE.rows[SIZES.index(applications)]
    return {f"k = {k}": float(row[k]) for k in (1, 2, 3)}


def _claim_growth(setting: str, system: str) -> tuple[Claim, ...]:
    statement = "Models of a higher degree take longer to calculate with."
    judges = {statement: partial(_judge_growth, setting)}
    return build_claims(TABLE.place, "measurement", system, judges)


def _judge_growth(setting: str, records: Records) -> Verdict:
    """By the 95 % intervals of the medians: open where two of them overlap."""
    record = records[setting]
    medians = [_median_ms(record, kind) for kind in KINDS[:3]]
    text = ", ".join(f"{low:.2f}–{high:.2f} ms" for low, high in medians)
    evidence = f"medians of {KINDS[0]}, 2, 3 with {setting}: {text}"
    if any(before[0] > after[1] for before, after in combinations(medians, 2)):
        return Verdict(holds=False, evidence=evidence)
    rises = all(before[1] < after[0] for before, after in pairwise(medians))
    return Verdict(holds=True if rises else None, evidence=evidence)


def _median_ms(record: Record, kind: str) -> tuple[float, float]:
    """The interval of the median."""
    times = record.quantities[kind]
    assert isinstance(times, Distribution)
    low, high = times.interval(0.5)
    if low is None or high is None:
        raise Unavailable("too few scenarios for an interval of the median")
    return low / 1e6, high / 1e6


def _draw(setting: str, ax: Axes, result: Result) -> None:
    record = result.records[setting]
    levels = np.linspace(0.01, 1, 100)
    for number, kind in enumerate(KINDS):
        times = [quantile_in(record, kind, float(q), "s") for q in levels]
        ax.step(times, levels, where="post", color=COLOURS[number], label=kind)
        if kind in _find_published(SIZES[-1]):
            points = [(_find_published(SIZES[-1])[kind], 0.99)]
            draw_published(ax, points, f"published: {kind}, p99", MARKERS[number], 7)
    ax.set_xscale("log")
    label_log_axis(ax.xaxis)
    name_axes(ax, f"calculation time, {setting} (s)", "share of scenarios")


def build_fig4_19(scenarios: int) -> Study:
    """The study with so many random scenarios of each size."""
    return Study(
        name="saba-fig4.19",
        title="Calculation time of the weights of a whole fabric",
        paper=SABA_PAPER,
        place="Figure 4.19, 4.6.5",
        system=SYSTEM,
        points=tuple(_point(size, scenarios) for size in SIZES),
        observations=tuple(
            _row(size, scenarios, kind, _find_published(size).get(kind))
            for size in SIZES
            for kind in KINDS
        ),
        claims=_claim_growth(_setting(SIZES[-1]), SYSTEM),
        panels=(partial(_draw, _setting(SIZES[-1])),),
        notes=(
            f"{scenarios} random scenarios of exactly the size named (the thesis: 30,000 of 1 to "
            "1,000 applications), 1,944 servers and 264 switches, ports of servers included. Which "
            "instances talk is not stated: each sends to the next of its application.",
            "Published are 99th percentiles, which so few scenarios do not have: the most is told. "
            "`python -m bench allocate` times 1,000 scenarios and single connections.",
        ),
    )


# ---- The recorded run -------------------------------------------------------------------------


def add_recorded_run(study: Study, path: Path) -> Study:
    """The study with its claims judged by a run that was recorded, of drawn sizes."""
    contents = read_records(path)
    records = {
        _drawn_setting(most): record
        for most in SIZES
        for record in contents.records
        if record.settings.get("applications") == f"1 to {most:,}"
    }
    scenarios = f"{records[_drawn_setting(SIZES[-1])].settings['scenarios']:,}"
    system = f"a recorded run of {scenarios} scenarios"
    points = [
        record_point(
            setting, record.settings, partial(dict, record.quantities), system, "calculation time"
        )
        for setting, record in records.items()
    ]
    return replace(
        study,
        points=(*study.points, *points),
        claims=(*_claim_growth(_drawn_setting(SIZES[-1]), system), *_claim_percentiles(system)),
        panels=(partial(_draw, _drawn_setting(SIZES[-1])),),
        notes=(
            *study.notes,
            f"Percentiles are of a recorded run of {scenarios} scenarios "
            "(src/weft/studies/saba/recorded/fig4.19.jsonl).",
        ),
    )


FIG4_19 = add_recorded_run(build_fig4_19(SCENARIOS), RECORDED / "fig4.19.jsonl")
