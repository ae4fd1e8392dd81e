"""Experiments over verbs run to their end and judge their claims; what they judge is not tested.

In an emulated machine times mean little: only that every round was measured, as the study asks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from weft.records import read_records
from weft.studies import experiment as experiments
from weft.studies import find_studies, run_study
from weft.studies.experiment import ROUNDS, Experiment, find_experiment, with_experiment

TIMEOUT_S = 300


pytestmark = pytest.mark.usefixtures("device")


def _send_less(experiment: Experiment) -> Experiment:
    """The experiment with an eighth of its bytes: the emulated machine moves some 10 MB/s."""
    lines = []
    for line in experiment.lines:
        total = line.options["total"]
        assert isinstance(total, int)
        lines.append(replace(line, options={**line.options, "total": total // 8, "warmup": 1}))
    return replace(experiment, lines=tuple(lines))


def test_signaling_is_measured_and_judged_over_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        experiments, "find_experiment", lambda study: _send_less(find_experiment(study))
    )
    (study,) = find_studies(["fdr-eq2"])
    result = run_study(with_experiment(study, "local", "verbs"))
    measured = [r for r in result.records.values() if r.kind == "measurement"]
    assert {str(r.settings["over"]) for r in measured} == {"verbs"}
    assert len(measured) == 5 * ROUNDS
    assert {r.settings["op"] for r in measured} == {"write-imm"}
    periods = {r.settings.get("signal_every", 1) for r in measured}  # 1 is the default
    assert periods == {1, 8, 64}
    evidence = [v.evidence for v in result.verdicts]
    assert any("256 Ki @ 64 over 256 Ki @ 1: ratio" in text for text in evidence), evidence


def test_verbs_and_libfabric_over_verbs_are_measured_and_judged(tmp_path: Path) -> None:
    output = tmp_path / "study.jsonl"
    command = [sys.executable, "-m", "weft.cli", "study", "run", "efa-interfaces"]
    command += ["--peer", "local", "--over", "verbs", "-o", str(output)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    log = Path(os.environ.get("WEFT_RDMA_OUT", str(tmp_path))) / "efa-interfaces.txt"
    log.write_text(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr
    *points, comparison = read_records(output).records
    assert {r.settings["over"] for r in points} == {"verbs", "ofi:verbs"}
    assert len(points) == 2 * ROUNDS
    (claim,) = comparison.tables["claims"]
    assert claim["system"] == "this host to local, verbs"
    assert "verbs over libfabric: ratio" in str(claim["evidence"])
