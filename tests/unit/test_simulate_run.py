"""Running a scenario: how it ends, what is kept, what the record says in words."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from weft.fabric import Fabric
from weft.records import Scalar, to_line
from weft.simulate import Outcome, scenario_from, simulate
from weft.simulate.sweep import Source, combine_points, sweep
from weft.toml_table import parse_toml

SWITCHES = 4


def star(**changes: Any) -> dict[str, Any]:
    load = {"name": "load", "kind": "bandwidth", "from": "h0", "to": "h1", "size": "4 KiB"}
    fabric = {"topology": "one_switch", "hosts": 4, "rate": "56 Gb/s", "delay": "10 ns"}
    return {"duration": "200 us", "fabric": fabric, "traffic": [load]} | changes


def scalar(outcome: Outcome, name: str) -> float:
    quantity = outcome.record.quantities[name]
    assert isinstance(quantity, Scalar)
    return quantity.value


def clockwise_ring(folder: Path) -> dict[str, Any]:
    """Four switches in a ring, a host each, every packet clockwise: a cyclic dependency."""
    lines = ["[fabric]", 'rate = "56 Gb/s"', 'delay = "10 ns"']
    for i in range(SWITCHES):
        lines += ["[[host]]", f'name = "h{i}"', "[[switch]]", f'name = "s{i}"', "ports = 3"]
        lines += ["[[link]]", f'ends = ["h{i}:1", "s{i}:1"]']
        lines += ["[[route]]", f'switch = "s{i}"']
        lines += [f"out = {[[1] if host == i else [2] for host in range(SWITCHES)]}"]
    for i in range(SWITCHES):
        lines += ["[[link]]", f'ends = ["s{i}:2", "s{(i + 1) % SWITCHES}:3"]']
    (folder / "ring.toml").write_text("\n".join(lines))
    traffic = [
        {
            "name": f"f{i}",
            "kind": "bandwidth",
            "from": f"h{i}",
            "to": f"h{(i + 2) % SWITCHES}",
            "size": "64 KiB",
            "messages": 200,
        }
        for i in range(SWITCHES)
    ]
    return {
        "duration": "1 s",
        "fabric": {"file": "ring.toml"},
        "switch": {"buffer": "8320 B"},
        "traffic": traffic,
    }


def test_a_deadlock_ends_the_run_and_its_cycle_is_named_switch_by_switch(tmp_path: Path) -> None:
    outcome = simulate(scenario_from(clockwise_ring(tmp_path), base=tmp_path))
    assert outcome.ended == "deadlock"
    (deadlock,) = [note for note in outcome.record.notes if note.startswith("deadlock")]
    for i in range(SWITCHES):
        assert f"s{(i + 1) % SWITCHES} from s{i} vl0" in deadlock
    assert deadlock.count(" waits for ") == SWITCHES


def test_the_same_ring_with_enough_buffer_for_everything_finishes(tmp_path: Path) -> None:
    data = clockwise_ring(tmp_path) | {"switch": {"buffer": "1 GiB"}}
    outcome = simulate(scenario_from(data, base=tmp_path))
    assert outcome.ended == "finished"
    assert not any("deadlock" in note for note in outcome.record.notes)


def test_a_finite_run_ends_as_finished_and_an_endless_one_when_its_time_is_up() -> None:
    finite = star()["traffic"][0] | {"messages": 10}
    assert simulate(scenario_from(star(traffic=[finite]))).ended == "finished"
    assert simulate(scenario_from(star())).ended == "time up"


def test_progress_rises_from_0_to_1_and_is_reported_between_slices() -> None:
    fractions: list[float] = []
    simulate(scenario_from(star(duration="200 ms")), fractions.append)
    assert len(fractions) > 2
    assert fractions == sorted(fractions)
    assert fractions[0] >= 0
    assert fractions[-1] <= 1


def test_an_interrupt_keeps_what_was_simulated_so_far() -> None:
    def stop(share: float) -> None:
        if share > 0.2:
            raise KeyboardInterrupt

    outcome = simulate(scenario_from(star(duration="100 ms")), stop)
    assert outcome.ended == "interrupted"
    assert any("interrupted" in note for note in outcome.record.notes)
    # The rate is over the time that was simulated, not over what was asked for.
    assert scalar(outcome, "load.goodput") == pytest.approx(56 * 4096 / 4122, rel=0.01)


def test_counters_of_a_finished_run_agree_at_both_ends_of_every_cable() -> None:
    shuffle = {"name": "all", "kind": "shuffle", "size": "100 kB"}
    outcome = simulate(scenario_from(star(duration="10 ms", traffic=[shuffle])))
    assert outcome.ended == "finished"
    rows = {(row["node"], row["port"]): row for row in outcome.record.tables["ports"]}
    for host in range(4):
        near, far = rows[f"h{host}", 1], rows["switch0", host + 1]
        for sent, got in ((near, far), (far, near)):
            assert sent["XmitData"] == got["RcvData"]
            assert sent["XmitPkts"] == got["RcvPkts"]


def test_a_port_counts_words_between_the_start_of_a_packet_and_its_vcrc() -> None:
    # 64 B in one packet: LRH 8, BTH 12, payload 64, ICRC 4, and the VCRC of 2 that is not counted.
    load = {"name": "load", "kind": "incast", "from": "h0", "to": "h1", "size": "64 B"}
    outcome = simulate(scenario_from(star(traffic=[load])))
    rows = {(row["node"], row["port"]): row for row in outcome.record.tables["ports"]}
    assert (rows["h0", 1]["XmitPkts"], rows["h0", 1]["XmitData"]) == (1, (8 + 12 + 64 + 4) // 4)


@pytest.mark.parametrize(
    ("senders", "receivers", "listed"), [("h0..h7", "h8..h15", True), ("h0..h4", "h5..h17", False)]
)
def test_up_to_64_flows_are_listed_one_by_one(senders: str, receivers: str, listed: bool) -> None:
    load = {"name": "load", "kind": "bandwidth", "size": "64 B", "from": senders, "to": receivers}
    fabric = {"topology": "one_switch", "hosts": 18}
    outcome = simulate(scenario_from(star(duration="5 us", fabric=fabric, traffic=[load])))
    flows = [name for name in outcome.record.quantities if name.startswith("load.h")]
    assert bool(flows) is listed
    assert "load.goodput" in outcome.record.quantities


@pytest.mark.parametrize(("hosts", "drawn"), [(199, True), (200, False)])
def test_a_fabric_of_up_to_200_nodes_is_in_the_record(hosts: int, drawn: bool) -> None:
    fabric = {"topology": "one_switch", "hosts": hosts}
    outcome = simulate(scenario_from(star(duration="1 us", fabric=fabric)))
    assert (outcome.record.topology is not None) is drawn


def test_rates_count_only_after_the_warm_up() -> None:
    # A stream at full rate: over the time after the warm-up it has the wire's share for payload.
    outcome = simulate(scenario_from(star(duration="200 us", warmup="150 us")))
    assert scalar(outcome, "load.goodput") == pytest.approx(56 * 4096 / 4122, rel=0.02)
    assert scalar(outcome, "load.message_rate") == pytest.approx(56e3 / 8 / 4122, rel=0.02)


def test_a_shuffle_delivers_every_byte_once() -> None:
    shuffle = {"name": "all", "kind": "shuffle", "size": "100 kB"}
    outcome = simulate(scenario_from(star(duration="10 ms", traffic=[shuffle])))
    elapsed_us = scalar(outcome, "all.finished")
    delivered = scalar(outcome, "all.goodput") * 1e3 / 8 * elapsed_us
    assert delivered == pytest.approx(12 * 100_000, rel=1e-6)


@pytest.mark.parametrize("hosts", [2, 3, 4])
def test_a_ring_all_reduce_moves_2_n_minus_1_chunks_per_host(hosts: int) -> None:
    table = {"name": "ring", "kind": "allreduce", "size": "120 kB", "hosts": f"h0..h{hosts - 1}"}
    outcome = simulate(scenario_from(star(duration="10 ms", traffic=[table])))
    elapsed_us = scalar(outcome, "ring.finished")
    messages = scalar(outcome, "ring.message_rate") * elapsed_us
    assert messages == pytest.approx(hosts * 2 * (hosts - 1), rel=1e-6)
    # No chunk can be sent before the one it adds to has arrived.
    steps = 2 * (hosts - 1)
    assert elapsed_us >= steps * 120_000 / hosts * 8 / 56e3


def test_two_traffics_with_flows_that_trigger_each_other_stay_apart() -> None:
    rings = [
        {"name": name, "kind": "allreduce", "size": "12 kB", "hosts": hosts}
        for name, hosts in (("a", "h0..h1"), ("b", ["h2", "h3"]))
    ]
    outcome = simulate(scenario_from(star(duration="10 ms", traffic=rings)))
    assert outcome.ended == "finished"
    assert scalar(outcome, "a.finished") == scalar(outcome, "b.finished")


def test_records_are_the_same_bytes_however_many_processes_run_the_sweep() -> None:
    data = star(system="sx6012", duration="50 us")
    source = Source(data=data, where="x.toml", base=Path())
    combinations = combine_points(
        {"seed": 7}, {"switch.order": ["fcfs", "round-robin"], "traffic.load.window": [1, 8]}
    )
    single, beside = (
        {number: to_line(record) for number, record, _ in sweep(source, combinations, jobs)}
        for jobs in (1, 2)
    )
    assert len(single) == 4
    assert single == beside


def test_points_that_run_one_after_another_run_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = Source(data=star(duration="10 us"), where="x.toml", base=Path())
    seeds = combine_points({}, {"seed": [1, 2]})
    calls: list[object] = []

    def count(*args: Any, **options: Any) -> Outcome:
        calls.append(args)
        return simulate(*args, **options)

    monkeypatch.setattr("weft.simulate.sweep.simulate", count)
    assert [number for number, _, _ in sweep(source, seeds, 1)] == [0, 1]
    assert len(calls) == 2
    assert len([*sweep(source, seeds[:1], 8)]) == 1  # a lone point needs no other process
    assert len(calls) == 3


# ---- Waiting lanes, deadlocks and hints -------------------------------------------------------


def test_lanes_that_are_served_in_turn_are_not_starved() -> None:
    # Nine senders to one receiver: a packet waits for nine full buffers, its head for nine packets.
    fabric = {"topology": "two_hops", "upstream_hosts": 2, "downstream_hosts": 8, "rate": "56 Gb/s"}
    load = {"name": "load", "kind": "bandwidth", "size": "4 KiB", "from": "h0..h8", "to": "h9"}
    outcome = simulate(scenario_from(star(duration="60 us", fabric=fabric, traffic=[load])))
    assert len(outcome.record.notes) == 1


def test_a_lane_in_no_table_of_a_port_is_starved_and_those_behind_it_lack_credit() -> None:
    fabric = {"topology": "two_hops", "upstream_hosts": 1, "downstream_hosts": 2, "lanes": 2}
    load = {"name": "load", "kind": "bandwidth", "size": "4 KiB", "from": "h0", "to": "h2"}
    traffic = [load, load | {"name": "never", "sl": 1}]
    tables = {"port": [{"node": "switch1", "port": 2, "low": [[0, 64]]}]}
    outcome = simulate(scenario_from(star(fabric=fabric, lanes=tables, traffic=traffic)))
    reasons = {
        note.split(" has waited ")[0]: note.rsplit(": ", 1)[1] for note in outcome.record.notes[1:]
    }
    assert reasons == {
        "starved: head at switch1 from switch0 vl1": "is its lane in the arbitration tables?",
        "starved: head at switch0 from h0 vl1": "no credit",
        "starved: head at h0 vl1": "no credit",
    }


def test_a_deadlock_beside_live_traffic_ends_the_run_and_its_time_is_named(tmp_path: Path) -> None:
    ring = clockwise_ring(tmp_path)
    for table in ring["traffic"]:
        table["start"] = "100 us"
    live = {"name": "live", "kind": "bandwidth", "from": "h0", "to": "h1", "size": "64 B", "sl": 1}
    toml = (tmp_path / "ring.toml").read_text()
    (tmp_path / "ring.toml").write_text(toml.replace("[fabric]", "[fabric]\nlanes = 2"))
    outcome = simulate(scenario_from(ring | {"traffic": [*ring["traffic"], live]}, base=tmp_path))
    assert outcome.ended == "deadlock"
    ending, deadlock = outcome.record.notes
    assert "of 1e+06 us" in ending
    since_us = float(deadlock.split("since ")[1].split(" us")[0])
    assert 100 < since_us < 200
    assert scalar(outcome, "live.message_rate") > 1


@pytest.mark.parametrize("queues", [False, True])
def test_a_hint_names_what_fifo_inputs_cost_and_queues_per_output_need_none(queues: bool) -> None:
    fabric = {"topology": "leaf_spine", "leaves": 4, "spines": 4, "hosts_per_leaf": 4}
    shuffle = {"name": "all", "kind": "shuffle", "size": "100 kB"}
    data = star(duration="10 ms", fabric=fabric, traffic=[shuffle])
    outcome = simulate(scenario_from(data | {"switch": {"virtual_output_queues": queues}}))
    hints = [note for note in outcome.record.notes if "switch.virtual_output_queues" in note]
    assert len(hints) == (not queues)


def test_a_warm_up_that_leaves_no_sample_is_named_and_a_shorter_one_is_not() -> None:
    burst = {"name": "burst", "kind": "incast", "from": "h0..h2", "to": "h3", "size": "1 MB"}
    emptied = simulate(scenario_from(star(duration="10 ms", warmup="50 us", traffic=[burst])))
    (note,) = emptied.record.notes[1:]
    assert note.startswith("burst: no distributions")
    assert "3 delivered messages" in note
    assert "50 us" in note
    assert "burst.rtt" not in emptied.record.quantities
    later = burst | {"start": "50 us"}
    kept = simulate(scenario_from(star(duration="10 ms", warmup="50 us", traffic=[later])))
    assert "burst.rtt" in kept.record.quantities
    assert len(kept.record.notes) == 1


# ---- Ends of traffic, buffers of ports, crossbars ----------------------------------------------


def test_an_endless_probe_stops_with_the_shuffle_that_it_names() -> None:
    shuffle = {"name": "all", "kind": "shuffle", "size": "100 kB"}
    probe = {"name": "probe", "kind": "latency", "from": "h0", "to": "h1", "stop": "all"}
    outcome = simulate(scenario_from(star(duration="1 s", traffic=[probe, shuffle])))
    assert outcome.ended == "finished"
    alone = simulate(scenario_from(star(duration="1 s", traffic=[shuffle])))
    assert scalar(outcome, "all.finished") == pytest.approx(scalar(alone, "all.finished"), rel=0.2)
    # The run ends there: the rate of the probe is over the shuffle's time alone.
    assert f"finished at {scalar(outcome, 'all.finished'):.6g} us" in outcome.record.notes[0]


def test_the_rate_of_traffic_that_stops_with_another_is_over_the_time_until_then() -> None:
    short = {"name": "short", "kind": "incast", "from": "h0", "to": "h1", "size": "1 MB"}
    long = {"name": "long", "kind": "incast", "from": "h0", "to": "h1", "size": "10 MB"}
    load = {"name": "load", "kind": "bandwidth", "from": "h2", "to": "h3", "size": "4 KiB"}
    traffic = [short, long, load | {"stop": "short"}]
    outcome = simulate(scenario_from(star(duration="1 s", traffic=traffic)))
    assert scalar(outcome, "short.finished") < scalar(outcome, "long.finished") / 2
    assert scalar(outcome, "load.goodput") == pytest.approx(56 * 4096 / 4122, rel=0.01)


def peak_buffers(outcome: Outcome, node: str) -> dict[int, int]:
    rows = [row for row in outcome.record.tables["ports"] if row["node"] == node]
    return {row["port"]: row["peak_buffer_B"] for row in rows if row["peak_buffer_B"] > 1000}


def test_a_port_of_a_switch_can_have_its_own_buffer() -> None:
    load = {"name": "load", "kind": "bandwidth", "from": "h0..h2", "to": "h3", "size": "4 KiB"}
    ports = [
        {"node": "switch0", "port": 0, "buffer": "12 KiB"},
        {"node": "switch0", "port": 2, "buffer": "48 KiB"},
    ]
    outcome = simulate(scenario_from(star(switch={"port": ports}, traffic=[load])))
    # Packets of 4122 B take 4160 B of credits: two fit into 12 KiB, eleven into 48 KiB.
    assert peak_buffers(outcome, "switch0") == {1: 2 * 4160, 2: 11 * 4160, 3: 2 * 4160}


@pytest.mark.parametrize(("speedup", "gbps"), [(1, 20), (2, 40), (None, 60)])
def test_the_crossbar_limits_how_many_outputs_a_port_feeds(speedup: int | None, gbps: int) -> None:
    fabric = '[fabric]\nname = "x"\ndelay = "10 ns"\n[[switch]]\nname = "s"\nports = 4\n'
    for host, rate in enumerate((100, 20, 20, 20)):
        fabric += f'[[host]]\nname = "h{host}"\n[[link]]\nends = ["s:{host + 1}", "h{host}:1"]\n'
        fabric += f'rate = "{rate} Gb/s"\n'
    load = {"name": "load", "kind": "bandwidth", "from": "h0", "to": "h1..h3", "size": "4 KiB"}
    switch = {"virtual_output_queues": True, "buffer": "1 MiB"}
    if speedup is not None:
        switch |= {"crossbar_speedup": speedup}
    # The fabric has no routes: a scenario routes it.
    data = star(duration="1 ms", fabric={"toml": fabric}, switch=switch, traffic=[load])
    goodput = scalar(simulate(scenario_from(data)), "load.goodput")
    assert goodput == pytest.approx(gbps * 4096 / 4122, rel=0.03)


def test_a_fabric_in_place_is_routed_as_asked(tmp_path: Path) -> None:
    data = clockwise_ring(tmp_path)
    text = (tmp_path / "ring.toml").read_text()
    in_place = data | {"fabric": {"toml": text, "routing": "up_down"}}
    assert simulate(scenario_from(in_place)).ended == "finished"
    assert simulate(scenario_from(data | {"fabric": {"toml": text}})).ended == "deadlock"


@pytest.mark.parametrize(("senders", "more"), [(4, []), (5, ["and 2 more lanes like these"])])
def test_eight_starved_lanes_are_named_and_the_others_counted(
    senders: int, more: list[str]
) -> None:
    # Each sender has two: its own, and the one that it fills at the switch.
    fabric = {"topology": "one_switch", "hosts": senders + 1, "lanes": 2}
    never = {"name": "never", "kind": "bandwidth", "size": "4 KiB", "sl": 1, "to": "h0"}
    tables = {"port": [{"node": "switch0", "port": 1, "low": [[0, 64]]}]}
    traffic = [never | {"from": f"h1..h{senders}"}]
    outcome = simulate(scenario_from(star(fabric=fabric, lanes=tables, traffic=traffic)))
    notes = outcome.record.notes[1:]
    assert [note for note in notes if not note.startswith("starved: ")] == more
    assert len(notes) == 8 + len(more)


def test_a_worker_of_a_sweep_is_killed_with_its_parent() -> None:
    code = """
import ctypes, os
from weft.host.machine.processes import end_only_with_parent
end_only_with_parent(os.getppid())
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))  # PR_GET_PDEATHSIG
print(signal.value)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) == signal.SIGKILL


def test_backlogs_of_outputs_are_sampled_only_when_asked_for() -> None:
    load = {"name": "load", "kind": "bandwidth", "from": "h0..h1", "to": "h3", "size": "4 KiB"}
    sampled, plain = (
        simulate(scenario_from(star(traffic=[load], **more))).record.quantities
        for more in ({"sample_queues_every": "10 us"}, {})
    )
    # Two senders of equal rate fill the port of the receiver alone.
    assert [name for name in sampled if name.endswith(".backlog")] == ["switch0.p4.backlog"]
    assert not any(name.endswith(".backlog") for name in plain)


@pytest.mark.parametrize("form", ["topology", "file", "toml"])
def test_points_share_their_fabric_and_a_changed_file_is_read_again(
    form: str, tmp_path: Path
) -> None:
    text = '[fabric]\ntopology = "one_switch"\nhosts = {hosts}\nrate = "10 Gb/s"\ndelay = "1 ns"\n'

    def read(seed: int, hosts: int) -> Fabric:
        (tmp_path / "fabric.toml").write_text(text.format(hosts=hosts))
        tables = {
            "topology": parse_toml(text.format(hosts=hosts), "x")["fabric"],
            "file": {"file": "fabric.toml", "routing": "ecmp"},
            "toml": {"toml": text.format(hosts=hosts), "routing": "ecmp"},
        }
        stream = {"name": "s", "kind": "bandwidth", "from": "h0", "to": "h1", "size": "1 kB"}
        data = {"duration": "1 us", "seed": seed, "fabric": tables[form], "traffic": [stream]}
        return scenario_from(data, base=tmp_path).fabric

    first = read(1, 3)
    assert read(2, 3) is first
    assert len(read(3, 4).hosts) == 4
