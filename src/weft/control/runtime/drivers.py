"""The driver that a controller's file asks for, opened.

Keys of [switches] beside `driver`: those of each function here, and of
`weft.switches.infiniband.open_switches`. Entry point: `open_driver`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from weft.control.policy.port import MAX_ENTRIES, MAX_LANES
from weft.control.state.kinds import Settings
from weft.errors import InputError
from weft.fabric import Fabric, read_fabric
from weft.switches import Ability, Switches
from weft.toml_table import Table

_SCHEDULERS: Mapping[str, Literal["vlarb", "htb"]] = {"vlarb": "vlarb", "htb": "htb"}


def open_driver(name: str, table: Table, base: Path, settings: Settings) -> Switches:
    """The driver by its name; paths are relative to `base`."""
    return DRIVERS[name](table, base, settings)


def addresses_of(driver: Switches) -> Mapping[str, str]:
    """Names of hosts by their addresses, where the driver knows them after a discovery."""
    found: Mapping[str, str] = getattr(driver, "addresses", {})
    return found


def remarks_of(driver: Switches) -> tuple[str, ...]:
    """What an operator should know of the driver's last discovery."""
    notes: tuple[str, ...] = tuple(getattr(driver, "notes", ()))
    silent = unanswered_of(driver)
    return (*notes, f"{silent} ports lead to nodes that do not answer") if silent else notes


def unanswered_of(driver: Switches) -> int:
    """Ports whose neighbour did not answer at the driver's last discovery."""
    return len(getattr(driver, "unanswered", ()))


def scout_of(driver: Switches, opened: Callable[[], Switches]) -> Switches:
    """A second driver of the same switches, for another thread."""
    scout: Callable[[], Switches] = getattr(driver, "scout", opened)
    return scout()


def learn(driver: Switches, scout: Switches) -> None:
    """Tells a driver what its scout has discovered, where it needs to know."""
    if driver is not scout and hasattr(driver, "learn"):
        driver.learn(scout)


def unverified_note(name: str, keys: Collection[str]) -> str:
    """What to know of a driver, opened by these keys, before anything else."""
    if name == "infiniband":
        from weft.switches import infiniband

        return infiniband.UNVERIFIED
    if name == "linux" and "agents" in keys:
        from weft.switches import linux

        return linux.UNVERIFIED
    return ""


def release_ports(driver: Switches, where: str) -> Mapping[str, list[str]]:
    """Ports that have again what they had before they were taken over, by node."""
    if not hasattr(driver, "release"):
        problem = "keeps no record of what ports had before"
        remedy = "have the subnet manager write its own (OpenSM: qos TRUE), or restart the switches"
        raise InputError(where, problem, remedy)
    found: Mapping[str, list[str]] = driver.release()
    return found


def _infiniband(table: Table, base: Path, settings: Settings) -> Switches:
    from weft.switches.infiniband import open_switches

    own = table.rest()
    own.setdefault("levels", settings.all_levels)
    if "m_key_file" in own:
        own["m_key_file"] = str(base / str(own["m_key_file"]))
    given = Table(own, table.where, table.prefix)
    driver = open_switches(given)
    given.done()
    return driver


def _linux(table: Table, base: Path, _: Settings) -> Switches:
    """`testbed`, with `adapters` or without; or `fabric` files and the sockets of `agents`."""
    from weft.switches.linux import open_agents, open_persistent_testbed

    if table.has("testbed"):
        return open_persistent_testbed(table.text("testbed"), adapters=table.flag("adapters", True))
    if not table.has("agents"):
        problem = "neither testbed nor agents"
        raise InputError(
            table.place("testbed"), problem, "name a testbed, or give [switches.agents]"
        )
    agents = table.table("agents")
    given = agents.rest()
    paths = Table(given, agents.where, agents.prefix)
    sockets = {node: base / paths.text(node) for node in given}
    return open_agents(_fabric(table, base, read_fabric), sockets)


def _simulated(table: Table, base: Path, _: Settings) -> Switches:
    """Any `fabric`; `registers` in a file outlive the controller; `failing` of writes are lost."""
    from weft.switches.simulated import (
        DEFAULT_ABILITY,
        SimulatedSwitches,
        WriteFailures,
        read_routed_fabric,
    )

    scheduler = table.choice("scheduler", _SCHEDULERS, "vlarb")
    ability = Ability(
        scheduler=scheduler,
        levels=table.integer("levels", 1, 64, DEFAULT_ABILITY.levels),
        queues=table.integer(
            "queues", 1, 64 if scheduler == "htb" else MAX_LANES, DEFAULT_ABILITY.queues
        ),
        entries=table.integer("entries", 1, MAX_ENTRIES, DEFAULT_ABILITY.entries),
        units=table.integer("units", 1, 2**31, DEFAULT_ABILITY.units),
    )
    registers = table.text("registers", "")
    failing = table.number("failing", 0.0, 1.0, 0.0)
    fabric = _fabric(table, base, read_routed_fabric)
    with _mistake(table.place("registers")):
        return SimulatedSwitches(
            fabric,
            ability,
            path=base / registers if registers else None,
            failing=WriteFailures(probability=failing) if failing else None,
        )


def _fabric(table: Table, base: Path, reader: Callable[[list[str]], Fabric]) -> Fabric:
    files = [str(base / file) for file in table.texts("fabric")]
    with _mistake(table.place("fabric")):
        return reader(files)


@contextmanager
def _mistake(place: str) -> Iterator[None]:
    """What is wrong with a file that a key names is a mistake there, not to be waited for."""
    try:
        yield
    except InputError as error:
        raise InputError(place, str(error)) from error


DRIVERS: dict[str, Callable[[Table, Path, Settings], Switches]] = {
    "infiniband": _infiniband,
    "linux": _linux,
    "simulated": _simulated,
}
