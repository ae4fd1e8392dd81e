"""The actions of `weft control`: one function each, named as the action.

Apart from `serve`, `release`, `certs` and `restore`, each sends a request to a running controller.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from weft.control.client.grpc_link import read_tls_options
from weft.control.service import reply_text
from weft.control.service import weft_pb2 as pb
from weft.control.service.operator_client import Controller, call, new_key, stream_backup
from weft.control.store.sqlite_store import StoredState
from weft.errors import InputError
from weft.units import format_count

_SIMULATION_S = 3600.0  # the controller's own limit is shorter

# ---- The controller ---------------------------------------------------------------------------


def serve(args: argparse.Namespace) -> int:
    from weft.control.runtime.config import read_config

    try:
        from weft.control.runtime.controller import serve as serve_until_told
    except ImportError as error:
        problem = f"cannot be loaded ({error})"
        raise InputError("weft control serve", problem, "pip install 'weft[control]'") from error

    format_line = _format_json_line if args.json else _format_text_line
    serve_until_told(
        read_config(args.file),
        lambda text: _write(format_line("log", text)),
        lambda address: _write(format_line("listening", address)),
    )
    return 0


def release(args: argparse.Namespace) -> int:
    from weft.control.runtime.config import read_config
    from weft.control.runtime.controller import release_ports

    released, remarks = release_ports(read_config(args.file))
    lines = [f"{node}: {' '.join(ports)}" for node, ports in sorted(released.items()) if ports]
    if args.json:
        print(json.dumps({"ports": dict(released), "remarks": remarks}))
    else:
        print("\n".join([*(lines or ["no port had been programmed"]), *remarks]))
    return 0


def bench(args: argparse.Namespace) -> int:
    from weft.control.runtime.bench import TTL_S, measure_rates, measure_take_over

    counts = args.controllers.split(",")
    for count in counts:
        if count not in ("1", "2", "4", "8"):
            raise InputError(f"--controllers {args.controllers}", f"{count!r}", "use 1, 2, 4, 8")
    if not 0.1 <= args.seconds <= 3600:
        raise InputError(f"--seconds {args.seconds:g}", "is out of range", "give 0.1 to 3600")
    if not 0 <= args.take_overs <= 100:
        raise InputError(f"--take-overs {args.take_overs}", "is out of range", "give 0 to 100")
    rates = [measure_rates(int(count), args.seconds) for count in counts]
    taken_s = measure_take_over(args.take_overs) if args.take_overs else []
    if args.json:
        print(json.dumps({"rates": [asdict(rate) for rate in rates], "take_over_s": taken_s}))
        return 0
    for rate in rates:
        print(
            f"{rate.controllers} controller{'s' if rate.controllers > 1 else ''}: "
            f"{rate.registrations_per_s:,.0f} registrations and ends/s, "
            f"{rate.connections_per_s:,.0f} connection events/s"
        )
    if taken_s:
        times = ", ".join(f"{seconds:.1f}" for seconds in sorted(taken_s))
        print(f"take-over with a lease of {TTL_S} s: {times} s")
    return 0


def certs(args: argparse.Namespace) -> int:
    from weft.control.client.lab_certificates import make_certificates

    if not (args.days.isascii() and args.days.isdigit() and 1 <= int(args.days) <= 36500):
        raise InputError(f"--days {args.days}", "is no number of days", "write 1 to 36500")
    hosts = args.host or ["localhost", "127.0.0.1"]
    made = make_certificates(Path(args.folder), hosts, args.client, int(args.days))
    print("\n".join(map(str, made)) or "nothing is missing")
    return 0


def restore(args: argparse.Namespace) -> int:
    from weft.control.runtime.config import read_config
    from weft.control.store.backup import restore_backup

    path = read_config(args.file).store
    stored, aside = restore_backup(Path(args.backup), path)
    if args.json:
        print(json.dumps({"store": str(path), "old": aside and str(aside)} | _count(stored)))
    else:
        print(f"{path}: {_summarize(stored)}" + (f"; the old one is {aside}" if aside else ""))
    return 0


def _count(stored: StoredState) -> dict[str, int]:
    return {
        "applications": len(stored.applications),
        "connections": len(stored.connections),
        "models": len(stored.models),
        "ports": len(stored.target),
        "revision": stored.revision,
    }


def _summarize(stored: StoredState) -> str:
    *counts, revision = _count(stored).items()
    named = ", ".join(format_count(count, name.removesuffix("s")) for name, count in counts)
    return f"{named}, {revision[0]} {revision[1]}"


def _format_text_line(event: str, text: str) -> str:
    message = f"listening on {text}; Ctrl-C ends it" if event == "listening" else text
    severity = getattr(text, "severity", "info")
    return f"{time.strftime('%Y-%m-%d %H:%M:%S')} {severity} {message}"


def _write(line: str) -> None:
    """Not through sys.stdout: its lock, held while a reader sleeps, would hold up the exit."""
    data = f"{line}\n".encode(errors="replace")
    while data:
        data = data[os.write(1, data) :]


def _format_json_line(event: str, text: str) -> str:
    fields = {"severity": getattr(text, "severity", "info"), **getattr(text, "fields", {})}
    return json.dumps({"event": event, "time": time.time(), "text": text} | fields)


# ---- Requests ---------------------------------------------------------------------------------


def _call(args: argparse.Namespace, name: str, request: Any, timeout_s: float = 30.0) -> Any:
    return call(_controller(args), name, request, timeout_s)


def _controller(args: argparse.Namespace) -> Controller:
    files = {f"--{name}": getattr(args, name) for name in ("authority", "certificate", "key")}
    return Controller(address=args.controller, tls=read_tls_options(files))


def _emit(args: argparse.Namespace, reply: Any, format_reply: Callable[[], str]) -> None:
    if not args.json:
        print(format_reply())
        return
    answer = json_format.MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    print(json.dumps(answer))


def status(args: argparse.Namespace) -> int:
    reply = _call(args, "Status", pb.StatusRequest(groups=True))
    _emit(args, reply, lambda: reply_text.format_status(reply))
    statuses = [reply, *(group.status for group in reply.groups)]
    is_wrong = any(status.problems or status.ports_failing for status in statuses)
    return int(is_wrong or _names_problem(reply.groups))


def _names_problem(groups: Any) -> bool:
    """Whether a group has not answered, or not done its part."""
    return any(group.problem for group in groups)


def apps(args: argparse.Namespace) -> int:
    reply = _call(args, "Status", pb.StatusRequest(applications=True, groups=True))
    _emit(args, reply, lambda: reply_text.format_applications(reply))
    return int(_names_problem(reply.groups))


def ports(args: argparse.Namespace) -> int:
    reply = _call(args, "Status", pb.StatusRequest(ports=True, groups=True))
    _emit(args, reply, lambda: reply_text.format_ports(reply))
    return int(_names_problem(reply.groups))


def backup(args: argparse.Namespace) -> int:
    from weft.control.store.backup import receive_backup

    path = Path(args.output)
    stored = receive_backup(stream_backup(_controller(args)), path, replace=args.replace)
    size = path.stat().st_size
    if args.json:
        print(json.dumps({"file": str(path), "bytes": size} | _count(stored)))
    else:
        print(f"{path}: {format_count(size, 'byte')}, {_summarize(stored)}")
    return 0


def explain(args: argparse.Namespace) -> int:
    node, colon, number = args.what.rpartition(":")
    if colon and number.isascii() and number.isdigit():
        request = pb.ExplainRequest(
            port=pb.PortId(node=_check_name(node), port=_parse_port(number)), groups=True
        )
    elif "/" in args.what:
        request = pb.ExplainRequest(connection=_check_name(args.what), groups=True)
    else:
        request = pb.ExplainRequest(id=_check_name(args.what), groups=True)
    reply = _call(args, "Explain", request)
    _emit(args, reply, lambda: str(reply.text))
    return int(bool(reply.unanswered))


def plan(args: argparse.Namespace) -> int:
    request = pb.PlanRequest(proposal=_build_proposal(args), simulate=args.simulate, groups=True)
    reply = _call(args, "Plan", request, _SIMULATION_S if args.simulate else 30.0)
    _emit(args, reply, lambda: reply_text.format_plan(reply))
    return int(_names_problem(reply.groups))


def apply(args: argparse.Namespace) -> int:
    return _apply_change(args, _build_proposal(args), "applied")


def recluster(args: argparse.Namespace) -> int:
    return _apply_change(args, pb.Proposal(recluster=True), "levels computed again")


def _apply_change(args: argparse.Namespace, proposal: pb.Proposal, action: str) -> int:
    """Exit status 1 if a port is not programmed in time."""
    wait_s = _parse_seconds(args.wait)
    request = pb.ApplyRequest(key=new_key(), proposal=proposal, wait_s=wait_s)
    reply = _call(args, "Apply", request, 30.0 + wait_s)
    named = f"{action} {' '.join(reply.ids)}".strip()
    _emit(args, reply, lambda: reply_text.format_change(named, reply))
    return int(bool(reply.problems))


def rollback(args: argparse.Namespace) -> int:
    if not args.revision and args.at is None:
        reply = _call(args, "Status", pb.StatusRequest(revisions=50, groups=True))
        _emit(args, reply, lambda: reply_text.format_revisions(reply))
        return int(_names_problem(reply.groups))
    wait_s = _parse_seconds(args.wait)
    request = pb.RollbackRequest(key=new_key(), wait_s=wait_s, **_parse_revisions(args))
    reply = _call(args, "Rollback", request, 30.0 + wait_s)
    to = f"rolled back to {args.at or ' '.join(args.revision)}"
    _emit(args, reply, lambda: reply_text.format_rollback(to, reply))
    is_late = reply.problems or any(group.reply.problems for group in reply.groups)
    return int(bool(is_late) or _names_problem(reply.groups))


# ---- Options ----------------------------------------------------------------------------------


def _build_proposal(args: argparse.Namespace) -> pb.Proposal:
    proposal = pb.Proposal(deregister=[_check_name(identity) for identity in args.remove])
    for name, *pairs in args.app:
        proposal.register.add(
            application=_check_name(name), connections=[_parse_pair(pair) for pair in pairs]
        )
    return proposal


def _parse_pair(text: str) -> pb.Pair:
    source, colon, destination = text.partition(":")
    if not (source and colon and destination):
        raise InputError(f"--app {text}", "is not FROM:TO", "name two hosts, as h1:h2")
    return pb.Pair(source=_check_name(source), destination=_check_name(destination))


def _check_name(text: str) -> str:
    if not text.isprintable():  # text that is not UTF-8 cannot be sent
        raise InputError(f"{text!r}", "is not a name", "use printable characters")
    return text


def _parse_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise InputError(f"--wait {text}", "is not a time", "give 0 to 3600 seconds")
    return seconds


def _parse_port(text: str) -> int:
    if len(text) > 9:
        raise InputError(f"port {text}", "is not a port of a switch", "see `weft control ports`")
    return int(text)


def _parse_revisions(args: argparse.Namespace) -> dict[str, Any]:
    """Fields of a rollback: a time, a revision, or one of each group."""
    if args.at is not None:
        if args.revision:
            problem = f"beside {' '.join(args.revision)}"
            raise InputError(f"--at {args.at}", problem, "give a time or revisions")
        return {"at_s": _parse_time(args.at)}
    pairs = [text.partition("@")[::2] for text in args.revision]
    if len(pairs) == 1 and not pairs[0][1]:
        return {"revision": _parse_revision(pairs[0][0])}
    groups = {_check_name(group): _parse_revision(number) for number, group in pairs}
    if "" in groups or len(groups) < len(pairs):
        problem = f"{' '.join(args.revision)} does not name each group once"
        raise InputError("revisions", problem, "give one, or REVISION@GROUP of each group")
    return {"groups": groups}


def _parse_time(text: str) -> float:
    if text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 20:
        return float(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError) as error:
        remedy = "write YYYY-MM-DD HH:MM:SS, or seconds since 1970"
        raise InputError(f"--at {text}", "is not a time", remedy) from error


def _parse_revision(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        problem = "is not a number of up to 18 digits"
        raise InputError(f"revision {text!r}", problem, "see `weft control rollback`")
    return int(text)
