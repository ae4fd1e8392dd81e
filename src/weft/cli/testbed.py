"""`weft testbed`: a network of hosts on this machine: up, exec, status, down."""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import asdict
from typing import Any

from weft.errors import InputError
from weft.host.net import namespaces
from weft.host.testbed import persistent
from weft.host.testbed.build import Testbed
from weft.host.testbed.persistent import DEFAULT_NAME, Port, Status
from weft.host.testbed.wiring import LIMIT_BYTES, SHAPES, Wiring
from weft.records.record_text import format_table
from weft.units import format_value, parse_rate, parse_size

_BARE_RATE = re.compile(r"\s*[0-9][0-9_]*(\.[0-9]+)?\s*[kKMGT]")
_MAX_HOSTS = 253


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "testbed",
        help="a network of hosts on this machine: up, exec, status, down",
        description="Network namespaces as hosts, on bridges whose ports have a rate. Needs root. "
        "`up` builds it, `exec` runs commands on its hosts, `down` removes everything.",
    )
    verbs = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_up(_add_verb(verbs, "up", "build a testbed, unless it is up as requested"))
    _add_exec(_add_verb(verbs, "exec", "run a command on a host and return its status"))
    _add_status(
        _add_verb(verbs, "status", "the testbeds as the kernel has them; status 1 if damaged")
    )
    _add_down(_add_verb(verbs, "down", "remove a testbed and end the processes on its hosts"))


def _add_verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, description: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(
        name, help=description, description=description[0].upper() + description[1:] + "."
    )


def _add_name(verb: argparse.ArgumentParser, default: str | None) -> None:
    shown = default or "all"
    verb.add_argument(
        "--name", default=default, metavar="NAME", help=f"the testbed's name, {shown}"
    )


def _add_up(verb: argparse.ArgumentParser) -> None:
    _add_name(verb, DEFAULT_NAME)
    verb.add_argument("--hosts", required=True, metavar="N", help="h1 to hN, at most 253")
    verb.add_argument("--rate", required=True, metavar="RATE", help="of each link, such as 200M")
    verb.add_argument(
        "--switches", choices=SHAPES, default="one", help="one (default), two-hops or leaf-spine"
    )
    verb.add_argument("--leaves", metavar="N", default="2", help="of leaf-spine, 2")
    verb.add_argument("--spines", metavar="N", default="2", help="of leaf-spine, 2")
    verb.add_argument("--uplink", metavar="RATE", help="between switches; default: --rate")
    verb.add_argument("--limit", metavar="SIZE", help=f"of each queue, '{LIMIT_BYTES} B'")
    verb.add_argument("--burst", metavar="SIZE", help="at once; default 4 ms of the rate")
    verb.add_argument("--mtu", metavar="BYTES", default="1500", help="1500")
    verb.add_argument("--congestion", metavar="NAME", default="cubic", help="of TCP, cubic")
    verb.add_argument(
        "--offloads", choices=("on", "off"), default="on", help="off: no packet above the MTU"
    )
    verb.add_argument("--json", action="store_true")
    verb.set_defaults(run=run_up)


def _add_exec(verb: argparse.ArgumentParser) -> None:
    _add_name(verb, DEFAULT_NAME)
    verb.add_argument("host", metavar="HOST", help="a host or a switch")
    verb.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    verb.set_defaults(run=run_exec)


def _add_status(verb: argparse.ArgumentParser) -> None:
    _add_name(verb, None)
    verb.add_argument("--json", action="store_true")
    verb.set_defaults(run=run_status)


def _add_down(verb: argparse.ArgumentParser) -> None:
    _add_name(verb, DEFAULT_NAME)
    verb.add_argument("--json", action="store_true")
    verb.set_defaults(run=run_down)


# ---- Up ---------------------------------------------------------------------------------------


def run_up(args: argparse.Namespace) -> int:
    bed, built = persistent.build_testbed(args.name, _read_wiring(args))
    print(_build_up_json(args.name, bed, built) if args.json else _format_up(args.name, bed, built))
    return 0


def _read_wiring(args: argparse.Namespace) -> Wiring:
    hosts = _parse_count(args.hosts, "--hosts", _MAX_HOSTS)
    return Wiring(
        hosts=tuple(f"h{n}" for n in range(1, hosts + 1)),
        rate_bps=parse_link_rate(args.rate, "--rate"),
        switches=args.switches,
        leaves=_parse_count(args.leaves, "--leaves", 32),
        spines=_parse_count(args.spines, "--spines", 32),
        uplink_bps=None if args.uplink is None else parse_link_rate(args.uplink, "--uplink"),
        limit_bytes=_parse_size(args.limit, "--limit") or LIMIT_BYTES,
        nic_limit_bytes=_parse_size(args.limit, "--limit") or LIMIT_BYTES,
        burst_bytes=_parse_size(args.burst, "--burst"),
        mtu_bytes=_parse_mtu(args.mtu),
        offloads=args.offloads == "on",
        congestion=args.congestion,
    )


def _parse_count(text: str, where: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise InputError(f"{where} {text}", f"is not in 1 to {most}", "use such a number")
    return int(text)


def _parse_mtu(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 576 <= int(text) <= 65_535:
        raise InputError(f"--mtu {text}", "is not in 576 to 65535", "use such a number of bytes")
    return int(text)


def parse_link_rate(text: str, where: str) -> int:
    """As tc writes rates (200M), or with the unit spelled out (200 Mb/s)."""
    rate = parse_rate(f"{text}b/s" if _BARE_RATE.fullmatch(text) else text, where)
    if not 8_000 <= rate <= 1e13:
        raise InputError(f"{where} {text}", "is not in 8 kb/s to 10 Tb/s", "use such a rate")
    return round(rate)


def _parse_size(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    size = parse_size(text, where)
    if not 1 <= size < 2**32:
        raise InputError(f"{where} {text!r}", "is not in 1 B to 4 GiB", "use such a size")
    return size


def _format_up(name: str, bed: Testbed, built: bool) -> str:
    plan, wiring = bed.layout, bed.wiring
    verb = "up" if built else "up already"
    head = (
        f"testbed {name} {verb}: {_format_count(len(wiring.hosts), 'host')}, "
        f"{_format_count(len(plan.switches), 'switch', 'switches')}, "
        f"links of {format_value(wiring.rate_bps, 'b/s')}, {wiring.congestion}"
    )
    rows = [
        (host, plan.addresses[host], far.node, far.interface, bed.namespaces[host])
        for host in wiring.hosts
        for far in plan.access(host).ends[1:]
    ]
    return f"{head}\n\n{format_table(('host', 'address', 'switch', 'port', 'namespace'), rows, 5)}"


def _format_count(count: int, singular: str, plural: str = "") -> str:
    return f"{count} {singular if count == 1 else plural or singular + 's'}"


def _build_up_json(name: str, bed: Testbed, built: bool) -> str:
    plan = bed.layout
    report = {
        "name": name,
        "built": built,
        "wiring": asdict(bed.wiring),
        "addresses": plan.addresses,
        "namespaces": bed.namespaces,
        "switches": plan.switches,
    }
    return json.dumps(report)


# ---- Exec, status, down -----------------------------------------------------------------------


def run_exec(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        remedy = f"weft testbed exec {args.host} -- COMMAND"
        raise InputError("testbed exec", "no command is given", remedy)
    bed = persistent.find_testbed(args.name)
    namespaces.exec_inside(bed.namespace(args.host), command, hostname=args.host)


def run_status(args: argparse.Namespace) -> int:
    wanted = persistent.list_testbeds() if args.name is None else [args.name]
    statuses = {name: persistent.read_status(name) for name in wanted}
    if args.json:
        print(
            json.dumps(
                {"testbeds": [_build_status_json(n, status) for n, status in statuses.items()]}
            )
        )
    elif statuses:
        print("\n\n".join(_format_status(name, status) for name, status in statuses.items()))
    else:
        print("no testbed is up")
    return (
        0 if all(status is not None and not status.problems for status in statuses.values()) else 1
    )


def _format_status(name: str, status: Status | None) -> str:
    if status is None:
        return f"testbed {name}: not up"
    heads = ("node", "interface", "peer", "discipline", "rate", "passed", "dropped")
    rows = [
        (
            port.node,
            port.interface,
            port.peer,
            port.discipline,
            _format_rate(port),
            format_value(port.passed_bytes, "B"),
            str(port.dropped),
        )
        for port in status.ports
    ]
    running = sum(status.processes.values())
    how = "damaged" if status.problems else "up"
    lines = [
        f"testbed {name}: {how}, {_format_count(running, 'process', 'processes')} on its hosts"
    ]
    lines += [f"  {problem}" for problem in status.problems]
    return "\n".join([*lines, "", format_table(heads, rows, 4)] if rows else lines)


def _format_rate(port: Port) -> str:
    return "-" if port.rate_bps is None else format_value(port.rate_bps, "b/s")


def _build_status_json(name: str, status: Status | None) -> dict[str, Any]:
    if status is None:
        return {"name": name, "up": False}
    report = {"name": name, "up": not status.problems, "problems": status.problems}
    report |= {"wiring": asdict(status.state.wiring), "processes": status.processes}
    return report | {"ports": [asdict(port) for port in status.ports]}


def run_down(args: argparse.Namespace) -> int:
    removed = persistent.remove_testbed(args.name)
    if args.json:
        print(json.dumps({"name": args.name, "removed": removed}))
    else:
        outcome = f"removed, {_format_count(len(removed), 'namespace')}" if removed else "is not up"
        print(f"testbed {args.name}: {outcome}")
    return 0
