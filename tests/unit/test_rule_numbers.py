"""Numbers, choices and reasons of design rules, each computed by hand from invented rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from weft.measure.settings.values import ANYWHERE, AUTO
from weft.model.fit import fit
from weft.model.latency import single_packet_latency
from weft.records import Distribution, Histogram, Provenance, Record, Scalar
from weft.tune.rules import advice
from weft.tune.rules.advice import (
    Pair,
    advise,
    batch_rule,
    bound_rule,
    fit_latency,
    load_rule,
    parallel_rule,
    read_contrasts,
    size_rule,
)
from weft.tune.rules.evidence import (
    Evidence,
    Row,
    Rule,
    Setting,
    Spread,
    _drop_uncommon,
    _find_allowed_factor,
    _noise_factor,
    common_options,
    format_options,
    gather_evidence,
    group_families,
    read_carried_Bps,
    read_carried_messages_per_s,
    read_setting,
    read_values,
    unknown_rule,
)


def row(test: str, seen: Mapping[str, float | tuple[float, ...]], **setting: Any) -> Row:
    spreads: dict[str, Any] = {
        name: Spread(value if isinstance(value, tuple) else (value,))
        for name, value in seen.items()
    }
    at: dict[str, Any] = {"over": "verbs", "size_bytes": 4096, **setting}
    return Row(setting=Setting(test=test, **at), origins=("invented",), **spreads)


def evidence(*rows: Row, over: str = "verbs") -> Evidence:
    return Evidence(over=over, endpoint="", peer="", rows=rows)


def stream(Bps: float | tuple[float, ...], **setting: Any) -> Row:
    return row("bandwidth", {"throughput_Bps": Bps}, **setting)


# ---- Choices between two levels ---------------------------------------------------------------

LEVELS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # the plain level, the other one, and one that is neither
    "inline": ({"inline_bytes": 0}, {"inline_bytes": 4096}, {"inline_bytes": 4095}),
    "tagged": ({"op": "tagged"}, {"op": "send"}, {"op": "inject"}),
    "inject": ({"op": "send"}, {"op": "inject"}, {"op": "tagged"}),
    "waiting, latency": ({"wait": "block"}, {"wait": "spin"}, {"wait": "other"}),
    "waiting, throughput": ({"wait": "block"}, {"wait": "spin"}, {"wait": "other"}),
    "signaling": ({"signal_every": 1}, {"signal_every": 2}, {"signal_every": 0}),
    "post list": ({"post_list": 1}, {"post_list": 2}, {"post_list": 0}),
    "alignment": ({"offset_bytes": 65}, {"offset_bytes": 64}, {}),
    "buffers": ({"one_buffer": False}, {"one_buffer": True}, {}),
    "processors": ({"cpu": ANYWHERE}, {"cpu": AUTO}, {}),
    "NUMA": ({"numa": -1}, {"numa": 0}, {"numa": -2}),
}


@pytest.mark.parametrize("topic", LEVELS)
def test_a_choice_compares_the_level_it_names_with_the_plain_one(topic: str) -> None:
    (choice,) = [c for c in read_contrasts() if c.topic == topic]
    plain, other, neither = (
        row("bandwidth", {}, **{"size_bytes": 4096, **level}) for level in LEVELS[topic]
    )
    assert choice.has_level(plain, choice.plain)
    assert not choice.has_level(plain, choice.other)
    assert choice.has_level(other, choice.other)
    assert not choice.has_level(other, choice.plain)
    if LEVELS[topic][2]:
        assert not choice.has_level(neither, choice.plain)
        assert not choice.has_level(neither, choice.other)


def test_choices_have_their_thresholds_options_and_quantities() -> None:
    choices = {c.topic: c for c in read_contrasts()}
    assert [*choices] == [*LEVELS]
    tenth = {topic for topic, c in choices.items() if c.threshold == 10}
    assert tenth == {"inline", "inject", "waiting, latency", "waiting, throughput", "post list"}
    assert {c.threshold for topic, c in choices.items() if topic not in tenth} == {5}
    assert {c.why for topic, c in choices.items() if topic in tenth} == {
        "less than a tenth does not pay for more complicated code"
    }
    assert choices["signaling"].why.startswith("the FDR study's effects start at 5 %")
    options = " ".join(c.option for c in choices.values())
    assert options == "inline op op wait wait signal-every post-list offset one-buffer cpu numa"
    assert {c.quantity for c in choices.values() if c.test == "latency"} == {"p50_us"}
    assert {c.quantity for c in choices.values() if c.test != "latency"} == {"throughput_Bps"}


def test_a_gain_is_of_speed_and_a_scatter_is_the_worse_of_two() -> None:
    pair = Pair(row("latency", {"p50_us": (4.0, 5.0, 6.0)}), row("latency", {"p50_us": 2.5}))
    assert pair.gain_percent("p50_us") == pytest.approx(100)
    assert pair.scatter_percent("p50_us") == pytest.approx(20)
    fast = Pair(stream(2e9), stream((2.4e9, 2.5e9)))
    assert fast.gain_percent("throughput_Bps") == pytest.approx(22.5)


def rule_of(topic: str, *rows: Row) -> Rule:
    (result,) = [rule for rule in advise(evidence(*rows)) if rule.topic == topic]
    return result


def test_of_several_pairs_the_median_gain_decides_and_the_typical_pair_is_shown() -> None:
    gains = {1024: 1.05, 2048: 1.3, 4096: 1.2}
    rows = [
        stream(factor * 1e9, size_bytes=size, post_list=n, depth=64)
        for size, gain in gains.items()
        for n, factor in ((1, 1.0), (4, 0.5), (16, gain))
    ]
    rule = rule_of("post list", *rows)
    assert (rule.choice, rule.number) == ("post lists", pytest.approx(20))
    assert rule.because == (
        "post-list 16 instead of 1: +20.0 %, median of 3 pairs (4 KiB: 8 Gb/s to 9.6 Gb/s)"
    )
    assert (rule.unit, rule.threshold, rule.confidence) == ("%", 10, "single runs")
    single = rule_of("post list", *rows[:3])
    assert single.choice == "post singly"
    assert single.because == "post-list 16 instead of 1: +5.0 % (1 KiB: 8 Gb/s to 8.4 Gb/s)"


@pytest.mark.parametrize(("gain", "choice"), [(1.05, "signal some"), (1.0499, "signal all")])
def test_a_gain_at_the_threshold_pays(gain: float, choice: str) -> None:
    rows = [stream(1e9), stream(gain * 1e9, signal_every=4)]
    assert rule_of("signaling", *rows).choice == choice


def test_what_spinning_costs_is_said_where_both_are_known() -> None:
    rows = [
        row("latency", {"p50_us": us, "cpu_s_per_byte": cost}, wait=wait)
        for wait, us, cost in (("block", 20.0, 1e-9), ("spin", 10.0, 2.5e-9))
    ]
    rule = rule_of("waiting, latency", *rows)
    assert rule.because == (
        "wait spin instead of block: +100.0 % (4 KiB: 20 us to 10 us, "
        "for 2.5x the processor time per byte)"
    )


def test_a_choice_that_a_transport_does_not_have_says_so() -> None:
    rules = {rule.topic: rule for rule in advise(evidence(over="tcp"))}
    assert rules["tagged"].because == "tcp has one kind of send: tagged and inject are libfabric's"
    assert rules["inline"].because == "tcp has no inline"
    assert rules["one-sided"].choice == "not here"
    unknown = {rule.topic: rule for rule in advise(evidence(over="ofi:tcp"))}["tagged"]
    assert unknown.says == "not known: no two runs that differ in op alone"
    assert unknown.because == (
        "run weft latency local --over ofi:tcp --size 64 --sweep op=send,tagged -o FILE"
    )


# ---- Curves -----------------------------------------------------------------------------------


def test_half_of_the_peak_is_read_between_sizes() -> None:
    """1, 2, 4 and 4 GB/s at 1, 2, 4 and 8 KiB: half of the peak at 2 KiB, 90 % at 4 KiB."""
    sizes = {1024: 1e9, 2048: 2e9, 4096: 4e9, 8192: 4e9}
    rule = size_rule(evidence(*(stream(Bps, size_bytes=n, depth=8) for n, Bps in sizes.items())))
    assert rule.number == pytest.approx(2048)
    assert (rule.choice, rule.unit, rule.threshold) == ("4096 B", "B", 512)
    assert rule.says == "send 4 KiB or more at once where throughput counts"
    assert rule.because == "half of 32 Gb/s at 2 KiB, 90 % at 4 KiB (depth 8)"
    small = size_rule(evidence(*(stream(Bps, size_bytes=n // 4) for n, Bps in sizes.items())))
    assert (small.choice, small.number) == ("any size", pytest.approx(512))
    two = size_rule(evidence(stream(1e9, size_bytes=64), stream(2e9, size_bytes=128)))
    assert two.says == "not known: throughput at three sizes or more"


def test_the_fastest_family_of_sizes_is_taken_and_parallel_streams_are_not() -> None:
    slow = [stream(Bps, size_bytes=n, depth=1) for n, Bps in ((64, 1e6), (512, 2e6), (4096, 3e6))]
    fast = [stream(Bps, size_bytes=n, depth=64) for n, Bps in ((64, 1e9), (512, 2e9), (4096, 3e9))]
    many = [stream(9e9, size_bytes=n, depth=64, qps=2) for n in (64, 512, 4096)]
    assert "(depth 64)" in size_rule(evidence(*slow, *fast, *many)).because
    assert "24 Gb/s" in size_rule(evidence(*slow, *fast, *many)).because


def test_messages_are_bound_by_their_number_below_the_peak_over_the_rate() -> None:
    rows = [
        row("bandwidth", {"throughput_Bps": 64e6, "messages_per_s": 1e6}, size_bytes=64),
        row("bandwidth", {"throughput_Bps": 8e9, "messages_per_s": 8e3}, size_bytes=2**20),
    ]
    rule = bound_rule(evidence(*rows))
    assert (rule.number, rule.choice) == (pytest.approx(8000), "message rate")
    assert rule.says == "messages below 7.812 KiB are bound by their number: even pages are"
    assert rule.because == "one thread's most: 1 M messages/s and 64 Gb/s"
    line = replace(rows[1], throughput_Bps=Spread((4.096e9,)))
    assert bound_rule(evidence(rows[0], line)).choice == "line rate"
    near = replace(rows[1], setting=replace(rows[1].setting, size_bytes=511))
    assert bound_rule(evidence(rows[0], near)).choice == "unknown"
    far = replace(rows[1], setting=replace(rows[1].setting, size_bytes=512))
    assert bound_rule(evidence(rows[0], far)).choice != "unknown"


def test_as_many_connections_as_any_size_needs() -> None:
    rows = [
        stream(Bps, size_bytes=size, qps=qps, depth=64)
        for size, speeds in ((64, (1e9, 2e9, 2.1e9)), (8192, (4e9, 4e9, 4.2e9)))
        for qps, Bps in zip((1, 2, 4), speeds, strict=True)
    ]
    rule = parallel_rule(evidence(*rows), "qps", "connection", "; engines")
    assert (rule.topic, rule.choice) == ("connections", "2")
    assert rule.says == "use 2 connections below 8 KiB; one is enough from there on"
    assert rule.because == "2 at 64 B, 1 at 8 KiB for 90 % of the best; engines"
    assert (rule.number, rule.threshold) == (pytest.approx(110), pytest.approx(100 / 9))
    last = parallel_rule(
        evidence(*rows[:2], stream(4e9, size_bytes=64, qps=4, depth=64)), "qps", "connection"
    )
    assert last.says == "use 4 or more connections"
    unsettled = [*rows[:2], stream(4e9, size_bytes=64, qps=4, depth=64), *rows[3:]]
    at_one_size = parallel_rule(evidence(*unsettled), "qps", "connection")
    assert at_one_size.says.startswith("use 4 or more connections below 8 KiB")
    one = parallel_rule(evidence(*rows[3:]), "qps", "connection")
    assert (one.says, one.choice) == ("one connection is enough", "1")
    none = parallel_rule(evidence(), "threads", "thread")
    assert none.because == (
        "run weft rate local --over verbs --depth 64 --sweep threads=1..8*2 size=64,8K "
        "--repeat 3 -o FILE"
    )


def test_the_window_is_the_geometric_mean_of_what_sizes_need() -> None:
    rows = [
        stream(min(1.0, depth / need) * 1e9, size_bytes=size, depth=depth)
        for size, need in ((1024, 16), (4096, 4))
        for depth in (1, 4, 8, 16)
    ]
    rule = advice.outstanding_rule(evidence(*rows, stream(9e9, depth=1, qps=2)))
    assert (rule.choice, rule.number) == ("8", 8.0)
    assert rule.threshold == pytest.approx(10)  # of 16 and 4 at a time
    assert rule.because == (
        "16 at 1 KiB, 4 at 4 KiB for 90 % of the peak; bandwidth x delay is 10 messages "
        "(the peak over 1 at a time)"
    )
    assert rule.says == "keep 8 messages outstanding"


def test_growth_of_latency_is_that_of_the_fit_between_its_sizes() -> None:
    sizes = np.array([16.0, 64.0, 256.0, 1024.0])
    fitted = fit(
        single_packet_latency(), {"size_bytes": sizes}, 2 + sizes / 1000, data="x", held_out=True
    )
    rule = batch_rule(evidence(), fitted)
    growth = 100 * ((2 + 0.512) / (2 + 0.016) - 1)
    assert rule.number == pytest.approx(growth, rel=1e-3)
    assert rule.choice == "small messages"
    assert rule.because.startswith("512 B take 2.512 us, 16 B 2.016 us; model off by 0.0 % at")
    assert rule.confidence == "firm"
    short = fit(
        single_packet_latency(),
        {"size_bytes": sizes[:3]},
        2 + sizes[:3] / 1000,
        data="x",
        held_out=True,
    )
    assert batch_rule(evidence(), short).because.startswith("256 B take 2.256 us")
    rows = [row("latency", {"p50_us": 2 + n / 1000}, size_bytes=n) for n in (16, 64, 256)]
    assert fit_latency(evidence(*rows)) is not None
    assert fit_latency(evidence(*rows[:2])) is None


def test_a_load_is_kept_below_where_the_tail_doubles() -> None:
    def steps(tails: tuple[float, ...]) -> Evidence:
        return evidence(
            *(
                row(
                    "saturation.step",
                    {"throughput_Bps": 1e9 * load, "p50_us": 5 * (1 + load), "p99_us": tail},
                    load=load,
                )
                for load, tail in zip((0.0, 0.5, 1.0), tails, strict=True)
            )
        )

    rule = load_rule(steps((10.0, 15.0, 25.0)))
    assert (rule.number, rule.choice) == (pytest.approx(75), "75 %")
    assert rule.says == "keep below 6 Gb/s, 75 % of the peak, where the tail counts"
    assert rule.because == "p99 is 10 us idle and twice that at 6 Gb/s; p50 grows 2-fold at most"
    never = load_rule(steps((10.0, 12.0, 19.0)))
    assert (never.choice, never.number) == ("any load", pytest.approx(100))
    assert load_rule(evidence(*steps((1.0, 2.0, 3.0)).rows[:2])).choice == "unknown"


def test_confidence_in_a_curve_is_by_the_scatter_of_its_points() -> None:
    def judged(*spreads: tuple[float, ...]) -> str:
        return advice._judge_confidence([stream(s) for s in spreads], "throughput_Bps")

    assert judged((1.0,), (1.0, 1.0)) == "single runs"
    assert judged((0.95, 1.05), (0.92, 1.08)) == "firm"
    assert judged((0.9, 1.1), (0.9, 1.1)) == "weak"  # a tenth of the median


def test_an_engine_of_the_model_is_named_where_it_has_one() -> None:
    fitted = SimpleNamespace(values={"engine_us": 0.25})
    assert advice._format_engines(None) == ""
    said = "; in the model an engine is busy 0.25 us with each message (4 M/s)"
    assert advice._format_engines(fitted) == said  # type: ignore[arg-type]


# ---- Evidence ---------------------------------------------------------------------------------


def test_families_are_in_the_order_of_what_varies() -> None:
    rows = [stream(1.0, depth=d, rate=r) for d, r in ((16, None), (2, None), (2, 5.0), (4, None))]
    families = group_families(rows, "depth")
    assert [[r.setting.depth for r in family] for family in families] == [[2, 4, 16]]
    by_rate = group_families(rows, "rate")
    assert [[r.setting.rate for r in family] for family in by_rate] == [[None, 5.0]]
    words = [stream(1.0, wait=w) for w in ("spin", "block")]
    assert [r.setting.wait for r in group_families(words, "wait")[0]] == ["block", "spin"]


def test_rows_held_back_to_a_rate_are_those_of_a_paced_test_alone() -> None:
    held = evidence(stream(1.0), stream(1.0, rate=5.0), row("paced", {}, rate=5.0))
    assert len(held.rows_of("bandwidth")) == 1
    assert len(held.rows_of("paced")) == 1
    flat = evidence(replace(stream((1.0, 3.0)), p50_us=Spread((2.0, 4.0, 9.0)))).table()[0]
    assert (flat["throughput_Bps"], flat["p50_us.low"], flat["p50_us.high"]) == (2.0, 2.0, 9.0)
    assert flat["n"] == 3


def test_options_are_those_that_all_rows_share() -> None:
    other = (("loss_timeout_ns", 5), ("sockets", 2))
    rows = [replace(stream(1.0), setting=replace(stream(1.0).setting, other=other))]
    shared = Evidence(over="tcp", endpoint="rdm", peer="h2", rows=tuple(rows))
    options = common_options(shared, "bandwidth")
    assert (options["over"], options["endpoint"]) == ("tcp", "rdm")
    assert options.get("loss-timeout") == "5ns"
    texts = {"over": "tcp", "delay.base": "5us", "one-buffer": "True", "delay.jitter": "1us"}
    assert [*format_options(texts)] == ["--over tcp", "--one-buffer", "--delay base=5us jitter=1us"]
    rule = unknown_rule(shared, "topic", "what", "bandwidth --size LARGE", "rma --size LARGE")
    assert rule.because.startswith("run weft bandwidth h2 --over tcp --endpoint rdm")
    assert " and weft rma h2" in rule.because
    assert "--size 512K -o FILE" in rule.because
    datagrams = unknown_rule(evidence(over="udp"), "t", "w", "bandwidth --size LARGE")
    assert "--size 32K" in datagrams.because


def test_numbers_of_a_rule_are_readable() -> None:
    rule = Rule(topic="t", choice="c", says="s", because="b", number=2048.0, unit="B")
    assert (rule.shown(2048.0), rule.shown(None), rule.is_known) == ("2 KiB", "–", True)
    assert replace(rule, unit="%").shown(12.5) == "12.5 %"
    assert replace(rule, unit="").shown(3.0) == "3"
    assert not replace(rule, number=None).is_known


def record(name: str = "bandwidth", settings: Mapping[str, Any] | None = None, **q: Any) -> Record:
    return Record(
        kind="measurement",
        name=name,
        settings={"over": "tcp", "size_bytes": 1000, **(settings or {})},
        quantities={key.replace("__", "."): value for key, value in q.items()},
        provenance=Provenance(weft_version="0"),
    )


def test_values_of_a_record_have_one_unit_each() -> None:
    histogram = Histogram()
    histogram.record_many(np.full(10, 3_000_000, dtype=np.int64))
    seen = record(
        throughput=Scalar(8.0, "Gb/s"),
        sender__throughput=Scalar(6.0, "Gb/s"),
        message_rate=Scalar(2.0, "M/s"),
        half_rtt=Distribution("ps", histogram),
        cpu__percent=Scalar(50.0, "%"),
        peer__cpu__percent=Scalar(25.0, "%"),
        cpu__user=Scalar(1.0, "s"),
        cpu__system=Scalar(3.0, "s"),
        messages=Scalar(2000, ""),
    )
    setting = read_setting(seen, {})
    assert read_values(seen, setting) == pytest.approx(
        {
            "throughput_Bps": 0.75e9,
            "messages_per_s": 0.75e6,
            "p50_us": 3.0,
            "p99_us": 3.0,
            "cpu_percent": 50.0,
            "peer_cpu_percent": 25.0,
            "cpu_s_per_byte": 4 / (2000 * 1000),
        },
        rel=0.01,
    )
    assert read_carried_Bps(record()) is None
    assert read_carried_messages_per_s(record(message_rate=Scalar(2.0, "M/s")), 1000) == 2e6
    nothing = record(achieved=Scalar(0.0, "b/s"))
    assert read_values(nothing, setting) == {}
    assert read_values(nothing, replace(setting, load=0.0)) == {"throughput_Bps": 0.0}
    assert "cpu_s_per_byte" not in read_values(
        replace(seen, quantities={**seen.quantities, "messages": Scalar(0, "")}), setting
    )
    step = replace(seen, name="saturation.step")
    assert {"messages_per_s", "cpu_s_per_byte"} & {*read_values(step, setting)} == set()
    achieved = record("saturation", achieved=Scalar(16.0, "Gb/s"))
    assert read_values(achieved, setting)["throughput_Bps"] == pytest.approx(2e9)


def test_settings_of_a_record_are_its_fields_and_what_else_is_no_default() -> None:
    setting = read_setting(record(settings={"cpu": "auto", "outstanding": 8, "count": 5}), {})
    assert (setting.cpu, setting.depth, setting.other, setting.test) == (AUTO, 8, (), "bandwidth")
    assert read_setting(record("rate"), {}).test == "bandwidth"
    odd = read_setting(record(settings={"colour": 7}), {})
    assert odd.other == (("colour", 7),)


def test_the_commonest_other_settings_are_kept() -> None:
    settings = [read_setting(record(settings={"colour": n}), {}) for n in (7, 8, 8)]
    pairs: list[Any] = [(n, setting) for n, setting in enumerate(settings)]
    kept, omitted = _drop_uncommon(pairs)
    assert [n for n, _ in kept] == [1, 2]
    assert omitted == ["1 record with colour=7, where the others have colour=8"]


def test_repetitions_may_differ_by_three_or_six_deviations_of_the_others() -> None:
    steady = [stream((1.0, 1.1), depth=d) for d in (1, 2)]
    far = stream((1.0, 9.0), depth=4)
    assert _find_allowed_factor([*steady, far], "throughput_Bps")(far) == 3.0
    wide = [stream((1.0, 2.0), depth=d) for d in (1, 2)]
    # ln 2 / √2 is the deviation of two values a factor of two apart; six of them
    expected = 2 ** (6 / 2**0.5)
    assert _find_allowed_factor([*wide, far], "throughput_Bps")(far) == pytest.approx(expected)
    assert _find_allowed_factor([far], "throughput_Bps")(far) == 3.0


@pytest.mark.parametrize(("lost", "factor"), [(0.0, 1.0), (50.0, 2.0), (95.0, 10.0)])
def test_a_host_that_lost_time_may_be_slower_by_that(lost: float, factor: float) -> None:
    fact = {"fact": "time lost to hiccups, %", "value": lost}
    noisy = replace(record(), tables={"host": [fact, {"fact": "other", "value": 99.0}]})
    assert _noise_factor(replace(stream(1.0), records=(noisy,))) == pytest.approx(factor)


def test_the_same_record_given_twice_is_one_observation() -> None:
    once = record(throughput=Scalar(8.0, "Gb/s"))
    other = record(throughput=Scalar(9.0, "Gb/s"))
    (row_,) = gather_evidence([once, other, once]).rows
    assert row_.throughput_Bps == Spread((1e9, 1.125e9))
    assert row_.origins == ("record 1", "record 2")
    assert advice.WORTH_PERCENT == 10
