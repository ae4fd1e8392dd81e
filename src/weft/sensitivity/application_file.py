"""An application as one JSON file, and back; damaged or foreign content is refused by place.

The file is `{"weft": "application", "schema": 1, "profile", "models"}`, indented, ASCII, without
NaN. How many of each run's bytes were sent is a list beside the runs, where it is known: readers
that do not know it leave it out. Entry points: `to_json`, `from_json`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from math import isfinite
from typing import Any

from weft.errors import InputError
from weft.model import ErrorSummary
from weft.records import Plain
from weft.records.record_line import parse_object, report_malformed
from weft.sensitivity.application import Application, Fitted, Model, Quality
from weft.sensitivity.model import Hinges, Polynomial
from weft.sensitivity.profile import Profile, Run

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
        "profile": _profile_json(application.profile),
        "models": {
            "convex": _fitted_json(application.convex),
            "paper": [_fitted_json(fitted) for fitted in application.paper],
            "traced": None if application.traced is None else _fitted_json(application.traced),
        },
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _profile_json(profile: Profile) -> Json:
    data = asdict(profile)
    sent = [run.pop("sent_bytes") for run in data["runs"]]
    return data | ({"sent_bytes": sent} if any(n is not None for n in sent) else {})


def _fitted_json(fitted: Fitted[Model]) -> Json:
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
            profile=_profile(data["profile"]),
            convex=_convex(models["convex"]),
            paper=tuple(Fitted(model=_polynomial(m), quality=_quality(m)) for m in models["paper"]),
            traced=None if models.get("traced") is None else _convex(models["traced"]),
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


def _profile(data: Json) -> Profile:
    unit = data["completion_unit"]
    if unit not in ("s", "slowdown"):
        raise ValueError(f"completion_unit {unit!r} is not s or slowdown")
    return Profile(
        name=_text(data["name"]),
        runs=tuple(Run(**_numbers(run)) for run in _runs(data)),
        command=tuple(map(_text, data["command"])),
        link_bps=None if data["link_bps"] is None else _number(data["link_bps"]),
        completion_unit=unit,
        machine={_text(name): _plain(value) for name, value in data["machine"].items()},
        date=_text(data["date"]),
        notes=tuple(map(_text, data["notes"])),
    )


def _runs(data: Json) -> list[Json]:
    runs = data["runs"]
    sent = data.get("sent_bytes") or [None] * len(runs)
    return [run | {"sent_bytes": own} for run, own in zip(runs, sent, strict=True)]


def _convex(data: Json) -> Fitted[Hinges]:
    return Fitted(model=_hinges(data), quality=_quality(data))


def _hinges(data: Json) -> Hinges:
    terms = tuple((_number(t), _weight(c)) for t, c in data["terms"])
    return Hinges(terms=terms, floor=_number(data["floor"]))


def _polynomial(data: Json) -> Polynomial:
    coefficients = tuple(map(_weight, data["coefficients"]))
    return Polynomial(coefficients=coefficients, floor=_number(data["floor"]))


def _quality(data: Json) -> Quality:
    quality = data["quality"]
    left_out = quality["left_out"]
    return Quality(
        r_squared=None if quality["r_squared"] is None else _number(quality["r_squared"]),
        left_out=None if left_out is None else ErrorSummary(**_numbers(left_out)),
    )


def _numbers(data: Json) -> Json:
    for value in data.values():
        if value is not None:
            _number(value)
    return data


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    if not isfinite(value):  # which raises for an integer that no float holds
        raise ValueError(f"{value!r} is not finite")
    return value


def _weight(value: object) -> float:
    found = _number(value)
    if abs(found) > _LARGEST:
        raise ValueError(f"{found:g} is not in -1e9 to 1e9")
    return found


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, bool | str):
        return value
    return _number(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value
