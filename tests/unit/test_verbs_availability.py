"""What the verbs transport says on a machine, with RDMA devices or without."""

from __future__ import annotations

import pytest

from weft._core import Endpoint, EndpointConfig, availability
from weft.errors import InputError


def test_each_verbs_entry_is_available_or_says_why_not_and_what_to_do() -> None:
    entries = [entry for entry in availability() if entry.transport == "verbs"]
    assert entries
    for entry in entries:
        assert entry.available == (entry.reason == "")
        assert entry.available or entry.remedy


def test_a_device_that_does_not_exist_is_refused_with_a_remedy() -> None:
    config = EndpointConfig()
    config.transport = "verbs"
    config.device = "no_such_device"
    with pytest.raises(InputError, match=r"verbs: .+; .+"):
        Endpoint.open(config)
