"""Running a scenario: how it ends, what is kept, what the record says in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from weft.records import Scalar, to_line
from weft.simulate import Outcome, scenario_from, simulate
from weft.simulate.sweep import Source, combine_points, sweep

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


def test_a_waiting_lane_is_explained_by_credit_upstream_and_by_turns_at_the_bottleneck() -> None:
    # Nine senders to one receiver: switch1 serves them in turn, switch0 waits for switch1's buffer.
    fabric = {"topology": "two_hops", "upstream_hosts": 2, "downstream_hosts": 8, "rate": "56 Gb/s"}
    load = {"name": "load", "kind": "bandwidth", "size": "4 KiB", "from": "h0..h8", "to": "h9"}
    outcome = simulate(scenario_from(star(duration="60 us", fabric=fabric, traffic=[load])))
    _, *starved, more = outcome.record.notes
    assert len(starved) == 8
    assert more == "and 3 more lanes like these"
    for note in starved:
        reason = "no credit" if "at switch0 from" in note else "never chosen"
        assert f": {reason}" in note


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
