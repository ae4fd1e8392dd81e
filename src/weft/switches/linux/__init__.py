"""Linux switches: HTB classes by DSCP on ports of bridges, routers and hosts, through agents.

Unverified on physical ports: ran on virtual ones only (docs/switches.md).
"""

from weft.switches.linux.driver import (
    LinuxSwitches,
    open_agents,
    open_persistent_testbed,
    open_testbed,
)

UNVERIFIED = "unverified on physical ports: ran on virtual ones alone, in network namespaces"

__all__ = ["UNVERIFIED", "LinuxSwitches", "open_agents", "open_persistent_testbed", "open_testbed"]
