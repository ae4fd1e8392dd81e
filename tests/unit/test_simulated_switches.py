"""Simulated switches: registers that stay, writes that are lost, ports that are never between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from weft.errors import InputError
from weft.fabric import leaf_spine, one_switch, write_toml
from weft.switches import Ability, Failed, Lane, PortName, Tables
from weft.switches.simulated import (
    DEFAULT_ABILITY,
    RegisterLayout,
    Registers,
    SimulatedSwitches,
    WriteFailures,
    build_initial_tables,
    find_refusal,
    plan_steps,
    read_routed_fabric,
)

PORT = PortName("switch0", 1)
CROWDED = Tables(queue_of=(0,) * 16, weights=(200, *[0] * 7))
SPREAD = Tables(queue_of=tuple(n % 8 for n in range(16)), weights=(30,) * 8)
HTB = Ability(scheduler="htb", levels=16, queues=16, entries=16, units=200_000)


def test_a_port_that_was_told_nothing_has_one_queue() -> None:
    switches = SimulatedSwitches(one_switch(2))
    assert switches.read([PORT]) == {PORT: build_initial_tables(DEFAULT_ABILITY)}
    assert build_initial_tables(DEFAULT_ABILITY).weights == (255, 0, 0, 0, 0, 0, 0, 0)
    switches.close()


def test_every_port_with_a_cable_can_be_told_and_no_other() -> None:
    switches = SimulatedSwitches(leaf_spine(2, 2, 3))
    ports = [PortName("leaf0", 4), PortName("h5", 1), PortName("leaf0", 9), PortName("x", 1)]
    result = list(switches.abilities(ports).values())
    assert result[:2] == [DEFAULT_ABILITY, DEFAULT_ABILITY]
    assert result[2] == Failed("is not of the fabric")
    assert isinstance(result[3], Failed)
    switches.close()


def test_registers_in_a_file_outlive_the_driver_and_are_those_of_its_fabric(tmp_path: Path) -> None:
    path = tmp_path / "registers"
    first = SimulatedSwitches(one_switch(2), path=path)
    assert first.write({PORT: SPREAD}) == {PORT: SPREAD}
    first.close()
    second = SimulatedSwitches(one_switch(2), path=path)
    assert second.read([PORT]) == {PORT: SPREAD}
    second.close()
    with pytest.raises(InputError, match="has the registers of other switches; delete it"):
        SimulatedSwitches(one_switch(3), path=path)


WRITE_FOR_EVER = """
import sys
from pathlib import Path
from weft.fabric import one_switch
from weft.switches import PortName, Tables
from weft.switches.simulated import SimulatedSwitches
switches = SimulatedSwitches(one_switch(2), path=Path(sys.argv[1]))
both = [Tables(queue_of=(0,) * 16, weights=(200, *[0] * 7)),
        Tables(queue_of=tuple(n % 8 for n in range(16)), weights=(30,) * 8)]
print("writing", flush=True)
while True:
    for tables in both:
        switches.write({PortName("switch0", 1): tables})
"""


def test_a_writer_that_is_killed_leaves_tables_that_serve_every_level(tmp_path: Path) -> None:
    path = tmp_path / "registers"
    for _ in range(3):
        argv = [sys.executable, "-c", WRITE_FOR_EVER, str(path)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            os.kill(writer.pid, signal.SIGKILL)
        switches = SimulatedSwitches(one_switch(2), path=path)
        assert isinstance(switches.read([PORT])[PORT], Tables)
        switches.close()


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5])
def test_a_port_whose_writes_are_lost_has_the_old_tables_or_the_new(probability: float) -> None:
    switches = SimulatedSwitches(one_switch(4), failing=WriteFailures(probability=probability))
    ports = [PortName("switch0", n) for n in (1, 2, 3, 4)]
    had = switches.read(ports)
    failed = 0
    for n in range(200):
        wanted = dict.fromkeys(ports, SPREAD if n % 2 else CROWDED)
        written = switches.write(wanted)
        for port, outcome in written.items():
            failed += isinstance(outcome, Failed)
            assert outcome == wanted[port] or isinstance(outcome, Failed)
            had[port] = had[port] if isinstance(outcome, Failed) else outcome
        assert switches.read(ports) == had
    assert failed > 0
    switches.close()


def test_the_same_seed_loses_the_same_writes() -> None:
    def outcome(seed: int) -> list[bool]:
        switches = SimulatedSwitches(
            one_switch(2), failing=WriteFailures(probability=0.5, seed=seed)
        )
        outcomes = [switches.write({PORT: SPREAD if n % 2 else CROWDED})[PORT] for n in range(64)]
        switches.close()
        return [isinstance(one, Failed) for one in outcomes]

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)


def test_a_change_of_the_map_serves_old_and_new_queues_in_between() -> None:
    between = plan_steps(CROWDED, SPREAD, DEFAULT_ABILITY)
    assert [(s.queue_of == SPREAD.queue_of, s.weights) for s in between] == [
        (False, (200, *[30] * 7)),
        (True, (200, *[30] * 7)),
        (True, (30,) * 8),
    ]
    assert plan_steps(SPREAD, SPREAD, DEFAULT_ABILITY) == []


def test_at_every_moment_of_a_change_a_port_has_tables_that_it_can_hold() -> None:
    one_heavy = Tables(queue_of=(0,) * 16, weights=(2040, *[0] * 7))  # all of its entries
    other_heavy = Tables(queue_of=(7,) * 16, weights=(*[0] * 7, 2040))
    between = plan_steps(one_heavy, other_heavy, DEFAULT_ABILITY)
    assert [find_refusal(one, DEFAULT_ABILITY) for one in between] == [None] * 3
    assert between[-1] == other_heavy


def test_a_port_that_does_not_keep_what_it_was_told_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switches = SimulatedSwitches(one_switch(2))
    switches.write({PORT: CROWDED})
    keep = Registers.write_weights

    def bent(self: Registers, port: PortName, tables: Tables) -> None:
        kept = replace(tables, weights=(31, *[30] * 7)) if tables == SPREAD else tables
        keep(self, port, kept)

    monkeypatch.setattr(Registers, "write_weights", bent)
    outcome = switches.write({PORT: SPREAD})[PORT]
    assert isinstance(outcome, Failed)
    assert outcome.problem.startswith("reads back as")
    assert outcome.problem.endswith("it keeps its old tables")
    assert switches.read([PORT]) == {PORT: CROWDED}
    switches.close()


@pytest.mark.parametrize(
    ("wanted", "able", "message"),
    [
        (
            Tables(queue_of=(0,) * 16, weights=(2041, *[0] * 7)),
            DEFAULT_ABILITY,
            "9 arbitration entries",
        ),
        (Tables(queue_of=(0,) * 16, weights=(1,) * 7), DEFAULT_ABILITY, "tables of 7 queues"),
        (
            Tables(queue_of=(0,) * 16, weights=(1,) * 8, lane=Lane(queue=1, limit=255)),
            DEFAULT_ABILITY,
            "limit 255 of high priority, 254 is the most",
        ),
        (Tables(queue_of=(0,) * 16, weights=(200_001, *[0] * 15)), HTB, "weights sum to 200001"),
    ],
)
def test_what_a_port_cannot_be_told_is_refused(wanted: Tables, able: Ability, message: str) -> None:
    result = find_refusal(wanted, able)
    assert result is not None
    assert result.startswith(message)


def test_ports_may_have_abilities_of_their_own() -> None:
    fabric = one_switch(2)
    abilities = {PortName("switch0", 1): HTB, PortName("switch0", 2): DEFAULT_ABILITY}
    abilities |= {PortName(f"h{n}", 1): DEFAULT_ABILITY for n in range(2)}
    switches = SimulatedSwitches(fabric, abilities)
    wanted = Tables(queue_of=tuple(range(16)), weights=(12_500,) * 16, lane=Lane(queue=3, limit=9))
    assert switches.write({PORT: wanted}) == {PORT: wanted}
    assert switches.write({PortName("h1", 1): SPREAD}) == {PortName("h1", 1): SPREAD}
    switches.close()
    with pytest.raises(InputError, match="h0 port 1: has no ability"):
        SimulatedSwitches(fabric, {PORT: HTB, PortName("switch0", 2): DEFAULT_ABILITY})


def test_registers_are_a_byte_for_each_level_then_weights_and_lane() -> None:
    layout = RegisterLayout(levels=2, queues=2)
    tables = Tables(queue_of=(1, 0), weights=(7, 258), lane=Lane(queue=1, limit=5))
    registers = layout.pack_map(tables) + layout.pack_weights(tables)
    assert registers.hex() == "0100" + "00000007" + "00000102" + "00000001" + "00000005"


def test_a_fabric_is_read_from_files_and_routed_where_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(write_toml(leaf_spine(2, 1, 2)).split("[[route]]")[0])
    result = read_routed_fabric(str(path))
    assert result.routes is not None
    assert len(result.hosts) == 4


def test_a_lane_may_have_the_greatest_limit_that_is_one() -> None:
    wanted = Tables(queue_of=(0,) * 16, weights=(1,) * 8, lane=Lane(queue=1, limit=254))
    assert find_refusal(wanted, DEFAULT_ABILITY) is None
