"""Design rules of invented evidence whose answer is known, and what rules say without evidence."""

import shlex
from typing import Any

import pytest

from weft.cli.measure import read_settings
from weft.cli.parser import build_parser
from weft.measure.measurement import plan_points
from weft.measure.tests import TESTS
from weft.tune.rules.advice import advice_rows, advice_table, advise
from weft.tune.rules.evidence import NOT_HERE, UNKNOWN, Evidence, Row, Rule, Setting, Spread


def row(test: str, seen: dict[str, float | tuple[float, ...]], **setting: Any) -> Row:
    spreads: dict[str, Any] = {
        name: Spread(value if isinstance(value, tuple) else (value,))
        for name, value in seen.items()
    }
    at: dict[str, Any] = {"over": "ofi:tcp", "size_bytes": 4096, **setting}
    return Row(setting=Setting(test=test, **at), origins=("invented",), **spreads)


def rules(*rows: Row, over: str = "ofi:tcp") -> dict[str, Rule]:
    evidence = Evidence(over=over, endpoint="", peer="", rows=tuple(rows))
    return {rule.topic: rule for rule in advise(evidence)}


def waits(spin: float | tuple[float, ...], block: float | tuple[float, ...]) -> list[Row]:
    return [
        row("bandwidth", {"throughput_Bps": spin, "cpu_s_per_byte": 3e-9}, depth=16),
        row("bandwidth", {"throughput_Bps": block, "cpu_s_per_byte": 1e-9}, depth=16, wait="block"),
    ]


def test_spinning_that_gains_a_fifth_pays_and_its_cost_is_told() -> None:
    rule = rules(*waits(spin=1.2e9, block=1e9))["waiting, throughput"]
    assert rule.choice == "spin"
    assert rule.number == pytest.approx(20)
    assert "3.0x the processor time per byte" in rule.because


def test_spinning_that_gains_a_hundredth_does_not() -> None:
    assert rules(*waits(spin=1.01e9, block=1e9))["waiting, throughput"].choice == "block"


def test_a_gain_within_the_scatter_of_repetitions_is_weak() -> None:
    scattered = waits(spin=(0.8e9, 1.2e9, 1.6e9), block=(0.7e9, 1e9, 1.3e9))
    assert rules(*scattered)["waiting, throughput"].confidence == "weak"
    steady = waits(spin=(1.49e9, 1.5e9, 1.51e9), block=(0.99e9, 1e9, 1.01e9))
    assert rules(*steady)["waiting, throughput"].confidence == "firm"


def test_pairs_of_single_runs_are_not_firm_however_many_they_are() -> None:
    sizes = (1024, 4096, 16384)
    once = [
        row("bandwidth", {"throughput_Bps": Bps}, size_bytes=size, wait=wait)
        for size in sizes
        for Bps, wait in ((2e9, "spin"), (1e9, "block"))
    ]
    assert rules(*once)["waiting, throughput"].confidence == "single runs"
    twice = [
        row("bandwidth", {"throughput_Bps": (Bps, Bps)}, size_bytes=size, wait=wait)
        for size in sizes
        for Bps, wait in ((2e9, "spin"), (1e9, "block"))
    ]
    assert rules(*twice)["waiting, throughput"].confidence == "firm"
    assert rules(once[0], *twice[1:])["waiting, throughput"].confidence == "single runs"


def test_less_latency_is_a_gain() -> None:
    rows = [
        row("latency", {"p50_us": us}, inline_bytes=inline, size_bytes=16)
        for us, inline in ((2.0, 0), (1.0, 64))
    ]
    rule = rules(*rows)["inline"]
    assert (rule.choice, rule.number) == ("inline", pytest.approx(100))


def test_messages_larger_than_the_inline_limit_were_not_inlined() -> None:
    rows = [
        row("latency", {"p50_us": us}, inline_bytes=inline, size_bytes=1024)
        for us, inline in ((2.0, 0), (1.0, 64))
    ]
    assert rules(*rows)["inline"].choice == UNKNOWN


def window(depth: int, away_us: float, peak: float) -> Row:
    """size / latency per message outstanding, up to the peak."""
    return row(
        "bandwidth", {"throughput_Bps": min(depth * 4096 / away_us * 1e6, peak)}, depth=depth
    )


def test_the_window_is_the_bandwidth_delay_product() -> None:
    """4 GiB/s x 10 us / 4 KiB = 10.5: with powers of two, 16 fill the line and 8 do not."""
    rows = [window(depth, 10.0, 2.0**32) for depth in (1, 2, 4, 8, 16, 32)]
    rule = rules(*rows)["outstanding"]
    assert rule.choice == "16"
    assert rule.threshold == pytest.approx(10.5, rel=0.01)


def test_a_window_that_never_sufficed_is_told_as_such() -> None:
    rows = [window(depth, 10.0, 1e30) for depth in (1, 4, 16)]
    assert rules(*rows)["outstanding"].says == "keep 16 or more messages outstanding"


def test_a_latency_that_bytes_double_says_small_messages() -> None:
    rows = [
        row("latency", {"p50_us": 1 + size / 500}, size_bytes=size)
        for size in (16, 64, 256, 512, 1024)
    ]
    assert rules(*rows)["batching"].choice == "small messages"
    rows = [
        row("latency", {"p50_us": 100 + size / 500}, size_bytes=size)
        for size in (16, 64, 256, 512, 1024)
    ]
    assert rules(*rows)["batching"].choice == "batch"


def test_the_load_limit_is_where_the_tail_doubles() -> None:
    steps = [
        row(
            "saturation.step",
            {"throughput_Bps": share * 1e9, "p50_us": 10.0, "p99_us": 20 * (1 + 2 * share)},
            load=share,
        )
        for share in (0.0, 0.25, 0.75, 1.0)
    ]
    rule = rules(*steps)["load"]
    assert rule.number == pytest.approx(50)
    assert rule.choice == "50 %"


def test_one_sided_is_judged_against_a_send_of_the_same_size_and_depth() -> None:
    rows = [
        row("bandwidth", {"throughput_Bps": 1e9}, depth=8),
        row("rma", {"throughput_Bps": 1.5e9}, depth=8, op="write"),
        row("rma", {"throughput_Bps": 9e9}, depth=64, op="read"),
    ]
    rule = rules(*rows)["one-sided"]
    assert (rule.choice, rule.number) == ("one-sided write", pytest.approx(50))


def one_sided(write: tuple[tuple[float, ...], ...], read: tuple[float, ...]) -> Rule:
    """Over a send of 1 GB/s: writes at one depth after the other, reads at the first."""
    depths = (8, 16, 32)[: len(write)]
    return rules(
        *(row("bandwidth", {"throughput_Bps": (1e9, 1e9)}, depth=depth) for depth in depths),
        *(
            row("rma", {"throughput_Bps": seen}, depth=depth, op="write")
            for depth, seen in zip(depths, write, strict=True)
        ),
        row("rma", {"throughput_Bps": read}, depth=8, op="read"),
    )["one-sided"]


def test_one_sided_operations_of_single_runs_are_not_firm() -> None:
    slow, once, twice = (0.8e9, 0.8e9), (1.5e9,), (1.5e9, 1.5e9)
    assert one_sided(write=(once, once, once), read=slow).confidence == "single runs"
    assert one_sided(write=(twice, twice, once), read=slow).confidence == "single runs"
    assert one_sided(write=(twice, twice, twice), read=slow).confidence == "firm"


def test_that_one_operation_pays_is_said_of_it_alone_and_that_none_does_of_all() -> None:
    fast, slow = (1.5e9, 1.5e9), (0.8e9, 0.8e9)
    pays = one_sided(write=(fast, fast), read=slow)
    assert (pays.choice, pays.confidence) == ("one-sided write", "firm")
    mixed = one_sided(write=(fast, fast, slow), read=slow)
    assert (mixed.choice, mixed.confidence) == ("one-sided write", "weak")
    none = one_sided(write=((0.8e9,),), read=(0.9e9, 0.9e9))
    assert (none.choice, none.confidence) == ("send", "single runs")


def test_what_a_transport_lacks_is_not_asked_for() -> None:
    result = rules(row("latency", {"p50_us": 1.0}, over="tcp"), over="tcp")
    for topic in ("inline", "tagged", "inject", "one-sided"):
        assert result[topic].choice == NOT_HERE
        assert "tcp has" in result[topic].because


@pytest.mark.parametrize("over", ["tcp", "udp", "delay", "ofi:tcp"])
def test_every_command_that_a_rule_names_would_run(over: str) -> None:
    result = rules(row("latency", {"p50_us": 1.0}, over=over), over=over)
    commands = [
        command
        for rule in result.values()
        if rule.choice == UNKNOWN
        for command in rule.because.removeprefix("run ").split(" and ")
    ]
    assert len(commands) >= 5
    for command in commands:
        words = shlex.split(command)
        assert words[0] == "weft"
        args = build_parser((words[1],)).parse_args(words[1:])
        test = TESTS[args.test]
        assert plan_points(test, read_settings(args, test), args.sweep, int(args.repeat), args.peer)


def test_the_table_has_known_rules_first_and_then_what_to_measure() -> None:
    evidence = Evidence(over="tcp", endpoint="", peer="", rows=tuple(waits(1.2e9, 1e9)))
    text = advice_table(advise(evidence))
    assert text.index("poll for completions") < text.index("run weft latency local --over tcp")
    assert advice_rows(advise(evidence))[0]["topic"] == "waiting, throughput"
