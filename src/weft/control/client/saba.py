"""The four calls of Saba's library (thesis, Table 4.1), over `weft.control.client`.

The tag that a registration gives is an `App`; the priority level behind it is `App.level`.
"""

from __future__ import annotations

from weft.control.client.app import App, Connection, register
from weft.control.client.sockets import Kind


def saba_app_register(name: str) -> App:
    """Register and receive a tag."""
    return register(name)


def saba_conn_create(tag: App, host: str, port: int, kind: Kind = "tcp") -> Connection:
    """Create a connection with the tag."""
    return tag.connect(host, port, kind=kind)


def saba_conn_destroy(connection: Connection) -> None:
    """Destroy the connection."""
    connection.close()


def saba_app_deregister(tag: App) -> None:
    """De-register the app."""
    tag.close()
