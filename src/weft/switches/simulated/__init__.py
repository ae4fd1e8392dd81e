"""Simulated switches: the tables of a fabric without one, to try plans on and to test with."""

from weft.switches.simulated.driver import USUAL, SimulatedSwitches
from weft.switches.simulated.file_discovery import fabric_from
from weft.switches.simulated.registers import Failing

__all__ = ["USUAL", "Failing", "SimulatedSwitches", "fabric_from"]
