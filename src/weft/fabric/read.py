"""Read a fabric from files of any supported format.

`read_fabric` recognizes a TOML file, an `ibnetdiscover` dump, a dump of forwarding tables and the
output of `iblinkinfo` by their content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from weft.errors import InputError, locate_errors
from weft.fabric.fabric import Fabric
from weft.fabric.ibnetdiscover import read_iblinkinfo, read_ibnetdiscover
from weft.fabric.lft import HEADING, read_lft
from weft.fabric.routing import route
from weft.fabric.soundness import check_fabric
from weft.fabric.toml_file import read_toml
from weft.toml_table import read_text

_RECORD = re.compile(r'^(Switch|Ca|Hca|Rt)\s+\d+\s+"', re.MULTILINE)
_TABLE = re.compile(rf"^{HEADING} \[", re.MULTILINE)
_LINKS = re.compile(r" ==\(.*==> ")

AnyPath = str | PathLike[str]


def read_fabric(
    paths: AnyPath | Sequence[AnyPath], *, lanes: int | None = None, delay: str | None = None
) -> Fabric:
    """The fabric of one TOML file, or of a topology dump and perhaps dumps of tables and links.

    InfiniBand dumps do not say how many data lanes are used (1 if not given) and how long
    the cables are (no delay if not given).
    """
    files = [Path(p) for p in ([paths] if isinstance(paths, str | PathLike) else paths)]
    texts = {str(file): read_text(file) for file in files}
    tables = {where: text for where, text in texts.items() if _TABLE.search(text)}
    links = {where: text for where, text in texts.items() if _LINKS.search(text)}
    shapes = {where: text for where, text in texts.items() if where not in {*tables, *links}}
    if len(shapes) != 1 or len(tables) > 1 or len(links) > 1:
        raise InputError(
            ", ".join(texts) or "fabric files",
            f"{len(shapes)} topologies, {len(tables)} dumps of tables and {len(links)} of links",
            "give exactly 1 topology and at most 1 dump of forwarding tables and 1 of iblinkinfo",
        )
    ((where, text),) = shapes.items()
    fabric = _read_topology(where, text, lanes, delay)
    for at, table in tables.items():
        routes = read_lft(table, fabric, at)
        with locate_errors(at):
            fabric = check_fabric(replace(fabric, routes=routes))
    for at, info in links.items():
        below = read_iblinkinfo(info, fabric, at)
        fabric = replace(fabric, findings=(*fabric.findings, *below))
    return fabric


def add_routes(fabric: Fabric, routing: str = "") -> Fabric:
    """The fabric, checked, with routes: its own unless a routing is named, else up*/down*."""
    if routing or (fabric.routes is None and fabric.switches):
        fabric = route(fabric, routing or "up_down")
    return check_fabric(fabric)


def _read_topology(where: str, text: str, lanes: int | None, delay: str | None) -> Fabric:
    if _RECORD.search(text):
        return read_ibnetdiscover(
            text,
            where,
            name=Path(where).stem,
            lanes=1 if lanes is None else lanes,
            delay="0 ns" if delay is None else delay,
        )
    if lanes is not None or delay is not None:
        raise InputError(where, "lanes or delay given from outside", "write them into this file")
    return read_toml(text, where)
