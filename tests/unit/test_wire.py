"""The common protocol over a socket: handshake, sealed messages, heartbeat."""

import socket
import threading

import pytest

from weft.errors import InputError, WeftError
from weft.wire import Beat, ConnectionLost, Decoder, Message, accept, connect, connection
from weft.wire.frames import ProtocolError

TOKEN = b"correct horse battery staple"


class Ask(Message):
    number: int


class Reply(Message):
    number: int


REQUESTS: Decoder[Ask | Beat] = Decoder(Ask | Beat)
REPLIES: Decoder[Reply | Beat] = Decoder(Reply | Beat)


@pytest.fixture
def sockets():
    pair = socket.socketpair()
    for sock in pair:
        sock.settimeout(5)
    yield pair
    for sock in pair:
        sock.close()


def accept_in_thread(sock, token):
    """Accepts beside the test; the list gets the connection, or what was raised."""
    outcome = []

    def run():
        try:
            outcome.append(accept(sock, token, REQUESTS))
        except WeftError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcome


@pytest.fixture
def ends(sockets):
    thread, outcome = accept_in_thread(sockets[1], TOKEN)
    client = connect(sockets[0], TOKEN, "agent", REPLIES)
    thread.join()
    server = outcome[0]
    yield client, server
    client.close()
    server.close()


def test_a_request_is_answered(ends):
    client, server = ends
    client.send(Ask(3))
    assert server.next(5) == Ask(3)
    server.send(Reply(4))
    assert client.next(5) == Reply(4)


def test_two_messages_in_one_piece_are_two(ends):
    client, server = ends
    client.send(Ask(1))
    client.send(Ask(2))
    assert [server.next(5), server.next(5), server.next(0)] == [Ask(1), Ask(2), None]


def test_a_wrong_token_is_refused_on_both_sides(sockets):
    thread, outcome = accept_in_thread(sockets[1], TOKEN)
    with pytest.raises(InputError, match="agent: token: not the one of this server"):
        connect(sockets[0], b"another token of some length", "agent", REPLIES)
    thread.join()
    assert isinstance(outcome[0], InputError)


def test_a_message_of_the_other_direction_is_refused(ends):
    client, server = ends
    client.send(Reply(1))
    with pytest.raises(ProtocolError, match="Invalid value 'reply'"):
        server.next(5)


def test_an_end_of_the_stream_is_a_lost_connection(ends):
    client, server = ends
    client.close()
    with pytest.raises(ConnectionLost, match="closed the connection"):
        server.next(5)


def test_beats_are_sent_when_due_and_keep_a_quiet_connection(ends, monkeypatch):
    client, server = ends
    monkeypatch.setattr(connection, "BEAT_S", 0.01)
    monkeypatch.setattr(connection, "SILENCE_S", 0.5)
    for _ in range(100):
        assert client.poll(0.01) == []
        assert server.poll(0.01) == []


def poll_often(side):
    for _ in range(100):
        side.poll(0.01)


def test_a_silent_side_is_lost(ends, monkeypatch):
    client, _ = ends
    monkeypatch.setattr(connection, "SILENCE_S", 0.05)
    with pytest.raises(ConnectionLost, match=r"silent for 0\.05 s"):
        poll_often(client)
