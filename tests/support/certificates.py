"""Certificates for tests of TLS."""

from __future__ import annotations

from pathlib import Path

from weft.control.client.lab_certificates import make_certificates


def certificates(folder: Path) -> None:
    """An authority, and certificates of a controller and a client signed by it."""
    make_certificates(folder, ["127.0.0.1", "localhost"], ["client"], days=2)
