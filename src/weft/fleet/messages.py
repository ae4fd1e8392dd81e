"""Messages between the coordinator and its hosts: one JSON object per line.

Both sides know a token; it proves itself by an HMAC over the other's nonce and never travels.
Units: seconds, ns.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any

Message = dict[str, Any]

LONGEST_LINE = 64 * 2**20  # results of a step, with their histograms
LONGEST_GREETING = 4096
BEAT_S = 1.0
# Six beats: a full queue of a slow port and a timeout of TCP hold one up for a second or two.
SILENT_S = 6.0


def packed(kind: str, value: object = None) -> bytes:
    return json.dumps({"kind": kind, "value": value}).encode() + b"\n"


def proof(token: str, nonce: str) -> str:
    return hmac.new(token.encode(), nonce.encode(), hashlib.sha256).hexdigest()


class Lines:
    """Bytes as they come, whole messages as they go."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._pieces: list[bytes] = []
        self.longest = longest

    def feed(self, data: bytes) -> list[Message]:
        """The messages that these bytes complete; ValueError for what is none."""
        if b"\n" not in data:
            self._keep(data)
            return []
        *lines, rest = (b"".join(self._pieces) + data).split(b"\n")
        self._pieces = []
        self._keep(rest)
        return [_message(line) for line in lines]

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        if sum(map(len, self._pieces)) > self.longest:
            raise ValueError(f"a line over {self.longest} bytes")


def _message(line: bytes) -> Message:
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError("not a message")
    return message
