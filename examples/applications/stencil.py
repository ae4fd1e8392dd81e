"""Reaction and diffusion on a ring of slabs: edges travel while the inside is computed.

Usage: mpi HOSTS stencil.py STEPS ROWS COLUMNS. Each step sends both edge rows and computes the
inner rows meanwhile: sending costs nothing as long as the link keeps up.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI
from ranks import wait


def react(rows: np.ndarray, above: np.ndarray, below: np.ndarray) -> np.ndarray:
    around = above + below + np.roll(rows, 1, axis=-1) + np.roll(rows, -1, axis=-1)
    return rows + 0.1 * (around - 4 * rows) + 1e-3 * np.exp(-1 / (0.1 + rows * rows))


def main(steps: int, rows: int, columns: int) -> None:
    world = MPI.COMM_WORLD
    up, down = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    field = np.random.default_rng(world.rank).random((rows, columns))
    ghosts = np.empty((2, columns))
    for _ in range(steps):
        requests = [
            world.Irecv(ghosts[0], up, tag=1),
            world.Irecv(ghosts[1], down, tag=2),
            world.Isend(field[0], up, tag=2),
            world.Isend(field[-1], down, tag=1),
        ]
        new = np.empty_like(field)
        for n in range(1, rows - 1):
            new[n] = react(field[n], field[n - 1], field[n + 1])
            MPI.Request.Testall(requests)
        wait(requests)
        new[0] = react(field[0], ghosts[0], field[1])
        new[-1] = react(field[-1], field[-2], ghosts[1])
        field = new
    assert np.isfinite(field).all()


main(*map(int, sys.argv[1:]))
