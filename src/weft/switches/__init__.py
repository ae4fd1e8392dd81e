"""Drivers that program the ports of switches and adapters, and read them back."""

from weft.switches.tables import (
    Ability,
    Claim,
    EdgePort,
    EdgeReport,
    EdgeRules,
    Failed,
    Fenced,
    Foreign,
    Lane,
    PortName,
    PortProgrammer,
    Switches,
    Tables,
    Taken,
    Violation,
    find_misfit,
)

__all__ = [
    "Ability",
    "Claim",
    "EdgePort",
    "EdgeReport",
    "EdgeRules",
    "Failed",
    "Fenced",
    "Foreign",
    "Lane",
    "PortName",
    "PortProgrammer",
    "Switches",
    "Tables",
    "Taken",
    "Violation",
    "find_misfit",
]
