"""Drivers that program real fabrics: what ports can do, are told, and read back."""

from weft.switches.tables import (
    Ability,
    Failed,
    Foreign,
    Lane,
    PortName,
    PortProgrammer,
    Switches,
    Tables,
    find_misfit,
)

__all__ = [
    "Ability",
    "Failed",
    "Foreign",
    "Lane",
    "PortName",
    "PortProgrammer",
    "Switches",
    "Tables",
    "find_misfit",
]
