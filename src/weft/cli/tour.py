"""`weft tour`: placeholder until the studies land in the next commits."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    tour = commands.add_parser("tour", help="run the tour")
    tour.set_defaults(run=lambda _: 0)
