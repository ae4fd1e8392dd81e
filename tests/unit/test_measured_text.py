"""Measurements on a terminal: what a table says of its records."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from weft.measure.settings.by_test import RperfSettings
from weft.measure.tests.latency import list_rperf_notes
from weft.records import Distribution, Histogram, Provenance, Record, Scalar
from weft.records.record_text import format_measurement, format_sweep


def record(size: int, *, repetition: int | None = None, samples=(), **numbers: float) -> Record:
    histogram = Histogram()
    histogram.record_many(np.asarray(samples, dtype=np.int64))
    settings = {"over": "tcp", "size_bytes": size}
    return Record(
        kind="measurement",
        name="latency",
        settings=settings if repetition is None else settings | {"repetition": repetition},
        quantities={
            **({"half_rtt": Distribution("ps", histogram)} if len(samples) else {}),
            **{name: Scalar(value, "b/s") for name, value in numbers.items()},
        },
        provenance=Provenance(weft_version="0"),
    )


def test_each_quantile_stands_above_its_interval_in_the_same_unit():
    values = np.arange(1, 10_001) * 1_000_000  # 1 us to 10 ms
    lines = format_measurement(record(64, samples=values)).splitlines()
    (row,) = (line.split() for line in lines if line.startswith("half_rtt"))
    (ends,) = (line.split() for line in lines if line.startswith("  95 %"))
    assert row[:4] == ["half_rtt", "10000", "1", "µs"]
    median, low_high = float(row[4]), ends[3]
    low, high = (float(end) for end in low_high.split("–"))
    assert low <= median <= high


def test_an_end_that_the_samples_cannot_bound_is_left_open():
    assert "–…" in format_measurement(record(64, samples=[1000, 2000, 3000]))


def test_a_sweep_names_what_varies_once_and_what_does_not_in_its_title():
    text = format_sweep([record(64, throughput=1e9), record(128, throughput=2e9)])
    title, _, heads, _, *rows = text.splitlines()
    assert title == "latency (over=tcp)"
    assert heads.split() == ["size", "throughput"]
    assert [row.split() for row in rows] == [["64", "B", "1", "Gb/s"], ["128", "B", "2", "Gb/s"]]


def test_repetitions_are_their_median_and_range():
    runs = [record(64, repetition=n, throughput=n * 1e9) for n in (1, 2, 6)]
    text = format_sweep(runs)
    assert "2 Gb/s (1–6)" in text
    assert "3  2 Gb/s" in text


def test_a_note_says_how_many_records_have_it_unless_all_do():
    runs = [record(64, throughput=1e9), record(128, throughput=2e9)]
    runs = [replace(run, notes=notes) for run, notes in zip(runs, (["a", "b"], ["b"]), strict=True)]
    assert format_sweep(runs).splitlines()[-2:] == ["a (1 of 2 records)", "b"]


def test_what_made_a_host_noisy_is_one_note():
    spun, stolen = "noisy host: a thread lost 3 % of its time", "noisy host: 4 % of a CPU was taken"
    runs = [record(64, throughput=1e9), record(128, throughput=2e9)]
    runs = [replace(run, notes=n) for run, n in zip(runs, ([spun, stolen], [stolen]), strict=True)]
    assert format_sweep(runs).splitlines()[-2:] == ["", "noisy host"]


def test_a_quantity_that_a_point_lacks_is_a_dash():
    text = format_sweep([record(64, throughput=1e9), record(128)])
    assert text.splitlines()[-1].split() == ["128", "B", "–"]


def test_a_simulated_sweep_is_a_row_per_point_and_a_column_per_traffic():
    runs = [
        replace(
            record(size),
            kind="simulation",
            settings={"size": size},
            quantities={
                "a.h0-h1.goodput": Scalar(0.5, "Gb/s"),
                "a.goodput": Scalar(size / 64, "Gb/s"),
                "b.finished": Scalar(2.0, "us"),
                "fabric.events": Scalar(9, ""),
            },
            notes=[f"ended: finished at {size} us"],
        )
        for size in (64, 128)
    ]
    _, _, heads, _, *rows = format_sweep(runs).splitlines()
    assert heads.split() == ["size", "a.goodput", "b.finished"]
    assert [row.split() for row in rows[:2]] == [
        ["64", "1", "Gb/s", "2", "µs"],
        ["128", "2", "Gb/s", "2", "µs"],
    ]
    assert rows[3:] == ["ended: finished at 64 us (figures differ)"]


@pytest.mark.parametrize(("negative", "said"), [(0, 0), (5, 1)])
def test_negative_differences_of_rperf_are_counted_in_a_note(negative: int, said: int):
    pairs = SimpleNamespace(count=1000)
    result = SimpleNamespace(rtt=pairs, device_rtt=pairs, negative=negative)
    lines = list_rperf_notes(RperfSettings(over="delay"), result)
    assert len([line for line in lines if "are negative" in line]) == said
    assert all(line.startswith("5 of 1000 differences (0.5 %)") for line in lines[1 : 1 + said])
