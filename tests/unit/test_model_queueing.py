"""Waits in a saturated switch: limits of the formulas and refusals; see also tests/agreement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.errors import InputError
from weft.model.queueing import (
    Hotspot,
    closed_loop_round_robin_ns,
    fcfs_wait,
    own_lane_wait,
    round_robin_wait,
    two_hop_wait,
    zero_load_ns,
)

RPERF: dict[str, Any] = {
    "senders": 5,
    "buffer_bytes": 32 * 1024,
    "packet_bytes": 4122,
    "rate_gbps": 56.0,
    "switch_ns": 200,
    "flight_ns": 10,
}


def test_credits_count_blocks_of_64_bytes() -> None:
    # 4122 B take 65 blocks; 512 blocks hold seven such packets, 520 eight.
    assert Hotspot(**RPERF).packets_held == 7
    assert Hotspot(**RPERF | {"buffer_bytes": 520 * 64}).packets_held == 8


def test_zero_delay_credits_give_n_buffers_less_their_flight() -> None:
    wait = fcfs_wait(Hotspot(**RPERF))
    packet = 4122 * 8 / 56
    assert wait.low_ns == pytest.approx(5 * 7 * packet - (packet + 220))
    assert wait.high_ns - wait.low_ns == pytest.approx(packet)


def test_a_credit_loop_of_a_buffer_gives_n_minus_one_buffers() -> None:
    packet = 4122 * 8 / 56
    senders = np.arange(2, 9)
    hotspot = Hotspot(**RPERF | {"senders": senders, "credit_delay_ns": 6 * packet - 220})
    assert fcfs_wait(hotspot).low_ns == pytest.approx((senders - 1) * 7 * packet)


def test_round_robin_does_not_know_the_buffer() -> None:
    waits = round_robin_wait(Hotspot(**RPERF | {"buffer_bytes": np.array([32, 64, 128]) * 1024}))
    assert waits.high_ns == pytest.approx(5 * 4122 * 8 / 56)
    assert np.all(waits.low_ns == 0)


def test_a_probe_that_comes_back_early_waits_for_its_turn_and_late_for_the_next() -> None:
    hotspot = Hotspot(**RPERF)
    cycle, own = 5 * 4122 * 8 / 56, 90 * 8 / 56
    loops = np.array([own, cycle, cycle + own + 1])
    waits = closed_loop_round_robin_ns(hotspot, 90, loops)
    assert waits == pytest.approx([cycle, own, cycle - 1])


def test_a_high_priority_lane_waits_for_one_packet_a_weighted_one_for_a_turn() -> None:
    hotspot = Hotspot(**RPERF)
    packet = 4122 * 8 / 56
    assert own_lane_wait(hotspot).high_ns == pytest.approx(packet)
    assert own_lane_wait(hotspot, load_weight=131).high_ns == pytest.approx(3 * packet)


def test_round_robin_after_two_hops_waits_longer_than_first_come_in_one() -> None:
    # The papers' finding: 14.5 us over two hops with round robin, 2.5 us over one.
    delayed = Hotspot(**RPERF | {"senders": 2, "credit_delay_ns": 3400})
    two = two_hop_wait(delayed, 3, order="round-robin")
    assert float(two.low_ns) < 14_500 - 700 < float(two.high_ns)
    assert float(round_robin_wait(Hotspot(**RPERF)).high_ns) < float(two.low_ns)


def test_the_window_shortens_the_wait_only_when_smaller_than_the_buffer() -> None:
    windows = np.array([2, 4, 64])
    waits = fcfs_wait(Hotspot(**RPERF | {"window_packets": windows})).low_ns
    assert np.all(np.diff(waits) > 0)
    assert waits[-1] == fcfs_wait(Hotspot(**RPERF)).low_ns


def test_a_path_takes_flights_switches_and_the_last_link() -> None:
    assert zero_load_ns(
        1000, rates_gbps=[8, 8, 8], flights_ns=[1, 2, 3], switch_ns=10
    ) == pytest.approx(1000 + 6 + 20)
    # From 8 into 80 Gb/s: the output ends with the input; back: it takes its own time.
    assert zero_load_ns(1000, rates_gbps=[8, 80], flights_ns=[0, 0]) == pytest.approx(1000)
    assert zero_load_ns(1000, rates_gbps=[80, 8], flights_ns=[0, 0]) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"senders": 1}, "senders is 1; use 2 or more"),
        ({"rate_gbps": 0}, "rate_gbps is 0; use more than 0"),
        ({"buffer_bytes": 4096}, "the buffer does not hold one packet"),
        ({"flight_ns": -1}, "flight_ns is -1; use 0 or more"),
        ({"window_packets": 0}, "window_packets is 0; use 1 or more"),
        ({"packet_bytes": float("nan")}, "packet_bytes is nan"),
    ],
)
def test_what_is_no_switch_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Hotspot(**RPERF | change)


def test_senders_that_do_not_fill_the_link_are_refused() -> None:
    slow = Hotspot(**RPERF | {"senders": 2, "credit_delay_ns": 9000})
    with pytest.raises(InputError, match="not saturated"):
        fcfs_wait(slow)
    with pytest.raises(InputError, match="not saturated"):
        two_hop_wait(slow, 1)


def test_an_order_without_a_closed_form_is_refused() -> None:
    with pytest.raises(InputError, match="'lottery' has no closed form"):
        two_hop_wait(Hotspot(**RPERF), 3, order="lottery")


def test_the_papers_two_hops_served_by_age_take_18_4_us() -> None:
    delayed = Hotspot(**RPERF | {"senders": 2, "credit_delay_ns": 3400})
    wait = two_hop_wait(delayed, 3, order="fcfs-age")
    assert wait.low_ns < 18_400 - 880 < wait.high_ns
    with pytest.raises(InputError, match="the cable cannot keep up"):
        two_hop_wait(Hotspot(**RPERF | {"credit_delay_ns": 8000}), 3, order="fcfs-age")


def test_a_path_needs_a_flight_for_every_link() -> None:
    with pytest.raises(InputError, match="2 rates and 1 flights"):
        zero_load_ns(64, rates_gbps=[1, 1], flights_ns=[0])
