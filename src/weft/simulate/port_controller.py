"""Controllers that re-program ports while a scenario runs at flow level.

A controller has a number of queues for every port and an `update`, which is called when a job
arrives or leaves, or also when one begins or ceases to send. There it gives ports weights, gives
jobs queues, or gives jobs or flows a strict order. Until a port is programmed, all its jobs share
queue 0. Jobs are the entries of the scenario's traffic, by number.
Entry points: `PortController`, `LivePorts`. Units: ps, bytes, bits per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from weft._core import FlowSimulation
from weft.errors import InputError
from weft.simulate.scenario import Scenario

MAX_QUEUES = 256
MAX_PRIORITY = 2**31 - 1
MOMENTS = ("jobs", "stages")
T = TypeVar("T", bound=np.generic)


class PortController(Protocol):
    """Decides how ports are shared, whenever the jobs change."""

    @property
    def queues(self) -> int:
        """Queues of every port, 1 to 256."""

    @property
    def on(self) -> Literal["jobs", "stages"]:
        """Called as jobs arrive and leave; "stages": also as they begin and cease to send."""

    def update(self, ports: LivePorts) -> None:
        """Called before rates are solved, once for all changes of an instant."""


class LivePorts:
    """The ports and jobs of a run, as they are now.

    Port 2i is link i of the fabric from end a to end b, port 2i + 1 the same from b to a.
    """

    def __init__(self, scenario: Scenario, simulation: FlowSimulation, queues: int) -> None:
        self._fabric = scenario.fabric
        self._simulation = simulation
        self._queues = queues
        self.jobs = tuple(traffic.name for traffic in scenario.traffic)
        self.rates_bps = np.repeat([link.rate_bps for link in scenario.fabric.links], 2)
        self.jobs_at = simulation.jobs_at_ports().astype(bool)
        """By port and job: whether a flow of the job ever passes there."""

    @property
    def count(self) -> int:
        return len(self.rates_bps)

    @property
    def now_ps(self) -> int:
        return self._simulation.now_ps

    @property
    def present(self) -> npt.NDArray[np.int64]:
        """Jobs that have arrived and not finished."""
        return np.array(self._simulation.present, dtype=np.int64)

    @property
    def sending(self) -> npt.NDArray[np.int64]:
        """Jobs with messages that are posted and not yet sent."""
        return np.array(self._simulation.sending, dtype=np.int64)

    def sender(self, port: int) -> tuple[int, int]:
        """The node that sends over this port, and the number of the port there."""
        link = self._fabric.links[port // 2]
        end = link.b if port % 2 else link.a
        return end.node, end.port

    def count_bytes_left(self) -> npt.NDArray[np.float64]:
        """By job and port: bytes on the wire that are posted and not yet sent."""
        return self._simulation.bytes_left()

    def program(
        self,
        ports: npt.ArrayLike,
        weights: npt.ArrayLike,
        queues: npt.ArrayLike | None = None,
        priorities: npt.ArrayLike = 0,
    ) -> None:
        """Share ports by queues from now on; ends an order of jobs or flows.

        For each of `ports` or for all alike: the weight of each queue, the queue of each job (None:
        as before) and the strict priority of each queue, 0 first. Queues of one priority share by
        weight and lend what they do not use; the flows of a queue share max-min.
        """
        chosen = _check_numbers("ports", ports, self.count)
        shape = (len(chosen), self._queues)
        shares = _spread("weights", np.asarray(weights, dtype=np.float64), shape)
        if not (np.isfinite(shares) & (shares >= 0)).all():
            raise InputError("weights", "not all are numbers from 0 up", "use finite weights")
        levels = _check_numbers("priorities", priorities, MAX_PRIORITY)
        placed: npt.NDArray[np.uint32] = np.zeros((0, len(self.jobs)), dtype=np.uint32)
        if queues is not None:
            numbers = _check_numbers("queues", queues, self._queues)
            placed = _spread("queues", numbers, (len(chosen), len(self.jobs)))
        self._simulation.program(chosen, shares, _spread("priorities", levels, shape), placed)
        self._simulation.order_by_queues()

    def order_jobs(self, priorities: Sequence[int] | npt.NDArray[np.int64]) -> None:
        """Serve jobs by strict priority at all ports, 0 first; equal ones share max-min."""
        levels = _check_numbers("priorities", priorities, MAX_PRIORITY)
        if levels.shape != (len(self.jobs),):
            problem = f"{levels.size} priorities for {len(self.jobs)} jobs"
            raise InputError("priorities", problem, "give one for each")
        self._simulation.order_jobs(levels.tolist())

    def order_flows(self, cutoffs_bytes: Sequence[float] = ()) -> None:
        """Serve the message with the fewest bytes left first, whenever rates are solved.

        With cut-offs there are as many strict levels and one more: a message is in the level of the
        number of cut-offs that are not above its bytes left. Equal ones share max-min.
        """
        cutoffs = [float(cutoff) for cutoff in cutoffs_bytes]
        if cutoffs != sorted(cutoffs) or not all(0 < c < float("inf") for c in cutoffs):
            raise InputError("cutoffs", f"{cutoffs} do not ascend above 0", "sort them")
        self._simulation.order_by_bytes_left(cutoffs)


def check_controller(controller: PortController, scenario: Scenario) -> None:
    """Refuse a controller that this scenario cannot have."""
    if scenario.level != "flow":
        raise InputError("controller", f"at {scenario.level} level", 'set level = "flow"')
    if not 1 <= controller.queues <= MAX_QUEUES:
        raise InputError("controller.queues", str(controller.queues), f"use 1 to {MAX_QUEUES}")
    if controller.on not in MOMENTS:
        raise InputError("controller.on", repr(controller.on), f"use {' or '.join(MOMENTS)}")


def _check_numbers(where: str, numbers: npt.ArrayLike, end: int) -> npt.NDArray[np.uint32]:
    """Whole numbers from 0 to below `end`."""
    array = np.asarray(numbers)
    whole = array.astype(np.int64)
    if not ((whole == array) & (whole >= 0) & (whole < end)).all():
        raise InputError(where, "not all are whole numbers in range", f"use 0 to {end - 1}")
    return np.ascontiguousarray(whole, dtype=np.uint32)


def _spread(where: str, array: npt.NDArray[T], shape: tuple[int, int]) -> npt.NDArray[T]:
    """The rows of the ports, of one row if it is for all of them."""
    try:
        return np.ascontiguousarray(np.broadcast_to(array, shape))
    except ValueError:
        problem = f"an array of shape {array.shape}"
        raise InputError(where, problem, f"use {shape}, or {shape[1:]} for all ports") from None
