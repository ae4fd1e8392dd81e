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
_MOST_HOSTS = 253


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "testbed",
        help="a network of hosts on this machine: up, exec, status, down",
        description="Network namespaces as hosts, on bridges whose ports have a rate. Needs root. "
        "`up` builds it, `exec` runs commands on its hosts, `down` removes all that was made.",
    )
    verbs = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_up(_verb(verbs, "up", "build a testbed; nothing if it stands as asked for"))
    _add_exec(_verb(verbs, "exec", "run a command on a host; its status is ours"))
    _add_status(_verb(verbs, "status", "what stands, read back from the kernel; 1 if not whole"))
    _add_down(_verb(verbs, "down", "remove a testbed and end what runs on its hosts"))


def _verb(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, what: str
) -> argparse.ArgumentParser:
    return verbs.add_parser(name, help=what, description=what[0].upper() + what[1:] + ".")


def _add_name(verb: argparse.ArgumentParser, default: str | None) -> None:
    told = default or "all"
    verb.add_argument("--name", default=default, metavar="NAME", help=f"of the testbed, {told}")


def _add_up(verb: argparse.ArgumentParser) -> None:
    _add_name(verb, DEFAULT_NAME)
    verb.add_argument("--hosts", required=True, metavar="N", help="h1 to hN, at most 253")
    verb.add_argument("--rate", required=True, metavar="RATE", help="of each link, as 200M")
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
    bed, built = persistent.build_testbed(args.name, _wiring(args))
    print(_up_json(args.name, bed, built) if args.json else _up_text(args.name, bed, built))
    return 0


def _wiring(args: argparse.Namespace) -> Wiring:
    hosts = _count(args.hosts, "--hosts", _MOST_HOSTS)
    return Wiring(
        hosts=tuple(f"h{n}" for n in range(1, hosts + 1)),
        rate_bps=link_rate_bps(args.rate, "--rate"),
        switches=args.switches,
        leaves=_count(args.leaves, "--leaves", 32),
        spines=_count(args.spines, "--spines", 32),
        uplink_bps=None if args.uplink is None else link_rate_bps(args.uplink, "--uplink"),
        limit_bytes=_size(args.limit, "--limit") or LIMIT_BYTES,
        nic_limit_bytes=_size(args.limit, "--limit") or LIMIT_BYTES,
        burst_bytes=_size(args.burst, "--burst"),
        mtu_bytes=_mtu(args.mtu),
        offloads=args.offloads == "on",
        congestion=args.congestion,
    )


def _count(text: str, where: str, most: int) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= most:
        raise InputError(f"{where} {text}", f"is not in 1 to {most}", "use such a number")
    return int(text)


def _mtu(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 576 <= int(text) <= 65_535:
        raise InputError(f"--mtu {text}", "is not in 576 to 65535", "use such a number of bytes")
    return int(text)


def link_rate_bps(text: str, where: str) -> int:
    """As tc writes rates (200M), or with the unit spelled out (200 Mb/s)."""
    found = parse_rate(f"{text}b/s" if _BARE_RATE.fullmatch(text) else text, where)
    if not 8_000 <= found <= 1e13:
        raise InputError(f"{where} {text}", "is not in 8 kb/s to 10 Tb/s", "use such a rate")
    return round(found)


def _size(text: str | None, where: str) -> int | None:
    if text is None:
        return None
    found = parse_size(text, where)
    if not 1 <= found < 2**32:
        raise InputError(f"{where} {text!r}", "is not in 1 B to 4 GiB", "use such a size")
    return found


def _up_text(name: str, bed: Testbed, built: bool) -> str:
    plan, wiring = bed.layout, bed.wiring
    verb = "up" if built else "up already"
    head = (
        f"testbed {name} {verb}: {_counted(len(wiring.hosts), 'host')}, "
        f"{_counted(len(plan.switches), 'switch', 'switches')}, "
        f"links of {format_value(wiring.rate_bps, 'b/s')}, {wiring.congestion}"
    )
    rows = [
        (host, plan.addresses[host], far.node, far.interface, bed.namespaces[host])
        for host in wiring.hosts
        for far in plan.access(host).ends[1:]
    ]
    return f"{head}\n\n{format_table(('host', 'address', 'switch', 'port', 'namespace'), rows, 5)}"


def _counted(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


def _up_json(name: str, bed: Testbed, built: bool) -> str:
    plan = bed.layout
    found = {
        "name": name,
        "built": built,
        "wiring": asdict(bed.wiring),
        "addresses": plan.addresses,
        "namespaces": bed.namespaces,
        "switches": plan.switches,
    }
    return json.dumps(found)


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
    found = {name: persistent.read_status(name) for name in wanted}
    if args.json:
        print(json.dumps({"testbeds": [_status_json(n, one) for n, one in found.items()]}))
    elif found:
        print("\n\n".join(_status_text(name, one) for name, one in found.items()))
    else:
        print("no testbed is up")
    return 0 if all(one is not None and not one.problems for one in found.values()) else 1


def _status_text(name: str, status: Status | None) -> str:
    if status is None:
        return f"testbed {name}: not up"
    heads = ("node", "interface", "peer", "discipline", "rate", "passed", "dropped")
    rows = [
        (
            port.node,
            port.interface,
            port.peer,
            port.discipline,
            _shown_rate(port),
            format_value(port.passed_bytes, "B"),
            str(port.dropped),
        )
        for port in status.ports
    ]
    running = sum(status.processes.values())
    how = "not whole" if status.problems else "up"
    lines = [f"testbed {name}: {how}, {_counted(running, 'process', 'processes')} on its hosts"]
    lines += [f"  {problem}" for problem in status.problems]
    return "\n".join([*lines, "", format_table(heads, rows, 4)] if rows else lines)


def _shown_rate(port: Port) -> str:
    return "-" if port.rate_bps is None else format_value(port.rate_bps, "b/s")


def _status_json(name: str, status: Status | None) -> dict[str, Any]:
    if status is None:
        return {"name": name, "up": False}
    found = {"name": name, "up": not status.problems, "problems": status.problems}
    found |= {"wiring": asdict(status.state.wiring), "processes": status.processes}
    return found | {"ports": [asdict(port) for port in status.ports]}


def run_down(args: argparse.Namespace) -> int:
    removed = persistent.remove_testbed(args.name)
    if args.json:
        print(json.dumps({"name": args.name, "removed": removed}))
    else:
        told = f"removed, {_counted(len(removed), 'namespace')}" if removed else "is not up"
        print(f"testbed {args.name}: {told}")
    return 0
