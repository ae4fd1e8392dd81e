"""Which controller has a switch: its owner and epoch, on disk, so that older ones stay refused.

An epoch is a number that only grows. A controller comes with one that others agreed to (etcd), or
asks for the next: it gets that only while no other owner is connected. Whoever has a lower epoch
than the highest ever seen is refused. Entry points: `grant` (pure), `read_grant`, `write_grant`.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from weft.errors import InputError
from weft.switches.tables import Claim


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Who has the switch; epoch 0: nobody ever had it. `pid`: of the owner's process, if here."""

    owner: str = ""
    epoch: int = 0
    pid: int = 0

    def belongs_to(self, claim: Claim) -> bool:
        return self.owner == claim.owner and claim.epoch in (None, self.epoch)


def grant(last: Grant, claim: Claim, *, is_connected: bool) -> Grant | None:
    """What the claim gives; None: it is refused. `is_connected`: the last owner is."""
    if last.belongs_to(claim):
        return last
    if claim.epoch is None:
        return None if is_connected else Grant(owner=claim.owner, epoch=last.epoch + 1)
    return Grant(owner=claim.owner, epoch=claim.epoch) if claim.epoch > last.epoch else None


def read_grant(path: Path) -> Grant:
    try:
        return decode_grant(path.read_bytes(), str(path))
    except FileNotFoundError:
        return Grant()


def decode_grant(data: bytes, where: str) -> Grant:
    if not data:
        return Grant()
    try:
        return msgspec.json.decode(data, type=Grant)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        remedy = "delete it once no other controller has the switch"
        raise InputError(where, f"damaged: {error}", remedy) from error


def write_grant(path: Path, grant: Grant) -> None:
    """On disk, whole or not at all."""
    draft = path.with_name(f"{path.name}.new")
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(grant))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
