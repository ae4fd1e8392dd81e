"""The library that applications use: registration, connections that bear its level, leases."""

from weft.control.client.app import App, UnmanagedWarning, register
from weft.control.client.app_connection import Connection
from weft.control.client.link import Tls

__all__ = ["App", "Connection", "Tls", "UnmanagedWarning", "register"]
