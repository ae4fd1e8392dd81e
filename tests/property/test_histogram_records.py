"""Records of any content survive their line, byte for byte."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.records import (
    Distribution,
    Histogram,
    Provenance,
    Record,
    Scalar,
    Series,
    Topology,
    from_line,
    read_records,
    to_line,
    write_records,
)

TEXT = st.text(st.characters(), max_size=8)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), FLOATS, TEXT)
ROWS = st.dictionaries(TEXT, PLAIN, max_size=3)


def _distribution(unit: str, samples: list[int]) -> Distribution:
    histogram = Histogram()
    histogram.record_many(np.array(samples, dtype=np.int64))
    return Distribution(unit, histogram)


DISTRIBUTIONS = st.builds(
    _distribution, TEXT, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20)
)
SERIES = st.lists(st.tuples(FLOATS, FLOATS), max_size=5).map(
    lambda points: Series("ps", "B", tuple(x for x, _ in points), tuple(y for _, y in points))
)
SCALARS = st.builds(Scalar, st.one_of(st.integers(), FLOATS), TEXT)
TOPOLOGIES = st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=4).map(
    lambda nodes: Topology(tuple(nodes), ((0, len(nodes) - 1),))
)
RECORDS = st.builds(
    Record,
    kind=st.sampled_from(["simulation", "measurement", "model", "study"]),
    name=TEXT,
    settings=ROWS,
    quantities=st.dictionaries(TEXT, st.one_of(SCALARS, DISTRIBUTIONS, SERIES), max_size=3),
    tables=st.dictionaries(TEXT, st.lists(ROWS, max_size=3), max_size=2),
    topology=st.none() | TOPOLOGIES,
    notes=st.lists(TEXT, max_size=2),
    provenance=st.builds(Provenance, weft_version=TEXT, seed=st.none() | st.integers()),
)


@given(RECORDS)
def test_a_record_survives_its_line_and_the_line_survives_the_record(record):
    line = to_line(record)
    assert from_line(line) == record
    assert to_line(from_line(line)) == line


@settings(max_examples=25)
@given(st.lists(RECORDS, max_size=3))
def test_a_file_of_records_reads_back_in_order(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("store") / "run.jsonl"
    write_records(path, records)
    assert read_records(path).records == tuple(records)
