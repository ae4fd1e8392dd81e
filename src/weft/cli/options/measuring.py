"""Options of the commands that measure: doctor, accuracy, the tests, tune, measure, serve."""

from __future__ import annotations

import argparse
import dataclasses

from weft.cli.parser import TESTS, Parser
from weft.measure.settings.by_test import DESCRIPTIONS, SETTINGS
from weft.measure.settings.options import Option, Settings, options_of
from weft.measure.settings.values import read_flag
from weft.units import format_value, split_unit

GOALS = ("throughput", "latency", "message-rate", "cpu")


def declare(command: Parser, name: str) -> None:
    if name in TESTS:
        declare_test(command, name)
    else:
        _DECLARE[name](command)


def declare_doctor(command: Parser) -> None:
    command.description = (
        "Clock, processors, memory, noise, devices and transports of this host, what spoils "
        "measurements and how to fix it. Status 1 if there is no transport to measure over."
    )
    command.add_argument(
        "--seconds", type=float, default=1.0, metavar="N", help="seconds to watch for noise"
    )
    command.add_argument("--providers", action="store_true", help="only the transports, in full")
    command.add_argument("--json", action="store_true", help="everything as one JSON object")
    command.set_defaults(run="doctor:run")


def declare_accuracy(command: Parser) -> None:
    command.description = (
        "Runs every estimator over the delay transport, in which each message has a known time, "
        "or with --over over real ones, through a forwarder of known delay, loss and rate (as "
        "root). Takes real-time priority, a second at a time, where it may."
    )
    command.add_argument(
        "--over",
        nargs="+",
        metavar="TRANSPORT",
        help="real transports: udp, tcp, ofi:tcp; status 1 unless all is within 3 %%",
    )
    command.add_argument(
        "--delay", nargs="+", metavar="TIME", help="injected with --over; 0.1ms 1ms 10ms"
    )
    command.add_argument(
        "--wait", nargs="+", choices=("block", "spin"), help="how loops wait with --over; both"
    )
    command.add_argument(
        "--messages", type=int, default=15_000, metavar="N", help="messages of each estimator"
    )
    command.add_argument("--seed", type=int, default=1, metavar="N", help="of the delays")
    command.add_argument(
        "--omission", metavar="FILE", help="draw what a closed loop hides, as a PNG"
    )
    command.add_argument(
        "--check",
        action="store_true",
        help="status 1 if a median or p99.9 of the undisturbed messages is off by 1 %%",
    )
    command.add_argument("--json", action="store_true", help="one JSON object per estimator")
    command.set_defaults(run="measure:run_accuracy")


def declare_test(command: Parser, name: str) -> None:
    command.description = f"{DESCRIPTIONS[name]} See docs/measure.md."
    command.usage = f"weft {name} [PEER] [--over TRANSPORT] [--SETTING VALUE ...] [-o FILE]"
    command.allow_abbrev = False
    command.add_argument(
        "peer",
        nargs="?",
        default="local",
        metavar="PEER",
        help="HOST[:PORT] of a weft serve, or local: one is started for this command",
    )
    command.add_argument(
        "--sweep",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUES",
        help="every combination, such as size=64..8M*2 depth=1,4,16",
    )
    command.add_argument("--repeat", default="1", metavar="N", help="measure each point N times")
    command.add_argument(
        "-o", "--output", metavar="FILE", help="keep the records (JSON lines); resumes"
    )
    command.add_argument("--json", action="store_true", help="records on standard output")
    command.add_argument("--token-file", metavar="FILE", help="the token that the peer asks for")
    _add_settings(command, SETTINGS[name])
    command.set_defaults(run="measure:run", test=name)


def _add_settings(command: Parser, kind: type[Settings]) -> None:
    """Settings of this test first, then the common ones, then those of some transports."""
    common = options_of(Settings)
    titles = ("of this test", "common settings", "of some transports")
    groups = {title: command.add_argument_group(title) for title in titles}
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    for field_name, option in options_of(kind).values():
        if "." in option.name:
            continue
        title = (
            "of some transports"
            if option.only
            else "common settings"
            if option.name in common
            else "of this test"
        )
        _add_option(groups[title], option, _format_default(field_name, defaults[field_name]))
    delay = [name.partition(".")[2] for name in common if name.startswith("delay.")]
    groups["of some transports"].add_argument(
        "--delay",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help=f"of the delay transport: {', '.join(delay)}",
    )


def _format_default(name: str, value: object) -> str:
    """A default worth showing; empty for none and nothing."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value in ("", -1):
        return ""
    _, unit = split_unit(name)
    return format_value(value, unit) if unit and isinstance(value, int) else f"{value}"


def _add_option(group: argparse._ArgumentGroup, option: Option, default: str) -> None:
    only = f" ({', '.join(option.only)})" if option.only else ""
    default_text = f" [{default}]" if default and "default:" not in option.help else ""
    help_text = f"{option.help}{only}{default_text}".replace("%", "%%")
    if option.read is read_flag:
        flag = argparse.BooleanOptionalAction
        group.add_argument(f"--{option.name}", action=flag, default=None, help=help_text)
    else:
        group.add_argument(f"--{option.name}", metavar=option.metavar, help=help_text)


def declare_tune(command: Parser) -> None:
    command.description = (
        "Measures a small designed set of settings, fits the models to it, recommends, and "
        "measures the recommendation beside the default. A setting that is given is not a choice; "
        "several values (--size 4K..1M*4) limit it. See docs/tune.md."
    )
    command.usage = (
        "weft tune [PEER | RECORDS ...] [--over TRANSPORT] [--goal GOAL] [--SETTING VALUE ...] "
        "[-o FILE]"
    )
    command.allow_abbrev = False
    command.add_argument(
        "targets",
        nargs="*",
        metavar="PEER | RECORDS",
        help="HOST[:PORT] of a weft serve, or local: one is started for this command; or files of "
        "records, from which to tune without measuring",
    )
    command.add_argument(
        "--goal", default="throughput", metavar="GOAL", help=f"what is best: {', '.join(GOALS)}"
    )
    command.add_argument("--budget", metavar="SECONDS", help="time for everything")
    command.add_argument(
        "--point", metavar="TIME", help="timed part of each point (default: 0.2 s)"
    )
    command.add_argument("--dry-run", action="store_true", help="print the plan; measure nothing")
    command.add_argument("-o", "--output", metavar="FILE", help="keep the records (JSON lines)")
    command.add_argument("--json", action="store_true", help="the result as a record")
    command.add_argument("--token-file", metavar="FILE", help="the token that the peer asks for")
    _add_settings(command, SETTINGS["bandwidth"])
    command.add_argument("--transport", dest="over", metavar="TRANSPORT", help="same as --over")
    command.set_defaults(run="tune:run")


def declare_measure(command: Parser) -> None:
    command.description = (
        "Run the steps of a plan on its hosts: processes of this machine, or the workers of a Dask "
        "cluster. See docs/many-hosts.md for every key."
    )
    command.add_argument("plan", metavar="PLAN.toml", help="the flows and the steps")
    command.add_argument(
        "--cluster", metavar="tcp://HOST:PORT", help="a Dask scheduler with one worker per host"
    )
    command.add_argument(
        "--repetitions",
        type=int,
        metavar="N",
        help="run every step N times, whatever the plan says",
    )
    command.add_argument("-o", "--output", metavar="FILE", help="keep the records (JSON lines)")
    command.add_argument("--json", action="store_true", help="records on standard output")
    command.add_argument("--flows", action="store_true", help="every step in full, with each flow")
    command.set_defaults(run="measure:run_plan_file")


def declare_serve(command: Parser) -> None:
    command.description = (
        "Serve measurements until Ctrl-C. Without options: on loopback, port 9338. "
        "See docs/serve.md."
    )
    command.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDR[:PORT]",
        help="serve here; an address other than loopback needs a token and the three bounds below",
    )
    command.add_argument(
        "--token-file", metavar="FILE", help="clients must know its token (or WEFT_TOKEN)"
    )
    command.usage = (
        "weft serve [--listen ADDR[:PORT]] [--token-file FILE] [--max-LIMIT VALUE ...] [--json]"
    )
    bounds = command.add_argument_group("what a client may ask for (or `unlimited`)")
    bounds.add_argument("--max-size", metavar="SIZE", help="of a message, such as '8 MiB'")
    bounds.add_argument("--max-duration", metavar="TIME", help="of a test, such as '60 s'")
    bounds.add_argument("--max-rate", metavar="RATE", help="of payload, such as '10 Gb/s'")
    bounds.add_argument(
        "--max-memory",
        metavar="SIZE",
        help="of a test's buffers (default: 4 GiB, at most a quarter of the memory)",
    )
    bounds.add_argument("--max-sessions", metavar="N", default="16", help="clients at once")
    bounds.add_argument("--max-depth", metavar="N", default="65536", help="slots of a queue")
    bounds.add_argument("--max-endpoints", metavar="N", default="1024", help="of a test")
    bounds.add_argument("--max-threads", metavar="N", default="256", help="of a test")
    command.add_argument("--json", action="store_true", help="one JSON object per line")
    command.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    command.set_defaults(run="serve:run")


_DECLARE = {
    "doctor": declare_doctor,
    "accuracy": declare_accuracy,
    "tune": declare_tune,
    "measure": declare_measure,
    "serve": declare_serve,
}
