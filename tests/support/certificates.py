"""Certificates for tests of TLS, made by the openssl command."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificates(folder: Path) -> None:
    """An authority, and certificates of a controller and a client signed by it."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes")
    openssl(
        *new, "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem"
    )
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("controller", "client"):
        openssl(*new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-days", "2", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")
        (folder / f"{name}.key").chmod(0o600)
