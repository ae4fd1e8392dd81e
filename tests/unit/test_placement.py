"""Where timed loops run."""

from __future__ import annotations

import os

import pytest

from weft.errors import InputError
from weft.measure.settings.values import ANYWHERE, AUTO, client_cpu, server_cpu

ALLOWED = sorted(os.sched_getaffinity(0))
ASKED = {"transport": "tcp", "device": ""}


def test_loops_take_the_given_processor_and_the_next_ones() -> None:
    assert [client_cpu(3, n, "tcp", "") for n in range(3)] == [3, 4, 5]
    assert client_cpu(ANYWHERE, 2, "tcp", "") == ANYWHERE


def test_auto_gives_each_loop_a_processor_of_its_own() -> None:
    chosen = [client_cpu(AUTO, n, "tcp", "") for n in range(len(ALLOWED))]
    assert sorted(chosen) == ALLOWED


def test_on_one_host_the_first_loops_of_both_sides_are_apart() -> None:
    if len(ALLOWED) < 2:
        pytest.skip("one processor")
    ours = client_cpu(AUTO, 0, "tcp", "")
    assert server_cpu({"cpu": AUTO}, ASKED, 0, True) != ours
    assert server_cpu({"cpu": AUTO}, ASKED, 0, False) == ours


def test_more_loops_than_processors_have_no_place() -> None:
    with pytest.raises(InputError, match=f"{len(ALLOWED) + 1} loops, but {len(ALLOWED)} CPUs"):
        client_cpu(AUTO, len(ALLOWED), "tcp", "")
