"""`weft model`: values with formula, source and range; and what it refuses, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.cli import main
from weft.cli.model_fit import INPUTS
from weft.model import Range
from weft.model.outstanding import Pipe, throughput_gbps
from weft.records import (
    Distribution,
    Histogram,
    Plain,
    Provenance,
    Quantity,
    Record,
    Scalar,
    write_records,
)
from weft.studies.calibrated import CALIBRATED

Capture = pytest.CaptureFixture[str]


def answer(capsys: Capture, *options: str) -> dict[str, Any]:
    assert main(["model", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def rows(capsys: Capture, *options: str) -> list[dict[str, Any]]:
    return list(answer(capsys, *options)["rows"])


@pytest.mark.parametrize(
    "options",
    [
        ("link-rate",),
        ("goodput",),
        ("best-b",),
        ("signaling", "--sq-depth", "256"),
        ("wait",),
        ("latency", "--system", "ib2016-rc", "--size", "64", "--rate", "4xFDR"),
    ],
)
def test_every_model_says_its_formula_source_and_range(
    options: tuple[str, ...], capsys: Capture
) -> None:
    assert main(["model", *options]) == 0
    text = capsys.readouterr().out
    for fact in ("formula: ", "source: ", "range: "):
        assert fact in text
    stated = answer(capsys, *options)
    assert stated["formula"]
    assert stated["source"]
    assert stated["range"]
    assert stated["rows"]


def test_a_link_has_its_data_rate(capsys: Capture) -> None:
    found = rows(capsys, "link-rate", "4xFDR", "1xsdr,12xQDR")
    assert [row["link"] for row in found] == ["4xFDR", "1xSDR", "12xQDR"]
    assert [row["data_gbps"] for row in found] == pytest.approx([54.545454, 2, 96])


def test_goodput_of_every_listed_size(capsys: Capture) -> None:
    found = rows(capsys, "goodput", "--rate", "100Gb/s", "--size", "64,1K..4K*2")
    assert [row["size_bytes"] for row in found] == [64, 1024, 2048, 4096]
    assert found[-1]["goodput_gbps"] == pytest.approx(100 * 4096 / 4122)
    assert found[0]["message_rate_mps"] == pytest.approx(1e5 / (8 * 90))


def test_an_engine_that_is_slower_than_the_link_bounds_goodput_too(capsys: Capture) -> None:
    options = ("goodput", "--size", "64", "--engine-rate", "2M", "--engines", "3")
    (found,) = rows(capsys, *options)
    assert found["message_rate_mps"] == 6
    assert found["goodput_gbps"] == pytest.approx(6e6 * 64 * 8 / 1e9)


def test_a_transport_brings_its_usual_wire_and_its_status(capsys: Capture) -> None:
    assert "Ethernet" in answer(capsys, "goodput", "--transport", "tcp")["range"]
    unverified = answer(capsys, "goodput", "--transport", "srd", "--size", "4K")
    assert "unverified" in unverified["notes"][0]


def test_best_b_is_equation_1(capsys: Capture) -> None:
    found = rows(capsys, "best-b", "--size", "32K,1M,8M")
    assert [row["outstanding"] for row in found] == [96, 4, 2]


def test_best_b_of_a_machine_covers_its_loop_within_its_cache(capsys: Capture) -> None:
    options = ("--rate", "50Gb/s", "--latency", "21us", "--cache", "4M", "--size", "32K,4M")
    found = rows(capsys, "best-b", *options)
    # 131,250 B in flight: five of 32 Ki and one more; two of 4 Mi though only one is cached.
    assert [row["outstanding"] for row in found] == [6, 2]
    assert [row["cached"] for row in found] == [128, 1]
    assert found[0]["throughput_gbps"] == pytest.approx(50)


@pytest.mark.parametrize(
    ("options", "limit"), [((), ", no cache limit"), (("--cache", "4M"), ", C = 4194304 B")]
)
def test_the_formula_of_best_b_says_what_the_cache_holds(
    capsys: Capture, options: tuple[str, ...], limit: str
) -> None:
    machine = ("best-b", "--rate", "50Gb/s", "--latency", "21us", "--size", "32K")
    assert answer(capsys, *machine, *options)["formula"].endswith(limit)


def test_the_cost_of_each_message_leaves_fewer_to_cover_the_loop(capsys: Capture) -> None:
    options = ("best-b", "--rate", "50Gb/s", "--latency", "21us", "--size", "32K")
    (free,) = rows(capsys, *options)
    (costly,) = rows(capsys, *options, "--message-cost", "21us")
    assert costly["outstanding"] < free["outstanding"]


def test_signaling_takes_equation_1_unless_told(capsys: Capture) -> None:
    found = rows(capsys, "signaling", "--sq-depth", "128", "--size", "64K,128K,1M")
    assert [row["signal_every"] for row in found] == [1, 64, 64]
    (own,) = rows(capsys, "signaling", "--sq-depth", "128", "--size", "1M", "--outstanding", "100")
    assert own["signal_every"] == 28


def test_where_credit_comes_with_completions_few_messages_go_unsignaled(capsys: Capture) -> None:
    options = ("signaling", "--sq-depth", "128", "--size", "1M", "--outstanding", "16")
    (found,) = rows(capsys, *options, "--needed", "6")
    assert found["signal_every"] == 11  # ten may wait for the signal while six go on


def test_the_wait_grows_by_a_buffer_with_each_sender(capsys: Capture) -> None:
    found = rows(capsys, "wait", "--system", "omnet", "--rate", "56Gb/s", "--senders", "2..5")
    steps = np.diff([row["low_ns"] for row in found])
    assert steps == pytest.approx(7 * 4122 * 8 / 56)
    assert all(row["rtt_low_ns"] > row["low_ns"] for row in found)


@pytest.mark.parametrize("order", ["fcfs", "fcfs-age", "round-robin", "own-lane"])
def test_every_order_has_its_wait(order: str, capsys: Capture) -> None:
    found = rows(capsys, "wait", "--order", order, "--senders", "2,5")
    assert all(0 <= row["low_ns"] <= row["high_ns"] for row in found)


def test_two_hops_wait_longer_than_one(capsys: Capture) -> None:
    options = ("wait", "--system", "omnet", "--order", "round-robin", "--senders", "2")
    (one,) = rows(capsys, *options)
    (two,) = rows(capsys, *options, "--below", "3")
    assert two["low_ns"] > one["high_ns"]


def test_a_thinking_probe_meets_one_turn(capsys: Capture) -> None:
    options = ("wait", "--order", "round-robin", "--think", "500ns", "--senders", "5")
    (found,) = rows(capsys, *options)
    assert found["low_ns"] == found["high_ns"]


def test_a_fitted_model_tells_parameters_with_errors(capsys: Capture) -> None:
    found = answer(
        capsys, "latency", "--system", "ib2016-rc", "--size", "64,4K", "--rate", "4xSDR,4xFDR"
    )
    assert len(found["rows"]) == 4
    assert found["error"]["median"] < 0.05
    assert found["held_out"]["n"] == found["error"]["n"]
    assert all(p["standard_error"] > 0 for p in found["parameters"])


def lowest(within: Range) -> tuple[str, str]:
    """The option of an input, at the low end of its range."""
    units = {"data_rate_gbps": "Gb/s", "load_MBps": "MB/s"}
    return f"--{INPUTS[within.name].option}", f"{within.low:.0f}{units.get(within.name, '')}"


@pytest.mark.parametrize("quantity", ["latency", "throughput", "saturation"])
def test_without_a_system_those_known_are_listed_and_each_can_be_asked(
    quantity: str, capsys: Capture
) -> None:
    assert main(["model", quantity, "--json"]) == 0
    known = [one["system"] for one in json.loads(capsys.readouterr().out)]
    assert known
    for name in known:
        varied = [one for one in CALIBRATED[name].fit().ranges if one.low < one.high]
        chosen = [word for one in varied for word in lowest(one)]
        (found,) = rows(capsys, quantity, "--system", name, *chosen)
        assert all(value > 0 for value in found.values())


def test_saturation_tells_where_the_latency_doubles(capsys: Capture) -> None:
    found = answer(capsys, "saturation", "--system", "efa-p99", "--load", "1GB/s,8GB/s")
    assert "double" in found["notes"][0]
    assert found["rows"][1]["latency_us"] > found["rows"][0]["latency_us"]


def test_saturation_of_records_takes_the_tests_maximum_as_capacity(
    tmp_path: Path, capsys: Capture
) -> None:
    def step(load: float) -> Record:
        histogram = Histogram()
        wait_us = 10 + 4 * load / (1.05 - load)
        histogram.record_many(np.full(10, int(1e6 * wait_us), dtype=np.int64))
        quantities: dict[str, Quantity] = {
            "achieved": Scalar(load * 8e9, "b/s"),
            "probe.half_rtt": Distribution("ps", histogram),
        }
        return record("saturation.step", quantities, load=load, size_bytes=4096)

    top = record("saturation", {"maximum": Scalar(8e9, "b/s")}, size_bytes=4096)
    file = stored(tmp_path, [step(i / 10) for i in range(11)] + [top])
    found = answer(capsys, "saturation", "--records", file, "--load", "500MB/s")
    values = {p["name"]: p["value"] for p in found["parameters"]}
    assert values["base_us"] == pytest.approx(10, rel=0.01)
    assert values["wait_us"] == pytest.approx(4, rel=0.05)
    assert values["window"] == pytest.approx(20, rel=0.1)
    # 10 + 4 u/(1.05 - u) is 20 at u = 0.75.
    assert "doubles at a load of 6 Gb/s" in found["notes"][0]


def test_records_that_a_form_does_not_describe_are_told(tmp_path: Path, capsys: Capture) -> None:
    def odd(i: int) -> Record:
        moved = 1e9 if i % 2 else 1.9e10
        return record("bandwidth", {"throughput": Scalar(moved, "b/s")}, size_bytes=2**i)

    found = answer(
        capsys,
        "best-b",
        "--records",
        stored(tmp_path, [odd(i) for i in range(8, 20)]),
        "--size",
        "4K",
    )
    assert "do not rely on it" in found["notes"][0]


def stored(tmp_path: Path, records: list[Record]) -> str:
    write_records(tmp_path / "own.jsonl", records)
    return str(tmp_path / "own.jsonl")


def record(name: str, quantities: dict[str, Quantity], **settings: Plain) -> Record:
    return Record(
        kind="measurement",
        name=name,
        settings={"over": "tcp", **settings},
        quantities=quantities,
        provenance=Provenance(weft_version="0", seed=1),
    )


def streams() -> list[Record]:
    """What a pipe of 20 Gb/s and 30 µs would show."""
    pipe = Pipe(line_rate_gbps=20, base_latency_us=30)
    return [
        record(
            "bandwidth",
            {"throughput": Scalar(float(throughput_gbps(size, depth, pipe)) * 1e9, "b/s")},
            size_bytes=size,
            depth=depth,
        )
        for size in (1024, 8192, 65536, 524288)
        for depth in (1, 4, 16)
    ]


def test_best_b_of_records_finds_the_pipe_that_made_them(tmp_path: Path, capsys: Capture) -> None:
    file = stored(tmp_path, streams())
    found = answer(capsys, "best-b", "--records", file, "--size", "8K")
    values = {p["name"]: p["value"] for p in found["parameters"]}
    assert values["line_rate_gbps"] == pytest.approx(20, rel=1e-3)
    assert values["base_latency_us"] == pytest.approx(30, rel=1e-3)
    assert found["rows"][0]["outstanding"] == 11  # 75,000 B in flight, and one more


def test_latency_of_records_is_a_base_and_a_time_per_byte(tmp_path: Path, capsys: Capture) -> None:
    def timed(size: int) -> Record:
        histogram = Histogram()
        histogram.record_many(np.full(10, 10_000_000 + 500 * size, dtype=np.int64))
        return record("latency", {"half_rtt": Distribution("ps", histogram)}, size_bytes=size)

    file = stored(tmp_path, [timed(2**i) for i in range(4, 17)])
    found = answer(capsys, "latency", "--records", file, "--size", "1K")
    assert found["rows"][0]["latency_us"] == pytest.approx(10.5, rel=0.01)
    assert found["data"].endswith("own.jsonl")


def test_throughput_of_records_predicts_what_made_them(tmp_path: Path, capsys: Capture) -> None:
    found = answer(
        capsys,
        "throughput",
        "--records",
        stored(tmp_path, streams()),
        "--size",
        "8K",
        "--depth",
        "4",
    )
    expected = float(throughput_gbps(8192, 4, Pipe(line_rate_gbps=20, base_latency_us=30)))
    assert found["rows"][0]["message_rate_mps"] * 8192 * 8e-3 == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["link-rate", "4xQQQ"], "'4xQQQ' is not a known link rate"),
        (["link-rate", "3xFDR"], "'3xFDR' is not a known link rate"),
        (["link-rate", "fast"], "'fast' is not a rate"),
        (["goodput", "--transport", "xrc"], "'xrc' is not known; use one of rc, uc"),
        (["goodput", "--operation", "atomic"], "'atomic' is not known"),
        (["goodput", "--transport", "ud", "--size", "8K"], "exceeds 4096 B"),
        (["goodput", "--mtu", "1500"], "ib has no MTU of 1500 B"),
        (["goodput", "--wire", "ethernet"], "rc does not run over ethernet"),
        (["goodput", "--size", "0"], "--size"),
        (["goodput", "--size", "-5"], "'-5' is too small"),
        (["goodput", "--size", "4K..64*2"], "goes down"),
        (["goodput", "--size", "64,64"], "64 is given twice"),
        (["goodput", "--size", "64..x"], "--size"),
        (["goodput", "--engine-rate", "0"], "--engine-rate"),
        (["goodput", "--engines", "4"], "--engines: has no meaning without --engine-rate"),
        (["best-b", "--size", "4K"], "4096 B is outside the study's 32768 to 67108864 B"),
        (["best-b", "--size", "128M"], "outside the study's"),
        (["best-b", "--rate", "50Gb/s"], "--latency: is missing"),
        (["best-b", "--rate", "50Gb/s", "--latency", "20"], "'20' is not a time"),
        (["best-b", "--message-cost", "1us"], "--rate: is missing"),
        (
            ["best-b", "--message-cost", "1us", "--records", "x"],
            "--message-cost: is also found from --records",
        ),
        (["best-b", "--records", "nowhere.jsonl"], "nowhere.jsonl"),
        (["signaling"], "--sq-depth: is missing; give the entries of the send queue"),
        (["signaling", "--sq-depth", "64", "--size", "32K"], "64 entries cannot hold 96"),
        (["signaling", "--sq-depth", "0"], "--sq-depth"),
        (["signaling", "--sq-depth", "128", "--needed", "0"], "--needed"),
        (["wait", "--senders", "1"], "--senders"),
        (["wait", "--order", "lifo"], "--order: 'lifo' is not known; use one of fcfs, fcfs-age"),
        (["wait", "--system", "none"], "--system: 'none' is not known; use one of "),
        (["wait", "--buffer", "1K"], "does not hold one packet"),
        (["wait", "--credit-delay", "1ms"], "not saturated"),
        (["wait", "--size", "8K"], "--size"),
        (["wait", "--think", "1us"], "--think: has no meaning for fcfs"),
        (["wait", "--weight", "7"], "--weight: has no meaning for fcfs"),
        (["wait", "--order", "own-lane", "--below", "3"], "--below: has no meaning"),
        (["latency", "--system", "nothing"], "no latency model of 'nothing'"),
        (["latency", "--system", "ib2016-rc"], "--size: is missing; fitted from 4 B to 8 MiB"),
        (["latency", "--system", "efa-srd", "--size", "1G"], "outside the fitted range"),
        (
            ["latency", "--system", "efa-srd", "--size", "64", "--rate", "4xFDR"],
            "--rate: the model of efa C.1, SRD does not depend on it",
        ),
        (["latency", "--system", "ib2016-rc", "--records", "x"], "--system: is given beside"),
    ],
)
def test_what_has_no_answer_is_refused_in_one_line(
    options: list[str], words: str, capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["model", *options]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert not said.out


def test_extrapolating_must_be_asked_for_and_then_works(capsys: Capture) -> None:
    (found,) = rows(capsys, "best-b", "--size", "4K", "--extrapolate")
    assert found["outstanding"] == 128
    options = ("latency", "--system", "efa-srd", "--size", "16K", "--extrapolate")
    (found,) = rows(capsys, *options)
    assert found["latency_us"] > 20


def test_records_of_one_point_only_are_refused(tmp_path: Path, capsys: Capture) -> None:
    file = stored(tmp_path, streams()[:1])
    assert main(["model", "best-b", "--records", file]) == 2
    assert (
        "no two records of bandwidth differ in size_bytes, depth alone" in capsys.readouterr().err
    )


def test_sizes_past_the_records_are_refused(tmp_path: Path, capsys: Capture) -> None:
    file = stored(tmp_path, streams())
    assert main(["model", "best-b", "--records", file, "--size", "64M"]) == 2
    assert "outside the records' 1024 to 524288 B" in capsys.readouterr().err


def test_errors_of_every_fitted_model_beside_its_held_out_rows(capsys: Capture) -> None:
    assert main(["model", "errors", "efa-srd", "efa-p50", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["system"] for one in found] == ["efa-srd", "efa-p50"]
    for one in found:
        assert one["error_median"] <= one["error_p90"] <= one["error_worst"]
        assert one["held_out_median"] > 0
    assert main(["model", "errors", "efa-srd"]) == 0
    assert "held out" in capsys.readouterr().out
    assert main(["model", "errors", "nothing"]) == 2
