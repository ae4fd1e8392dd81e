"""Certificates for a lab: an authority, a controller's certificate, and one for each client.

The openssl command makes them. A folder that has an authority keeps it, so that clients can be
added later. The name in a client's certificate is its identity (`tls:NAME`). Keys can be read by
their owner alone. The authority's key lies beside the others: for a lab, not for a data centre.
Entry point: `make_certificates`.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from weft.errors import InputError
from weft.records.store import explain_file_errors

AUTHORITY, CONTROLLER = "ca", "controller"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
_REQUEST = """\
[req]
distinguished_name = subject
x509_extensions = authority
prompt = no
[subject]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""


def make_certificates(
    folder: Path, hosts: Sequence[str], clients: Sequence[str], days: int
) -> list[Path]:
    """Makes what the folder lacks; the certificates made.

    `hosts` are the names and addresses that clients know the controller by.
    """
    for name in clients:
        _check_name("client", name)
    extensions = {CONTROLLER: _name_hosts(hosts), **dict.fromkeys(clients, "")}
    if len(extensions) <= len(clients) or AUTHORITY in extensions:
        raise InputError("client", f"{AUTHORITY} and {CONTROLLER} are taken", "choose other names")
    with explain_file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as scratch:
        maker = _Maker(folder, Path(scratch), days)
        made = [] if maker.has(AUTHORITY) else [maker.make_authority()]
        return made + [
            maker.sign(name, lines) for name, lines in extensions.items() if not maker.has(name)
        ]


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InputError(f"{kind} {name!r}", "is no name", "use 1 to 63 of A-Z a-z 0-9 . _ -")


def _name_hosts(hosts: Sequence[str]) -> str:
    names = []
    for host in hosts:
        try:
            names.append(f"IP:{ipaddress.ip_address(host)}")
        except ValueError:
            _check_name("host", host)
            names.append(f"DNS:{host}")
    return f"subjectAltName = {', '.join(names)}\n"


class _Maker:
    def __init__(self, folder: Path, scratch: Path, days: int) -> None:
        self._folder, self._scratch, self._days = folder, scratch, str(days)

    def has(self, name: str) -> bool:
        """Whether the folder has this certificate and its key; half of them is an error."""
        present = [self._path(name, kind).exists() for kind in ("pem", "key")]
        if any(present) and not all(present):
            missing = self._path(name, "key" if present[0] else "pem")
            raise InputError(str(missing), "is missing", f"restore it, or remove {name}.*")
        return all(present)

    def make_authority(self) -> Path:
        signed = ("-x509", "-days", self._days)
        return self._install(AUTHORITY, self._request(AUTHORITY, "weft lab authority", *signed))

    def sign(self, name: str, extensions: str) -> Path:
        request = self._request(name, name)
        lines = self._scratch / "extensions"
        lines.write_text(f"{extensions}basicConstraints = CA:FALSE\n")
        certificate = self._scratch / f"{name}.pem"
        authority = ("-CA", self._path(AUTHORITY, "pem"), "-CAkey", self._path(AUTHORITY, "key"))
        serial = ("-set_serial", f"0x{secrets.token_hex(16)}", "-days", self._days)
        output = ("-extfile", lines, "-out", certificate)
        _run("x509", "-req", "-in", request, *authority, *serial, *output)
        return self._install(name, certificate)

    def _request(self, name: str, subject: str, *more: str) -> Path:
        """A request for a certificate, or a certificate of its own, and a new key."""
        config, request = self._scratch / "config", self._scratch / f"{name}.request"
        config.write_text(_REQUEST.format(name=subject))
        key = self._scratch / f"{name}.key"
        files = ("-config", config, "-keyout", key, "-out", request)
        _run("req", "-new", *_NEW_KEY, *more, *files)
        return request

    def _install(self, name: str, certificate: Path) -> Path:
        """The key first: a certificate without its key is of no use."""
        for kind, source, mode in (
            ("key", self._scratch / f"{name}.key", 0o600),
            ("pem", certificate, 0o644),
        ):
            path = self._path(name, kind)
            with explain_file_errors(path):
                handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
                with os.fdopen(handle, "wb") as file:
                    file.write(source.read_bytes())
        return self._path(name, "pem")

    def _path(self, name: str, kind: str) -> Path:
        return self._folder / f"{name}.{kind}"


def _run(*words: str | Path) -> None:
    try:
        subprocess.run(["openssl", *words], check=True, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise InputError("openssl", "is not installed", "install it: it makes the keys") from error
    except subprocess.CalledProcessError as error:
        problem = error.stderr.strip().rpartition("\n")[2]
        raise InputError("openssl", problem, "check its version: 1.1.1 or later") from error
