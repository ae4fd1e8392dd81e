"""How a test can end that its client did not end; what was measured before is good."""

from __future__ import annotations

from weft.errors import WeftError


class PeerLost(WeftError):
    """The peer died, or cannot be reached any more."""


class PeerStopped(WeftError):
    """The peer ended the test: a bound that its owner set, or trouble in its loop."""
