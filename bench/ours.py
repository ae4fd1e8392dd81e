"""One round of ours: weft's loops in two processes, pinned as the peers are.

    taskset -c 0 python -m bench.ours '{"transport": "tcp", "messages": 20000}' 1

prints one JSON object. The client starts the server, here on CPU 1, and they exchange addresses
over its pipes; everything timed is in the core, as in `weft latency` and `weft rate`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from bench.peers.processes import TIMEOUT_S, cpus, start
from weft._core import (
    Clock,
    Counts,
    Endpoint,
    EndpointConfig,
    LoopSpec,
    StopFlag,
    echo,
    ping_pong,
    sink,
    stream,
)

CONNECT_MS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What is measured: `messages` ping-pongs, or a stream of `seconds`."""

    transport: str
    device: str = ""
    endpoint: str = ""
    test: str = "latency"
    size_bytes: int = 64
    block: bool = False
    messages: int = 0
    seconds: float = 0.0
    warmup: int = 2000
    window: int = 64
    post_list: int = 1
    signal_every: int = 1
    nagle: bool = False
    inline_bytes: int = 0
    defaults: bool = (
        False  # as `weft latency` and `weft bandwidth` do it where nothing else is said
    )


def run(what: Round) -> dict[str, float]:
    """One round in processes of its own."""
    client_cpu, server_cpu = cpus()
    command = [sys.executable, "-m", "bench.ours", json.dumps(asdict(what)), str(server_cpu)]
    client = start(client_cpu, command)
    try:
        out, _ = client.communicate(timeout=TIMEOUT_S)
    finally:
        client.kill()
    if client.returncode != 0:
        raise SystemExit(f"bench.ours {what}: ended with status {client.returncode}")
    answer: dict[str, float] = json.loads(out)
    return answer


# ---- In the two processes ---------------------------------------------------------------------


def _endpoint(what: Round, server: bool) -> Endpoint:
    config = EndpointConfig()
    config.transport, config.device, config.endpoint = what.transport, what.device, what.endpoint
    config.server, config.events, config.nagle = server, what.block, what.nagle
    config.inline_bytes = what.inline_bytes
    both = what.test == "latency"
    config.send_bytes = what.size_bytes if both or not server else 0
    config.receive_bytes = what.size_bytes if both or server else 0
    config.depth = config.receive_depth = 1 if both else what.window
    return Endpoint.open(config)


def _loop(what: Round) -> LoopSpec:
    spec = LoopSpec()
    spec.bytes, spec.block = what.size_bytes, what.block
    spec.count, spec.duration_ns = what.messages, round(what.seconds * 1e9)
    spec.warmup = what.warmup
    return spec


def serve(what: Round) -> None:
    """Standard input: the peer's address, then how many messages there were."""
    Clock.shared()  # calibrated before the client starts, which takes a while
    endpoint, stop = _endpoint(what, server=True), StopFlag()
    _say(endpoint.address().hex())
    endpoint.connect(bytes.fromhex(input()), CONNECT_MS)
    counts: list[Counts] = []
    work = _echo if what.test == "latency" else _sink
    thread = threading.Thread(target=lambda: counts.append(work(endpoint, _loop(what), stop)))
    thread.start()
    _say("ready")
    sent = int(input())
    if what.test == "latency":
        stop.set()
    else:
        stop.finish_at(sent)
    thread.join()
    _say(json.dumps(_rates(counts[0])))


def _echo(endpoint: Endpoint, spec: LoopSpec, stop: StopFlag) -> Counts:
    return echo(endpoint, spec, stop)


def _sink(endpoint: Endpoint, spec: LoopSpec, stop: StopFlag) -> Counts:
    return sink([endpoint], spec, stop)


def measure(what: Round, server_cpu: int) -> dict[str, Any]:
    """The client's side: one round against a server that it starts."""
    Clock.shared()
    server = start(server_cpu, [sys.executable, "-m", "bench.ours", json.dumps(asdict(what))])
    assert server.stdin
    assert server.stdout
    address = server.stdout.readline().strip()
    endpoint = _endpoint(what, server=False)
    print(endpoint.address().hex(), file=server.stdin, flush=True)
    endpoint.connect(bytes.fromhex(address), CONNECT_MS)
    assert server.stdout.readline().strip() == "ready"
    client: Callable[[Round, Endpoint], tuple[dict[str, Any], int]]
    client = _ping_pong if what.test == "latency" else _stream
    answer, sent = client(what, endpoint)
    print(sent, file=server.stdin, flush=True)
    theirs = json.loads(server.stdout.readline())
    server.wait(TIMEOUT_S)
    return answer | (theirs if what.test == "stream" else {})


def measure_defaults(what: Round, server_cpu: int) -> dict[str, Any]:
    """The same by `weft.measure` with its own defaults, size and way of waiting aside."""
    from weft.measure import bandwidth, latency, open_peer

    ours = os.sched_getaffinity(0)
    over = f"{what.transport}:{what.device}" if what.device else what.transport
    given = {"over": over, "size": what.size_bytes, "wait": "block" if what.block else "spin"}
    os.sched_setaffinity(0, {server_cpu})  # the server is started with it
    with open_peer("local") as peer:
        os.sched_setaffinity(0, ours)
        test = latency if what.test == "latency" else bandwidth
        record = test(peer, duration=f"{what.seconds} s", **given).record
    quantities = record.quantities
    if what.test == "latency":
        times = quantities["half_rtt"].histogram  # type: ignore[union-attr]
        return {"p50_us": times.quantile(0.5) / 1e6, "mean_us": times.mean / 1e6}
    arrived, sent = (
        quantities[name].value / 8  # type: ignore[union-attr, operator]
        for name in ("throughput", "sender.throughput")
    )
    return {"bytes_per_s": arrived, "bytes_sent_per_s": sent}


def _ping_pong(what: Round, endpoint: Endpoint) -> tuple[dict[str, Any], int]:
    result = ping_pong(endpoint, _loop(what), StopFlag())
    _check(result.counts)
    return {
        "p50_us": result.latency.quantile(0.5) / 1e6,
        "mean_us": result.latency.mean / 1e6,
    }, result.counts.sent


def _stream(what: Round, endpoint: Endpoint) -> tuple[dict[str, Any], int]:
    """What counts is what the server received; what was sent is for peers that count that."""
    counts = stream(
        [endpoint],
        _loop(what),
        StopFlag(),
        window=what.window,
        post_list=what.post_list,
        signal_every=what.signal_every,
    )
    _check(counts)
    rate = counts.sent * 1e9 / counts.elapsed_ns
    sent = {"sent_per_s": rate, "bytes_sent_per_s": rate * what.size_bytes}
    return sent, counts.sent + what.warmup


def _rates(counts: Counts) -> dict[str, float]:
    _check(counts)
    seconds = counts.elapsed_ns / 1e9
    return {
        "bytes_per_s": counts.bytes / seconds if seconds else 0.0,
        "messages_per_s": counts.received / seconds if seconds else 0.0,
        "lost": float(counts.lost),
    }


def _check(counts: Counts) -> None:
    if counts.error:
        raise SystemExit(counts.error)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    round_ = Round(**json.loads(sys.argv[1]))
    if len(sys.argv) > 2:
        side = measure_defaults if round_.defaults else measure
        print(json.dumps(side(round_, int(sys.argv[2]))))
    else:
        serve(round_)
