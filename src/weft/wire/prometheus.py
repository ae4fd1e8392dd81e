"""Metrics in Prometheus's text format, and a server of /metrics.

prometheus-client takes some ten times as long to write a sample; a fabric has a hundred thousand.
Labels are formatted once per port (`format_labels`) and used for all of its metrics.
Entry points: `format_family`, `format_labels`, `MetricsServer`.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

from weft.errors import InputError, WeftError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PATH = "/metrics"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def format_labels(labels: Mapping[str, object]) -> str:
    """`{node="leaf-1",port="3"}`"""
    pairs = [f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def format_family(
    name: str,
    kind: Literal["gauge", "counter"],
    about: str,
    samples: Iterable[tuple[str, float | int]],
) -> str:
    """One metric with its samples: labels, as `format_labels` gives them, and a value each."""
    lines = [f"# HELP {name} {about}\n# TYPE {name} {kind}\n"]
    lines += [f"{name}{labels} {value}\n" for labels, value in samples]
    return "".join(lines)


class MetricsServer(ThreadingHTTPServer):
    """Serves what `collect` returns, in a thread for each request. Close it."""

    daemon_threads = True

    def __init__(
        self,
        host: str,
        port: int,
        collect: Callable[[], str],
        tls: Mapping[str, Path] | None = None,
    ) -> None:
        """`tls`: the files `certificate`, `key`, and `clients`, the authority of who may ask."""
        self.collect = collect
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            problem = error.strerror or str(error)
            remedy = "end who listens there, or change it"
            raise InputError(f"metrics {host}:{port}", problem, remedy) from error
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tls["clients"])
            context.load_cert_chain(tls["certificate"], tls["key"])
            context.verify_mode = ssl.CERT_REQUIRED
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    def start(self) -> None:
        """Answers from a thread of its own."""
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """A scrape that was broken off is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = 10.0  # of a caller who says nothing

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != _PATH:
            self.send_error(404, f"{_PATH} is what there is")
            return
        try:
            body, status = self.server.collect().encode(), 200
        except WeftError as error:
            body, status = f"{error}\n".encode(), 503
        self.send_response(status)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Scrapes are not logged."""
