"""Checks the requests of clients and turns them into events.

Entry points: `read_change`, `read_event`, `read_proposal`; a malformed request raises `Refused`.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

from weft.control.runtime.engine import RollbackTo
from weft.control.service import weft_pb2 as pb
from weft.control.service.refusals import Refused, invalid
from weft.control.state.events import (
    Apply,
    Asker,
    Connect,
    Deregister,
    Disconnect,
    Event,
    NewApplication,
    Proposal,
    Refusal,
    Register,
    Renew,
)
from weft.control.state.request_key import Key
from weft.sensitivity.application import is_name
from weft.switches import PortName
from weft.units import LARGEST

MAX_EVENTS = 1000  # of a batch
_MAX_PARTS = 1000  # applications of a proposal, and connections of all of them
_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}#[1-9][0-9]{0,18}(@[A-Za-z0-9._-]{1,64})?")
# Also those that a proposal makes, which no client can: CLIENT:SEQUENCE.NUMBER/NUMBER.
_CONNECTION = re.compile(r"[A-Za-z0-9._:-]{1,128}/[0-9]{1,19}")
_JOB = re.compile(r"[A-Za-z0-9._:@/+-]{0,128}")
_MAX_SEQUENCE = 2**63 - 1
_MAX_HOST = 255


def read_key(message: pb.Key) -> Key:
    if not _CLIENT.fullmatch(message.client):
        raise invalid("key", f"client {message.client[:80]!r}", "use 1 to 64 of A-Z a-z 0-9 . _ -")
    if not 1 <= message.sequence <= _MAX_SEQUENCE:
        raise invalid("key", f"sequence {message.sequence}", "use 1 to 2^63 - 1")
    return Key(message.client, message.sequence)


def read_change(
    message: Any, now_s: float, by: Asker, usual_ttl_s: float = 0.0
) -> Event | RollbackTo:
    """The event of a request; a registration without a lease's time gets the usual one."""
    match message:
        case pb.ConnectRequest():
            return Connect(
                key=read_key(message.key),
                application=_check_id(message.id),
                source=_check_host("source", message.source),
                destination=_check_host("destination", message.destination),
                now_s=now_s,
                by=by,
            )
        case pb.DisconnectRequest():
            return Disconnect(connection=_check_connection(message.connection), by=by)
        case pb.RenewRequest():
            return Renew(application=_check_id(message.id), now_s=now_s, by=by)
        case pb.RegisterRequest():
            ttl_s = _check_ttl_s(message.ttl_s, usual_ttl_s)
            name = _check_application(message.application)
            key = read_key(message.key)
            return Register(
                key=key,
                name=name,
                ttl_s=ttl_s,
                now_s=now_s,
                job=_check_job(message.job),
                size_bytes=_check_size(message.size_bytes),
                by=by,
            )
        case pb.DeregisterRequest():
            key = read_key(message.key)
            return Deregister(key=key, application=_check_id(message.id), by=by)
        case pb.ApplyRequest():
            key, proposal = read_key(message.key), read_proposal(message.proposal)
            return Apply(key=key, proposal=proposal, now_s=now_s, by=by)
        case _:
            revision = min(message.revision, _MAX_SEQUENCE)
            return RollbackTo(key=read_key(message.key), revision=revision, by=by)


def check_batch(message: pb.EventBatch) -> None:
    if len(message.events) > MAX_EVENTS:
        raise invalid("batch", f"{len(message.events)} events", f"send {MAX_EVENTS} at most")


def read_event(message: pb.Event, now_s: float, by: Asker) -> Event | RollbackTo | Refusal:
    """An event of a batch, or what is wrong with it."""
    kind = message.WhichOneof("what")
    try:
        if kind is None:
            raise invalid("event", "is empty", "say what happened")
        return read_change(getattr(message, kind), now_s, by)
    except Refused as error:
        return Refusal("INVALID_ARGUMENT", "event", str(error))


# ---- Operators --------------------------------------------------------------------------------


def read_proposal(message: pb.Proposal) -> Proposal:
    connections = sum(len(new.connections) for new in message.register)
    if max(len(message.register), len(message.deregister), connections) > _MAX_PARTS:
        remedy = f"at most {_MAX_PARTS} applications and {_MAX_PARTS} connections at a time"
        sizes = (
            f"{len(message.register)} applications to register, {len(message.deregister)} to "
            f"deregister, {connections} connections"
        )
        raise invalid("proposal", sizes, remedy)
    return Proposal(
        register=tuple(_read_new_application(new) for new in message.register),
        deregister=tuple(_check_id(id_) for id_ in message.deregister),
        recluster=message.recluster,
    )


def _read_new_application(message: pb.NewApplication) -> NewApplication:
    pairs = [
        (_check_host("source", pair.source), _check_host("destination", pair.destination))
        for pair in message.connections
    ]
    return NewApplication(name=_check_application(message.application), connections=tuple(pairs))


def read_wait_s(message: Any) -> float:
    """How long to wait for ports."""
    if not (isfinite(message.wait_s) and message.wait_s >= 0):
        raise invalid("wait_s", f"{message.wait_s:g}", "give seconds")
    return float(message.wait_s)


def read_port(message: pb.PortId) -> PortName:
    """Of what is to be explained."""
    return PortName(_check_host("node", message.node), message.port)


def read_connection(text: str) -> str:
    """Of what is to be explained."""
    return _check_connection(text)


def read_subject(text: str) -> str:
    """Of what is to be explained."""
    return _check_id(text) if "#" in text else _check_application(text)


# ---- Fields -----------------------------------------------------------------------------------


def _check_ttl_s(ttl_s: float, usual_ttl_s: float) -> float:
    chosen_s = ttl_s or usual_ttl_s
    if not (isfinite(chosen_s) and chosen_s > 0):
        raise invalid("ttl_s", f"{ttl_s:g}", "give seconds above 0")
    return chosen_s


def _check_connection(text: str) -> str:
    if not _CONNECTION.fullmatch(text):
        raise invalid("connection", f"{text[:80]!r}", "name one as CLIENT/SEQUENCE")
    return text


def _check_application(text: str) -> str:
    if not is_name(text):
        raise invalid("application", f"{text[:80]!r} is no name", "name one of `weft apps list`")
    return text


def _check_job(text: str) -> str:
    if not _JOB.fullmatch(text):
        raise invalid("job", f"{text[:80]!r}", "use up to 128 of A-Z a-z 0-9 . _ : @ / + -")
    return text


def _check_size(size_bytes: int) -> int:
    if size_bytes > LARGEST["size"]:
        raise invalid("size_bytes", f"{size_bytes}", "give at most 2^60, or 0 if it is not known")
    return size_bytes


def _check_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise invalid("id", f"{text[:80]!r}", "give that of a registration, NAME#NUMBER")
    return text


def _check_host(field: str, text: str) -> str:
    if not text or len(text) > _MAX_HOST or not text.isprintable():
        problem = f"{text[:80]!r}"
        raise invalid(field, problem, f"give its name in 1 to {_MAX_HOST} printable characters")
    return text
