"""`weft study`: placeholder until the studies land in the next commits."""

from __future__ import annotations

import argparse


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    study = commands.add_parser("study", help="reproduce a paper's table or figure")
    study.set_defaults(run=lambda _: 0)
