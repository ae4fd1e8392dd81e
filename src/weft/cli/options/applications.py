"""Options of commands about applications: testbed, job, profile, corun, apps, control, export,
run.
"""

from __future__ import annotations

import argparse

from weft.cli.parser import Actions, Parser, add_action

DEFAULT_TESTBED = "default"
SHAPES = ("one", "two-hops", "leaf-spine")
TABLE = "the table (default: weft/apps in the user's data directory)"
CONTROLLER = "unix:PATH too; default: WEFT_CONTROLLER, or the socket of this user or machine"
COMMAND = "-- COMMAND ..."


def declare(command: Parser, name: str) -> None:
    _DECLARE[name](command)


def declare_testbed(command: Parser) -> None:
    command.description = (
        "Network namespaces as hosts, on bridges whose ports have a rate. Needs root. `up` builds "
        "it, `exec` runs commands on its hosts, `down` removes everything."
    )
    verbs = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    up = add_action(
        verbs, "up", "build a testbed, unless it is up as requested", run="testbed:run_up"
    )
    _add_name(up)
    _add_wiring(up)
    run = add_action(
        verbs, "exec", "run a command on a host and return its status", run="testbed:run_exec"
    )
    _add_name(run)
    run.add_argument("host", metavar="HOST", help="a host or a switch")
    run.add_argument("command", nargs=argparse.REMAINDER, metavar=COMMAND, help="as typed there")
    about = "the testbeds as the kernel has them; status 1 if damaged"
    status = add_action(verbs, "status", about, run="testbed:run_status")
    status.add_argument("--name", metavar="NAME", help="the testbed's name (default: all)")
    down = add_action(
        verbs, "down", "remove a testbed and end the processes on its hosts", run="testbed:run_down"
    )
    _add_name(down)
    for verb in (up, status, down):
        verb.add_argument("--json", action="store_true", help="the answer as JSON")


def _add_name(verb: Parser) -> None:
    verb.add_argument("--name", default=DEFAULT_TESTBED, metavar="NAME", help="the testbed's name")


def _add_wiring(verb: Parser) -> None:
    verb.add_argument("--hosts", required=True, metavar="N", help="h1 to hN, at most 253")
    verb.add_argument("--rate", required=True, metavar="RATE", help="of each link, such as 200M")
    verb.add_argument(
        "--switches",
        choices=SHAPES,
        default="one",
        metavar="SHAPE",
        help="one, two-hops or leaf-spine",
    )
    verb.add_argument("--leaves", metavar="N", default="2", help="of leaf-spine")
    verb.add_argument("--spines", metavar="N", default="2", help="of leaf-spine")
    verb.add_argument("--uplink", metavar="RATE", help="between switches (default: --rate)")
    verb.add_argument("--limit", metavar="SIZE", default="400 kB", help="of each queue")
    verb.add_argument("--burst", metavar="SIZE", help="at once (default: 4 ms of the rate)")
    verb.add_argument("--mtu", metavar="BYTES", default="1500", help="largest packet")
    verb.add_argument("--congestion", metavar="NAME", default="cubic", help="of TCP")
    verb.add_argument(
        "--offloads", choices=("on", "off"), default="on", help="off: no packet above the MTU"
    )


def declare_job(command: Parser) -> None:
    command.description = (
        "A job is a TOML file: stages of computation and communication on several hosts. `run` "
        "runs it for real, with processes that sleep for the computation and send over TCP; "
        "`weft simulate` runs the same file in a scenario. See docs/jobs.md."
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    run = add_action(actions, "run", "run jobs side by side, for real", run="testbed:run_run")
    run.add_argument("files", nargs="+", metavar="JOB.toml", help="one job each")
    place = run.add_mutually_exclusive_group()
    place.add_argument(
        "--testbed", default=DEFAULT_TESTBED, metavar="NAME", help="where to run; needs root"
    )
    place.add_argument(
        "--loopback", action="store_true", help="over this machine's loopback; links have no rate"
    )
    run.add_argument("--hosts", metavar="LIST", help="of a single job, such as h1,h2,h5..h8")
    run.add_argument("--duration", metavar="SECONDS", help="of jobs that loop until the end")
    run.add_argument("--timeout", default="600", metavar="SECONDS", help="ends a run")
    run.add_argument(
        "--slowdown", action="store_true", help="run each job alone first, and compare"
    )
    run.add_argument("--seed", metavar="N", help="of random places (default: another each time)")
    run.add_argument("-o", "--output", metavar="FILE", help="append the record to this file")
    show = add_action(
        actions, "show", "stages, volumes and messages of jobs", run="testbed:run_show"
    )
    show.add_argument("files", nargs="+", metavar="JOB.toml", help="one job each")
    show.add_argument("--rate", metavar="RATE", help="of links: the least time of a loop there")
    for action in (run, show):
        action.add_argument("--json", action="store_true", help="the answer as JSON")


def declare_profile(command: Parser) -> None:
    command.description = (
        "Runs a command, unmodified, with several shares of the link, in random order, and adds it "
        "to the table of `weft apps`. Needs root. Interrupted, the same command goes on."
    )
    command.add_argument("--name", required=True, metavar="NAME", help="in the table")
    command.add_argument(
        "--percent", default="5,10,25,50,75,90,100", metavar="LIST", help="shares of the link"
    )
    command.add_argument("--repeat", default="3", metavar="N", help="runs at each share")
    command.add_argument("--timeout", metavar="SECONDS", help="of a run (default: from the first)")
    command.add_argument("--seed", metavar="N", help="of the order (default: another each time)")
    command.add_argument("--table", metavar="DIR", help=TABLE)
    command.add_argument("--replace", action="store_true", help="one that is in the table")
    command.add_argument("--restart", action="store_true", help="forget an unfinished profile")
    command.add_argument(
        "--dry-run", action="store_true", help="say how long it takes: one run, links untouched"
    )
    command.add_argument("--json", action="store_true", help="the application as JSON")
    _add_place(command.add_argument_group("which links are capped"))
    command.add_argument(
        "command", nargs=argparse.REMAINDER, metavar=COMMAND, help="what is profiled"
    )
    command.set_defaults(run="profile:run")


def _add_place(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--testbed",
        nargs="?",
        const=DEFAULT_TESTBED,
        metavar="NAME",
        help="cap all cables of a testbed",
    )
    group.add_argument(
        "--host", metavar="HOST", help="of the testbed, to run on (default: the first)"
    )
    group.add_argument(
        "--interface", nargs="+", metavar="IF", help="cap what these send and receive"
    )
    group.add_argument(
        "--cluster",
        metavar="tcp://HOST:PORT",
        help="cap these interfaces on every worker of a Dask cluster",
    )
    group.add_argument(
        "--sending-only",
        action="store_true",
        help="cap what the interfaces send, not what they receive",
    )
    group.add_argument("--rate", metavar="RATE", help="of the interfaces' link, as 1G")
    group.add_argument(
        "--even-default-route",
        action="store_true",
        help="cap an interface though it carries the default route",
    )


def declare_corun(command: Parser) -> None:
    command.description = (
        "Runs profiled applications beside each other on a testbed, again and again, in one shared "
        "queue, in equal queues, and in queues with the weights that minimise the total predicted "
        "slowdown. Needs root."
    )
    command.add_argument("names", nargs="+", metavar="NAME", help="of the table of `weft apps`")
    command.add_argument(
        "--testbed",
        nargs="?",
        const=DEFAULT_TESTBED,
        metavar="NAME",
        default=DEFAULT_TESTBED,
        help="where to run",
    )
    command.add_argument(
        "--host", metavar="HOST", help="to start the commands on (default: the first)"
    )
    command.add_argument("--repeat", default="3", metavar="N", help="repetitions of all schemes")
    command.add_argument(
        "--runs", default="4", metavar="N", help="of each application in a repetition"
    )
    command.add_argument("--timeout", metavar="SECONDS", help="for a run to end")
    command.add_argument(
        "--seed", metavar="N", help="of orders and delays (default: another each time)"
    )
    command.add_argument("--table", metavar="DIR", help=TABLE)
    command.add_argument("-o", "--output", metavar="FILE", help="records; resumes an existing file")
    command.add_argument(
        "--dry-run", action="store_true", help="weights, predictions, time; no run"
    )
    command.add_argument("--json", action="store_true", help="the outcome as JSON")
    command.set_defaults(run="profile:run_corun")


def declare_apps(command: Parser) -> None:
    command.description = (
        "The table of profiled applications: slowdown at each share of the link, with the models "
        "fitted to it. One file per application in a directory."
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_table_action(actions, "list", "one line per application")
    show = _add_table_action(actions, "show", "one application: models and curve")
    show.add_argument("name", metavar="NAME", help="the application")
    show.add_argument("--percent", metavar="LIST", help="shares to show, ascending: 10,25,50")
    show.add_argument("--figure", metavar="FILE", help="draw the curve (.svg or .png)")
    export = _add_table_action(actions, "export", "an application's file, for another table")
    export.add_argument("name", metavar="NAME", help="the application")
    export.add_argument("-o", "--output", metavar="FILE", help="standard output by default")
    imported = _add_table_action(actions, "import", "add applications from exported files")
    imported.add_argument("files", nargs="+", metavar="FILE", help="exported applications")
    imported.add_argument("--replace", action="store_true", help="also those there already")
    remove = _add_table_action(actions, "remove", "delete applications from the table")
    remove.add_argument("names", nargs="+", metavar="NAME", help="the applications")


def _add_table_action(actions: Actions[Parser], name: str, about: str) -> Parser:
    action = add_action(actions, name, about, run=f"profile:run_{name}")
    action.add_argument("--table", metavar="DIR", help=TABLE)
    if name != "export":  # which is JSON
        action.add_argument("--json", action="store_true", help="the answer as JSON")
    return action


def declare_control(command: Parser) -> None:
    command.description = (
        "A service that tracks registered applications and their connections, programs each port "
        "with the weights of its policy (by the sizes of jobs, equal, or for the least total "
        "predicted slowdown), and corrects switches that drift. See docs/control.md."
    )
    actions = command.add_subparsers(title="actions", metavar="ACTION", required=True)
    _declare_service(actions)
    _declare_bench(actions)
    _declare_certs(actions)
    _declare_restore(actions)
    _declare_questions(actions)
    _declare_changes(actions)


def _declare_service(actions: Actions[Parser]) -> None:
    serve = _add_control_action(actions, "serve", "run the controller until Ctrl-C")
    serve.add_argument("file", metavar="FILE", help="TOML: switches, policy, store")
    serve.add_argument("--json", action="store_true", help="one JSON object per line")
    release = _add_control_action(actions, "release", "restore what the ports had before (Linux)")
    release.add_argument("file", metavar="FILE", help="the file of a controller that has ended")
    release.add_argument("--json", action="store_true", help="the ports as JSON")


def _declare_bench(actions: Actions[Parser]) -> None:
    about = "registrations and connections per second, and take-over times, on this machine"
    bench = _add_control_action(actions, "bench", about)
    bench.add_argument(
        "--controllers",
        default="1,2,4",
        metavar="N,...",
        help="how many, a group of switches each; more than one need etcd (default: 1,2,4)",
    )
    bench.add_argument("--seconds", type=float, default=5.0, metavar="S", help="each (default: 5)")
    bench.add_argument(
        "--take-overs", type=int, default=3, metavar="N", help="owners killed (default: 3)"
    )
    bench.add_argument("--json", action="store_true", help="the figures as JSON")


def _declare_certs(actions: Actions[Parser]) -> None:
    about = "certificates for a lab: an authority, the controller's, its clients'"
    certs = _add_control_action(actions, "certs", about)
    certs.add_argument("folder", metavar="FOLDER", help="where they lie; what it has is kept")
    certs.add_argument(
        "--host",
        action="append",
        metavar="NAME",
        help="a name or address of the controller; repeatable (default: localhost, 127.0.0.1)",
    )
    certs.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="NAME",
        help="who gets a certificate; [access] lists it as tls:NAME; repeatable",
    )
    certs.add_argument("--days", default="365", metavar="DAYS", help="how long they are valid")


def _declare_restore(actions: Actions[Parser]) -> None:
    about = "put a backup in the place of the store; while no controller runs"
    restore = _add_control_action(actions, "restore", about)
    restore.add_argument("file", metavar="FILE", help="the file of a controller that has ended")
    restore.add_argument("backup", metavar="BACKUP", help="what `weft control backup` wrote")
    restore.add_argument("--json", action="store_true", help="what was restored as JSON")


def _declare_questions(actions: Actions[Parser]) -> None:
    _add_request(actions, "status", "state of the controller; exit status 1 if something is wrong")
    _add_request(actions, "apps", "registered applications, with predictions")
    _add_request(actions, "ports", "ports, their tables, and whether these were read back")
    backup = _add_request(actions, "backup", "a copy of its store, checked, while it runs")
    backup.add_argument("output", metavar="BACKUP", help="the file to write")
    backup.add_argument("--replace", action="store_true", help="an older backup of that name")
    explain = _add_request(actions, "explain", "why a port or an application has its weights")
    explain.add_argument(
        "what",
        metavar="NODE:PORT|APP|CONNECTION",
        help="a port, an id or a name, or a connection: CLIENT/SEQUENCE",
    )
    plan = _add_request(actions, "plan", "what a change would do to ports and applications")
    _add_proposal(plan)
    plan.add_argument("--simulate", action="store_true", help="try it on the simulated fabric too")


def _declare_changes(actions: Actions[Parser]) -> None:
    apply = _add_request(actions, "apply", "make a change; without one, resume after a rollback")
    _add_proposal(apply)
    about = "compute all levels again, while nothing is registered"
    recluster = _add_request(actions, "recluster", about)
    rollback = _add_request(actions, "rollback", "hold an earlier revision, until `apply`")
    rollback.add_argument(
        "revision",
        nargs="*",
        metavar="REVISION[@GROUP]",
        help="without it, list revisions; with groups of controllers, one of each",
    )
    rollback.add_argument(
        "--at",
        metavar="TIME",
        help="instead: the revisions of that time, as YYYY-MM-DD HH:MM:SS, or seconds since 1970",
    )
    for action in (apply, recluster, rollback):
        action.add_argument(
            "--wait", default="10", metavar="SECONDS", help="how long to wait for the ports"
        )


def _add_control_action(actions: Actions[Parser], name: str, about: str) -> Parser:
    action = add_action(actions, name, about, run="control:run")
    action.set_defaults(call=name)
    return action


def _add_request(actions: Actions[Parser], name: str, about: str) -> Parser:
    action = _add_control_action(actions, name, about)
    action.add_argument("--controller", metavar="HOST:PORT", help=CONTROLLER)
    tls = action.add_argument_group("TLS, for a controller beyond loopback")
    tls.add_argument(
        "--authority", metavar="FILE", help="the authority that signs the controller's certificate"
    )
    tls.add_argument("--certificate", metavar="FILE", help="the client's certificate")
    tls.add_argument("--key", metavar="FILE", help="the key of the client's certificate")
    action.add_argument("--json", action="store_true", help="the full reply as JSON")
    return action


def _add_proposal(action: Parser) -> None:
    action.add_argument(
        "--app",
        nargs="+",
        action="append",
        default=[],
        metavar=("NAME", "FROM:TO"),
        help="register an application without a lease, with its connections; repeatable",
    )
    action.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="ID",
        help="deregister this one; repeatable",
    )


def declare_export(command: Parser) -> None:
    command.description = (
        "Serves the port counters of all switches of this host's InfiniBand subnet at /metrics. "
        "A scrape reads them by pipelined management packets; the subnet is discovered apart from "
        "that. See docs/operations.md."
    )
    command.add_argument(
        "--listen", default="127.0.0.1:9341", metavar="HOST:PORT", help="where /metrics is served"
    )
    tls = command.add_argument_group("TLS, which is needed beyond loopback")
    tls.add_argument("--certificate", metavar="FILE", help="of this server")
    tls.add_argument("--key", metavar="FILE", help="the key of its certificate")
    tls.add_argument(
        "--clients", metavar="FILE", help="the authority that signs certificates of scrapers"
    )
    command.add_argument(
        "--rediscover", default="300", metavar="SECONDS", help="until ports are discovered again"
    )
    command.add_argument("--once", action="store_true", help="print the metrics and end")
    command.add_argument("--adapter", metavar="NAME", help="default: the first active one")
    command.add_argument("--port", default="0", metavar="N", help="of the adapter; 0: any active")
    command.add_argument("--m-key-file", metavar="FILE", help="the subnet's M_Key, as 0x...")
    command.set_defaults(run="export:run")


def declare_run(command: Parser) -> None:
    command.description = (
        "Runs a command whose TCP connections bear the level that the controller gives to the "
        "application, and tells the controller of them. Its status is the command's; without a "
        "controller, or without root, it runs as if alone."
    )
    command.add_argument("--app", required=True, metavar="NAME", help="in the table of `weft apps`")
    command.add_argument("--controller", metavar="HOST:PORT", help=CONTROLLER)
    command.add_argument("--ttl", default="10", metavar="SECONDS", help="of the lease")
    command.add_argument(
        "--size",
        metavar="SIZE",
        help="what the job is going to move over its busiest link, such as 40G "
        "(default: that of its profile)",
    )
    tls = command.add_argument_group("TLS, for a controller beyond loopback")
    tls.add_argument(
        "--tls-authority", metavar="FILE", help="the authority of the controller's certificate"
    )
    tls.add_argument("--tls-certificate", metavar="FILE", help="the client's certificate")
    tls.add_argument("--tls-key", metavar="FILE", help="the key of the client's certificate")
    command.add_argument("command", nargs=argparse.REMAINDER, metavar=COMMAND, help="what runs")
    command.set_defaults(run="control:run_command")


def declare_trace(command: Parser) -> None:
    command.description = (
        "Runs an MPI program, unmodified, writes down its calls and makes a workload of them: a "
        "GOAL file for `weft simulate`. See docs/workloads.md."
    )
    command.add_argument(
        "-o", "--output", required=True, metavar="FILE.goal", help="the workload; overwritten"
    )
    command.add_argument(
        "--eager", default="64 KiB", metavar="SIZE", help="larger sends wait until they are sent"
    )
    command.add_argument(
        "--calls", metavar="PREFIX", help="keep the calls of the ranks as PREFIX.0, PREFIX.1, …"
    )
    command.add_argument("--json", action="store_true", help="the answer as JSON")
    command.add_argument("command", nargs=argparse.REMAINDER, metavar=COMMAND, help="what runs")
    command.set_defaults(run="simulate:run_trace")


_DECLARE = {
    "testbed": declare_testbed,
    "job": declare_job,
    "profile": declare_profile,
    "corun": declare_corun,
    "apps": declare_apps,
    "control": declare_control,
    "export": declare_export,
    "run": declare_run,
    "trace": declare_trace,
}
