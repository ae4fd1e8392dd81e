"""`weft model best-b` and `weft model signaling`: outstanding messages and signaled ones."""

from __future__ import annotations

import argparse
from math import inf, isfinite

import numpy as np

from weft.cli.model_answer import Answer, Column, emit, read_list, read_value, warn_of_misfit
from weft.cli.model_fit import bandwidth_rows
from weft.errors import InputError
from weft.fabric import link_rate
from weft.measure.settings.values import size, time_ns, whole
from weft.model import Fit, FloatArray, outstanding
from weft.model.outstanding import Pipe

PIPE_OPTIONS = ("rate", "latency", "message-cost", "cache")
STUDY_RANGE = "messages of 32 KiB to 64 MiB, as in the study (--extrapolate for others)"


def add_best_b(command: argparse.ArgumentParser) -> None:
    command.add_argument("--size", default="32K..64M*2", metavar="SIZES", help="32K..64M*2")
    command.add_argument("--extrapolate", action="store_true", help="past the study's sizes too")
    group = command.add_argument_group(
        "a machine of your own", "instead of the FDR study's equation: its values, or records"
    )
    group.add_argument("--rate", metavar="RATE", help="what a full line moves, such as 50Gb/s")
    group.add_argument("--latency", metavar="TIME", help="posting to credit, less its line time")
    group.add_argument("--message-cost", metavar="TIME", help="of each message; 0")
    group.add_argument(
        "--cache", metavar="SIZE", help="what outstanding messages may fill; no limit"
    )
    group.add_argument("--records", nargs="+", metavar="FILE", help="fit to records of bandwidth")
    command.set_defaults(run=_best_b)


def _best_b(args: argparse.Namespace) -> int:
    sizes = np.array(read_list(args, "size", size(1)), dtype=float)
    if args.records:
        return _by_records(args, sizes)
    if any(_is_given(args, name) for name in PIPE_OPTIONS):
        return emit(_by_pipe(sizes, _pipe(args), None), as_json=args.json)
    best = outstanding.equation_1(sizes, extrapolate=args.extrapolate)
    answer = Answer(
        model="best-b",
        columns=_columns(sizes, best),
        formula="B = min(⌈3 Mi / size⌉, 128) up to 128 Ki, max(⌈4 Mi / size⌉, 2) above",
        source=outstanding.SOURCE_1,
        range=STUDY_RANGE,
    )
    return emit(answer, as_json=args.json)


def _is_given(args: argparse.Namespace, name: str) -> bool:
    return getattr(args, name.replace("-", "_")) is not None


def _pipe(args: argparse.Namespace) -> Pipe:
    for name in ("rate", "latency"):
        if not _is_given(args, name):
            raise InputError(f"--{name}", "is missing", "give --rate and --latency, or --records")
    return Pipe(
        line_rate_gbps=link_rate(args.rate, "--rate").data_bps / 1e9,
        base_latency_us=read_value(args, "latency", time_ns) / 1e3,
        message_us=read_value(args, "message-cost", time_ns) / 1e3 if args.message_cost else 0.0,
        cache_bytes=read_value(args, "cache", size(1)) if args.cache else inf,
    )


def _by_records(args: argparse.Namespace, sizes: FloatArray) -> int:
    for name in PIPE_OPTIONS:
        if _is_given(args, name):
            raise InputError(f"--{name}", "is also found from --records", "keep one of the two")
    rows = bandwidth_rows(args.records)
    calibrated = outstanding.calibrate_pipe(
        rows.size_bytes, rows.outstanding, rows.throughput_gbps, data=rows.data, where=rows.data
    )
    if not args.extrapolate:
        low, high = rows.size_bytes.min(), rows.size_bytes.max()
        for outside in sizes[(sizes < low) | (sizes > high)]:
            problem = f"{outside:.10g} B is outside the records' {low:.10g} to {high:.10g} B"
            raise InputError("--size", problem, "stay within it, or say --extrapolate")
    return emit(_by_pipe(sizes, calibrated.pipe, calibrated.fit), as_json=args.json)


def _by_pipe(sizes: FloatArray, pipe: Pipe, fit: Fit | None) -> Answer:
    best = outstanding.best_outstanding(sizes, pipe)
    cache = f", C = {pipe.cache_bytes:.0f} B" if isfinite(pipe.cache_bytes) else ", no cache limit"
    return Answer(
        model="best-b",
        columns=[
            *_columns(sizes, best),
            Column("cover", "covering", "", outstanding.covering(sizes, pipe).tolist()),
            Column("cached", "cached", "", outstanding.cached(sizes, pipe).tolist()),
            Column(
                "throughput",
                "throughput_gbps",
                "Gb/s",
                outstanding.throughput_gbps(sizes, best, pipe).tolist(),
            ),
        ],
        formula="B = max(2, min(⌈t / (m + size / R)⌉ + 1, ⌊C / size⌋, "
        f"{pipe.most})), R = {pipe.line_rate_gbps:.4g} Gb/s, t = {pipe.base_latency_us:.4g} us, "
        f"m = {pipe.message_us:.4g} us" + cache,
        source="weft; generalises the FDR study (2014), Equation 1",
        range="any size while R, t and C hold; the throughput is a bound within the cache",
        notes=warn_of_misfit(fit) if fit else [],
        fit=fit,
    )


def _columns(sizes: FloatArray, best: FloatArray) -> list[Column]:
    return [
        Column("size", "size_bytes", "B", sizes.tolist()),
        Column("best B", "outstanding", "", best.tolist()),
        Column("in flight", "in_flight_bytes", "B", (best * sizes).tolist()),
    ]


def add_signaling(command: argparse.ArgumentParser) -> None:
    command.add_argument("--size", default="32K..64M*2", metavar="SIZES", help="32K..64M*2")
    command.add_argument("--sq-depth", metavar="N", help="send queue entries")
    command.add_argument("--outstanding", metavar="N", help="messages; Equation 1's best B")
    command.add_argument("--extrapolate", action="store_true", help="past the study's sizes too")
    command.add_argument(
        "--needed",
        metavar="N",
        help="credit comes with completions: outstanding messages that must never wait for one",
    )
    command.set_defaults(run=_signaling)


def _signaling(args: argparse.Namespace) -> int:
    if args.sq_depth is None:
        raise InputError("--sq-depth", "is missing", "give the entries of the send queue")
    sizes = np.array(read_list(args, "size", size(1)), dtype=float)
    depth = read_value(args, "sq-depth", whole(1, 2**20))
    if args.outstanding is None:
        messages = outstanding.equation_1(sizes, extrapolate=args.extrapolate)
    else:
        messages = np.full_like(sizes, read_value(args, "outstanding", whole(1, 2**20)))
    if args.needed is not None:
        return _by_completion(args, sizes, messages, depth)
    period = outstanding.equation_2(sizes, messages, depth, extrapolate=args.extrapolate)
    answer = Answer(
        model="signaling",
        columns=_periods(sizes, messages, depth, period),
        formula="S = 1 for 16 Ki < size < 128 Ki, else min(SQ / 2, SQ − B), never below 1",
        source=outstanding.SOURCE_2,
        range=STUDY_RANGE,
        notes=["the study prints min(B/2, 1) for the first case, which is 1 for every B ≥ 2"],
    )
    return emit(answer, as_json=args.json)


def _by_completion(
    args: argparse.Namespace, sizes: FloatArray, messages: FloatArray, depth: int
) -> int:
    needed = read_value(args, "needed", whole(1, 2**20))
    period = outstanding.signaling_period(messages, depth, needed=needed)
    answer = Answer(
        model="signaling",
        columns=_periods(sizes, messages, depth, period),
        formula=f"S = min(SQ / 2, SQ − B, B − needed + 1), never below 1; needed = {needed}",
        source="weft; generalises the FDR study (2014), Equation 2",
        range="senders that reuse a buffer when its completion is seen; needed: see best-b's cover",
    )
    return emit(answer, as_json=args.json)


def _periods(
    sizes: FloatArray, messages: FloatArray, depth: int, period: FloatArray
) -> list[Column]:
    return [
        Column("size", "size_bytes", "B", sizes.tolist()),
        Column("outstanding", "outstanding", "", messages.tolist()),
        Column("SQ depth", "sq_depth", "", [depth] * len(sizes)),
        Column("signal every", "signal_every", "", period.tolist()),
    ]
