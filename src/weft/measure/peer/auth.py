"""Who may use a server: a shared token, proved in both directions, never sent.

Client and server each send a nonce; each proves the token by an HMAC-SHA256 over both nonces and
its own side's name, so a recorded proof is of no use and cannot be sent back. Frames after that
carry seals under keys derived from the same: nobody can take over or change a conversation.
Without a token the same happens with an empty one: it then guards against mix-ups, not enemies.
Entry points: `ServerHandshake`, `ClientHandshake`, `read_token`.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft import __version__
from weft.errors import InputError
from weft.measure.peer.protocol import (
    GREETING_BYTES,
    PROTOCOL,
    FrameReader,
    Message,
    ProtocolError,
    Seal,
    encode,
    error_message,
    error_of,
)

TOKEN_VARIABLE = "WEFT_TOKEN"
SHORTEST_TOKEN = 16
_NONCE_DIGITS = 64
MAKE_TOKEN = "make one with `(umask 077; head -c 32 /dev/urandom | base64 > FILE)`"


def read_token(file: str | None) -> bytes | None:
    """The token of a file that only its owner can read, else of WEFT_TOKEN, else none."""
    if file is not None:
        return _checked_token(_private_text(file), file)
    text = os.environ.get(TOKEN_VARIABLE)
    return _checked_token(text, TOKEN_VARIABLE) if text is not None else None


def _private_text(file: str) -> str:
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


def _checked_token(text: str, where: str) -> bytes:
    token = text.strip().encode()
    if len(token) < SHORTEST_TOKEN:
        raise InputError(
            where, f"token of {len(token)} characters, at least {SHORTEST_TOKEN} needed", MAKE_TOKEN
        )
    return token


@dataclass(frozen=True, slots=True)
class Keys:
    """What both sides know once they have said hello."""

    client_proof: str
    server_proof: str
    client_seal: bytes
    server_seal: bytes


def derive(token: bytes, client_nonce: str, server_nonce: str) -> Keys:
    def keyed(label: str) -> bytes:
        text = f"weft {PROTOCOL} {label} {client_nonce} {server_nonce}"
        return hmac.digest(token, text.encode(), hashlib.sha256)

    return Keys(
        keyed("client proof").hex(),
        keyed("server proof").hex(),
        keyed("client seal"),
        keyed("server seal"),
    )


def _nonce_of(message: Message) -> str:
    nonce: str = message["nonce"]
    if len(nonce) != _NONCE_DIGITS or not all(c in "0123456789abcdef" for c in nonce):
        raise ProtocolError(f"{message['type']}: nonce is not {_NONCE_DIGITS} hexadecimal digits")
    return nonce


def _new_nonce() -> str:
    return secrets.token_hex(_NONCE_DIGITS // 2)


class ServerHandshake:
    """The server's side: bytes in, bytes out. `keys` is set once the client has proved itself.

    `feed` raises InputError for what the client can mend (versions, token) and ProtocolError
    for the rest; `refusal` is the frame that tells the client.
    """

    def __init__(
        self,
        token: bytes | None,
        limits: Mapping[str, Any],
        new_nonce: Callable[[], str] = _new_nonce,
    ) -> None:
        self._token = token
        self._limits = limits
        self._nonce = new_nonce()
        self._reader = FrameReader(GREETING_BYTES)
        self._expected: Keys | None = None
        self.keys: Keys | None = None

    def feed(self, data: bytes) -> bytes:
        """What to answer."""
        answer = b""
        for message in self._reader.feed(data):
            if self.keys:
                raise ProtocolError(f"{message['type']} before the answer to prove")
            answer += encode(self._answer(message))
        if self.keys and self._reader.pending:
            raise ProtocolError("bytes before the answer to prove")
        return answer

    def _answer(self, message: Message) -> Message:
        if message["type"] == "hello" and self._expected is None:
            return self._welcome(message)
        if message["type"] == "prove" and self._expected is not None:
            return self._ready(message, self._expected)
        raise ProtocolError(f"{message['type']} out of order")

    def _welcome(self, hello: Message) -> Message:
        check_versions(hello, "client", "server")
        self._expected = derive(self._token or b"", _nonce_of(hello), self._nonce)
        return {
            "type": "welcome",
            "protocol": PROTOCOL,
            "weft": __version__,
            "nonce": self._nonce,
            "token": self._token is not None,
        }

    def _ready(self, prove: Message, expected: Keys) -> Message:
        if not hmac.compare_digest(prove["proof"].encode(), expected.client_proof.encode()):
            raise InputError(
                "token", "not the one of this server", "ask its owner; see --token-file"
            )
        self.keys = expected
        return {"type": "ready", "proof": expected.server_proof, "limits": dict(self._limits)}


def refusal(error: InputError | ProtocolError) -> bytes:
    """The last frame that a client gets before its connection is closed."""
    if isinstance(error, ProtocolError):
        error = InputError("control connection", str(error), "use weft of the server's version")
    return encode(error_message(error))


class ClientHandshake:
    """The client's side: `hello` to send first, then `feed` until `limits` is set."""

    def __init__(self, token: bytes | None, where: str, *, proof_needed: bool = True) -> None:
        self._token = token
        self._where = where
        self._proof_needed = proof_needed and token is not None
        self._nonce = _new_nonce()
        self._reader = FrameReader(GREETING_BYTES)
        self.keys: Keys | None = None
        self.limits: Message | None = None
        self.hello = encode(
            {"type": "hello", "protocol": PROTOCOL, "weft": __version__, "nonce": self._nonce}
        )

    def feed(self, data: bytes) -> bytes:
        answer = b""
        for message in self._reader.feed(data):
            answer += self._answer(message)
        return answer

    def _answer(self, message: Message) -> bytes:
        if message["type"] == "error":
            told = error_of(message)
            raise InputError(f"{self._where}: {told.where}", told.problem, told.remedy)
        if message["type"] == "welcome" and self.keys is None:
            return self._prove(message)
        if message["type"] == "ready" and self.keys is not None and self.limits is None:
            return self._believe(message, self.keys)
        raise ProtocolError(f"{message['type']} out of order")

    def _prove(self, welcome: Message) -> bytes:
        check_versions(welcome, "server", "client")
        if welcome["token"] and self._token is None:
            raise InputError(
                self._where,
                "needs a token",
                f"give --token-file, or set {TOKEN_VARIABLE}; its owner has it",
            )
        if not welcome["token"] and self._proof_needed:
            # Without a token it proves nothing: it may be anyone's.
            raise InputError(
                self._where, "has no token, so it may not be the server meant", "give no token"
            )
        if not welcome["token"]:
            self._token = None
        self.keys = derive(self._token or b"", self._nonce, _nonce_of(welcome))
        return encode({"type": "prove", "proof": self.keys.client_proof})

    def _believe(self, ready: Message, keys: Keys) -> bytes:
        if not hmac.compare_digest(ready["proof"].encode(), keys.server_proof.encode()):
            raise InputError(
                self._where, "the server does not know the token", "check host and port"
            )
        self.limits = ready["limits"]
        return b""


def check_versions(theirs: Message, them: str, us: str) -> None:
    if theirs["protocol"] != PROTOCOL:
        older = them if theirs["protocol"] < PROTOCOL else us
        raise InputError(
            "protocol",
            f"the {them} speaks {theirs['protocol']} (weft {ascii(theirs['weft'][:40])[1:-1]}), "
            f"the {us} {PROTOCOL} (weft {__version__})",
            f"install the same weft on both; the {older}'s is the older one",
        )


def seals(keys: Keys, *, server: bool) -> tuple[Seal, Seal]:
    """Seals of what this side sends and receives."""
    client, serving = Seal(keys.client_seal), Seal(keys.server_seal)
    return (serving, client) if server else (client, serving)
