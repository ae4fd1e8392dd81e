"""Queue pairs of a registered application bear its level on the wire."""

from __future__ import annotations

import pytest
from app_endpoints import connected_endpoints
from controller_model import ModelController
from controller_server import grpc_controller
from rdma_network import Veth
from verbs_pairs import loop, served
from wire_tap import classes, ends, listening

from weft._core import echo, ping_pong
from weft.control.client import register

LEVEL = 5


@pytest.mark.parametrize("kind", ["rc", "uc", "ud"])
def test_a_queue_pair_of_an_application_sends_with_its_level(veth: Veth, kind: str) -> None:
    model = ModelController(levels={"sort": LEVEL})
    configs = ends(veth, endpoint=kind)
    spec = loop(count=10, validate=True)
    with (
        grpc_controller(model) as controller,
        register("sort", controller=controller.address, ttl_s=60.0, wait_s=30.0) as app,
        listening(veth) as packets,
        connected_endpoints(app, *configs, veth.addresses) as (ours, theirs),
    ):
        a, b = ours.endpoint, theirs.endpoint
        assert a is not None
        assert b is not None
        # Soft RoCE ignores service levels; the queue pair holds them.
        assert a.describe()["service_level"] == str(LEVEL)
        result, _ = served(lambda s: ping_pong(a, spec, s), lambda s: echo(b, spec, s))
        assert ours.wait_counted(30.0)
        assert theirs.wait_counted(30.0)
    assert (result.counts.received, result.counts.corrupted) == (10, 0)
    assert set(classes(packets)) == {LEVEL << 2}
    assert model.opened == 2
