"""`weft apps`: the table of applications and how sensitive each is to bandwidth."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from weft.errors import InputError
from weft.records import check_output, replace_file, write_text
from weft.sensitivity.application import (
    Application,
    CurveRow,
    build_curve,
    default_shares,
    parse_shares,
)
from weft.sensitivity.application_table import (
    AppTable,
    default_directory,
    read_application,
    to_json,
)
from weft.sensitivity.application_text import format_application, format_table_of_applications

FIGURES = (".svg", ".png")


def _open_table(args: argparse.Namespace) -> AppTable:
    return AppTable(Path(args.table) if args.table else default_directory())


def run_list(args: argparse.Namespace) -> int:
    """Status 1 where a file is damaged; the others are listed."""
    applications, damaged = _open_table(args).all()
    if args.json:
        for application in applications:
            print(json.dumps(_build_summary(application), ensure_ascii=False))
    elif applications or damaged:
        print(format_table_of_applications(applications))
    else:
        print(f"No application in {_open_table(args).directory}.")
    for error in damaged:
        print(f"weft: {error}", file=sys.stderr)
    return int(bool(damaged))


def run_show(args: argparse.Namespace) -> int:
    application = _open_table(args).load(args.name)
    shares = parse_shares(args.percent) if args.percent else default_shares(application)
    figure = _check_figure_file(args.figure) if args.figure else None
    rows = build_curve(application, shares)
    if figure is not None:
        _draw(application, figure)
    if args.json:
        print(json.dumps(_build_detail(application, rows), ensure_ascii=False))
    else:
        print(format_application(application, rows))
    return 0


def run_export(args: argparse.Namespace) -> int:
    text = to_json(_open_table(args).load(args.name))
    if args.output:
        write_text(args.output, text)
    else:
        print(text, end="")
    return 0


def run_import(args: argparse.Namespace) -> int:
    """All files are read before the first is stored: a damaged one changes nothing."""
    table = _open_table(args)
    applications = [read_application(path) for path in args.files]
    _check_different(applications)
    present = table.names()
    for application in applications:
        if application.name in present and not args.replace:
            raise table.already_stored(application.name)
    for application in applications:
        table.save(application, replace=args.replace)
    _report("imported", [a.name for a in applications], as_json=args.json)
    return 0


def run_remove(args: argparse.Namespace) -> int:
    table = _open_table(args)
    names = list(dict.fromkeys(args.names))
    for name in names:
        table.find_file(name)
    for name in names:
        table.remove(name)
    _report("removed", names, as_json=args.json)
    return 0


def _check_different(applications: Sequence[Application]) -> None:
    names = [application.name for application in applications]
    for name in names:
        if names.count(name) > 1:
            raise InputError("import", f"two files of {name!r}", "import one of them")


def _report(action: str, names: Sequence[str], *, as_json: bool) -> None:
    print(json.dumps({action: list(names)}) if as_json else f"{action} {', '.join(names)}")


def _check_figure_file(path: str) -> Path:
    if Path(path).suffix not in FIGURES:
        raise InputError(f"--figure {path}", "not .svg or .png", "name such a file")
    check_output(path)
    return Path(path)


def _draw(application: Application, path: Path) -> None:
    # Plots take half a second to import.
    from weft.plot import figure, to_png, to_svg
    from weft.sensitivity.application_text import sensitivity_curve

    drawing = figure(lambda ax: sensitivity_curve(ax, application))
    if path.suffix == ".svg":
        write_text(path, to_svg(drawing, title=f"Slowdown of {application.name}"))
    else:
        with replace_file(path) as file:
            file.write_bytes(to_png(drawing))


def _build_summary(application: Application) -> dict[str, object]:
    profile, quality = application.profile, application.convex.quality
    return {
        "name": application.name,
        "runs": len(profile.runs),
        "shares": sorted({run.share for run in profile.runs}),
        "link_bps": profile.link_bps,
        "floor": application.floor,
        "slowdown_at_floor": float(application.convex.model.slowdown(application.floor)),
        "quality": asdict(quality),
        "date": profile.date,
    }


def _build_detail(application: Application, rows: Sequence[CurveRow]) -> dict[str, object]:
    stored: dict[str, object] = json.loads(to_json(application))
    curve = [asdict(row) for row in rows]
    return stored | {"curve": curve, "notes": list(application.warnings)}
