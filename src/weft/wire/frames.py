"""Frames and messages: strict, bounded, sealed. Nothing here reads a socket or a clock.

A frame is a length (4 bytes, big endian), a seal (16 bytes, once both sides have proved their
token, see `handshake`) and a JSON object with a `type`. A payload is accepted only if it is exactly
what `encode` writes: unknown types and fields, wrong types, duplicate keys, numbers that are not
finite and any other spelling are a ProtocolError, and so is a long frame. A stranger's protocol is
named where its first bytes tell it. Entry points: `Message`, `encode`, `FrameReader`. Units: bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import struct
from collections.abc import Iterator
from typing import Generic, Self, TypeVar

import msgspec
from msgspec.json import Decoder

from weft.errors import InputError, WeftError

__all__ = ["Decoder"]

FRAME_BYTES = 64 << 20  # results of a plan's step, with their histograms
SEAL_BYTES = 16
_MAX_TEXT = 4000
_MAX_PROBLEM = 200


class ProtocolError(WeftError):
    """Bytes or messages that no weft of this version sends."""


class ForeignProtocol(ProtocolError):
    """The other side speaks a well-known protocol, not weft."""


# What servers and clients of these protocols send first.
_OPENINGS = (
    ("HTTP", rb"HTTP/|(GET|HEAD|POST|PUT|DELETE|OPTIONS|CONNECT|PATCH|TRACE|PRI) |<!DOCTYPE|<html"),
    ("HTTP/2", rb".{3}\x04.\x00{4}"),  # a frame of settings, as gRPC servers send
    ("SSH", rb"SSH-"),
    ("TLS", rb"[\x14-\x17]\x03[\x00-\x04]"),
    ("SMTP", rb"220[ -].*SMTP|(EHLO|HELO) "),
    ("FTP", rb"220[ -]"),
    ("POP3", rb"\+OK"),
    ("IMAP", rb"\* OK"),
    ("Redis", rb"-ERR |-NOAUTH "),
    ("MySQL", rb".{3}\x00\x0a\d"),
)


def identify_protocol(data: bytes | bytearray) -> str:
    """The well-known protocol that begins with these bytes; empty if none does.

    A frame of a greeting is never taken for one: its fifth byte is a brace.
    """
    return next((n for n, p in _OPENINGS if re.match(p, data, re.IGNORECASE | re.DOTALL)), "")


class Message(msgspec.Struct, tag_field="type", tag=str.lower, forbid_unknown_fields=True):
    """A message; `kind` is its type on the wire, the lower-case name of its class."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class OpenMessage(Message, tag=str.lower, forbid_unknown_fields=False):
    """A message that every version reads: later ones may add fields."""


class Beat(Message):
    """A sign of life."""


class Failure(OpenMessage, tag="error"):
    """Why the sender ends the conversation, or cannot do what was asked."""

    where: str
    problem: str
    remedy: str

    @classmethod
    def from_error(cls, error: InputError) -> Self:
        return cls(error.where, error.problem, error.remedy)

    def to_error(self) -> InputError:
        """The same as an exception, fit for a terminal whoever wrote it."""
        texts = (self.where, self.problem, self.remedy)
        return InputError(*(printable(text)[:_MAX_TEXT] for text in texts))


def printable(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


class Seal:
    """Tags of one direction's frames: each depends on the key and the frame's number."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def tag(self, payload: bytes) -> bytes:
        number = struct.pack(">Q", self._number)
        self._number += 1
        return hmac.digest(self._key, number + payload, hashlib.sha256)[:SEAL_BYTES]


def encode(message: Message, seal: Seal | None = None) -> bytes:
    """The message as a frame."""
    payload = msgspec.json.encode(message)
    tag = seal.tag(payload) if seal else b""
    return struct.pack(">I", len(tag) + len(payload)) + tag + payload


M = TypeVar("M", bound=Message)


def decode(payload: bytes, decoder: Decoder[M]) -> M:
    """The one message in these bytes."""
    try:
        message = decoder.decode(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"unknown message: {printable(str(error))[:_MAX_PROBLEM]}") from error
    if not isinstance(message, OpenMessage) and msgspec.json.encode(message) != payload:
        raise ProtocolError(f"{message.kind}: not as weft writes it, or a key twice")
    return message


class FrameReader(Generic[M]):
    """Turns bytes, in whatever pieces they come, into messages."""

    def __init__(self, decoder: Decoder[M], limit_bytes: int, seal: Seal | None = None) -> None:
        self._decoder = decoder
        self._limit = limit_bytes
        self._seal = seal
        self._buffer = bytearray()

    @property
    def pending(self) -> int:
        """Bytes of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages that are complete now; the caller takes each before the next is read."""
        self._buffer += data
        while (payload := self._next_payload()) is not None:
            yield decode(self._unseal(payload), self._decoder)

    def _next_payload(self) -> bytes | None:
        if self._seal is None and (protocol := identify_protocol(self._buffer)):
            raise ForeignProtocol(f"speaks {protocol}, not weft")
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

    def _unseal(self, payload: bytes) -> bytes:
        if self._seal is None:
            return payload
        tag, payload = payload[:SEAL_BYTES], payload[SEAL_BYTES:]
        if not hmac.compare_digest(tag, self._seal.tag(payload)):
            raise ProtocolError("frame with a wrong seal: changed, repeated or out of order")
        return payload
