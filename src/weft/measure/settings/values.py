"""Values of settings, as people write them on a command line or in Python.

A reader takes a value as written and its place, and returns it in the setting's unit or raises an
InputError. Sizes may end in K, M, G (powers of 1024, as the classic tools count) or in a
unit (KiB, kB); times need a unit; rates per second may end in k, M, G (powers of 1000).
`read_…` functions are readers; `…_reader` functions return one with given limits. `client_cpu` and
`server_cpu` turn the setting `cpu` into the processor of a loop.
Entry points: `size_reader`, `integer_reader`, `choice_reader`, `read_time_ns`, `read_per_second`,
`client_cpu`, `server_cpu`. Units: bytes, nanoseconds, 1/s.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from weft.errors import InputError
from weft.host.machine.cpu import pick_cpus
from weft.sweep_grammar import Reader
from weft.units import TIME_PS, parse_quantity, parse_rate, parse_size

_RATES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
MAX_SIZE = 2**31
MAX_NS = 10**15  # eleven days


def size_reader(low: int = 1, high: int = MAX_SIZE) -> Reader:
    """Bytes: 64, "64 B", "4K", "4 KiB"."""

    def read(value: object, where: str) -> int:
        return _check_range(parse_size(value, where, bare=True), low, high, where, value, " B")

    return read


def read_time_ns(value: object, where: str) -> int:
    """Nanoseconds of "1.5 us"; a bare number is refused, as nobody can tell its unit."""
    remedy = "write a number and a unit: ns, us, ms or s"
    nanoseconds = round(parse_quantity(value, TIME_PS, "time", where, remedy) / 1000)
    return _check_range(nanoseconds, 0, MAX_NS, where, value, " ns")


def read_per_second(value: object, where: str) -> float:
    """Messages per second: 1000, "20k", "1.5M"."""
    remedy = "write messages per second, such as 1000 or 20k"
    rate = parse_quantity(value, _RATES, "rate", where, remedy)
    if not 0 < rate <= 1e9:
        raise InputError(where, f"{value!r} is out of range", "use more than 0 and at most 1G")
    return rate


def read_gigabits(value: object, where: str) -> float:
    """Gb/s of "56 Gb/s"; 0 is no limit."""
    if value == 0 or value == "0":
        return 0.0
    return parse_rate(value, where) / 1e9


def integer_reader(low: int, high: int) -> Reader:
    """An integer between two bounds."""

    def read(value: object, where: str) -> int:
        remedy = f"use a whole number from {low} to {high}"
        if isinstance(value, bool):
            raise InputError(where, f"{value!r} is not a number", remedy)
        try:
            number = int(value) if isinstance(value, int | str) else None
        except ValueError:
            number = _parse_count(value)
        if number is None:
            raise InputError(where, f"{value!r} is not a whole number", remedy)
        return _check_range(number, low, high, where, value, "")

    return read


def read_processor(value: object, where: str) -> int:
    """A CPU's number, -1 for any, or "auto"."""
    if value in ("auto", AUTO):
        return AUTO
    if isinstance(value, str) and not value.strip().lstrip("-").isdigit():
        raise InputError(where, f"{value!r} is not a processor", "use its number, or auto")
    return int(integer_reader(ANYWHERE, 4095)(value, where))


def read_memory(value: object, where: str) -> str:
    """Where messages lie: "host", "cuda" or "cuda:N"."""
    kind, _, number = str(value).partition(":")
    if value in ("host", "cuda") or (kind == "cuda" and number.isdecimal() and len(number) <= 4):
        return str(value)
    raise InputError(where, f"{value!r} is no memory", "use host, cuda or cuda:N")


def read_partition_key(value: object, where: str) -> int:
    """A partition key of InfiniBand: 16 bits, as 0x8001 or 32769; 0 is none."""
    remedy = "use 0x0001 to 0xffff"
    try:
        key = (
            int(value, 0)
            if isinstance(value, str)
            else int(integer_reader(0, 0xFFFF)(value, where))
        )
    except ValueError as error:
        raise InputError(where, f"{value!r} is not a partition key", remedy) from error
    if not 0 <= key <= 0xFFFF:
        raise InputError(where, f"{value!r} is not a partition key", remedy)
    return key


def _parse_count(value: object) -> int | None:
    """20000 of "20k" or "2e4": counts are large too."""
    try:
        count = parse_quantity(value, _RATES, "count", "")
    except InputError:
        return None
    return round(count) if count == round(count) else None


def read_share(value: object, where: str) -> float:
    """A number from 0 to 1."""
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise InputError(where, f"{value!r} is not a share", "use a number from 0 to 1")
    return number


def choice_reader(*names: str) -> Reader:
    """One of a few words."""

    def read(value: object, where: str) -> str:
        if value not in names:
            raise InputError(where, f"{value!r} is not known", f"use one of {', '.join(names)}")
        return str(value)

    return read


def read_text(value: object, where: str) -> str:
    """Any text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(where, f"{value!r} is not a text", "write a name")
    return value.strip()


def read_flag(value: object, where: str) -> bool:
    """True or false."""
    words = {"true": True, "yes": True, "false": False, "no": False}
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise InputError(where, f"{value!r} is neither true nor false", "use true or false")


def _check_range(number: int, low: int, high: int, where: str, value: object, unit: str) -> int:
    if number < low:
        raise InputError(where, f"{value!r} is too small", f"use {low}{unit} or more")
    if number > high:
        raise InputError(where, f"{value!r} is too large", f"use {high}{unit} or less")
    return number


ANYWHERE, AUTO = -1, -2


def client_cpu(cpu: int, number: int, transport: str, device: str) -> int:
    """The processor of our number-th loop."""
    if cpu == AUTO:
        return _rank_cpus(number, transport, device)[number]
    return cpu + number if cpu >= 0 else ANYWHERE


def server_cpu(
    loop: Mapping[str, Any], config: Mapping[str, Any], number: int, same_host: bool
) -> int:
    """The processor of the server's number-th loop, as the client asked."""
    cpu: int = loop["cpu"]
    if cpu != AUTO:
        return cpu
    order = _rank_cpus(number, config["transport"], config["device"])
    return order[-1 - number] if same_host else order[number]


def _near(transport: str, device: str) -> str | None:
    """The RDMA device to be near: the one named, or the one that would be chosen."""
    provider, _, domain = device.partition("/")
    if transport == "ofi" and provider == "verbs":
        return domain or None
    if transport != "verbs":
        return None
    from weft import _core  # the help of a command needs no core

    config = _core.EndpointConfig()
    config.transport, config.device = transport, device
    try:
        return _core.chosen_device(config)
    except InputError:
        return device or None  # opening it gives the reason


def _rank_cpus(number: int, transport: str, device: str) -> tuple[int, ...]:
    order = pick_cpus(len(os.sched_getaffinity(0)), _near(transport, device)).cpus
    if number >= len(order):
        problem = f"{number + 1} loops, but {len(order)} CPUs"
        raise InputError("--cpu auto", problem, "use fewer threads, or leave --cpu out")
    return order
