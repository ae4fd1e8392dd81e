"""What a caller may ask for: tokens on a clock that stands, places in order, costs by the work."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

pytest.importorskip("google.protobuf", reason="protobuf: pip install 'weft[control]'")

from weft.control.runtime.config import Limits
from weft.control.service import weft_pb2 as pb
from weft.control.service.limits import FairSemaphore, RateLimits
from weft.control.service.methods import extra_cost
from weft.control.service.refusals import Refused

LIMITS = Limits(rate_per_s=100.0, burst=400.0)  # a newcomer begins with 50


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("weft.control.service.limits.asyncio.sleep", made.sleep)
    return made


def run(call: Awaitable[None]) -> None:
    async def body() -> None:
        await call

    asyncio.run(body())


def test_a_caller_gets_what_it_begins_with_at_once_and_the_rest_at_its_rate(clock: Clock) -> None:
    rates = RateLimits(LIMITS, clock)
    caller = rates.caller("a")
    for _ in range(50):
        run(rates.admit(caller, 1.0))
    assert clock.now_s == 0.0
    for _ in range(100):
        run(rates.admit(caller, 1.0))
    assert clock.now_s == pytest.approx(1.0)


def test_what_would_wait_too_long_is_refused_after_a_pause_and_costs_nothing(clock: Clock) -> None:
    rates = RateLimits(LIMITS, clock)
    caller = rates.caller("a")
    run(rates.pace(caller, 50.0))
    with pytest.raises(Refused, match="more than 100 events per second") as raised:
        run(rates.admit(caller, 51.0))
    assert raised.value.code == "RESOURCE_EXHAUSTED"
    paused_s = clock.now_s
    assert 0.5 <= paused_s <= 1.0
    run(rates.admit(caller, 50.0))
    assert clock.now_s == paused_s  # those came during the pause


def test_refusals_of_one_identity_are_paced_however_many_callers_it_has(clock: Clock) -> None:
    limits = Limits(rate_per_s=100.0, burst=400.0, identity_rate_per_s=100.0)
    rates = RateLimits(limits, clock)
    run(rates.pace(rates.caller("first", "alice"), 10_000.0))
    bucket = rates.caller("first", "alice").shared
    now_s = clock.now_s
    pauses = [bucket.queue_refusal(now_s) for _ in range(4000)]
    assert pauses[0] < 0.5
    assert pauses[-1] == pytest.approx(4000 / 500)
    assert bucket.queue_refusal(now_s + 8.0) < 0.5  # nobody waits for those of long ago
    assert max(bucket.queue_refusal(now_s) for _ in range(10**5)) <= 10.0
    assert rates.caller("another", "bob").shared.queue_refusal(now_s) < 0.5


def test_a_stream_is_slowed_down_however_much_it_sends(clock: Clock) -> None:
    rates = RateLimits(LIMITS, clock)
    run(rates.pace(rates.caller("a"), 1050.0))
    assert clock.now_s == pytest.approx(10.0)


def test_no_call_costs_more_than_can_be_had(clock: Clock) -> None:
    rates = RateLimits(LIMITS, clock)
    caller = rates.caller("a")
    clock.now_s = 100.0
    run(rates.admit(caller, 1e9))


def test_many_callers_of_one_identity_share_its_rate(clock: Clock) -> None:
    """Beyond a burst of twice its rate, a thousand processes get what their user may."""
    limits = Limits(rate_per_s=100.0, burst=400.0, identity_rate_per_s=1000.0)
    rates = RateLimits(limits, clock)
    for number in range(1000):
        run(rates.pace(rates.caller(f"{number}", "alice"), 1.0))
    began_s = clock.now_s
    for number in range(1000):
        for _ in range(5):
            run(rates.pace(rates.caller(f"{number}", "alice"), 1.0))
    assert clock.now_s - began_s >= (5000 - 2 * 1000) / 1000
    idle_s = clock.now_s
    run(rates.pace(rates.caller("another", "bob"), 1.0))
    assert clock.now_s == idle_s


def test_coming_again_and_again_brings_no_more_than_staying(clock: Clock) -> None:
    """What newcomers begin with comes back at the rate of one caller."""
    rates = RateLimits(LIMITS, clock)
    had = 0.0
    for number in range(10_000):
        had += rates.caller(f"{number}").bucket.tokens
        clock.now_s += 0.001
    assert had <= 64 * 50 + 100 * clock.now_s


def test_questions_and_changes_cost_by_the_work_that_they_ask_for() -> None:
    summary, whole = (extra_cost("Status", pb.StatusRequest(ports=ports)) for ports in (0, 1))
    assert 0 < summary < whole
    proposal = pb.Proposal(deregister=["a#1"])
    proposal.register.add(application="a", connections=[pb.Pair(), pb.Pair()])
    empty = extra_cost("Apply", pb.ApplyRequest())
    assert extra_cost("Apply", pb.ApplyRequest(proposal=proposal)) == empty + 4
    assert extra_cost("Renew", pb.RenewRequest()) == 0


# ---- Places -----------------------------------------------------------------------------------


async def entering(room: FairSemaphore, count: int, order: list[int], leave: asyncio.Event) -> None:
    async with room.slots(count):
        order.append(count)
        await leave.wait()


def test_who_comes_first_is_let_in_first_and_nobody_beyond_the_places() -> None:
    async def body() -> None:
        room, order = FairSemaphore(4), list[int]()
        leave = [asyncio.Event() for _ in range(3)]
        wanted = (3, 4, 1)
        tasks = [
            asyncio.create_task(entering(room, n, order, own))
            for n, own in zip(wanted, leave, strict=True)
        ]
        await asyncio.sleep(0)
        assert order == [3]  # one place is free, and the second, who wants four, comes next
        leave[0].set()
        for _ in range(4):
            await asyncio.sleep(0)
        assert order == [3, 4]
        for own in leave:
            own.set()
        await asyncio.gather(*tasks)
        assert order == [3, 4, 1]

    asyncio.run(body())


def test_who_leaves_the_queue_holds_up_nobody() -> None:
    async def body() -> None:
        room, order = FairSemaphore(1), list[int]()
        leave = asyncio.Event()
        tasks = [asyncio.create_task(entering(room, 1, order, leave)) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        leave.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in found] == [type(None), asyncio.CancelledError, type(None)]
        async with room.slots(1):
            pass

    asyncio.run(body())
