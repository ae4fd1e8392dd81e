"""Garbage on the control port: clear errors, bounded memory, a server that goes on serving.

Inputs come from one seed, so that a failure can be run again. WEFT_FUZZ_INPUTS inputs go to the
parsers in this process, a fiftieth of it to a live server by connections of their own, and a
two-hundredth as sessions of a client that knows the token. `make test-faults` runs 10^5.
"""

from __future__ import annotations

import os
import random
import socket
import struct
import time

import pytest
from control_fuzz import bend_bytes, bent_frame, greeting, session_messages
from serve_process import ServeProcess, serving, still_serves, wait_until

from weft.errors import InputError
from weft.measure.peer.channel_spec import read_channels
from weft.measure.peer.negotiation import FRAME_BYTES, REQUESTS, Limits, Open, find_excess
from weft.wire import ClientHandshake, Decoder, Failure, FrameReader, ProtocolError, ServerHandshake
from weft.wire.protocol import Welcome

INPUTS = int(os.environ.get("WEFT_FUZZ_INPUTS", "20000"))
SEED = 20260315
ANSWER_S = 10.0
ANSWERS = Decoder(Welcome | Failure)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ("--max-duration", "5 s", "--max-size", "64 KiB", "--max-memory", "16 MiB")
    with serving(tmp_path_factory.mktemp("fuzz"), *options) as process:
        yield process


def test_the_greeting_takes_any_bytes_and_lets_nobody_in():
    rng = random.Random(SEED)
    refused = 0
    for _ in range(INPUTS // 2):
        handshake = ServerHandshake(b"a token nobody guesses", {})
        data = bend_bytes(rng, greeting(rng))
        cut = rng.randrange(len(data) + 1)
        try:
            handshake.feed(data[:cut])
            handshake.feed(data[cut:])
        except (ProtocolError, InputError):
            refused += 1
        assert handshake.keys is None
    assert refused > INPUTS // 10


def test_the_session_s_parser_takes_any_bytes_and_only_whole_channels_come_out():
    rng = random.Random(SEED + 1)
    limits = Limits(size_bytes=1 << 16, duration_s=1, rate_bps=1e9)
    outcomes = {"refused": 0, "wrong": 0, "fits": 0}
    for _ in range(INPUTS - INPUTS // 2):
        reader = FrameReader(REQUESTS, FRAME_BYTES)
        try:
            for message in reader.feed(bent_frame(rng, rng.choice(session_messages(rng)))):
                if isinstance(message, Open):
                    outcomes[judge(message, limits)] += 1
        except ProtocolError:
            outcomes["refused"] += 1
        assert reader.pending <= FRAME_BYTES + 4
    assert all(outcomes.values()), outcomes


def judge(message: Open, limits: Limits) -> str:
    channels, problems = read_channels(message.channels)
    problems += find_excess(channels, limits)
    for problem in problems:
        assert str(problem).isprintable()
        assert len(str(problem)) < 1000
    if problems:
        return "wrong"
    for channel in channels:
        assert channel.config["send_bytes"] <= 1 << 16
        assert 1 <= channel.config["depth"] <= 65536
    return "fits"


def closed_with(sock: socket.socket, data: bytes) -> bytes:
    """Sends the bytes and the end; all that the server answers until it closes, in time."""
    sock.settimeout(ANSWER_S)
    answer = b""
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while piece := sock.recv(65536):
            answer += piece
    except TimeoutError:
        pytest.fail(f"no end after {data[:200]!r}")
    except OSError:  # it closed before it had read everything
        pass
    return answer


def test_a_live_server_answers_any_bytes_with_a_clear_error_or_an_end(server):
    rng = random.Random(SEED + 2)
    still_serves(server)
    descriptors, memory_kib = server.descriptors(), server.memory_kib()
    errors = 0
    for _ in range(max(100, INPUTS // 50)):
        with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
            answer = closed_with(sock, bend_bytes(rng, greeting(rng)))
        replies = list(FrameReader(ANSWERS, FRAME_BYTES).feed(answer))
        errors += any(isinstance(reply, Failure) for reply in replies)
    assert errors > 10
    wait_until(lambda: server.descriptors() <= descriptors, "no descriptor is leaked")
    assert server.memory_kib() < memory_kib + 8192
    still_serves(server)


def known_client(server: ServeProcess) -> tuple[socket.socket, ClientHandshake]:
    sock = socket.create_connection(("127.0.0.1", server.port), 5)
    sock.settimeout(ANSWER_S)
    handshake = ClientHandshake(None, server.where)
    sock.sendall(handshake.hello)
    while handshake.limits is None:
        sock.sendall(handshake.feed(sock.recv(4096)))
    return sock, handshake


def sealed(frames: bytes, handshake: ClientHandshake) -> bytes:
    """The same frames, as far as they are whole, as a client that knows the token seals them."""
    assert handshake.keys is not None
    seal, _ = handshake.keys.seals(server=False)
    data = b""
    while len(frames) >= 4:
        (length,) = struct.unpack_from(">I", frames)
        payload, frames = frames[4 : 4 + length], frames[4 + length :]
        tag = seal.tag(payload)
        data += struct.pack(">I", min(2**32 - 1, length + len(tag))) + tag + payload
    return data + frames


def test_a_client_that_knows_the_token_cannot_end_the_server_either(server):
    """Sessions may be dropped; each ends by itself, in time, and the next is served."""
    rng = random.Random(SEED + 3)
    descriptors, memory_kib = server.descriptors(), server.memory_kib()
    for _ in range(max(40, INPUTS // 200)):
        sock, handshake = known_client(server)
        with sock:
            frames = b"".join(bent_frame(rng, message) for message in session_messages(rng))
            closed_with(sock, sealed(frames, handshake))
    wait_until(lambda: not server.children(), "all sessions have ended")
    wait_until(lambda: server.descriptors() <= descriptors, "no descriptor is leaked")
    assert server.memory_kib() < memory_kib + 8192
    assert "Traceback" not in server.stderr.read_text()
    still_serves(server)


def test_a_changed_seal_ends_the_session(server):
    sock, _ = known_client(server)
    with sock:
        frame = struct.pack(">I", 30) + b"\0" * 16 + b'{"type":"beat"}'[:14]
        closed_with(sock, frame)
    server.logged("wrong seal")


def test_half_open_connections_do_not_keep_others_out(server):
    """Many say a little and wait; a real client is served meanwhile."""
    slow = [socket.create_connection(("127.0.0.1", server.port), 5) for _ in range(150)]
    try:
        for sock in slow:
            sock.sendall(b"\0\0")
        began = time.monotonic()
        still_serves(server)
        assert time.monotonic() - began < 10
        assert server.descriptors() < 100
    finally:
        for sock in slow:
            sock.close()
