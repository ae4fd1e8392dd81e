"""`weft control`: run the controller of a fabric's bandwidth, or send it a request."""

from __future__ import annotations

import argparse
from importlib import import_module

from weft.control.client.grpc_link import check_address, choose_controller, load_service
from weft.errors import InputError

_NEEDS = "pip install 'weft[control]'"


def run(args: argparse.Namespace) -> int:
    """Import the service late: it takes a moment, and gRPC may be missing."""
    try:
        load_service()
    except ImportError as error:
        raise InputError("weft control", f"gRPC cannot be loaded ({error})", _NEEDS) from error
    if "controller" in args:
        args.controller = check_address(choose_controller(args.controller))
    status: int = getattr(import_module("weft.cli.control_calls"), args.call)(args)
    return status
