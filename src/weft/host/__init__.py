"""What this machine is and can do: clock, processors, memory, devices, counters, noise.

`examine` looks at everything (`weft doctor`), `read_provenance_facts` gives what every measurement
records, `pick_cpus` chooses where to spin, `watch_noise` and `read_counters` show what else
happened during a run. Readers take a root, so they can also read the recorded files of another
host.
"""

from weft.host.machine.counters import Change, compare_counters, read_counters, tabulate_changes
from weft.host.machine.cpu import Placement, Processors, pick_cpus, read_processors
from weft.host.machine.devices import (
    Interface,
    RdmaDevice,
    find_numa_node,
    list_interfaces,
    list_rdma_devices,
)
from weft.host.machine.examination import (
    ClockFacts,
    Examination,
    Finding,
    examine,
    read_clock,
    read_provenance_facts,
)
from weft.host.machine.memory import Memory, read_memory
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
    "compare_counters",
    "examine",
    "find_numa_node",
    "list_interfaces",
    "list_rdma_devices",
    "pick_cpus",
    "read_clock",
    "read_counters",
    "read_memory",
    "read_processors",
    "read_provenance_facts",
    "tabulate_changes",
    "watch_noise",
]
