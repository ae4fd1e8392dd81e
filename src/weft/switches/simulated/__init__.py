"""Simulated switches: the tables of a fabric without hardware, for trials and tests."""

from weft.switches.simulated.driver import DEFAULT_ABILITY, SimulatedSwitches, read_routed_fabric
from weft.switches.simulated.registers import WriteFailures

__all__ = ["DEFAULT_ABILITY", "SimulatedSwitches", "WriteFailures", "read_routed_fabric"]
