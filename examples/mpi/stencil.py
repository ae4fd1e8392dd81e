"""A stencil over a ring of ranks: compute, exchange borders, agree on the error.

mpirun -n 4 python examples/mpi/stencil.py
"""

import sys

import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
field = np.random.default_rng(world.rank).random((64, 4096))
border, error = np.empty(4096), np.empty(1)
for _ in range(steps):
    request = world.Irecv(border, source=left, tag=1)
    world.Send(field[-1], dest=right, tag=1)
    inner = 0.25 * (field[:-2] + 2 * field[1:-1] + field[2:])
    request.Wait()
    field[0] = border
    change = np.abs(inner - field[1:-1]).max()
    field[1:-1] = inner
    world.Allreduce(np.array([change]), error, MPI.MAX)
if world.rank == 0:
    print(f"change {error[0]:.3f} after {steps} steps")
