"""Two libfabric endpoints of this process, connected, and their loops in two threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from weft import _core
from weft._core import Availability, Endpoint, EndpointConfig, LoopSpec, StopFlag

CONNECT_MS = 10_000
JOIN_S = 20

# Provider, endpoint and operations, as libfabric 1.17's own documentation and fi_info have them.
MESSAGES = ("send", "inject")
TAGGED = (*MESSAGES, "tagged")
ONE_SIDED = ("write", "read")
ATOMICS = ("fetch-add", "compare-swap")
KINDS: dict[tuple[str, str], tuple[str, ...]] = {
    ("shm", "rdm"): (*TAGGED, *ONE_SIDED, *ATOMICS),
    ("tcp", "rdm"): (*TAGGED, *ONE_SIDED),
    ("tcp", "msg"): (*MESSAGES, *ONE_SIDED),
    ("tcp;ofi_rxm", "rdm"): (*TAGGED, *ONE_SIDED, *ATOMICS),
    ("net", "rdm"): (*TAGGED, *ONE_SIDED),
    ("net", "msg"): (*MESSAGES, *ONE_SIDED),
    ("sockets", "rdm"): (*TAGGED, *ONE_SIDED, *ATOMICS),
    ("sockets", "msg"): (*TAGGED, *ONE_SIDED, *ATOMICS),
    ("sockets", "dgram"): TAGGED,
    ("udp", "dgram"): MESSAGES,
    ("udp;ofi_rxd", "rdm"): (*TAGGED, *ONE_SIDED, *ATOMICS),
}


@cache
def providers() -> dict[str, Availability]:
    return {entry.device: entry for entry in _core.availability() if entry.transport == "ofi"}


def need(provider: str, endpoint: str = "") -> None:
    """Skip, by name and reason, what this machine's libfabric has not; WEFT_REQUIRE=ofi fails."""
    reason = _lacking(provider, endpoint)
    if reason is None:
        return
    if "ofi" in os.environ.get("WEFT_REQUIRE", "").split(","):
        pytest.fail(reason)
    pytest.skip(reason)


def _lacking(provider: str, endpoint: str) -> str | None:
    found = providers().get(provider)
    whole = providers().get("")
    if whole is not None:
        return f"ofi: {whole.reason}; {whole.remedy}"
    if found is None or not found.available:
        return f"ofi:{provider}: not in this libfabric"
    if endpoint and endpoint not in found.endpoints:
        return f"ofi:{provider}: no {endpoint} endpoint in this libfabric"
    return None


def config(provider: str, endpoint: str = "", **fields: Any) -> EndpointConfig:
    chosen = EndpointConfig()
    chosen.transport = "ofi"
    chosen.device = provider
    chosen.endpoint = endpoint
    chosen.address = "" if provider == "shm" else "127.0.0.1"
    chosen.depth = chosen.receive_depth = 8
    for name, value in fields.items():
        setattr(chosen, name, value)
    return chosen


def loop(**fields: Any) -> LoopSpec:
    spec = LoopSpec()
    for name, value in fields.items():
        setattr(spec, name, value)
    return spec


@dataclass(frozen=True)
class Pair:
    ours: Endpoint
    theirs: Endpoint

    @contextmanager
    def served(self, serve: Callable[[Endpoint, StopFlag], Any]) -> Iterator[list[Any]]:
        """Runs the peer's loop until the block ends; its result is then in the list."""
        stop, results = StopFlag(), list[Any]()
        thread = threading.Thread(
            target=lambda: results.append(serve(self.theirs, stop)), daemon=True
        )
        thread.start()
        try:
            yield results
        finally:
            stop.set()
            thread.join(JOIN_S)
            assert not thread.is_alive()


@contextmanager
def connected(provider: str, endpoint: str = "", **fields: Any) -> Iterator[Pair]:
    need(provider, endpoint)
    ours = Endpoint.open(config(provider, endpoint, **fields))
    theirs = Endpoint.open(config(provider, endpoint, server=True, **fields))
    try:
        thread = threading.Thread(
            target=lambda: theirs.connect(ours.address(), CONNECT_MS), daemon=True
        )
        thread.start()
        ours.connect(theirs.address(), CONNECT_MS)
        thread.join(JOIN_S)
        yield Pair(ours, theirs)
    finally:
        ours.close()
        theirs.close()
