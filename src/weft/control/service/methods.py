"""The service's methods, as weft.proto describes them, and what a call of each costs its caller.

Entry points: `method_path`, `request_class`, `reply_class`, `CALL`, `extra_cost`.
Units: tokens; an event on a stream costs one.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory

from weft.control.service import weft_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Controller"]
METHODS = {method.name: method for method in SERVICE.methods}
UNARY = [name for name, method in METHODS.items() if not method.server_streaming]
REFUSED_MARK = (("weft", "refused"),)  # sent with what a controller refuses
QUERIES = ("Status", "Explain", "Plan")  # answered beside the engine, and may be long
CALL = 4.0  # gRPC takes that much longer for one than for an event
_SUMMARY, _CHANGE, _WHOLE = 4.0, 20.0, 200.0


def method_path(name: str) -> str:
    """The full name of a method in gRPC."""
    return f"/{SERVICE.full_name}/{name}"


def request_class(name: str) -> Any:
    return message_factory.GetMessageClass(METHODS[name].input_type)


def reply_class(name: str) -> Any:
    return message_factory.GetMessageClass(METHODS[name].output_type)


def extra_cost(name: str, request: Any) -> float:
    """The cost of a request beyond that of a call, by the work it asks for."""
    match name:
        case "Status":
            return _WHOLE if request.applications or request.ports else _SUMMARY
        case "Explain" | "Rollback" | "Backup":
            return _WHOLE
        case "Plan" | "Apply":
            return _CHANGE + _parts(request.proposal)
        case _:
            return 0.0


def _parts(proposal: pb.Proposal) -> int:
    connections = sum(len(new.connections) for new in proposal.register)
    return len(proposal.register) + len(proposal.deregister) + connections
