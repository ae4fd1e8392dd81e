"""Two endpoints of one application, connected to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from queue import Queue

from weft._core import EndpointConfig
from weft.control.client import App, Connection

LIMIT_S = 30.0


def swapped(there: Queue[bytes], back: Queue[bytes]) -> Callable[[bytes], bytes]:
    def exchange(own: bytes) -> bytes:
        there.put(own)
        return back.get(timeout=LIMIT_S)

    return exchange


@contextmanager
def connected_endpoints(
    app: App, ours: EndpointConfig, theirs: EndpointConfig, hosts: tuple[str, str]
) -> Iterator[tuple[Connection, Connection]]:
    """Both tell what they send: `hosts` there and back."""
    there: Queue[bytes] = Queue()
    back: Queue[bytes] = Queue()
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(
            app.connect_endpoint,
            theirs,
            swapped(back, there),
            hosts[1],
            hosts[0],
            timeout_s=LIMIT_S,
        )
        first = app.connect_endpoint(ours, swapped(there, back), *hosts, timeout_s=LIMIT_S)
        with first, second.result() as other:
            yield first, other
