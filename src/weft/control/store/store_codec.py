"""Tables, models, levels and answers as JSON texts of the store, and back.

Entry points: a `..._json` and a function that reads it for each. What is damaged raises one of
`weft.records.record_line.MALFORMED`, or an InputError where a value cannot be.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from weft.control.policy.levels import Level, Levels
from weft.control.state.events import Answer, ApplicationModel, Applied, Done, Registered
from weft.records.record_line import canonical_json, parse_object
from weft.sensitivity.model import Hinges
from weft.switches import Lane, PortName, Tables


def tables_json(told: Tables) -> str:
    lane = None if told.lane is None else [told.lane.queue, told.lane.limit]
    return canonical_json({"queue_of": told.queue_of, "weights": told.weights, "lane": lane})


def tables_from(text: str) -> Tables:
    data = parse_object(text)
    lane = None if data["lane"] is None else Lane(queue=data["lane"][0], limit=data["lane"][1])
    return Tables(
        queue_of=tuple(map(int, data["queue_of"])),
        weights=tuple(map(int, data["weights"])),
        lane=lane,
    )


def kind_json(kind: ApplicationModel) -> str:
    return canonical_json(
        {"terms": kind.model.terms, "floor": kind.model.floor, "baseline_s": kind.baseline_s}
    )


def kind_from(text: str) -> ApplicationModel:
    data = parse_object(text)
    terms = tuple((float(t), float(c)) for t, c in data["terms"])
    baseline = data["baseline_s"]
    return ApplicationModel(
        model=Hinges(terms=terms, floor=float(data["floor"])),
        baseline_s=None if baseline is None else float(baseline),
    )


def levels_json(levels: Levels) -> str:
    return canonical_json(asdict(levels))


def levels_from(text: str) -> Levels:
    data = parse_object(text)
    found = tuple(_level(level) for level in data["levels"])
    return Levels(levels=found, coordinates=str(data["coordinates"]), spread=float(data["spread"]))


def _level(data: dict[str, Any]) -> Level:
    return Level(
        number=int(data["number"]),
        applications=tuple(map(str, data["applications"])),
        centroid=tuple(map(float, data["centroid"])),
        sensitivity=float(data["sensitivity"]),
    )


def answer_json(answer: Answer) -> str:
    """Of those that are remembered."""
    match answer:
        case Registered():
            return canonical_json({"is": "registered", **asdict(answer)})
        case Applied():
            ports = [(name.node, name.port) for name in sorted(answer.ports)]
            told = {"ids": answer.ids, "revision": answer.revision, "asked": answer.asked}
            return canonical_json({"is": "applied", **told, "ports": ports})
        case _:
            return canonical_json({"is": "done"})


def answer_from(text: str) -> Answer:
    data = parse_object(text)
    match data.pop("is"):
        case "registered":
            return Registered(
                id=str(data["id"]), level=int(data["level"]), ttl_s=float(data["ttl_s"])
            )
        case "applied":
            ports = frozenset([PortName(str(node), int(port)) for node, port in data["ports"]])
            return Applied(
                ids=tuple(map(str, data["ids"])),
                revision=int(data["revision"]),
                ports=ports,
                asked=str(data["asked"]),
            )
        case "done":
            return Done()
        case other:
            raise ValueError(f"{other!r} is no answer")
