"""Jobs for the experiments of the thesis's section 4.6: ten of its testbed, twenty synthetic.

**Which slowdowns a job can have** that is alone on a capped port. A job is computations and
messages that wait for each other. Let the port send its messages in a fixed order and never idle
while one waits. Completion is then the longest path: of its messages S_p, of its computations C_p.
At the share b, with x = 1/b and S the time of all messages at the full rate:

    T(x) = max over paths p of C_p + S_p x,    0 <= S_p <= S,    T(x) >= S x

So D(x) = T(x) / T(1) is convex in x, never falls, and with the volume V = S / T(1)

    slope of D <= V <= D(x) / x = b D(b)    for every b    (volume bound)

The other way round, every such D through given points comes from stages one after another: with
slopes m_1 <= ... <= m_k between the points, one stage that sends m_1 after computing, and for each
rise of the slope one that sends beside a computation and hides it up to that point:

    D(x) = 1 + Σ c_j max(0, t_j x − 1),    c_j >= 0,    0 < t_j <= 1,    Σ c_j <= 1

(Σ c_j <= 1 is the volume bound: computation hides no more than there is of it.) Hence a linear
programme answers which values can come from one job. Published values are rounded: each stands for
an interval.

**Stages from slowdowns.** Each loop has up to two stages. `exchange` computes, then sends: E of the
time alone, all of it waited for. `stream` sends beside a computation of length H, hidden down to a
quarter of the link:

    D(b) = 1 + E (1/b − 1) + H max(0, 0.25/b − 1),    E, H >= 0,    E + H <= 1

The last is the volume bound. E and H are the least squares of relative errors, by non-negative
least squares with a slack. Where the slowdowns leave H open, a volume decides. `complete_s` is the
closed form of such a job alone, from its stages and not from E and H.

**The ten.** `testbed.toml` has the stated slowdowns and our suppositions, `jobs/NAME.toml` the job
that `fit_job` gives, as a job file with both slowdowns side by side;
tests/unit/test_saba_workloads.py compares these files with the fit and can write them.

**Synthetic workloads** have sensitivities spread like those of the ten (Fig. 3.1): slowdowns with
25 % of the link are drawn from the ten workloads', one from each of as many equal parts of their
distribution. Computation, communication, stages, loops and length are random within what the
slowdown allows: the same sensitivity comes from short jobs and long ones, with few stages and many,
that hide much of what they send or nothing.

**Profiles** as the thesis makes them (4.2.1, 4.6.4): on one rack, at seven shares, every link of a
host capped. Nothing is read off the job's parameters. At the packet level a job of minutes is too
long: computation and volume shrink together until messages have a few packets, and loops that
repeat the others are left out.

Entry points: `read_testbed`, `fit_job`, `make_synthetic`, `profile_job`; `bound_slowdown`,
`is_reachable`, `select_reachable`, `highest_r_squared`. Shares are fractions of the link. Units:
seconds, bytes, bits per second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import InputError
from weft.jobs import Job, load_job, read_job
from weft.records import Scalar
from weft.sensitivity.application import PAPER_SHARES, Application, Profile, Run, fit_application
from weft.sensitivity.model import FloatArray
from weft.simulate import scenario_from, simulate
from weft.toml_table import Table, load_toml

# ---- The volume bound -------------------------------------------------------------------------

Interval = tuple[float, float]
_STARTS = 8  # of the search for the highest R²; all end at the same value


def bound_slowdown(stated: Mapping[float, Interval], share: float) -> Interval | None:
    """Least and greatest slowdown at a share, given intervals at others; None: no job has those."""
    ends = [_solve(stated, share, sign) for sign in (1, -1)]
    if ends[0] is None or ends[1] is None:
        return None
    return ends[0], ends[1]


def is_reachable(stated: Mapping[float, Interval]) -> bool:
    """Whether one job can have a slowdown in each interval."""
    return _solve(stated, 1.0, 1) is not None


def select_reachable(stated: Mapping[float, Interval]) -> tuple[float, ...]:
    """The most shares whose intervals one job can meet; of equally many, the higher shares."""
    shares = sorted(stated, reverse=True)
    for count in range(len(shares), 0, -1):
        for selection in combinations(shares, count):
            if is_reachable({share: stated[share] for share in selection}):
                return selection
    return ()


def _solve(stated: Mapping[float, Interval], share: float, sign: int) -> float | None:
    """The least (sign 1) or greatest (-1) D at the share; unknowns are D at all shares, and V."""
    from scipy.optimize import linprog  # see weft.model.fit

    shares = sorted({1.0, share, *stated}, reverse=True)
    x = 1 / np.array(shares)
    count = len(shares)
    # Whoever computes next to nothing and only sends has D = x: more there is not.
    limits = [(1.0, 1.0) if b == 1 else stated.get(b, (1.0, 1 / b)) for b in shares]
    slopes = np.zeros((count - 1, count + 1))
    for n in range(count - 1):
        slopes[n, n : n + 2] = np.array([-1, 1]) / (x[n + 1] - x[n])
    volume = np.zeros(count + 1)
    volume[count] = 1
    rows = [slopes[n] - slopes[n + 1] for n in range(count - 2)]
    if count > 1:
        rows += [-slopes[0], slopes[-1] - volume]
    for n in range(count):
        rows.append(volume * x[n])
        rows[-1][n] = -1
    objective = np.zeros(count + 1)
    objective[shares.index(share)] = sign
    answer = linprog(objective, np.array(rows), np.zeros(len(rows)), bounds=[*limits, (0, 1)])
    return float(answer.x[shares.index(share)]) if answer.success else None


# ---- R² of polynomials ------------------------------------------------------------------------


def highest_r_squared(shares: Sequence[float], degree: int) -> float:
    """The best R² that a polynomial in b can have on any job profiled at these shares.

    R² does not change with the scale of D − 1: the search is over mixes of hinges at the shares.
    """
    from scipy.optimize import minimize

    b = np.array(sorted(shares))
    hinges = np.maximum(0, b[None, 1:] / b[:, None] - 1)  # none at the least: it is 0 everywhere
    powers = np.vander(b, degree + 1)
    residual = hinges - powers @ np.linalg.lstsq(powers, hinges, rcond=None)[0]
    spread = hinges - hinges.mean(axis=0)

    def compute_residual(mix: FloatArray) -> float:
        return float(((residual @ mix) ** 2).sum() / ((spread @ mix) ** 2).sum())

    starts = [*np.eye(len(b) - 1), *np.random.default_rng(1).random((_STARTS, len(b) - 1))]
    scaled = (start / np.abs(hinges @ start).max() for start in starts)
    minima: Iterable[float] = (
        minimize(compute_residual, start + 1e-6, bounds=[(0, None)] * len(start)).fun
        for start in scaled
    )
    return 1 - min(minima)


# ---- Jobs -------------------------------------------------------------------------------------

HIDDEN_TO = 0.25  # a stream costs nothing down to this share
_BINDING = 1e6  # weight of the volume bound
_WEAK = 1e-3  # weight of a volume beside slowdowns


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Of a job's time alone: what it sends after computing (E), computes while sending (H)."""

    exchanged: float
    streamed: float

    @property
    def volume(self) -> float:
        """V: what is sent, at the full rate, over the time alone."""
        return self.exchanged + HIDDEN_TO * self.streamed

    def slowdown(self, share: float) -> float:
        hidden = self.streamed * max(0.0, HIDDEN_TO / share - 1)
        return 1 + self.exchanged * (1 / share - 1) + hidden


def fit_mix(slowdowns: Mapping[float, float], volume: float | None) -> Mix:
    """The mix closest to the slowdowns by share; `volume` None: nothing is sent beside."""
    from scipy.optimize import nnls  # see weft.model.fit

    terms = Mix(exchanged=1, streamed=0), Mix(exchanged=0, streamed=1)
    rows = [[*((t.slowdown(b) - 1) / d for t in terms), 0.0] for b, d in slowdowns.items()]
    right = [(d - 1) / d for d in slowdowns.values()]
    rows.append([_BINDING] * 3)
    right.append(_BINDING)
    if volume is not None:
        rows.append([_WEAK, _WEAK * HIDDEN_TO, 0.0])
        right.append(_WEAK * volume)
    matrix = np.array(rows)
    if volume is None:
        matrix[:, 1] = 0
    (exchanged, streamed, _), _ = nnls(matrix, np.array(right))
    return Mix(exchanged=float(exchanged), streamed=float(streamed))


def build_stages(
    mix: Mix, alone_s: float, loops: int, rate_bps: float, pieces: Sequence[float] = (1.0,)
) -> list[dict[str, Any]]:
    """The stages of one loop, as in a job file; times in whole ms, volumes in whole MB.

    `pieces` are the parts of the exchange, each a stage.
    """
    loop_s = alone_s / loops
    computed = max(0.0, 1 - mix.exchanged - mix.streamed)
    names = (
        [f"exchange-{n}" for n in range(1, len(pieces) + 1)] if len(pieces) > 1 else ["exchange"]
    )
    stages = [
        _make_stage(name, piece * computed, piece * mix.exchanged, 0.0, loop_s, rate_bps)
        for name, piece in zip(names, pieces, strict=True)
    ]
    if mix.streamed:
        hidden = HIDDEN_TO * mix.streamed
        stages.append(_make_stage("stream", mix.streamed, hidden, 1.0, loop_s, rate_bps))
    return stages


def _make_stage(
    name: str, computed: float, sent: float, overlap: float, loop_s: float, rate_bps: float
) -> dict[str, Any]:
    return {
        "name": name,
        "compute": f"{round(computed * loop_s * 1e3)} ms",
        "volume": f"{round(sent * loop_s * rate_bps / 8e6)} MB",
        "pattern": "shuffle",
        "overlap": overlap,
    }


def complete_s(job: Job, rate_bps: float, share: float = 1.0) -> float:
    """Completion alone, its ports capped at a share: max(C + (1 − o) S / b, S / b) a stage."""
    if job.loops is None:
        raise InputError(job.where, "loops until the end", "give a number of loops")
    total = 0.0
    for number, stage in enumerate(job.stages):
        if stage.pattern not in ("", "shuffle"):
            problem = f"stage {stage.name} is {stage.pattern}"
            raise InputError(job.where, problem, "the closed form is of shuffles; simulate it")
        if stage.after != ((number - 1,) if number else ()):
            problem = f"stage {stage.name} does not follow the one before"
            raise InputError(job.where, problem, "the closed form is of a chain; simulate it")
        sending_s = 8 * stage.volume_bytes / (rate_bps * share)
        total += max(stage.compute_ps / 1e12 + (1 - stage.overlap) * sending_s, sending_s)
    return job.loops * total


# ---- The ten workloads of the testbed ---------------------------------------------------------


HERE = Path(__file__).parent
QUARTER = 0.25
_ROUNDING = 0.05 * (1 + 1e-9)  # of a slowdown printed with one decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """A slowdown that the text states, alone with a share of the link."""

    share: float
    slowdown: float
    place: str

    @property
    def interval(self) -> Interval:
        """The values that are printed so."""
        return self.slowdown - _ROUNDING, self.slowdown + _ROUNDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload of the thesis. `supposed`: slowdown at 25 %, None where one is stated."""

    name: str
    title: str
    loops: int
    alone_s: float
    overlapped: bool
    stated: tuple[Stated, ...]
    supposed: float | None
    instances: int
    rate_bps: float
    overlapped_volume: float  # of the bound

    @property
    def intervals(self) -> dict[float, Interval]:
        return {entry.share: entry.interval for entry in self.stated}

    @property
    def fitted_shares(self) -> tuple[float, ...]:
        """Those whose stated slowdowns one job can have."""
        return select_reachable(self.intervals)

    @property
    def targets(self) -> dict[float, float]:
        """What the job is fitted to."""
        if self.supposed is not None:
            return {QUARTER: self.supposed}
        return {s.share: s.slowdown for s in self.stated if s.share in self.fitted_shares}

    @property
    def job(self) -> Job:
        """The job in its file."""
        return load_job(HERE / "jobs" / f"{self.name.lower()}.toml")

    def slowdown(self, share: float) -> float:
        """Of the job alone with a share of the link, in closed form."""
        job = self.job
        return complete_s(job, self.rate_bps, share) / complete_s(job, self.rate_bps)

    def bound(self, share: float) -> Interval:
        """What the slowdown at a share can be, given the other fitted ones that are stated."""
        intervals = {b: self.intervals[b] for b in self.fitted_shares if b != share}
        bound = bound_slowdown(intervals, share)
        assert bound is not None  # they were selected as reachable
        return bound


@cache
def read_testbed() -> Mapping[str, Workload]:
    """The workloads by name, in the order of Table 3.1."""
    path = HERE / "testbed.toml"
    top = Table(load_toml(path), str(path))
    rate_bps = top.rate_bps("rate")
    instances = top.integer("instances", 2, 1000)
    overlapped_volume = top.number("overlapped_volume", 0.0, 1.0)
    workloads = [
        _read_workload(entry, instances, rate_bps, overlapped_volume)
        for entry in top.tables("workload")
    ]
    top.done()
    return {workload.name: workload for workload in workloads}


def _read_workload(
    entry: Table, instances: int, rate_bps: float, overlapped_volume: float
) -> Workload:
    workload = Workload(
        name=entry.text("name"),
        title=entry.text("title"),
        loops=entry.integer("loops", 1, 1000),
        alone_s=entry.number("alone_s", 0.0, 1e6),
        overlapped=entry.flag("overlapped"),
        stated=tuple(
            Stated(
                share=row.number("share", 0.0, 1.0),
                slowdown=row.number("slowdown", 1.0, 1e3),
                place=row.text("place"),
            )
            for row in entry.tables("stated", [])
        ),
        supposed=entry.number("supposed", 1.0, 4.0) if entry.has("supposed") else None,
        instances=instances,
        rate_bps=rate_bps,
        overlapped_volume=overlapped_volume,
    )
    entry.done()
    return workload


def fit_job(workload: Workload) -> Mix:
    """How the workload's job mixes computing and sending."""
    targets = workload.targets
    volume = workload.overlapped_volume * min(share * d for share, d in targets.items())
    return fit_mix(targets, volume if workload.overlapped else None)


# ---- Synthetic workloads ----------------------------------------------------------------------


COUNT = 20  # of the thesis (4.6.1)
INSTANCES = 97
RATE_BPS = 56e9
MAX_COUNT = 1000
_LENGTH_S = (30.0, 150.0)  # at 56 Gb/s a stage stays within what a job file allows
_LOOPS = (1, 2, 4, 8, 16)
_EXCHANGES = (1, 2, 3)  # a loop


def make_synthetic(seed: int, count: int = COUNT, *, instances: int = INSTANCES) -> tuple[Job, ...]:
    """Jobs `s1` to `s20`, the least sensitive first; the same seed gives the same jobs."""
    if not 1 <= count <= MAX_COUNT:
        raise InputError("count", f"{count} workloads", f"use 1 to {MAX_COUNT}")
    rng = np.random.default_rng(seed)
    ten = sorted(workload.slowdown(QUARTER) for workload in read_testbed().values())
    places = (np.arange(count) + rng.random(count)) / count
    slowdowns = np.interp(places, np.linspace(0, 1, len(ten)), ten)
    return tuple(
        _make_job(rng, f"s{number}", float(slowdown), instances)
        for number, slowdown in enumerate(slowdowns, 1)
    )


def _make_job(rng: np.random.Generator, name: str, slowdown: float, instances: int) -> Job:
    exchanged = (slowdown - 1) / (1 / QUARTER - 1)
    # Down to a quarter of the link a stream is hidden, so any is possible beside the exchange.
    mix = Mix(exchanged=exchanged, streamed=float(rng.random()) * (1 - exchanged))
    alone_s = float(np.exp(rng.uniform(*np.log(_LENGTH_S))))
    loops = int(rng.choice(_LOOPS))
    pieces = rng.dirichlet(np.full(int(rng.choice(_EXCHANGES)), 4.0)).tolist()
    table = {
        "name": name,
        "instances": instances,
        "loops": loops,
        "placement": "random",
        "stage": build_stages(mix, alone_s, loops, RATE_BPS, pieces),
    }
    return read_job(Table(table, f"synthetic workload {name}"))


# ---- Profiles ---------------------------------------------------------------------------------


NODES = 18  # of the thesis's rack (4.6.4)
MESSAGE_BYTES = 65_536  # of a shrunk job, the mean
LOOPS = 2
_LIMIT = "1000 s"


def profile_job(job: Job, *, nodes: int = NODES) -> Application:
    """The job as an application: completion on `nodes` hosts at each share, and fitted models."""
    small = shrink_job(job, nodes)
    runs = [Run(share=share, completion=_run_s(small, RATE_BPS * share)) for share in PAPER_SHARES]
    profile = Profile(
        name=job.name,
        runs=tuple(runs),
        link_bps=RATE_BPS,
        machine={"simulated": "packet level", "nodes": nodes},
        notes=(f"shrunk to {small.loops} loops", "one switch, virtual output queues"),
    )
    return fit_application(profile)


def shrink_job(job: Job, nodes: int) -> Job:
    """The job with less of everything: `nodes` instances, few loops, short messages."""
    if job.loops is None:
        raise InputError(job.where, "loops until the end", "give a number of loops")
    volumes = [stage.volume_bytes for stage in job.stages if stage.volume_bytes]
    wanted = MESSAGE_BYTES * (nodes - 1) * len(volumes)
    factor = min(1.0, wanted / sum(volumes)) if volumes else 1.0
    stages = tuple(
        replace(
            stage,
            compute_ps=round(stage.compute_ps * factor),
            volume_bytes=round(stage.volume_bytes * factor),
        )
        for stage in job.stages
    )
    return replace(job, instances=nodes, loops=min(job.loops, LOOPS), stages=stages)


def _run_s(job: Job, rate_bps: float) -> float:
    scenario = scenario_from(
        {
            "name": job.name,
            "duration": _LIMIT,
            "fabric": {
                "topology": "one_switch",
                "hosts": job.instances,
                "rate": f"{rate_bps:.0f} b/s",
                "delay": "50 ns",
            },
            "switch": {"virtual_output_queues": True},
            "job": [describe_job(job)],
        }
    )
    completion = simulate(scenario).record.quantities.get(f"{job.name}.completion")
    if not isinstance(completion, Scalar):
        raise InputError(job.where, f"did not finish in {_LIMIT}", "profile a shorter job")
    return completion.value / 1e6


def describe_job(job: Job) -> dict[str, Any]:
    """The job as in a scenario."""
    stages = []
    for stage in job.stages:
        entry: dict[str, Any] = {"name": stage.name, "compute": f"{stage.compute_ps} ps"}
        if stage.pattern:
            entry |= {"volume": f"{stage.volume_bytes} B", "pattern": stage.pattern}
            entry |= {"overlap": stage.overlap, "flows": stage.flows}
        if stage.pattern == "bulk-synchronous":
            entry["neighbours"] = stage.neighbours
        if stage.roots:
            entry["servers" if stage.pattern == "star" else "aggregators"] = stage.roots
        entry["after"] = [job.stages[before].name for before in stage.after]
        stages.append(entry)
    return {"name": job.name, "instances": job.instances, "loops": job.loops, "stage": stages}
