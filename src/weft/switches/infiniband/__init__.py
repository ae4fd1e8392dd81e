"""The InfiniBand driver: virtual-lane arbitration of switches and adapters, by management packets.

`open_subnet` opens a port of this host's adapter and drives the subnet of that port. Unverified on
InfiniBand hardware: ran against ibsim and OpenSM only (docs/switches.md). `open_switches` does the
same from a TOML table with the keys `adapter`, `port`, `m_key_file`, `levels`, `window`, `tries`,
`timeout` ("200 ms"); all have defaults.
"""

from __future__ import annotations

from pathlib import Path

from weft.switches.infiniband import mad
from weft.switches.infiniband.driver import LEVELS, InfinibandSwitches
from weft.switches.infiniband.mad_transport import (
    LIBRARY,
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
_MAX_PORT, _MAX_WINDOW, _MAX_TRIES = 254, 1024, 100
_MIN_TIMEOUT_PS = 10**9


def open_subnet(
    *,
    adapter: str | None = None,
    port: int = 0,
    m_key_file: Path | None = None,
    levels: int = LEVELS,
    window: int = WINDOW,
    tries: int = TRIES,
    timeout_s: float = TIMEOUT_S,
    library: str = LIBRARY,
) -> InfinibandSwitches:
    """The subnet of an adapter's port (the first active one if none is named)."""
    m_key = 0 if m_key_file is None else read_m_key(m_key_file)
    client = WindowedSmps(
        Umad(adapter, port, library), m_key=m_key, window=window, tries=tries, timeout_s=timeout_s
    )
    return InfinibandSwitches(client, levels=levels)


def open_switches(table: Table, library: str = LIBRARY) -> InfinibandSwitches:
    """The driver for the table of a controller's file."""
    m_key_file = table.text("m_key_file", None)
    return open_subnet(
        adapter=table.text("adapter", None),
        port=table.integer("port", 0, _MAX_PORT, 0),
        m_key_file=Path(m_key_file) if m_key_file else None,
        levels=table.integer("levels", 1, mad.LEVELS, LEVELS),
        window=table.integer("window", 1, _MAX_WINDOW, WINDOW),
        tries=table.integer("tries", 1, _MAX_TRIES, TRIES),
        timeout_s=table.time_ps("timeout", TIMEOUT_S * _PS, _MIN_TIMEOUT_PS) / _PS,
        library=library,
    )


__all__ = ["UNVERIFIED", "InfinibandSwitches", "open_subnet", "open_switches"]
