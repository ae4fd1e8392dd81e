"""The InfiniBand driver: virtual-lane arbitration of switches and adapters, by management packets.

`infiniband()` opens a port of this host's adapter and drives the subnet that it is on. Unverified
on InfiniBand hardware: it has run against ibsim and OpenSM alone (docs/switches.md).
`open_switches` does the same by a TOML table, of which it takes the keys `adapter`, `port`,
`m_key_file`, `levels`, `window`, `tries`, `timeout` ("200 ms"); all have defaults.
"""

from __future__ import annotations

from pathlib import Path

from weft.switches.infiniband import mad
from weft.switches.infiniband.driver import LEVELS, InfinibandSwitches
from weft.switches.infiniband.mad_transport import (
    TIMEOUT_S,
    TRIES,
    WINDOW,
    Umad,
    WindowedSmps,
    read_m_key,
)
from weft.toml_table import Table

UNVERIFIED = "unverified on InfiniBand hardware: ran against ibsim and OpenSM alone"
_PS = 10**12
_MOST_PORT, _MOST_WINDOW, _MOST_TRIES = 254, 1024, 100
_LEAST_TIMEOUT_PS = 10**9


def open_subnet(
    *,
    adapter: str | None = None,
    port: int = 0,
    m_key_file: Path | None = None,
    levels: int = LEVELS,
    window: int = WINDOW,
    tries: int = TRIES,
    timeout_s: float = TIMEOUT_S,
) -> InfinibandSwitches:
    """The subnet of an adapter's port (the first active one if none is named)."""
    m_key = 0 if m_key_file is None else read_m_key(m_key_file)
    wire = WindowedSmps(
        Umad(adapter, port), m_key=m_key, window=window, tries=tries, timeout_s=timeout_s
    )
    return InfinibandSwitches(wire, levels=levels)


def open_switches(table: Table) -> InfinibandSwitches:
    """The driver that a controller's file asks for."""
    m_key_file = table.text("m_key_file", None)
    return open_subnet(
        adapter=table.text("adapter", None),
        port=table.integer("port", 0, _MOST_PORT, 0),
        m_key_file=Path(m_key_file) if m_key_file else None,
        levels=table.integer("levels", 1, mad.LEVELS, LEVELS),
        window=table.integer("window", 1, _MOST_WINDOW, WINDOW),
        tries=table.integer("tries", 1, _MOST_TRIES, TRIES),
        timeout_s=table.time_ps("timeout", TIMEOUT_S * _PS, _LEAST_TIMEOUT_PS) / _PS,
    )


__all__ = ["UNVERIFIED", "InfinibandSwitches", "infiniband", "open_switches"]
