"""S4: twenty jobs of 97 instances on 1,944 hosts at flow level, one run per process.

    python -m bench.flow_jobs QUEUES STEP_US

prints one JSON object. Each job computes and shuffles once, at random places and with random
volumes; a controller gives each port other weights whenever a job arrives or leaves. With one queue
there is no controller. CPU time is of the run, the record included, without reading the scenario.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Literal

import numpy as np

from weft.records import Scalar
from weft.simulate import scenario_from, simulate
from weft.simulate.port_controller import LivePorts

JOBS, INSTANCES = 20, 97


class RandomWeights:
    """Job j in queue j modulo queues; weights from 1 to 16, drawn anew at each update."""

    on: Literal["jobs", "stages"] = "jobs"

    def __init__(self, queues: int) -> None:
        self.queues = queues
        self.rng = np.random.default_rng(2)

    def update(self, ports: LivePorts) -> None:
        weights = self.rng.uniform(1, 16, (ports.count, self.queues))
        ports.program(np.arange(ports.count), weights, np.arange(JOBS) % self.queues)


def build_scenario(step_us: float) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    jobs = [
        {
            "name": f"job{number}",
            "instances": INSTANCES,
            "placement": "random",
            "stage": [
                {
                    "compute": f"{rng.integers(200, 2000)} us",
                    "volume": f"{rng.integers(5, 50)} MB",
                    "pattern": "shuffle",
                }
            ],
        }
        for number in range(JOBS)
    ]
    fabric = {"topology": "papers_1944", "routing": "ecmp", "rate": "56 Gb/s", "delay": "50 ns"}
    flow = {"step": f"{step_us} us"}
    return {"duration": "10 s", "level": "flow", "fabric": fabric, "flow": flow, "job": jobs}


def run(queues: int, step_us: float) -> dict[str, Any]:
    scenario = scenario_from(build_scenario(step_us))
    begun = time.process_time()
    record = simulate(scenario, controller=RandomWeights(queues) if queues > 1 else None).record
    cpu_s = time.process_time() - begun
    ends = [record.quantities[f"job{number}.completion"] for number in range(JOBS)]
    completions_us = [end.value for end in ends if isinstance(end, Scalar)]
    messages = JOBS * INSTANCES * (INSTANCES - 1)
    return {
        "cpu_s": cpu_s,
        "messages": messages,
        "ms_per_message": 1e3 * cpu_s / messages,
        "completions_us": completions_us,
    }


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), float(sys.argv[2]))))
