"""Drivers that program real fabrics: what a port can be told, told, and read back."""

from weft.switches.tables import (
    Ability,
    Failed,
    Foreign,
    Lane,
    PortName,
    Switches,
    Tables,
    find_misfit,
)

__all__ = ["Ability", "Failed", "Foreign", "Lane", "PortName", "Switches", "Tables", "find_misfit"]
