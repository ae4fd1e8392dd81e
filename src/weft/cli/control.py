"""`weft control`: run the controller of a fabric's bandwidth, or send it a request.

`weft run`: an unmodified command, registered with a controller and marked.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from importlib import import_module

from weft.control.client import register
from weft.control.client.app import check_registration, parse_job_size
from weft.control.client.grpc_link import (
    check_address,
    choose_controller,
    load_service,
    read_tls_options,
)
from weft.control.client.managed_run import run_managed
from weft.errors import InputError

_NEEDS = "pip install 'weft[control]'"


def run(args: argparse.Namespace) -> int:
    """Import the service late: it takes a moment, and gRPC may be missing."""
    # gRPC would write lines of its own: one into the controller's log for each failed handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        load_service()
    except ImportError as error:
        raise InputError("weft control", f"gRPC cannot be loaded ({error})", _NEEDS) from error
    if "controller" in args:
        args.controller = check_address(choose_controller(args.controller))
    status: int = getattr(import_module("weft.cli.control_calls"), args.call)(args)
    return status


def run_command(args: argparse.Namespace) -> int:
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise InputError("run", "no command is given", "weft run --app NAME -- COMMAND …")
    names = ("authority", "certificate", "key")
    files = {f"--tls-{name}": getattr(args, f"tls_{name}") for name in names}
    controller = choose_controller(args.controller)
    tls, ttl_s = read_tls_options(files), _parse_seconds(args.ttl)
    check_registration(args.app, controller, tls, ttl_s)
    size = parse_job_size(args.size, "--size") or None
    return run_managed(
        command, partial(register, args.app, controller=controller, tls=tls, ttl_s=ttl_s, size=size)
    )


def _parse_seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--ttl {text}", "is not a time", "write seconds: 10") from None
