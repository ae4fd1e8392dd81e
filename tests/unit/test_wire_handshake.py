"""Tokens: proved by both sides, of no use to who listens, kept from other users."""

import hmac
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import HTTPServer, SimpleHTTPRequestHandler

import pytest

from weft import __version__
from weft.errors import InputError
from weft.measure.peer import client as peer_client
from weft.wire import (
    MAKE_TOKEN,
    PROTOCOL,
    TOKEN_VARIABLE,
    Beat,
    ClientHandshake,
    Decoder,
    Failure,
    ForeignProtocol,
    FrameReader,
    ProtocolError,
    ServerHandshake,
    encode,
    encode_refusal,
    read_token,
)
from weft.wire.protocol import Hello, Prove, Ready, Seal, Welcome, derive_keys

TOKEN = b"correct horse battery staple"
OTHER = b"incorrect horse battery staple"


def greet(client: ClientHandshake, server: ServerHandshake) -> list[bytes]:
    """Runs a handshake to its end; all that the client sent."""
    sent = [client.hello]
    while not (client.limits is not None and server.keys):
        answer = server.feed(sent[-1])
        sent.append(client.feed(answer))
    return sent


def test_both_sides_derive_the_same_keys_from_the_token():
    client, server = ClientHandshake(TOKEN, "peer"), ServerHandshake(TOKEN, {"depth": 7})
    greet(client, server)
    assert client.keys == server.keys
    assert client.limits == {"depth": 7}


def test_keys_of_protocol_2_are_hmacs_of_the_nonces_by_their_purpose():
    """Hosts with another weft of this protocol must derive the same."""

    def digest(purpose: str) -> bytes:
        return hmac.new(TOKEN, f"weft 2 {purpose} aa bb".encode(), "sha256").digest()

    keys = derive_keys(TOKEN, "aa", "bb")
    assert keys.client_proof == digest("client proof").hex()
    assert keys.server_proof == digest("server proof").hex()
    assert (keys.client_seal, keys.server_seal) == (digest("client seal"), digest("server seal"))


def test_without_a_token_the_handshake_is_the_same():
    client, server = ClientHandshake(None, "peer"), ServerHandshake(None, {})
    greet(client, server)
    assert client.keys == server.keys


def test_a_wrong_token_is_refused_with_the_remedy():
    client, server = ClientHandshake(OTHER, "peer"), ServerHandshake(TOKEN, {})
    with pytest.raises(InputError, match=r"token: not the one of this server; .*--token-file"):
        greet(client, server)
    assert server.keys is None


def test_a_server_that_wants_a_token_is_recognised_before_anything_is_proved():
    client, server = ClientHandshake(None, "node7:9338"), ServerHandshake(TOKEN, {})
    with pytest.raises(InputError, match=r"node7:9338: needs a token; .*WEFT_TOKEN"):
        greet(client, server)


def test_recorded_proofs_are_of_no_use_in_another_conversation():
    recorded = greet(ClientHandshake(TOKEN, "peer"), ServerHandshake(TOKEN, {}))
    server = ServerHandshake(TOKEN, {})
    server.feed(recorded[0])
    with pytest.raises(InputError, match="token"):
        server.feed(recorded[1])
    assert server.keys is None


def test_a_proof_cannot_be_sent_back_to_who_made_it():
    keys = derive_keys(TOKEN, "a" * 64, "b" * 64)
    assert len({keys.client_proof, keys.server_proof, keys.client_seal, keys.server_seal}) == 4


def test_a_server_that_does_not_know_the_token_is_not_believed():
    client, impostor = ClientHandshake(TOKEN, "peer"), ServerHandshake(OTHER, {})
    client.feed(impostor.feed(client.hello))
    lie = encode(Ready("0" * 64, {}))
    with pytest.raises(InputError, match="the server does not know the token"):
        client.feed(lie)


def test_a_server_without_a_token_is_not_believed_by_a_client_that_has_one():
    client, impostor = ClientHandshake(TOKEN, "peer"), ServerHandshake(None, {})
    with pytest.raises(InputError, match="may not be the server meant"):
        greet(client, impostor)
    greet(ClientHandshake(TOKEN, "peer", proof_needed=False), ServerHandshake(None, {}))


def hello(protocol: int) -> bytes:
    return encode(Hello(protocol, "9.9", "0" * 64))


@pytest.mark.parametrize(("protocol", "older"), [(PROTOCOL + 1, "server"), (0, "client")])
def test_each_side_says_both_versions_and_which_is_older(protocol, older):
    with pytest.raises(InputError) as by_server:
        ServerHandshake(None, {}).feed(hello(protocol))
    text = str(by_server.value)
    assert f"the client speaks {protocol} (weft 9.9)" in text
    assert f"the server {PROTOCOL} (weft {__version__})" in text
    assert f"the {older}'s is the older one" in text

    with pytest.raises(InputError) as told:
        ClientHandshake(None, "node7").feed(encode_refusal(by_server.value))
    assert str(told.value) == f"node7: {text}"

    welcome = Welcome(protocol, "9.9", "", False)
    with pytest.raises(InputError, match=f"the server speaks {protocol} "):
        ClientHandshake(None, "node7").feed(encode(welcome))


@pytest.mark.parametrize(
    "data",
    [
        encode(Prove("")),
        encode(Beat()),
        hello(PROTOCOL) + hello(PROTOCOL),
        encode(Hello(PROTOCOL, "", "short")),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_anything_but_the_handshake_is_refused(data):
    server = ServerHandshake(None, {})
    with pytest.raises(ProtocolError) as error:
        server.feed(data)
    (answer,) = FrameReader(Decoder(Failure), 4096).feed(encode_refusal(error.value))
    assert answer.problem == str(error.value)


def test_nothing_may_follow_a_proof_before_its_answer():
    nonce = "1" * 64
    proof = derive_keys(b"", "0" * 64, nonce).client_proof
    server = ServerHandshake(None, {}, new_nonce=lambda: nonce)
    server.feed(hello(PROTOCOL))
    with pytest.raises(ProtocolError, match="before the answer"):
        server.feed(encode(Prove(proof)) + b"x")


class TestTokenFiles:
    def test_the_token_is_the_text_of_a_private_file(self, tmp_path):
        file = tmp_path / "token"
        file.write_text("0123456789abcdef\n")
        file.chmod(0o600)
        assert read_token(str(file)) == b"0123456789abcdef"

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
    def test_a_file_that_others_can_read_is_refused(self, tmp_path, mode):
        file = tmp_path / "token"
        file.write_text("0123456789abcdef")
        file.chmod(mode)
        with pytest.raises(InputError, match=f"mode 0{mode:o}.*chmod 600"):
            read_token(str(file))

    def test_a_missing_file_says_how_to_make_one(self, tmp_path):
        with pytest.raises(InputError, match=r"No such file.*umask 077"):
            read_token(str(tmp_path / "none"))

    def test_a_short_token_is_refused(self, monkeypatch):
        monkeypatch.setenv(TOKEN_VARIABLE, "secret")
        with pytest.raises(InputError, match="token of 6 characters, at least 16"):
            read_token(None)

    def test_without_file_and_variable_there_is_none(self, monkeypatch):
        monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
        assert read_token(None) is None

    def test_the_command_that_makes_one_makes_one(self, tmp_path):
        file = tmp_path / "token"
        command = MAKE_TOKEN.split("`")[1].replace("FILE", str(file))
        assert os.system(command) == 0
        assert len(read_token(str(file)) or b"") == 44


# ---- Strangers --------------------------------------------------------------------------------

# First bytes as the protocols' RFCs have them.
OPENINGS = [
    ("HTTP", b"HTTP/1.1 400 Bad Request\r\n"),
    ("HTTP", b"GET / HTTP/1.1\r\nHost: node7\r\n"),
    ("HTTP", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ("HTTP/2", bytes.fromhex("000006040000000000000400100000")),
    ("SSH", b"SSH-2.0-OpenSSH_9.6\r\n"),
    ("TLS", bytes.fromhex("15030300020246")),
    ("TLS", bytes.fromhex("160301013d01000139")),
    ("SMTP", b"220 mail.example.org ESMTP Postfix\r\n"),
    ("SMTP", b"EHLO node7\r\n"),
    ("FTP", b"220 ready\r\n"),
    ("POP3", b"+OK ready\r\n"),
    ("IMAP", b"* OK ready\r\n"),
    ("Redis", b"-ERR unknown command\r\n"),
]


@pytest.mark.parametrize(("protocol", "opening"), OPENINGS)
def test_a_stranger_is_named_by_its_protocol_on_both_sides(protocol, opening):
    for side in (ClientHandshake(None, "peer"), ServerHandshake(None)):
        with pytest.raises(ForeignProtocol, match=f"^speaks {protocol}, not weft$"):
            side.feed(opening)


def test_greetings_of_every_length_are_taken_for_no_other_protocol():
    for length in range(1, 2000, 7):
        hello = Hello(PROTOCOL, "v" * length, "0" * 64)
        assert list(FrameReader(Decoder(Hello), 4096).feed(encode(hello))) == [hello]


@contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that deals with each connection in turn; where it is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    answer(connection)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def find_problem(where: str) -> str:
    with pytest.raises(InputError) as raised:
        peer_client.open_peer(where)
    assert raised.value.where == where
    return raised.value.problem


def test_a_real_web_server_is_named_though_it_waits_for_the_end_of_a_line(monkeypatch):
    monkeypatch.setattr(peer_client, "CONNECT_S", 0.3)
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        problem = find_problem(f"127.0.0.1:{server.server_address[1]}")
        server.shutdown()
        thread.join()
    assert problem == "speaks HTTP, not weft"


def test_a_real_tls_server_is_named_though_it_closes_without_a_word():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)

    def answer(connection: socket.socket) -> None:
        try:
            context.wrap_socket(connection, server_side=True).close()
        except OSError:
            return

    with serving(answer) as where:
        assert find_problem(where) == "speaks TLS, not weft"


def test_a_silent_server_and_one_that_hangs_up_are_distinguished(monkeypatch):
    monkeypatch.setattr(peer_client, "CONNECT_S", 0.2)
    with serving(lambda connection: connection.recv(1)) as where:
        assert find_problem(where).startswith(("closed the connection", "broke off"))
    with serving(lambda connection: [*iter(lambda: connection.recv(99), b"")]) as where:
        assert find_problem(where) == "says nothing for 0.2 s: it hangs, or is not weft"


def test_each_side_sends_with_its_own_key_and_receives_with_the_other():
    keys = derive_keys(TOKEN, "aa", "bb")
    client, server = Seal(keys.client_seal).tag(b"x"), Seal(keys.server_seal).tag(b"x")
    assert [seal.tag(b"x") for seal in keys.seals(server=True)] == [server, client]
    assert [seal.tag(b"x") for seal in keys.seals(server=False)] == [client, server]
