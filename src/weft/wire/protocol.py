"""What is sent between two programs: frames and messages, and the handshake that proves a token.

Nothing here reads a socket or a clock: bytes in, bytes out.

**Frames.** A frame is a length (4 bytes, big endian), a seal (16 bytes, once both sides have proved
their token) and a JSON object with a `type`. A payload is accepted only if it is exactly what
`encode` writes: unknown types and fields, wrong types, duplicate keys, numbers that are not finite
and any other spelling are a ProtocolError, and so is a long frame. A stranger's protocol is named
where its first bytes tell it.

**The handshake** compares versions, and a shared token is proved both ways and never sent. Client
and server each send a nonce. Each proves the token by an HMAC-SHA256 over both nonces and its own
side's name, so a recorded proof is useless and cannot be sent back. Later frames carry seals under
keys derived from the same: nobody can take over or change a conversation. Without a token the same
happens with an empty one: it then guards against mix-ups, not enemies.
Entry points: `Message`, `encode`, `FrameReader`; `ServerHandshake`, `ClientHandshake`,
`read_token`. Units: bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec
from msgspec.json import Decoder

from weft import __version__
from weft.errors import InputError, WeftError

# ---- Frames -----------------------------------------------------------------------------------

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


# ---- The handshake ----------------------------------------------------------------------------

PROTOCOL = 2
GREETING_BYTES = 2048
TOKEN_VARIABLE = "WEFT_TOKEN"
MIN_TOKEN = 16
MAKE_TOKEN = "make one with `(umask 077; head -c 32 /dev/urandom | base64 > FILE)`"
_NONCE_DIGITS = 64


class Hello(OpenMessage):
    protocol: int
    weft: str
    nonce: str


class Welcome(OpenMessage):
    protocol: int
    weft: str
    nonce: str
    token: bool


class Prove(Message):
    proof: str


class Ready(Message):
    proof: str
    limits: dict[str, int | float | None]


_FROM_CLIENT: Decoder[Hello | Prove] = Decoder(Hello | Prove)
_FROM_SERVER: Decoder[Welcome | Ready | Failure] = Decoder(Welcome | Ready | Failure)


def read_token(file: str | None) -> bytes | None:
    """The token of a file that only its owner can read, else of WEFT_TOKEN, else none."""
    if file is not None:
        return _check_token(_read_private(file), file)
    text = os.environ.get(TOKEN_VARIABLE)
    return _check_token(text, TOKEN_VARIABLE) if text is not None else None


def _read_private(file: str) -> str:
    try:
        mode = os.stat(file).st_mode
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(file, f"{error.strerror}", MAKE_TOKEN) from error
    except UnicodeDecodeError as error:
        raise InputError(file, "is not text", MAKE_TOKEN) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InputError(
            file, f"others can use it (mode {stat.S_IMODE(mode):04o})", f"chmod 600 {file}"
        )
    return text


def _check_token(text: str, where: str) -> bytes:
    token = text.strip().encode()
    if len(token) < MIN_TOKEN:
        raise InputError(
            where, f"token of {len(token)} characters, at least {MIN_TOKEN} needed", MAKE_TOKEN
        )
    return token


@dataclass(frozen=True, slots=True)
class Keys:
    """What both sides derive from the token and the nonces."""

    client_proof: str
    server_proof: str
    client_seal: bytes
    server_seal: bytes

    def seals(self, *, server: bool) -> tuple[Seal, Seal]:
        """Seals of what this side sends and of what it receives."""
        client_seal, server_seal = Seal(self.client_seal), Seal(self.server_seal)
        return (server_seal, client_seal) if server else (client_seal, server_seal)


def derive_keys(token: bytes, client_nonce: str, server_nonce: str) -> Keys:
    def key(label: str) -> bytes:
        text = f"weft {PROTOCOL} {label} {client_nonce} {server_nonce}"
        return hmac.digest(token, text.encode(), hashlib.sha256)

    return Keys(
        key("client proof").hex(), key("server proof").hex(), key("client seal"), key("server seal")
    )


def _check_nonce(message: Hello | Welcome) -> str:
    nonce = message.nonce
    if len(nonce) != _NONCE_DIGITS or not all(c in "0123456789abcdef" for c in nonce):
        raise ProtocolError(f"{message.kind}: nonce is not {_NONCE_DIGITS} hexadecimal digits")
    return nonce


def _new_nonce() -> str:
    return secrets.token_hex(_NONCE_DIGITS // 2)


class ServerHandshake:
    """The server's side. `keys` is set once the client has proved the token.

    `feed` raises InputError for what the client can mend (versions, token) and ProtocolError
    for the rest; `encode_refusal` is the frame that tells the client. `limits` go to the client.
    """

    def __init__(
        self,
        token: bytes | None,
        limits: Mapping[str, int | float | None] | None = None,
        new_nonce: Callable[[], str] = _new_nonce,
    ) -> None:
        self._token = token
        self._limits = dict(limits or {})
        self._nonce = new_nonce()
        self._reader = FrameReader(_FROM_CLIENT, GREETING_BYTES)
        self._expected: Keys | None = None
        self.keys: Keys | None = None

    def feed(self, data: bytes) -> bytes:
        """What to answer."""
        answer = b""
        for message in self._reader.feed(data):
            if self.keys:
                raise ProtocolError(f"{message.kind} before the answer to prove")
            answer += encode(self._answer(message))
        if self.keys and self._reader.pending:
            raise ProtocolError("bytes before the answer to prove")
        return answer

    def _answer(self, message: Hello | Prove) -> Welcome | Ready:
        if isinstance(message, Hello) and self._expected is None:
            return self._welcome(message)
        if isinstance(message, Prove) and self._expected is not None:
            return self._admit(message, self._expected)
        raise ProtocolError(f"{message.kind} out of order")

    def _welcome(self, hello: Hello) -> Welcome:
        check_versions(hello, "client", "server")
        self._expected = derive_keys(self._token or b"", _check_nonce(hello), self._nonce)
        return Welcome(PROTOCOL, __version__, self._nonce, self._token is not None)

    def _admit(self, prove: Prove, expected: Keys) -> Ready:
        if not hmac.compare_digest(prove.proof.encode(), expected.client_proof.encode()):
            raise InputError(
                "token", "not the one of this server", "ask its owner; see --token-file"
            )
        self.keys = expected
        return Ready(expected.server_proof, self._limits)


def encode_refusal(error: InputError | ProtocolError) -> bytes:
    """The last frame that a client gets before its connection is closed."""
    if isinstance(error, ProtocolError):
        error = InputError("control connection", str(error), "use weft of the server's version")
    return encode(Failure.from_error(error))


class ClientHandshake:
    """The client's side: `hello` to send first, then `feed` until `limits` is set."""

    def __init__(self, token: bytes | None, where: str, *, proof_needed: bool = True) -> None:
        self._token = token
        self._where = where
        self._proof_needed = proof_needed and token is not None
        self._nonce = _new_nonce()
        self._reader = FrameReader(_FROM_SERVER, GREETING_BYTES)
        self.keys: Keys | None = None
        self.limits: dict[str, int | float | None] | None = None
        self.hello = encode(Hello(PROTOCOL, __version__, self._nonce))

    def feed(self, data: bytes) -> bytes:
        """What to answer."""
        return b"".join([self._answer(message) for message in self._reader.feed(data)])

    def _answer(self, message: Welcome | Ready | Failure) -> bytes:
        if isinstance(message, Failure):
            error = message.to_error()
            raise InputError(f"{self._where}: {error.where}", error.problem, error.remedy)
        if isinstance(message, Welcome) and self.keys is None:
            return self._prove(message)
        if isinstance(message, Ready) and self.keys is not None and self.limits is None:
            self._verify(message, self.keys)
            return b""
        raise ProtocolError(f"{message.kind} out of order")

    def _prove(self, welcome: Welcome) -> bytes:
        check_versions(welcome, "server", "client")
        if welcome.token and self._token is None:
            raise InputError(
                self._where,
                "needs a token",
                f"give --token-file, or set {TOKEN_VARIABLE}; its owner has it",
            )
        if not welcome.token and self._proof_needed:
            # Without a token it proves nothing: it may be anyone's.
            raise InputError(
                self._where, "has no token, so it may not be the server meant", "give no token"
            )
        token = (self._token or b"") if welcome.token else b""
        self.keys = derive_keys(token, self._nonce, _check_nonce(welcome))
        return encode(Prove(self.keys.client_proof))

    def _verify(self, ready: Ready, keys: Keys) -> None:
        if not hmac.compare_digest(ready.proof.encode(), keys.server_proof.encode()):
            raise InputError(
                self._where, "the server does not know the token", "check host and port"
            )
        self.limits = ready.limits


def check_versions(greeting: Hello | Welcome, sender: str, receiver: str) -> None:
    if greeting.protocol != PROTOCOL:
        older = sender if greeting.protocol < PROTOCOL else receiver
        raise InputError(
            "protocol",
            f"the {sender} speaks {greeting.protocol} (weft {printable(greeting.weft)[:40]}), "
            f"the {receiver} {PROTOCOL} (weft {__version__})",
            f"install the same weft on both; the {older}'s is the older one",
        )
