"""Simulated switches: the tables of a fabric without hardware, for trials and tests."""

from weft.switches.simulated.driver import DEFAULT_ABILITY, SimulatedSwitches
from weft.switches.simulated.registers import WriteFailures
from weft.switches.simulated.routed_fabric import read_routed_fabric

__all__ = ["DEFAULT_ABILITY", "SimulatedSwitches", "WriteFailures", "read_routed_fabric"]
