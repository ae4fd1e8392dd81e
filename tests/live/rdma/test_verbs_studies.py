"""Studies that need verbs run to their end and judge their claims; what they judge is not tested.

In an emulated machine times mean little: only that every round was measured, as the study asks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.records import read_records
from weft.studies import NotHere, run_study
from weft.studies.efa.interfaces import EFA_INTERFACES
from weft.studies.rounds import ROUNDS

TIMEOUT_S = 300


pytestmark = pytest.mark.usefixtures("device")


def test_signaling_is_measured_and_judged_over_verbs(tmp_path: Path) -> None:
    output = tmp_path / "study.jsonl"
    command = [sys.executable, "-m", "weft.cli", "study", "run", "fdr-eq2", "-o", str(output)]
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
    assert len(measured) == 3 * ROUNDS
    assert {r.settings["op"] for r in measured} == {"write-imm"}
    assert {r.settings["signal_every"] for r in measured} == {1, 8, 64}
    (claim,) = (c for c in comparison.tables["claims"] if c["system"] == "this machine, verbs")
    assert "Equation 2 over each is signaled: ratio" in str(claim["evidence"])


def test_verbs_and_libfabric_over_verbs_are_measured_and_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_slow(_: str) -> None:
        raise NotHere("two ranks that spin take minutes on one emulated processor")

    monkeypatch.setattr("weft.studies.efa.interfaces._swept", too_slow)
    result = run_study(EFA_INTERFACES)
    assert {r.settings["over"] for r in result.records.values()} == {"verbs", "ofi:verbs"}
    assert len(result.records) == 2 * ROUNDS
    (verdict,) = (v for c, v in result.judged if c.system == "this machine, verbs")
    assert "verbs over libfabric (1.5 in the thesis): ratio" in verdict.evidence
