"""How many random examples a law is tried on: a third by default; all in the targets of make that
set WEFT_ALL_EXAMPLES.
"""

from __future__ import annotations

import os

from hypothesis import settings

_LEAST = 10


def examples(most: int) -> settings:
    every = "WEFT_ALL_EXAMPLES" in os.environ
    return settings(deadline=None, max_examples=most if every else max(_LEAST, most // 3))
