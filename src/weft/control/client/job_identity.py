"""The job that a process belongs to: its ranks and executors count as one application.

Given by WEFT_JOB, or found in the environment that Slurm, Open MPI (PMIx) or Spark (on Kubernetes
or YARN) give to their processes, or in the control group that Slurm puts them in. Programs without
any of these are jobs of their own. Entry point: `find_job`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "WEFT_JOB"
MAX_LENGTH = 128
_VARIABLES = {
    "SLURM_JOB_ID": "slurm",
    "PMIX_NAMESPACE": "mpi",
    "OMPI_MCA_ess_base_jobid": "mpi",
    "SPARK_APPLICATION_ID": "spark",
}
_YARN = re.compile(r"container_(?:e\d+_)?(\d+_\d+)_\d+_\d+")
_SLURM_GROUP = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_FOREIGN = re.compile(r"[^A-Za-z0-9._:@/+-]")


def find_job(
    environment: Mapping[str, str] = os.environ, groups: Path = Path("/proc/self/cgroup")
) -> str:
    """The job's identity, the same in all its processes; empty: none is known."""
    name = environment.get(VARIABLE) or _find_managed(environment) or _find_group(groups)
    return _FOREIGN.sub("-", name)[:MAX_LENGTH]


def _find_managed(environment: Mapping[str, str]) -> str:
    for variable, manager in _VARIABLES.items():
        if environment.get(variable):
            return f"{manager}:{environment[variable]}"
    container = _YARN.fullmatch(environment.get("CONTAINER_ID", ""))
    return f"yarn:{container[1]}" if container else ""


def _find_group(groups: Path) -> str:
    try:
        job = _SLURM_GROUP.search(groups.read_text())
    except OSError:
        return ""
    return f"slurm:{job[1]}" if job else ""
