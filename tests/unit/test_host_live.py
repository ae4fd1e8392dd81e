"""This host, whatever it is: clock, pages, noise and facts hold together."""

import threading

import pytest

from weft._core import Clock, core_distance, hiccups, huge_pages_of
from weft.errors import InputError
from weft.host.machine.cpu import read_processors
from weft.host.machine.examination import (
    measure_distances,
    measure_noise,
    read_clock,
    read_provenance_facts,
    sum_gaps_ns,
    watch_noise,
)
from weft.records.schema import Plain


def test_the_clock_is_calibrated_and_says_how_well():
    facts = read_clock()
    assert facts.source in ("tsc", "cntvct", "clock_gettime")
    assert facts.hz > 1e6
    assert 0 < facts.error_ppm < 10_000
    assert facts.step_ns > 0
    assert facts.reason


def test_two_calibrations_agree_within_their_errors():
    first, second = Clock.calibrate(0.05), Clock.calibrate(0.05)
    allowed_ppm = first.error_ppm + second.error_ppm
    assert abs(first.hz / second.hz - 1) * 1e6 <= allowed_ppm


@pytest.mark.parametrize("seconds", [0.0, -1.0, 1e9, float("nan")])
def test_a_calibration_time_that_makes_no_sense_is_refused(seconds):
    with pytest.raises(InputError, match="clock calibration"):
        Clock.calibrate(seconds)


def test_a_buffer_says_which_pages_it_got():
    assert huge_pages_of(100) == "4K"
    assert huge_pages_of(4 * 2**20) in ("2M", "thp", "4K")
    assert huge_pages_of(4 * 2**20, "4K") == "4K"


def test_pages_and_nodes_that_do_not_exist_are_refused():
    with pytest.raises(InputError, match="use auto, 2M, thp or 4K"):
        huge_pages_of(4096, "1G")
    with pytest.raises(InputError, match="NUMA node 1000: this host has only 0"):
        huge_pages_of(4096, "4K", 1000)


def test_a_cpu_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(InputError, match="CPU 9999: there is no such CPU online; this host has 0"):
        hiccups(0.01, 9999)


def test_one_cpu_has_no_distance_to_itself():
    with pytest.raises(InputError, match="not two different ones"):
        core_distance(0, 0)


def test_hiccups_are_longer_than_the_threshold_and_fit_into_the_time():
    noise = measure_noise(0.05, read_processors().allowed[-1])
    assert noise.watched_ns >= 49_000_000
    assert sum_gaps_ns(noise.gaps) <= noise.watched_ns * 1.001
    if noise.gaps.count:
        assert noise.gaps.min >= 999_000
        assert 0 < noise.lost_share <= 1.001


def test_the_hiccups_of_others_are_seen_while_they_take_the_cpu():
    cpu = read_processors().allowed[-1]
    beside = threading.Thread(target=hiccups, args=(0.3, cpu))
    beside.start()
    noise = measure_noise(0.2, cpu)
    beside.join()
    # Two spinning threads on one CPU: each misses the slices that the other gets.
    assert noise.lost_share > 0.05


def test_noise_is_watched_around_a_run():
    with watch_noise(seconds=0.02) as watch:
        assert watch.noise is None
    noise = watch.noise
    assert noise is not None
    assert noise.watched_ns >= 19_000_000
    assert noise.involuntary_switches >= 0
    assert noise.steal_ns >= 0


def test_distances_of_cores_are_bounded_in_number():
    result = measure_distances(read_processors(), most=1, seconds=0.05)
    assert len(result) <= 1
    assert all(distance.p50_ps is None or distance.p50_ps > 0 for distance in result)


def test_facts_for_provenance_can_be_stored_and_name_the_clock():
    facts = read_provenance_facts()
    assert {
        "clock_source",
        "clock_hz",
        "clock_error_ppm",
        "pages",
        "governor",
        "cpu_model",
        "numa_nodes",
        "kernel",
    } <= set(facts)
    assert all(isinstance(value, Plain) for value in facts.values())


def test_steal_of_a_cpu_that_proc_stat_does_not_show_is_zero(monkeypatch):
    monkeypatch.setattr("weft.host.machine.examination.read_steal_s", dict)
    assert measure_noise(0.001, read_processors().allowed[-1]).steal_ns == 0
