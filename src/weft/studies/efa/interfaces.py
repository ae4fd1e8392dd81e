"""EFA thesis, section 4.11: what a program pays for the interface it uses.

Sockets, libfabric over its tcp, and MPI over the same libfabric: one command under mpirun measures
them in turn, in rounds. Verbs and libfabric over verbs are measured where there is a device.
Entry point: `INTERFACES`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

from weft.measure import bandwidth
from weft.records import Record, read_records
from weft.records.record_text import REPETITION
from weft.studies.claim import Claim, NotHere, Verdict
from weft.studies.observation import ANOTHER_SYSTEM, Observation, Records
from weft.studies.paper import EFA
from weft.studies.published import stated
from weft.studies.rounds import (
    ROUNDS,
    RULE,
    Case,
    Reading,
    alike,
    gains,
    in_round,
    in_rounds,
    ratio,
    rounds_of,
    scalar,
    together,
)
from weft.studies.rounds_draw import Bar, rounds_bars
from weft.studies.site import Point, Site, here
from weft.studies.study import Result, Study

SIZE_BYTES = int(stated("efa", "interface-size").value)
DEPTH = int(stated("efa", "interface-depth").value)
STREAM = {"size": SIZE_BYTES, "depth": DEPTH, "duration": "100 ms"}
PROVIDERS = ("tcp", "shm")
TIMEOUT_S = 120
INSTALL = "pip install 'weft[mpi]' mpich"


def _interfaces(provider: str) -> dict[str, str]:
    """`--over` by the name of the interface, lowest first."""
    sockets = {"sockets": "tcp"} if provider == "tcp" else {}
    return {**sockets, "libfabric": f"ofi:{provider}", "MPI": "mpi"}


def _case(interface: str, provider: str) -> str:
    return f"{interface}, {provider}"


# ---- Under mpirun ------------------------------------------------------------------------------


def _mpirun() -> Path:
    """An mpirun that brings libfabric: one library for MPI and for us."""
    if importlib.util.find_spec("mpi4py") is None:
        raise NotHere(f"mpi4py is not installed; {INSTALL}")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = shutil.which("mpirun", path=path)
    if found is None:
        raise NotHere(f"mpirun is not installed; {INSTALL}")
    if not _libfabric(Path(found)).exists():
        problem = f"{found} brings no libfabric that MPI and we could both use"
        raise NotHere(f"{problem}; {INSTALL}")
    return Path(found)


def _libfabric(mpirun: Path) -> Path:
    return mpirun.parent.parent / "lib" / "mpich" / "libfabric.so.1"


def _command(mpirun: Path, provider: str, output: str) -> list[str]:
    sweep = f"over={','.join(_interfaces(provider).values())}"
    options = [word for name, value in STREAM.items() for word in (f"--{name}", str(value))]
    return [
        str(mpirun),
        "-n",
        "2",
        sys.executable,
        "-m",
        "weft.cli",
        "bandwidth",
        "--sweep",
        sweep,
        *options,
        "--repeat",
        str(ROUNDS),
        "-o",
        output,
    ]


def _environment(mpirun: Path, provider: str) -> dict[str, str]:
    return os.environ | {
        "MPIR_CVAR_CH4_NETMOD": "ofi",
        "MPIR_CVAR_NOLOCAL": "1",  # or the ranks would pass messages in memory of their own
        "FI_PROVIDER": provider,
        "WEFT_LIBFABRIC": str(_libfabric(mpirun)),
    }


def _swept(provider: str) -> dict[str, Record]:
    """All rounds of all interfaces over one provider, by setting."""
    mpirun = _mpirun()
    with tempfile.TemporaryDirectory(prefix="weft-") as folder:
        output = f"{folder}/interfaces.jsonl"
        try:
            done = subprocess.run(
                _command(mpirun, provider, output),
                env=_environment(mpirun, provider),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise NotHere(f"mpirun with {provider} did not end in {TIMEOUT_S} s") from late
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise NotHere(f"mpirun with {provider}: {said[-1] if said else done.returncode}")
        return dict(_by_setting(read_records(output).records, provider))


def _by_setting(records: Sequence[Record], provider: str) -> Mapping[str, Record]:
    names = {over: interface for interface, over in _interfaces(provider).items()}
    return {
        in_round(_case(names[str(r.settings["over"])], provider), _number(r)): r for r in records
    }


def _number(record: Record) -> int:
    return int(str(record.settings[REPETITION]))


# One command gives all points of a provider, or the reason why there are none.
_RUNS: WeakKeyDictionary[Site, dict[str, dict[str, Record] | NotHere]] = WeakKeyDictionary()


def _of_site(site: Site, provider: str) -> dict[str, Record]:
    runs = _RUNS.setdefault(site, {})
    if provider not in runs:
        try:
            runs[provider] = _swept(provider)
        except NotHere as reason:
            runs[provider] = reason
    found = runs[provider]
    if isinstance(found, NotHere):
        raise found
    return found


def _point(interface: str, provider: str, number: int) -> Point:
    setting = in_round(_case(interface, provider), number)

    def run(site: Site) -> Record:
        found = _of_site(site, provider)
        if setting not in found:
            raise NotHere("mpirun ended before this was measured")
        return found[setting]

    return Point(
        setting=setting,
        settings={"interface": interface, "provider": provider, REPETITION: number},
        source="measurement",
        system=here(provider),
        run=run,
    )


POINTS = tuple(
    _point(interface, provider, number)
    for provider in PROVIDERS
    for number in range(1, ROUNDS + 1)
    for interface in _interfaces(provider)
)

# ---- Verbs, where there is a device ------------------------------------------------------------

VERBS_CASES = (
    Case(
        name=_case("verbs", "verbs"),
        settings={"interface": "verbs", "provider": "verbs"},
        test=bandwidth,
        options={"over": "verbs", **STREAM},
    ),
    Case(
        name=_case("libfabric", "verbs"),
        settings={"interface": "libfabric", "provider": "verbs"},
        test=bandwidth,
        options={"over": "ofi:verbs", "endpoint": "msg", **STREAM},
    ),
)

# ---- Judging -----------------------------------------------------------------------------------

GAIN = stated("efa", "interface-gain")
ALIKE = stated("efa", "interface-mpi")
RATE = scalar("message rate", "M/s", "rate", "message_rate")
BANDWIDTH = scalar("bandwidth", "Gb/s", "bandwidth", "throughput")
PYTHON_COST = scalar("Python's share", "ns", "value", "python_cost")


def _verbs_is_faster(records: Records) -> Verdict:
    found = ratio(records, _case("verbs", "verbs"), _case("libfabric", "verbs"), RATE)
    return gains(found, 0.1, "verbs over libfabric (1.5 in the thesis)")


def _sockets_are_faster(records: Records) -> Verdict:
    found = ratio(records, _case("sockets", "tcp"), _case("libfabric", "tcp"), RATE)
    return gains(found, 0.1, "sockets over libfabric on its tcp")


def _mpi_is_like_libfabric(records: Records) -> Verdict:
    return together(
        *(
            alike(
                ratio(records, _case("MPI", provider), _case("libfabric", provider), RATE),
                0.1,
                f"MPI over libfabric, both on {provider}",
            )
            for provider in PROVIDERS
        )
    )


def _verbs_gain_percent(records: Records) -> float:
    found = ratio(records, _case("verbs", "verbs"), _case("libfabric", "verbs"), RATE)
    return 100 * (found.median - 1)


def _rows(reading: Reading) -> tuple[Observation, ...]:
    names = [
        *((_case(i, provider), provider) for provider in PROVIDERS for i in _interfaces(provider)),
        *((case.name, "verbs") for case in VERBS_CASES),
    ]
    return tuple(
        Observation(
            setting=name,
            quantity=reading.quantity,
            unit=reading.unit,
            kind=reading.kind,
            source="measurement",
            system=here(provider),
            tolerance=ANOTHER_SYSTEM,
            read=lambda records, name=name: rounds_of(records, name, reading).median,  # type: ignore[misc]
        )
        for name, provider in names
    )


def _costs(result: Result) -> tuple[str, ...]:
    """What each layer takes of a message, and Python's part of MPI's."""
    said = []
    for provider in PROVIDERS:
        names = [_case(interface, provider) for interface in _interfaces(provider)]
        try:
            times = [1e3 / rounds_of(result.records, n, RATE).median for n in names]
            python = rounds_of(result.records, names[-1], PYTHON_COST)
        except NotHere:
            continue
        each = ", ".join(f"{n.split(',')[0]} {t:.0f} ns" for n, t in zip(names, times, strict=True))
        said.append(
            f"Over {provider} a message takes {each}. The loops over MPI are in Python, which "
            f"takes {python} ns of a blocking send and receive, and less of a message in these "
            "streams, which are started and awaited half a window at a time."
        )
    return tuple(said)


BARS = tuple(
    Bar(label=f"{interface}\non {provider}", case=_case(interface, provider), kind=interface)
    for provider, interfaces in (
        *((p, tuple(_interfaces(p))) for p in PROVIDERS),
        ("verbs", ("verbs", "libfabric")),
    )
    for interface in interfaces
)

EFA_INTERFACES = Study(
    name="efa-interfaces",
    title="One wire, several interfaces: sockets, libfabric, MPI, verbs",
    paper=EFA,
    place="4.11, Fig. 4.18",
    system=here("tcp and shm"),
    points=(*POINTS, *in_rounds(VERBS_CASES)),
    observations=(
        Observation(
            setting="verbs against libfabric",
            quantity="messages more per second",
            unit="%",
            kind="rate",
            published=GAIN.value,
            place=GAIN.place,
            source="measurement",
            system=here("verbs"),
            tolerance=ANOTHER_SYSTEM,
            read=_verbs_gain_percent,
        ),
        *_rows(RATE),
        *_rows(BANDWIDTH),
    ),
    claims=(
        Claim(
            statement="The lower interface sends more: verbs some 50 % more messages a second than "
            "libfabric.",
            place=GAIN.place,
            source="measurement",
            system=here("verbs"),
            judge=_verbs_is_faster,
        ),
        Claim(
            statement="The lower interface sends more, as sockets below libfabric's tcp would.",
            place=GAIN.place,
            source="measurement",
            system=here("tcp"),
            judge=_sockets_are_faster,
        ),
        Claim(
            statement="MPI over libfabric is as fast as libfabric (here: within 10 %).",
            place=ALIKE.place,
            source="measurement",
            system=here("tcp and shm"),
            judge=_mpi_is_like_libfabric,
        ),
    ),
    panels=(
        rounds_bars(BARS, RATE, "messages (M/s)"),
        rounds_bars(BARS, BANDWIDTH, "bandwidth (Gb/s)"),
    ),
    notes=(
        f"Messages of {SIZE_BYTES} B, {DEPTH} outstanding, as in the thesis, which states no rates "
        "for this figure. One libfabric serves MPI and libfabric alike: that which MPI brings.",
        "A socket's send is complete when the kernel has it; MPI's are acknowledged for each half "
        "of the window. Rates are the receiver's. Every message is of 8 KiB: copies weigh more "
        "here than on an adapter that reads memory itself.",
        "verbs is measured where there is a device; in the soft-RoCE machine of `make test-rdma` "
        "times mean little.",
        RULE,
    ),
    remarks=_costs,
)

INTERFACES: tuple[Study, ...] = (EFA_INTERFACES,)
