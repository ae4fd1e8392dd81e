"""`weft control bench`: it counts what a controller acknowledges, and refuses odd options."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="gRPC: pip install 'weft[control]'")

from weft.cli import main
from weft.control.runtime import bench


def test_a_controller_s_rates_are_measured() -> None:
    rates = bench.measure_rates(1, 0.2)
    assert rates.controllers == 1
    assert rates.registrations_per_s > 0
    assert rates.connections_per_s >= bench.BATCH


def test_every_node_is_in_one_group() -> None:
    for count in (2, 4):
        nodes = [node for group in bench._share_nodes(count).values() for node in group]
        assert len(nodes) == len(set(nodes)) == bench.LEAVES * (1 + bench.HOSTS) + bench.SPINES


@pytest.mark.parametrize("option", [["--controllers", "1,3"], ["--seconds", "0"]])
def test_odd_options_are_refused(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["control", "bench", *option]) == 2
    assert "use 1, 2, 4, 8" in (errors := capsys.readouterr().err) or "out of range" in errors
