"""Records of runs: quantities, settings and provenance in one schema; stored, compared, shown.

`Record` is one run. `read_records` and `write_records` handle its files; `compare` and
`find_failures` compare two of them.
"""

from weft._core import Histogram
from weft.records.compare import (
    Check,
    Comparison,
    Difference,
    Failure,
    compare,
    find_failures,
    format_comparison,
    format_mismatch,
    ignore_settings,
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
from weft.records.statistic import export_parquet, flatten, statistic, to_summary_line
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
    "find_failures",
    "flatten",
    "format_comparison",
    "format_mismatch",
    "from_line",
    "ignore_settings",
    "note_ending",
    "parse_check",
    "read_records",
    "replace_file",
    "statistic",
    "to_line",
    "to_summary_line",
    "write_records",
    "write_text",
]
