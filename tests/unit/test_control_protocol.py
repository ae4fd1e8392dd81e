"""Frames and messages of the control protocol: what is not exactly one is refused."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.measure.peer.protocol import (
    FRAME_BYTES,
    FrameReader,
    ProtocolError,
    Seal,
    decode,
    encode,
    error_message,
    error_of,
)

KEY = b"k" * 32
MESSAGES = [
    {"type": "beat"},
    {"type": "open", "channels": [{"config": {"depth": 1, "rate": 0.5}, "role": "echo"}]},
    {"type": "finish", "sent": None},
    {"type": "error", "where": "a", "problem": "µ 漢", "remedy": ""},
]


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@given(st.lists(st.sampled_from(MESSAGES)), st.lists(st.integers(1, 40)), st.booleans())
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(messages, cuts, sealed):
    sender, receiver = (Seal(KEY), Seal(KEY)) if sealed else (None, None)
    data = b"".join(encode(message, sender) for message in messages)
    reader = FrameReader(FRAME_BYTES, receiver)
    found = []
    for length in [*cuts, len(data)]:
        found += reader.feed(data[:length])
        data = data[length:]
    assert found == messages
    assert reader.pending == 0


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not an object with a type"),
        (b'{"type":1}', "not an object with a type"),
        (b'{"type":"launch"}', "unknown message 'launch'"),
        (b'{"type":"beat","now":1}', "unknown field 'now'"),
        (b'{"type":"open"}', "no channels"),
        (b'{"type":"open","channels":{}}', "channels is not list"),
        (b'{"type":"hello","protocol":true,"weft":"","nonce":""}', "protocol is not int"),
        (b'{"type":"beat","type":"beat"}', "a key twice"),
        (b'{"type":"open","channels":[{"a":1,"a":2}]}', "a key twice"),
        (b'{"type":"open","channels":[NaN]}', "NaN is not finite"),
        (b'{"type":"open","channels":[-Infinity]}', "-Infinity is not finite"),
        (b'{"type":"open","channels":[1e999]}', "'1e999' is not finite"),
        (b'{"type":"open","channels":[18446744073709551616]}', "does not fit 64 bits"),
        (b'{"type":"open","channels":[' + b"9" * 5000 + b"]}", "does not fit 64 bits"),
        (b'{"type":"open","channels":' + b"[" * 9 + b"]" * 9 + b"}", "nested deeper"),
        (b'{"type":"open","channels":' + b"[" * 200_000, "nested deeper"),
        (b'{"type":"open","channels":["\\ud800"]}', "lone surrogate"),
        (b'{"type":"beat"} {}', "not JSON"),
    ],
)
def test_what_no_weft_sends_is_refused_by_name(payload, problem):
    with pytest.raises(ProtocolError, match=problem.replace("[", r"\[")):
        decode(payload)


def test_a_long_frame_is_refused_before_it_is_kept():
    reader = FrameReader(100)
    with pytest.raises(ProtocolError, match="frame of 4294967295 bytes exceeds the limit 100"):
        list(reader.feed(b"\xff\xff\xff\xff"))
    assert reader.pending <= 4


def test_what_an_unknown_message_is_called_is_shown_short_and_printable():
    payload = json.dumps({"type": "\x1b[2J" + "x" * 1000}).encode()
    with pytest.raises(ProtocolError) as error:
        decode(payload)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 100


@pytest.mark.parametrize("later", ["hello", "welcome", "error"])
def test_what_every_version_reads_may_have_more_fields(later):
    fields = {"protocol": 9, "weft": "9", "nonce": "", "token": True}
    fields |= {"where": "", "problem": "", "remedy": "", "new": []}
    assert decode(json.dumps({"type": later, **fields}).encode())["new"] == []


class TestSeals:
    def test_a_changed_bit_is_noticed(self):
        data = bytearray(encode({"type": "beat"}, Seal(KEY)))
        for at in range(4, len(data)):
            data[at] ^= 1
            with pytest.raises(ProtocolError, match="wrong seal"):
                list(FrameReader(1000, Seal(KEY)).feed(bytes(data)))
            data[at] ^= 1

    def test_a_repeated_frame_is_noticed(self):
        data = encode({"type": "beat"}, Seal(KEY))
        reader = FrameReader(1000, Seal(KEY))
        assert list(reader.feed(data)) == [{"type": "beat"}]
        with pytest.raises(ProtocolError, match="wrong seal"):
            list(reader.feed(data))

    def test_a_frame_left_out_is_noticed(self):
        seal = Seal(KEY)
        encode({"type": "beat"}, seal)
        with pytest.raises(ProtocolError, match="wrong seal"):
            list(FrameReader(1000, Seal(KEY)).feed(encode({"type": "bye"}, seal)))

    def test_a_frame_shorter_than_a_seal_is_refused(self):
        with pytest.raises(ProtocolError, match="wrong seal"):
            list(FrameReader(1000, Seal(KEY)).feed(framed(b"abc")))


def test_a_peer_s_words_cannot_move_the_cursor():
    told = error_of(
        {"where": "a\x1b[2J", "problem": "b\n\rweft: all is well", "remedy": "c" * 9999}
    )
    assert str(told).isprintable()
    assert len(str(told)) < 5000


def test_errors_survive_the_wire():
    sent = InputError("mlx5_0 port 1", "depth 65536 exceeds 32768", "lower --depth")
    (message,) = FrameReader(1000).feed(encode(error_message(sent)))
    assert str(error_of(message)) == str(sent)
