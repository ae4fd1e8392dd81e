"""Messages between a client and `weft serve`, over `weft.wire`.

Fields have exact types, so that nesting is bounded; what a channel's fields may be is checked by
`channel_spec.read_channels`. Entry points: REQUESTS, REPLIES. Units: bytes.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from weft.wire import Beat, Decoder, Failure, Message

DEFAULT_PORT = 9338
FRAME_BYTES = 4 << 20  # thousands of channels with their addresses

Scalar = str | int | float | bool | None
Facts = dict[str, str | int | float]
Counts = dict[str, int | bool | str | dict[str, int | bool | str]]
Address = Annotated[bytes, Meta(max_length=4096)]
MessageCount = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Describe(Message):
    """Asks for facts of the server's machine."""


class Survey(Message):
    """Asks for the server's transports, devices and providers."""


class Open(Message):
    channels: list[dict[str, str | int | dict[str, Scalar]]]


class Connect(Message):
    addresses: list[Address]


class Start(Message):
    """The server's loops are to run."""


class Finish(Message):
    """The loops are to end; `sent` is how many messages went to each thread."""

    sent: list[MessageCount] | None


class Close(Message):
    """The test is to be dropped."""


class Bye(Message):
    """The client leaves."""


class Description(Message):
    facts: Facts


class Surveyed(Message):
    availability: list[dict[str, str | bool | int | list[str] | dict[str, str]]]


class Opened(Message):
    addresses: list[Address]


class Connected(Message):
    descriptions: list[dict[str, str]]


class Started(Message):
    """The loops run."""


class Finished(Message):
    """What each thread counted, by thread number."""

    counts: list[Counts]


class Closed(Message):
    """Nothing is open any more."""


class Refused(Message):
    """Why the request was refused; the session continues."""

    problems: list[Failure]


class Stopped(Message):
    """The server has ended the test."""

    reason: Failure


Request = Describe | Survey | Open | Connect | Start | Finish | Close | Bye
Reply = (
    Description
    | Surveyed
    | Opened
    | Connected
    | Started
    | Finished
    | Closed
    | Refused
    | Stopped
    | Failure
)
REQUESTS: Decoder[Any] = Decoder(Request | Beat)
REPLIES: Decoder[Any] = Decoder(Reply | Beat)
