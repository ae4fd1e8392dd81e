"""S3: flows come and go at flow level, one run per process.

    python -m bench.flow_events TRACE WARM MEASURED [LANES TOLERANCE]

prints one JSON object. Each slot of the trace sends its flows one after another. CPU time is per
completion with the slot's next flow, Python's calls included, over MEASURED completions after WARM.
With LANES, flow n of a slot is in lane (slot + n) mod LANES, and lanes have random weights, other
ones at each port.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from weft._core import Transfers

Hops = list[tuple[int, int]]


def run(
    trace: Path, warm: int, measured: int, lanes: int = 1, tolerance: float = 0.0
) -> dict[str, Any]:
    rng = random.Random(1)
    numbers = iter(trace.read_text().split())
    _, links, rate, slots = (next(numbers) for _ in range(4))
    transfers = Transfers()
    transfers.set_tolerance(tolerance)
    for _ in range(int(links)):
        weights = [rng.uniform(1, 16) for _ in range(lanes)]
        transfers.add_port(8 * float(rate), [(weight, 0) for weight in weights])
    flows: list[list[tuple[int, Hops]]] = []
    for slot in range(int(slots)):
        flows.append([])
        for number in range(int(next(numbers))):
            _, _, size, hops = (int(next(numbers)) for _ in range(4))
            lane = (slot + number) % lanes
            flows[-1].append((size, [(int(next(numbers)), lane) for _ in range(hops)]))
    sending: dict[int, tuple[int, int]] = {}

    def start(slot: int, number: int) -> None:
        size, path = flows[slot][number]
        sending[transfers.start(path, size)] = slot, number

    for slot in range(len(flows)):
        start(slot, 0)
    ends: list[tuple[int, int, float]] = []
    begun = begun_solutions = 0.0
    while len(ends) < warm + measured:
        done = transfers.advance(transfers.next_end_ps())
        # Popped before new flows get the same numbers.
        for slot, number in [sending.pop(transfer) for transfer in done]:
            ends.append((slot, number, transfers.now_ps / 1e12))
            start(slot, number + 1)
            if len(ends) == warm:
                begun, begun_solutions = time.process_time(), transfers.port_solutions
    cpu_s = time.process_time() - begun
    return {
        "ms_per_event": 1e3 * cpu_s / measured,
        "solutions_per_event": (transfers.port_solutions - begun_solutions) / measured,
        "ends": ends,
    }


if __name__ == "__main__":
    trace, warm, measured, *more = sys.argv[1:]
    lanes, tolerance = (int(more[0]), float(more[1])) if more else (1, 0.0)
    print(json.dumps(run(Path(trace), int(warm), int(measured), lanes, tolerance)))
