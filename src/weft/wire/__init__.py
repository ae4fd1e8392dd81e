"""One protocol between weft's own programs: framing, authentication, heartbeat.

Measuring peers, fleet members and switch agents speak it. Each declares its messages as subclasses
of `Message` and builds a decoder for what each side may receive:

    class Read(Message):                       # on the wire: {"type":"read","ports":[1,2]}
        ports: list[int]

    REQUESTS: Decoder[Read | Beat] = Decoder(Read | Beat)
    ANSWERS: Decoder[Tables | Failure | Beat] = Decoder(Tables | Failure | Beat)

    # server: a connected socket, the shared token (None: no token) and what clients may send
    connection = accept(sock, token, REQUESTS)
    # client: `where` names the other side in errors
    connection = connect(sock, token, where, ANSWERS)

    connection.send(Read(ports=[1]))
    answer = connection.next(timeout_s)        # one message, or None when the time is over
    messages = connection.poll()               # or: what came, with heartbeats in both directions

Both raise ConnectionLost when the other side is gone and ProtocolError for what no weft of this
version sends. Versions that differ, and tokens that differ, are an InputError on both sides before
any message passes. A server that must not block on a greeting feeds `ServerHandshake` itself.
"""

from weft.wire.connection import (
    BEAT_S,
    SILENCE_S,
    Connection,
    ConnectionLost,
    accept,
    connect,
    greet,
    is_loopback,
    set_socket_options,
    speaks_tls,
)
from weft.wire.protocol import (
    FRAME_BYTES,
    MAKE_TOKEN,
    PROTOCOL,
    TOKEN_VARIABLE,
    Beat,
    ClientHandshake,
    Decoder,
    Failure,
    ForeignProtocol,
    FrameReader,
    Keys,
    Message,
    ProtocolError,
    Seal,
    ServerHandshake,
    encode,
    encode_refusal,
    printable,
    read_token,
)

__all__ = [
    "BEAT_S",
    "FRAME_BYTES",
    "MAKE_TOKEN",
    "PROTOCOL",
    "SILENCE_S",
    "TOKEN_VARIABLE",
    "Beat",
    "ClientHandshake",
    "Connection",
    "ConnectionLost",
    "Decoder",
    "Failure",
    "ForeignProtocol",
    "FrameReader",
    "Keys",
    "Message",
    "ProtocolError",
    "Seal",
    "ServerHandshake",
    "accept",
    "connect",
    "encode",
    "encode_refusal",
    "greet",
    "is_loopback",
    "printable",
    "read_token",
    "set_socket_options",
    "speaks_tls",
]
