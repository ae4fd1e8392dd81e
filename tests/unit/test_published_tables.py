"""Published tables against a second reading of the papers.

The figures below were not made from the data files: a script read the text of the papers, was
compared with the files cell by cell (1,380 cells, no difference), and gave row counts and sums.
The checksum is that of the rows at that time, so that no later edit of a cell goes unseen.
"""

from __future__ import annotations

import hashlib
from importlib import resources
from math import isnan
from typing import NamedTuple

import numpy as np
import pytest

from weft.errors import InputError
from weft.studies.published import find_statement, find_table, read_statements, table_names


class Reading(NamedTuple):
    rows: int
    checksum: str
    sums: tuple[float, ...]


SECOND_READING = {
    "efa-c1": Reading(10, "00885a8172e9", (16368, 16.42, 223.25, 390.07)),
    "efa-c2": Reading(13, "a1fb873523f1", (16382, 5909.54, 391.5)),
    "efa-c3-1": Reading(13, "616c84e179a0", (8191, 1138.02, 34949.18, 108255.01, 116834.77)),
    "efa-c3-2": Reading(13, "31207cfe7b1f", (8191, 74.58, 71.58, 27.72, 14.95)),
    "efa-c3-3": Reading(13, "b81dfae55efa", (8191, 247.14, 7823.02, 60227.72, 84484.17)),
    "efa-c3-4": Reading(13, "3eba4d67697a", (8191, 16.21, 16.04, 15.42, 10.82)),
    "efa-c4-1": Reading(4, "2296f9451676", (15, 31.08, 30.42, 11.9, 5.96)),
    "efa-c4-2": Reading(4, "22f9e95782e1", (15, 12.81, 12.53, 10.29, 5.83)),
    "efa-c5-1": Reading(5, "f1de8b019dd5", (59, 12769.53, 57814.06, 1817.38, 46701.05)),
    "efa-c5-2": Reading(6, "3e5f971c04bd", (63, 94.08, 17.23, 29.77, 14.16)),
    "efa-c5-3": Reading(
        6, "6a5f72ddd6e2", (362, 317.15, 593.09, 1053.16, 1560.36, 2186.53, 2493.38)
    ),
    "efa-c6-1": Reading(10, "a2f24157f8f9", (16368, 177.73, 224.54)),
    "efa-c6-2": Reading(10, "c4e5f8512945", (16368, 158.2, 204.05)),
    "efa-c7": Reading(4, "f8f2ebff8604", (1608, 91.07, 91.33, 91.1, 90.62)),
    "efa-c8-1": Reading(15, "480fb05ea4b1", (819300, 98327, 541.11)),
    "efa-c8-2": Reading(15, "2342cd288ed7", (819300, 98327, 736.2)),
    "efa-c9": Reading(50, "6034f6451610", (472500, 1585.27)),
    "efa-c10-1": Reading(6, "d5cd6dafacb4", (13892, 333.84, 340.45, 270.25)),
    "efa-c10-2": Reading(6, "2768364997dd", (1111, 30896.83, 19206.21)),
    "ib2016-table1": Reading(
        4, "b389df6ba62d", (25, 62.5, 125, 250, 351.5625, 644.53125, 50, 100, 200, 340.9, 625)
    ),
    "ib2016-table2": Reading(22, "3c17493fd6b9", (16777212, 17059.92, 8549.18, 4296.15, 2790.42)),
    "ib2016-table3": Reading(22, "1fbed9e89425", (16777212, 17059.4, 8548.74, 4296.74, 2791.66)),
    "ib2016-table4": Reading(11, "2804b96b3f94", (8188, 24.32, 19.39, 17.2, 16.49)),
    "ib2016-table5": Reading(14, "a0dd12403416", (65532, 39426.7, 40218.76, 39676.17)),
    "ib2016-table6": Reading(14, "8f3e420b81fd", (65532, 171.43, 167.5, 186.59, 185.83)),
    "ib2016-table7": Reading(14, "9cb8ad09d208", (65532, 24669.98, 24686.48, 24362.91)),
    "ib2016-table8": Reading(14, "69f2cf9bf97e", (65532, 191.42, 189.55, 224.59, 216.89)),
    "saba-fig3-3": Reading(2, "f3e1d8825c58", (100, 619, 303)),
    "saba-fig4-15": Reading(3, "56c1f4c99645", (11.1, 4.27)),
    "saba-fig4-16": Reading(4, "bda0d2a06aab", (9.5, 5.11, 0.92, 0.94, 0.97)),
    "saba-fig4-17": Reading(3, "68c592c5b203", (6, 2.69, 3.18)),
    "saba-fig4-19": Reading(2, "435a377eefa3", (1250, 0.52, 0.88, 1.44)),
    "saba-fig4-3": Reading(4, "7c66e4b3dda9", (210, 4.4, 10.2)),
    "saba-fig4-4": Reading(3, "9c30fad300ea", (6, 1.59, 2.73)),
    "saba-fig4-5": Reading(3, "78ce18266e0f", (11.1, 2.56, 2.11)),
    "saba-fig4-6": Reading(1, "acb9b5f98aef", (3, 0.51)),
    "saba-fig4-8": Reading(1, "5b795cb3d32d", (8, 2)),
}
WORDS = {
    "efa-table2-1": Reading(7, "8345f8a43292", ()),
    "saba-fig3-1": Reading(4, "f08a8e4f0149", ()),
    "saba-fig3-2": Reading(2, "c8b77297f9c9", ()),
    "saba-fig4-13": Reading(5, "368e583e2b18", ()),
    "saba-fig4-14": Reading(3, "ecdb66743dcc", ()),
    "saba-fig4-18a": Reading(6, "3467bf7fd0ad", ()),
    "saba-fig4-18b": Reading(2, "a8b3b6d66558", ()),
    "saba-fig4-18c": Reading(3, "363b566b34d2", ()),
    "saba-fig4-7": Reading(10, "0f8f092957b2", ()),
    "saba-fig4-9": Reading(2, "88a20d8d50d1", ()),
}

# Rows of RPerf's figures; the sum is that of the values, before they were moved into files.
FIGURES = {
    "rperf-fig4": Reading(8, "e93794ae27b9", (2471,)),
    "rperf-fig5": Reading(5, "7f1935252523", (165,)),
    "rperf-fig6": Reading(12, "7bfa657a4cab", (32.993,)),
    "rperf-fig7a": Reading(10, "d4a1a1615f66", (88.9,)),
    "rperf-fig7b": Reading(7, "cfb0b6561fa9", (221.6,)),
    "rperf-fig8": Reading(8, "6912b4e1013b", (97.6,)),
    "rperf-fig9": Reading(4, "1768ebc5529c", (286,)),
    "rperf-fig10": Reading(16, "0d1bc8e1ee80", (63.2,)),
    "rperf-fig11": Reading(4, "5bd568bc0443", (66.3,)),
    "rperf-fig12": Reading(8, "71d03f18a260", (62.7,)),
    "rperf-fig13": Reading(5, "01cc2c10ce93", (132,)),
}


# Each stated number was looked up in the papers' text a second time, by another script.
STATED = {
    "fdr": Reading(45, "811ef025f685", ()),
    "ib2016": Reading(28, "3ee99103957a", ()),
    "efa": Reading(60, "b4d2618e2065", ()),
    "saba": Reading(5, "19ffe5869a9e", ()),
}


def checksum(name: str) -> str:
    """Of what is published; which parameter a value set is ours."""
    table = find_table(name)
    rows = [row[:-1] if "sets" in table.columns else row for row in table.rows]
    return hashlib.sha256(repr(tuple(rows)).encode()).hexdigest()[:12]


def test_every_table_that_the_studies_need_is_there() -> None:
    assert set(table_names()) == {*SECOND_READING, *WORDS, *FIGURES}


@pytest.mark.parametrize("name", table_names())
def test_no_cell_changed_since_the_second_reading(name: str) -> None:
    reading = {**SECOND_READING, **WORDS, **FIGURES}[name]
    assert (len(find_table(name).rows), checksum(name)) == (reading.rows, reading.checksum)


@pytest.mark.parametrize("name", SECOND_READING)
def test_columns_sum_to_those_of_the_second_reading(name: str) -> None:
    table = find_table(name)
    ours = [np.nansum(table.column(column)) for column in table.columns]
    assert ours == pytest.approx(SECOND_READING[name].sums, rel=1e-12)


@pytest.mark.parametrize("name", FIGURES)
def test_values_of_figures_sum_to_those_of_the_first_reading(name: str) -> None:
    assert find_table(name).column("published").sum() == pytest.approx(FIGURES[name].sums[0])


@pytest.mark.parametrize("name", SECOND_READING)
def test_every_value_is_positive_or_says_that_nothing_is_published(name: str) -> None:
    table = find_table(name)
    values = np.concatenate([table.column(column) for column in table.columns])
    gaps = int(np.isnan(values).sum())
    assert (values[~np.isnan(values)] > 0).all()
    assert not gaps or any("nan" in note for note in table.notes)


def test_bandwidth_and_message_rate_of_one_run_agree_with_mebibytes() -> None:
    for bandwidth, rate in (("efa-c3-1", "efa-c3-2"), ("efa-c3-3", "efa-c3-4")):
        for size in (16, 512, 4096, 8192):
            mib_per_s = find_table(bandwidth).column(f"{size}B_MiBps")
            printed = find_table(rate).column(f"{size}B_Mmsgps")
            messages = mib_per_s * 2**20 / size / 1e6
            assert np.abs(messages - printed).max() <= 0.011  # printed with two digits


def test_threaded_bandwidth_and_message_rate_agree_with_megabytes() -> None:
    rates = dict(
        zip(
            *(find_table("efa-c5-2").column(c) for c in ("threads", "SRD_4096B_Mmsgps")),
            strict=True,
        )
    )
    table = find_table("efa-c5-1")
    for threads, mb_per_s in zip(
        table.column("threads"), table.column("SRD_4096B_MBps"), strict=True
    ):
        assert mb_per_s / rates[threads] == pytest.approx(4096, rel=0.004)


def test_the_last_rows_of_table_6_keep_to_the_sentence_about_them() -> None:
    latency = find_statement("ib2016", "udp-tcp-datagram-latency-32Ki").value
    last = find_table("ib2016-table6").rows[-1]
    assert last[0] == 32768
    assert last[1:] == pytest.approx([latency] * 4, rel=0.06)


def test_sentences_repeat_the_tables() -> None:
    for transport, table in (("rc", "ib2016-table2"), ("uc", "ib2016-table3")):
        of_size = dict(
            zip(
                find_table(table).column("size_bytes"),
                find_table(table).column("FDR_us"),
                strict=True,
            )
        )
        assert of_size[32768] == find_statement("ib2016", f"{transport}-latency-32Ki").value


@pytest.mark.parametrize("paper", STATED)
def test_no_statement_changed_since_the_second_reading(paper: str) -> None:
    told = [(s.key, s.value, s.unit, s.place) for s in read_statements(paper).values()]
    digest = hashlib.sha256(repr(told).encode()).hexdigest()[:12]
    assert (len(told), digest) == (STATED[paper].rows, STATED[paper].checksum)


@pytest.mark.parametrize("paper", STATED)
def test_each_statement_has_a_place_and_a_value_has_a_unit(paper: str) -> None:
    for statement in read_statements(paper).values():
        assert statement.place
        assert statement.says
        assert isnan(statement.value) == (statement.unit == "")


def test_keys_of_statements_are_not_given_twice() -> None:
    for paper in STATED:
        text = (
            resources.files("weft.studies") / paper / "published" / f"{paper}-statements.toml"
        ).read_text(encoding="utf-8")
        assert text.count("[[statement]]") == len(read_statements(paper))


def test_nothing_published_is_nan() -> None:
    assert isnan(find_table("ib2016-table5").column("Hpcbench_mbps")[0])
    assert isnan(find_statement("ib2016", "fig5-best").value)


def test_what_is_not_published_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"ib2016-table9.*is unknown.*ib2016-table8"):
        find_table("ib2016-table9")
    with pytest.raises(InputError, match=r"no column.*SDR_us"):
        find_table("ib2016-table2").column("EDR_us")
    with pytest.raises(InputError, match="column of texts"):
        find_table("efa-table2-1").column("SRD")
    with pytest.raises(InputError, match=r"not stated.*aligned-8Mi"):
        find_statement("fdr", "aligned-9Mi")
    with pytest.raises(InputError, match=r"unknown.*efa, fdr, ib2016"):
        find_statement("rperf", "anything")
