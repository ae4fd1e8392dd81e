"""Records of runs: quantities, settings and provenance in one schema; stored, compared, shown.

`Record` is one run. `read_records` and `write_records` handle its files; `compare` and `fail_if`
compare two of them.
"""

from weft._core import Histogram
from weft.records.compare import (
    Check,
    Comparison,
    Difference,
    Failure,
    compare,
    fail_if,
    format_comparison,
    parse_check,
)
from weft.records.record_line import from_line, to_line
from weft.records.schema import (
    SCHEMA,
    Distribution,
    Plain,
    Provenance,
    Quantity,
    Record,
    Row,
    Run,
    Scalar,
    Series,
    Topology,
    describe_run,
    note_ending,
)
from weft.records.statistic import export_parquet, flatten, statistic
from weft.records.store import (
    RecordFile,
    RecordWriter,
    TornLineWarning,
    check_directory,
    check_output,
    read_records,
    replace_file,
    write_records,
    write_text,
)

__all__ = [
    "SCHEMA",
    "Check",
    "Comparison",
    "Difference",
    "Distribution",
    "Failure",
    "Histogram",
    "Plain",
    "Provenance",
    "Quantity",
    "Record",
    "RecordFile",
    "RecordWriter",
    "Row",
    "Run",
    "Scalar",
    "Series",
    "Topology",
    "TornLineWarning",
    "check_directory",
    "check_output",
    "compare",
    "describe_run",
    "export_parquet",
    "fail_if",
    "flatten",
    "format_comparison",
    "from_line",
    "note_ending",
    "parse_check",
    "read_records",
    "replace_file",
    "statistic",
    "to_line",
    "write_records",
    "write_text",
]
