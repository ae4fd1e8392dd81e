"""The files of an operator: units, rules and dashboard are valid, and name metrics that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())
_METRIC = re.compile(r"\bweft_(?:control|port|export)_[a-z_]+")
_SUFFIX = re.compile(r"_bucket$")


def run_tool(package: str, *words: str) -> str:
    """What a tool says of files that it does not like."""
    tool = shutil.which(words[0])
    if tool is None:
        pytest.skip(f"{words[0]}: apt-get install {package}")
    done = subprocess.run(
        [tool, *words[1:]],
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_accepts_every_unit(tmp_path: Path) -> None:
    here = Path(sys.executable).parent
    for unit in UNITS:
        text = unit.read_text().replace("/opt/weft/bin", str(here))
        (tmp_path / unit.name).write_text(text)
    paths = [str(tmp_path / unit.name) for unit in UNITS]
    assert run_tool("systemd", "systemd-analyze", "verify", *paths) == ""


def test_units_run_without_privileges() -> None:
    for unit in UNITS:
        if unit.suffix == ".service":
            text = unit.read_text()
            for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="):
                assert line in text, unit.name


def test_the_agent_lets_the_group_of_the_controller_reach_its_socket() -> None:
    agent = (DEPLOY / "systemd/weft-agent@.service").read_text().splitlines()
    control = (DEPLOY / "systemd/weft-control.service").read_text().splitlines()
    assert "Group=weft" in agent
    assert "Group=weft" in control
    assert "StateDirectory=weft-agent weft-agent/%i" in agent  # both folders get the mode
    assert "StateDirectoryMode=0750" in agent


def test_promtool_accepts_rules_and_they_fire_when_they_should() -> None:
    rules = run_tool("prometheus", "promtool", "check", "rules", "weft-alerts.yml")
    assert "SUCCESS: 16 rules found" in rules
    assert "SUCCESS" in run_tool("prometheus", "promtool", "test", "rules", "weft-alerts-test.yml")
    assert "SUCCESS" in run_tool("prometheus", "promtool", "check", "config", "prometheus.yml")


def list_metrics(text: str) -> set[str]:
    return {_SUFFIX.sub("", name) for name in _METRIC.findall(text)}


def test_rules_and_dashboard_name_metrics_that_are_documented() -> None:
    documented = list_metrics((ROOT / "docs/operations.md").read_text())
    rules = (DEPLOY / "prometheus/weft-alerts.yml").read_text()
    dashboard = json.loads((DEPLOY / "grafana/weft.json").read_text())
    targets = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    assert len(targets) > 20
    for text in (rules, *targets):
        assert list_metrics(text) <= documented
