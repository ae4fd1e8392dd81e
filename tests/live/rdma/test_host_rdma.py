"""A real kernel's RDMA devices: what the host's readers say of them agrees with the device."""

from __future__ import annotations

import subprocess
import sys

from verbs_pairs import loop, pair, served

from weft._core import Availability, echo, ping_pong
from weft.host.machine.cpu import pick_cpus
from weft.host.machine.devices import compare_counters, list_rdma_devices, read_counters

MESSAGES = 20


def test_the_kernels_files_name_the_device_that_verbs_opens(device: Availability) -> None:
    (seen,) = (found for found in list_rdma_devices() if found.name == device.device)
    port = next(port for port in seen.ports if str(port.number) == device.facts["port"])
    assert port.is_active
    assert port.link_layer == device.facts["link_layer"]
    assert seen.node_guid.count(":") == 3


def test_messages_are_seen_in_the_devices_counters(device: Availability) -> None:
    before = read_counters()
    with pair(device=device.device) as (ours, theirs):
        result, _ = served(
            lambda stop: ping_pong(ours, loop(count=MESSAGES), stop),
            lambda stop: echo(theirs, loop(), stop),
        )
    assert result.counts.received == MESSAGES
    moved = compare_counters(before, read_counters())
    packets = [
        change.change
        for change in moved
        if change.where.startswith(device.device) and "pkts" in change.counter
    ]
    assert packets, [change.counter for change in moved]
    assert max(packets) >= 2 * MESSAGES


def test_cpus_are_picked_for_the_device(device: Availability) -> None:
    assert len(pick_cpus(1, device.device).cpus) == 1


def test_the_doctor_shows_the_port_and_the_transport(device: Availability) -> None:
    command = [sys.executable, "-m", "weft.cli", "doctor", "--seconds", "0.05"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    (line,) = (line for line in text.splitlines() if line.startswith(f"  verbs:{device.device} "))
    assert f"available; port {device.facts['port']}, {device.facts['link_layer']}" in line
    table = text[text.index("RDMA DEVICES") : text.index("INTERFACES")]
    assert device.device in table
    assert "ACTIVE" in table
