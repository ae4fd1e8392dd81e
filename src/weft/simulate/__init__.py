"""Simulate lossless fabrics packet by packet.

from weft.simulate import load_scenario, simulate
outcome = simulate(load_scenario("one-switch.toml"))
outcome.record.quantities["probe.rtt"].quantile(0.999)
"""

from weft.simulate.run import Outcome, simulate
from weft.simulate.scenario import (
    Parameter,
    Scenario,
    load_scenario,
    parameters,
    scenario_from,
    system_names,
)

__all__ = [
    "Outcome",
    "Parameter",
    "Scenario",
    "load_scenario",
    "parameters",
    "scenario_from",
    "simulate",
    "system_names",
]
