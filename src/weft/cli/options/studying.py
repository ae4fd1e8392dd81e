"""Options of the commands that simulate, model and show.

These are tour, simulate, model, study, fabric, compare, report, completion and man.
"""

from __future__ import annotations

import os

from weft.cli.parser import Parser, add_action

SHELLS = ("bash", "zsh", "fish")
ROUTINGS = ("destination_modulo", "ecmp", "shortest_path", "up_down")
FORMATS = ("ibnetdiscover", "lft", "toml")
SYSTEMS = "ideal, omnet, sx6012"
TRANSPORTS = "rc, uc, ud, srd, udp, tcp"
OPERATIONS = "send, send-with-imm, write, write-with-imm, read"
WIRES = "ib, ib-routed, rocev2, ethernet, efa, ipoib, ipoib-connected"
ORDERS = "fcfs, fcfs-age, own-lane, round-robin"
FITTED = {
    "latency": "latency of a message by its size, fitted to measured rows",
    "throughput": "message rate by size, depth, connections and threads, fitted to measured rows",
    "saturation": "latency of a probe beside load, fitted to measured rows",
}
# option of a fitted model -> (metavar, help)
INPUTS = {
    "size": ("SIZES", "message sizes, such as 64,4K or 64..4K*2"),
    "rate": ("RATES", "links, such as 4xFDR"),
    "depth": ("NUMBERS", "messages outstanding per connection"),
    "qps": ("NUMBERS", "connections of each thread"),
    "threads": ("NUMBERS", "threads that post"),
    "load": ("RATES", "load, such as 8GB/s"),
}
INPUTS_OF = {
    "latency": ("size", "rate"),
    "throughput": ("size", "depth", "qps", "threads"),
    "saturation": ("load",),
}


def declare(command: Parser, name: str) -> None:
    _DECLARE[name](command)


def declare_tour(command: Parser) -> None:
    command.description = (
        "Shows the whole product in a few minutes: doctor, a measurement beside its truth, a "
        "switch beside published values, an application's profile (as root), two applications "
        "shared by the controller on simulated switches. What cannot run here is skipped, with the "
        "reason. Writes one report and, beside it, the records (tour.jsonl)."
    )
    command.add_argument("-o", "--output", metavar="FILE", default="report.html", help="the report")
    command.set_defaults(run="study:show_tour")


def declare_simulate(command: Parser) -> None:
    command.description = (
        "Simulate the scenario in a TOML file. See docs/simulate.md for every key."
    )
    command.add_argument(
        "scenario", nargs="?", metavar="SCENARIO.toml", help="fabric, system and traffic"
    )
    _add_changes(command)
    command.add_argument(
        "-o", "--output", metavar="FILE", help="store the records (JSON lines); resumes"
    )
    _add_workers(command)
    command.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="of one run; a large fabric uses them (default: one per processor, 1 in a sweep)",
    )
    command.add_argument(
        "--skip-steady",
        action="store_true",
        help="skip whole periods where the run repeats itself exactly; the record is the same",
    )
    command.add_argument("--json", action="store_true", help="records on standard output")
    command.add_argument("--flows", action="store_true", help="show each flow, not only sums")
    command.add_argument(
        "--parameters", metavar="SYSTEM", help=f"print a system's parameters and exit: {SYSTEMS}"
    )
    command.set_defaults(run="simulate:run")


def _add_changes(command: Parser) -> None:
    """To the keys of a scenario."""
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="fixed",
        help="override one key, such as switch.order=round-robin or traffic.probe.size='128 B'",
    )
    command.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="KEY=A,B,C",
        dest="swept",
        help="run every combination of the values; give it once per key",
    )
    command.add_argument(
        "--level",
        choices=("packet", "flow"),
        help="packet by packet (default), or flows at max-min fair rates; short for --set level=",
    )


def _add_workers(command: Parser) -> None:
    """Where simulations run."""
    command.add_argument(
        "-j",
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes at once (default: one per processor)",
    )
    command.add_argument(
        "--cluster",
        metavar="tcp://HOST:PORT",
        help="simulate on the workers of this Dask scheduler instead",
    )


# ---- Models -----------------------------------------------------------------------------------


def declare_model(command: Parser) -> None:
    command.description = (
        "Prints values of closed forms with their formula, source and range. Values may be lists "
        "and ranges: --size 64,4KiB or --size 64..8M*2."
    )
    models = command.add_subparsers(title="models", metavar="MODEL", required=True)

    def add(name: str, about: str, run: str) -> Parser:
        model = add_action(models, name, about, run)
        model.add_argument("--json", action="store_true", help="the answer as JSON")
        return model

    about = "data rate of a link by speed and width"
    add("link-rate", about, "model_link:run_link_rate").add_argument(
        "rates", nargs="*", metavar="RATE", help="such as 4xFDR; all at 4x if none"
    )
    about = "the most payload and messages that a link can carry"
    _declare_goodput(add("goodput", about, "model_link:run_goodput"))
    for name, about in FITTED.items():
        _declare_fitted(add(name, about, "model_fit:run"), name)
    about = "how far each fitted model is from its published rows"
    add("errors", about, "model_fit:run_errors").add_argument(
        "systems", nargs="*", metavar="SYSTEM", help="all if none is named"
    )
    _declare_best_b(add("best-b", "how many messages to keep outstanding", "model_link:run_best_b"))
    about = "how many messages to send per signaled one"
    _declare_signaling(add("signaling", about, "model_link:run_signaling"))
    about = "wait of a probe behind senders that saturate a switch"
    _declare_wait(add("wait", about, "model_link:run_wait"))


def _declare_fitted(command: Parser, quantity: str) -> None:
    command.add_argument("--system", metavar="NAME", help="one of those listed without it")
    command.add_argument("--records", nargs="+", metavar="FILE", help="fit to your records instead")
    for name in INPUTS_OF[quantity]:
        metavar, about = INPUTS[name]
        command.add_argument(f"--{name}", metavar=metavar, help=about)
    command.add_argument("--extrapolate", action="store_true", help="past the fitted range too")
    command.set_defaults(quantity=quantity)


def _declare_goodput(command: Parser) -> None:
    command.add_argument("--size", default="64..1M*4", metavar="SIZES", help="of messages")
    command.add_argument("--rate", default="4xFDR", metavar="RATE", help="of the link, or 56Gb/s")
    command.add_argument("--transport", default="rc", metavar="NAME", help=TRANSPORTS)
    command.add_argument("--operation", default="send", metavar="NAME", help=OPERATIONS)
    command.add_argument("--wire", metavar="NAME", help=f"{WIRES} (default: the transport's first)")
    command.add_argument("--mtu", default="0", metavar="BYTES", help="0: the wire's usual one")
    command.add_argument("--packets-per-ack", default="0", metavar="N", help="0: one per message")
    command.add_argument("--both-ways", action="store_true", help="the peer sends as much")
    command.add_argument("--engine-rate", metavar="RATE", help="messages/s of one engine")
    command.add_argument("--engines", metavar="N", help="how many (default: 1)")


def _declare_wait(command: Parser) -> None:
    command.add_argument("--senders", default="2..8", metavar="NUMBERS", help="N")
    command.add_argument("--order", default="fcfs", metavar="ORDER", help=ORDERS)
    command.add_argument("--rate", default="4xFDR", metavar="RATE", help="of every link")
    command.add_argument("--flight", default="10 ns", metavar="TIME", help="of a cable")
    command.add_argument("--size", default="4096", metavar="SIZE", help="senders' packets")
    command.add_argument("--probe-size", default="64", metavar="SIZE", help="the probe's packets")
    command.add_argument("--think", metavar="TIME", help="round robin: from an ACK to the next")
    command.add_argument("--window", metavar="N", help="packets a sender keeps outstanding")
    command.add_argument("--weight", default="0", metavar="N", help="own lane: the load's; 0: high")
    command.add_argument("--below", metavar="M", help="two hops: senders at the second switch")
    system = command.add_argument_group("the switch")
    system.add_argument("--system", default="ideal", metavar="NAME", help=SYSTEMS)
    for name, meaning in (
        ("buffer", "per input and lane"),
        ("switch-latency", "head in to head out"),
        ("credit-delay", "from a credit's arrival to its use"),
        ("credit-interval", "least time between credits"),
    ):
        metavar = "SIZE" if name == "buffer" else "TIME"
        system.add_argument(f"--{name}", metavar=metavar, help=f"{meaning} (default: the system's)")


def _declare_best_b(command: Parser) -> None:
    command.add_argument("--size", default="32K..64M*2", metavar="SIZES", help="of messages")
    command.add_argument("--extrapolate", action="store_true", help="past the study's sizes too")
    group = command.add_argument_group(
        "a machine of your own", "instead of the FDR study's equation: its values, or records"
    )
    group.add_argument("--rate", metavar="RATE", help="what a full line moves, such as 50Gb/s")
    group.add_argument("--latency", metavar="TIME", help="posting to credit, less its line time")
    group.add_argument("--message-cost", metavar="TIME", help="of each message (default: 0)")
    group.add_argument(
        "--cache", metavar="SIZE", help="what outstanding messages may fill (default: no limit)"
    )
    group.add_argument("--records", nargs="+", metavar="FILE", help="fit to records of bandwidth")


def _declare_signaling(command: Parser) -> None:
    command.add_argument("--size", default="32K..64M*2", metavar="SIZES", help="of messages")
    command.add_argument("--sq-depth", metavar="N", help="send queue entries")
    command.add_argument(
        "--outstanding", metavar="N", help="messages (default: Equation 1's best B)"
    )
    command.add_argument("--extrapolate", action="store_true", help="past the study's sizes too")
    command.add_argument(
        "--needed",
        metavar="N",
        help="credit comes with completions: outstanding messages that must never wait for one",
    )


# ---- Studies, fabrics, records ----------------------------------------------------------------


def declare_study(command: Parser) -> None:
    command.description = (
        "Studies hold a paper's published values, set a simulation or a model beside them, "
        "compare, and judge the paper's claims. With --peer they also run the paper's experiment "
        "on your fabric. Exit status 1: a row is outside its tolerance and no reason is written."
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    add_action(actions, "list", "name the studies", run="study:run_list")
    run = add_action(actions, "run", "run studies by name, or all", run="study:run")
    run.add_argument("names", nargs="+", metavar="NAME", help="a study's name, or all")
    run.add_argument("--json", action="store_true", help="one JSON object per published row")
    run.add_argument(
        "-o", "--output", metavar="FILE", help="write the records (JSON lines); resumes simulations"
    )
    _add_workers(run)
    run.add_argument("--report", metavar="FILE", help="write one HTML page of all of them")
    run.add_argument("--figure", metavar="DIR", help="draw each study as DIR/NAME.svg and .png")
    run.add_argument(
        "--peer",
        metavar="HOST[:PORT]",
        help="also run the paper's experiment on your fabric, with weft serve at this host",
    )
    run.add_argument("--over", metavar="TRANSPORT", help="of the experiment (default: the paper's)")
    run.add_argument("--token-file", metavar="FILE", help="the token that the peer asks for")
    run.add_argument(
        "--table",
        metavar="DIR",
        help="applications of yours, shown beside those of the project (saba-fig3.1 and others; "
        "default: weft/apps in the user's data directory, if there is one)",
    )
    run.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="of saba-fig4.13 to 4.19 and saba-packets*: run N set-ups (default: recorded runs; "
        "saba-fig4.15 to 4.17 run 10)",
    )


def declare_fabric(command: Parser) -> None:
    command.description = (
        "Reads a TOML file, or ibnetdiscover output, perhaps with a dump of forwarding tables "
        "and the output of iblinkinfo."
    )
    command.add_argument("files", nargs="+", metavar="FILE", help="the fabric")
    command.add_argument("--routing", choices=ROUTINGS, help="compute new routes")
    command.add_argument(
        "--path", nargs=2, metavar=("FROM", "TO"), help="show the path of a packet"
    )
    command.add_argument("--to", choices=FORMATS, help="convert to this format")
    command.add_argument("-o", "--output", metavar="FILE", help="where to write with --to")
    command.add_argument("--json", action="store_true", help="the facts as JSON")
    command.set_defaults(run="simulate:run_fabric")


def declare_compare(command: Parser) -> None:
    command.description = (
        "Statistics of A and B with 95 % confidence intervals. Exit status 1 if a --fail-if "
        "condition holds, or if there is one and B lacks a record of A."
    )
    command.add_argument("a", metavar="A.jsonl", help="records before")
    command.add_argument("b", metavar="B.jsonl", help="records after")
    command.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="SETTING",
        help="match records that differ in this setting; may be repeated",
    )
    command.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as 'p99.9 > 1.1x', 'probe.rtt:p99 > 25us', '*.goodput:value < -5%%'",
    )
    command.add_argument(
        "--json",
        action="store_true",
        help="one object per statistic, and per record that only one file has",
    )
    command.set_defaults(run="record_files:run_compare")


def declare_report(command: Parser) -> None:
    command.description = (
        "Tables, distributions, series, topology and provenance of records in one self-contained "
        "HTML file."
    )
    command.add_argument("records", nargs="+", metavar="RECORDS.jsonl", help="files of records")
    command.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="the HTML page"
    )
    command.add_argument(
        "--title", default="weft report", metavar="TEXT", help="the page's heading"
    )
    command.add_argument("--parquet", metavar="FILE", help="also export the numbers as Parquet")
    command.set_defaults(run="record_files:run_report")


def declare_completion(command: Parser) -> None:
    command.description = (
        "Prints a script that completes commands, options and choices. For this shell alone: "
        "source <(weft completion bash). For all: write it to a file that the shell reads, "
        "~/.local/share/bash-completion/completions/weft, _weft in a folder of zsh's $fpath, or "
        "~/.config/fish/completions/weft.fish."
    )
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    command.set_defaults(run="shell_pages:run_completion")


def declare_man(command: Parser) -> None:
    command.description = (
        "Prints the manual page of weft or of a command (weft man latency | man -l -), or writes "
        "all of them to a directory."
    )
    command.add_argument("command", nargs="?", metavar="COMMAND", help="whose page to print")
    command.add_argument("--directory", metavar="DIR", help="write weft.1, weft-latency.1, … here")
    command.set_defaults(run="shell_pages:run_man")


_DECLARE = {
    "tour": declare_tour,
    "simulate": declare_simulate,
    "model": declare_model,
    "study": declare_study,
    "fabric": declare_fabric,
    "compare": declare_compare,
    "report": declare_report,
    "completion": declare_completion,
    "man": declare_man,
}
