"""Sorting keys that are spread over all hosts: send each key to its host, sort there.

Usage: mpi HOSTS sort.py ROUNDS KEYS. Computing (partition, sort) and sending alternate.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI
from ranks import wait


def main(rounds: int, keys: int) -> None:
    world = MPI.COMM_WORLD
    random = np.random.default_rng(world.rank)
    for _ in range(rounds):
        own = np.sort(random.integers(0, 2**63, keys, dtype=np.int64))
        bounds = np.array([(2**63 * n) // world.size for n in range(1, world.size)], dtype=np.int64)
        ends = np.concatenate(([0], np.searchsorted(own, bounds), [keys]))
        sending = np.diff(ends).astype(np.int64)
        receiving = np.empty_like(sending)
        wait([world.Ialltoall(sending, receiving)])
        got = np.empty(receiving.sum(), dtype=np.int64)
        wait([world.Ialltoallv([own, sending], [got, receiving])])
        got.sort(kind="stable")
        assert (got[1:] >= got[:-1]).all()


main(*map(int, sys.argv[1:]))
