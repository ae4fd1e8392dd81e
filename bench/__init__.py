"""Benchmarks: our figures, and peers that can be installed, in one run."""
