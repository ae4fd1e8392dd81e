"""Rates of links: InfiniBand speeds and widths, or a plain rate.

A lane signals at `signal` Gb/s; its line code spends part of that, so data moves at
`signal · payload / coded`. SDR to QDR use 8b/10b, FDR to EDR 64b/66b. HDR and NDR send
64b/66b blocks transcoded to 256b/257b under RS-FEC(544,514): 256/257 · 514/544 = 16/17.
Entry point: `link_rate`. Units: bits per second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from weft.errors import InputError
from weft.units import TIME_PS, parse_rate

WIDTHS = (1, 2, 4, 8, 12)


@dataclass(frozen=True, slots=True)
class _LineCode:
    name: str
    payload: int
    coded: int


_8B10B = _LineCode("8b/10b", 8, 10)
_64B66B = _LineCode("64b/66b", 64, 66)
_RS_FEC = _LineCode("64b/66b+RS-FEC(544,514)", 16, 17)

_LANES: dict[str, tuple[float, _LineCode]] = {
    "SDR": (2.5e9, _8B10B),
    "DDR": (5.0e9, _8B10B),
    "QDR": (10.0e9, _8B10B),
    "FDR10": (10.3125e9, _64B66B),
    "FDR": (14.0625e9, _64B66B),
    "EDR": (25.78125e9, _64B66B),
    "HDR": (53.125e9, _RS_FEC),
    "NDR": (106.25e9, _RS_FEC),
}
SPEEDS = tuple(_LANES)


def lane_speed(text: str) -> str:
    """The speed of a lane as InfiniBand tools print it: "14.0625 Gbps" is FDR."""
    if "FDR10" in text:
        return "FDR10"
    signal_bps = float(text.split()[0]) * 1e9
    return next((name for name, (bps, _) in _LANES.items() if bps == signal_bps), text)


_NAME = re.compile(r"^\s*([0-9]+)[xX]\s*([A-Za-z]+[0-9]*)\s*$")
_PLAIN = re.compile(r"^\s*(.*?[0-9])\s*([A-Za-z/]+)\s*$")
_REMEDY = (
    f"write WIDTHxSPEED with width {', '.join(map(str, WIDTHS))} and speed {', '.join(SPEEDS)}"
)


@dataclass(frozen=True, slots=True)
class LinkRate:
    """An InfiniBand rate: `width` lanes of one `speed`, such as 4xFDR."""

    speed: str
    width: int

    def __post_init__(self) -> None:
        if self.speed not in _LANES or self.width not in WIDTHS:
            raise InputError("link rate", f"{self.width}x{self.speed} does not exist", _REMEDY)

    @classmethod
    def parse(cls, text: str, where: str = "link rate") -> LinkRate:
        """The rate written as "4xFDR" (case and space do not matter)."""
        match = _NAME.match(text)
        if match is None or match[2].upper() not in _LANES or int(match[1]) not in WIDTHS:
            raise InputError(where, f"{text!r} is not a known link rate", _REMEDY)
        return cls(match[2].upper(), int(match[1]))

    @property
    def encoding(self) -> str:
        return _LANES[self.speed][1].name

    @property
    def signal_bps(self) -> float:
        return _LANES[self.speed][0] * self.width

    @property
    def data_bps(self) -> float:
        code = _LANES[self.speed][1]
        return self.signal_bps * code.payload / code.coded

    def __str__(self) -> str:
        return f"{self.width}x{self.speed}"


SLOWEST_BPS, FASTEST_BPS = 1e6, 1e14


@dataclass(frozen=True, slots=True)
class PlainRate:
    """A rate given as a number: all of it carries data."""

    text: str
    data_bps: float

    @property
    def encoding(self) -> str:
        return "none"

    @property
    def signal_bps(self) -> float:
        return self.data_bps

    def __str__(self) -> str:
        return self.text


def link_rate(text: str, where: str = "link rate") -> LinkRate | PlainRate:
    """The rate written as "4xFDR" or as "56 Gb/s"; the latter is a data rate."""
    if isinstance(text, str) and _NAME.match(text):
        return LinkRate.parse(text, where)
    data_bps = parse_rate(text, where)
    if not SLOWEST_BPS <= data_bps <= FASTEST_BPS:
        raise InputError(where, f"{text!r} is out of range", "use 1 Mb/s to 100 Tb/s")
    return PlainRate(_PLAIN.sub(r"\1 \2", text), data_bps)


def format_time(ps: int) -> str:
    """The duration in the largest unit that needs no fraction: 1500000 ps is "1500 ns"."""
    factor, unit = max((f, u) for u, f in TIME_PS.items() if ps % f == 0 and u.isascii())
    return f"{ps // factor} {unit}"
