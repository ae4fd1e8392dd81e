"""Pi by throwing darts: each host throws its own, and at the end they are counted.

Usage: mpi HOSTS pi.py MILLIONS. It hardly sends.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI
from ranks import wait

AT_ONCE = 1_000_000


def main(millions: int) -> None:
    world = MPI.COMM_WORLD
    random = np.random.default_rng(world.rank)
    inside = np.zeros(1)
    for _ in range(millions):
        x, y = random.random((2, AT_ONCE))
        inside += np.count_nonzero(x * x + y * y < 1)
    total = np.zeros(1)
    wait([world.Iallreduce(inside, total)])
    found = 4 * total[0] / (world.size * millions * AT_ONCE)
    assert abs(found - np.pi) < 0.01, found


main(*map(int, sys.argv[1:]))
