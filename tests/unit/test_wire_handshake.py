"""Tokens: proved by both sides, of no use to who listens, kept from other users."""

import os

import pytest

from weft import __version__
from weft.errors import InputError
from weft.wire import (
    MAKE_TOKEN,
    PROTOCOL,
    TOKEN_VARIABLE,
    Beat,
    ClientHandshake,
    Decoder,
    Failure,
    FrameReader,
    ProtocolError,
    ServerHandshake,
    encode,
    encode_refusal,
    read_token,
)
from weft.wire.handshake import Hello, Prove, Ready, Welcome, derive_keys

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


def test_without_a_token_the_handshake_is_the_same():
    client, server = ClientHandshake(None, "peer"), ServerHandshake(None, {})
    greet(client, server)
    assert client.keys == server.keys


def test_a_wrong_token_is_refused_with_the_remedy():
    client, server = ClientHandshake(OTHER, "peer"), ServerHandshake(TOKEN, {})
    with pytest.raises(InputError, match=r"token: not the one of this server; .*--token-file"):
        greet(client, server)
    assert server.keys is None


def test_a_server_that_wants_a_token_is_told_apart_before_anything_is_proved():
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
