"""A scenario: fabric, system parameters, lanes and traffic of one simulated run.

Written as TOML or as the same nested dict in Python; every key is checked, every error names
file, key, value and what is allowed. `weft.simulate.systems` reads its switches, adapters and
lanes. Entry points: `load_scenario`, `scenario_from`.
Units: ps, bytes, bits per second.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from weft import __version__
from weft._core import AdapterSpec, ArbTables, CreditSpec, Pattern, SwitchSpec, Transport
from weft.errors import InputError, locate_errors
from weft.fabric import Fabric, add_routes, check_reach, read_fabric
from weft.fabric.fabric_files import build_topology, read_toml
from weft.fabric.soundness import MAX_LANES
from weft.simulate.job_traffic import read_jobs
from weft.simulate.systems import (
    LanePlan,
    PortBuffer,
    read_adapter,
    read_congestion,
    read_credits,
    read_grants,
    read_lanes,
    read_port_buffers,
    read_switches,
    system_names,
    system_values,
)
from weft.simulate.traffic import NEVER_PS, Part, Traffic, read_traffic
from weft.simulate.workload.scenario_workloads import LogGopScenario, read_loggop
from weft.simulate.workload.workload_files import list_rank_files
from weft.toml_table import Table, load_toml, read_text

FLOW_KINDS = (
    "bandwidth",
    "pretend",
    "incast",
    "permutation",
    "random",
    "shuffle",
    "workload",
    "collective",
)
MAX_SAMPLES = 2**27  # of 4 bytes, over all lanes


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowAccuracy:
    """How exactly the flow level solves rates; the default is as exact as rounding allows."""

    step_ps: int = 0  # changes are solved together at multiples of it
    tolerance: float = 0.0  # relative change of a share that other ports do not see


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything one run needs; `digest` is of the text it came from."""

    name: str
    seed: int
    duration_ps: int
    warmup_ps: int
    sample_ps: int
    system: str
    fabric: Fabric
    lanes: LanePlan
    switches: SwitchSpec
    credits: CreditSpec
    adapter: AdapterSpec
    traffic: tuple[Traffic, ...]
    first_flow: int = 0  # its number, by which switches choose among equal ports
    level: str = "packet"  # or "flow"
    flow_accuracy: FlowAccuracy = FlowAccuracy()
    buffers: tuple[PortBuffer, ...] = ()
    loggop: LogGopScenario | None = None  # instead of the fabric and its traffic
    settings: Mapping[str, Any] = field(default_factory=dict)
    digest: str = ""


def load_scenario(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario in a TOML file, with dotted keys overridden."""
    path = Path(path)
    return scenario_from(load_toml(path), overrides, where=str(path), base=path.parent)


def scenario_from(
    data: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    where: str = "scenario",
    base: Path = Path(),
) -> Scenario:
    """The scenario in a nested dict of the same keys as the TOML file."""
    changed = _apply_overrides(data, overrides or {}, where)
    top = Table(changed, where)
    return _read_scenario(top, changed, dict(overrides or {}), base)


def compute_digest(
    data: Mapping[str, Any], overrides: Mapping[str, Any], *, where: str, base: Path
) -> str:
    """The digest that the scenario will have, without building its fabric."""
    return _compute_digest(_apply_overrides(data, overrides, where), base)


def _apply_overrides(
    data: Mapping[str, Any], overrides: Mapping[str, Any], where: str
) -> dict[str, Any]:
    changed = copy.deepcopy(dict(data))
    for key, value in overrides.items():
        _apply_override(changed, key, value, where)
    return changed


def _apply_override(data: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Set `a.b.c`; an element of an array of tables is addressed by its name."""
    *path, last = key.split(".")
    at: Any = data
    for step in path:
        if isinstance(at, list):
            named = [item for item in at if isinstance(item, dict) and item.get("name") == step]
            if not named:
                names = ", ".join(str(i.get("name")) for i in at if isinstance(i, dict))
                raise InputError(
                    f"{where}: {key}", f"no entry named {step!r}", f"there are {names}"
                )
            at = named[0]
        else:
            at = at.setdefault(step, {})
        if not isinstance(at, dict | list):
            raise InputError(f"{where}: {key}", f"{step!r} is not a table", "check the key")
    if isinstance(at, list):
        raise InputError(f"{where}: {key}", "names an entry, not a key of it", f"add .KEY to {key}")
    at[last] = value


def _read_scenario(
    top: Table, data: dict[str, Any], settings: dict[str, Any], base: Path
) -> Scenario:
    name = top.text("name", "scenario")
    if (loggop := read_loggop(top, base)) is not None:
        return _loggop_scenario(top, data, settings, name, loggop, base)
    system = top.choice("system", {name: name for name in system_names()}, "ideal")
    values = system_values(system)
    seed = top.integer("seed", 0, 2**63 - 1, 1)
    duration, warmup, sample = _read_times(top)
    fabric = read_scenario_fabric(top.table("fabric"), base)
    host = _merge_section(top, "host", values)
    think = host.time_ps("think", 0)
    switch = _merge_section(top, "switch", values)
    scenario = Scenario(
        name=name,
        seed=seed,
        duration_ps=duration,
        warmup_ps=warmup,
        sample_ps=sample,
        system=system,
        fabric=fabric,
        credits=read_credits(_merge_section(top, "credits", values), switch, host),
        buffers=read_port_buffers(switch, fabric),
        switches=read_switches(switch, read_congestion(top.table("congestion", {}))),
        adapter=read_adapter(host),
        lanes=read_lanes(top.table("lanes", {}), fabric),
        traffic=_read_all_traffic(top, fabric, seed, think, duration, base),
        level=top.choice("level", {level: level for level in ("packet", "flow")}, "packet"),
        flow_accuracy=_read_flow_accuracy(top.table("flow", {}), duration),
        digest=_compute_digest(data, base),
        settings={key: _to_setting(value) for key, value in settings.items()},
    )
    scenario.adapter.grants = read_grants(top.table_if_given("grants"), fabric.lanes)
    top.done()
    _check_scenario(scenario, data, top)
    if scenario.level == "flow":
        _check_flow_level(scenario, data, top)
    return scenario


def _loggop_scenario(
    top: Table,
    data: dict[str, Any],
    settings: dict[str, Any],
    name: str,
    loggop: LogGopScenario,
    base: Path,
) -> Scenario:
    """A scenario without a fabric, whose network is LogGOP."""
    top.done()
    return Scenario(
        name=name,
        seed=1,
        duration_ps=NEVER_PS,
        warmup_ps=0,
        sample_ps=0,
        system="loggop",
        fabric=Fabric("loggop", (), ()),
        lanes=LanePlan(sl2vl=(0,) * 16, tables=ArbTables([], [], 255), served=frozenset()),
        switches=SwitchSpec(),
        credits=CreditSpec(),
        adapter=AdapterSpec(),
        traffic=(),
        loggop=loggop,
        digest=_compute_digest(data, base),
        settings={key: _to_setting(value) for key, value in settings.items()},
    )


def _read_times(top: Table) -> tuple[int, int, int]:
    """Duration, warm-up and the period of samples."""
    duration, warmup = top.time_ps("duration", low=1), top.time_ps("warmup", 0)
    if warmup >= duration:
        raise InputError(
            top.place("warmup"), "leaves nothing to observe", "make it shorter than duration"
        )
    return duration, warmup, top.time_ps("sample_queues_every", 0)


def _read_flow_accuracy(table: Table, duration_ps: int) -> FlowAccuracy:
    step_ps = table.time_ps("step", 0)
    if step_ps > duration_ps:
        raise InputError(table.place("step"), "is longer than the run", "make it far shorter")
    # Rounding alone would never let coarse steps settle.
    tolerance = table.number("tolerance", 0.0, 0.1, 1e-3 if step_ps else 0.0)
    table.done()
    return FlowAccuracy(step_ps=step_ps, tolerance=tolerance)


def _read_all_traffic(
    top: Table, fabric: Fabric, seed: int, think_ps: int, duration_ps: int, base: Path
) -> tuple[Traffic, ...]:
    """The traffic, and after it the jobs: one of the two is required."""
    jobs = read_jobs(
        list(top.tables("job", [])), fabric, seed=seed, duration_ps=duration_ps, base=base
    )
    tables = list(top.tables("traffic", [])) if jobs else list(top.tables("traffic"))
    names = [table.prefix.split(".")[1] for table in tables] + [job.name for job in jobs]
    traffic = (
        read_traffic(table, fabric, seed=seed, think_ps=think_ps, base=base, names=names)
        for table in tables
    )
    return (*traffic, *jobs)


def _check_scenario(scenario: Scenario, data: Mapping[str, Any], top: Table) -> None:
    """What no single key can tell: how the parts fit each other."""
    _check_names(scenario.traffic, top)
    _check_stops(scenario.traffic, top)
    _check_buffers(scenario, top)
    _check_served(scenario.traffic, scenario.lanes, top)
    if scenario.adapter.grants.enabled:
        _prepare_grants(scenario, data, top)
    _check_routes(scenario.traffic, scenario.fabric, top)
    _check_samples(scenario.sample_ps, scenario.duration_ps, scenario.fabric, top)


def _check_flow_level(scenario: Scenario, data: Mapping[str, Any], top: Table) -> None:
    """Whether everything asked for has a meaning at flow level."""
    remedy = 'leave it out, or set level = "packet"'
    for entry in data.get("traffic", []):
        if entry["kind"] not in FLOW_KINDS:
            raise InputError(
                f"{top.where}: traffic.{entry['name']}.kind",
                f"{entry['kind']!r} has no meaning at flow level",
                f'use {", ".join(FLOW_KINDS)}, or set level = "packet"',
            )
    lanes = data.get("lanes", {})
    for tables in (lanes, *lanes.get("port", [])):
        if tables.get("high") and tables.get("high_limit", 255) != 255:
            problem = f"{tables['high_limit']} has no meaning at flow level"
            raise InputError(top.place("lanes.high_limit"), problem, "use 255, no limit")
    if scenario.switches.congestion.enabled:
        raise InputError(top.place("congestion.enabled"), "has no meaning at flow level", remedy)
    if scenario.lanes.tables.strict:
        key = "grants" if scenario.adapter.grants.enabled else "lanes.strict"
        raise InputError(top.place(key), "has no meaning at flow level", remedy)
    if scenario.lanes.budget is not None:
        raise InputError(top.place("lanes.budget"), "has no meaning at flow level", remedy)
    if scenario.sample_ps:
        raise InputError(top.place("sample_queues_every"), "has no meaning at flow level", remedy)


def _compute_digest(data: Mapping[str, Any], base: Path) -> str:
    """A digest of everything that decides the result: scenario, the files it names, weft."""
    digest = hashlib.sha256(
        f"{__version__} {json.dumps(data, sort_keys=True, default=str)}".encode()
    )
    tables = [data.get("fabric", {}), *data.get("traffic", []), *data.get("job", [])]
    for name in (name for table in tables for name in _as_list(table.get("file", []))):
        path = base / name
        for file in list_rank_files(path) if path.suffix == ".et" else [path]:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _as_list(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _to_setting(value: Any) -> Any:
    """A setting as a plain value; a list as its JSON text."""
    return value if isinstance(value, str | int | float | bool) else json.dumps(value)


def _merge_section(top: Table, section: str, values: Mapping[str, Mapping[str, Any]]) -> Table:
    """A section of the scenario on top of the system's values."""
    overrides = top.table(section, {}).rest()
    return Table({**values.get(section, {}), **overrides}, top.where, f"{section}.")


def read_scenario_fabric(table: Table, base: Path) -> Fabric:
    """The fabric of a scenario: a topology by name, files, or the text of one in TOML."""
    if not table.has("toml") and not table.has("file"):
        return build_topology(table)
    routing = table.text("routing", "")
    if table.has("toml"):
        text = table.text("toml")
        table.done()
        return _read_text(text, f"{table.where}: fabric.toml", routing)
    files = tuple(str(base / file) for file in table.texts("file"))
    lanes = table.integer("lanes", 1, MAX_LANES, None)
    delay = table.text("delay", None)
    table.done()
    digests = tuple(hashlib.sha256(read_text(Path(file)).encode()).digest() for file in files)
    return _read_files(files, digests, lanes, delay, routing)


# The points of a sweep mostly share their fabric, and each is read before any runs.
@lru_cache(maxsize=1)
def _read_text(text: str, where: str, routing: str) -> Fabric:
    return add_routes(read_toml(text, where), routing)


@lru_cache(maxsize=1)
def _read_files(
    files: tuple[str, ...],
    _digests: tuple[bytes, ...],  # a file that changes is read again
    lanes: int | None,
    delay: str | None,
    routing: str,
) -> Fabric:
    return add_routes(read_fabric(files, lanes=lanes, delay=delay), routing)


def _check_names(traffic: tuple[Traffic, ...], top: Table) -> None:
    names = [t.name for t in traffic]
    for name in names:
        if names.count(name) > 1:
            raise InputError(top.place("traffic"), f"the name {name!r} is used twice", "rename one")


def _check_stops(traffic: tuple[Traffic, ...], top: Table) -> None:
    """Traffic that stops another must end by itself."""
    for entry in traffic:
        stops = {n for part in entry.parts for n in np.unique(part.flows.stops_with) if n >= 0}
        for other in (traffic[number] for number in stops):
            if any(_has_no_end(part) for part in other.parts):
                raise InputError(
                    f"{top.where}: traffic.{entry.name}.stop",
                    f"{other.name!r} does not end by itself",
                    "name traffic with a number of messages and without such a stop",
                )


def _has_no_end(part: Part) -> bool:
    placed = part.workload.job if part.workload is not None else None
    if placed is not None and placed.job.loops is None:
        return True
    return bool((part.flows.messages < 0).any() or (part.flows.stops_with >= 0).any())


def _check_buffers(scenario: Scenario, top: Table) -> None:
    """Every buffer must hold the largest packet."""
    largest = max((t.largest_packet_bytes for t in scenario.traffic), default=0)
    sizes = [
        ("switch.buffer", scenario.credits.switch_buffer_bytes),
        ("host.buffer", scenario.credits.host_buffer_bytes),
        *((buffer.key, buffer.size_bytes) for buffer in scenario.buffers),
    ]
    for key, size in sizes:
        if size // 64 * 64 < largest:
            raise InputError(
                f"{top.where}: {key}",
                f"{size} B gives a lane no credit for a packet of {largest} B",
                f"use {-(-largest // 64) * 64} B or more, or a smaller mtu",
            )


def _check_served(traffic: tuple[Traffic, ...], lanes: LanePlan, top: Table) -> None:
    for entry in traffic:
        levels = {sl for part in entry.parts for sl in np.unique(part.flows.service_levels)}
        for sl in sorted(levels):
            if lanes.sl2vl[sl] not in lanes.served:
                raise InputError(
                    f"{top.where}: traffic.{entry.name}.sl",
                    f"service level {sl} rides lane {lanes.sl2vl[sl]}, which no table serves",
                    "give the lane a weight in lanes.low or lanes.high",
                )


def _prepare_grants(scenario: Scenario, data: Mapping[str, Any], top: Table) -> None:
    """Lanes are priorities, in strict order, and nothing is acknowledged."""
    if "lanes" in data:
        problem = "given beside grants, whose priorities are the lanes in their order"
        raise InputError(top.place("lanes"), problem, "leave it out")
    scenario.lanes.tables.strict = True
    for entry in scenario.traffic:
        for flow in (flow for part in entry.parts for flow in part.flows):
            place = f"{top.where}: traffic.{entry.name}"
            if flow.sl:
                problem = f"{flow.sl}, and grants choose service levels themselves"
                raise InputError(f"{place}.sl", problem, "leave it out")
            if flow.pattern == Pattern.WORKLOAD:
                flow.transport = Transport.UC
            if flow.transport == Transport.RC:
                problem = "'rc' has acknowledgements, and grants go without"
                raise InputError(f"{place}.transport", problem, "use uc or ud")


def _check_routes(traffic: tuple[Traffic, ...], fabric: Fabric, top: Table) -> None:
    """Every flow must arrive, there and back, whichever of the equal ports it takes."""
    parts = [part.flows for entry in traffic for part in entry.parts]
    sources = np.concatenate([[], *(flows.sources for flows in parts)]).astype(np.int64)
    targets = np.concatenate([[], *(flows.targets for flows in parts)]).astype(np.int64)
    with locate_errors(top.where):
        check_reach(fabric, np.concatenate([sources, targets]), np.concatenate([targets, sources]))


def _check_samples(sample_ps: int, duration_ps: int, fabric: Fabric, top: Table) -> None:
    lanes = 2 * len(fabric.links) * fabric.lanes
    if sample_ps and duration_ps // sample_ps * lanes > MAX_SAMPLES:
        least = duration_ps * lanes // MAX_SAMPLES + 1
        raise InputError(
            top.place("sample_queues_every"),
            f"{sample_ps} ps makes too many samples of {lanes} lanes",
            f"use {least} ps or more",
        )
