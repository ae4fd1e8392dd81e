"""What these tests need: an RDMA device, and for some the virtual machine of `make test-rdma`.

Any device will do for the tests of the transport. Those that change the machine's network, or take
devices away, run in the virtual machine alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from rdma_network import Veth, make_veth_pair, remove_veth_pair

from weft._core import Availability, availability


@pytest.fixture(scope="session")
def device() -> Availability:
    """The first RDMA device that can be used here."""
    entries = [entry for entry in availability() if entry.transport == "verbs"]
    for entry in entries:
        if entry.available:
            return entry
    reason = f"rdma: {entries[0].reason}; make test-rdma runs these in a virtual machine"
    if "WEFT_RDMA_VM" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def machine(device: Availability) -> Availability:
    """The device, where its network may be changed: in the virtual machine."""
    if "WEFT_RDMA_VM" not in os.environ:
        pytest.skip("rdma: changes the network; make test-rdma runs it in a virtual machine")
    return device


@pytest.fixture(scope="module")
def veth(machine: Availability) -> Iterator[Veth]:
    """Two more devices, with a cable between them that can be listened to; gone for the others.

    Studies choose among the devices that there are.
    """
    assert machine.available
    pair = make_veth_pair()
    yield pair
    remove_veth_pair(pair)
