"""Experiments over verbs run to their end and judge their claims; what they judge is not tested.

In an emulated machine times mean little: only that every round was measured, as the study asks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.records import read_records
from weft.studies import find_studies, run_study
from weft.studies.experiment import ROUNDS, with_experiment

TIMEOUT_S = 300


pytestmark = pytest.mark.usefixtures("device")


def test_signaling_is_measured_and_judged_over_verbs(tmp_path: Path) -> None:
    output = tmp_path / "study.jsonl"
    command = [sys.executable, "-m", "weft.cli", "study", "run", "fdr-eq2"]
    command += ["--peer", "local", "--over", "verbs", "-o", str(output)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    log = Path(os.environ.get("WEFT_RDMA_OUT", str(tmp_path))) / "fdr-eq2.txt"
    log.write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    *points, comparison = read_records(output).records
    measured = [r for r in points if r.kind == "measurement"]
    assert {str(r.settings["over"]) for r in measured} == {"verbs"}
    assert len(measured) == 5 * ROUNDS
    assert {r.settings["op"] for r in measured} == {"write-imm"}
    periods = {r.settings.get("signal_every", 1) for r in measured}  # 1 is the default
    assert periods == {1, 8, 64}
    claim, _ = comparison.tables["claims"]
    assert claim["system"] == "this host to local, verbs"
    assert "256 Ki @ 64 over 256 Ki @ 1: ratio" in str(claim["evidence"])


def test_verbs_and_libfabric_over_verbs_are_measured_and_judged() -> None:
    (study,) = find_studies(["efa-interfaces"])
    result = run_study(with_experiment(study, "local", "verbs"))
    assert {r.settings["over"] for r in result.records.values()} == {"verbs", "ofi:verbs"}
    assert len(result.records) == 2 * ROUNDS
    (verdict,) = result.verdicts
    assert "verbs over libfabric: ratio" in verdict.evidence
