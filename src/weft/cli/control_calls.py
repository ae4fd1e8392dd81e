"""What `weft control` does: one call to the controller each, or being it.

A function for each action, called as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

from google.protobuf import json_format

from weft.control.client.grpc_link import tls_from
from weft.control.service import reply_text
from weft.control.service import weft_pb2 as pb
from weft.control.service.operator_client import Controller, call, new_key
from weft.errors import InputError

_SIMULATION_S = 3600.0  # the controller ends it earlier

# ---- The controller ---------------------------------------------------------------------------


# Half a second to import, which those who only ask the controller do not wait for.


def serve(args: argparse.Namespace) -> int:
    from weft.control.runtime.config import read_config
    from weft.control.runtime.controller import serve as serve_until_told

    told = _json_line if args.json else _line
    serve_until_told(
        read_config(args.file),
        lambda what: _write(told("log", what)),
        lambda address: _write(told("listening", address)),
    )
    return 0


def release(args: argparse.Namespace) -> int:
    from weft.control.runtime.config import read_config
    from weft.control.runtime.controller import release_ports

    found, remarks = release_ports(read_config(args.file))
    told = [f"{node}: {' '.join(ports)}" for node, ports in sorted(found.items()) if ports]
    if args.json:
        print(json.dumps({"ports": dict(found), "remarks": remarks}))
    else:
        print("\n".join([*(told or ["nothing was taken over"]), *remarks]))
    return 0


def _line(event: str, what: str) -> str:
    told = f"listening on {what}; Ctrl-C ends it" if event == "listening" else what
    return f"{time.strftime('%H:%M:%S')} {told}"


def _write(line: str) -> None:
    """Not through sys.stdout: its lock, held while a reader sleeps, would hold up the exit."""
    data = f"{line}\n".encode(errors="replace")
    while data:
        data = data[os.write(1, data) :]


def _json_line(event: str, what: str) -> str:
    return json.dumps({"event": event, "time": time.time(), "text": what})


# ---- Asking it --------------------------------------------------------------------------------


def _call(args: argparse.Namespace, name: str, request: Any, timeout_s: float = 30.0) -> Any:
    return call(_controller(args), name, request, timeout_s)


def _controller(args: argparse.Namespace) -> Controller:
    files = {f"--{name}": getattr(args, name) for name in ("authority", "certificate", "key")}
    return Controller(address=args.controller, tls=tls_from(files))


def _emit(args: argparse.Namespace, reply: Any, shown: Callable[[], str]) -> None:
    if not args.json:
        print(shown())
        return
    found = json_format.MessageToDict(
        reply, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    print(json.dumps(found))


def status(args: argparse.Namespace) -> int:
    reply = _call(args, "Status", pb.StatusRequest())
    _emit(args, reply, lambda: reply_text.status_text(reply))
    return int(bool(reply.problems or reply.ports_failing))


def apps(args: argparse.Namespace) -> int:
    reply = _call(args, "Status", pb.StatusRequest(applications=True))
    _emit(args, reply, lambda: reply_text.applications_text(reply.listed_applications))
    return 0


def ports(args: argparse.Namespace) -> int:
    reply = _call(args, "Status", pb.StatusRequest(ports=True))
    _emit(args, reply, lambda: reply_text.ports_text(reply.listed_ports))
    return 0


def explain(args: argparse.Namespace) -> int:
    node, colon, number = args.what.rpartition(":")
    if colon and number.isascii() and number.isdigit():
        request = pb.ExplainRequest(port=pb.PortId(node=_name(node), port=_port(number)))
    else:
        request = pb.ExplainRequest(id=_name(args.what))
    reply = _call(args, "Explain", request)
    _emit(args, reply, lambda: str(reply.text))
    return 0


def plan(args: argparse.Namespace) -> int:
    request = pb.PlanRequest(proposal=_proposal(args), simulate=args.simulate)
    reply = _call(args, "Plan", request, _SIMULATION_S if args.simulate else 30.0)
    _emit(args, reply, lambda: reply_text.plan_text(reply))
    return 0


def apply(args: argparse.Namespace) -> int:
    return _changed(args, _proposal(args), "applied")


def recluster(args: argparse.Namespace) -> int:
    return _changed(args, pb.Proposal(recluster=True), "levels made anew")


def _changed(args: argparse.Namespace, proposal: pb.Proposal, what: str) -> int:
    """Status 1 where a port is not programmed in time."""
    wait_s = _seconds(args.wait)
    request = pb.ApplyRequest(key=new_key(), proposal=proposal, wait_s=wait_s)
    reply = _call(args, "Apply", request, 30.0 + wait_s)
    named = f"{what} {' '.join(reply.ids)}".strip()
    _emit(args, reply, lambda: reply_text.change_text(named, reply))
    return int(bool(reply.problems))


def rollback(args: argparse.Namespace) -> int:
    if args.revision is None:
        reply = _call(args, "Status", pb.StatusRequest(revisions=50))
        _emit(args, reply, lambda: reply_text.revisions_text(reply.listed_revisions))
        return 0
    wait_s, revision = _seconds(args.wait), _revision(args.revision)
    request = pb.RollbackRequest(key=new_key(), revision=revision, wait_s=wait_s)
    reply = _call(args, "Rollback", request, 30.0 + wait_s)
    _emit(args, reply, lambda: reply_text.change_text(f"rolled back to {revision}", reply))
    return int(bool(reply.problems))


# ---- Options ----------------------------------------------------------------------------------


def _proposal(args: argparse.Namespace) -> pb.Proposal:
    found = pb.Proposal(deregister=[_name(given) for given in args.remove])
    for name, *pairs in args.app:
        found.register.add(application=_name(name), connections=[_pair(pair) for pair in pairs])
    return found


def _pair(given: str) -> pb.Pair:
    source, colon, destination = given.partition(":")
    if not (source and colon and destination):
        raise InputError(f"--app {given}", "is not FROM:TO", "name two hosts, as h1:h2")
    return pb.Pair(source=_name(source), destination=_name(destination))


def _name(given: str) -> str:
    if not given.isprintable():  # nor can it be sent, if it is not UTF-8
        raise InputError(f"{given!r}", "is no name", "use printable characters")
    return given


def _seconds(given: str) -> float:
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 3600:
        raise InputError(f"--wait {given}", "is not a time", "give 0 to 3600 seconds")
    return found


def _port(given: str) -> int:
    if len(given) > 9:
        raise InputError(f"port {given}", "is no port of a switch", "see `weft control ports`")
    return int(given)


def _revision(given: str) -> int:
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise InputError(f"revision {given!r}", "is not a number", "see `weft control rollback`")
    return int(given)
