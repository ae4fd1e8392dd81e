"""Frames and messages: what is not exactly one of ours is refused."""

import json
import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import InputError
from weft.measure.peer.negotiation import FRAME_BYTES, REQUESTS, Bye, Finish, Open
from weft.wire import Beat, Decoder, Failure, FrameReader, ProtocolError, Seal, encode
from weft.wire.protocol import Hello, Welcome, decode

KEY = b"k" * 32
GREETINGS = Decoder(Hello | Welcome | Failure)
ANY = Decoder(Beat | Open | Finish | Failure)
MESSAGES = [
    Beat(),
    Open([{"config": {"depth": 1, "rate": 0.5}, "role": "echo"}]),
    Finish(None),
    Failure("a", "µ 漢", ""),
]


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@given(st.lists(st.sampled_from(MESSAGES)), st.lists(st.integers(1, 40)), st.booleans())
def test_messages_come_out_as_they_went_in_however_the_bytes_are_cut(messages, cuts, sealed):
    sender, receiver = (Seal(KEY), Seal(KEY)) if sealed else (None, None)
    data = b"".join(encode(message, sender) for message in messages)
    reader = FrameReader(ANY, FRAME_BYTES, receiver)
    received = []
    for length in [*cuts, len(data)]:
        received += reader.feed(data[:length])
        data = data[length:]
    assert received == messages
    assert reader.pending == 0


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b'{"type":"open","channels":[{"a":"\xff"}]}', "can't decode byte 0xff"),
        (b"", "truncated"),
        (b"{", "truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"type":1}', "Expected `str`"),
        (b'{"type":"launch"}', "Invalid value 'launch'"),
        (b'{"type":"beat","now":1}', "unknown field `now`"),
        (b'{"type":"open"}', "missing required field `channels`"),
        (b'{"type":"open","channels":{}}', "Expected `array`, got `object`"),
        (b'{"type":"finish","sent":[true]}', "Expected `int`, got `bool`"),
        (b'{"type":"finish","sent":[-1]}', "Expected `int` >= 0"),
        (b'{"type":"beat","type":"beat"}', "not as weft writes it"),
        (b'{"type":"finish","sent":[1],"sent":[1]}', "a key twice"),
        (b'{"type":"open","channels":[{"a":1,"a":2}]}', "a key twice"),
        (b'{"type": "beat"}', "not as weft writes it"),
        (b'{"type":"open","channels":[{"a":{"b":NaN}}]}', "invalid character"),
        (b'{"type":"open","channels":[{"a":{"b":-Infinity}}]}', "invalid"),
        (b'{"type":"open","channels":[{"a":{"b":1e999}}]}', "out of range"),
        (b'{"type":"finish","sent":[18446744073709551616]}', "Expected `int`"),
        (b'{"type":"finish","sent":[' + b"9" * 5000 + b"]}", "out of range"),
        (b'{"type":"open","channels":[{"a":{"b":[]}}]}', "got `array`"),
        (b'{"type":"open","channels":' + b"[" * 200_000, "got `array`"),
        (b'{"type":"open","channels":[{"a":"\\ud800"}]}', "malformed|truncated|surrogate"),
        (b'{"type":"beat"} {}', "trailing characters"),
    ],
)
def test_what_no_weft_sends_is_refused_by_name(payload, problem):
    with pytest.raises(ProtocolError, match=problem):
        decode(payload, REQUESTS)


def test_nesting_without_a_bound_is_refused():
    class Report(msgspec.Struct, tag_field="type", tag="report"):
        value: object

    with pytest.raises(ProtocolError, match="recursion"):
        decode(b'{"type":"report","value":' + b"[" * 200_000, Decoder(Report))


def test_a_long_frame_is_refused_before_it_is_kept():
    reader = FrameReader(ANY, 100)
    with pytest.raises(ProtocolError, match="frame of 4294967295 bytes exceeds the limit 100"):
        list(reader.feed(b"\xff\xff\xff\xff"))
    assert reader.pending <= 4


def test_a_frame_of_exactly_the_limit_is_read():
    data = encode(Failure("", "x" * 60, ""))
    limit = len(data) - 4
    assert len(list(FrameReader(ANY, limit).feed(data))) == 1
    with pytest.raises(ProtocolError, match=f"exceeds the limit {limit - 1}"):
        list(FrameReader(ANY, limit - 1).feed(data))


def test_what_an_unknown_message_is_called_is_shown_short_and_printable():
    payload = json.dumps({"type": "\x1b[2J" + "x" * 1000}).encode()
    with pytest.raises(ProtocolError) as error:
        decode(payload, REQUESTS)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 250


@pytest.mark.parametrize("later", ["hello", "welcome", "error"])
def test_what_every_version_reads_may_have_more_fields(later):
    fields = {"protocol": 9, "weft": "9", "nonce": "", "token": True}
    fields |= {"where": "", "problem": "", "remedy": "", "new": []}
    assert decode(json.dumps({"type": later, **fields}).encode(), GREETINGS).kind == later


class TestSeals:
    def test_a_changed_bit_is_noticed(self):
        data = bytearray(encode(Beat(), Seal(KEY)))
        for at in range(4, len(data)):
            data[at] ^= 1
            with pytest.raises(ProtocolError, match="wrong seal"):
                list(FrameReader(ANY, 1000, Seal(KEY)).feed(bytes(data)))
            data[at] ^= 1

    def test_a_repeated_frame_is_noticed(self):
        data = encode(Beat(), Seal(KEY))
        reader = FrameReader(ANY, 1000, Seal(KEY))
        assert list(reader.feed(data)) == [Beat()]
        with pytest.raises(ProtocolError, match="wrong seal"):
            list(reader.feed(data))

    def test_a_frame_left_out_is_noticed(self):
        seal = Seal(KEY)
        encode(Beat(), seal)
        with pytest.raises(ProtocolError, match="wrong seal"):
            list(FrameReader(REQUESTS, 1000, Seal(KEY)).feed(encode(Bye(), seal)))

    def test_a_frame_shorter_than_a_seal_is_refused(self):
        with pytest.raises(ProtocolError, match="wrong seal"):
            list(FrameReader(ANY, 1000, Seal(KEY)).feed(framed(b"abc")))


def test_a_peer_s_words_cannot_move_the_cursor():
    failure = Failure("a\x1b[2J", "b\n\rweft: all is well", "c" * 9999)
    assert str(failure.to_error()).isprintable()
    assert len(str(failure.to_error())) < 5000


def test_errors_survive_the_wire():
    sent = InputError("mlx5_0 port 1", "depth 65536 exceeds 32768", "lower --depth")
    (message,) = FrameReader(ANY, 1000).feed(encode(Failure.from_error(sent)))
    assert str(message.to_error()) == str(sent)
