"""The client library stops no program: whatever it is given, it goes on as best effort."""

from __future__ import annotations

import math
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from some_examples import examples

from weft._core import EndpointConfig
from weft.control.client import App, Tls, UnmanagedWarning, register, worker
from weft.errors import InputError

NOBODY = "127.0.0.1:1"
HUGE = 10**400  # no float holds it
EXAMPLES = examples(180)
TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=300)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([HUGE, -HUGE, 2**64, 1e300, math.nan, math.inf, -math.inf, object(), max])
    | st.floats()
    | st.complex_numbers()
    | TEXT
    | st.binary()
    | st.lists(st.integers(), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    | st.builds(Tls, authority=TEXT, certificate=st.integers(), key=st.none())
    | st.builds(Tls, authority=TEXT, certificate=TEXT, key=TEXT)
)
GOOD = {"name": "sort", "controller": NOBODY, "wait_s": 0.0}
ARGUMENTS = ("name", "controller", "tls", "ttl_s", "wait_s", "job", "size")


@pytest.fixture(scope="module", autouse=True)
def jitter() -> Iterator[None]:
    """Of its own: Hypothesis watches over that of the module `random`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "random", Random(1))
        yield


@contextmanager
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # any other warning fails
        warnings.simplefilter("ignore", UnmanagedWarning)
        yield


@EXAMPLES
@given(st.sampled_from(ARGUMENTS), VALUES)
@example("name", 5)
@example("ttl_s", "x")
@example("controller", "unix:\udcff")
@example("job", "\udcff")
@example("size", math.inf)
def test_a_registration_with_any_value_gives_an_unmanaged_application(
    argument: str, value: object
) -> None:
    with quiet(), register(**{**GOOD, argument: value}) as app:  # type: ignore[arg-type]
        assert (app.is_managed, app.level, app.id) == (False, 0, None)
        assert app.problem
        with socket.socket() as sock:
            assert app.mark(sock).socket is sock


def test_numbers_that_have_no_decimal_text_are_named_by_their_type() -> None:
    for argument in ("name", "controller", "ttl_s", "job", "size"):
        with pytest.warns(UnmanagedWarning, match="of the type int"):
            register(**{**GOOD, argument: 10**5000}).close()  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def app() -> Iterator[App]:
    with quiet():
        made = register(**GOOD)  # type: ignore[arg-type]
        yield made
        made.close()


@EXAMPLES
@given(source=VALUES, destination=VALUES)
def test_any_hosts_can_be_declared(app: App, source: object, destination: object) -> None:
    with quiet(), app.declare(source, destination) as connection:  # type: ignore[arg-type]
        assert not connection.is_counted


@EXAMPLES
@given(VALUES)
def test_anything_can_be_marked_assigned_and_awaited(app: App, value: object) -> None:
    with quiet():
        connection = app.mark(value)  # type: ignore[arg-type]
        assert "is no socket" in connection.problem
        assert connection.socket is None
        app.assign(value)  # type: ignore[arg-type]
        assert not app.declare("a", "b").wait_counted(value)  # type: ignore[arg-type]


@EXAMPLES
@given(VALUES)
def test_an_application_closes_whatever_the_time(value: object) -> None:
    with quiet():
        app = register("")
        app.close(value)  # type: ignore[arg-type]
    assert app.problem == "closed"


@EXAMPLES
@given(st.sampled_from(("port", "kind", "timeout_s", "local")), VALUES)
@example("port", HUGE)
@example("timeout_s", math.nan)
def test_a_socket_is_connected_or_an_oserror(app: App, argument: str, value: object) -> None:
    arguments = {"host": "127.0.0.1", "port": 1, argument: value}
    with quiet(), pytest.raises(OSError, match=r"\w"):
        app.connect(**arguments)  # type: ignore[arg-type]


@EXAMPLES
@given(VALUES.filter(lambda value: not isinstance(value, str)))
def test_a_host_that_is_no_text_is_an_oserror(app: App, value: object) -> None:
    with quiet(), pytest.raises(OSError, match=r"\w"):
        app.connect(value, 1)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="is no socket"):
        app.accept(value)  # type: ignore[arg-type]


@EXAMPLES
@given(st.sampled_from(("config", "exchange", "timeout_s", "address")), VALUES)
def test_an_endpoint_is_connected_or_an_inputerror(app: App, argument: str, value: object) -> None:
    config = EndpointConfig()
    config.transport, config.address = "tcp", "127.0.0.1"
    arguments = {"config": config, "exchange": lambda _: value, "timeout_s": 0.01}
    if argument != "address":
        arguments[argument] = value
    with quiet(), pytest.raises(InputError):
        app.connect_endpoint(source="a", destination="b", **arguments)  # type: ignore[arg-type]
