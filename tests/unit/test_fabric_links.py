"""Link rates against published tables."""

from __future__ import annotations

import pytest

from weft.errors import InputError
from weft.fabric import LinkRate, PlainRate, link_rate
from weft.fabric.fabric import SPEEDS, WIDTHS, format_time
from weft.units import parse_time

# Table 1, "Signal and Data Rates Achieved by InfiniBand in Gbps", of the 2016 study of
# InfiniBand benchmarks (papers/infiniband-benchmarks-2016). The table prints two decimals,
# cut off (4xFDR carries 54.5454…, printed 54.54) or rounded (1xFDR 13.6363…, printed 13.64).
TABLE_1 = {
    "SDR": {1: (2.50, 2.00), 4: (10.00, 8.00), 8: (20.00, 16.00), 12: (30.00, 24.00)},
    "DDR": {1: (5.00, 4.00), 4: (20.00, 16.00), 8: (40.00, 32.00), 12: (60.00, 48.00)},
    "QDR": {1: (10.00, 8.00), 4: (40.00, 32.00), 8: (80.00, 64.00), 12: (120.00, 96.00)},
    "FDR": {1: (14.0625, 13.64), 4: (56.25, 54.54), 8: (112.50, 109.09), 12: (168.75, 163.63)},
    "EDR": {1: (25.78125, 25.0), 4: (103.125, 100.0), 8: (206.25, 200.0), 12: (309.375, 300.0)},
}
CELLS = [(speed, width, *cell) for speed, row in TABLE_1.items() for width, cell in row.items()]


@pytest.mark.parametrize(("speed", "width", "signal", "data"), CELLS)
def test_rates_are_those_of_the_published_table(speed, width, signal, data):
    rate = LinkRate(speed, width)
    assert rate.signal_bps == signal * 1e9
    cut, rounded = int(rate.data_bps / 1e7 + 1e-6) / 100, round(rate.data_bps / 1e9, 2)
    assert data in (cut, rounded)


@pytest.mark.parametrize(
    ("name", "signal_gbps", "data_gbps"),
    [
        ("1xFDR10", 10.3125, 10.0),
        ("4xFDR10", 41.25, 40.0),
        ("2xHDR", 106.25, 100.0),
        ("4xHDR", 212.5, 200.0),
        ("4xNDR", 425.0, 400.0),
    ],
)
def test_newer_speeds_carry_what_they_are_sold_as(name, signal_gbps, data_gbps):
    rate = link_rate(name)
    assert rate.signal_bps == pytest.approx(signal_gbps * 1e9, rel=1e-15)
    assert rate.data_bps == pytest.approx(data_gbps * 1e9, rel=1e-15)


def test_fec_overhead_is_transcoding_and_reed_solomon():
    # 256b/257b transcoding, then RS(544,514).
    hdr = LinkRate("HDR", 1)
    assert hdr.data_bps / hdr.signal_bps == pytest.approx(256 / 257 * 514 / 544, rel=1e-15)


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_rate_is_read_back_from_its_name(speed, width):
    rate = LinkRate(speed, width)
    assert link_rate(str(rate)) == rate
    assert LinkRate.parse(str(rate).lower()) == rate
    assert rate.encoding.startswith("8b/10b" if speed in ("SDR", "DDR", "QDR") else "64b/66b")


@pytest.mark.parametrize("text", ["56 Gb/s", "56Gb/s", " 56  Gb/s ", "56e9 b/s", "7 GB/s"])
def test_a_plain_rate_is_all_data(text):
    rate = link_rate(text)
    assert isinstance(rate, PlainRate)
    assert rate.data_bps == rate.signal_bps == 56e9
    assert link_rate(str(rate)) == rate


@pytest.mark.parametrize("text", ["3xFDR", "4xXDR", "4x???", "fast", "56", "", "4xFDRX"])
def test_an_unknown_rate_is_refused_with_what_exists(text):
    with pytest.raises(InputError, match=r"WIDTHxSPEED|unit in quotes"):
        link_rate(text, "leaf0 port 1")


def test_a_rate_that_does_not_exist_cannot_be_made():
    with pytest.raises(InputError, match="5xFDR does not exist"):
        LinkRate("FDR", 5)


@pytest.mark.parametrize("ps", [0, 1, 999, 1000, 50_000, 1_500_000, 7 * 10**12])
def test_exact_time_loses_nothing(ps):
    assert parse_time(format_time(ps)) == ps
