"""Inputs for the control port from one seed: valid conversations, bent in many ways."""

from __future__ import annotations

import random
import struct
from typing import Any

import msgspec

from weft import __version__
from weft.measure.peer.channel_spec import encode_channel
from weft.measure.peer.negotiation import FRAME_BYTES
from weft.wire import PROTOCOL

ODD = [
    None,
    True,
    False,
    0,
    -1,
    1,
    255,
    256,
    65535,
    65536,
    2**31,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**63),
    0.0,
    -0.5,
    1e300,
    5e-324,
    "",
    "x",
    "tcp",
    "echo",
    "sink",
    "ofi",
    "verbs",
    "delay",
    "../../etc/passwd",
    "\x00",
    "\x1b[2J",
    "é漢😀",
    "a" * 300,
    [],
    {},
    [[]],
    [{}],
    {"": None},
]
LENGTHS = [0, 1, 4, 15, 16, 17, 2047, 2048, 2049, FRAME_BYTES, FRAME_BYTES + 1, 2**31, 2**32 - 1]
DEEP = [b"[" * n + b"]" * n for n in (7, 8, 9, 500, 1500)] + [b'{"a":' * 900 + b"1" + b"}" * 900]


def hello(rng: random.Random) -> dict[str, Any]:
    nonce = digits(rng)
    return {"type": "hello", "protocol": PROTOCOL, "weft": __version__, "nonce": nonce}


def digits(rng: random.Random) -> str:
    return f"{rng.getrandbits(256):064x}"


def frame(message: object) -> bytes:
    """A frame as weft writes it, of any value."""
    payload = msgspec.json.encode(message)
    return struct.pack(">I", len(payload)) + payload


def greeting(rng: random.Random) -> bytes:
    """What an honest client sends before it is known; the proof is a guess."""
    return frame(hello(rng)) + frame({"type": "prove", "proof": digits(rng)})


def session_messages(rng: random.Random) -> list[dict[str, Any]]:
    """What a client sends afterwards, in an order that mostly makes sense."""
    from serve_process import echo_spec

    channel = encode_channel(echo_spec(rng.choice(["tcp", "udp"]), rng.choice([8, 64, 1000])))
    story: list[dict[str, Any]] = [
        {"type": rng.choice(["describe", "survey"])},
        {"type": "open", "channels": [channel] * rng.choice([1, 1, 2])},
        {"type": "connect", "addresses": ["MTI3LjAuMC4xOjk="]},
        {"type": "start"},
        {"type": "finish", "sent": rng.choice([None, [3], [1, 2]])},
        {"type": "close"},
        {"type": "beat"},
    ]
    first = rng.randrange(len(story))
    return story[first : first + rng.randint(1, 4)] if rng.random() < 0.5 else story[1:2]


def bend_value(rng: random.Random, value: Any) -> Any:
    """The same JSON with one place changed to something odd."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        bent = dict(value)
        choice = rng.random()
        if choice < 0.1:
            del bent[key]
        elif choice < 0.2:
            bent[rng.choice(["", "extra", "depth", "x" * 200])] = rng.choice(ODD)
        else:
            bent[key] = bend_value(rng, value[key])
        return bent
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        bent_item = bend_value(rng, value[at])
        return [*value[:at], *([bent_item] * rng.choice([0, 1, 1, 1, 2])), *value[at + 1 :]]
    return rng.choice(ODD)


def bend_bytes(rng: random.Random, data: bytes) -> bytes:
    """The same bytes with one place changed."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.randint(1, 40))
    match rng.randrange(9):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + rng.randbytes(rng.randint(1, 40)) + data[at:]
        case 3:
            return data[:at] + data[at:end] * rng.randint(2, 5) + data[end:]
        case 4:
            return data[:at] + bytes(b ^ (1 << rng.randrange(8)) for b in data[at:end]) + data[end:]
        case 5:
            return struct.pack(">I", rng.choice(LENGTHS)) + data[4:]
        case 6:
            return rng.randbytes(rng.randint(0, 300))
        case 7:
            payload = b'{"type":"open","channels":' + rng.choice(DEEP) + b"}"
            return struct.pack(">I", len(payload)) + payload
        case _:
            return data[end:] + data[:at]


def bent_frame(rng: random.Random, message: dict[str, Any]) -> bytes:
    """One frame of a bent message, sometimes not even JSON any more."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        message = bend_value(rng, message)
    data = frame(message)
    return bend_bytes(rng, data) if rng.random() < 0.2 else data
