"""Two connected endpoints in one process, and loops that run on them side by side."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from weft._core import Counts, Endpoint, EndpointConfig, LoopSpec, StopFlag

LIMIT_S = 60.0  # the virtual machine is slow; nothing here takes a tenth of it on hardware
T = TypeVar("T")
R = TypeVar("R")


def settings(**fields: Any) -> EndpointConfig:
    config = EndpointConfig()
    config.transport = "verbs"
    for name, value in fields.items():
        setattr(config, name, value)
    return config


def loop(**fields: Any) -> LoopSpec:
    spec = LoopSpec()
    for name, value in {"count": 20, **fields}.items():
        setattr(spec, name, value)
    return spec


@contextmanager
def opened(*configs: EndpointConfig) -> Iterator[list[Endpoint]]:
    with ExitStack() as stack:
        endpoints = []
        for config in configs:
            endpoints.append(Endpoint.open(config))
            stack.callback(endpoints[-1].close)
        yield endpoints


@contextmanager
def connected(ours: EndpointConfig, theirs: EndpointConfig) -> Iterator[tuple[Endpoint, Endpoint]]:
    with opened(ours, theirs) as (a, b):
        a.connect(b.address(), 5000)
        b.connect(a.address(), 5000)
        yield a, b


@contextmanager
def pair(**fields: Any) -> Iterator[tuple[Endpoint, Endpoint]]:
    with connected(settings(**fields), settings(**fields)) as endpoints:
        yield endpoints


@contextmanager
def loopback(**fields: Any) -> Iterator[Endpoint]:
    with opened(settings(**fields)) as (endpoint,):
        endpoint.connect(endpoint.address(), 5000)
        yield endpoint


def served(main: Callable[[StopFlag], T], responder: Callable[[StopFlag], R]) -> tuple[T, R]:
    """Runs `main` with its responder beside it, which is stopped when `main` is done."""
    return _together(main, responder, lambda _, stop: stop.set())


def drained(
    stream: Callable[[StopFlag], Counts], sink: Callable[[StopFlag], R]
) -> tuple[Counts, R]:
    """Runs a stream with its sink beside it, which goes on until it has what was sent."""
    return _together(stream, sink, lambda counts, stop: stop.finish_at(counts.sent))


def _together(
    main: Callable[[StopFlag], T],
    other: Callable[[StopFlag], R],
    at_end: Callable[[T, StopFlag], None],
) -> tuple[T, R]:
    ours, theirs = StopFlag(), StopFlag()
    alarms = [threading.Timer(LIMIT_S, stop.set) for stop in (ours, theirs)]
    for alarm in alarms:
        alarm.start()
    try:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(other, theirs)
            try:
                result = main(ours)
                at_end(result, theirs)
            except BaseException:
                theirs.set()
                raise
            return result, future.result()
    finally:
        for alarm in alarms:
            alarm.cancel()
