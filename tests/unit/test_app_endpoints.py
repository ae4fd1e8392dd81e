"""Endpoints of weft's transports as connections of an application: marked, told, and fail open."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from app_endpoints import connected_endpoints
from controller_model import ModelController
from controller_server import GrpcController, grpc_controller
from ofi_pair import config, loop, need

from weft import _core
from weft._core import Endpoint, EndpointConfig, StopFlag
from weft.control.client import App, UnmanagedWarning, register
from weft.errors import InputError


@pytest.fixture
def controller() -> Iterator[GrpcController]:
    with grpc_controller(ModelController(levels={"sort": 3, "scan": 20})) as made:
        yield made


@pytest.fixture
def app(controller: GrpcController) -> Iterator[App]:
    with register("sort", controller=controller.address, wait_s=10.0) as made:
        yield made


def plain(transport: str, **fields: object) -> EndpointConfig:
    made = EndpointConfig()
    made.transport, made.address = transport, "127.0.0.1"
    made.depth = made.receive_depth = 8
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def both(kind: tuple[str, str]) -> tuple[EndpointConfig, EndpointConfig]:
    if kind[0] == "tcp" and not kind[1]:
        return plain("tcp"), plain("tcp", server=True)
    need(*kind)
    return config(*kind), config(*kind, server=True)


@pytest.mark.parametrize("kind", [("tcp", ""), ("tcp", "msg"), ("tcp;ofi_rxm", "rdm")], ids=str)
def test_an_endpoint_is_marked_reported_and_closed_as_one_connection(
    app: App, controller: GrpcController, kind: tuple[str, str]
) -> None:
    with connected_endpoints(app, *both(kind), ("a", "b")) as (ours, theirs):
        assert ours.wait_counted(10.0)
        assert theirs.wait_counted(10.0)
        assert controller.model.pairs() == [("a", "b"), ("b", "a")]
        assert ours.endpoint is not None
        assert ours.endpoint.is_marked
        assert ours.socket is None
    with pytest.raises(InputError, match="is closed"):
        ours.endpoint.describe()
    app.close()
    assert not controller.model.connections


def test_a_provider_without_traffic_classes_works_unmarked_with_one_warning(app: App) -> None:
    need("shm", "rdm")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with connected_endpoints(app, *both(("shm", "rdm")), ("a", "b")) as (ours, theirs):
            assert ours.endpoint is not None
            assert not ours.endpoint.is_marked
            assert ours.endpoint.describe()["traffic class"] == "0: the provider does not take 12"
            _echoed(ours.endpoint, theirs.endpoint)
    told = [str(one.message) for one in caught if one.category is UnmanagedWarning]
    assert ["cannot be marked" in text for text in told] == [True]


def _echoed(ours: Endpoint, theirs: Endpoint | None) -> None:
    assert theirs is not None
    spec, stop = loop(count=20, bytes=64), StopFlag()
    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(_core.echo, theirs, spec, stop)
        counts = _core.ping_pong(ours, spec, StopFlag()).counts
        stop.set()
        serving.result(20)
    assert (counts.error, counts.sent) == ("", 20)


def test_without_a_controller_an_endpoint_is_opened_unmarked() -> None:
    with pytest.warns(UnmanagedWarning):
        app = register("sort", controller="127.0.0.1:1")
    made = plain("udp")
    app.assign(made)
    assert (made.traffic_class, made.service_level) == (0, 0)
    with app, connected_endpoints(app, made, plain("udp"), ("a", "b")) as (ours, _):
        assert not ours.is_counted


def test_an_endpoint_that_cannot_be_connected_is_closed_and_never_reported(
    app: App, controller: GrpcController
) -> None:
    with pytest.raises(InputError, match="malformed"):
        app.connect_endpoint(plain("tcp"), lambda _: b"nowhere", "a", "b")
    app.declare("c", "d", wait=True)
    assert controller.model.pairs() == [("c", "d")]


def test_a_level_that_only_ethernet_has_is_no_service_level(controller: GrpcController) -> None:
    with register("scan", controller=controller.address, wait_s=10.0) as app:
        made = EndpointConfig()
        app.assign(made)
        assert (app.level, app.service_level, app.traffic_class) == (20, 0, 80)
        assert (made.service_level, made.traffic_class, made.class_is_optional) == (0, 80, True)
