"""Where work runs: processes of this machine, or a Dask cluster with one worker per host.

`local_fleet` and `dask_fleet` give a `Fleet`: one executor for each host. `Coordinator` and
`Member` make hosts start together, stop together, and notice when one of them is lost;
`HostCalls` are the calls that run on them.
"""

from weft.fleet.cluster import dask_fleet
from weft.fleet.coordinator import Coordinator, HostCalls
from weft.fleet.fleet import Fleet, HostLost, local_fleet
from weft.fleet.member import Invitation, Member, join

__all__ = [
    "Coordinator",
    "Fleet",
    "HostCalls",
    "HostLost",
    "Invitation",
    "Member",
    "dask_fleet",
    "join",
    "local_fleet",
]
