"""What a client may ask of a server: every field is checked, everything wrong is said."""

import json

import pytest

from weft._core import DelayConfig
from weft.errors import InputError
from weft.measure.peer.channel_spec import (
    CONFIG,
    LOOP,
    ChannelSpec,
    build_loop_spec,
    client_fields,
    delay_fields,
    encode_channel,
    endpoint_config,
    read_channels,
    server_fields,
)
from weft.measure.peer.negotiation import Limits, find_excess
from weft.measure.settings.options import Settings, options_of
from weft.wire import ProtocolError

ECHO = {"transport": "tcp"}


def problems(*specs: ChannelSpec, limits: Limits | None = None) -> list[str]:
    wire = json.loads(json.dumps([encode_channel(spec) for spec in specs]))
    served, wrong = read_channels(wire)
    return [str(p) for p in wrong or find_excess(served, limits or Limits())]


def echo(**config) -> ChannelSpec:
    return ChannelSpec(config=ECHO | config, role="echo")


def test_what_one_side_sends_the_other_receives():
    spec = ChannelSpec(
        config={
            "transport": "udp",
            "send_bytes": 100,
            "receive_bytes": 8,
            "depth": 3,
            "client": {"node": 1},
            "server": {"depth": 9},
        },
        role="sink",
    )
    assert client_fields(spec) == {
        "transport": "udp",
        "send_bytes": 100,
        "receive_bytes": 8,
        "depth": 3,
        "node": 1,
    }
    assert server_fields(spec) == {
        "transport": "udp",
        "send_bytes": 8,
        "receive_bytes": 100,
        "depth": 9,
    }


def test_a_plain_channel_fits():
    assert problems(echo()) == []


def test_a_setting_names_a_field_of_the_core_once() -> None:
    names = [option.config for _, option in options_of(Settings).values() if option.config]
    assert len(set(names)) == len(names)
    assert set(names) <= CONFIG.keys()
    delay = DelayConfig()
    assert all(hasattr(delay, name) for name in delay_fields(Settings()))


def test_every_field_has_the_core_s_name_and_default():
    config, loop = endpoint_config({"transport": "tcp"}, server=True), build_loop_spec()
    assert config.server
    for name, (default, _) in CONFIG.items():
        assert getattr(config, name) == (default or "tcp" if name == "transport" else default)
    for name, (default, _) in LOOP.items():
        assert getattr(loop, name) == default


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"depth": 0}, "depth 0 is not a whole number from 1"),
        ({"depth": True}, "depth True is not a whole number"),
        ({"depth": 1.5}, "depth 1.5 is not a whole number"),
        ({"depth": "8"}, "depth '8' is not a whole number"),
        ({"depth": None}, "depth None is not a whole number"),
        ({"send_bytes": 1 << 32}, "4294967296 is not a whole number"),
        ({"send_bytes": -1}, "-1 is not a whole number"),
        ({"events": 1}, "events 1 is not true or false"),
        ({"device": "x" * 257}, "is not a short text"),
        ({"device": ["shm"]}, "is not a short text"),
        ({"queue": 1}, "unknown field 'queue'"),
        ({"samples": 1 << 40}, "unknown field 'samples'"),
        ({"transport": "delay"}, "transport 'delay' does not go between peers"),
        ({"transport": "carrier pigeon"}, "does not go between peers"),
        ({"server": {"port": 256}}, "port 256 is not a whole number from 0 to 255"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(config, problem):
    (text,) = problems(echo(**config))
    assert text.startswith("channel 0: ")
    assert problem in text


def test_everything_that_is_wrong_is_said():
    found = problems(
        echo(depth=0, node="a"), ChannelSpec(config=ECHO, role="mirror", options={"rate": -1})
    )
    assert [text.split(":")[0] for text in found] == ["channel 0"] * 2 + ["channel 1"] * 2


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "x",
        [],
        {},
        {"config": {}, "role": "echo"},
        {"config": [], "role": "echo", "loop": {}, "options": {}, "thread": 0},
        {"config": {}, "role": "echo", "loop": {}, "options": {}, "thread": True},
        {"config": {}, "role": 5, "loop": {}, "options": {}, "thread": 0},
    ],
)
def test_what_is_not_a_channel_is_refused(value):
    served, wrong = read_channels([value])
    assert not served
    assert wrong


def test_no_channel_at_all_is_refused():
    assert problems() == ["channels: there are none; ask for at least one"]


def test_absurdly_many_channels_are_one_problem():
    served, wrong = read_channels([None] * 1_000_000)
    assert served == []
    assert [str(p) for p in wrong] == [
        "channels: 1000000 of them, at most 4096 are possible; ask for fewer"
    ]


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (ChannelSpec(config=ECHO | {"send_bytes": 65}, role="echo"), "receive_bytes 65 exceeds"),
        (ChannelSpec(config=ECHO, role="sink", loop={"bytes": 65}), "bytes 65 exceeds receive_b"),
        (ChannelSpec(config=ECHO, role="duplex", options={"window": 2}), "window 2 exceeds depth"),
        (ChannelSpec(config=ECHO, role="window"), "bytes 64 exceeds remote_bytes 0"),
        (ChannelSpec(config=ECHO | {"receive_bytes": 4}, role="transfer"), "acknowledgement"),
        (
            ChannelSpec(config=ECHO, role="transfer", loop={"op": "write-imm"}),
            "remote_slots times bytes 64 exceeds remote_bytes 0",
        ),
    ],
)
def test_messages_that_do_not_fit_the_server_s_slots_are_refused(spec, problem):
    (text,) = problems(spec)
    assert problem in text


def test_channels_of_one_thread_do_the_same():
    sink = ChannelSpec(config=ECHO, role="sink")
    other = ChannelSpec(config=ECHO, role="sink", loop={"bytes": 32})
    assert problems(sink, sink) == []
    assert "differs from channel 0" in problems(sink, other)[0]
    assert "one channel per thread" in problems(echo(), echo())[0]
    assert problems(echo(), ChannelSpec(config=ECHO, role="echo", thread=1)) == []


class TestLimits:
    def test_size_over_the_limit_is_said_with_both_values(self):
        found = problems(echo(send_bytes=2048, receive_bytes=2048), limits=Limits(size_bytes=1024))
        assert "message bytes 2048 exceeds the server's limit 1024" in found[0]
        assert "--max-size" in found[0]
        assert len(found) == 1

    def test_duration_depth_endpoints_threads_and_memory_are_bounded(self):
        spec = ChannelSpec(
            config=ECHO | {"depth": 300, "send_bytes": 4096, "receive_bytes": 4096},
            role="sink",
            loop={"duration_ns": 3_000_000_000},
        )
        other = ChannelSpec(config=ECHO, role="sink", thread=1)
        limits = Limits(duration_s=2, depth=256, endpoints=1, threads=1, memory_bytes=1 << 20)
        options = ["--max-depth", "--max-duration", "--max-endpoints", "--max-threads"]
        found = problems(spec, other, limits=limits)
        for option in [*options, "--max-memory"]:
            assert sum(option in text for text in found) == 1, option

    def test_a_bounded_rate_has_to_be_declared_within_the_bound(self):
        limits = Limits(rate_bps=1e6)

        def at(rate: float) -> list[str]:
            options = {"rate": rate}
            sink = ChannelSpec(config=ECHO, role="sink", options=options)
            return problems(sink, limits=limits)

        assert "no rate is given" in at(0)[0]
        assert at(1e6 / (64 * 8)) == []
        assert "--max-rate" in at(1e6 / (64 * 8) + 1)[0]
        assert problems(echo(), limits=limits) == []

    def test_limits_survive_the_wire(self):
        limits = Limits(size_bytes=5, rate_bps=1e9, sessions=None)
        assert Limits.from_wire(json.loads(json.dumps(limits.to_wire()))) == limits

    @pytest.mark.parametrize("values", [{"speed": 1}, {"depth": "8"}, {"depth": [1]}])
    def test_limits_that_are_none_are_refused(self, values):
        with pytest.raises(ProtocolError):
            Limits.from_wire(values)


def test_a_client_s_own_mistake_is_told_by_name():
    with pytest.raises(InputError, match="endpoint: unknown field 'dept'"):
        endpoint_config({"transport": "tcp", "dept": 1}, server=False)
