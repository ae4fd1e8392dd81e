"""Random scenarios on the papers' fabric: who is where, which ports carry whom, and models.

Applications of 32 instances on servers drawn at random (Saba, 4.6.5). The thesis does not say which
instances talk: in a `RING` each has a connection to the next one of its application, in
`ALL_TO_ALL` to every other. A port (of a server or a switch) carries the applications whose
connections pass through it, by the fabric's own routes. Models: hinges drawn at random, and
polynomials of degree 1 to 3 fitted to the same curves at the profile's percentages.
Entry points: `PortMap`, `draw_connections`, `draw_models`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from weft.control.policy.allocate import Ports
from weft.fabric import Fabric
from weft.sensitivity.application import PAPER_SHARES
from weft.sensitivity.model import Hinges, Polynomial, Sensitivity

INSTANCES = 32
RING, ALL_TO_ALL = range(1, 2), range(1, INSTANCES)
# Eight lanes of one table entry each.
UNITS = 8 * 255
# Ports have tens of applications: the floor must leave room for all of them.
FLOOR = 1 / UNITS
KINDS = ("k = 1", "k = 2", "k = 3", "convex")

Ints = NDArray[np.int64]


class PortMap:
    """The fabric as arrays: where every port leads, and which one leads to a host."""

    def __init__(self, fabric: Fabric) -> None:
        assert fabric.routes is not None
        ports = np.array([group[0] for group in fabric.routes.groups])
        self.fabric = fabric
        self.hosts = np.array(fabric.hosts)
        self.far = fabric.wiring
        self.ordinal = np.array(fabric.ordinal)
        self.output = ports[fabric.routes.next_hop]

    def hops(self, source: Ints, target: Ints) -> Iterator[tuple[Ints, Ints]]:
        """(which connections, port each takes) hop by hop; a port is its place in `far`."""
        which = np.flatnonzero(source != target)
        node, port = source[which], np.zeros(len(which), dtype=np.int64)
        while len(which):
            yield which, node * self.far.shape[1] + port
            node = self.far[node, port].astype(np.int64)
            going = node != target[which]
            which, node = which[going], node[going]
            port = self.output[self.ordinal[node], self.ordinal[target[which]]] - 1

    def ports(
        self, source: Ints, target: Ints, application: Ints
    ) -> tuple[Ports, list[tuple[int, int]]]:
        """Applications of every port that carries any, and the ports: (node, port)."""
        count = int(application.max()) + 1
        hops = self.hops(source, target)
        keys = [port * count + application[which] for which, port in hops]
        pairs = np.unique(np.concatenate(keys))
        places, first = np.unique(pairs // count, return_index=True)
        offsets = np.append(first, len(pairs)).astype(np.int64)
        node, port = np.divmod(places, self.far.shape[1])
        names = list(zip(node.tolist(), (port + 1).tolist(), strict=True))
        return Ports(offsets=offsets, applications=(pairs % count).astype(np.int32)), names


def draw_connections(
    rng: np.random.Generator, hosts: Ints, applications: int, steps: Sequence[int] = RING
) -> tuple[Ints, Ints, Ints]:
    """Source, target and application of every connection: to the instances so many further on."""
    place = hosts[rng.integers(0, len(hosts), (applications, INSTANCES))]
    source = np.concatenate([place.ravel() for _ in steps])
    target = np.concatenate([np.roll(place, -step, axis=1).ravel() for step in steps])
    return source, target, np.tile(np.repeat(np.arange(applications), INSTANCES), len(steps))


def draw_models(rng: np.random.Generator, applications: int) -> dict[str, list[Sensitivity]]:
    """Each application as hinges, and as polynomials fitted to them; by kind."""
    hinges = [_hinges(rng) for _ in range(applications)]
    fitted: dict[str, list[Sensitivity]] = {
        f"k = {k}": _fit_polynomials(hinges, k) for k in (1, 2, 3)
    }
    return {**fitted, "convex": list(hinges)}


def _hinges(rng: np.random.Generator) -> Hinges:
    """One to three stretches of communication; at a quarter of the link up to four times slower."""
    knots = np.sort(rng.uniform(0.05, 1.0, rng.integers(1, 4)))[::-1]
    weights = rng.dirichlet(np.ones(len(knots))) * rng.uniform(0.05, 1.0)
    return Hinges(terms=tuple(zip(knots.tolist(), weights.tolist(), strict=True)), floor=FLOOR)


def _fit_polynomials(hinges: Sequence[Hinges], degree: int) -> list[Sensitivity]:
    shares = np.array(PAPER_SHARES)
    slowdowns = np.array([model.slowdown(shares) for model in hinges]).T
    rows = np.polynomial.polynomial.polyfit(shares, slowdowns, degree).T.tolist()
    return [Polynomial(coefficients=tuple(row), floor=FLOOR) for row in rows]
