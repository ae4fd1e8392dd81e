"""The table of applications: a directory with one JSON file for each, and how people see it.

A file is `{"weft": "application", "schema": 1, "profile", "models"}`: indented, ASCII, no NaN.
The bytes sent in each run are a list beside the runs, where known: older readers ignore it.
Files are replaced atomically, so that concurrent writers lose nothing; a writer that must not
replace holds the directory's lock. A damaged file is refused by name and place, and the others stay
usable.

For people: the table of all, one application with its curve as text, and as a figure with the
samples, the convex fit with its band, and the polynomials. Shares are in percent of the link there.
Entry points: `AppTable`, `to_json`, `from_json`; `format_table_of_applications`,
`format_application`, `sensitivity_curve`.
"""

from __future__ import annotations

import fcntl
import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import InputError
from weft.model import ErrorSummary
from weft.plot.style import INK, OURS, PALETTE, legend
from weft.records import Plain, check_directory, write_text
from weft.records.record_text import format_table
from weft.records.schema import parse_object, report_malformed
from weft.records.store import explain_file_errors
from weft.sensitivity.application import (
    Application,
    CurveRow,
    Fitted,
    Model,
    Profile,
    Quality,
    Run,
    check_name,
    is_name,
)
from weft.sensitivity.model import FloatArray, Hinges, Polynomial, confidence_band
from weft.units import format_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# ---- Files ------------------------------------------------------------------------------------

SCHEMA = 1
KIND = "application"
_REMEDY = "restore it from an export, or delete it and profile again"
_LARGEST = 1e9  # of a weight or coefficient; bandwidth is allocated by none that is larger

Json = dict[str, Any]


def to_json(application: Application) -> str:
    """The application's file; equal applications give equal bytes."""
    data = {
        "weft": KIND,
        "schema": SCHEMA,
        "profile": _encode_profile(application.profile),
        "models": {
            "convex": _encode_fitted(application.convex),
            "paper": [_encode_fitted(fitted) for fitted in application.paper],
            "traced": None if application.traced is None else _encode_fitted(application.traced),
        },
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _encode_profile(profile: Profile) -> Json:
    data = asdict(profile)
    sent = [run.pop("sent_bytes") for run in data["runs"]]
    return data | ({"sent_bytes": sent} if any(n is not None for n in sent) else {})


def _encode_fitted(fitted: Fitted[Model]) -> Json:
    return asdict(fitted.model) | {"quality": asdict(fitted.quality)}


def from_json(text: str | bytes, where: str) -> Application:
    """The application in a file; `where` names it in errors."""
    with report_malformed(where, "damaged", _REMEDY):
        data = parse_object(text)
        if data.get("weft") != KIND:
            raise InputError(where, "not an application of weft", "give a file of weft apps export")
        if data.get("schema") != SCHEMA:
            problem = f"schema {data.get('schema')!r}, and this weft reads {SCHEMA}"
            raise InputError(where, problem, "read it with the weft that wrote it")
        models = data["models"]
        application = Application(
            profile=_read_profile(data["profile"]),
            convex=_read_convex(models["convex"]),
            paper=tuple(
                Fitted(model=_read_polynomial(m), quality=_read_quality(m)) for m in models["paper"]
            ),
            traced=None if models.get("traced") is None else _read_convex(models["traced"]),
        )
        _check_floors(application)
        return application


def _check_floors(application: Application) -> None:
    least = min(run.share for run in application.profile.runs)
    polynomials = (fitted.model.floor for fitted in application.paper)
    for floor in (application.convex.model.floor, *polynomials):
        if floor < least:
            problem = f"floor {floor:g} is below the least share profiled, {least:g}"
            raise InputError("model", problem, _REMEDY)


def _read_profile(data: Json) -> Profile:
    unit = data["completion_unit"]
    if unit not in ("s", "slowdown"):
        raise ValueError(f"completion_unit {unit!r} is not s or slowdown")
    return Profile(
        name=_check_text(data["name"]),
        runs=tuple(Run(**_check_numbers(run)) for run in _read_runs(data)),
        command=tuple(map(_check_text, data["command"])),
        link_bps=None if data["link_bps"] is None else _check_number(data["link_bps"]),
        completion_unit=unit,
        machine={_check_text(name): _check_plain(value) for name, value in data["machine"].items()},
        date=_check_text(data["date"]),
        notes=tuple(map(_check_text, data["notes"])),
    )


def _read_runs(data: Json) -> list[Json]:
    runs = data["runs"]
    sent = data.get("sent_bytes") or [None] * len(runs)
    return [run | {"sent_bytes": sent_bytes} for run, sent_bytes in zip(runs, sent, strict=True)]


def _read_convex(data: Json) -> Fitted[Hinges]:
    return Fitted(model=_read_hinges(data), quality=_read_quality(data))


def _read_hinges(data: Json) -> Hinges:
    terms = tuple((_check_number(t), _check_weight(c)) for t, c in data["terms"])
    return Hinges(terms=terms, floor=_check_number(data["floor"]))


def _read_polynomial(data: Json) -> Polynomial:
    coefficients = tuple(map(_check_weight, data["coefficients"]))
    return Polynomial(coefficients=coefficients, floor=_check_number(data["floor"]))


def _read_quality(data: Json) -> Quality:
    quality = data["quality"]
    left_out = quality["left_out"]
    return Quality(
        r_squared=None if quality["r_squared"] is None else _check_number(quality["r_squared"]),
        left_out=None if left_out is None else ErrorSummary(**_check_numbers(left_out)),
    )


def _check_numbers(data: Json) -> Json:
    for value in data.values():
        if value is not None:
            _check_number(value)
    return data


def _check_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    if not isfinite(value):  # which raises for an integer that no float holds
        raise ValueError(f"{value!r} is not finite")
    return value


def _check_weight(value: object) -> float:
    number = _check_number(value)
    if abs(number) > _LARGEST:
        raise ValueError(f"{number:g} is not in -1e9 to 1e9")
    return number


def _check_plain(value: object) -> Plain:
    if value is None or isinstance(value, bool | str):
        return value
    return _check_number(value)


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


_SUFFIX = ".json"
_LARGEST_BYTES = 64 * 2**20


def default_directory() -> Path:
    """The default table: weft/apps in the user's data directory (XDG)."""
    home = os.environ.get("XDG_DATA_HOME", "")
    # The specification: a relative path here is invalid and to be ignored.
    base = Path(home) if os.path.isabs(home) else Path.home() / ".local" / "share"
    return base / "weft" / "apps"


def read_application(path: str | Path) -> Application:
    """The application in an exported file."""
    with explain_file_errors(path):
        if Path(path).stat().st_size > _LARGEST_BYTES:
            raise InputError(str(path), "over 64 MiB", "give a file of weft apps export")
        text = Path(path).read_bytes()
    return from_json(text, str(path))


@dataclass(frozen=True, slots=True)
class AppTable:
    """The applications in a directory, which is created by the first save."""

    directory: Path

    def names(self) -> tuple[str, ...]:
        """Every application, damaged ones too, in alphabetical order; ignores other files."""
        with explain_file_errors(self.directory):
            if not self.directory.exists():
                return ()
            if not self.directory.is_dir():
                raise InputError(str(self.directory), "not a directory", "name a directory")
            files = [path for path in self.directory.iterdir() if path.suffix == _SUFFIX]
        return tuple(sorted(path.stem for path in files if is_name(path.stem)))

    def path(self, name: str) -> Path:
        return self.directory / f"{check_name(name, 'NAME')}{_SUFFIX}"

    def load(self, name: str) -> Application:
        """The application of that name."""
        path = self.find_file(name)
        application = read_application(path)
        if application.name != name:
            problem = f"holds the application {application.name!r}"
            raise InputError(str(path), problem, f"rename it to {application.name}{_SUFFIX}")
        return application

    def all(self) -> tuple[list[Application], list[InputError]]:
        """Every readable application, and the error of each other file."""
        applications, damaged = [], []
        for name in self.names():
            try:
                applications.append(self.load(name))
            except InputError as error:
                damaged.append(error)
        return applications, damaged

    def save(self, application: Application, *, replace: bool = True) -> Path:
        """Store an application; one of the same name is replaced, or refused."""
        path = self.path(application.name)
        check_directory(self.directory)
        with self._lock():
            if path.exists() and not replace:
                raise self.already_stored(application.name)
            write_text(path, to_json(application))
        return path

    def remove(self, name: str) -> None:
        """Delete an application, damaged or not."""
        path = self.find_file(name)
        with self._lock(), explain_file_errors(path):
            path.unlink(missing_ok=True)

    def find_file(self, name: str) -> Path:
        """The file of an application that is in the table."""
        path = self.path(name)
        with explain_file_errors(path):
            exists = path.exists()
        if not exists:
            names = ", ".join(self.names())
            remedy = f"use one of {names}" if names else "profile or import one first"
            raise InputError(str(self.directory), f"no application {name!r}", remedy)
        return path

    def already_stored(self, name: str) -> InputError:
        problem = f"{name} is in the table already"
        return InputError(str(self.directory), problem, "use --replace, or remove it")

    @contextmanager
    def ensure_directory(self) -> Iterator[None]:
        """Creates the directory; removes what it created if that stays empty."""
        folder = self.directory
        with explain_file_errors(folder):
            new = [directory for directory in (folder, *folder.parents) if not directory.exists()]
        check_directory(folder)
        try:
            yield
        finally:
            with suppress(OSError):  # not empty, or gone
                for directory in new:
                    directory.rmdir()

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Excludes other writers; readers need no lock."""
        with explain_file_errors(self.directory):
            descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


# ---- Text -------------------------------------------------------------------------------------

_NONE = "–"
_WIDTH = 98
_TERMS = 3  # of a convex model, in its formula


def percent(share: float) -> str:
    return f"{100 * share:.4g} %"


def format_table_of_applications(applications: Sequence[Application]) -> str:
    """One line per application."""
    heads = ["application", "runs", "shares", "link", "D(50 %)", "D(floor)", "R²", "left out"]
    return format_table([*heads, "profiled"], [_line(a) for a in applications])


def _line(application: Application) -> list[str]:
    profile, quality = application.profile, application.convex.quality
    model, floor = application.convex.model, application.floor
    half = f"{float(model.slowdown(0.5)):.2f}" if floor <= 0.5 else _NONE
    shares = {run.share for run in profile.runs}
    return [
        application.name,
        str(len(profile.runs)),
        f"{len(shares)} from {percent(floor)}",
        _NONE if profile.link_bps is None else format_value(profile.link_bps, "b/s"),
        half,
        f"{float(model.slowdown(floor)):.2f}",
        _optional(quality.r_squared, 3),
        _left_out(quality),
        profile.date.partition("T")[0] or _NONE,
    ]


def format_application(application: Application, rows: Sequence[CurveRow]) -> str:
    """What is known of one application, its models and its curve."""
    parts = [_facts(application), _models(application), _curve(application, rows)]
    if application.warnings:
        parts.append("\n".join(_bullet(f"note: {warning}") for warning in application.warnings))
    return "\n\n".join(parts)


def _facts(application: Application) -> str:
    profile = application.profile
    shares = ", ".join(f"{100 * b:g}" for b in sorted({run.share for run in profile.runs}))
    facts = [("profile", f"{len(profile.runs)} runs at {shares} % of the link")]
    if profile.command:
        facts.append(("command", " ".join(profile.command)))
    if profile.link_bps is not None:
        facts.append(("link", format_value(profile.link_bps, "b/s")))
    if profile.completion_unit == "s":
        facts.append(("at 100 %", f"{profile.baseline:.4g} s, the mean"))
    facts += [("date", profile.date)] if profile.date else []
    facts += [(name, str(value)) for name, value in profile.machine.items()]
    facts += [("note", note) for note in profile.notes]
    return "\n".join([application.name, *(_fact(name, text) for name, text in facts)])


def _fact(name: str, text: str) -> str:
    indent = " " * 12
    return textwrap.fill(text, _WIDTH, initial_indent=f"{name:>10}: ", subsequent_indent=indent)


def _models(application: Application) -> str:
    convex, traced = application.convex, application.traced
    cells = [["convex (default)", *_quality(convex.quality), _hinges(convex.model)]]
    cells += [
        [
            f"paper, degree {fitted.model.degree}",
            *_quality(fitted.quality),
            "".join(_power(n, c) for n, c in enumerate(fitted.model.coefficients)),
        ]
        for fitted in application.paper
    ]
    if traced is not None:
        cells.append(["traced, one run", *_quality(traced.quality), _hinges(traced.model)])
    return format_table(
        ["model", "R²", "left out", "slowdown at the share b"], cells, left_columns=4
    )


def _quality(quality: Quality) -> tuple[str, str]:
    return _optional(quality.r_squared, 3), _left_out(quality)


def _left_out(quality: Quality) -> str:
    """The worst error at a share that the fit has not seen."""
    return _NONE if quality.left_out is None else f"{100 * quality.left_out.worst:.1f} %"


def _hinges(model: Hinges) -> str:
    shown = model.terms[:_TERMS]
    more = [f"{len(model.terms) - _TERMS} more"] if len(model.terms) > _TERMS else []
    return " + ".join(["1", *(f"{c:.4g} max(0, {t:.4g}/b − 1)" for t, c in shown), *more])


def _power(power: int, c: float) -> str:
    if power == 0:
        return f"{c:.4g}"
    return f" {'−' if c < 0 else '+'} {abs(c):.4g} b{'' if power == 1 else f'^{power}'}"


def _curve(application: Application, rows: Sequence[CurveRow]) -> str:
    degrees = [f"degree {fitted.model.degree}" for fitted in application.paper]
    traced = ["traced"] if application.traced is not None else []
    heads = ["share", "observed", "convex", "95 % from", "to", *degrees, *traced]
    return format_table(heads, [list(_cells(row)) for row in rows])


def _cells(row: CurveRow) -> Iterator[str]:
    yield percent(row.share)
    yield from (_optional(v, 3) for v in (row.observed, row.convex, row.low, row.high, *row.paper))
    if row.traced is not None:
        yield _optional(row.traced, 3)


def _optional(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _bullet(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ")


# ---- The figure ---------------------------------------------------------------------------------

_POINTS = 200
_COLOURS = (PALETTE[1], PALETTE[2], PALETTE[3])
_DASHES = (":", "-.", "--")


def sensitivity_curve(ax: Axes, application: Application) -> None:
    """Slowdown over the share of the link, from the floor up."""
    samples = application.profile.samples
    # Closer together where the curve bends most.
    shares = np.geomspace(application.floor, 1.0, _POINTS)
    _draw_band(ax, application, shares)
    _draw_other_models(ax, application, shares)
    ax.plot(100 * shares, application.convex.model.slowdown(shares), color=OURS, label="convex")
    ax.plot(
        [100 * s.share for s in samples],
        [s.slowdown for s in samples],
        "o",
        markersize=4.5,
        markerfacecolor="white",
        markeredgecolor=INK,
        markeredgewidth=1.1,
        zorder=4,
        clip_on=False,
        label="samples",
    )
    ax.set_xlim(0, 102)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("share of the link (%)")
    ax.set_ylabel(f"slowdown of {application.name}")
    legend(ax)


def _draw_band(ax: Axes, application: Application, shares: FloatArray) -> None:
    limits = confidence_band(application.profile.samples, shares)
    if limits is not None:
        ax.fill_between(
            100 * shares,
            limits.low,
            limits.high,
            color=OURS,
            alpha=0.18,
            linewidth=0,
            label=f"convex, {100 * limits.confidence:.0f} % band",
        )


def _draw_other_models(ax: Axes, application: Application, shares: FloatArray) -> None:
    for number, fitted in enumerate(application.paper):
        ax.plot(
            100 * shares,
            fitted.model.slowdown(shares),
            linewidth=1.2,
            color=_COLOURS[number % 3],
            linestyle=_DASHES[number % 3],
            label=f"polynomial, degree {fitted.model.degree}",
        )
    if application.traced is not None:
        ax.plot(
            100 * shares,
            application.traced.model.slowdown(shares),
            color=INK,
            linewidth=1.2,
            linestyle=(0, (1, 2)),
            label="traced, one run",
        )
