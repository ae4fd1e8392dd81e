"""Rivals of Saba: in which order flows and coflows go. Pure functions of what is left to send."""

from weft.studies.saba.sharing.priority_order import (
    CoflowOrder,
    assign_priorities,
    order_coflows,
    order_flows,
)

__all__ = ["CoflowOrder", "assign_priorities", "order_coflows", "order_flows"]
