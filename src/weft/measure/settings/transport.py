"""Which transport a test runs over: the value of `--over`.

`tcp`, `udp`, `delay`, `mpi`, `ofi:PROVIDER`, `verbs` or `verbs:DEVICE`. Entry point: `parse_over`.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import InputError

WITHOUT_DEVICE = ("tcp", "udp", "delay", "mpi")
WITH_DEVICE = ("ofi", "verbs")
REMEDY = "use tcp, udp, ofi:PROVIDER, verbs[:DEVICE], delay or mpi; weft doctor lists what is here"


@dataclass(frozen=True, slots=True)
class Over:
    """A transport and, where it has several, the device or provider."""

    transport: str
    device: str = ""

    def has(self, device: str) -> bool:
        """Whether what is known of a device, or of all ("") of them, is about this."""
        return not self.device or device in ("", self.device)

    def __str__(self) -> str:
        return f"{self.transport}:{self.device}" if self.device else self.transport


def parse_over(text: str, where: str = "--over") -> Over:
    """The transport that `text` names."""
    transport, colon, device = text.partition(":")
    if transport not in WITHOUT_DEVICE + WITH_DEVICE:
        raise InputError(where, f"{text!r} is not a transport", REMEDY)
    if colon and transport in WITHOUT_DEVICE:
        raise InputError(where, f"{transport} has no devices", f"use {transport} alone")
    if colon and not device:
        raise InputError(where, f"{text!r} names no device after the colon", REMEDY)
    if transport == "ofi" and not device:
        remedy = "name one, such as ofi:tcp or ofi:shm; weft doctor lists them"
        raise InputError(where, "ofi needs a provider", remedy)
    return Over(transport, device)
