"""Rate of datagrams that the host's network stack sends, by size.

Each datagram costs the stack a fixed time, each further fragment more, each byte a little; above a
size at which received packets are no longer copied into small buffers, each datagram costs pages
to be mapped. Entry points: `fragmented_rate`, `mapped_rate`. Units: M/s (datagrams per us), us,
ns/B.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.model.fit import FloatArray, Form, Input, Unknown

_SIZE = (Input(name="size_bytes", unit="B", meaning="payload of a datagram", least=1.0),)
_DATAGRAM = Unknown(name="datagram_us", unit="us", meaning="for each datagram", start=2.0)
_BYTE = Unknown(name="byte_ns", unit="ns/B", meaning="for each byte", start=0.5)

UDP_HEADER_BYTES = 8
IPV4_HEADER_BYTES = 20


def fragments(size_bytes: FloatArray, mtu_bytes: int) -> FloatArray:
    """Of a UDP datagram in IPv4 packets of that MTU: all but the last carry a multiple of 8."""
    carried = (mtu_bytes - IPV4_HEADER_BYTES) // 8 * 8
    return np.ceil((size_bytes + UDP_HEADER_BYTES) / carried)


def fragmented_rate(mtu_bytes: int) -> Form:
    """Datagrams that are cut into packets of the MTU."""

    def evaluate(p: Mapping[str, float], x: Mapping[str, FloatArray]) -> FloatArray:
        further = fragments(x["size_bytes"], mtu_bytes) - 1.0
        per_byte_us = p["byte_ns"] * x["size_bytes"] / 1e3
        return np.asarray(1.0 / (p["datagram_us"] + p["fragment_us"] * further + per_byte_us))

    return Form(
        name="datagram rate",
        formula=f"1/(datagram + fragment·(f − 1) + byte·n), f fragments of {mtu_bytes} B",
        source="cost of a network stack, by datagram, fragment and byte",
        unit="M/s",
        unknowns=(
            _DATAGRAM,
            Unknown(name="fragment_us", unit="us", meaning="for each fragment but one", start=1.0),
            _BYTE,
        ),
        inputs=_SIZE,
        evaluate=evaluate,
    )


def mapped_rate(copied_below_bytes: int) -> Form:
    """Datagrams in one packet each, received into mapped pages unless they are small."""

    def evaluate(p: Mapping[str, float], x: Mapping[str, FloatArray]) -> FloatArray:
        mapped = x["size_bytes"] >= copied_below_bytes
        per_byte_us = p["byte_ns"] * x["size_bytes"] / 1e3
        return np.asarray(1.0 / (p["datagram_us"] + p["map_us"] * mapped + per_byte_us))

    return Form(
        name="datagram rate",
        formula=f"1/(datagram + map·[n ≥ {copied_below_bytes} B] + byte·n)",
        source="cost of a network stack, by datagram and byte, and of pages mapped to receive",
        unit="M/s",
        unknowns=(
            _DATAGRAM,
            Unknown(name="map_us", unit="us", meaning="to map pages, not for copies", start=2.0),
            _BYTE,
        ),
        inputs=_SIZE,
        evaluate=evaluate,
    )
