"""What a device cannot do is refused before anything is sent: value, limit, remedy."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from typing import Any

import pytest
from verbs_pairs import loopback, opened, settings

from weft._core import Availability
from weft.errors import InputError

TOO_MUCH = [
    ({"depth": 1 << 30}, r"send queue depth 1073741824 exceeds the device limit \d+; lower"),
    ({"receive_depth": 1 << 30}, r"receive queue depth 1073741824 exceeds the device limit \d+"),
    ({"send_bytes": 1 << 31}, r"send size 2147483648 exceeds the device limit \d+; lower --size"),
    ({"receive_bytes": 1 << 31}, r"receive size 2147483648 exceeds the device limit \d+"),
    ({"inline_bytes": 1 << 20}, r"inline size 1048576 exceeds the device limit \d+; lower"),
    ({"endpoint": "ud", "send_bytes": 4097}, r"send size 4097 exceeds .*: lower --size, or use"),
    ({"path_mtu": 1000}, r"path MTU 1000 is not possible; use 256, 512"),
    ({"service_level": 16}, r"service level 16 is not possible; use 0 to 15"),
    ({"traffic_class": 256}, r"traffic class 256 is not possible; use 0 to 255"),
    ({"gid_index": 200}, r"GID index 200 is empty; choose another with --gid-index"),
    ({"port": 99}, r"port 99 does not exist; use 1 to \d+"),
    ({"endpoint": "xrc"}, r"endpoint 'xrc' is unknown; use rc, uc, ud or srd"),
]


@pytest.mark.parametrize(("fields", "message"), TOO_MUCH)
def test_more_than_the_device_can_is_refused(
    device: Availability, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message), opened(settings(device=device.device, **fields)):
        pass


def test_the_largest_inline_size_named_by_the_refusal_works(device: Availability) -> None:
    with (
        pytest.raises(InputError, match="inline size") as refusal,
        opened(settings(device=device.device, inline_bytes=1 << 20)),
    ):
        pass
    limit = int(str(refusal.value).split("device limit ")[1].split(";")[0])
    with opened(settings(device=device.device, inline_bytes=limit)) as (endpoint,):
        assert int(endpoint.describe()["inline_bytes"]) == limit


def test_an_elastic_fabric_adapter_is_needed_for_srd(device: Availability) -> None:
    if "srd" in device.endpoints:
        pytest.skip("this is one")
    with (
        pytest.raises(InputError, match="the device has no srd endpoints; use --endpoint rc"),
        opened(settings(device=device.device, endpoint="srd")),
    ):
        pass


def test_the_gid_is_the_one_of_the_address_asked_for(device: Availability) -> None:
    for gid in device.facts["gids"].split(", "):
        index, address, *_ = gid.split(": ", 1)[0], gid.split(": ", 1)[1].split(" ")[0]
        with opened(settings(device=device.device, address=address)) as (endpoint,):
            facts = endpoint.describe()
        assert (facts["gid"], facts["gid_index"]) == (address, index)


def test_timestamps_are_given_or_said_to_be_missing(device: Availability) -> None:
    with loopback(device=device.device, device_timestamps=True) as endpoint:
        facts = endpoint.describe()
    has = device.facts["timestamps"] != "no"
    assert ("device_hz" in facts) == has
    assert facts["device_timestamps"]


OPEN_ALL = """
import resource, sys
from weft._core import Endpoint, EndpointConfig
from weft.errors import InputError
import os
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
os.setuid(65534)
config = EndpointConfig()
config.transport, config.device = "verbs", sys.argv[1]
try:
    Endpoint.open(config)
except InputError as error:
    print(error)
"""


def test_without_memlock_the_error_says_so(machine: Availability) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert (soft, hard) != (0, 0)
    os.chmod("/dev/infiniband/uverbs0", 0o666)
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ALL, machine.device],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert "the memlock limit is 0 KiB; raise it (ulimit -l unlimited" in done.stdout, done
