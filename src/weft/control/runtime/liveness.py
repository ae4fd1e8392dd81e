"""Tells those who watch the process how it is: gRPC's health service, and systemd.

The health service (grpc.health.v1) says SERVING while requests can be carried out: the engine takes
events, and the store can be written. systemd hears when the controller answers calls, what it is
busy with, and, if the unit has WatchdogSec=, every few seconds that the engine still turns.
Entry points: `Liveness`, `report_standby`. Units: seconds.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from weft.control.runtime.engine import Engine
from weft.control.service.methods import SERVICE
from weft.host.machine.processes import notify_service_manager

_LOOK_S, _STANDBY_S = 0.5, 3.0
_LONGEST_TURN_S = 15.0  # a turn may recompute a whole fabric
_SERVICES = ("", SERVICE.full_name)


@contextmanager
def report_standby(every_s: float = _STANDBY_S) -> Iterator[None]:
    """A controller that waits for its turn is ready, and fine, as far as systemd is concerned."""
    ending = threading.Event()

    def feed() -> None:
        while not ending.wait(every_s):
            notify_service_manager("WATCHDOG=1")

    thread = threading.Thread(target=feed, daemon=True)
    notify_service_manager("READY=1\nSTATUS=standby")
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


class Liveness:
    """Add it to a gRPC server; `run` looks at the engine until it is cancelled."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._health = health.aio.HealthServicer()
        self._is_serving: bool | None = None
        has_watchdog = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watchdog = has_watchdog and "WATCHDOG_USEC" in os.environ

    def add_to(self, server: Any) -> None:
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Publishes a change; feeds the watchdog while the engine turns."""
        turns = time.monotonic() - self._engine.last_turn_s < _LONGEST_TURN_S
        is_serving = turns and not self._engine.problem and not self._engine.ended
        if is_serving != self._is_serving:
            self._is_serving = is_serving
            status = health_pb2.HealthCheckResponse
            for name in _SERVICES:
                await self._health.set(name, status.SERVING if is_serving else status.NOT_SERVING)
            problem = self._engine.problem or "serving"
            notify_service_manager(f"STATUS={problem if turns else 'the engine is busy'}")
        if self._watchdog and turns:
            notify_service_manager("WATCHDOG=1")

    async def end(self) -> None:
        """From now on NOT_SERVING, whatever the engine does."""
        await self._health.enter_graceful_shutdown()
