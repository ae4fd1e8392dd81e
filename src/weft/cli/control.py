"""`weft control`: run the controller of a fabric's bandwidth, or send it a request."""

from __future__ import annotations

import argparse
import os
from importlib import import_module

from weft.control.client.grpc_link import DEFAULT_CONTROLLER, VARIABLE, check_address, load_service
from weft.errors import InputError

_NEEDS = "pip install 'weft[control]'"


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "control",
        help="share bandwidth among applications: program switches, verify, explain",
        description="A service that tracks registered applications and their connections, "
        "programs each port with the weights that minimize the total predicted slowdown, and "
        "corrects switches that drift. See docs/control.md.",
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="run the controller until Ctrl-C")
    serve.add_argument("file", metavar="FILE", help="TOML: switches, policy, store")
    serve.add_argument("--json", action="store_true", help="one JSON object per line")
    serve.set_defaults(run=_run, call="serve")
    release = actions.add_parser("release", help="restore what the ports had before (Linux)")
    release.add_argument("file", metavar="FILE", help="the file of a controller that has ended")
    release.add_argument("--json", action="store_true", help="the ports as JSON")
    release.set_defaults(run=_run, call="release")
    _add_request(actions, "status", "state of the controller; exit status 1 if something is wrong")
    _add_request(actions, "apps", "registered applications, with predictions")
    _add_request(actions, "ports", "ports, their tables, and whether these were read back")
    explain = _add_request(actions, "explain", "why a port or an application has its weights")
    explain.add_argument("what", metavar="NODE:PORT|APP", help="a port, an id, or a name")
    plan = _add_request(actions, "plan", "what a change would do to ports and applications")
    _add_proposal(plan)
    plan.add_argument("--simulate", action="store_true", help="try it on the simulated fabric too")
    apply = _add_request(actions, "apply", "make a change; without one, resume after a rollback")
    _add_proposal(apply)
    _add_wait(apply)
    recluster = _add_request(
        actions, "recluster", "compute all levels again, while nothing is registered"
    )
    _add_wait(recluster)
    rollback = _add_request(actions, "rollback", "hold an earlier revision, until `apply`")
    rollback.add_argument(
        "revision", nargs="?", metavar="REVISION", help="without it, list revisions"
    )
    _add_wait(rollback)


def _add_request(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    action = actions.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    action.add_argument(
        "--controller", metavar="HOST:PORT", help=f"default: {VARIABLE}, or {DEFAULT_CONTROLLER}"
    )
    tls = action.add_argument_group("TLS, for a controller beyond loopback")
    tls.add_argument(
        "--authority", metavar="FILE", help="the authority that signs the controller's certificate"
    )
    tls.add_argument("--certificate", metavar="FILE", help="the client's certificate")
    tls.add_argument("--key", metavar="FILE", help="the key of the client's certificate")
    action.add_argument("--json", action="store_true", help="the full reply as JSON")
    action.set_defaults(run=_run, call=name)
    return action


def _add_proposal(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--app",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "FROM:TO"),
        help="register an application without a lease, with its connections; repeatable",
    )
    action.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="ID",
        help="deregister this one; repeatable",
    )


def _add_wait(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--wait", default="10", metavar="SECONDS", help="how long to wait for the ports; default 10"
    )


def _run(args: argparse.Namespace) -> int:
    """Import the service late: it takes a moment, and gRPC may be missing."""
    try:
        load_service()
    except ImportError as error:
        raise InputError("weft control", f"gRPC cannot be loaded ({error})", _NEEDS) from error
    if "controller" in args:
        address = args.controller or os.environ.get(VARIABLE) or DEFAULT_CONTROLLER
        args.controller = check_address(address)
    status: int = getattr(import_module("weft.cli.control_calls"), args.call)(args)
    return status
