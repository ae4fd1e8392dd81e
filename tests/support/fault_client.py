"""A client that measures without end, for tests that kill it or its server at random points."""

from __future__ import annotations

import faulthandler
import random
import sys
from pathlib import Path

from serve_process import echo_spec, loop_of

from weft import _core
from weft.errors import WeftError
from weft.measure import ChannelSpec, Peer, open_peer

HANGS_S = 8.0  # it lives for a second or two: then where it hangs is written down
TOLD = 3  # exit status: ended by an error that says what happened


def main(where: str, seed: int, transports: list[str], error_file: str, trace_file: str) -> None:
    rng = random.Random(seed)
    with Path(trace_file).open("w") as trace:
        faulthandler.dump_traceback_later(HANGS_S, file=trace)
        try:
            while True:
                with open_peer(where) as peer:
                    for _ in range(rng.randint(1, 4)):
                        measure(peer, rng, rng.choice(transports))
        except WeftError as error:
            Path(error_file).write_text(str(error))
            sys.exit(TOLD)


def measure(peer: Peer, rng: random.Random, transport: str) -> None:
    size = rng.choice([8, 64, 4000 if transport == "udp" else 65536])
    if rng.random() < 0.6:
        latency(peer, transport, size, rng.choice([1, 30, 1000]))
    else:
        bandwidth(peer, transport, size, rng.choice([1, 30, 1000]))


def latency(peer: Peer, transport: str, size: int, count: int) -> None:
    spec = echo_spec(transport, size)
    with peer.open([spec]) as channels:
        channels.start()
        loop = loop_of(size, count=count, block=spec.loop["block"])
        _core.ping_pong(channels.endpoints[0], loop, channels.stop)
        channels.finish()


def bandwidth(peer: Peer, transport: str, size: int, count: int) -> None:
    name, _, device = transport.partition(":")
    config = {
        "transport": name,
        "device": device,
        "send_bytes": size,
        "receive_bytes": 8,
        "depth": 4,
        "receive_depth": 4,
    }
    spec = ChannelSpec(config=config, role="sink", loop={"bytes": size})
    with peer.open([spec, spec]) as channels:
        channels.start()
        loop = loop_of(size, count=count, validate=False, block=False)
        sent = _core.stream(channels.endpoints, loop, channels.stop, window=4).sent
        channels.finish(sent)
