"""Laws of the flow level: max-min fair rates and the transfers that use them.

Second methods: progressive filling in numpy, and a sequence of linear programmes in SciPy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linprog
from some_examples import examples

from weft._core import MaxMin, Transfers

SEEDS = st.integers(0, 2**32 - 1)
CLOSE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    path: tuple[tuple[int, int], ...]
    weight: float
    cap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Ports with their queues (weight, priority), and flows."""

    capacity: tuple[float, ...]
    queues: tuple[tuple[tuple[float, int], ...], ...]
    flows: tuple[Flow, ...]


def draw(
    seed: int, *, queues: int = 1, priorities: int = 1, equal: bool = False, many: bool = False
) -> Problem:
    """A random problem; `equal`: ports, weights and lanes all alike, so that much is tied.

    `many`: hundreds of flows, which are solved in sweeps.
    """
    rng = np.random.default_rng(seed)
    ports = int(rng.integers(20, 40) if many else rng.integers(1, 12))
    capacity = np.ones(ports) if equal else rng.uniform(0.5, 20, ports)
    plans = tuple(
        tuple(
            (1.0 if equal else float(rng.uniform(0.5, 8)), int(rng.integers(priorities)))
            for _ in range(queues)
        )
        for _ in range(ports)
    )
    flows = []
    for _ in range(int(rng.integers(300, 500) if many else rng.integers(1, 40))):
        lane = int(rng.integers(queues))
        hops = rng.permutation(ports)[: int(rng.integers(1, min(ports, 6) + 1))]
        flows.append(
            Flow(
                path=tuple((int(port), lane) for port in hops),
                weight=1.0 if equal else float(rng.uniform(0.2, 5)),
                cap=float(rng.uniform(0.01, 5)) if rng.random() < 0.2 else math.inf,
            )
        )
    return Problem(capacity=tuple(capacity), queues=plans, flows=tuple(flows))


def load(problem: Problem) -> MaxMin:
    solver = MaxMin()
    for capacity, queues in zip(problem.capacity, problem.queues, strict=True):
        solver.add_port(capacity, queues)
    return solver


def solve(problem: Problem) -> NDArray[np.float64]:
    solver = load(problem)
    flows = [solver.add_flow(f.path, f.weight, f.cap) for f in problem.flows]
    solver.solve()
    return np.array([solver.rate(flow) for flow in flows])


# ---- The definition ---------------------------------------------------------------------------


def is_bottleneck(
    problem: Problem, rates: NDArray[np.float64], flow: int, hop: int, close: float
) -> bool:
    """Whether at this hop the port is full and neither flow nor queue is behind others.

    sum of r over priorities <= its own = C;  r/u is the largest of the queue;
    (sum of r of the queue)/w is the largest of the priority.
    """
    port, queue = problem.flows[flow].path[hop]
    plan = problem.queues[port]
    users = [(i, q) for i, other in enumerate(problem.flows) for p, q in other.path if p == port]
    priority = plan[queue][1]
    used = sum(rates[i] for i, q in users if plan[q][1] <= priority)
    if used < problem.capacity[port] * (1 - close):
        return False
    speed = rates[flow] / problem.flows[flow].weight
    if any(
        rates[i] / problem.flows[i].weight > speed * (1 + close) for i, q in users if q == queue
    ):
        return False
    share = {q: 0.0 for _, q in users if plan[q][1] == priority}
    for i, q in users:
        if q in share:
            share[q] += rates[i] / plan[q][0]
    return all(other <= share[queue] * (1 + close) for other in share.values())


def assert_fair(problem: Problem, rates: NDArray[np.float64], close: float = CLOSE) -> None:
    for i, flow in enumerate(problem.flows):
        is_capped = rates[i] >= flow.cap * (1 - close)
        assert rates[i] <= flow.cap * (1 + close)
        assert is_capped or any(
            is_bottleneck(problem, rates, i, hop, close) for hop in range(len(flow.path))
        ), f"flow {i} could be faster"


def assert_within_capacity(problem: Problem, rates: NDArray[np.float64]) -> None:
    load_of = np.zeros(len(problem.capacity))
    for rate, flow in zip(rates, problem.flows, strict=True):
        for port, _ in flow.path:
            load_of[port] += rate
    assert (load_of <= np.array(problem.capacity) * (1 + CLOSE)).all()


@examples(400)
@given(SEEDS, st.booleans())
def test_each_flow_has_a_full_port_on_which_no_flow_is_faster(seed: int, equal: bool) -> None:
    problem = draw(seed, equal=equal)
    rates = solve(problem)
    assert_within_capacity(problem, rates)
    assert_fair(problem, rates)


@examples(400)
@given(SEEDS, st.integers(2, 4), st.integers(1, 3), st.booleans())
def test_queues_share_a_port_by_weight_and_their_flows_share_the_queue(
    seed: int, queues: int, priorities: int, equal: bool
) -> None:
    problem = draw(seed, queues=queues, priorities=priorities, equal=equal)
    rates = solve(problem)
    assert_within_capacity(problem, rates)
    assert_fair(problem, rates)


@examples(20)
@given(SEEDS, st.integers(1, 4), st.booleans())
def test_hundreds_of_flows_are_solved_in_sweeps_to_the_same_rates(
    seed: int, queues: int, equal: bool
) -> None:
    problem = draw(seed, queues=queues, equal=equal, many=True)
    solver = load(problem)
    flows = [solver.add_flow(f.path, f.weight, f.cap) for f in problem.flows]
    solver.solve()
    assert solver.sweeps > 0
    rates = np.array([solver.rate(flow) for flow in flows])
    assert_within_capacity(problem, rates)
    assert_fair(problem, rates)
    if queues == 1:
        np.testing.assert_allclose(rates, fill_progressively(problem), rtol=1e-8)


@pytest.mark.parametrize("seed", [9178, 10462])
def test_shares_that_overshoot_settle_within_a_thousandth(seed: int) -> None:
    """Of 12,000 random problems these two do not settle to rounding."""
    problem = draw(seed, queues=3, priorities=1 + seed // 3 % 3)
    rates = solve(problem)
    assert_within_capacity(problem, rates)
    assert_fair(problem, rates, close=2e-3)


@examples(100)
@given(SEEDS)
def test_a_later_priority_never_slows_an_earlier_one(seed: int) -> None:
    """With the same priorities at all ports, rates of priority 0 are those without priority 1."""
    problem = draw(seed, queues=2)
    plans = tuple(((a[0], 0), (b[0], 1)) for a, b in problem.queues)
    high = tuple(flow for flow in problem.flows if flow.path[0][1] == 0)
    both = Problem(capacity=problem.capacity, queues=plans, flows=problem.flows)
    alone = Problem(capacity=problem.capacity, queues=plans, flows=high)
    among = [rate for rate, f in zip(solve(both), both.flows, strict=True) if f in high]
    np.testing.assert_allclose(among, solve(alone), rtol=CLOSE)


# ---- Second methods ---------------------------------------------------------------------------


def fill_progressively(problem: Problem) -> NDArray[np.float64]:
    """Raise r/u of all flows together; a flow stops at its cap or when a port of its is full."""
    flows = problem.flows
    uses = np.zeros((len(problem.capacity), len(flows)))
    for i, flow in enumerate(flows):
        for port, _ in flow.path:
            uses[port, i] = 1
    weight, cap = np.array([f.weight for f in flows]), np.array([f.cap for f in flows])
    rates, is_rising = np.zeros(len(flows)), np.ones(len(flows), dtype=bool)
    while is_rising.any():
        left = np.array(problem.capacity) - uses @ rates
        speed = uses @ (weight * is_rising)
        room = np.divide(left, speed, out=np.full_like(left, np.inf), where=speed > 0)
        to_cap = np.where(is_rising, (cap - rates) / weight, np.inf)
        step = min(room.min(), to_cap.min())
        rates = rates + step * weight * is_rising
        full = room <= step * (1 + 1e-12) + 1e-15
        stops = (uses[full].sum(axis=0) > 0) | (to_cap <= step * (1 + 1e-12) + 1e-15)
        is_rising &= ~stops
    return rates


@examples(300)
@given(SEEDS, st.booleans())
def test_the_rates_are_those_of_progressive_filling(seed: int, equal: bool) -> None:
    problem = draw(seed, equal=equal)
    np.testing.assert_allclose(solve(problem), fill_progressively(problem), rtol=1e-8)


def maximise_in_order(problem: Problem) -> NDArray[np.float64]:
    """Max-min by linear programmes: the largest least r/u, then those that it limits are fixed.

    max t  with  r/u >= t for the flows that are not fixed, sum of r <= C at each port, r <= cap
    """
    flows = problem.flows
    n = len(flows)
    uses = np.zeros((len(problem.capacity), n + 1))
    for i, flow in enumerate(flows):
        for port, _ in flow.path:
            uses[port, i] = 1
    bounds: list[tuple[float, float | None]] = [
        (0, None if math.isinf(f.cap) else f.cap) for f in flows
    ]
    fixed: dict[int, float] = {}
    while len(fixed) < n:
        rows = np.zeros((n - len(fixed), n + 1))
        free = [i for i in range(n) if i not in fixed]
        for row, i in enumerate(free):
            rows[row, i], rows[row, n] = -1 / flows[i].weight, 1
        limits = [(fixed[i], fixed[i]) if i in fixed else bounds[i] for i in range(n)]
        goal = np.zeros(n + 1)
        goal[n] = -1
        answer = linprog(
            goal,
            A_ub=np.vstack([uses, rows]),
            b_ub=np.concatenate([problem.capacity, np.zeros(len(free))]),
            bounds=[*limits, (0, None)],
            method="highs",
        )
        assert answer.status == 0
        prices = -answer.ineqlin.marginals[len(problem.capacity) :]
        level = float(answer.x[n])
        # A positive price says that this flow cannot be faster without lowering the least.
        for row, i in enumerate(free):
            if prices[row] > 1e-9:
                fixed[i] = level * flows[i].weight
    return np.array([fixed[i] for i in range(n)])


@examples(60)
@given(SEEDS)
def test_the_rates_are_those_of_linear_programmes_in_order(seed: int) -> None:
    problem = draw(seed)
    np.testing.assert_allclose(solve(problem), maximise_in_order(problem), rtol=1e-6)


def divide_port(
    capacity: float, plan: tuple[tuple[float, int], ...], wants: dict[int, list[float]]
) -> dict[int, float]:
    """What each queue could get if it wanted all: bits of water, priority by priority."""
    supply, left = {}, capacity
    for priority in sorted({plan[q][1] for q in wants}):
        equals = [q for q in wants if plan[q][1] == priority]
        for queue in equals:
            thirst = {q: math.inf if q == queue else sum(wants[q]) for q in equals}
            cup, rest = dict.fromkeys(equals, 0.0), left
            while rest > 1e-13 * capacity:
                thirsty = [q for q in equals if cup[q] < thirst[q]]
                weight = sum(plan[q][0] for q in thirsty)
                pour = min(rest, *(weight * (thirst[q] - cup[q]) / plan[q][0] for q in thirsty))
                for q in thirsty:
                    full = thirst[q] - cup[q] <= pour * plan[q][0] / weight * (1 + 1e-14)
                    cup[q] = thirst[q] if full else cup[q] + pour * plan[q][0] / weight
                rest -= pour
            supply[queue] = cup[queue]
        left = max(0.0, left - sum(sum(wants[q]) for q in equals))
    return supply


def find_share(supply: float, limits: list[float], weights: list[float]) -> float:
    """Bisection for the share at which flows fill the supply; the largest is unlimited."""
    levels = [limit / weight for limit, weight in zip(limits, weights, strict=True)]
    levels[int(np.argmax(levels))] = math.inf
    low, high = 0.0, supply / min(weights)
    for _ in range(60):
        share = (low + high) / 2
        used = sum(w * min(level, share) for w, level in zip(weights, levels, strict=True))
        low, high = (share, high) if used < supply else (low, share)
    return high


def iterate_shares(problem: Problem, start: float) -> NDArray[np.float64]:
    """The equations of the definition, port by port, half of the way at a time."""
    members: dict[tuple[int, int], list[int]] = {}
    for i, flow in enumerate(problem.flows):
        for hop in flow.path:
            members.setdefault(hop, []).append(i)
    shares = dict.fromkeys(members, start)
    flows = problem.flows

    def limit(i: int, but: tuple[int, int] | None) -> float:
        others = [flows[i].weight * shares[hop] for hop in flows[i].path if hop != but]
        return min(flows[i].cap, *others) if others else flows[i].cap

    for _ in range(60):
        for port, capacity in enumerate(problem.capacity):
            queues = [q for p, q in members if p == port]
            # A flow that nothing else limits could fill the port.
            wants = {
                q: [min(limit(i, (port, q)), 2 * capacity) for i in members[port, q]]
                for q in queues
            }
            supply = divide_port(capacity, problem.queues[port], wants)
            for q in queues:
                weights = [flows[i].weight for i in members[port, q]]
                share = find_share(supply[q], wants[q], weights)
                shares[port, q] += 0.5 * (share - shares[port, q])
    return np.array([limit(i, None) for i in range(len(flows))])


@examples(25)
@given(SEEDS, st.integers(2, 3))
def test_with_several_queues_the_rates_are_those_of_slow_iteration(seed: int, queues: int) -> None:
    """Where the equations have one solution: the same from shares far too small and too large."""
    problem = draw(seed, queues=queues)
    problem = Problem(capacity=problem.capacity, queues=problem.queues, flows=problem.flows[:10])
    slow = iterate_shares(problem, 1e-3)
    if np.allclose(slow, iterate_shares(problem, 100.0), rtol=1e-7):
        np.testing.assert_allclose(solve(problem), slow, rtol=1e-5, atol=1e-9)


@examples(200)
@given(SEEDS, st.integers(1, 3), st.integers(1, 2))
def test_after_arrivals_and_departures_rates_are_those_from_scratch(
    seed: int, queues: int, priorities: int
) -> None:
    problem = draw(seed, queues=queues, priorities=priorities)
    rng = np.random.default_rng(seed)
    solver = load(problem)
    present: dict[int, Flow] = {}
    for _ in range(30):
        if present and rng.random() < 0.45:
            gone = int(rng.choice(list(present)))
            solver.remove_flow(gone)
            del present[gone]
        else:
            flow = problem.flows[int(rng.integers(len(problem.flows)))]
            present[solver.add_flow(flow.path, flow.weight, flow.cap)] = flow
        if rng.random() < 0.7:
            solver.solve()
    solver.solve()
    fresh = Problem(capacity=problem.capacity, queues=problem.queues, flows=tuple(present.values()))
    np.testing.assert_allclose([solver.rate(i) for i in present], solve(fresh), rtol=1e-8)


@examples(100)
@given(SEEDS, st.integers(2, 3))
def test_after_other_weights_and_queues_rates_are_those_from_scratch(
    seed: int, queues: int
) -> None:
    problem = draw(seed, queues=queues)
    rng = np.random.default_rng(seed)
    solver = load(problem)
    flows = [solver.add_flow(f.path, f.weight, f.cap) for f in problem.flows]
    paths, plans = [list(f.path) for f in problem.flows], list(problem.queues)
    for _ in range(10):
        port = int(rng.integers(len(plans)))
        plans[port] = tuple((float(rng.uniform(0.5, 8)), 0) for _ in range(queues))
        solver.set_queues(port, plans[port])
        flow, queue = int(rng.integers(len(paths))), int(rng.integers(queues))
        hop = int(rng.integers(len(paths[flow])))
        paths[flow][hop] = (paths[flow][hop][0], queue)
        solver.set_queue(flows[flow], hop, queue)
        if rng.random() < 0.7:
            solver.solve()
    solver.solve()
    fresh = Problem(
        capacity=problem.capacity,
        queues=tuple(plans),
        flows=tuple(
            Flow(path=tuple(path), weight=f.weight, cap=f.cap)
            for path, f in zip(paths, problem.flows, strict=True)
        ),
    )
    rates = np.array([solver.rate(flow) for flow in flows])
    assert_within_capacity(fresh, rates)
    assert_fair(fresh, rates, close=1e-7)


def test_solve_names_the_flows_that_have_another_rate() -> None:
    solver = MaxMin()
    for _ in range(2):
        solver.add_port(6.0)
    first, second = solver.add_flow([(0, 0)]), solver.add_flow([(1, 0)])
    assert sorted(solver.solve()) == [first, second]
    third = solver.add_flow([(1, 0)])
    assert sorted(solver.solve()) == [second, third]
    assert [solver.rate(i) for i in (first, second, third)] == [6.0, 3.0, 3.0]


def test_a_change_far_away_costs_no_work() -> None:
    """Ports in a row, each shared by two flows: the work for one departure does not grow."""
    work = []
    for ports in (10, 1000):
        solver = MaxMin()
        for _ in range(ports):
            solver.add_port(8.0)
        pairs = [(solver.add_flow([(i, 0)]), solver.add_flow([(i, 0)])) for i in range(ports)]
        solver.solve()
        before = solver.port_solutions
        solver.remove_flow(pairs[3][0])
        assert solver.solve() == [pairs[3][1]]
        work.append(solver.port_solutions - before)
    assert work[0] == work[1]


@pytest.mark.parametrize(
    ("path", "weight", "problem"),
    [
        ([(0, 1)], 1.0, "queue"),
        ([(5, 0)], 1.0, "port"),
        ([(0, 0)], 0.0, "weight"),
        ([], 1, "limit"),
    ],
)
def test_a_flow_that_makes_no_sense_is_refused(
    path: list[tuple[int, int]], weight: float, problem: str
) -> None:
    solver = MaxMin()
    solver.add_port(1.0)
    with pytest.raises(ValueError, match=problem):
        solver.add_flow(path, weight)


# ---- Transfers --------------------------------------------------------------------------------


def finish_times(problem: Problem, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """When flows that start together end, with all rates solved again after each end."""
    left, now = sizes.copy(), 0.0
    ends = np.full(len(sizes), np.inf)
    while np.isinf(ends).any():
        alive = np.flatnonzero(np.isinf(ends))
        rates = fill_progressively(
            Problem(
                capacity=problem.capacity,
                queues=problem.queues,
                flows=tuple(problem.flows[i] for i in alive),
            )
        )
        step = (left[alive] / rates).min()
        now += step
        left[alive] -= rates * step
        ends[alive[left[alive] <= 1e-9 * sizes[alive]]] = now
    return ends


@examples(80)
@given(SEEDS)
def test_transfers_end_when_their_bytes_are_sent(seed: int) -> None:
    problem = draw(seed)
    sizes = np.random.default_rng(seed).uniform(1e5, 1e7, len(problem.flows))
    transfers = Transfers()
    for capacity in problem.capacity:
        transfers.add_port(capacity * 8e9)  # capacities are GB/s
    started = {
        transfers.start(f.path, size, f.weight, f.cap * 8e9): i
        for i, (f, size) in enumerate(zip(problem.flows, sizes, strict=True))
    }
    ends = np.zeros(len(sizes))
    while transfers.active:
        for done in transfers.advance(transfers.next_end_ps()):
            ends[started[done]] = transfers.now_ps
    np.testing.assert_allclose(ends, finish_times(problem, sizes) * 1e3, rtol=1e-7, atol=2)
    for port in range(len(problem.capacity)):
        uses = [s for f, s in zip(problem.flows, sizes, strict=True) if port in dict(f.path)]
        assert transfers.carried_bytes(port) == pytest.approx(sum(uses), rel=1e-9)


def fill_in_order(problem: Problem, priorities: NDArray[np.int64]) -> NDArray[np.float64]:
    """Progressive filling of what earlier priorities have left."""
    rates, left = np.zeros(len(problem.flows)), np.array(problem.capacity)
    for priority in np.unique(priorities):
        group = np.flatnonzero(priorities == priority)
        flows = tuple(problem.flows[i] for i in group)
        capacity = tuple(np.maximum(left, 0).tolist())
        rates[group] = fill_progressively(
            Problem(capacity=capacity, queues=problem.queues, flows=flows)
        )
        for i in group:
            for port, _ in problem.flows[i].path:
                left[port] -= rates[i]
    return rates


@examples(150)
@given(SEEDS, st.integers(1, 40))
def test_strict_priorities_fill_what_earlier_ones_have_left(seed: int, levels: int) -> None:
    problem = draw(seed)
    priorities = np.random.default_rng(seed).integers(0, levels, len(problem.flows))
    transfers = Transfers()
    for capacity in problem.capacity:
        transfers.add_port(capacity)
    started = [transfers.start(f.path, math.inf, f.weight, f.cap) for f in problem.flows]
    for transfer, priority in zip(started, priorities.tolist(), strict=True):
        transfers.set_priority(transfer, priority)
    transfers.serve_by_priority()
    rates = [transfers.rate_bps(transfer) for transfer in started]
    expected = fill_in_order(problem, priorities)
    np.testing.assert_allclose(rates, expected, rtol=1e-8, atol=1e-9)
    transfers.serve_by_queues()
    rates = [transfers.rate_bps(transfer) for transfer in started]
    np.testing.assert_allclose(rates, fill_progressively(problem), rtol=1e-8)


@examples(12)
@given(SEEDS, st.integers(1, 4))
def test_steps_lead_to_fair_rates_and_never_above_capacity(seed: int, queues: int) -> None:
    problem = draw(seed, queues=queues, many=True)
    transfers = Transfers()
    transfers.set_step(1000)
    transfers.set_tolerance(1e-4)
    for capacity, plan in zip(problem.capacity, problem.queues, strict=True):
        transfers.add_port(capacity, plan)
    started = [transfers.start(f.path, math.inf, f.weight, f.cap) for f in problem.flows]
    steps = 0
    while steps < 300 and (time_ps := transfers.next_end_ps()) < 2**62:
        rates = np.array([transfers.rate_bps(transfer) for transfer in started])
        assert_within_capacity(problem, rates * (1 - 2e-4))
        transfers.advance(time_ps)
        steps += 1
    assert 1 < steps < 300, "rates do not settle"
    rates = np.array([transfers.rate_bps(transfer) for transfer in started])
    assert_fair(problem, rates, close=0.02)


def test_what_is_stopped_has_sent_its_part() -> None:
    transfers = Transfers()
    transfers.add_port(8e9)  # a byte per ns
    endless, short = transfers.start([(0, 0)], math.inf), transfers.start([(0, 0)], 1000)
    assert transfers.next_end_ps() == 2_000_000
    assert transfers.advance(2_000_000) == [short]
    assert transfers.sent_bytes(endless) == pytest.approx(1000)
    transfers.advance(3_000_000)
    transfers.stop(endless)
    assert transfers.carried_bytes(0) == pytest.approx(3000)
    assert transfers.next_end_ps() == 2**63 - 1


@pytest.mark.parametrize(
    ("capacity", "weights", "flows"),
    [
        (10e9, (1, 1, 4), 3),
        (10e9, (1, 1, 4), 9),
        (10e9, (4, 192), 6),
        (10e9, (1, 1, 1, 255), 8),
        (25e9, (32, 192), 9),
        (100e9, (64, 64, 64, 64), 6),
    ],
)
def test_two_equal_ports_in_a_row_share_as_one(
    capacity: float, weights: tuple[int, ...], flows: int
) -> None:
    """Demands then differ from the shares by rounding alone."""
    solver = MaxMin()
    for _ in range(2):
        solver.add_port(capacity, [(float(weight), 0) for weight in weights])
    lanes = range(len(weights))
    members = [[solver.add_flow([(0, q), (1, q)]) for _ in range(flows)] for q in lanes]
    solver.solve()
    for q in lanes:
        share = capacity * weights[q] / sum(weights) / flows
        assert [solver.rate(flow) for flow in members[q]] == pytest.approx([share] * flows)
