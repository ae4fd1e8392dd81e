"""Where work runs: processes of this machine, or the workers of a Dask cluster.

`local_fleet` and `dask_fleet` give a `Fleet`: one executor for each host. `Coordinator` and
`Member` make hosts start together, stop together, and notice when one of them is lost;
`HostCalls` are the calls that run on them. `run_calls` runs calls that are independent of each
other and of the host.
"""

from weft.fleet.coordinator import Coordinator, HostCalls, Invitation, Member, join
from weft.fleet.fleet import (
    Call,
    Fleet,
    HostLost,
    check_cluster,
    check_jobs,
    check_stopped,
    dask_fleet,
    local_fleet,
    run_calls,
)

__all__ = [
    "Call",
    "Coordinator",
    "Fleet",
    "HostCalls",
    "HostLost",
    "Invitation",
    "Member",
    "check_cluster",
    "check_jobs",
    "check_stopped",
    "dask_fleet",
    "join",
    "local_fleet",
    "run_calls",
]
