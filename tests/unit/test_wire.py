"""The common protocol over a socket: handshake, sealed messages, heartbeat."""

import fcntl
import socket
import sys
import termios
import threading

import pytest

from weft.errors import InputError, WeftError
from weft.wire import (
    Beat,
    Connection,
    ConnectionLost,
    Decoder,
    Message,
    accept,
    connect,
    connection,
    set_socket_options,
)
from weft.wire.protocol import ProtocolError, derive_keys

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


class Clock:
    """Time that passes only when a test says so."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(connection, "time", made)
    return made


@pytest.fixture
def timed_ends(clock, ends):
    """Connections that began on the clock."""
    assert clock.now_s == 1000.0
    return ends


def count_waiting_bytes(sock):
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_a_beat_is_sent_every_second_and_never_passed_on(clock, timed_ends, sockets):
    client, server = timed_ends
    client.poll(0)
    assert count_waiting_bytes(sockets[1]) == 0
    clock.now_s += 0.999
    client.poll(0)
    assert count_waiting_bytes(sockets[1]) == 0
    clock.now_s += 0.001
    client.poll(0)
    one_beat = count_waiting_bytes(sockets[1])
    assert one_beat > 0
    client.poll(0)
    assert count_waiting_bytes(sockets[1]) == one_beat
    clock.now_s += 1.0
    client.poll(0)
    assert count_waiting_bytes(sockets[1]) == 2 * one_beat
    assert server.poll(0) == []
    assert count_waiting_bytes(sockets[1]) == 0


def test_six_seconds_of_silence_are_a_lost_connection_and_a_frame_ends_them(clock, timed_ends):
    client, server = timed_ends
    clock.now_s += 6.0
    client.check_alive()
    server.send(Reply(1))
    clock.now_s += 0.5
    assert client.poll(0) == [Reply(1)]
    clock.now_s += 6.0
    client.check_alive()
    clock.now_s += 0.001
    with pytest.raises(ConnectionLost, match="silent for 6 s"):
        client.poll(0)


def test_a_message_that_has_come_is_read_without_waiting(clock, timed_ends):
    client, server = timed_ends
    server.send(Reply(1))
    assert clock.now_s == 1000.0
    assert client.next(0) == Reply(1)


def test_waiting_for_a_message_ends_at_its_time_though_the_connection_is_silent(ends):
    client, _ = ends
    assert client.next(0.01) is None


def test_a_poll_ends_when_another_thread_wakes_it(ends, monkeypatch):
    client, _ = ends
    monkeypatch.setattr(connection, "BEAT_S", 60.0)
    waker = threading.Timer(0.05, client.wake)
    waker.start()
    assert client.poll(60.0) == []
    waker.join()


def send_without_end(side):
    while True:
        side.send(Ask(1))


def test_a_side_that_takes_no_data_is_lost(sockets):
    keys = derive_keys(TOKEN, "a", "b")
    client = Connection(sockets[0], keys, REPLIES, server=False, send_s=0.05)
    with pytest.raises(ConnectionLost, match=r"takes no data for 0\.05 s"):
        send_without_end(client)
    client.close()


def test_a_closed_connection_has_no_descriptor_and_sends_nothing(ends):
    client, _ = ends
    client.close()
    assert client.fileno() == -1
    client.wake()
    with pytest.raises(ConnectionLost):
        client.send(Ask(1))


# ---- TCP --------------------------------------------------------------------------------------


def open_tcp(client_address):
    """A client's socket on an address of this host, connected to 127.0.0.1, and the server's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        client = socket.create_connection(address, 5, source_address=(client_address, 0))
        return client, listener.accept()[0]


@pytest.mark.parametrize(("address", "is_same"), [("127.0.0.1", True), ("127.0.0.2", False)])
def test_the_ends_of_a_connection_know_their_hosts_by_address(address, is_same):
    keys = derive_keys(TOKEN, "a", "b")
    client_socket, server_socket = open_tcp(address)
    with client_socket, server_socket:
        client = Connection(client_socket, keys, REPLIES, server=False)
        server = Connection(server_socket, keys, REQUESTS, server=True)
        assert (client.local_host, server.local_host) == (address, "127.0.0.1")
        assert (client.is_same_host, server.is_same_host) == (is_same, is_same)
        client.close()
        server.close()


def test_small_frames_leave_at_once_and_a_vanished_host_is_noticed_in_six_seconds():
    client, server = open_tcp("127.0.0.1")
    with client, server:
        set_socket_options(client)
        tcp = socket.IPPROTO_TCP
        assert client.getsockopt(tcp, socket.TCP_NODELAY)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
        values = [client.getsockopt(tcp, getattr(socket, name)) for name in names]
        assert values == [2, 1, 3, 6000]


def test_a_server_that_hangs_up_during_the_greeting_is_a_lost_connection(sockets):
    sockets[1].close()
    with pytest.raises((ConnectionLost, OSError)):
        connect(sockets[0], TOKEN, "agent", REPLIES)


def test_a_client_that_hangs_up_during_the_greeting_is_a_lost_connection(sockets):
    sockets[0].close()
    with pytest.raises(ConnectionLost, match="closed the connection"):
        accept(sockets[1], TOKEN, REQUESTS)


def test_a_server_that_is_gone_when_it_is_greeted_is_a_lost_connection() -> None:
    client, server = socket.socketpair()
    server.close()
    with client, pytest.raises(ConnectionLost, match="broke off: Broken pipe"):
        connection.greet(client, None, "peer")
