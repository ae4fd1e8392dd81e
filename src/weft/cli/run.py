"""`weft run`: an unmodified command, registered with a controller and marked."""

from __future__ import annotations

import argparse
from functools import partial

from weft.control.client import register
from weft.control.client.app import TTL_S
from weft.control.client.grpc_link import (
    DEFAULT_CONTROLLER,
    VARIABLE,
    check_address,
    read_tls_options,
)
from weft.control.client.managed_run import run_managed
from weft.errors import InputError


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run_ = commands.add_parser(
        "run",
        help="an unmodified command, registered with a controller and marked",
        description="Runs a command whose TCP connections bear the level that the controller gives "
        "to the application, and tells the controller of them. Its status is the command's; "
        "without a controller, or without root, it runs as if alone.",
    )
    run_.add_argument("--app", required=True, metavar="NAME", help="in the table of `weft apps`")
    run_.add_argument(
        "--controller", metavar="HOST:PORT", help=f"default: {VARIABLE}, or {DEFAULT_CONTROLLER}"
    )
    run_.add_argument(
        "--ttl", default=str(TTL_S), metavar="SECONDS", help=f"of the lease, {TTL_S:g}"
    )
    for name, meaning in (
        ("authority", "has signed the controller's certificate"),
        ("certificate", "says who we are"),
        ("key", "is its key"),
    ):
        run_.add_argument(f"--tls-{name}", metavar="FILE", help=f"that {meaning}")
    run_.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...")
    run_.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise InputError("run", "no command is given", "weft run --app NAME -- COMMAND …")
    if args.controller is not None:
        check_address(args.controller)
    names = ("authority", "certificate", "key")
    files = {f"--tls-{name}": getattr(args, f"tls_{name}") for name in names}
    opening = partial(
        register,
        args.app,
        controller=args.controller,
        tls=read_tls_options(files),
        ttl_s=_parse_seconds(args.ttl),
    )
    return run_managed(command, opening)


def _parse_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--ttl {text}", "is not a time", "write seconds: 10") from None
