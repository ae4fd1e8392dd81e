"""A study's points: simulations, models that run in this process, measurements with a peer.

Simulations may run before the study does, and elsewhere: they are plain scenarios. Entry points:
`Point`, `simulation_point`, `model_point`, `measurement_point`, `record_point`; `RunContext`;
`simulate_scenario`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from weft import __version__
from weft.errors import WeftError
from weft.measure import Measurement, Peer, open_peer
from weft.records import Plain, Provenance, Quantity, Record
from weft.simulate import scenario_from, simulate
from weft.studies.observation import Source, Unavailable

SEED = 1


class StudyError(WeftError):
    """A point of a study did not run to its end."""


class RunContext:
    """What the points of a study share, such as the peer of measurements; a context manager.

    `simulated` has the records of simulations that have run already, by the point's setting.
    """

    def __init__(
        self, connect: Callable[[], Peer] = open_peer, simulated: Mapping[str, Record] | None = None
    ) -> None:
        self.simulated = simulated or {}
        self._connect = connect
        self._open = ExitStack()
        self._peer: Peer | None = None

    def __enter__(self) -> RunContext:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def peer(self) -> Peer:
        """The measuring peer, connected at first use and again after it was lost."""
        if self._peer is None or self._peer.is_lost_within(0):
            self._peer = self._open.enter_context(self._connect())
        return self._peer


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One setting and how its record is made; `settings` are those of the record.

    `scenario` is what a simulation simulates, None of other points.
    """

    setting: str
    settings: Mapping[str, Plain]
    source: Source
    system: str
    run: Callable[[RunContext], Record]
    scenario: Mapping[str, Any] | None = None

    def label(self, record: Record, study: str) -> Record:
        """The record as this point's, distinguished from its neighbours by its settings.

        A measurement keeps its test's name and settings: with them it can be repeated.
        """
        settings = {"system": self.system, **self.settings}
        if self.source == "measurement":
            return replace(record, settings={**record.settings, **settings})
        return replace(record, name=study, settings=settings)


def run_point(point: Point, context: RunContext, study: str) -> Record:
    return point.label(point.run(context), study)


def simulation_point(
    setting: str, settings: Mapping[str, Plain], scenario: Mapping[str, Any], system: str
) -> Point:
    """A run of the packet simulator with the parameters of a system."""
    data = {**scenario, "name": setting, "system": system, "seed": SEED}
    return Point(
        setting=setting,
        settings=settings,
        source="simulation",
        system=system,
        run=lambda context: context.simulated.get(setting) or simulate_scenario(setting, data),
        scenario=data,
    )


def simulate_scenario(
    setting: str, scenario: Mapping[str, Any], progress: Callable[[float], None] | None = None
) -> Record:
    """The record of a simulated point; it must run to its end."""
    outcome = simulate(scenario_from(scenario, where=setting), progress, threads=1)
    if outcome.ended == "interrupted":
        raise KeyboardInterrupt
    if outcome.ended != "time up":
        raise StudyError(f"{setting}: {'; '.join(outcome.record.notes)}")
    return outcome.record


def model_point(
    setting: str,
    settings: Mapping[str, Plain],
    quantities: Callable[[], Mapping[str, Quantity]],
    system: str,
) -> Point:
    """Values of a closed form; `quantities` is called when the study runs, as a fit takes time."""

    def run(_: RunContext) -> Record:
        provenance = Provenance(weft_version=__version__, parameters=system)
        return Record(kind="model", name=setting, quantities=quantities(), provenance=provenance)

    return Point(setting=setting, settings=settings, source="model", system=system, run=run)


def record_point(
    setting: str,
    settings: Mapping[str, Plain],
    quantities: Callable[[], Mapping[str, Quantity]],
    system: str,
    name: str,
) -> Point:
    """Values that were measured by other means than `weft.measure`; `name` is the record's."""

    def run(_: RunContext) -> Record:
        provenance = Provenance(weft_version=__version__)
        return Record(kind="measurement", name=name, quantities=quantities(), provenance=provenance)

    return Point(setting=setting, settings=settings, source="measurement", system=system, run=run)


def measurement_point(
    setting: str,
    settings: Mapping[str, Plain],
    test: Callable[..., Measurement],
    system: str,
    **options: object,
) -> Point:
    """A test of `weft.measure` with the run's peer; options as on the command line."""
    over = str(options.get("over", "tcp"))

    def run(context: RunContext) -> Record:
        try:
            measurement = test(None if over == "delay" else context.peer, **options)
        except WeftError as error:
            raise Unavailable(str(error)) from error
        if measurement.ended:
            raise Unavailable(measurement.ended)
        return measurement.record

    return Point(setting=setting, settings=settings, source="measurement", system=system, run=run)
