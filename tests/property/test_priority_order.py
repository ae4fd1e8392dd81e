"""Sincronia's order and SRPT: worked by hand, against every permutation, and on the flow level."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from weft._core import Transfers
from weft.errors import InputError
from weft.studies.saba.priority_order import assign_priorities, order_coflows, order_flows

HOSTS = 3
RATE_BPS = 8e6  # 1 byte takes 1 us

# A coflow is bytes[source, destination]; the ports are 3 that send, then 3 that receive.
COFLOW = st.lists(st.integers(0, 9), min_size=HOSTS**2, max_size=HOSTS**2).map(
    lambda sizes: np.array(sizes, dtype=float).reshape(HOSTS, HOSTS)
)
COFLOWS = st.lists(COFLOW.filter(np.any), min_size=1, max_size=4)


def demand(coflows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.array([[*c.sum(axis=1), *c.sum(axis=0)] for c in coflows])


def complete_in_order(times: NDArray[np.float64], order: tuple[int, ...]) -> NDArray[np.float64]:
    """Ports that need not work at the same time: each coflow ends with its last port."""
    ends = np.empty(len(times))
    ends[list(order)] = (
        times[list(order)].cumsum(axis=0).max(axis=1, where=times[list(order)] > 0, initial=0)
    )
    return ends


def complete_by_priority(
    coflows: list[NDArray[np.float64]], order: tuple[int, ...]
) -> NDArray[np.float64]:
    """At the flow level, strict priority in the order at both ends of each flow; in us."""
    transfers = Transfers()
    priority = assign_priorities(order, len(order))
    queues = [(1.0, priority[c]) for c in range(len(coflows))]
    hosts = len(coflows[0])
    ports = [transfers.add_port(RATE_BPS, queues) for _ in range(2 * hosts)]
    flows = {
        transfers.start([(ports[s], c), (ports[hosts + d], c)], size): c
        for c, coflow in enumerate(coflows)
        for (s, d), size in np.ndenumerate(coflow)
        if size
    }
    ends = np.zeros(len(coflows))
    while transfers.active:
        for transfer in transfers.advance(transfers.next_end_ps()):
            ends[flows[transfer]] = transfers.now_ps / 1e6
    return ends


def test_coflows_by_hand() -> None:
    """Three coflows on two ports, weights 1.

    A = (2, 2), B = (0, 3), C = (4, 0). Loads 6 and 5: port 0. A: 1/2, C: 1/4, so C is last; it has
    W = 1, so A keeps 1 − 2/4 = 1/2. Loads 2 and 5: port 1. A: 1/4, B: 1/3, so A is second; B first.
    f is ½ (6² + 2² + 4²) = 28 and ½ (5² + 2² + 3²) = 19. B keeps 1 − 3/4, and f is 9:
    bound 28/4 + 19/4 + (1/4)/3 · 9 = 12.5. In this order C(B) = 3, C(A) = 5, C(C) = 6: 14.
    """
    times = np.array([[2, 2], [0, 3], [4, 0]], dtype=float)
    answer = order_coflows(times)
    assert answer.order == (1, 0, 2)
    assert answer.bound == pytest.approx(12.5)
    assert complete_in_order(times, answer.order).sum() == 14


def test_weights_move_a_coflow_forward() -> None:
    """One port, times 1 and 3: Smith's rule, the least W / D last."""
    assert order_coflows([[1], [3]]).order == (0, 1)
    assert order_coflows([[1], [3]], [1, 4]).order == (1, 0)


def test_one_port_gives_shortest_first_and_a_tight_bound() -> None:
    answer = order_coflows([[5], [1], [3]])
    assert answer.order == (1, 2, 0)
    assert answer.bound == pytest.approx(1 + 4 + 9)


def test_ties_keep_the_order_given_and_who_sends_nothing_goes_first() -> None:
    assert order_coflows([[1, 0], [1, 0], [0, 0]]).order == (2, 0, 1)
    assert order_flows([3, 1, 3, 0]) == (3, 1, 0, 2)
    assert order_coflows(np.zeros((0, 2))).order == ()


# Sincronia's own examples, of its authors' implementation: the coflows that its client's tests
# send, and its shortest trace (10 coflows on 5 hosts). A flow is (from, to, size).
AUTHORS_TESTS = {
    "basic": [[(0, 1, 5), (2, 3, 5)], [(0, 3, 5), (1, 3, 5)]],
    "one direction": [[(0, 1, 5), (0, 1, 5)], [(0, 1, 5), (0, 1, 3)]],
    "crossing": [[(0, 1, 6)], [(0, 1, 4), (1, 0, 3)]],
    "special": [[(0, 1, 5)], [(0, 1, 5), (1, 0, 3)], [(0, 1, 5)], [(0, 1, 5)]],
}
AUTHORS_TRACE = [
    [(0, 1, 1), (1, 2, 1), (3, 1, 1), (4, 1, 1)],
    [(1, 4, 7)],
    [(3, 0, 21), (4, 0, 21)],
    [(4, 0, 1)],
    [(0, 1, 1), (3, 1, 1)],
    [(2, 0, 2), (4, 0, 2)],
    [(0, 3, 1), (1, 3, 1)],
    [(2, 4, 1)],
    [(0, 2, 1), (1, 2, 1), (2, 3, 1), (3, 2, 1), (4, 2, 1)],
    [(3, 4, 1)],
]


def add_flows(coflows: list[list[tuple[int, int, int]]], hosts: int) -> list[NDArray[np.float64]]:
    matrices = [np.zeros((hosts, hosts)) for _ in coflows]
    for matrix, flows in zip(matrices, coflows, strict=True):
        for source, destination, size in flows:
            matrix[source, destination] += size
    return matrices


@pytest.mark.parametrize(
    ("name", "order", "ends"),
    [
        # Host 3 receives most, 15: 5 of A and 10 of B, so B is last. A ends at 5, B at 15.
        ("basic", (0, 1), [5, 15]),
        # One port, 10 and 8: the shorter first.
        ("one direction", (1, 0), [18, 8]),
        # 6 and 4 from host 0 to 1: A has 1/6 and B 1/4, so A is last. B ends at 4, A at 10.
        ("crossing", (1, 0), [10, 4]),
        # Four times 5 on one port, all equal: as given, whatever else the second sends.
        ("special", (0, 1, 2, 3), [5, 10, 15, 20]),
    ],
)
def test_examples_of_sincronias_authors(
    name: str, order: tuple[int, ...], ends: list[float]
) -> None:
    """In each the order is the best there is: its total is the lower bound."""
    coflows = add_flows(AUTHORS_TESTS[name], 4)
    answer = order_coflows(demand(coflows))
    assert answer.order == order
    assert complete_by_priority(coflows, answer.order) == pytest.approx(ends)
    assert answer.bound == pytest.approx(sum(ends))


def order_by_prices(times: list[list[int]]) -> tuple[int, ...]:
    """Sincronia's order by the prices of its ports, as its authors' scheduler reckons it.

    Each step prices the port with most left; a coflow's worth there is 1 less all that the ports
    priced before ask of it. No weight is scaled. In fractions, so that ties are ties.
    """
    prices: list[tuple[int, Fraction]] = []
    unplaced, last_first = list(range(len(times))), list[int]()
    while unplaced:
        load = [sum(times[c][port] for c in unplaced) for port in range(len(times[0]))]
        port = load.index(max(load))
        worth = {
            c: (1 - sum(price * times[c][p] for p, price in prices)) / Fraction(times[c][port])
            for c in unplaced
            if times[c][port]
        }
        last = min(reversed(worth), key=lambda c: worth[c])
        prices.append((port, worth[last]))
        unplaced.remove(last)
        last_first.append(last)
    return tuple(reversed(last_first))


def test_the_trace_of_sincronias_authors() -> None:
    """Ten coflows that use all five hosts: the order by prices, and the bound of 4."""
    coflows = add_flows(AUTHORS_TRACE, 5)
    times = demand(coflows)
    answer = order_coflows(times)
    assert answer.order == order_by_prices(times.astype(int).tolist())
    assert answer.order[-1] == 2  # 42 of the 47 that host 0 receives: last, by hand
    total = complete_by_priority(coflows, answer.order).sum()
    assert answer.bound * (1 - 1e-6) <= total <= 4 * answer.bound


@given(COFLOWS)
@settings(deadline=None)
def test_no_order_beats_the_bound_and_ours_is_within_twice(
    coflows: list[NDArray[np.float64]],
) -> None:
    times = demand(coflows)
    answer = order_coflows(times)
    assert sorted(answer.order) == list(range(len(coflows)))
    totals = [complete_in_order(times, o).sum() for o in permutations(range(len(coflows)))]
    assert answer.bound <= min(totals) * (1 + 1e-9)
    assert complete_in_order(times, answer.order).sum() <= 2 * answer.bound * (1 + 1e-9)


@given(COFLOWS)
@settings(deadline=None)
def test_strict_priority_in_this_order_ends_within_four_times_the_bound(
    coflows: list[NDArray[np.float64]],
) -> None:
    answer = order_coflows(demand(coflows))
    total = complete_by_priority(coflows, answer.order).sum()
    assert answer.bound * (1 - 1e-6) <= total <= 4 * answer.bound * (1 + 1e-6)


# ---- SRPT -------------------------------------------------------------------------------------


def total_by_srpt(flows: list[tuple[int, int]]) -> int:
    """Sum of times in the system on one port, a unit at a time; flows are (size, arrival)."""
    left, total, now = [size for size, _ in flows], 0, 0
    while any(left):
        present = [n for n, (_, arrival) in enumerate(flows) if arrival <= now and left[n]]
        now += 1
        if present:
            first = present[order_flows([left[n] for n in present])[0]]
            left[first] -= 1
            total += 0 if left[first] else now - flows[first][1]
    return total


def least_total(flows: list[tuple[int, int]]) -> int:
    """The least sum over every way to serve one unit after the other."""

    @cache
    def search(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        present = [n for n, (_, arrival) in enumerate(flows) if arrival <= now and left[n]]
        if not present:
            return search(now + 1, left)
        rest = [(n, (*left[:n], left[n] - 1, *left[n + 1 :])) for n in present]
        return min(
            search(now + 1, after) + (0 if after[n] else now + 1 - flows[n][1]) for n, after in rest
        )

    return search(0, tuple(size for size, _ in flows))


def test_srpt_by_hand() -> None:
    """5 units at 0 and 2 at 1: at 1 the first has 4 left and waits until 3; they take 7 and 2."""
    assert total_by_srpt([(5, 0), (2, 1)]) == 9
    # 3 left against 4 that arrive: the first goes on, 4 and then 8 - 1.
    assert total_by_srpt([(4, 0), (4, 1)]) == 11


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 5)), min_size=1, max_size=4))
@settings(deadline=None)
def test_no_schedule_of_one_port_has_a_smaller_mean_than_srpt(flows: list[tuple[int, int]]) -> None:
    assert total_by_srpt(flows) == least_total(flows)


def test_priorities_share_the_last_level() -> None:
    assert assign_priorities((4, 2, 7, 1), 3) == {4: 0, 2: 1, 7: 2, 1: 2}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: order_coflows([[1, -2]]), "demand: -2 is not an amount; use finite"),
        (lambda: order_coflows([1, 2]), "demand: 1 dimensions; give an array of 2"),
        (lambda: order_coflows([[1], [2]], [1]), "weights: 1 weights for 2 coflows"),
        (lambda: order_flows([1, float("nan")]), "bytes left: nan is not an amount"),
        (lambda: assign_priorities((0,), 0), "levels: 0 priorities; use at least 1"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], object], error: str) -> None:
    with pytest.raises(InputError, match=error):
        call()
