"""What systemd is told of a service: as sd_notify(3), without its library.

Entry point: `notify_service_manager`.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify_service_manager(state: str) -> None:
    """As sd_notify(3): nothing happens unless systemd has started this process."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.setblocking(False)  # nobody waits for a manager that does not read
        end.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        end.sendall(state.encode())
