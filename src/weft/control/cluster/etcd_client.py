"""A small client of etcd: keys, transactions, leases.

A call goes to one endpoint; if that does not answer in time, or has no leader, to the next one,
until `within_s` is over (`Unreachable`). A call may then have been carried out or not: callers
make transactions that can be repeated. Entry points: `EtcdClient`, `has_no_key`, `is_created_at`,
`put`, `get`, `delete`. Units: seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from weft.control.cluster import etcd_pb2 as pb
from weft.errors import InputError

CALL_S = 1.0  # one try
_PAUSE_S = 0.05
_HAS_LEADER = (("hasleader", "true"),)  # etcd: refuse at once without one
_RETRY = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
)
_METHODS: dict[str, tuple[str, Any]] = {
    "Range": ("/etcdserverpb.KV/Range", pb.RangeResponse),
    "Txn": ("/etcdserverpb.KV/Txn", pb.TxnResponse),
    "LeaseGrant": ("/etcdserverpb.Lease/LeaseGrant", pb.LeaseGrantResponse),
    "LeaseRevoke": ("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeResponse),
}
_KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"


class Unreachable(InputError):
    """No endpoint has answered. What was asked may have been carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdTls:
    """Files: who signs etcd's certificates, and the controller's certificate and key."""

    authority: Path
    certificate: Path
    key: Path


class EtcdClient:
    """From any thread."""

    def __init__(self, endpoints: Sequence[str], tls: EtcdTls | None = None) -> None:
        self._endpoints = endpoints
        self._channels = [_open_channel(endpoint, tls) for endpoint in endpoints]
        self._current = 0

    def close(self) -> None:
        for channel in self._channels:
            channel.close()

    def transact(
        self,
        compare: Iterable[pb.Compare],
        success: Iterable[pb.RequestOp],
        failure: Iterable[pb.RequestOp] = (),
        within_s: float = 5.0,
    ) -> pb.TxnResponse:
        request = pb.TxnRequest(compare=compare, success=success, failure=failure)
        reply: pb.TxnResponse = self._call("Txn", request, within_s)
        return reply

    def read(self, key: str, within_s: float = 5.0) -> pb.KeyValue | None:
        reply = self._call("Range", pb.RangeRequest(key=key.encode()), within_s)
        return reply.kvs[0] if reply.kvs else None

    def read_range(
        self,
        first: str,
        end: str,
        limit: int = 0,
        within_s: float = 5.0,
        *,
        keys_only: bool = False,
    ) -> Sequence[pb.KeyValue]:
        """Keys from `first` up to `end`, without it, in order."""
        request = pb.RangeRequest(
            key=first.encode(), range_end=end.encode(), limit=limit, keys_only=keys_only
        )
        kvs: Sequence[pb.KeyValue] = self._call("Range", request, within_s).kvs
        return kvs

    def grant_lease(self, ttl_s: int, within_s: float = 5.0) -> pb.LeaseGrantResponse:
        reply: pb.LeaseGrantResponse = self._call(
            "LeaseGrant", pb.LeaseGrantRequest(TTL=ttl_s), within_s
        )
        return reply

    def revoke_lease(self, lease: int, within_s: float = 1.0) -> None:
        self._call("LeaseRevoke", pb.LeaseRevokeRequest(ID=lease), within_s)

    def keep_lease(self, lease: int, within_s: float) -> int:
        """The time to live from now on; 0: the lease is gone."""
        request = pb.LeaseKeepAliveRequest(ID=lease)

        def call(channel: grpc.Channel, timeout_s: float) -> int:
            stream = channel.stream_stream(
                _KEEP_ALIVE,
                request_serializer=pb.LeaseKeepAliveRequest.SerializeToString,
                response_deserializer=pb.LeaseKeepAliveResponse.FromString,
            )(iter([request]), timeout=timeout_s, metadata=_HAS_LEADER)
            return int(next(iter(stream)).TTL)

        return int(self._try_endpoints(call, within_s))

    def _call(self, name: str, request: Any, within_s: float) -> Any:
        path, reply = _METHODS[name]

        def call(channel: grpc.Channel, timeout_s: float) -> Any:
            return channel.unary_unary(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=reply.FromString,
            )(request, timeout=timeout_s, metadata=_HAS_LEADER)

        return self._try_endpoints(call, within_s)

    def _try_endpoints(self, call: Callable[[grpc.Channel, float], Any], within_s: float) -> Any:
        deadline = time.monotonic() + within_s
        while True:
            current = self._current
            try:
                left_s = deadline - time.monotonic()
                return call(self._channels[current], max(0.01, min(CALL_S, left_s)))
            except grpc.RpcError as error:
                if error.code() not in _RETRY:
                    raise InputError(self._endpoints[current], error.details()) from error
                problem = error.details()
            except StopIteration:
                problem = "it ended the stream"
            self._current = (current + 1) % len(self._channels)
            if time.monotonic() + _PAUSE_S >= deadline:
                where = f"etcd {', '.join(self._endpoints)}"
                remedy = "check that a majority runs"
                raise Unreachable(where, f"does not answer: {problem}", remedy)
            time.sleep(_PAUSE_S)


def _open_channel(endpoint: str, tls: EtcdTls | None) -> grpc.Channel:
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.max_receive_message_length", 64 << 20),
        ("grpc.enable_http_proxy", 0),
    ]
    if tls is None:
        return grpc.insecure_channel(endpoint, options)
    files = (tls.authority, tls.key, tls.certificate)
    credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
    return grpc.secure_channel(endpoint, credentials, options)


# ---- Parts of transactions --------------------------------------------------------------------


def has_no_key(key: str) -> pb.Compare:
    return is_created_at(key, 0)


def is_created_at(key: str, revision: int) -> pb.Compare:
    return pb.Compare(target=pb.Compare.CREATE, key=key.encode(), create_revision=revision)


def is_modified_at(key: str, revision: int) -> pb.Compare:
    """0: it does not exist."""
    return pb.Compare(target=pb.Compare.MOD, key=key.encode(), mod_revision=revision)


def put(key: str, value: bytes, lease: int = 0) -> pb.RequestOp:
    return pb.RequestOp(request_put=pb.PutRequest(key=key.encode(), value=value, lease=lease))


def get(key: str) -> pb.RequestOp:
    return pb.RequestOp(request_range=pb.RangeRequest(key=key.encode()))


def delete(first: str, end: str) -> pb.RequestOp:
    """Keys from `first` up to `end`, without it."""
    request = pb.DeleteRangeRequest(key=first.encode(), range_end=end.encode())
    return pb.RequestOp(request_delete_range=request)
