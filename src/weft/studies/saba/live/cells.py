"""What runs for real: workloads, cells, the set-up that a seed gives, and ways to share its ports.

A workload `b25` computes, then sends for 25 % of its time alone at the whole link, and waits for
it (blocking); `o25` sends as much while it computes (overlapped). All instances shuffle, so every
port of the testbed carries the same. A cell has a number of jobs, their load (the sum of V, the
part of its time that each would fill a port), and batches or loops. Sizes and workloads are fixed
here before the runs; docs/saba-hypotheses.md has the rules.

A way to share gives each job a queue of HTB of its own, or all have one. Weights come from
`weft.control.policy`, with the models of the profiles. SRPT serves strictly by the bytes that a job
has left, which `order_by_bytes_left` turns into priorities.
Entry points: `CELLS`, `draw`, `build_job`; `LIVE_WAYS`, `weigh`, `build_live_queues`. Weights are
fractions of the link. Units: s, bits per second, bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, exp, log
from random import Random

from weft.control.policy.allocate import allocate
from weft.control.policy.lending import MAX_APPLICATIONS, choose_weights
from weft.control.policy.objectives import weigh_by_size
from weft.corun.rounds import MANAGED, application_dscp
from weft.host.net.htb import PRIORITIES, Queue
from weft.jobs import Job
from weft.jobs.job_file import Stage
from weft.sensitivity.model import Hinges

# ---- Ways -------------------------------------------------------------------------------------

ONE, CAPS, EQUAL, SABA, LENDING, SRPT, PLACEBO = LIVE_WAYS = (
    "one queue",
    "fixed caps",
    "equal queues",
    "Saba",
    "Saba, lending",
    "SRPT",
    "placebo",
)
# Not of the thesis's question (docs/saba-policy.md): by the bytes of the job, and of its profile.
SIZE, PROFILE_SIZE = "size", "size of the profile"
WAYS = (*LIVE_WAYS, SIZE, PROFILE_SIZE)
_KBPS = 1000


def list_ways(count: int) -> tuple[str, ...]:
    """The ways that so many jobs can share by: lending evaluates every subset of them."""
    return tuple(way for way in LIVE_WAYS if way != LENDING or count <= MAX_APPLICATIONS)


def weigh(
    way: str, models: Sequence[Hinges], workloads: Sequence[str], *, rate_bps: float, seed: int
) -> tuple[float, ...]:
    """The weight of each job; empty where there is one queue."""
    units = round(rate_bps / _KBPS)
    if way == ONE:
        return ()
    if way in (EQUAL, SRPT):
        return (MANAGED / len(models),) * len(models)
    if way == LENDING:
        return tuple(choose_weights(models, MANAGED, units=units).tolist())
    used = permute_models(models, workloads, seed) if way == PLACEBO else models
    answer = allocate(used, [range(len(used))], units=units, capacity=MANAGED).at(0)
    return tuple(answer[n] / units for n in range(len(used)))


def share_by_size(sizes: Sequence[float]) -> tuple[float, ...]:
    """By the controller's rule: in inverse proportion to the bytes that each job will send."""
    weights = weigh_by_size(sizes)
    return tuple(MANAGED * weight / sum(weights) for weight in weights)


def permute_models(
    models: Sequence[Hinges], workloads: Sequence[str], seed: int
) -> Sequence[Hinges]:
    """Every workload with another one's model: a random cycle of those that are there."""
    model_of = dict(zip(workloads, models, strict=True))
    names = sorted(model_of)
    Random(f"placebo {seed}").shuffle(names)
    other = {name: model_of[names[n - 1]] for n, name in enumerate(names)}
    return [other[name] for name in workloads]


def order_by_bytes_left(bytes_left: Sequence[float]) -> tuple[int, ...]:
    """A strict priority for each job, the fewest bytes first; as many jobs as fit share one."""
    order = sorted(range(len(bytes_left)), key=lambda n: bytes_left[n])
    each = -(-len(bytes_left) // PRIORITIES)
    priority = {job: rank // each for rank, job in enumerate(order)}
    return tuple(priority[job] for job in range(len(bytes_left)))


def build_live_queues(
    way: str, weights: Sequence[float], priorities: Sequence[int] = ()
) -> list[Queue]:
    """The queue of unmarked packets, and one for each job."""
    if way == ONE:
        return [Queue(weight=1.0, dscps=(0,))]
    jobs = [
        Queue(
            weight=weight,
            dscps=(application_dscp(n),),
            is_capped=way == CAPS,
            priority=priorities[n] if way == SRPT else None,
        )
        for n, weight in enumerate(weights)
    ]
    return [Queue(weight=1 - MANAGED, dscps=(0,)), *jobs]


# ---- Cells ------------------------------------------------------------------------------------

HOSTS = ("h1", "h2", "h3")
RATE_BPS = 20_000_000
HEADERS = 1.046  # Ethernet, IP and TCP beside the payload of full packets
ITERATIONS = 5  # of a batch's job
LENGTH_S = (1.5, 5.0)  # of a job alone
LONG_S, LONG_ITERATIONS = (30.0, 60.0), 10  # of a long cell's job
PROFILE_S, PROFILE_LOOPS = 1.5, 3  # a workload's length and loops while it is profiled
TENFOLD = 10  # the profiled data, of half of the jobs of a cell of stated sizes
LOOP_S = (0.8, 2.4)  # of an iteration alone, where jobs loop
DURATION_S = 20.0  # of a round of loops
LIMIT_S, LONG_LIMIT_S = 150.0, 600.0  # of a round
TOLERANCE = 0.1  # of the load that a draw may be off
_PS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """`volume` is V; `is_blocking`: it waits for what it sends."""

    name: str
    volume: float
    is_blocking: bool


WORKLOADS: Mapping[str, Workload] = {
    f"{kind}{percent:02}": Workload(
        name=f"{kind}{percent:02}", volume=percent / 100, is_blocking=kind == "b"
    )
    for kind in "bo"
    for percent in (6, 12, 25, 50, 90)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A real program; TIMES in its command is how often it runs: once while it is profiled.

    In a round it runs as often as it takes to last `least_s` alone. `service` answers it, stays
    while all rounds run, and says `ready` when it can.
    """

    name: str
    command: tuple[str, ...]
    service: tuple[str, ...] = ()
    least_s: float = 0.0

    def count_times(self, profiled_s: float) -> int:
        """In a round, if it takes so long alone."""
        return max(1, ceil(self.least_s / profiled_s))

    def repeat(self, times: int) -> tuple[str, ...]:
        return tuple(str(times) if word == "TIMES" else word for word in self.command)


_PLACE = "examples/applications"
PROGRAMS: Mapping[str, Application] = {
    name: Application(name=name, command=tuple(f"{_PLACE}/{line}".split()))
    for name, line in (
        ("rsync", "rsync files-0.25"),
        ("pg-dump", "pg_dump tables-0.25"),
        ("mpi-sgd", "mpi 3 sgd.py 9 60000 50"),
        ("mpi-stencil", "mpi 3 stencil.py 25 100 10000"),
    )
}
SPARK: Mapping[str, Application] = {
    f"spark-{job}": Application(
        name=f"spark-{job}",
        command=(f"{_PLACE}/spark", job, "TIMES", str(number)),
        service=(f"{_PLACE}/spark", "serve", str(number), *HOSTS),
        least_s=LONG_S[0],
    )
    for number, job in enumerate(("lr", "sort"))
}
APPLICATIONS = {**PROGRAMS, **SPARK}
SPREAD = 0.2  # of its time alone, by which the start of an application differs


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`count` jobs that ask for `load` of a port in all; None: what the programs ask for.

    `ways` are those that a set-up needs to count; empty: all that so many jobs can share by.
    """

    name: str
    count: int
    load: float | None
    is_loop: bool = False
    programs: tuple[str, ...] = ()
    is_favourable: bool = False
    is_long: bool = False
    is_stated: bool = False
    ways: tuple[str, ...] = ()

    @property
    def limit_s(self) -> float:
        """A job that has not ended by then counts with it."""
        return LONG_LIMIT_S if self.is_long else LIMIT_S


LONG_WAYS = (ONE, EQUAL, SABA, PLACEBO, SIZE)
CELLS: Mapping[str, Cell] = {
    cell.name: cell
    for cell in (
        Cell(name="batch-4-0.5", count=4, load=0.5),
        Cell(name="batch-4-2", count=4, load=2.0),
        Cell(name="batch-8-2", count=8, load=2.0),
        Cell(name="batch-16-4", count=16, load=4.0),
        Cell(name="favourable-8", count=8, load=None, is_favourable=True),
        Cell(name="loops-2-1", count=2, load=1.0, is_loop=True),
        Cell(name="loops-8-2", count=8, load=2.0, is_loop=True),
        Cell(name="programs-4", count=4, load=None, programs=tuple(PROGRAMS)),
        Cell(
            name="spark-2", count=2, load=None, programs=tuple(SPARK), is_long=True, ways=LONG_WAYS
        ),
        Cell(name="batch-10-4", count=10, load=4.0),
        Cell(name="long-4-2", count=4, load=2.0, is_long=True, ways=LONG_WAYS),
        Cell(name="long-8-2", count=8, load=2.0, is_long=True, ways=LONG_WAYS),
        Cell(
            name="long-favourable-8",
            count=8,
            load=None,
            is_long=True,
            is_favourable=True,
            ways=LONG_WAYS,
        ),
        Cell(
            name="stated-8-4", count=8, load=4.0, is_stated=True, ways=(EQUAL, PROFILE_SIZE, SIZE)
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnJob:
    """A job of a set-up: its workload or program, how long it is alone, and when it starts."""

    workload: str
    length_s: float = 0.0
    start_s: float = 0.0
    iterations: int = ITERATIONS


def draw(cell: Cell, seed: int) -> tuple[DrawnJob, ...]:
    """The set-up of a seed, the same for every way."""
    random = Random(f"{cell.name} {seed}")
    if cell.programs:
        return tuple(
            DrawnJob(workload=name, start_s=random.uniform(0, SPREAD)) for name in cell.programs
        )
    if cell.is_favourable:
        return _draw_favourable(random, is_long=cell.is_long)
    assert cell.load is not None
    names = draw_workloads(random, cell.count, cell.load)
    if cell.is_stated:
        return _draw_tenfold(random, names)
    low, high = LOOP_S if cell.is_loop else LONG_S if cell.is_long else LENGTH_S
    return tuple(
        DrawnJob(
            workload=name,
            length_s=exp(random.uniform(log(low), log(high))),
            iterations=LONG_ITERATIONS if cell.is_long else ITERATIONS,
        )
        for name in names
    )


def draw_workloads(random: Random, count: int, load: float) -> Sequence[str]:
    """Any of them, until their load is near enough and at least two differ."""
    while True:
        names = random.choices([*WORKLOADS], k=count)
        total = sum(WORKLOADS[name].volume for name in names)
        if abs(total - load) <= TOLERANCE * load and len(set(names)) > 1:
            return names


def _draw_favourable(random: Random, *, is_long: bool) -> tuple[DrawnJob, ...]:
    """Four short jobs that wait for each message beside four long ones that send meanwhile."""
    short_s, long_s = ((30.0, 34.0), (60.0, 75.0)) if is_long else ((0.9, 1.6), (3.5, 5.5))
    iterations = LONG_ITERATIONS if is_long else ITERATIONS
    return tuple(
        DrawnJob(workload=name, length_s=random.uniform(*between_s), iterations=iterations)
        for kinds, between_s in (("b25 b50 b90", short_s), ("o25 o50 o90", long_s))
        for name in random.choices(kinds.split(), k=4)
    )


def _draw_tenfold(random: Random, names: Sequence[str]) -> tuple[DrawnJob, ...]:
    """Half of the jobs have the data of their profile, half ten times as much."""
    factors = [1, TENFOLD] * (len(names) // 2)
    random.shuffle(factors)
    return tuple(
        DrawnJob(workload=name, length_s=PROFILE_S * factor, iterations=PROFILE_LOOPS * factor)
        for name, factor in zip(names, factors, strict=True)
    )


def build_job(
    workload: Workload,
    *,
    name: str,
    level: int,
    length_s: float,
    loops: int | None,
    hosts: Sequence[str] = HOSTS,
    rate_bps: float = RATE_BPS,
) -> Job:
    """The workload as a job whose loops take `length_s` in all alone; None: each takes that."""
    each_s = length_s / (loops or 1)
    send_s = workload.volume * each_s
    compute_s = each_s - send_s if workload.is_blocking else each_s
    stage = Stage(
        name="step",
        compute_ps=round(compute_s * _PS),
        volume_bytes=round(send_s * rate_bps / 8 / HEADERS),
        pattern="shuffle",
        overlap=0.0 if workload.is_blocking else 1.0,
        flows=1,
        roots=0,
        neighbours=0,
        after=(),
    )
    return Job(
        name=name,
        instances=len(hosts),
        stages=(stage,),
        loops=loops,
        hosts=tuple(hosts),
        placement="packed",
        prefer_free=False,
        start_ps=0,
        sl=level,
        slowdown=False,
        where=name,
    )
