"""Simulate lossless fabrics packet by packet.

from weft.simulate import load_scenario, simulate
outcome = simulate(load_scenario("one-switch.toml"))
outcome.record.quantities["probe.rtt"].quantile(0.999)
"""

from weft.simulate.run import Outcome, simulate
from weft.simulate.scenario import Scenario, load_scenario, scenario_from
from weft.simulate.systems import Parameter, parameters, system_names

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
