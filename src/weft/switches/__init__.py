"""Drivers that program the ports of switches and adapters, and read them back."""

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
