"""Workloads: operations of ranks that depend on each other, from files or generated."""

from weft.simulate.workload.operations import (
    COMPUTE,
    ENDS,
    RECEIVE,
    SEND,
    STARTS,
    Builder,
    Operations,
    check_operations,
    join_operations,
)

__all__ = [
    "COMPUTE",
    "ENDS",
    "RECEIVE",
    "SEND",
    "STARTS",
    "Builder",
    "Operations",
    "check_operations",
    "join_operations",
]
