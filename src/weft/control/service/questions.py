"""What is only asked is computed beside the event loop: one question after another, few waiting.

One thread is enough, since Python runs one at a time anyway, and it is what keeps everybody's
questions together from taking more than a part of the time. Simulations, which take longest, run as
processes of their own, one at a time, that end with the call. Entry point: `Questions`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from weft.control.operators.simulated_run import Rates, Run, simulate_run
from weft.control.service.limits import Caller
from weft.control.service.refused import Refused
from weft.errors import InputError

T = TypeVar("T")

MOST_WAITING = 64


class Questions:
    """Used from one event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weft-read")
        self._waiting = 0
        self._simulating = False

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, caller: Caller, compute: Callable[[], T]) -> T:
        """What comes of it; each caller has one question at a time."""
        async with caller.questions.places():
            if self._waiting >= MOST_WAITING:
                problem = f"{MOST_WAITING} questions wait; ask again later"
                raise Refused("RESOURCE_EXHAUSTED", problem)
            self._waiting += 1
            try:
                return await asyncio.get_running_loop().run_in_executor(self._thread, compute)
            except InputError as error:
                raise Refused("FAILED_PRECONDITION", str(error)) from error
            finally:
                self._waiting -= 1

    async def simulate_run(self, *runs: Run | None) -> list[Rates]:
        """What registrations get in each run; one caller's at a time."""
        if self._simulating:
            raise Refused("RESOURCE_EXHAUSTED", "a simulation runs already; try again later")
        self._simulating = True
        try:
            return await simulate_run(*runs)
        except InputError as error:
            raise Refused("FAILED_PRECONDITION", str(error)) from error
        finally:
            self._simulating = False
