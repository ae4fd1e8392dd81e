"""The client's half of one test: connected endpoints, start and finish of the server's loops.

Entry point: `weft.measure.Peer.open`. Units: seconds.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Self

from weft._core import Endpoint, EndpointConfig, StopFlag
from weft.errors import InputError, WeftError
from weft.measure.interrupt import Interrupt
from weft.measure.peer.capability import not_available
from weft.measure.peer.channel import (
    ChannelSpec,
    at_address,
    client_fields,
    endpoint_config,
    first_of,
    read_channels,
    to_wire,
)
from weft.measure.peer.limits import excess
from weft.measure.peer.loss import PeerLost, PeerStopped
from weft.measure.peer.server_session import read_addresses

if TYPE_CHECKING:
    from weft.measure.peer.client import Peer

CONNECT_MS = 5000
_CONNECTED_S = 10.0
_FINISHED_S = 9.0
_NOTICE_S = 0.3


class Channels:
    """Connected endpoints on both sides; close it, or use it as a context.

    `stop` is for the client's loops: it is set when the peer is lost, when the server ends the
    test, and on Ctrl-C between `start` and `finish` (then `interrupted` is true and `finish` works
    as usual). A loop's error that comes of a lost peer leaves the context as PeerLost.
    """

    def __init__(self, peer: Peer, specs: Sequence[ChannelSpec]) -> None:
        self._peer = peer
        self._open_there = False
        self._stopped: InputError | None = None
        self.stop = StopFlag()
        self._interrupt = Interrupt(self.stop)
        self.endpoints: list[Endpoint] = []
        self.descriptions: list[tuple[dict[str, str], dict[str, str]]] = []
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._open(specs)
            on_failure.pop_all()

    @property
    def interrupted(self) -> bool:
        return self._interrupt.is_set

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        try:
            if isinstance(error, InputError):
                self._explain(error)
        finally:
            self.close()

    def _explain(self, error: InputError) -> None:
        """The data connection may break before we know why."""
        try:
            if self._peer.lost_within(_NOTICE_S):
                self._peer.check()
            self._check_stopped()
        except (PeerLost, PeerStopped) as reason:
            raise reason from error

    def _check_stopped(self) -> None:
        if self._stopped is not None:
            raise PeerStopped(f"{self._peer.where}: {self._stopped}")

    def start(self) -> None:
        """The server's loops run from here on."""
        self._interrupt.__enter__()
        self._peer.ask({"type": "start"}, "started")

    def finish(self, sent: int | Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Ends the server's loops; their counts, one per thread, in the order of thread numbers.

        `sent` is how many messages went to each thread, so that receivers wait for all of
        them. Counts of a duplex loop are what it received; what it sent is under "sender".
        """
        counts = [sent] if isinstance(sent, int) else sent if sent is None else list(sent)
        try:
            answer = self._peer.ask({"type": "finish", "sent": counts}, "finished", _FINISHED_S)
        finally:
            self._open_there = False
            self._interrupt.__exit__()
        self._check_stopped()
        found: list[dict[str, Any]] = answer["counts"]
        return found

    def close(self) -> None:
        self._interrupt.__exit__()
        self._peer.watch(None)
        for endpoint in self.endpoints:
            endpoint.close()
        self.endpoints = []
        if self._open_there:
            self._open_there = False
            with suppress(WeftError):  # lost: then nothing is open there
                self._peer.ask({"type": "close"}, "closed", _CONNECTED_S)

    # ---- Opening ------------------------------------------------------------------------------

    def _open(self, specs: Sequence[ChannelSpec]) -> None:
        asked = [to_wire(spec) for spec in specs]
        self._check(asked)
        for spec in specs:
            self.endpoints.append(Endpoint.open(self._config(spec)))
        theirs = self._peer.ask({"type": "open", "channels": asked}, "opened")
        self._open_there = True
        self._peer.watch(self._on_stop)
        self._connect(read_addresses(theirs["addresses"]))

    def _check(self, asked: Sequence[dict[str, Any]]) -> None:
        """The server checks too; here it costs nothing, and its limits are known."""
        served, problems = read_channels(asked)
        problems += excess(served, self._peer.limits)
        problems += not_available(served) if not problems else []
        if problems:
            raise all_of(self._peer.where, first_of(problems))

    def _config(self, spec: ChannelSpec) -> EndpointConfig:
        fields = at_address(client_fields(spec), self._peer.local_host)
        return endpoint_config(fields, server=False)

    def _connect(self, theirs: Sequence[bytes]) -> None:
        ours = [base64.b64encode(e.address()).decode() for e in self.endpoints]
        self._peer.send({"type": "connect", "addresses": ours})
        failure: InputError | None = None
        try:
            for endpoint, address in zip(self.endpoints, theirs, strict=True):
                endpoint.connect(address, CONNECT_MS)
        except InputError as error:
            failure = error
        try:
            answer = self._peer.reply("connected", _CONNECTED_S)
        except InputError as error:
            self._open_there = False
            raise _both(failure, error) from failure
        if failure is not None:
            raise failure
        for endpoint, description in zip(self.endpoints, answer["descriptions"], strict=True):
            self.descriptions.append((endpoint.describe(), description))

    def _on_stop(self, reason: InputError | None) -> None:
        self._stopped = self._stopped or reason
        self.stop.set()


def _both(ours: InputError | None, theirs: InputError) -> InputError:
    if ours is None:
        return theirs
    return InputError(ours.where, f"{ours.problem}; the peer says: {theirs}", ours.remedy)


def all_of(where: str, errors: Sequence[InputError]) -> InputError:
    """One error of all that does not fit."""
    if len(errors) == 1:
        return InputError(f"{where}: {errors[0].where}", errors[0].problem, errors[0].remedy)
    listed = "; ".join(f"({n}) {error}" for n, error in enumerate(errors, 1))
    return InputError(where, f"{len(errors)} things do not fit: {listed}")
