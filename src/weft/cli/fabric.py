"""`weft fabric FILE…`: what a fabric is, whether its routes can deadlock, and conversion."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable

from weft.errors import InputError
from weft.fabric import (
    Fabric,
    describe_cycle,
    find_cycle,
    path,
    read_fabric,
    route,
    with_addresses,
    write_ibnetdiscover,
    write_lft,
    write_toml,
)
from weft.records import check_output, write_text

WRITERS: dict[str, Callable[[Fabric], str]] = {
    "toml": write_toml,
    "ibnetdiscover": write_ibnetdiscover,
    "lft": write_lft,
}


def run(args: argparse.Namespace) -> int:
    if args.output:
        check_output(args.output)
    fabric = read_fabric(args.files if len(args.files) > 1 else args.files[0])
    if args.routing:
        fabric = route(fabric, args.routing)
    if args.to:
        return _convert(fabric, args.to, args.output)
    if args.path:
        print(" -> ".join(_format_path(fabric, *args.path)))
        return 0
    facts = _describe(fabric)
    cycle = find_cycle(fabric) if fabric.routes is not None else None
    facts["deadlock"] = describe_cycle(fabric, cycle) if cycle else "none possible"
    if fabric.routes is None:
        facts["deadlock"] = "unknown: no routes (give --routing, or a dump of forwarding tables)"
    remarks = {"findings": fabric.findings, "warnings": fabric.warnings}
    if args.json:
        print(json.dumps(facts | remarks))
    else:
        lines = [*facts.items(), *((key[:-1], t) for key, texts in remarks.items() for t in texts)]
        print("\n".join(f"{key:>9}: {value}" for key, value in lines))
    return 1 if cycle or fabric.findings else 0


def _describe(fabric: Fabric) -> dict[str, str | int]:
    rates = Counter(link.rate_name for link in fabric.links)
    return {
        "fabric": fabric.name,
        "hosts": len(fabric.hosts),
        "switches": len(fabric.switches),
        "links": ", ".join(f"{count} × {rate}" for rate, count in sorted(rates.items())),
        "lanes": fabric.lanes,
    }


def _convert(fabric: Fabric, to: str, output: str | None) -> int:
    text = WRITERS[to](fabric if to == "toml" else with_addresses(fabric))
    if output:
        write_text(output, text)
    else:
        print(text, end="")
    return 0


def _format_path(fabric: Fabric, src: str, dst: str) -> list[str]:
    numbers = {node.name: i for i, node in enumerate(fabric.nodes)}
    for name in (src, dst):
        if name not in numbers:
            raise InputError("--path", f"{name!r} is not in the fabric", "check the name")
    hops = path(fabric, numbers[src], numbers[dst])
    return [*(f"{fabric.nodes[node].name}:{port}" for node, port in hops), dst]
