"""The library that applications use: registration, marked connections, leases."""

from weft.control.client.app import App, Connection, UnmanagedWarning, register
from weft.control.client.grpc_link import Tls

__all__ = ["App", "Connection", "Tls", "UnmanagedWarning", "register"]
