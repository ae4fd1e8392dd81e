"""Lines are told in order, and whoever tells them never waits for whoever reads them."""

from __future__ import annotations

import os
import time

from weft.control.runtime.audit import Log

LONG = "x" * 1000


def written(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line}\n".encode())


def test_lines_come_in_order_and_the_last_before_the_end() -> None:
    written: list[str] = []
    log = Log(written.append)
    for n in range(50):
        log.write(f"{n}")
    log.call(lambda: written.append("last"))
    log.close()
    assert written == [*(f"{n}" for n in range(50)), "last"]


def test_a_reader_that_sleeps_holds_up_nobody_and_reads_how_much_it_lost() -> None:
    out, into = os.pipe()
    log = Log(lambda line: written(into, line))
    began = time.monotonic()
    for _ in range(5000):
        log.write(LONG)
    assert time.monotonic() - began < 10.0
    output = b""
    while b"lines left out" not in output:
        output += os.read(out, 1 << 20)
    os.close(out)
    log.close()
    os.close(into)


def test_a_reader_that_has_gone_ends_nothing() -> None:
    out, into = os.pipe()
    os.close(out)
    log = Log(lambda line: written(into, line))
    for _ in range(3000):
        log.write(LONG)
    log.close()
    os.close(into)
