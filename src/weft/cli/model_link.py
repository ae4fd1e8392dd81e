"""`weft model link-rate|goodput|wait|best-b|signaling`: closed forms without a fit."""

from __future__ import annotations

import argparse
from math import inf, isfinite

import numpy as np

from weft.cli.model_fit import (
    Answer,
    Column,
    emit,
    read_bandwidth_rows,
    read_list,
    read_value,
    warn_of_misfit,
)
from weft.errors import InputError
from weft.fabric import link_rate
from weft.fabric.fabric import SPEEDS
from weft.measure.settings.values import (
    choice_reader,
    integer_reader,
    read_per_second,
    read_time_ns,
    size_reader,
)
from weft.model import Fit, FloatArray, link, outstanding
from weft.model.link import TRANSPORTS, WIRES, Framing, answer_packet_bytes, on_wire
from weft.model.outstanding import Pipe
from weft.model.queueing import (
    SOURCE,
    Hotspot,
    Wait,
    closed_loop_round_robin_ns,
    fcfs_wait,
    own_lane_wait,
    round_robin_wait,
    two_hop_wait,
    zero_load_ns,
)
from weft.simulate.systems import system_names, system_values
from weft.units import parse_time


def run_link_rate(args: argparse.Namespace) -> int:
    names = [name for text in args.rates for name in text.split(",")]
    rates = [link_rate(name, "link rate") for name in names or [f"4x{s}" for s in SPEEDS]]
    return emit(
        Answer(
            model="link-rate",
            columns=[
                Column("link", "link", "", [str(rate) for rate in rates]),
                Column("line code", "line_code", "", [rate.encoding for rate in rates]),
                Column("signal rate", "signal_gbps", "Gb/s", [r.signal_bps / 1e9 for r in rates]),
                Column("data rate", "data_gbps", "Gb/s", [r.data_bps / 1e9 for r in rates]),
            ],
            formula="data rate = lanes · signal rate of a lane · share that the line code leaves",
            source="InfiniBand Architecture Specification, volume 2",
            range=f"speeds {', '.join(SPEEDS)}; widths 1, 2, 4, 8, 12",
        ),
        as_json=args.json,
    )


def _read_framing(args: argparse.Namespace) -> Framing:
    usual = TRANSPORTS[args.transport].wires[0] if args.transport in TRANSPORTS else "ib"
    return Framing(
        transport=args.transport,
        operation=args.operation,
        wire=args.wire or usual,
        mtu_bytes=int(read_value(args, "mtu", size_reader(0))),
        packets_per_ack=int(read_value(args, "packets-per-ack", integer_reader(0, 2**20))),
    )


def _read_engines(args: argparse.Namespace) -> tuple[float, int]:
    """(messages per us of one, how many)."""
    if args.engine_rate is None:
        if args.engines is not None:
            raise InputError("--engines", "has no meaning without --engine-rate", "give it too")
        return inf, 1
    engines = (
        1 if args.engines is None else int(read_value(args, "engines", integer_reader(1, 4096)))
    )
    return read_per_second(args.engine_rate, "--engine-rate") / 1e6, engines


def run_goodput(args: argparse.Namespace) -> int:
    framing = _read_framing(args)
    rate = link_rate(args.rate, "--rate").data_bps / 1e9
    sizes = np.array(read_list(args, "size", size_reader(1)), dtype=float)
    cost = on_wire(sizes, framing)
    engine, engines = _read_engines(args)
    goodput = link.goodput_gbps(sizes, rate, framing, both_ways=args.both_ways)
    messages = link.message_rate_mps(
        sizes, rate, framing, both_ways=args.both_ways, engine_mps=engine, engines=engines
    )
    goodput = np.minimum(goodput, messages * sizes * 8e-3)
    busiest = "(D + A)" if args.both_ways else "max(D, A)"
    status = TRANSPORTS[framing.transport].status
    return emit(
        Answer(
            model="goodput",
            columns=[
                Column("size", "size_bytes", "B", sizes.tolist()),
                Column("packets", "packets", "", cost.packets.tolist()),
                Column("data D", "data_bytes", "", cost.data_bytes.tolist()),
                Column("answers A", "answer_bytes", "", cost.answer_bytes.tolist()),
                Column("goodput", "goodput_gbps", "Gb/s", goodput.tolist()),
                Column("M messages/s", "message_rate_mps", "", messages.tolist()),
            ],
            formula=f"goodput ≤ R · size / {busiest}, messages ≤ goodput / size"
            + (f" and {engines} · {engine:g} M/s" if args.engine_rate else "")
            + f", R = {rate:.6g} Gb/s",
            source=link.SOURCE,
            range=f"{framing.transport} {framing.operation}, {WIRES[framing.wire].meaning}, "
            f"MTU {framing.mtu_bytes} B; bounds, hosts left out",
            notes=[status] if status else [],
        ),
        as_json=args.json,
    )


FRAMING = Framing(transport="rc", mtu_bytes=4096)
FORMULAS = {
    "fcfs-age": "as fcfs over one switch; (N + M + 1) P T − 2 τ, up to τ more, over two",
    "fcfs": "N P T − τ to N P T − τ + T, or N W T − τ' with windows if that is less",
    "round-robin": "0 to N T; with --think t + k N T less the probe's loop",
    "own-lane": "0 to T, or the load lane's turn of ⌈weight / blocks⌉ T",
}
TWO_HOPS = "(M + 1) P T − τ at the second switch, and at the first the above with (M + 1) T for T"


def run_wait(args: argparse.Namespace) -> int:
    read_value(args, "order", choice_reader(*sorted(FORMULAS)))
    read_value(args, "system", choice_reader(*system_names()))
    hotspot = _read_hotspot(args)
    wait, formula = _compute_wait(args, hotspot)
    idle = _compute_idle_ns(args, hotspot)
    senders = np.asarray(hotspot.senders, dtype=float)
    return emit(
        Answer(
            model="wait",
            columns=[
                Column("senders", "senders", "", senders.tolist()),
                Column("least wait", "low_ns", "ns", wait.low_ns.tolist()),
                Column("greatest wait", "high_ns", "ns", wait.high_ns.tolist()),
                Column("least round trip", "rtt_low_ns", "ns", (wait.low_ns + idle).tolist()),
                Column("greatest", "rtt_high_ns", "ns", (wait.high_ns + idle).tolist()),
            ],
            formula=f"{formula}; N senders, P = {float(hotspot.packets_held):g} packets a buffer, "
            f"T = {float(hotspot.packet_ns):.4g} ns, τ = {float(hotspot.credit_loop_ns):.4g} ns",
            source=SOURCE,
            range="2 senders or more that saturate the output; links of one rate; agrees with "
            "weft simulate (tests/agreement)",
            notes=[f"round trip: {idle:.4g} ns at zero load and the wait, hosts without cost"],
        ),
        as_json=args.json,
    )


def _read_hotspot(args: argparse.Namespace) -> Hotspot:
    values = system_values(args.system)
    load = read_value(args, "size", size_reader(1, FRAMING.mtu_bytes))

    def of_system(option: str, section: str, key: str) -> float:
        text = getattr(args, option.replace("-", "_"))
        if text is not None:
            return float(read_time_ns(text, f"--{option}"))
        return parse_time(values[section][key]) / 1e3

    return Hotspot(
        senders=np.array(read_list(args, "senders", integer_reader(2, 10_000)), dtype=float),
        buffer_bytes=size_reader(1)(args.buffer or values["switch"]["buffer"], "--buffer"),
        packet_bytes=float(on_wire(load, FRAMING).data_bytes),
        rate_gbps=link_rate(args.rate, "--rate").data_bps / 1e9,
        switch_ns=of_system("switch-latency", "switch", "latency"),
        flight_ns=float(read_value(args, "flight", read_time_ns)),
        credit_delay_ns=of_system("credit-delay", "credits", "delay"),
        credit_interval_ns=of_system("credit-interval", "credits", "interval"),
        window_packets=read_value(args, "window", integer_reader(1, 2**20)) if args.window else inf,
        ack_bytes=answer_packet_bytes("rc"),
    )


def _compute_wait(args: argparse.Namespace, hotspot: Hotspot) -> tuple[Wait, str]:
    weight = read_value(args, "weight", integer_reader(0, 255))
    _check_options(args, weight)
    if args.below:
        below = read_value(args, "below", integer_reader(1, 10_000))
        formula = FORMULAS["fcfs-age"] if args.order == "fcfs-age" else TWO_HOPS
        return two_hop_wait(hotspot, below, order=args.order), f"{formula}, M = {below}"
    if args.order == "own-lane":
        wait = own_lane_wait(hotspot, load_weight=weight)
        same = np.ones_like(np.asarray(hotspot.senders))
        return Wait(low_ns=wait.low_ns * same, high_ns=wait.high_ns * same), FORMULAS[args.order]
    if args.order in ("fcfs", "fcfs-age"):
        return fcfs_wait(hotspot), FORMULAS[args.order]
    if args.think is None:
        return round_robin_wait(hotspot), FORMULAS[args.order]
    loop = _compute_idle_ns(args, hotspot) + read_value(args, "think", read_time_ns)
    wait_ns = closed_loop_round_robin_ns(hotspot, _read_probe_bytes(args), loop)
    return Wait(low_ns=wait_ns, high_ns=wait_ns), FORMULAS[args.order]


def _check_options(args: argparse.Namespace, weight: int) -> None:
    for value, name, order in (
        (args.think, "think", "round-robin"),
        (weight, "weight", "own-lane"),
    ):
        if value and (args.order != order or args.below):
            raise InputError(
                f"--{name}", f"has no meaning for {args.order}", f"use --order {order}"
            )
    if args.below and args.order == "own-lane":
        raise InputError("--below", "has no meaning for own-lane", "use fcfs or round-robin")


def _read_probe_bytes(args: argparse.Namespace) -> float:
    return float(on_wire(read_value(args, "probe-size", size_reader(1, 4096)), FRAMING).data_bytes)


def _compute_idle_ns(args: argparse.Namespace, hotspot: Hotspot) -> float:
    links = 3 if args.below else 2
    rates = [float(np.asarray(hotspot.rate_gbps))] * links
    flights = [float(np.asarray(hotspot.flight_ns))] * links
    times: list[FloatArray] = [
        zero_load_ns(
            wire,
            rates_gbps=rates,
            flights_ns=flights,
            switch_ns=float(np.asarray(hotspot.switch_ns)),
        )
        for wire in (_read_probe_bytes(args), float(np.asarray(hotspot.ack_bytes)))
    ]
    return float(sum(map(float, times)))


PIPE_OPTIONS = ("rate", "latency", "message-cost", "cache")
STUDY_RANGE = "messages of 32 KiB to 64 MiB, as in the study (--extrapolate for others)"


def run_best_b(args: argparse.Namespace) -> int:
    sizes = np.array(read_list(args, "size", size_reader(1)), dtype=float)
    if args.records:
        return _answer_from_records(args, sizes)
    if any(_is_given(args, name) for name in PIPE_OPTIONS):
        return emit(_answer_from_pipe(sizes, _read_pipe(args), None), as_json=args.json)
    best = outstanding.equation_1(sizes, extrapolate=args.extrapolate)
    answer = Answer(
        model="best-b",
        columns=_build_columns(sizes, best),
        formula="B = min(⌈3 Mi / size⌉, 128) up to 128 Ki, max(⌈4 Mi / size⌉, 2) above",
        source=outstanding.SOURCE_1,
        range=STUDY_RANGE,
    )
    return emit(answer, as_json=args.json)


def _is_given(args: argparse.Namespace, name: str) -> bool:
    return getattr(args, name.replace("-", "_")) is not None


def _read_pipe(args: argparse.Namespace) -> Pipe:
    for name in ("rate", "latency"):
        if not _is_given(args, name):
            raise InputError(f"--{name}", "is missing", "give --rate and --latency, or --records")
    return Pipe(
        line_rate_gbps=link_rate(args.rate, "--rate").data_bps / 1e9,
        base_latency_us=read_value(args, "latency", read_time_ns) / 1e3,
        message_us=read_value(args, "message-cost", read_time_ns) / 1e3
        if args.message_cost
        else 0.0,
        cache_bytes=read_value(args, "cache", size_reader(1)) if args.cache else inf,
    )


def _answer_from_records(args: argparse.Namespace, sizes: FloatArray) -> int:
    for name in PIPE_OPTIONS:
        if _is_given(args, name):
            raise InputError(f"--{name}", "is also found from --records", "keep one of the two")
    rows = read_bandwidth_rows(args.records)
    calibrated = outstanding.calibrate_pipe(
        rows.size_bytes, rows.outstanding, rows.throughput_gbps, data=rows.data, where=rows.data
    )
    if not args.extrapolate:
        low, high = rows.size_bytes.min(), rows.size_bytes.max()
        for outside in sizes[(sizes < low) | (sizes > high)]:
            problem = f"{outside:.10g} B is outside the records' {low:.10g} to {high:.10g} B"
            raise InputError("--size", problem, "stay within it, or say --extrapolate")
    return emit(_answer_from_pipe(sizes, calibrated.pipe, calibrated.fit), as_json=args.json)


def _answer_from_pipe(sizes: FloatArray, pipe: Pipe, fit: Fit | None) -> Answer:
    best = outstanding.best_outstanding(sizes, pipe)
    cache = f", C = {pipe.cache_bytes:.0f} B" if isfinite(pipe.cache_bytes) else ", no cache limit"
    return Answer(
        model="best-b",
        columns=[
            *_build_columns(sizes, best),
            Column("cover", "covering", "", outstanding.count_covering(sizes, pipe).tolist()),
            Column("cached", "cached", "", outstanding.count_cached(sizes, pipe).tolist()),
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


def _build_columns(sizes: FloatArray, best: FloatArray) -> list[Column]:
    return [
        Column("size", "size_bytes", "B", sizes.tolist()),
        Column("best B", "outstanding", "", best.tolist()),
        Column("in flight", "in_flight_bytes", "B", (best * sizes).tolist()),
    ]


def run_signaling(args: argparse.Namespace) -> int:
    if args.sq_depth is None:
        raise InputError("--sq-depth", "is missing", "give the entries of the send queue")
    sizes = np.array(read_list(args, "size", size_reader(1)), dtype=float)
    depth = read_value(args, "sq-depth", integer_reader(1, 2**20))
    if args.outstanding is None:
        messages = outstanding.equation_1(sizes, extrapolate=args.extrapolate)
    else:
        messages = np.full_like(sizes, read_value(args, "outstanding", integer_reader(1, 2**20)))
    if args.needed is not None:
        return _answer_by_completion(args, sizes, messages, depth)
    period = outstanding.equation_2(sizes, messages, depth, extrapolate=args.extrapolate)
    answer = Answer(
        model="signaling",
        columns=_build_period_columns(sizes, messages, depth, period),
        formula="S = 1 for 16 Ki < size < 128 Ki, else min(SQ / 2, SQ − B), never below 1",
        source=outstanding.SOURCE_2,
        range=STUDY_RANGE,
        notes=["the study prints min(B/2, 1) for the first case, which is 1 for every B ≥ 2"],
    )
    return emit(answer, as_json=args.json)


def _answer_by_completion(
    args: argparse.Namespace, sizes: FloatArray, messages: FloatArray, depth: int
) -> int:
    needed = read_value(args, "needed", integer_reader(1, 2**20))
    period = outstanding.signaling_period(messages, depth, needed=needed)
    answer = Answer(
        model="signaling",
        columns=_build_period_columns(sizes, messages, depth, period),
        formula=f"S = min(SQ / 2, SQ − B, B − needed + 1), never below 1; needed = {needed}",
        source="weft; generalises the FDR study (2014), Equation 2",
        range="senders that reuse a buffer when its completion is seen; needed: see best-b's cover",
    )
    return emit(answer, as_json=args.json)


def _build_period_columns(
    sizes: FloatArray, messages: FloatArray, depth: int, period: FloatArray
) -> list[Column]:
    return [
        Column("size", "size_bytes", "B", sizes.tolist()),
        Column("outstanding", "outstanding", "", messages.tolist()),
        Column("SQ depth", "sq_depth", "", [depth] * len(sizes)),
        Column("signal every", "signal_every", "", period.tolist()),
    ]
