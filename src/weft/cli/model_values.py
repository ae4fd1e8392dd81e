"""Values of a model's options: one, or a list with ranges, written as in the tests' options."""

from __future__ import annotations

import argparse
from typing import Any

from weft.measure.settings.sweep import listed_values
from weft.measure.settings.values import Reader


def listed(args: argparse.Namespace, name: str, read: Reader) -> list[Any]:
    """The values of `--NAME`, such as 64,4K or 64..4K*2."""
    return listed_values(read, getattr(args, name.replace("-", "_")), f"--{name}")


def single(args: argparse.Namespace, name: str, read: Reader) -> Any:
    """The one value of `--NAME`."""
    return read(getattr(args, name.replace("-", "_")), f"--{name}")
