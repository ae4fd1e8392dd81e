"""Counters before and after: what moved, and by how much, whatever their width."""

from pathlib import Path

import pytest
from host_tree import plant

from weft.host.machine.devices import (
    compare_counters,
    read_counters,
    subtract_counter,
    tabulate_changes,
)


@pytest.fixture
def mlx5(tmp_path: Path) -> Path:
    return plant("mlx5", tmp_path)


def add(root: Path, path: str, n: int) -> None:
    file = root / path
    file.write_text(f"{int(file.read_text()) + n}\n")


PORT = "sys/class/infiniband/mlx5_0/ports/1"


def test_a_snapshot_has_port_hardware_device_and_interface_counters(tmp_path):
    result = read_counters(plant("efa", tmp_path))
    assert result["rdmap0s6/1", "tx_bytes"] == 10
    assert result["rdmap0s6", "reg_mr_cmds"] == 5
    assert result["eth0", "rx_bytes"] == 1


def test_a_setting_among_the_counters_is_left_out(mlx5):
    assert ("mlx5_0/1", "out_of_sequence") in read_counters(mlx5)
    assert ("mlx5_0/1", "lifespan") not in read_counters(mlx5)


def test_only_what_moved_is_told_and_data_words_are_bytes(mlx5):
    before = read_counters(mlx5)
    add(mlx5, f"{PORT}/counters/port_rcv_data", 1000)
    add(mlx5, f"{PORT}/hw_counters/out_of_sequence", 2)
    add(mlx5, "sys/class/net/ib0/statistics/tx_bytes", 64)
    result = [
        row
        for row in tabulate_changes(compare_counters(before, read_counters(mlx5)))
        if not row["note"]
    ]
    assert result == [
        {"where": "ib0", "counter": "tx_bytes", "change": 64, "unit": "", "note": ""},
        {"where": "mlx5_0/1", "counter": "out_of_sequence", "change": 2, "unit": "", "note": ""},
        {"where": "mlx5_0/1", "counter": "port_rcv_data", "change": 4000, "unit": "B", "note": ""},
    ]


def test_a_counter_that_stopped_at_its_greatest_value_is_told(mlx5):
    (change,) = compare_counters(read_counters(mlx5), read_counters(mlx5))
    assert (change.counter, change.change, change.note) == ("link_downed", 0, "saturated")


def test_a_counter_that_comes_or_goes_between_the_snapshots_is_left_out(mlx5):
    before = read_counters(mlx5)
    (mlx5 / f"{PORT}/counters/port_rcv_data").unlink()
    assert "port_rcv_data" not in {
        change.counter for change in compare_counters(before, read_counters(mlx5))
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (2**32 - 10, 5, (15, "wrapped")),
        (5000, 10, (10, "reset")),
        (2**40, 7, (7, "reset")),
        (2**31 + 5, 5, (5, "reset")),
        (2**31 + 6, 5, (2**31 - 1, "wrapped")),
        (2**32, 5, (5, "reset")),
        (2**32 - 1, 2**32 + 1, (2, "")),
    ],
)
def test_a_fall_is_a_wrap_at_32_bits_or_a_reset(before, after, expected):
    assert subtract_counter(before, after) == expected


def test_this_host_has_counters_of_its_loopback():
    assert ("lo", "rx_bytes") in read_counters()
