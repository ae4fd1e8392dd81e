"""Simulated switches: the tables of a fabric without one, to try plans on and to test with."""

from weft.switches.simulated.discover import fabric_from
from weft.switches.simulated.driver import USUAL, SimulatedSwitches
from weft.switches.simulated.wire import Failing

__all__ = ["USUAL", "Failing", "SimulatedSwitches", "fabric_from"]
