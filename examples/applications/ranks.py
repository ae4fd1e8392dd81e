"""Waiting for messages without burning a processor: MPI's own waiting polls.

The hosts of a testbed share this machine's processors. A process that polls takes them from the
others, and looks busy while it waits for the network.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from mpi4py import MPI

NAP_S = 0.0003


def wait(requests: Sequence[MPI.Request]) -> None:
    while not MPI.Request.Testall(requests):
        time.sleep(NAP_S)
