"""A private server: on loopback for one command (`local` as a peer), or on a plan's host.

It is an ordinary `weft serve` on a free port with a random token, passed in its environment. It
ends when its standard input closes, so also when its parent is killed. Entry point: `LocalServer`.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import subprocess
import sys

from weft.errors import InputError
from weft.wire import TOKEN_VARIABLE

_START_S = 60.0
_END_S = 8.0


class LocalServer:
    def __init__(self, address: str = "127.0.0.1", token: bytes | None = None) -> None:
        self.token = token or secrets.token_hex(32).encode()
        # Only its starter knows the token: limits would protect nobody.
        bounds = [f"--max-{name}=unlimited" for name in ("size", "duration", "rate", "sessions")]
        listen = f"[{address}]:0" if ":" in address else f"{address}:0"
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "weft.cli",
                "serve",
                "--listen",
                listen,
                *bounds,
                "--json",
                "--until-stdin-closes",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {TOKEN_VARIABLE: self.token.decode()},
            start_new_session=True,  # Ctrl-C is for the client: the counts are still to come
        )
        try:
            self.port = self._read_port()
        except InputError:
            self.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def _read_port(self) -> int:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], _START_S)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            raise InputError("local peer", "the server process did not start", "see its message")
        port: int = json.loads(line)["addresses"][0][1]
        return port

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
