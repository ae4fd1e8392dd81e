"""Estimates from one run beside programs whose time at every share is known."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from some_examples import examples

from weft.errors import InputError
from weft.sensitivity.model import FloatArray
from weft.sensitivity.trace import Trace, estimate, find_phases

RATE_BPS = 200e6
SHARES: FloatArray = np.array([0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 0.9, 1.0])


@dataclass(frozen=True)
class Block:
    """Computing and sending that begin together; the next block waits for both.

    At the share b a block takes max(compute, send / b). `paced`: bytes go out evenly.
    """

    compute_s: float
    send_s: float
    paced: bool = False

    def time(self, share: float) -> float:
        return max(self.compute_s, self.send_s / share)

    def rates(self) -> list[tuple[float, float, float]]:
        """Pieces of (length, link in use, processor in use) with the whole link."""
        both, whole = min(self.compute_s, self.send_s), self.time(1)
        if self.paced and self.send_s < self.compute_s:
            return [(whole, self.send_s / whole, 1.0)]
        alone = (0.0, 1.0) if self.compute_s > self.send_s else (1.0, 0.0)
        return [(both, 1.0, 1.0), (whole - both, *alone)]


def traced(program: list[Block], interval_s: float, cores: float = 1.0) -> Trace:
    """What a sampler sees: means over intervals that know nothing of the blocks."""
    pieces = [piece for block in program for piece in block.rates() if piece[0] > 0]
    lengths = np.array([piece[0] for piece in pieces])
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    count = max(1, int(np.ceil(ends[-1] / interval_s - 1e-9)))
    edges = np.minimum(np.arange(count + 1) * interval_s, ends[-1])
    in_use = [
        np.diff(np.interp(edges, ends, np.concatenate([[0.0], np.cumsum(lengths * column)])))
        for column in (np.array([p[1] for p in pieces]), np.array([p[2] for p in pieces]))
    ]
    sent = in_use[0] * RATE_BPS / 8
    return Trace(
        duration_s=np.diff(edges),
        sent_bytes=sent,
        received_bytes=sent / 50,
        cpu_s=in_use[1] * cores,
        link_bps=RATE_BPS,
        cores=cores,
    )


def truth(program: list[Block]) -> FloatArray:
    whole = sum(block.time(1) for block in program)
    return np.array([sum(block.time(b) for block in program) / whole for b in SHARES])


def estimated(program: list[Block], interval_s: float = 0.02) -> FloatArray:
    return estimate(traced(program, interval_s)).model.slowdown(SHARES)


def test_a_program_that_only_computes_is_never_slower() -> None:
    result = estimate(traced([Block(3, 0)], 0.1))
    assert result.model.terms == ()
    assert result.computing_s == pytest.approx(3)


def test_a_program_that_only_sends_takes_one_over_the_share() -> None:
    assert estimated([Block(0, 3)]) == pytest.approx(1 / SHARES)


@pytest.mark.parametrize("paced", [True, False])
def test_hidden_communication_costs_nothing_until_the_share_falls_to_its_part(paced: bool) -> None:
    # max(5, 2 / b) / 5
    program = [Block(5, 2, paced)]
    assert estimated(program) == pytest.approx(np.maximum(1, 0.4 / SHARES), rel=1e-6)
    ((t, _),) = estimate(traced(program, 0.02)).model.terms
    assert t == pytest.approx(0.4, rel=1e-6)


def test_sending_that_outlasts_computing_beside_it_is_as_if_it_were_alone() -> None:
    # max(2, 5 / b) / 5
    assert estimated([Block(2, 5)]) == pytest.approx(1 / SHARES)


def test_supersteps_of_computing_and_then_sending_are_exposed() -> None:
    # (3 + 1 / b) / 4
    program = [Block(0.3, 0), Block(0, 0.1)] * 10
    assert estimated(program) == pytest.approx((3 + 1 / SHARES) / 4, rel=1e-6)


def test_a_mixed_program_is_the_sum_of_its_phases() -> None:
    program = [Block(1, 0.2, True), Block(0, 0.5), Block(2, 1.2), Block(0, 0.3), Block(1, 0)]
    assert estimated(program) == pytest.approx(truth(program), rel=0.02)


def test_bytes_sent_at_the_end_of_a_computation_cannot_hide_in_its_past() -> None:
    # 4 s computing, then 1 s computing with the link full: 4 + 1/b, not max(5, 1/b)
    lengths, link = np.array([4.0, 1.0]), np.array([0.0, 1.0])
    trace = Trace(
        duration_s=lengths,
        sent_bytes=link * RATE_BPS / 8,
        received_bytes=link * 0,
        cpu_s=lengths,
        link_bps=RATE_BPS,
    )
    assert estimate(trace).model.slowdown(SHARES) == pytest.approx((4 + 1 / SHARES) / 5)


blocks = st.builds(
    Block,
    compute_s=st.one_of(st.just(0.0), st.floats(0.05, 2)),
    send_s=st.one_of(st.just(0.0), st.floats(0.05, 2)),
    paced=st.booleans(),
)


@given(st.lists(blocks, min_size=1, max_size=8), st.floats(0.005, 0.5), st.floats(0.5, 8))
@examples(300)
def test_an_estimate_is_decreasing_convex_one_at_one_and_within_its_bounds(
    program: list[Block], interval_s: float, cores: float
) -> None:
    if not any(block.time(1) for block in program):
        return
    result = estimate(traced(program, interval_s, cores))
    grid = np.linspace(result.model.floor, 1, 50)
    d = result.model.slowdown(grid)
    assert d[-1] == 1
    assert (np.diff(d) <= 1e-9 * d[0]).all()
    assert (d[1:-1] <= (d[:-2] + d[2:]) / 2 + 1e-9 * d[0]).all()
    assert (result.least.slowdown(grid) <= d + 1e-3 * d).all()  # close hinges are joined
    assert (d <= result.most.slowdown(grid) + 1e-3 * d).all()
    whole = sum(block.time(1) for block in program)
    parts = result.exposed_s + result.overlapped_s + result.computing_s + result.idle_s
    assert parts == pytest.approx(whole, rel=1e-6)
    for b, t in zip(SHARES, truth(program), strict=True):
        assert result.least.slowdown(b) <= t * (1 + 1e-6)
        assert t <= result.most.slowdown(b) * (1 + 1e-6)


@given(st.lists(blocks, min_size=1, max_size=6))
@examples(150)
def test_programs_that_end_each_overlap_by_waiting_are_told_within_five_percent(
    program: list[Block],
) -> None:
    # A message of 40 ms between blocks is the barrier that a trace shows.
    program = [b for block in program if block.time(1) for b in (block, Block(0, 0.04))]
    if program:
        assert estimated(program, 0.01) == pytest.approx(truth(program), rel=0.05)


def test_phases_are_named_as_in_the_paper() -> None:
    program = [Block(1, 0), Block(0, 0.5), Block(1, 1)]
    result = find_phases(traced(program, 0.1))
    assert [(p.kind, round(p.duration_s, 6)) for p in result] == [
        ("computation", 1),
        ("communication", 0.5),
        ("overlap", 1),
    ]
    assert [round(p.start_s, 6) for p in result] == [0, 1, 1.5]
    assert result[2].link == pytest.approx(1)
    assert result[2].processor == pytest.approx(1)


def test_a_burst_beyond_the_rate_is_carried_into_the_next_interval() -> None:
    at_rate = RATE_BPS / 8 * 0.1
    trace = Trace(
        duration_s=np.full(4, 0.1),
        sent_bytes=np.array([1.5, 0.5, 0, 0]) * at_rate,
        received_bytes=np.zeros(4),
        cpu_s=np.zeros(4),
        link_bps=RATE_BPS,
    )
    assert estimate(trace).exposed_s == pytest.approx(0.2)


def columns(**changes: object) -> dict[str, object]:
    one = np.ones(3)
    good = {
        "duration_s": one,
        "sent_bytes": one,
        "received_bytes": one,
        "cpu_s": one,
        "link_bps": 1e9,
    }
    return good | changes


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu_s": np.ones(2)},
        {"duration_s": np.array([1.0, 0.0, 1.0])},
        {"sent_bytes": np.array([1.0, nan, 1.0])},
        {"sent_bytes": np.array([1.0, -1.0, 1.0])},
        {"received_bytes": np.array([1.0, inf, 1.0])},
        {"link_bps": 0.0},
        {"link_bps": nan},
        {"cores": -1.0},
    ],
)
def test_a_trace_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError, match="trace: "):
        Trace(**columns(**wrong))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="trace: "):
        Trace(
            **columns(
                **dict.fromkeys(("duration_s", "sent_bytes", "received_bytes", "cpu_s"), np.ones(0))
            )
        )  # type: ignore[arg-type]


def test_more_bytes_than_the_link_carries_mean_a_wrong_rate() -> None:
    with pytest.raises(InputError, match=r"need 200 % of the link; check the link rate"):
        estimate(Trace(**columns(sent_bytes=np.full(3, 2.5e8))))  # type: ignore[arg-type]
