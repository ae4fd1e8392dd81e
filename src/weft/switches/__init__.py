"""Drivers that program the ports of switches and adapters, and read them back."""

from weft.switches.tables import (
    Ability,
    Claim,
    Failed,
    Fenced,
    Foreign,
    Lane,
    PortName,
    PortProgrammer,
    Switches,
    Tables,
    Taken,
    find_misfit,
)

__all__ = [
    "Ability",
    "Claim",
    "Failed",
    "Fenced",
    "Foreign",
    "Lane",
    "PortName",
    "PortProgrammer",
    "Switches",
    "Tables",
    "Taken",
    "find_misfit",
]
