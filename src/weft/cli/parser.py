"""The parser of the command line, built from a light registry.

`COMMANDS` names every command, its help line, and the module of `weft.cli.options` that declares
its options. Help imports only these: numpy, plots and protocols wait until a command runs. A
command's `run` is text, `MODULE:FUNCTION` of `weft.cli`, for the same reason. Entry points:
`build_parser`, `Parser`.
"""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import Any, NoReturn

from weft import __version__

TESTS = ("latency", "rperf", "bandwidth", "rate", "paced", "saturation", "rma", "transfer")
# name -> (module of weft.cli.options, help line)
COMMANDS = {
    "doctor": ("measuring", "what this machine can and cannot do, and why"),
    "accuracy": ("measuring", "every estimator beside known times, on this host"),
    "tour": ("studying", "a first look: every part of weft in a few minutes, one report"),
    "latency": ("measuring", "ping-pong latency, every message timed"),
    "rperf": ("measuring", "the round trip of the fabric alone, hosts subtracted"),
    "bandwidth": ("measuring", "payload throughput, one way or both"),
    "rate": ("measuring", "messages per second over depth, connections, threads and lists"),
    "paced": ("measuring", "open-loop latency, from the intended send time"),
    "saturation": ("measuring", "latency of a probe against the load beside it"),
    "rma": ("measuring", "one-sided read, write and atomics"),
    "transfer": ("measuring", "bulk transfer with B outstanding, signaling every S"),
    "tune": ("measuring", "find the best settings for a goal, and prove them"),
    "measure": ("measuring", "measure patterns of traffic between many hosts"),
    "serve": ("measuring", "be the other end of measurements"),
    "testbed": ("applications", "a network of hosts on this machine: up, exec, status, down"),
    "job": ("applications", "run a job of computation and communication for real"),
    "profile": ("applications", "how much slower a real command is with less of the link"),
    "corun": (
        "applications",
        "applications beside each other: one queue, equal queues, weft's weights",
    ),
    "control": (
        "applications",
        "share bandwidth among applications: program switches, verify, explain",
    ),
    "export": ("applications", "port counters of an InfiniBand fabric, for Prometheus"),
    "run": ("applications", "an unmodified command, registered with a controller and marked"),
    "trace": ("applications", "the calls of an MPI program, as a workload to simulate"),
    "simulate": ("studying", "simulate a fabric packet by packet"),
    "model": ("studying", "rates, latencies, waits and settings from closed forms"),
    "apps": ("applications", "applications and how sensitive each is to bandwidth"),
    "study": ("studying", "reproduce a paper's figures beside its published values"),
    "fabric": ("studying", "describe, check and convert a fabric"),
    "compare": ("studying", "compare two files of records"),
    "report": ("studying", "make one HTML page of records"),
    "completion": ("studying", "completion of commands and options, for bash, zsh or fish"),
    "man": ("studying", "manual pages"),
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest what was meant and show the usage of the command at fault."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", HelpFormatter)
        super().__init__(*args, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses what is left over here, where this command's options are known."""
        parsed, extras = super().parse_known_args(args, namespace)
        if extras:
            self.error(self._describe_unknown(extras[0]))
        return parsed, extras

    def _describe_unknown(self, word: str) -> str:
        name = word.split("=")[0]
        if not name.startswith("-"):
            return f"{name!r} is one argument too many"
        options = [option for option in self._option_string_actions if option.startswith("--")]
        return f"{name} is not an option{suggest(name, options)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        names = [str(choice) for choice in action.choices]
        if isinstance(action, argparse._SubParsersAction):
            noun = str(action.metavar).lower()
            problem = f"{str(value)!r} is not {'an' if noun == 'action' else 'a'} {noun}"
            everything = f"; use one of {', '.join(names)}"
            self.error(f"{problem}{suggest(str(value), names) or everything}")
        name = "/".join(action.option_strings) or action.metavar
        self.error(f"{name} {value}: use one of {', '.join(names)}")

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        text = message.removeprefix("argument ")
        remedy = "" if text.endswith("?") else f"; {self.prog} --help lists what there is"
        self.exit(2, f"{self.prog}: {text}{remedy}\n")


class HelpFormatter(argparse.HelpFormatter):
    """Shows the default of each option that has one: "runs at each share [3]"."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_value = isinstance(action.default, str | int | float)
        if not is_value or isinstance(action.default, bool) or "default" in text:
            return text
        if action.default == argparse.SUPPRESS or action.default == "":
            return text
        return f"{text} [%(default)s]".lstrip()


def suggest(word: str, names: Collection[str]) -> str:
    """ "; did you mean NAME?" of the nearest name, or nothing."""
    by_text = {name.lstrip("-"): name for name in names}
    near = difflib.get_close_matches(word.lstrip("-"), by_text, n=1, cutoff=0.6)
    return f"; did you mean {by_text[near[0]]}?" if near else ""


Actions = argparse._SubParsersAction


def add_action(actions: Actions[Parser], name: str, about: str, run: str) -> Parser:
    """An action of a command; `run` is `MODULE:FUNCTION` of `weft.cli`."""
    action = actions.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
    action.set_defaults(run=run)
    return action


def build_parser(names: Collection[str] = tuple(COMMANDS)) -> Parser:
    """The whole parser; only the commands in `names` have their options."""
    top = Parser(
        prog="weft",
        description="Measure and simulate high-performance fabrics, and see the numbers beside "
        "published ones.",
    )
    top.add_argument("--version", action="version", version=f"weft {__version__}")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, line) in COMMANDS.items():
        command = commands.add_parser(name, help=line)
        if name in names:
            import_module(f"weft.cli.options.{module}").declare(command, name)
    return top
