"""A server of measurements: its limits at their edges, its sockets, and how its sessions end."""

from __future__ import annotations

import signal
import time
from typing import Any, cast

import pytest

from weft.cli.serve import _print_json, _print_text
from weft.errors import InputError
from weft.measure.peer import negotiation
from weft.measure.peer.channel_spec import ServedChannel
from weft.measure.peer.negotiation import Limits, count_roles, find_excess
from weft.measure.peer.server import _explain_death, _listen
from weft.measure.peer.server_session import STUCK_STATUS, Session
from weft.wire import ProtocolError

NO_LIMITS = Limits(depth=None, endpoints=None, threads=None, memory_bytes=None, sessions=None)


def channel(role: str = "sink", thread: int = 0, rate: float = 0, **config: Any) -> ServedChannel:
    sizes = {"send_bytes": 0, "receive_bytes": 100, "remote_bytes": 0, "offset": 0}
    depths = {"depth": 4, "receive_depth": 8, "one_buffer": False}
    return ServedChannel(
        where=f"channel {thread}",
        config=sizes | depths | config,
        role=role,
        loop={"bytes": 100, "duration_ns": 2_000_000_000},
        options={"rate": rate},
        thread=thread,
    )


def problems(channels: list[ServedChannel], **limits: Any) -> list[str]:
    bounds = Limits(**{"depth": None, "memory_bytes": None} | limits)
    return [str(problem) for problem in find_excess(channels, bounds)]


# ---- Limits -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "least", "option"),
    [
        ("size_bytes", 100, "--max-size"),
        ("duration_s", 2, "--max-duration"),
        ("depth", 8, "--max-depth"),
        ("endpoints", 2, "--max-endpoints"),
        ("threads", 2, "--max-threads"),
        # a receive slot of 100 B takes two cache lines: 2 channels of 8 of them
        ("memory_bytes", 2 * 8 * 128, "--max-memory"),
    ],
)
def test_a_limit_admits_its_own_value_and_nothing_above(
    limit: str, least: int, option: str
) -> None:
    two = [channel(), channel(thread=1)]
    assert problems(two, **{limit: least}) == []
    refused = problems(two, **{limit: least - 1})
    assert refused
    assert all(f"exceeds the server's limit {least - 1}; ask for less" in p for p in refused)
    assert all(p.endswith(f"raises {option}") for p in refused)


def test_one_sided_messages_are_as_large_as_their_window() -> None:
    assert problems([channel("window", remote_bytes=4096)], size_bytes=4096) == []
    assert problems([channel("window", remote_bytes=4097)], size_bytes=4096) != []
    assert problems([channel("echo", remote_bytes=4097)], size_bytes=4096) == []


@pytest.mark.parametrize(
    ("config", "bytes_"),
    [
        ({"receive_bytes": 64, "receive_depth": 1}, 64),
        ({"receive_bytes": 65, "receive_depth": 1}, 128),
        ({"receive_bytes": 4095, "receive_depth": 1}, 4096),
        ({"receive_bytes": 4097, "receive_depth": 1}, 8192),
        ({"receive_bytes": 0, "send_bytes": 60, "offset": 5}, 4 * 128),
        ({"receive_bytes": 0, "send_bytes": 60, "one_buffer": True}, 64),
        ({"receive_bytes": 0, "remote_bytes": 7}, 7),
    ],
)
def test_buffers_take_cache_lines_and_large_ones_pages(config: dict[str, Any], bytes_: int) -> None:
    assert problems([channel("echo", **config)], memory_bytes=bytes_) == []
    assert problems([channel("echo", **config)], memory_bytes=bytes_ - 1) != []


def test_rates_of_threads_that_run_freely_are_declared_and_summed() -> None:
    # 100 B are 800 bits: two threads of 5 messages per second send 8000 b/s.
    two = [channel(rate=5), channel(thread=1, rate=5)]
    assert problems(two, rate_bps=8000) == []
    assert "bits per second 8000 exceeds the server's limit 7999" in problems(two, rate_bps=7999)[0]
    (undeclared,) = problems([channel(), channel(thread=1, rate=5)], rate_bps=8000)
    assert "no rate is given" in undeclared
    assert "at most 10 messages per second" in undeclared
    assert problems([channel("echo")], rate_bps=1) == []


def test_limits_come_back_from_the_wire_and_others_are_refused() -> None:
    limits = Limits(size_bytes=5, duration_s=0.5)
    assert Limits.from_wire(limits.to_wire()) == limits
    assert Limits.from_wire({}).depth is None
    for bad in ({"colour": 1}, {"depth": "1"}, {"depth": True}):
        with pytest.raises(ProtocolError, match="is not one, or no number"):
            Limits.from_wire(bad)


def test_roles_are_counted_for_the_log() -> None:
    assert count_roles([channel("echo"), channel("sink"), channel("echo")]) == "2 echo, 1 sink"


# ---- A running test ---------------------------------------------------------------------------


class Running:
    """A test that has moved some bits."""

    def __init__(self, bits: float) -> None:
        self.bits = bits
        self.stops = 0

    def progress_bits(self) -> float:
        return self.bits

    def find_failure(self) -> InputError | None:
        return None

    def stop(self) -> None:
        self.stops += 1


class Client:
    def __init__(self) -> None:
        self.received: list[Any] = []

    def send(self, message: object) -> None:
        self.received.append(message)


@pytest.mark.parametrize(
    ("bits", "elapsed_s", "limits", "problem"),
    [
        (1e6, 10, Limits(rate_bps=1e5), None),
        (1.05e6, 10, Limits(rate_bps=1e5), None),  # a tenth more is let pass
        (1.2e6, 10, Limits(rate_bps=1e5), "ended the test at 1.2e+05 b/s, its limit is 100000"),
        (1e9, 0.5, Limits(rate_bps=1e5), None),  # too early to tell
        (0, 10, Limits(duration_s=20), None),
        (0, 10, Limits(duration_s=5), "ended the test after 10.0 s, its limit is 5 s"),
        (1e12, 1000, NO_LIMITS, None),
    ],
)
def test_a_test_beyond_its_limits_is_stopped_once_and_the_client_hears_why(
    monkeypatch: pytest.MonkeyPatch,
    bits: float,
    elapsed_s: float,
    limits: Limits,
    problem: str | None,
) -> None:
    client, test = Client(), Running(bits)
    session = Session(cast(Any, client), limits)
    session._test, session._state = cast(Any, test), "running"
    monkeypatch.setattr(time, "monotonic", lambda: elapsed_s)
    session._enforce_limits()
    session._enforce_limits()
    assert test.stops == (problem is not None)
    texts = [str(message) for message in client.received]
    assert all(isinstance(message, negotiation.Stopped) for message in client.received)
    assert [problem in text for text in texts if problem] == [True] * test.stops


def test_a_test_that_does_not_run_is_not_stopped() -> None:
    client, test = Client(), Running(1e9)
    session = Session(cast(Any, client), Limits(duration_s=0.0))
    session._test, session._state = cast(Any, test), "connected"
    session._enforce_limits()
    assert (test.stops, client.received) == (0, [])


# ---- The server -------------------------------------------------------------------------------


def test_addresses_without_a_port_get_the_same_free_one() -> None:
    sockets = _listen([("127.0.0.1", 0), ("127.0.0.2", 0)])
    try:
        first, second = (listener.getsockname() for listener in sockets)
        assert first[1] == second[1] > 0
        with pytest.raises(InputError, match=r"127\.0\.0\.1:\d+: Address already in use"):
            _listen([("127.0.0.3", 0), ("127.0.0.1", first[1])])
    finally:
        for listener in sockets:
            listener.close()


def test_the_end_of_a_session_is_explained_by_its_status() -> None:
    assert _explain_death(STUCK_STATUS << 8) == "a loop or driver hung"
    assert _explain_death(signal.SIGALRM) == "a loop or driver hung"
    assert _explain_death(signal.SIGSEGV) == "killed by SIGSEGV"
    assert _explain_death(3 << 8) == "failed with status 3"


def test_addresses_are_printed_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    addresses = [("::1", 5), ("127.0.0.1", 6)]
    _print_text("serving", addresses)
    assert capsys.readouterr().out == "serving on [::1]:5, 127.0.0.1:6; Ctrl-C ends it\n"
    _print_text("left", "a client left")
    assert capsys.readouterr().out.endswith(" a client left\n")
    _print_json("serving", addresses)
    assert '"addresses": [["::1", 5], ["127.0.0.1", 6]]' in capsys.readouterr().out
    _print_json("left", "a client left")
    assert '"text": "a client left"' in capsys.readouterr().out
