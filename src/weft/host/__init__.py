"""What this machine is and can do: clock, processors, memory, devices, counters, noise.

`examine` looks at everything (`weft doctor`), `provenance_facts` gives what every measurement
keeps, `pick_cpus` where to spin, `watch_noise` and `snapshot` what happened beside a run.
Readers take a root, so that the files of another host can be read as well.
"""

from weft.host.machine.clock import ClockFacts, clock
from weft.host.machine.counters import Change, changes, rows, snapshot
from weft.host.machine.cpu import Placement, Processors, pick_cpus, processors
from weft.host.machine.devices import Interface, RdmaDevice, interfaces, numa_node_of, rdma_devices
from weft.host.machine.examination import Examination, examine
from weft.host.machine.facts import provenance_facts
from weft.host.machine.findings import Finding
from weft.host.machine.memory import Memory, memory
from weft.host.machine.noise import Distance, HostNoise, NoiseWatch, watch_noise

__all__ = [
    "Change",
    "ClockFacts",
    "Distance",
    "Examination",
    "Finding",
    "HostNoise",
    "Interface",
    "Memory",
    "NoiseWatch",
    "Placement",
    "Processors",
    "RdmaDevice",
    "changes",
    "clock",
    "examine",
    "interfaces",
    "memory",
    "numa_node_of",
    "pick_cpus",
    "processors",
    "provenance_facts",
    "rdma_devices",
    "rows",
    "snapshot",
    "watch_noise",
]
