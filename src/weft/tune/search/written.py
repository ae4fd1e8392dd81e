"""Settings as they are written on a command line. Entry points: `written`, `option_words`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.measure.settings.options import options_of
from weft.measure.tests.catalog import TESTS
from weft.records import Plain
from weft.tune.rules.evidence import Evidence

_UNITS = {"_ns": "ns", "_gbps": "Gb/s"}


def written(evidence: Evidence, test: str) -> dict[str, str]:
    """What is the same for all its rows, by outside name: the transport, and what is no default."""
    outside = {field: name for name, (field, _) in options_of(TESTS[test].settings).items()}
    other = dict(evidence.rows[0].setting.other) if evidence.rows else {}
    told: dict[str, str] = {"over": evidence.over, "endpoint": evidence.endpoint}
    told |= {outside[name]: _text(name, value) for name, value in other.items() if name in outside}
    return {name: text for name, text in told.items() if text}


def _text(name: str, value: Plain) -> str:
    unit = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")
    plain = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{plain}{unit}".replace(" ", "")


def option_words(settings: Mapping[str, str]) -> Iterator[str]:
    """`--NAME VALUE` of each; those of the delay transport together; a flag without its value."""
    delays = [f"{name.partition('.')[2]}={text}" for name, text in settings.items() if "." in name]
    for name, text in settings.items():
        if "." not in name:
            yield f"--{name}" if text == "True" else f"--{name} {text}"
    if delays:
        yield f"--delay {' '.join(delays)}"
