"""Jobs for the experiments of the thesis's section 4.6: ten of its testbed, twenty synthetic.

`read_testbed` and `make_synthetic` give jobs, `profile_job` their sensitivity.
"""

from weft.studies.saba.workloads.job_profile import profile_job
from weft.studies.saba.workloads.synthetic import make_synthetic
from weft.studies.saba.workloads.testbed import Workload, read_testbed

__all__ = ["Workload", "make_synthetic", "profile_job", "read_testbed"]
