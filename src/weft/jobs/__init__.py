"""Jobs: stages of computation and communication on several hosts, simulated and for real.

`load_job` reads a job file, `place_jobs` chooses hosts, `build_graph` gives the operations of a
job: what each instance computes, sends and awaits, and in which order.
"""

from weft.jobs.job_file import Job, Stage, load_job, place_jobs, read_job
from weft.jobs.job_graph import JobGraph, build_graph

__all__ = ["Job", "JobGraph", "Stage", "build_graph", "load_job", "place_jobs", "read_job"]
