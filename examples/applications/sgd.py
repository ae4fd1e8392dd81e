"""Training by gradient descent, data parallel: a gradient on own samples, then its mean over all.

Usage: mpi HOSTS sgd.py STEPS WEIGHTS SAMPLES. It computes or it sends, never both: all of the
communication is waited for.
"""

from __future__ import annotations

import sys

import numpy as np
from mpi4py import MPI
from ranks import wait

FEATURES = 64


def main(steps: int, weights: int, samples: int) -> None:
    world = MPI.COMM_WORLD
    outputs = weights // FEATURES
    random = np.random.default_rng(world.rank)
    inputs = random.standard_normal((samples, FEATURES), dtype=np.float32)
    truth = np.random.default_rng(99).standard_normal((FEATURES, outputs), dtype=np.float32)
    wanted = inputs @ truth
    model, mean = np.zeros_like(truth), np.zeros_like(truth)
    before = float(np.abs(truth).mean())
    for _ in range(steps):
        gradient = inputs.T @ (inputs @ model - wanted) / samples
        wait([world.Iallreduce(gradient, mean)])
        model -= 0.3 / world.size * mean
    after = float(np.abs(model - truth).mean())
    assert after < before, f"no progress: {before:.3g} to {after:.3g}"


main(*map(int, sys.argv[1:]))
