"""`weft model link-rate` and `weft model goodput`: what a link carries at most."""

from __future__ import annotations

import argparse
from math import inf

import numpy as np

from weft.cli.answer import Answer, Column, emit
from weft.cli.model_values import listed, single
from weft.errors import InputError
from weft.fabric import link_rate
from weft.fabric.links import SPEEDS
from weft.measure.settings.values import per_second, size, whole
from weft.model import link
from weft.model.link import OPERATIONS, TRANSPORTS, WIRES, Framing, on_wire


def add_link_rate(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "rates", nargs="*", metavar="RATE", help="such as 4xFDR; all at 4x if none"
    )
    command.set_defaults(run=_link_rate)


def _link_rate(args: argparse.Namespace) -> int:
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


def add_goodput(command: argparse.ArgumentParser) -> None:
    command.add_argument("--size", default="64..1M*4", metavar="SIZES", help="64..1M*4")
    command.add_argument("--rate", default="4xFDR", metavar="RATE", help="4xFDR, or such as 56Gb/s")
    command.add_argument("--transport", default="rc", metavar="NAME", help=", ".join(TRANSPORTS))
    command.add_argument("--operation", default="send", metavar="NAME", help=", ".join(OPERATIONS))
    command.add_argument("--wire", metavar="NAME", help=", ".join(WIRES))
    command.add_argument("--mtu", default="0", metavar="BYTES", help="the wire's usual one")
    command.add_argument("--packets-per-ack", default="0", metavar="N", help="0: one per message")
    command.add_argument("--both-ways", action="store_true", help="the peer sends as much")
    command.add_argument("--engine-rate", metavar="RATE", help="messages/s of one engine")
    command.add_argument("--engines", metavar="N", help="1")
    command.set_defaults(run=_goodput)


def _framing(args: argparse.Namespace) -> Framing:
    usual = TRANSPORTS[args.transport].wires[0] if args.transport in TRANSPORTS else "ib"
    return Framing(
        transport=args.transport,
        operation=args.operation,
        wire=args.wire or usual,
        mtu_bytes=int(single(args, "mtu", size(0))),
        packets_per_ack=int(single(args, "packets-per-ack", whole(0, 2**20))),
    )


def _engines(args: argparse.Namespace) -> tuple[float, int]:
    """(messages per us of one, how many)."""
    if args.engine_rate is None:
        if args.engines is not None:
            raise InputError("--engines", "has no meaning without --engine-rate", "give it too")
        return inf, 1
    engines = 1 if args.engines is None else int(single(args, "engines", whole(1, 4096)))
    return per_second(args.engine_rate, "--engine-rate") / 1e6, engines


def _goodput(args: argparse.Namespace) -> int:
    framing = _framing(args)
    rate = link_rate(args.rate, "--rate").data_bps / 1e9
    sizes = np.array(listed(args, "size", size(1)), dtype=float)
    cost = on_wire(sizes, framing)
    engine, engines = _engines(args)
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
