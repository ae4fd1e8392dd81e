"""Why TLS with a controller fails: gRPC does not say it in words, so the port is asked again.

Each question opens a connection of its own and ends it after the handshake. A port that does not
answer them gives no reason. Entry points: `wants_tls`, `find_other_names`. Units: seconds.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any

from weft.control.client.grpc_link import Tls
from weft.wire import speaks_tls

_ANSWER_S = 2.0
_OTHER_NAME = {62, 64}  # OpenSSL's codes: of another host name, of another address


def wants_tls(address: str) -> bool:
    """Whether a port that a plain client could not use speaks TLS."""
    place = split_address(address)
    return place is not None and speaks_tls(*place)


def find_other_names(address: str, tls: Tls) -> tuple[str, ...] | None:
    """The names in the controller's certificate if it is not for this address; else None.

    Empty: they cannot be known.
    """
    try:
        context = ssl.create_default_context(cafile=tls.authority)
        context.load_cert_chain(tls.certificate, tls.key, password="")
        _shake_hands(address, context)
    except ssl.SSLCertVerificationError as error:
        if error.verify_code not in _OTHER_NAME:
            return None
    except OSError:
        return None
    else:
        return None
    context.check_hostname = False
    try:
        return _shake_hands(address, context)
    except OSError:
        return ()


def split_address(address: str) -> tuple[str, int] | None:
    """Host and port of HOST:PORT or [IPV6]:PORT; None: a Unix socket, or no address at all."""
    host, colon, port = address.rpartition(":")
    is_number = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if address.startswith("unix:") or not colon or not is_number:
        return None
    host = host.removeprefix("[").removesuffix("]")
    try:
        host.encode("idna")
    except UnicodeError:
        return None
    return host, int(port)


def _shake_hands(address: str, context: ssl.SSLContext) -> tuple[str, ...]:
    """Host names and addresses of the certificate, where it is verified."""
    place = split_address(address)
    if place is None:
        raise OSError(f"{address}: no TLS over it")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(place, _ANSWER_S) as plain,
        context.wrap_socket(plain, server_hostname=place[0]) as secure,
    ):
        names: Any = (secure.getpeercert() or {}).get("subjectAltName", ())
        return tuple(name for _, name in names)
