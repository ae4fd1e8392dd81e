"""`python -m weft.studies.saba.evaluation`: grows a record of the evaluation, seed by seed.

It goes on where the record ends. --tables prints a record's rows instead, as docs/saba-verdict.md
has them; --figure draws its products.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.errors import InputError
from weft.plot.style import figure, to_png
from weft.studies.saba.evaluation.judgement import (
    BASELINE,
    PRODUCT,
    compare_ways,
    decompose,
    judge_regime,
)
from weft.studies.saba.evaluation.recording import RECORDINGS, grow_record, read_case
from weft.studies.table_curves import COLOURS, name_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m weft.studies.saba.evaluation", description=__doc__
    )
    parser.add_argument("name", choices=[*RECORDINGS], help="what to record")
    parser.add_argument("--record", required=True, type=Path, metavar="FILE", help="it grows")
    parser.add_argument("--seeds", type=int, default=10, help="set-ups a case; %(default)s")
    parser.add_argument("--seconds", type=float, default=3600.0, help="then it stops; %(default)s")
    parser.add_argument("--cases", default="", help="how their names begin, with ; between")
    parser.add_argument("--ways", default="", help="some, with ; between")
    parser.add_argument("--tables", action="store_true", help="print what the record has")
    parser.add_argument("--figure", type=Path, metavar="PNG", help="draw what the record has")
    args = parser.parse_args(argv)
    try:
        return _run(args)
    except InputError as error:
        print(f"weft: {error}", file=sys.stderr)
        return 2


def _run(args: argparse.Namespace) -> int:
    if args.seeds < 1:
        raise InputError("--seeds", f"{args.seeds} set-ups are none", "give 1 or more")
    is_read = args.tables or args.figure is not None
    _check_file("--record", args.record, is_read=is_read)
    if is_read:
        cases = _read_cases(args.record, args.name)
        if args.figure is not None:
            _check_file("--figure", args.figure, is_read=False)
            args.figure.write_bytes(to_png(draw_products(cases)))
        if args.tables:
            print("\n".join(list_rows(cases)))
        return 0
    cells = RECORDINGS[args.name].cells
    settings, ways = _split(args.cases), _split(args.ways)
    for setting in settings:
        if not any(each.startswith(setting) for each in cells):
            raise InputError("--cases", f"no case begins with {setting!r}", _list_names(cells))
    for way in ways:
        if not any(way in cell.ways for cell in cells.values()):
            names = dict.fromkeys(name for cell in cells.values() for name in cell.ways)
            raise InputError("--ways", f"{way!r} is no way of {args.name}", _list_names(names))
    ended = grow_record(
        args.record,
        args.name,
        args.seeds,
        settings=settings,
        ways=ways,
        until_s=time.monotonic() + args.seconds,
        report=lambda line: print(line, flush=True),
    )
    return 0 if ended else 1


def _check_file(option: str, path: Path, *, is_read: bool) -> None:
    if path.is_dir() or not path.parent.is_dir() or (is_read and not path.exists()):
        problem = "is a folder" if path.is_dir() else "does not exist, or its folder does not"
        raise InputError(f"{option} {path}", problem, "name a file in a folder that exists")


def _read_cases(path: Path, name: str) -> Any:
    """The cases of a record, which must be cells of this recording."""
    try:
        cases = json.loads(path.read_text("utf-8"))["cases"]
        foreign = [case for case in cases if case not in RECORDINGS[name].cells]
    except (ValueError, TypeError, KeyError) as error:
        remedy = "name a file that this command has written"
        raise InputError(f"--record {path}", "is no record of an evaluation", remedy) from error
    if foreign:
        problem = f"has {foreign[0]!r}, which is no case of {name}"
        kinds = [kind for kind in RECORDINGS if foreign[0] in RECORDINGS[kind].cells]
        raise InputError(f"--record {path}", problem, _list_names(kinds or RECORDINGS))
    return cases


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _list_names(names: Any) -> str:
    return f"use {'; '.join(names)}"


def draw_products(cases: Any) -> Figure:
    """The factors of each case and their product, with intervals."""
    height_in = 1.5 + 0.35 * len(cases)
    return figure(lambda ax: _draw_products(ax, cases), width_in=8.5, height_in=height_in)


def _draw_products(ax: Axes, cases: Any) -> None:
    products = {
        setting: decompose(evaluation)
        for setting, seeds in cases.items()
        if (evaluation := read_case(seeds)).completions.keys() >= set(PRODUCT)
    }
    for number, name in enumerate(("isolation", "mapping", "sensitivity", "total")):
        for place, product in enumerate(products.values()):
            factor, at = getattr(product, name), place + 0.17 * (number - 1.5)
            ax.plot([factor.low, factor.high], [at, at], color=COLOURS[number])
            label = name if place == 0 else None
            ax.plot(factor.value, at, "o", markersize=4, color=COLOURS[number], label=label)
    ax.axvline(1, color="0.5", linewidth=0.8)
    counts = [len(cases[setting]) for setting in products]
    labels = [
        f"{setting.replace(', buffers', chr(10) + 'buffers')}: {count} set-ups"
        for setting, count in zip(products, counts, strict=True)
    ]
    ax.set_yticks(range(len(products)), labels, fontsize="x-small")
    ax.invert_yaxis()
    name_axes(ax, "factor of the speedup, with 95 % interval", "")


def list_rows(cases: Any) -> Iterator[str]:
    """Rows of the product, then the speedup of every way, by case."""
    evaluations = {setting: read_case(seeds) for setting, seeds in cases.items()}
    for setting, evaluation in evaluations.items():
        if evaluation.completions.keys() < set(PRODUCT):
            continue
        product = decompose(evaluation)
        part = product.isolation_part
        factors = (product.total, product.isolation, product.mapping, product.sensitivity)
        cells = [setting, len(evaluation.seeds), *factors, product.over_placebo]
        cells += ["–" if part is None else f"{part:.0%}", judge_regime(product).sensitivity]
        yield f"| {' | '.join(map(str, cells))} |"
    for setting, evaluation in evaluations.items():
        for way in evaluation.completions:
            if way != BASELINE:
                count = len(evaluation.seeds)
                yield f"| {setting} | {count} | {way} | {compare_ways(evaluation, way)} |"


if __name__ == "__main__":
    raise SystemExit(main())
