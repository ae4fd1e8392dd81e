"""Saba's claim on real ports: cells of jobs in network namespaces, and the campaign that runs them.

`weft.studies.saba.live_runs` judges what it has recorded.
"""
