"""The control protocol between a client and `weft serve`: frames, strict JSON, message types.

A frame is a length (4 bytes, big endian), a seal (16 bytes, once both sides have proved their
token, see `auth`) and a JSON object with a `type`. Whatever is not exactly one of MESSAGES is a
ProtocolError: unknown types and fields, wrong types, duplicate keys, numbers that are not finite or
do not fit 64 bits, deep nesting, long frames. Nothing here reads a socket or a clock.
Entry points: `encode`, `FrameReader`. Units: bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import struct
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, NoReturn

from weft.errors import InputError, WeftError

PROTOCOL = 1
DEFAULT_PORT = 9338
GREETING_BYTES = 2048  # before authentication
FRAME_BYTES = 4 << 20  # after it: thousands of channels with their addresses
SEAL_BYTES = 16
DEEPEST = 8
_LONGEST_WORDS = 4000

Message = dict[str, Any]

# Fields of each message and their exact types. hello, welcome and error are read by every version
# to come: they may have further fields.
MESSAGES: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "hello": {"protocol": (int,), "weft": (str,), "nonce": (str,)},
    "welcome": {"protocol": (int,), "weft": (str,), "nonce": (str,), "token": (bool,)},
    "prove": {"proof": (str,)},
    "ready": {"proof": (str,), "limits": (dict,)},
    "error": {"where": (str,), "problem": (str,), "remedy": (str,)},
    "beat": {},
    "describe": {},
    "description": {"facts": (dict,)},
    "survey": {},
    "surveyed": {"availability": (list,)},
    "open": {"channels": (list,)},
    "opened": {"addresses": (list,)},
    "connect": {"addresses": (list,)},
    "connected": {"descriptions": (list,)},
    "refused": {"problems": (list,)},
    "start": {},
    "started": {},
    "finish": {"sent": (list, NoneType)},
    "finished": {"counts": (list,)},
    "stopped": {"where": (str,), "problem": (str,), "remedy": (str,)},
    "close": {},
    "closed": {},
    "bye": {},
}
_OPEN_ENDED = frozenset({"hello", "welcome", "error"})


class ProtocolError(WeftError):
    """Bytes or messages that no weft of this version sends."""


class Seal:
    """Tags of one direction's frames: each depends on the key and the frame's number."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def tag(self, payload: bytes) -> bytes:
        number = struct.pack(">Q", self._number)
        self._number += 1
        return hmac.digest(self._key, number + payload, hashlib.sha256)[:SEAL_BYTES]


def encode(message: Mapping[str, Any], seal: Seal | None = None) -> bytes:
    payload = json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    tag = seal.tag(payload) if seal else b""
    return struct.pack(">I", len(tag) + len(payload)) + tag + payload


def error_message(error: InputError, kind: str = "error") -> Message:
    return {"type": kind, "where": error.where, "problem": error.problem, "remedy": error.remedy}


def error_of(message: Mapping[str, Any]) -> InputError:
    """The InputError that an `error` or `stopped` message tells of, fit for a terminal."""
    where, problem, remedy = (
        printable(str(message[name]))[:_LONGEST_WORDS] for name in ("where", "problem", "remedy")
    )
    return InputError(where, problem, remedy)


def printable(text: str) -> str:
    """One line without control characters, whoever wrote it."""
    return "".join(c if c.isprintable() else "?" for c in text)


class FrameReader:
    """Turns bytes, in whatever pieces they come, into messages."""

    def __init__(self, limit_bytes: int, seal: Seal | None = None) -> None:
        self._limit = limit_bytes
        self._seal = seal
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of a frame that has not come whole."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete now; the caller takes each before the next is read."""
        self._buffer += data
        while (payload := self._next()) is not None:
            yield decode(self._opened(payload))

    def _next(self) -> bytes | None:
        if len(self._buffer) < 4:
            return None
        (length,) = struct.unpack_from(">I", self._buffer)
        if length > self._limit:
            raise ProtocolError(f"frame of {length} bytes exceeds the limit {self._limit}")
        if len(self._buffer) < 4 + length:
            return None
        payload = bytes(self._buffer[4 : 4 + length])
        del self._buffer[: 4 + length]
        return payload

    def _opened(self, payload: bytes) -> bytes:
        if self._seal is None:
            return payload
        tag, payload = payload[:SEAL_BYTES], payload[SEAL_BYTES:]
        if not hmac.compare_digest(tag, self._seal.tag(payload)):
            raise ProtocolError("frame with a wrong seal: changed, repeated or out of order")
        return payload


def decode(payload: bytes) -> Message:
    """The one message in these bytes."""
    try:
        value = json.loads(
            payload.decode(),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise ProtocolError("frame is not UTF-8") from error
    except json.JSONDecodeError as error:
        raise ProtocolError(f"frame is not JSON: {error.msg} at {error.pos}") from error
    except RecursionError as error:
        raise ProtocolError(f"frame is nested deeper than {DEEPEST}") from error
    _check_value(value, DEEPEST)
    return _checked(value)


def _checked(value: object) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise ProtocolError("frame is not an object with a type")
    kind = value["type"]
    fields = MESSAGES.get(kind)
    if fields is None:
        raise ProtocolError(f"unknown message {_short(kind)}")
    unknown = value.keys() - fields.keys() - {"type"}
    if unknown and kind not in _OPEN_ENDED:
        raise ProtocolError(f"{kind}: unknown field {_short(min(unknown))}")
    for name, types in fields.items():
        if name not in value:
            raise ProtocolError(f"{kind}: no {name}")
        if type(value[name]) not in types:
            raise ProtocolError(f"{kind}: {name} is not {types[0].__name__}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> Message:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ProtocolError("an object has a key twice")
    return found


def _integer(text: str) -> int:
    value = int(text) if len(text) <= 20 else 1 << 64
    if not -(1 << 63) <= value < 1 << 64:
        raise ProtocolError(f"integer {_short(text)} does not fit 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ProtocolError(f"number {_short(text)} is not finite")
    return value


def _constant(text: str) -> NoReturn:
    raise ProtocolError(f"number {text} is not finite")


def _check_value(value: object, depth: int) -> None:
    """Nesting, and text that can be written again (JSON allows lone surrogates)."""
    if depth == 0:
        raise ProtocolError(f"frame is nested deeper than {DEEPEST}")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ProtocolError("text with a lone surrogate") from error
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_value(key, depth)
            _check_value(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _check_value(item, depth - 1)


def _short(text: str) -> str:
    """For a message or a log line: printable and short, whatever was sent."""
    return ascii(text if len(text) <= 40 else text[:37] + "...")
